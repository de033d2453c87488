"""Processors and NUMA nodes, from sys/devices/system and proc/cpuinfo."""

from __future__ import annotations

import re
from typing import Optional

from ..model import Core, Cpus, InputError, NumaNode, format_cpulist, parse_cpulist
from .tree import Tree

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
# 512 CPUs with the flags of 2025 are about 1 MiB.
_CPUINFO_BYTES = 32 * 1024 * 1024
_CPU_FOLDER = re.compile(r"^cpu(\d+)$")
_NODE_FOLDER = re.compile(r"^node(\d+)$")
_MEMORY = re.compile(r"^Node \d+ MemTotal:\s+(\d+) kB$", re.MULTILINE)


def read_cpuinfo(tree: Tree) -> dict[str, str]:
    """The first value of each field of proc/cpuinfo. Raises InputError where a kernel's file is not there."""
    text = tree.require("proc/cpuinfo", "the processors, as a Linux kernel lists them", _CPUINFO_BYTES)
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
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
        cores=_cores(tree, online, numa),
    )


def read_numa(tree: Tree, online: tuple[int, ...]) -> tuple[NumaNode, ...]:
    """NUMA nodes by number, with their online CPUs (old kernels list the others too); () on a kernel without NUMA."""
    nodes = []
    numbers = sorted(int(match[1]) for match in map(_NODE_FOLDER.match, tree.names(_NODES)) if match)
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
        present = [int(match[1]) for match in map(_CPU_FOLDER.match, tree.names(_CPUS)) if match]
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
    try:
        return int(text, 0)
    except ValueError:
        raise InputError(tree.where("proc/cpuinfo"), f"{name!r} is {text!r}", "expected a number") from None


def _distances(tree: Tree, path: str, nodes: int) -> tuple[int, ...]:
    text = tree.text(path)
    if text is None:
        return ()
    parts = text.split()
    if len(parts) != nodes or not all(part.isdigit() for part in parts):
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
