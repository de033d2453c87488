"""What the dynamic linker would load for a program or library, by the rules of ld.so(8), without running anything."""

from __future__ import annotations

import posixpath
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from ..discover.tree import Tree
from . import elf

CACHE = "etc/ld.so.cache"
_CACHE_BYTES = 16 * 1024 * 1024
# glibc 2.32 sysdeps/generic/dl-cache.h: the new format, alone or behind the old one.
_MAGIC = b"glibc-ld.so.cache1.1"
_MOST_OBJECTS = 2000
# (object, its DT_RPATH), the nearest first.
_Chain = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Loaded:
    """One library of a process. path: None where none was found. because: which rule found it, for whom."""

    name: str
    path: Optional[str]
    because: str


class Loader:
    """Answers for one machine. Paths are relative to its root, as everywhere in a Tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._objects: dict[str, Optional[elf.Elf]] = {}
        self._cache = read_cache(tree.data(CACHE, _CACHE_BYTES) or b"")

    def object(self, path: str) -> Optional[elf.Elf]:
        """The object at a path; None where there is none."""
        if path not in self._objects:
            file = self._tree.opened(path)
            if file is None:
                self._objects[path] = None
            else:
                with file:
                    self._objects[path] = elf.read(file)
        return self._objects[path]

    def by_name(self, name: str, kind: tuple[int, int]) -> Optional[tuple[str, str]]:
        """(path, rule) of a name that no object asks a folder for: what a bare dlopen gets."""
        for path in self._cache.get(name, ()):
            if self._fits(path, kind):
                return path, "ld.so.cache"
        bits = "64" if kind[0] == 64 else ""
        for folder in (f"lib{bits}", f"usr/lib{bits}", "lib", "usr/lib"):
            if self._fits(f"{folder}/{name}", kind):
                return f"{folder}/{name}", f"/{folder}"
        return None

    def load(self, root: str) -> tuple[Loaded, ...]:
        """Everything that an object brings with it, itself first, each name once, breadth first as ld.so does.

        LD_LIBRARY_PATH, LD_PRELOAD and what a program opens by name later are not in it.
        """
        top = self.object(root)
        if top is None:
            return ()
        found = [Loaded(posixpath.basename(root), root, "asked for")]
        names = {posixpath.basename(root), top.soname}
        waiting: deque[tuple[str, elf.Elf, _Chain]] = deque([(root, top, ())])
        while waiting and len(found) < _MOST_OBJECTS:
            path, current, above = waiting.popleft()
            # DT_RPATH counts for what is loaded further down too, DT_RUNPATH for the object's own names alone.
            own = ((path, current.rpath),) if current.rpath and not current.runpath else ()
            chain = (*own, *above)
            for name in current.needed:
                if name in names:
                    continue
                names.add(name)
                place = self._find(name, path, current, chain, top.kind)
                if place is None:
                    found.append(Loaded(name, None, f"needed by /{path}"))
                    continue
                found.append(Loaded(name, *place))
                loaded = self.object(place[0])
                if loaded is not None:
                    names.add(loaded.soname)
                    waiting.append((place[0], loaded, chain))
        return tuple(found)

    def _find(
        self,
        name: str,
        path: str,
        current: elf.Elf,
        chain: _Chain,
        kind: tuple[int, int],
    ) -> Optional[tuple[str, str]]:
        if "/" in name:
            return (name.lstrip("/"), "by its path") if self._fits(name.lstrip("/"), kind) else None
        asked = (
            [(path, current.runpath, "RUNPATH")] if current.runpath else [(*one, "RPATH") for one in chain]
        )
        for owner, folders, rule in asked:
            for folder in _folders(folders, owner):
                if self._fits(f"{folder}/{name}", kind):
                    return f"{folder}/{name}", f"{rule} of /{owner}"
        return self.by_name(name, kind)

    def _fits(self, path: str, kind: tuple[int, int]) -> bool:
        found = self.object(path)
        return found is not None and found.kind == kind


def _folders(text: str, owner: str) -> Iterator[str]:
    origin = posixpath.dirname(owner)
    for folder in text.split(":"):
        if "$ORIGIN" in folder or "${ORIGIN}" in folder:
            yield folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin).lstrip("/")
        elif folder.startswith("/") and "$" not in folder:
            yield folder.lstrip("/")


def read_cache(data: bytes) -> dict[str, tuple[str, ...]]:
    """Names of /etc/ld.so.cache to paths, in its order; {} for another format. Entries for newer CPUs are left out."""
    start = data.find(_MAGIC)
    if start < 0:
        return {}
    names: dict[str, tuple[str, ...]] = {}
    try:
        (count,) = struct.unpack_from("<I", data, start + 20)
        for number in range(min(count, (len(data) - start - 48) // 24)):
            _, key, value, _, hwcap = struct.unpack_from("<iIIIQ", data, start + 48 + number * 24)
            if not hwcap:
                name, path = (_text(data, start + place) for place in (key, value))
                names[name] = (*names.get(name, ()), path.lstrip("/"))
    except struct.error:
        return {}
    return names


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + 4096)
    return data[start:end].decode("utf-8", "backslashreplace") if end >= 0 else ""
