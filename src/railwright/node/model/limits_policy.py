"""Policy of limits: how much memory a process may lock, and how many files it may open."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .codec import InputError

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
    if limits.memlock != UNLIMITED and not _KIB.fullmatch(limits.memlock):
        raise InputError(
            f"{where}.memlock",
            f"found {limits.memlock[:40]!r}",
            'expected "unlimited", or KiB like "8388608"',
        )
    if not 1024 <= limits.nofile <= _MOST_FILES:
        raise InputError(f"{where}.nofile", f"found {limits.nofile}", f"expected 1024 to {_MOST_FILES}")
    for number, name in enumerate(limits.services):
        if not _SERVICE.fullmatch(name):
            raise InputError(
                f"{where}.services[{number}]", f"found {name[:80]!r}", "expected a form like jobd.service"
            )
