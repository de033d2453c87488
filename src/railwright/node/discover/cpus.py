"""Processors and NUMA nodes, from sys/devices/system and proc/cpuinfo."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Optional

from ..model import Core, Cpus, InputError, NumaNode, format_cpulist, parse_cpulist
from .tree import Tree, each_line

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
# 512 CPUs with the flags of 2025 are about 1 MiB.
_CPUINFO_BYTES = 32 * 1024 * 1024
# A kernel has some forty (arch/*/kernel/cpu/proc.c).
_MOST_FIELDS = 500
_CPU_FOLDER = re.compile(r"cpu([0-9]{1,5})")
_NODE_FOLDER = re.compile(r"node([0-9]{1,4})")
# Slowest first (arch/x86/events/intel/core.c).
_UNITS = ("cpu_lowpower", "cpu_atom", "cpu_core")
_PROCESSOR = re.compile(r"^processor\s*: (\d{1,5})$", re.MULTILINE | re.ASCII)
_CPU_PART = re.compile(r"^CPU part\s*: (0x[0-9a-f]{1,8})$", re.MULTILINE | re.ASCII)
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,9}")
_DISTANCE = re.compile(r"[0-9]{1,9}")
_MEMORY = re.compile(r"^Node \d+ MemTotal:\s+(\d{1,15}) kB$", re.MULTILINE | re.ASCII)


def read_cpuinfo(tree: Tree) -> dict[str, str]:
    """The first value of each field of proc/cpuinfo. Raises InputError where a kernel's file is not there."""
    text = tree.require("proc/cpuinfo", "the processors, as a Linux kernel lists them", _CPUINFO_BYTES)
    fields: dict[str, str] = {}
    for line in each_line(text):
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
            if len(fields) > _MOST_FIELDS:
                raise InputError(
                    tree.where("proc/cpuinfo"),
                    f"holds more than {_MOST_FIELDS} fields",
                    "expected a kernel's file",
                )
    if not fields:
        raise InputError(tree.where("proc/cpuinfo"), "holds no field", "expected lines like 'processor : 0'")
    return fields


def read_cpus(
    tree: Tree, cpuinfo: dict[str, str], online: tuple[int, ...], numa: tuple[NumaNode, ...]
) -> Cpus:
    """The processors. Raises InputError where the topology is no partition of the online CPUs."""
    allowed = tree.cpulist_line("proc/self/status", "Cpus_allowed_list") if tree.live else None
    return Cpus(
        arch=_arch(cpuinfo),
        vendor=cpuinfo.get("vendor_id") or cpuinfo.get("CPU implementer"),
        family=_number(tree, cpuinfo, "cpu family", "CPU architecture"),
        model=_number(tree, cpuinfo, "model", "CPU part"),
        # POWER has neither vendor nor family: `cpu : POWER9`, and its `model` is the machine's.
        model_name=cpuinfo.get("model name") or cpuinfo.get("cpu"),
        online=format_cpulist(online),
        offline=tree.cpulist(f"{_CPUS}/offline"),
        isolated=tree.cpulist(f"{_CPUS}/isolated"),
        allowed=allowed,
        cores=_with_kinds(tree, cpuinfo, _cores(tree, online, numa)),
    )


def read_numa(tree: Tree, online: tuple[int, ...]) -> tuple[NumaNode, ...]:
    """NUMA nodes by number, with their online CPUs (old kernels list the others too); () on a kernel without NUMA."""
    nodes = []
    numbers = sorted(int(match[1]) for match in map(_NODE_FOLDER.fullmatch, tree.names(_NODES)) if match)
    for number in numbers:
        place = f"{_NODES}/node{number}"
        cpus = tree.cpulist(f"{place}/cpulist")
        if cpus is None:
            cpus = tree.cpumask(f"{place}/cpumap")
        if cpus is None:
            raise InputError(
                tree.where(f"{place}/cpulist"), "cannot be read", "expected a CPU list, empty for memory only"
            )
        running = format_cpulist(set(parse_cpulist(cpus, place)) & set(online))
        distances = _distances(tree, f"{place}/distance", len(numbers))
        nodes.append(NumaNode(number, running, distances, _memory(tree, place)))
    return tuple(nodes)


def read_online(tree: Tree) -> tuple[int, ...]:
    """The online CPUs. Raises InputError where there is none."""
    text = tree.text(f"{_CPUS}/online")
    if text is not None:
        online = parse_cpulist(text, tree.where(f"{_CPUS}/online"))
    else:
        # Some recorded trees leave the summary out. A CPU without a file of its own cannot be switched off.
        present = [int(match[1]) for match in map(_CPU_FOLDER.fullmatch, tree.names(_CPUS)) if match]
        online = tuple(
            cpu for cpu in sorted(present) if tree.integer(f"{_CPUS}/cpu{cpu}/online") in {None, 1}
        )
    if not online:
        raise InputError(tree.where(f"{_CPUS}/online"), "names no CPU", "expected the online CPUs, like 0-95")
    return online


def _arch(cpuinfo: dict[str, str]) -> Optional[str]:
    """The machine name that `uname -m` prints, as far as cpuinfo tells."""
    if "lm" in cpuinfo.get("flags", "").split():
        return "x86_64"
    if "CPU implementer" in cpuinfo and cpuinfo.get("CPU architecture") in {"8", "AArch64"}:
        return "aarch64"
    return None


def _number(tree: Tree, cpuinfo: dict[str, str], x86: str, arm: str) -> Optional[int]:
    # `model : 8335-GTW` on POWER is a machine type, so the name alone does not tell that a number stands there.
    name = x86 if "vendor_id" in cpuinfo else arm
    text = cpuinfo.get(name)
    if text is None or text == "AArch64":
        return None
    if not _NUMBER.fullmatch(text):
        raise InputError(tree.where("proc/cpuinfo"), f"{name!r} is {text!r}", "expected a number")
    return int(text, 16) if text.startswith("0x") else int(text)


def _distances(tree: Tree, path: str, nodes: int) -> tuple[int, ...]:
    text = tree.text(path)
    if text is None:
        return ()
    parts = text.split()
    if len(parts) != nodes or not all(_DISTANCE.fullmatch(part) for part in parts):
        raise InputError(
            tree.where(path), f"found {text!r}", f"expected {nodes} distances, one for each node"
        )
    return tuple(int(part) for part in parts)


def _memory(tree: Tree, place: str) -> Optional[int]:
    text = tree.text(f"{place}/meminfo")
    if text is None:
        return None
    match = _MEMORY.search(text)
    if match is None:
        raise InputError(
            tree.where(f"{place}/meminfo"), "has no MemTotal", "expected 'Node 0 MemTotal: 131841932 kB'"
        )
    return int(match[1]) * 1024


def _cores(tree: Tree, online: tuple[int, ...], numa: tuple[NumaNode, ...]) -> tuple[Core, ...]:
    node_of = {cpu: node.id for node in numa for cpu in parse_cpulist(node.cpus, f"node{node.id}")}
    cores: list[Core] = []
    running = set(online)
    placed: set[int] = set()
    for cpu in online:
        if cpu in placed:
            continue
        place = f"{_CPUS}/cpu{cpu}"
        siblings = _siblings(tree, place)
        if siblings is None:
            # One CPU without topology says nothing of how it shares a core with the others.
            return ()
        members = tuple(sibling for sibling in siblings if sibling in running)
        if cpu not in members or placed & set(members):
            raise InputError(
                tree.where(f"{place}/topology/thread_siblings_list"),
                f"found {format_cpulist(siblings)}",
                f"expected a list with CPU {cpu} that shares no CPU with another core",
            )
        placed.update(members)
        cores.append(Core(members, _socket(tree, place), node_of.get(cpu), _l3(tree, place)))
    return tuple(cores)


def _with_kinds(tree: Tree, cpuinfo: dict[str, str], cores: tuple[Core, ...]) -> tuple[Core, ...]:
    """The cores with their kind, where there are several kinds and all can be told."""
    kinds = _arm_kinds(tree) if "CPU part" in cpuinfo else _intel_kinds(tree)
    found = [kinds.get(core.cpus[0]) for core in cores]
    if None in found or len(set(found)) < 2:
        return cores
    return tuple(replace(core, kind=kind) for core, kind in zip(cores, found))


def _arm_kinds(tree: Tree) -> dict[int, int]:
    """CPU to its kind: the part that cpuinfo names, ranked by what the scheduler takes its slowest core for.

    The scheduler's number alone does not do: cores of one part that run at several clocks have several.
    """
    parts: dict[int, str] = {}
    for block in tree.require("proc/cpuinfo", "the processors", _CPUINFO_BYTES).split("\n\n"):
        number, part = _PROCESSOR.search(block), _CPU_PART.search(block)
        if number and part:
            parts[int(number[1])] = part[1]
    slowest: dict[str, int] = {}
    for cpu, name in parts.items():
        power = tree.integer(f"{_CPUS}/cpu{cpu}/cpu_capacity")
        if power is None:
            return {}
        slowest[name] = min(power, slowest.get(name, power))
    ranked = sorted(slowest, key=lambda name: (slowest[name], name))
    return {cpu: ranked.index(name) for cpu, name in parts.items()}


def _intel_kinds(tree: Tree) -> dict[int, int]:
    """CPU to its kind: each kind has a performance unit of its own."""
    units = [tree.cpulist(f"sys/devices/{unit}/cpus") for unit in _UNITS]
    known = [parse_cpulist(cpus, unit) for cpus, unit in zip(units, _UNITS) if cpus]
    return {cpu: rank for rank, cpus in enumerate(known) for cpu in cpus}


def _siblings(tree: Tree, place: str) -> Optional[tuple[int, ...]]:
    # core_cpus_list is the newer name (5.3); both stand in a live tree.
    for name in ("core_cpus_list", "thread_siblings_list"):
        path = f"{place}/topology/{name}"
        text = tree.text(path)
        if text is not None:
            return parse_cpulist(text, tree.where(path))
    mask = tree.cpumask(f"{place}/topology/thread_siblings")
    return None if mask is None else parse_cpulist(mask, place)


def _socket(tree: Tree, place: str) -> Optional[int]:
    socket = tree.integer(f"{place}/topology/physical_package_id")
    return None if socket is None or socket < 0 else socket


def _l3(tree: Tree, place: str) -> Optional[int]:
    for index in tree.names(f"{place}/cache"):
        if tree.text(f"{place}/cache/{index}/level") == "3":
            shared = tree.cpulist(f"{place}/cache/{index}/shared_cpu_list")
            if shared is None:
                shared = tree.cpumask(f"{place}/cache/{index}/shared_cpu_map")
            return None if not shared else parse_cpulist(shared, place)[0]
    return None
