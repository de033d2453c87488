"""Lines by which files of all machines speak of one: its disks in /etc/fstab, its name in /etc/hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from .landing import landing, lay

# fstab(5): what is on a disk of this machine. A file server's and a kernel's own file systems are every node's.
_OF_A_DISK = re.compile(r"(?:UUID|LABEL|PARTUUID|PARTLABEL|ID)=|/dev/")
_SWAP_FILE = re.compile(r"/\S+\s+\S+\s+swap\b")
# Debian's installer writes the host's own name there; an image has none.
_OF_A_NAME = re.compile(r"127\.0\.1\.1\s")


def own_lines(tree: Path) -> dict[str, list[str]]:
    """Path below the tree, and the lines of it that must not be in an image."""
    found = {path: [row for row in _rows(tree, path) if asked(row)] for path, asked in _asked(tree).items()}
    return {path: rows for path, rows in found.items() if rows}


def without_own_lines(tree: Path) -> None:
    """Takes them out. Raises InputError."""
    for path, asked in _asked(tree).items():
        rows = _rows(tree, path)
        left = [row for row in rows if not asked(row)]
        if left != rows:
            lay(tree, path, "".join(f"{row}\n" for row in left))


def _asked(tree: Path) -> dict[str, Callable[[str], bool]]:
    names = [row for row in _rows(tree, "etc/hostname") if row and not row.startswith(("#", "localhost"))]

    def of_a_disk(row: str) -> bool:
        return bool(_OF_A_DISK.match(row.strip()) or _SWAP_FILE.match(row.strip()))

    def of_a_name(row: str) -> bool:
        return bool(_OF_A_NAME.match(row)) or bool({*names} & {*row.partition("#")[0].split()[1:]})

    return {"etc/fstab": of_a_disk, "etc/hosts": of_a_name}


def _rows(tree: Path, path: str) -> list[str]:
    place = landing(tree, path)
    if place.is_symlink() or not place.is_file():
        return []
    return place.read_text("utf-8", "backslashreplace").splitlines()
