"""What a kernel does with a write to /proc/irq, without any file system: masks, lists, and what it refuses.

As x86 Linux does: kernel/irq/proc.c (write_irq_affinity), lib/bitmap-str.c (the two forms of a set) and
arch/x86/kernel/apic/vector.c (one CPU serves a vector; it stays where it is while it may).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.machinery.cpusets import format_list, format_mask

# 256 vectors a CPU, less those below 0x20 and about 20 of the system's own: what one CPU can serve of devices.
VECTORS_OF_A_CPU = 202
_GROUP = re.compile(r"^(\d+)(?:-(\d+)(?::(\d+)/(\d+))?)?$")


@dataclass
class Interrupt:
    """allowed: smp_affinity; serving: effective_affinity; managed: the kernel alone places it."""

    allowed: frozenset[int]
    serving: frozenset[int]
    managed: bool


@dataclass
class Table:
    """A machine's interrupts. possible: how many CPUs the kernel counts with; full: CPUs without a vector left."""

    possible: int
    online: frozenset[int]
    interrupts: dict[int, Interrupt]
    default: frozenset[int] = frozenset()
    full: frozenset[int] = field(default_factory=frozenset)

    def set(self, number: int, cpus: frozenset[int]) -> None:
        """Raises OSError as the kernel does: EIO managed, EINVAL none of these is online, ENOSPC none has a vector."""
        one = self.interrupts[number]
        if one.managed:
            raise _refuse(errno.EIO)
        reachable = cpus & self.online
        if not reachable:
            raise _refuse(errno.EINVAL)
        if not one.serving & reachable:
            one.serving = frozenset([self._place(reachable)])
        one.allowed = cpus

    def set_default(self, cpus: frozenset[int]) -> None:
        """Where new interrupts go. Raises OSError (EINVAL)."""
        if not cpus & self.online:
            raise _refuse(errno.EINVAL)
        self.default = cpus

    def _place(self, cpus: Iterable[int]) -> int:
        """The CPU with the fewest vectors, the lowest among equals: matrix_find_best_cpu."""
        load = dict.fromkeys(cpus, 0)
        for one in self.interrupts.values():
            for cpu in one.serving:
                if cpu in load:
                    load[cpu] += 1
        free = {
            cpu: count for cpu, count in load.items() if count < VECTORS_OF_A_CPU and cpu not in self.full
        }
        if not free:
            raise _refuse(errno.ENOSPC)
        return min(free, key=lambda cpu: (free[cpu], cpu))

    def mask(self, cpus: Collection[int]) -> str:
        """As the kernel shows a mask."""
        return format_mask(cpus, self.possible)

    def parse_list(self, text: str) -> frozenset[int]:
        """bitmap_parselist: EINVAL for what is no list, ERANGE for a CPU that the kernel does not count with."""
        found: set[int] = set()
        for part in re.split(r"[,\s]+", text.strip("\0 \t\n,")):
            if part == "all":
                part = f"0-{self.possible - 1}"
            part = part.replace("N", str(self.possible - 1))
            match = _GROUP.match(part) if part else None
            if match is None:
                if not part:
                    continue
                raise _refuse(errno.EINVAL)
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            used, group = (1, 1) if match[3] is None else (int(match[3]), int(match[4]))
            if last < first or group == 0 or used > group:
                raise _refuse(errno.EINVAL)
            if last >= self.possible:
                raise _refuse(errno.ERANGE)
            found |= {cpu for cpu in range(first, last + 1) if (cpu - first) % group < used}
        return frozenset(found)

    def parse_mask(self, text: str) -> frozenset[int]:
        """bitmap_parse: EINVAL for what is no mask, EOVERFLOW for one with more bits than possible CPUs."""
        groups = text.strip().split(",")
        if not all(re.fullmatch(r"[0-9a-fA-F]+", group) for group in groups):
            raise _refuse(errno.EINVAL)
        if any(len(group.lstrip("0")) > 8 for group in groups):
            raise _refuse(errno.EOVERFLOW)
        number = 0
        for group in groups:
            number = number << 32 | int(group, 16)
        if number >> self.possible:
            raise _refuse(errno.EOVERFLOW)
        return frozenset(cpu for cpu in range(number.bit_length()) if number >> cpu & 1)


def shown(table: Table, number: int) -> Mapping[str, str]:
    """The four files of one interrupt that say where it goes."""
    one = table.interrupts[number]
    return {
        "smp_affinity": table.mask(one.allowed),
        "smp_affinity_list": format_list(one.allowed),
        "effective_affinity": table.mask(one.serving),
        "effective_affinity_list": format_list(one.serving),
    }


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))
