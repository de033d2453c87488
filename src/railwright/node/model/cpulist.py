"""The kernel's cpulist format ("0-3,8,10-11") to CPU numbers and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .codec import InputError

# Digits of ASCII only: int() takes those of every script, and these texts go into files of the kernel's.
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
# CONFIG_NR_CPUS is at most 8192 on any distribution kernel; a larger number is a damaged text, not a machine.
_MAX_CPU = 8191


def parse_cpulist(text: str, where: str) -> tuple[int, ...]:
    """CPU numbers in ascending order; an empty text is no CPU. Raises InputError at `where`."""
    cpus: set[int] = set()
    for part in text.split(",") if text else []:
        match = _PART.fullmatch(part.strip(" "))
        if match is None:
            raise InputError(where, f"{text!r} is no CPU list", "expected a form like 0-3,8")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first or last > _MAX_CPU:
            raise InputError(where, f"{text!r} is no CPU list: range {part.strip(' ')}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpulist(cpus: Iterable[int]) -> str:
    """The shortest cpulist of these CPUs, in ascending order."""
    ordered = sorted(set(cpus))
    parts: list[str] = []
    start = 0
    for end, cpu in enumerate(ordered):
        if end + 1 == len(ordered) or ordered[end + 1] != cpu + 1:
            parts.append(str(ordered[start]) if start == end else f"{ordered[start]}-{cpu}")
            start = end + 1
    return ",".join(parts)
