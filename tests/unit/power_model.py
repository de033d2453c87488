"""What a disk may hold after the power went: a small model of what POSIX promises, fed with the system calls of a run.

The model promises less than ext4, XFS and btrfs do:

* what was written to a file, its mode and its owner are on the disk for certain only after an fsync of that file;
  until then each may be there or not, and of the bytes all, the first half or none;
* a name that was made, renamed or removed is so for certain only after an fsync of the folder; until then each may be
  there or not, in whatever order, but a rename is one thing: never half of it;
* an fsync of a file says nothing of its name, and one of a folder nothing of the files in it.

Extended attributes and times are no part of it. A file system that breaks its fsync, and a disk that lies about its
cache, are outside of it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)", re.DOTALL)
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
FD = re.compile(r"(?:(\d+)|AT_FDCWD)(?:<[^>]*>)?")
MOST = 4096


@dataclass
class Inode:
    """A file or a folder of the disk. mode: with its kind, as in stat."""

    mode: int
    uid: int
    gid: int
    data: bytes = b""
    names: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Inode:
        return Inode(self.mode, self.uid, self.gid, self.data, dict(self.names))


@dataclass(frozen=True)
class Step:
    """One change. inode: what has to be synced for it; what: "data", "mode", "owner", "link", "unlink", "rename"."""

    inode: int
    what: str
    value: Any


class Disk:
    """Inodes by number; 0 is the root. `at` is the tree as the running system sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start: dict[int, Inode] = {}
        self._load(root)
        self.now = {number: inode.copy() for number, inode in self.start.items()}
        self.made: dict[int, Inode] = {}
        self.steps: list[Step] = []
        self.synced: list[tuple[int, int]] = []  # after so many steps this inode was synced

    def _load(self, path: Path) -> int:
        info = path.lstat()
        number = len(self.start)
        inode = self.start[number] = Inode(info.st_mode, info.st_uid, info.st_gid)
        if stat.S_ISREG(info.st_mode):
            inode.data = path.read_bytes()
        elif stat.S_ISDIR(info.st_mode):
            for name in sorted(os.listdir(path)):
                inode.names[name] = self._load(path / name)
        return number

    def make(self, mode: int) -> int:
        number = len(self.now)
        self.made[number] = Inode(mode, os.geteuid(), os.getegid())
        self.now[number] = self.made[number].copy()
        return number

    def do(self, inode: int, what: str, value: Any) -> None:
        step = Step(inode, what, value)
        self.steps.append(step)
        apply_step(self.now, step)

    def sync(self, inode: int) -> None:
        self.synced.append((len(self.steps), inode))

    def after_power_loss(self) -> Iterator[tuple[str, dict[int, Inode]]]:
        """What may be on the disk when the power goes before, between and after any steps and syncs: where, and the
        inodes. Every combination of what may be lost; a run for which these are too many fails."""
        for count, done in self._moments():
            sure = {
                n for until, inode in self.synced[:done] for n in range(until) if self.steps[n].inode == inode
            }
            loose = [n for n in range(count) if n not in sure]
            choices = [
                (None, "half", "all") if self.steps[n].what == "data" else (None, "all") for n in loose
            ]
            assert math.prod(map(len, choices)) <= MOST, f"after step {count} more is loose than can be tried"
            for picked in itertools.product(*choices):
                fate = dict(zip(loose, picked, strict=True))
                disk = {number: inode.copy() for number, inode in {**self.start, **self.made}.items()}
                for n in range(count):
                    how = "all" if n in sure else fate[n]
                    if how is not None:
                        apply_step(disk, self.steps[n], half=how == "half")
                lost = [
                    f"{self.steps[n].what} {self.steps[n].value!r:.60}"
                    for n, how in fate.items()
                    if how != "all"
                ]
                yield f"after step {count} of {len(self.steps)} and {done} syncs, without {lost}", disk

    def _moments(self) -> Iterator[tuple[int, int]]:
        """So many steps and so many syncs have been done."""
        done = 0
        for count in range(len(self.steps) + 1):
            yield count, done
            while done < len(self.synced) and self.synced[done][0] == count:
                done += 1
                yield count, done


def apply_step(disk: dict[int, Inode], step: Step, half: bool = False) -> None:
    inode = disk[step.inode]
    if step.what == "data":
        inode.data = step.value[: len(step.value) // 2] if half else step.value
    elif step.what == "mode":
        inode.mode = stat.S_IFMT(inode.mode) | step.value
    elif step.what == "owner":
        inode.uid, inode.gid = step.value
    elif step.what == "link":
        name, number = step.value
        inode.names[name] = number
    elif step.what == "unlink":
        inode.names.pop(step.value, None)
    elif step.what == "rename":
        old, new, number = step.value
        if inode.names.get(old) == number:
            del inode.names[old]
        inode.names[new] = number


def files(disk: Mapping[int, Inode], number: int = 0, at: str = "") -> dict[str, tuple[int, int, int, bytes]]:
    """Every file and folder by its path: mode with its kind, owner, group, bytes."""
    inode = disk[number]
    found = {at: (inode.mode, inode.uid, inode.gid, inode.data)} if at else {}
    for name, below in inode.names.items():
        found.update(files(disk, below, f"{at}/{name}" if at else name))
    return found


def lay_out(found: Mapping[str, tuple[int, int, int, bytes]], root: Path) -> None:
    """The tree as plain files."""
    root.mkdir()
    for path in sorted(found):
        mode, uid, gid, data = found[path]
        place = root / path
        if stat.S_ISDIR(mode):
            place.mkdir()
        else:
            place.write_bytes(data)
        os.chown(place, uid, gid)
        place.chmod(stat.S_IMODE(mode))


def record(log: str, root: Path) -> Disk:
    """The disk of a run below `root` by its trace: `strace -x -s 9999999 -e trace=close,CALLS`; before the run the tree
    stood as it stands now."""
    disk = Disk(root)
    fds: dict[int, int | None] = {}
    for line in log.splitlines():
        match = LINE.match(line)
        if match is None or int(match[3]) < 0:
            continue
        _call(disk, fds, match[1], match[2], int(match[3]))
    return disk


def _call(disk: Disk, fds: dict[int, int | None], name: str, arguments: str, result: int) -> None:
    texts = [text.encode("latin-1").decode("unicode_escape") for text in TEXT.findall(arguments)]
    first = FD.match(arguments)
    fd = int(first[1]) if first is not None and first[1] is not None else None
    inode = fds.get(fd) if fd is not None else None
    if name == "openat":
        fds[result] = _open(disk, inode, fd is None, texts[0], arguments)
    elif name == "close":
        fds.pop(fd or 0, None)
    elif inode is None:
        return  # nothing below the root
    elif name == "write":
        disk.do(inode, "data", disk.now[inode].data + texts[0].encode("latin-1")[:result])
    elif name in ("fchmod", "fchown"):
        numbers = [int(word, 8 if name == "fchmod" else 10) for word in arguments.split(", ")[1:]]
        disk.do(
            inode, "mode" if name == "fchmod" else "owner", numbers[0] if name == "fchmod" else tuple(numbers)
        )
    elif name in ("fsync", "fdatasync"):
        disk.sync(inode)
    elif name == "mkdirat":
        umasked = int(arguments.rsplit(", ", 1)[1], 8)
        disk.do(inode, "link", (texts[0], disk.make(stat.S_IFDIR | umasked)))
    elif name in ("rename", "renameat", "renameat2"):
        second = FD.match(arguments.split('", ', 1)[1])
        assert second is not None
        assert fds[int(second[1])] == inode, "a rename from one folder to another: the model knows none"
        disk.do(inode, "rename", (*texts, disk.now[inode].names[texts[0]]))
    elif name == "unlinkat":
        disk.do(inode, "unlink", texts[0])
    elif name not in ("utimensat", "fsetxattr", "ftruncate", "flock", "pwrite64"):
        raise AssertionError(f"the model does not know {name}")


def _open(disk: Disk, folder: int | None, is_absolute: bool, path: str, arguments: str) -> int | None:
    if is_absolute:
        if path != str(disk.root) and not path.startswith(f"{disk.root}/"):
            return None
        names = [part for part in path[len(str(disk.root)) :].split("/") if part]
        folder = 0
        for name in names[:-1]:
            folder = disk.now[folder].names[name]
        if not names:
            return 0
        path = names[-1]
    if folder is None:
        return None
    known = disk.now[folder].names.get(path)
    if known is None and "O_CREAT" in arguments:
        known = disk.make(stat.S_IFREG | int(arguments.rsplit(", ", 1)[1].partition(")")[0], 8))
        disk.do(folder, "link", (path, known))
    elif known is not None and "O_TRUNC" in arguments:
        disk.do(known, "data", b"")
    return known
