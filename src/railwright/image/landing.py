"""Paths of a root file system, taken as a program that runs in it takes them.

A link of the tree, an absolute one above all, would lead this machine's own tools out of it: to read what is not the
image's, or to overwrite and remove files of the controller.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

from railwright.node.model import InputError

_MOST_LINKS = 40  # MAXSYMLINKS of the kernel, include/linux/namei.h


def landing(tree: Path, path: str) -> Path:
    """Where the path leads, below the tree whatever its links say; a link at its end is not followed.

    Raises InputError for links in a circle.
    """
    todo = path.split("/")
    place: list[str] = []
    links = 0
    while todo:
        name = todo.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            place[-1:] = []
            continue
        here = tree.joinpath(*place, name)
        if not todo or not here.is_symlink():
            place.append(name)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise InputError(f"{path} in {tree}", "its links lead in a circle", "mend the root file system")
        target = os.readlink(here)
        if target.startswith("/"):
            place = []
        todo[:0] = target.split("/")
    return tree.joinpath(*place)


def matches(tree: Path, pattern: str) -> Iterator[str]:
    """Paths without links on their way, relative to the tree, that the pattern of shell words fits, in order."""
    found = [""]
    for word in pattern.split("/"):
        found = [below for place in found for below in _below(tree, place, word)]
    yield from found


def _below(tree: Path, place: str, word: str) -> Iterator[str]:
    folder = landing(tree, f"{place}/.")
    if not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        if fnmatch.fnmatchcase(name, word):
            yield str((folder / name).relative_to(tree))


def lay(tree: Path, path: str, text: str, mode: int = 0o644) -> None:
    """Writes a text file where the path leads; a link at its end is replaced. Raises InputError."""
    place = landing(tree, path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        place.write_text(text, "utf-8")
        place.chmod(mode)
    except OSError as error:
        raise InputError(
            f"{path} in {tree}",
            f"cannot be written: {error.strerror}",
            "mend the root file system or its files",
        ) from None
