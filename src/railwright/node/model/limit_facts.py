"""Facts of limits: what running daemons have, and whether a login gets what limits.d says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import like

# Services go into paths of drop-ins and into commands, limits into sums.
_SERVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,200}\.service", re.ASCII)
_LIMIT = re.compile(r"unlimited|[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True)
class ProcessLimits:
    """A running process with its soft and hard limits, as /proc/PID/limits words them ("unlimited", or digits).

    unit: the service that its cgroup is of. memlock: bytes. nofile: open files.
    """

    unit: str
    process: str
    memlock: tuple[str, ...]
    nofile: tuple[str, ...]


@dataclass(frozen=True)
class SlurmPropagation:
    """What slurm.conf says of the limits that a job takes along from where it was submitted, in upper case.

    propagate, but: PropagateResourceLimits and PropagateResourceLimitsExcept; None where the file has no such line.
    """

    path: str
    propagate: Optional[tuple[str, ...]] = None
    but: Optional[tuple[str, ...]] = None


@dataclass(frozen=True)
class Limits:
    """Limits of a node; None is unknown.

    units: unit files of daemons that start work, of those that are looked for. first: PID 1, from which all others
    have theirs. may_raise: whether PID 1 may raise a hard limit (CAP_SYS_RESOURCE); in a container it often may not.
    nr_open: the most open files that the kernel lets anybody have. pam: by service of PAM, whether its session runs
    pam_limits with limits.d; None where its files do not tell. use_pam: whether sshd opens sessions of PAM at all.
    """

    units: tuple[str, ...] = ()
    processes: tuple[ProcessLimits, ...] = ()
    first: Optional[ProcessLimits] = None
    may_raise: Optional[bool] = None
    nr_open: Optional[int] = None
    pam: dict[str, Optional[bool]] = field(default_factory=dict)
    use_pam: Optional[bool] = None
    slurm: Optional[SlurmPropagation] = None


def must_be_sound(limits: Limits, where: str) -> None:
    """Raises InputError for what systemd and the kernel do not write."""
    for n, name in enumerate(limits.units):
        like(name, _SERVICE, f"{where}.units[{n}]", "a service of systemd")
    for n, one in enumerate(limits.processes):
        like(one.unit, _SERVICE, f"{where}.processes[{n}].unit", "a service of systemd")
        _two(one, f"{where}.processes[{n}]")
    if limits.first is not None:
        _two(limits.first, f"{where}.first")


def _two(one: ProcessLimits, where: str) -> None:
    for name, words in (("memlock", one.memlock), ("nofile", one.nofile)):
        if len(words) != 2:
            raise InputError(
                f"{where}.{name}", f"found {len(words)} values", "expected the soft and the hard limit"
            )
        for word in words:
            like(word, _LIMIT, f"{where}.{name}", '"unlimited" or a number')
