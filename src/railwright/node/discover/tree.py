"""Files of one machine, live or recorded: bounded reads below a root that no link can leave."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Optional

from ..model import InputError, format_cpulist, parse_cpulist

# A sysfs attribute is at most one page; 64 KiB is the largest page that Linux is built with.
ATTRIBUTE_BYTES = 64 * 1024
_LARGE = 4 * 1024 * 1024
# What a kernel answers for an attribute that it has no value for, a device that is gone, or a reader without the right.
# Anything else (EMFILE, ENOMEM, ...) is this process's own trouble and goes up.
_NO_VALUE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESRCH,  # of a process that has just ended
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.EIO,
        errno.EREMOTEIO,
        errno.ENODATA,
        errno.ENETDOWN,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
    }
)
_PROCESS = re.compile(r"[1-9][0-9]{0,9}")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,20})")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8})*")


def each_line(text: str) -> Iterator[str]:
    """The lines, one at a time: a list of those of a large machine's tables takes several times their size."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _decode(data: bytes) -> str:
    # Device-tree texts end with a NUL, and so do the CPU lists of some kernels (seen on an arm64 server).
    # One character outside ASCII makes Python hold four bytes for each of a table's millions.
    encoding = "utf-8" if len(data) <= _LARGE else "ascii"
    return data.decode(encoding, "backslashreplace").strip(" \t\r\n\0")


class Tree:
    """The files below `root`. Paths are relative to it and without a leading slash ("proc/cpuinfo")."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = str(root) == "/"
        self._base = os.path.realpath(root)

    def where(self, path: str) -> str:
        """The path as a person would type it, for errors."""
        return str(self.root / path)

    def data(self, path: str, limit: int = ATTRIBUTE_BYTES) -> Optional[bytes]:
        """The bytes of a regular file; None where it is missing, unreadable or gone. Raises InputError."""
        try:
            return self._read(path, limit)
        except OSError as error:
            if error.errno in _NO_VALUE:
                return None
            raise

    def text(self, path: str, limit: int = ATTRIBUTE_BYTES) -> Optional[str]:
        """The text of a file without surrounding whitespace; bytes that are no UTF-8 stand as \\xNN."""
        data = self.data(path, limit)
        return None if data is None else _decode(data)

    def require(self, path: str, expected: str, limit: int = ATTRIBUTE_BYTES) -> str:
        """The text of a file that a kernel always provides. Raises InputError where it cannot be read."""
        try:
            return _decode(self._read(path, limit))
        except OSError as error:
            if error.errno not in _NO_VALUE:
                raise
            raise InputError(
                self.where(path), f"cannot be read: {error.strerror}", f"expected {expected}"
            ) from None

    def integer(self, path: str) -> Optional[int]:
        """An attribute that holds one number, decimal or 0x; None where it is missing. Raises InputError."""
        text = self.text(path)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            raise InputError(self.where(path), f"found {text!r}", "expected a whole number")
        return int(text, 16) if "0x" in text else int(text)

    def cpulist(self, path: str) -> Optional[str]:
        """A CPU list in the kernel's form ("0-3,8", "" for none); None where it is missing. Raises InputError."""
        text = self.text(path)
        return None if text is None else format_cpulist(parse_cpulist(text, self.where(path)))

    def cpumask(self, path: str) -> Optional[str]:
        """A CPU mask ("00000000,0000ffff") as a CPU list; None where it is missing. Raises InputError."""
        text = self.text(path)
        if text is None:
            return None
        if not _MASK.fullmatch(text):
            raise InputError(
                self.where(path), f"found {text!r}", "expected a CPU mask like 00000000,0000ffff"
            )
        mask = int(text.replace(",", ""), 16)
        return format_cpulist(bit for bit in range(mask.bit_length()) if mask >> bit & 1)

    def cpulist_line(self, path: str, name: str) -> Optional[str]:
        """The CPU list after `name:` in a file of such lines; None where it is missing. Raises InputError."""
        for line in (self.text(path) or "").splitlines():
            if line.startswith(f"{name}:"):
                return format_cpulist(
                    parse_cpulist(line.partition(":")[2].strip(), f"{self.where(path)} {name}")
                )
        return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted as text; () where it is missing or gone."""
        try:
            return tuple(sorted(os.listdir(self._inside(path))))
        except OSError as error:
            if error.errno in _NO_VALUE:
                return ()
            raise

    def entries(self, path: str) -> tuple[os.DirEntry[str], ...]:
        """What a folder holds, by name, with each entry's type; () where it is missing or gone."""
        try:
            with os.scandir(self._inside(path)) as found:
                return tuple(sorted(found, key=lambda entry: entry.name))
        except OSError as error:
            if error.errno in _NO_VALUE:
                return ()
            raise

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._inside(path))

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(self._inside(path))

    def link(self, path: str) -> Optional[str]:
        """A link's target as it stands; None where there is no link."""
        try:
            return os.readlink(self._inside(posixpath.dirname(path), posixpath.basename(path)))
        except OSError as error:
            if error.errno in _NO_VALUE:
                return None
            raise

    def link_name(self, path: str) -> Optional[str]:
        """The last part of a link's target ("mlx5_core" of `driver`); None where there is no link."""
        target = self.link(path)
        return None if target is None else posixpath.basename(target)

    def resolve(self, path: str) -> Optional[str]:
        """The real place below the root ("sys/devices/pci0000:00/0000:00:01.0"); None where it is missing."""
        real = os.path.realpath(self._inside(path))
        return os.path.relpath(real, self._base) if os.path.exists(real) else None

    def status(self, path: str) -> Optional[os.stat_result]:
        """What lstat says; None where there is nothing. Only the folder's links are followed."""
        try:
            return os.lstat(self._inside(posixpath.dirname(path), posixpath.basename(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _inside(self, path: str, last: str = "") -> str:
        # A recorded tree may come from anybody: a link in it must not lead to a file of the machine that reads it.
        joined = os.path.join(self._base, path)
        real = joined if self.live else os.path.realpath(joined)
        if real != self._base and not real.startswith(self._base.rstrip("/") + "/"):
            raise InputError(
                self.where(path), "a link leads out of the tree", "expected links that stay below its root"
            )
        return os.path.join(real, last) if last else real

    def opened(self, path: str) -> Optional[BinaryIO]:
        """A regular file, open for reading at any place; None where it is missing, unreadable or something else."""
        try:
            return self._open(path)
        except InputError:
            return None
        except OSError as error:
            if error.errno in _NO_VALUE:
                return None
            raise

    def _open(self, path: str) -> BinaryIO:
        # Without O_NONBLOCK the open of a FIFO would wait for ever.
        descriptor = os.open(self._inside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Looked at before it is wrapped: a folder's descriptor cannot be, and would stay open.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError(self.where(path), "is no regular file", "expected a file")
        return open(descriptor, "rb", buffering=0)

    def _read(self, path: str, limit: int) -> bytes:
        with self._open(path) as file:
            chunks: list[bytes] = []
            size = 0
            while size <= limit:
                chunk = file.read(limit + 1 - size)
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
                size += len(chunk)
        raise InputError(self.where(path), f"is larger than {limit} bytes", "expected a smaller file")


def processes(tree: Tree) -> dict[int, str]:
    """Names of the running processes by number, in order; {} where the tree shows none."""
    numbers = sorted(int(name) for name in tree.names("proc") if _PROCESS.fullmatch(name))
    return {number: tree.text(f"proc/{number}/comm") or "" for number in numbers}
