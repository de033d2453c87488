"""A tar archive of a machine's /sys and /proc (plain, gzip, bzip2 or xz), read as the node's own reader reads a tree.

Nothing is laid out on the disk: what that reader may look at is kept in memory, bounded, and its links are followed
there, so none can lead to a file of the machine that reads.
"""

from __future__ import annotations

import bz2
import errno
import lzma
import os
import posixpath
import re
import stat
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

from railwright.node.discover import discover
from railwright.node.discover.tree import Tree
from railwright.node.model import Facts, InputError, Witness

# The trees of large machines unpack to some 30 MB; file and folder headers take 512 bytes each.
MAX_UNPACKED = 128 * 1024 * 1024
MAX_PACKED = 64 * 1024 * 1024
MAX_MEMBERS = 200_000
# What is kept: a tree of /sys holds pages, so /proc/interrupts is the largest file by far.
MAX_KEPT_BYTES = 48 * 1024 * 1024
MAX_KEPT = 120_000
MAX_FILE = 16 * 1024 * 1024
_CHUNK = 256 * 1024
# xz -9 needs 65 MiB to unpack (xz's manual).
_XZ_MEMORY = 80 * 1024 * 1024
_TOPS = ("sys", "proc", "etc")
# Folders of /sys and /proc that no reader looks into, and that make most of a tree.
_LEFT_OUT = re.compile(
    r"/(?:memory[0-9]+|cpuidle|cpufreq|power|hugepages|microcode|thermal_throttle|counters|hw_counters|firmware_node"
    r"|statistics|queues)(?:/|$)"
)
# But for the first CPU's, which says for all how the processors save power.
_FIRST_CPU = re.compile(r"/cpu/(?:cpu0/(?:cpuidle|cpufreq|power)(?:/|$)|cpufreq(?:$|/policy0(?:/|$)))")
# GNU's long names and links, Solaris's and POSIX's extended headers: a path has at most 4096 bytes (PATH_MAX).
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
MAX_HEADER = 64 * 1024
_HOPS = 40
_DEPTH = 40


@dataclass
class _Kept:
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    size: int = 0
    prefix: str | None = None


def is_archive(start: bytes) -> bool:
    """Whether a file begins like a tar archive, or like something packed that may hold one."""
    return start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) or start[257:262] == b"ustar"


def read_sysfs_archive(path: Path) -> Facts:
    """Facts of the one machine in the archive. Raises InputError that names it and the member."""
    kept = _Kept()
    try:
        with path.open("rb") as file:
            _gather(str(path), _Unpacked(str(path), file), kept)
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}") from error
    if kept.prefix is None:
        raise InputError(
            str(path),
            "holds no sys and proc",
            "pack them: tar -czf node.tar.gz -C / --ignore-failed-read sys proc",
        )
    facts = discover(_Archived(path, kept))
    return replace(facts, witnesses=(Witness("sysfs", str(path)),))


class BoundedHeader(tarfile.TarInfo):
    """A member whose long names and pax headers, which tarfile reads whole, are of a bearable size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedHeader:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADERS and info.size > MAX_HEADER:
            raise tarfile.ReadError(f"a name or header of {info.size} bytes")
        return info


class _Unpacked:
    """The archive's plain bytes as a stream with an end: a bomb is refused long before it fills anything."""

    def __init__(self, where: str, file: BinaryIO) -> None:
        self._where = where
        self._file = file
        self._given = self._taken = 0
        start = file.read(6)
        file.seek(0)
        self._unpack: Callable[[bytes, int], bytes] | None = None
        if start.startswith(b"\x1f\x8b"):
            packed = zlib.decompressobj(wbits=31)
            self._rest: Callable[[], bytes] = lambda: packed.unconsumed_tail
            self._unpack = packed.decompress
        elif start.startswith(b"BZh"):
            self._unpack = bz2.BZ2Decompressor().decompress
            self._rest = lambda: b""
        elif start.startswith(b"\xfd7zXZ"):
            self._unpack = lzma.LZMADecompressor(memlimit=_XZ_MEMORY).decompress
            self._rest = lambda: b""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer at the end only."""
        parts: list[bytes] = []
        left = size
        while left > 0:
            part = self._some(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
            self._given += len(part)
            if self._given > MAX_UNPACKED:
                raise InputError(
                    self._where,
                    f"unpacks to more than {MAX_UNPACKED // 2**20} MiB",
                    "pack sys and proc of one machine, without anything around them",
                )
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        if self._unpack is None:
            return self._packed(size)
        try:
            while True:
                tail = self._rest()
                data = tail or self._packed(_CHUNK)
                out = self._unpack(data, size)
                if out or not data:
                    return out
        except EOFError:
            return b""
        except (OSError, zlib.error, lzma.LZMAError, ValueError) as error:
            raise InputError(
                self._where, f"cannot be unpacked: {error}", "is the file whole? copy it again"
            ) from error

    def _packed(self, size: int) -> bytes:
        data = self._file.read(size)
        self._taken += len(data)
        if self._taken > MAX_PACKED and self._unpack is not None:
            raise InputError(
                self._where, f"larger than {MAX_PACKED // 2**20} MiB", "pack sys and proc of one machine"
            )
        return data


def _gather(where: str, stream: _Unpacked, kept: _Kept) -> None:
    try:
        with tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|", tarinfo=BoundedHeader) as archive:
            for count, member in enumerate(archive):
                # It remembers every member that it has given.
                archive.members = []  # type: ignore[attr-defined]
                if count >= MAX_MEMBERS:
                    raise InputError(
                        where, f"holds more than {MAX_MEMBERS} members", "pack sys and proc of one machine"
                    )
                _keep(where, archive, member, kept)
    except (tarfile.TarError, UnicodeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            where, f"is no whole tar archive: {error}", "is the file whole? copy it again"
        ) from error


def _keep(where: str, archive: tarfile.TarFile, member: tarfile.TarInfo, kept: _Kept) -> None:
    shown = f"{where}: {member.name[:120]}"
    parts = [part for part in member.name.split("/") if part not in {"", "."}]
    if member.name.startswith("/") and parts[:1] and parts[0] not in _TOPS:
        return
    if ".." in parts or "\0" in member.name:
        raise InputError(shown, "leads out of the archive", "expected names below one folder")
    top = next((n for n, part in enumerate(parts) if part in _TOPS), None)
    if top is None or len(parts) > _DEPTH or _is_left_out(member.name):
        return
    prefix = "/".join(parts[:top])
    if parts[top] != "etc" and kept.prefix not in {None, prefix}:
        raise InputError(
            shown, f"a second machine beside {kept.prefix or 'the first'}", "give one machine at a time"
        )
    if parts[top] != "etc":
        kept.prefix = prefix
    name = "/".join(parts[top:])
    if name in kept.files or name in kept.links:
        raise InputError(shown, "stands twice", "pack the tree anew")
    if len(kept.files) + len(kept.links) + len(kept.folders) >= MAX_KEPT:
        raise InputError(where, f"holds more than {MAX_KEPT} files", "pack sys and proc of one machine")
    if member.isdir():
        kept.folders.add(name)
    elif member.issym():
        _refuse_way_out(shown, name, member.linkname)
        kept.links[name] = member.linkname
    elif member.islnk():
        # tar writes the second name of one file so; only what is in the archive itself can be meant.
        target = "/".join(part for part in member.linkname.split("/") if part not in {"", "."})
        inside = not member.linkname.startswith("/") and (not prefix or target.startswith(f"{prefix}/"))
        held = kept.files.get(target.removeprefix(f"{prefix}/")) if inside else None
        if held is not None:
            kept.files[name] = held
    elif member.isreg():
        # A tree that was copied by cp or rsync first holds sizes of a page; the bytes are what counts.
        if member.size > MAX_FILE or kept.size + member.size > MAX_KEPT_BYTES:
            raise InputError(
                shown, f"has {member.size} bytes", "expected files of /sys and /proc, which are small"
            )
        content = archive.extractfile(member)
        data = content.read() if content is not None else b""
        kept.files[name] = data, member.mode
        kept.size += len(data)


def _is_left_out(name: str) -> bool:
    return _LEFT_OUT.search(name) is not None and _FIRST_CPU.search(name) is None


def _refuse_way_out(shown: str, name: str, target: str) -> None:
    end = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if target.startswith("/") or end.startswith("..") or "\0" in target:
        raise InputError(
            shown, f"is a link that leads out, to {target[:80]}", "expected links that stay below its root"
        )


class _Archived(Tree):
    """The kept members as a tree of files: paths are relative to the root of the machine, as everywhere."""

    def __init__(self, path: Path, kept: _Kept) -> None:
        super().__init__(path)
        self.live = False
        self._kept = kept
        self._folders: dict[str, set[str]] = {"": set()}
        for name in (*kept.folders, *kept.files, *kept.links):
            self._enter(name, is_folder=name in kept.folders)

    def _enter(self, name: str, is_folder: bool) -> None:
        if is_folder:
            self._folders.setdefault(name, set())
        while name:
            above, _, last = name.rpartition("/")
            if above in self._kept.files or above in self._kept.links:
                raise InputError(
                    self.where(name), "lies below a file or link of the same archive", "pack the tree anew"
                )
            known = above in self._folders
            self._folders.setdefault(above, set()).add(last)
            if known:
                return
            name = above

    def _real(self, path: str, last: bool = True) -> str | None:
        """The place after all links, the last one too if asked; None where there is nothing or a ring of links."""
        todo = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        here: list[str] = []
        hops = 0
        while todo:
            part = todo.pop()
            if part == "..":
                if not here:
                    raise InputError(
                        self.where(path),
                        "a link leads out of the tree",
                        "expected links that stay below its root",
                    )
                here.pop()
                continue
            here.append(part)
            target = self._kept.links.get("/".join(here))
            if target is None or (not todo and not last):
                continue
            hops += 1
            if hops > _HOPS:
                return None
            here.pop()
            todo += [piece for piece in reversed(target.split("/")) if piece not in {"", "."}]
        real = "/".join(here)
        return real if real in self._folders or real in self._kept.files or real in self._kept.links else None

    def _read(self, path: str, limit: int) -> bytes:
        real = self._real(path)
        if real is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if real not in self._kept.files:
            raise InputError(self.where(path), "is no regular file", "expected a file")
        data = self._kept.files[real][0]
        if len(data) > limit:
            raise InputError(self.where(path), f"is larger than {limit} bytes", "expected a smaller file")
        return data

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._folders.get(self._real(path) or ("" if not path else "\0"), ())))

    def exists(self, path: str) -> bool:
        return self._real(path, last=False) is not None

    def is_folder(self, path: str) -> bool:
        return self._real(path) in self._folders

    def link(self, path: str) -> str | None:
        return self._kept.links.get(self._real(path, last=False) or "")

    def resolve(self, path: str) -> str | None:
        return self._real(path)

    def status(self, path: str) -> os.stat_result | None:
        real = self._real(path, last=False)
        if real is None:
            return None
        data, mode = self._kept.files.get(real, (b"", 0o755))
        kind = (
            stat.S_IFREG
            if real in self._kept.files
            else stat.S_IFLNK
            if real in self._kept.links
            else stat.S_IFDIR
        )
        return os.stat_result((kind | mode & 0o7777, 0, 0, 1, 0, 0, len(data), 0, 0, 0))
