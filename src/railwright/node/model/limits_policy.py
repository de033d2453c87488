"""Policy of limits: how much memory a process may lock, and how many files it may open."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .values import like, within

UNLIMITED = "unlimited"
_KIB = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
_SERVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,240}\.service", re.ASCII)
_MOST_FILES = 2**31 - 1


@dataclass(frozen=True)
class LimitsPolicy:
    """Limits of logins and of the daemons that start work.

    memlock: "unlimited", or KiB as a text: RDMA locks every buffer that it registers (NCCL user guide, troubleshooting,
    "Memory lock"; IB verbs fail with "Cannot allocate memory" at the usual 8 MiB). nofile: open files; 1048576 is the
    kernel's own fs.nr_open and what Azure's HPC images set (2026-08). services: further services of systemd that start
    work, besides those that are known.
    """

    memlock: str = UNLIMITED
    nofile: int = 1048576
    services: tuple[str, ...] = ()


def must_be_sound(limits: LimitsPolicy, where: str) -> None:
    """Raises InputError with the place of what is no limit and no service."""
    if limits.memlock != UNLIMITED:
        like(limits.memlock, _KIB, f"{where}.memlock", '"unlimited", or KiB like "8388608"')
    within(limits.nofile, 1024, _MOST_FILES, f"{where}.nofile")
    for number, name in enumerate(limits.services):
        like(name, _SERVICE, f"{where}.services[{number}]", "a form like jobd.service")
