"""A tree as `lstat` and its bytes tell it, and what differs between two looks."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Not a machine's state: what the kernel would tell, what the stand-in for systemd remembers, and scratch.
LEFT_OUT = ("proc/.kernel", "run/systemd/stand-in", "tmp")


@dataclass(frozen=True)
class Entry:
    """One path. content: the SHA-256 of a file, the target of a link, "" for a folder."""

    kind: str
    mode: str
    uid: int
    gid: int
    mtime_ns: int
    inode: int
    content: str

    @property
    def lasting(self) -> tuple[str, str, int, int, str]:
        """What a person means by "the same": without the times and the inode."""
        return (self.kind, self.mode, self.uid, self.gid, self.content)


def snapshot(root: Path, left_out: tuple[str, ...] = LEFT_OUT) -> dict[str, Entry]:
    """Every path below `root`, relative to it."""
    found: dict[str, Entry] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}".lstrip("/")
                if path in left_out:
                    continue
                found[path] = _entry(Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
    return found


def changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> set[str]:
    """Paths that came, went, or have another kind, mode, owner or content. (A folder whose entries changed has not.)"""
    return {
        path
        for path in before.keys() | after.keys()
        if path not in before or path not in after or before[path].lasting != after[path].lasting
    }


def _entry(path: Path) -> Entry:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        kind, content = "link", os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        kind, content = "file", hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        kind, content = "folder" if stat.S_ISDIR(status.st_mode) else "special", ""
    return Entry(
        kind,
        f"{stat.S_IMODE(status.st_mode):04o}",
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        status.st_ino,
        content,
    )
