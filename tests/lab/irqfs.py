"""python -m tests.lab.irqfs MACHINE WHERE [--full FILE]: serves /proc/irq of a recorded machine at WHERE.

Reading shows what the machine recorded; a write does what a kernel does with it, or is refused as a kernel refuses it.
FILE, where there is one, holds a list of CPUs ("4-6") without a free vector. It ends when it is unmounted.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-untyped,import-not-found,unused-ignore]

from tests.machinery.cpusets import parse_list

from .irq_table import Interrupt, Table, shown

DEFAULT = "default_smp_affinity"
_PLACED = ("smp_affinity", "smp_affinity_list", "effective_affinity", "effective_affinity_list")
_WRITABLE = ("smp_affinity", "smp_affinity_list")
# I/O queues of NVMe drives: drivers/nvme/host/pci.c asks for them with PCI_IRQ_AFFINITY, all but the first.
_MANAGED = re.compile(r"^nvme\d+q[1-9]\d*$")
# Linux takes the write bit from what the kernel alone places: since 6.11, kernel/irq/proc.c register_irq_proc.
_SHOWS_MANAGED = (6, 11)


def read_table(machine: Path) -> Table:
    """The table as the machine recorded it."""
    tree = machine / "tree"
    cpus = tree / "sys/devices/system/cpu"
    possible = max(_cpus(cpus / "possible")) + 1
    interrupts = {}
    for folder in (tree / "proc/irq").iterdir():
        if folder.name.isdecimal():
            allowed, serving = (
                _cpus(folder / name) for name in ("smp_affinity_list", "effective_affinity_list")
            )
            managed = any(_MANAGED.match(handler) for handler in os.listdir(folder))
            interrupts[int(folder.name)] = Interrupt(allowed, serving, managed)
    table = Table(possible, _cpus(cpus / "online"), interrupts)
    table.default = table.parse_mask(_text(tree / "proc/irq" / DEFAULT))
    return table


class IrqFiles(mfusepy.Operations):  # type: ignore[misc,unused-ignore]  # it ships no types
    """The files. What is not served from the table is the machine's own."""

    use_ns = True

    def __init__(self, machine: Path, full: Path | None) -> None:
        self.tree = machine / "tree/proc/irq"
        self.table = read_table(machine)
        self.full = full
        release = _text(machine / "tree/proc/sys/kernel/osrelease").split(".")
        self.shows_managed = (int(release[0]), int(release[1])) >= _SHOWS_MANAGED

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        place = self.tree / path.lstrip("/")
        try:
            recorded = place.lstat()
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
        if stat.S_ISDIR(recorded.st_mode):
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_mtime": recorded.st_mtime_ns}
        mode = 0o644 if self._writable(path) else 0o444
        # procfs states no size either: a reader reads until the end.
        return {"st_mode": stat.S_IFREG | mode, "st_nlink": 1, "st_size": 0, "st_mtime": recorded.st_mtime_ns}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.tree / path.lstrip("/"))]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._shown(path)[offset : offset + size]

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        """A shell's `>` truncates; procfs lets it."""

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        number, name = self._parts(path)
        text = data.decode("ascii", "replace")
        try:
            self.table.full = self._told_full()
            if path == f"/{DEFAULT}":
                self.table.set_default(self.table.parse_mask(text))
            elif number is None or name not in _WRITABLE:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            elif self.table.interrupts[number].managed:
                # The kernel looks at this before it looks at the text.
                self.table.set(number, frozenset())
            else:
                parse = self.table.parse_list if name.endswith("_list") else self.table.parse_mask
                self.table.set(number, parse(text))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
        return len(data)

    def _shown(self, path: str) -> bytes:
        number, name = self._parts(path)
        if path == f"/{DEFAULT}":
            return f"{self.table.mask(self.table.default)}\n".encode()
        if number is not None and name in _PLACED:
            return f"{shown(self.table, number)[name]}\n".encode()
        return (self.tree / path.lstrip("/")).read_bytes()

    def _writable(self, path: str) -> bool:
        number, name = self._parts(path)
        if number is None:
            return path == f"/{DEFAULT}"
        return name in _WRITABLE and not (self.shows_managed and self.table.interrupts[number].managed)

    def _parts(self, path: str) -> tuple[int | None, str]:
        folder, _, name = path.strip("/").partition("/")
        known = folder.isdecimal() and int(folder) in self.table.interrupts
        return (int(folder), name) if known else (None, name)

    def _told_full(self) -> frozenset[int]:
        if self.full is None or not self.full.exists():
            return frozenset()
        return _cpus(self.full)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.irqfs", description=__doc__)
    parser.add_argument("machine", type=Path)
    parser.add_argument("where", type=Path)
    parser.add_argument("--full", type=Path)
    arguments = parser.parse_args(argv)
    files = IrqFiles(arguments.machine, arguments.full)
    # direct_io: each read and write arrives here, and a size of 0 stops nobody.
    mfusepy.FUSE(
        files, str(arguments.where), foreground=True, nothreads=True, allow_other=True, direct_io=True,
        default_permissions=True, fsname="irq",
    )  # fmt: skip
    return 0


def _cpus(path: Path) -> frozenset[int]:
    return frozenset(parse_list(_text(path), str(path)))


def _text(path: Path) -> str:
    return path.read_text("ascii").strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
