"""Physical cores as hwloc counts them (`lstopo -l`: Core L#0, L#1, ...).

Slurm's gres.conf and Open MPI's rank files name cores by these numbers, not by the kernel's CPU numbers: cores go up
through sockets, then through the NUMA nodes and L3 groups in them, each counted by its lowest CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

from ..node.model import Core, Cpus, format_cpulist

_Group = Callable[[Core], Optional[object]]


def core_numbers(cpus: Cpus) -> dict[int, int]:
    """CPU to the number of its core; empty where the witness does not show the cores."""
    levels: list[_Group] = [lambda core: core.numa, lambda core: core.l3]
    # A socket may be cut into NUMA nodes with several L3 groups each, or an L3 may reach over NUMA nodes.
    levels.sort(key=lambda level: len({(core.socket, level(core)) for core in cpus.cores}))
    lowest = [_lowest(cpus.cores, level) for level in (_socket, *levels)]
    ordered = sorted(cpus.cores, key=lambda core: (*(first[core.cpus] for first in lowest), min(core.cpus)))
    return {cpu: number for number, core in enumerate(ordered) for cpu in core.cpus}


def logical(cpus: Iterable[int], numbers: dict[int, int]) -> Optional[str]:
    """The cores of these CPUs, as a list like "1-2,6"; None where their numbers are not known."""
    found = [numbers.get(cpu) for cpu in cpus]
    known = [number for number in found if number is not None]
    return format_cpulist(known) if known and len(known) == len(found) else None


def _socket(core: Core) -> Optional[object]:
    return core.socket


def _lowest(cores: Iterable[Core], level: _Group) -> dict[tuple[int, ...], int]:
    """By core (its CPUs) the lowest CPU of its group."""
    groups: dict[object, int] = {}
    for core in cores:
        key = (core.socket, level(core))
        groups[key] = min(groups.get(key, min(core.cpus)), *core.cpus)
    return {core.cpus: groups[core.socket, level(core)] for core in cores}
