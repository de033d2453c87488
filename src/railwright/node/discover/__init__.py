"""The one reader of a node: everything that a plan or a check needs, from sys, proc and etc below a root.

It needs no NVIDIA driver and changes nothing. A recorded tree serves as a machine: what only a live one can answer
(systemd, other tools, this process's own CPUs) is left out there and stays unknown.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional, TypeVar, Union

from ..model import Facts, FileFact, InputError, Nic, Queues, Software, Witness
from ..model.facts import SCHEMA
from .containers import read_containers
from .cpus import read_cpuinfo, read_cpus, read_numa, read_online
from .cuda import read_cuda
from .hardware_tools import run_hardware_tools
from .host import INTERFACE_SYSCTLS, SYSCTLS
from .host import read_host as _read_host
from .irq import read_irqs
from .limits import read_limits
from .managers import read_managers
from .net import read_nics
from .network import read_network
from .nvidia_smi import with_nvidia_smi
from .pci import gpus as read_gpus
from .pci import read_pci
from .pcie import read_errors, read_pcie
from .platform import read_platform
from .power import read_power
from .qos import read_qos
from .questions import questions
from .rdma_stack import read_rdma_stack
from .routes import read_routes
from .runtimes import read_runtimes
from .software import read_software
from .tools import read_units, run_port_tools, run_tools
from .tree import Tree, processes

__all__ = ["INTERFACE_SYSCTLS", "IRQBALANCE", "SYSCTLS", "discover"]

# It moves interrupts behind everybody's back, so its state is always read.
IRQBALANCE = "irqbalance.service"
# It writes the DCB of ports that it serves, whoever else does.
LLDPAD = "lldpad.service"
# A watched file is one that the project writes: the largest is the boot zipapp, below 1 MiB.
_WATCHED_BYTES = 64 * 1024 * 1024
_KERNEL = ("sys/", "proc/")
_Part = TypeVar("_Part")


def discover(
    root: Union[Path, Tree],
    *,
    watch: Sequence[str] = (),
    units: Sequence[str] = (),
    sysctls: Sequence[str] = (),
    packages: Sequence[str] = (),
    tools: bool = False,
    ports: bool = False,
    queues: bool = True,
) -> Facts:
    """Facts of the machine below `root` ("/" is this one; a Tree serves as it is).

    watch: absolute paths of files whose digest, mode and owner are wanted. units: systemd units besides irqbalance's.
    sysctls: keys besides SYSCTLS, a policy's say. packages: names besides those of a GPU node's stack. tools: whether
    to run lspci, nvidia-smi, systemctl and ip, and for ports of an Ethernet fabric lldpcli, dcb and ethtool, and keep
    what they say. ports: whether to ask the ports alone. queues: whether to ask drivers for channels and rings, which
    takes a socket. units, tools and ports are answered for "/" only. Raises
    InputError, naming the file, for what no kernel writes and for a tree that is no machine.
    """
    tree = root if isinstance(root, Tree) else Tree(root)
    if not tree.is_folder("sys/devices/system/cpu"):
        raise InputError(
            tree.where("sys/devices/system/cpu"),
            "is not there",
            "expected the root of a Linux machine, or a copy of its sys and proc",
        )
    cpuinfo = read_cpuinfo(tree)
    online = read_online(tree)
    numa = read_numa(tree, online)
    pci = read_pci(tree)
    routes = read_routes(tree)
    running = processes(tree)
    nics, notes = read_nics(tree, pci, routes)
    gpus = read_gpus(tree, pci)
    with_irqs = frozenset({gpu.address or "" for gpu in gpus} | {nic.address or "" for nic in nics})
    cpus = read_cpus(tree, cpuinfo, online, numa)
    outputs = run_tools(nics) if tools and tree.live else ()
    if ports and not tools and tree.live:
        outputs = run_port_tools(nics)
    if tools and tree.live:
        outputs += run_hardware_tools(nics, pci.devices, cpus.arch or "")
    gpus, conflicts = with_nvidia_smi(gpus, outputs)
    notes = (*notes, *questions(nics, pci.devices))
    if not pci.seen:
        notes = (
            *notes,
            f"{tree.where('sys/bus/pci/devices')} is not there: this witness shows no PCI device",
        )
    software, said = _software(tree, packages)
    stack, said_of_stack = _of("RDMA stack", lambda: read_rdma_stack(tree))
    containers, said_of_containers = _of("containers", lambda: read_containers(tree, running))
    limits, said_of_limits = _of("limits", lambda: read_limits(tree, running))
    runtimes, said_of_runtimes = _of("runtimes", lambda: read_runtimes(tree))
    notes = (*notes, *said, *said_of_stack, *said_of_containers, *said_of_limits, *said_of_runtimes)
    return Facts(
        schema=SCHEMA,
        witnesses=(Witness("sysfs", str(tree.root)),),
        host=_read_host(tree, cpuinfo, nics, sysctls),
        cpus=cpus,
        numa=numa,
        roots=pci.roots,
        pci=pci.devices,
        gpus=gpus,
        nics=nics,
        irqs=read_irqs(tree, pci, with_irqs),
        files=tuple(_watched(tree, path) for path in dict.fromkeys(watch)),
        units=read_units(tuple(dict.fromkeys((IRQBALANCE, LLDPAD, *units)))) if tree.live else (),
        tools=outputs,
        conflicts=conflicts,
        notes=notes,
        network=read_network(tree, nics, routes, running),
        managers=read_managers(tree, nics, running),
        pcie=read_pcie(tree, pci),
        pcie_errors=read_errors(tree, pci),
        queues=_queues(tree, nics) if queues else (),
        qos=read_qos(tree, nics, outputs),
        platform=read_platform(tree, nics),
        software=software,
        power=read_power(tree),
        rdma_stack=stack,
        containers=containers,
        limits=limits,
        cuda=read_cuda(tree),
        runtimes=runtimes,
    )


def _software(tree: Tree, asked: Sequence[str]) -> tuple[Optional[Software], tuple[str, ...]]:
    """A package record that cannot be read must not keep a node from being planned: it is unknown, and said."""
    try:
        return read_software(tree, asked), ()
    except InputError as error:
        return None, (f"the node's software is not known: {error}",)


def _of(what: str, read: Callable[[], _Part]) -> tuple[Optional[_Part], tuple[str, ...]]:
    """A part that only an installation asks for: where its files cannot be read it is unknown, and that is said."""
    try:
        return read(), ()
    except InputError as error:
        return None, (f"the node's {what}: not known: {error}",)


def _watched(tree: Tree, path: str) -> FileFact:
    """A file as it lies there. A link is not followed: its digest is that of the text it holds, its mode is "link"."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise InputError(f"watch.{path}", "is no absolute path", "expected a path like /etc/nccl.conf")
    inside = path.lstrip("/")
    status = tree.status(inside)
    if status is None:
        return FileFact(path)
    known = FileFact(path, uid=status.st_uid, gid=status.st_gid)
    if stat.S_ISREG(status.st_mode):
        data = tree.data(inside, _WATCHED_BYTES)
        if data is None:
            # Without its digest the answer would say that there is no file.
            raise InputError(
                tree.where(inside), "cannot be read", "run as root, and again if it has just gone"
            )
        text = data.decode("utf-8", "backslashreplace").strip() if inside.startswith(_KERNEL) else None
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return replace(known, sha256=hashlib.sha256(data).hexdigest(), mode=mode, text=text)
    if stat.S_ISLNK(status.st_mode):
        target = tree.link(inside) or ""
        return replace(known, sha256=hashlib.sha256(os.fsencode(target)).hexdigest(), mode="link")
    return replace(known, mode="folder" if stat.S_ISDIR(status.st_mode) else "other")


def _queues(tree: Tree, nics: Sequence[Nic]) -> tuple[Queues, ...]:
    # Here and not above: the collector's script has no part that could open a socket.
    from .queues import read_queues

    return read_queues(tree, nics)
