"""A tree of files in memory, and its way onto disk.

Paths are relative and without a leading slash (`sys/bus/pci`). The tree is a plain mapping until `write`, so two
builds can be compared without touching a disk.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

from .errors import MachineError

_MOST_LINKS = 40  # what Linux follows before it says ELOOP
# Ten thousand files that no kernel lets anybody write, of which few differ: files of one content share an inode. That
# halves the time a build takes; whoever edits one in place edits its twins too, so a variant is made with a patch.
_ALIKE = re.compile(r"sys/devices/system/cpu/cpu\d+/(?:cache|topology)/")


class Tree:
    """Files, symbolic links and empty folders."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()

    def file(self, path: str, content: str | bytes) -> None:
        """Adds a file. A text has to carry its own newline."""
        self.files[path] = content.encode() if isinstance(content, str) else content

    def lines(self, folder: str, values: dict[str, object]) -> None:
        """Adds one file a value, each with the newline the kernel ends a value with."""
        for name, value in values.items():
            self.files[f"{folder}/{name}"] = f"{value}\n".encode()

    def link(self, path: str, to: str) -> None:
        """Adds a relative link at `path` to the path `to` of this tree, as sysfs does."""
        self.links[path] = os.path.relpath(to, os.path.dirname(path))

    def folder(self, path: str) -> None:
        self.folders.add(path)

    def resolve(self, path: str) -> str:
        """`path` with the links of its folders followed; the last part is left as it is."""
        head, _, name = path.rpartition("/")
        return f"{self._real(head, path)}/{name}" if head else name

    def _real(self, path: str, asked: str) -> str:
        followed = 0
        done: list[str] = []
        ahead = list(PurePosixPath(path).parts)
        while ahead:
            part = ahead.pop(0)
            if part == "..":
                done.pop()
                continue
            done.append(part)
            target = self.links.get("/".join(done))
            if target is not None:
                followed += 1
                if followed > _MOST_LINKS:
                    raise MachineError(asked, "its links run in a circle", "let each link end at a file")
                done.pop()
                ahead = [*PurePosixPath(target).parts, *ahead]
        return "/".join(done)

    def remove(self, path: str) -> bool:
        """Takes out a file, a link or a whole folder; says whether there was one."""
        inside = path + "/"
        gone = [name for name in (*self.files, *self.links) if name == path or name.startswith(inside)]
        for name in gone:
            self.files.pop(name, None)
            self.links.pop(name, None)
        empty = {name for name in self.folders if name == path or name.startswith(inside)}
        self.folders -= empty
        return bool(gone or empty)

    def write(self, dest: Path) -> None:
        """Lays the tree out at `dest`, which must be absent or an empty folder: all of it or nothing."""
        if dest.is_symlink() or (dest.exists() and (not dest.is_dir() or any(dest.iterdir()))):
            raise MachineError(str(dest), "already holds something", "name an absent or empty folder")
        scratch = dest.with_name(dest.name + ".partial")
        if scratch.is_dir():
            shutil.rmtree(scratch)
        try:
            self._lay_out(scratch)
            if dest.exists():
                dest.rmdir()
            scratch.rename(dest)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _lay_out(self, root: Path) -> None:
        top = str(root)
        folders = {os.path.dirname(path) for path in (*self.files, *self.links)} | self.folders
        made = {""}
        os.makedirs(top)
        for folder in sorted(folders):
            parts = folder.split("/")
            for depth in range(1, len(parts) + 1):
                path = "/".join(parts[:depth])
                if path not in made:
                    made.add(path)
                    os.mkdir(f"{top}/{path}")
        twins: dict[bytes, str] = {}
        for path, content in sorted(self.files.items()):
            if _ALIKE.match(path):
                first = twins.setdefault(content, path)
                if first != path:
                    os.link(f"{top}/{first}", f"{top}/{path}")
                    continue
            handle = os.open(f"{top}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                _write_all(handle, content)
            finally:
                os.close(handle)
        for path, target in sorted(self.links.items()):
            os.symlink(target, f"{top}/{path}")


def _write_all(handle: int, content: bytes) -> None:
    done = 0
    while done < len(content):
        done += os.write(handle, content[done:])
