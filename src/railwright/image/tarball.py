"""Trees as tar files: the same tree, the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .inside import run

# No atime and ctime, and a header's name without the number of the process (GNU tar's manual, "Reproducibility").
_SAME = (
    "--sort=name", "--format=posix", "--numeric-owner", "--clamp-mtime", "--xattrs", "--xattrs-include=*",
    "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
)  # fmt: skip


def pack(tree: Path, place: Path, epoch: int, lock: int | None = None, exclude: Sequence[str] = ()) -> None:
    """Writes the tree to `place`; nothing in it is younger than `epoch`. Sockets are left out: they are of a run."""
    without = [f"--exclude=./{name}" for name in exclude]
    words = ["tar", *_SAME, f"--mtime=@{epoch}", *without, "--warning=no-file-ignored", "-C", str(tree)]
    run([*words, "-cf", str(place), "."], lock=lock, named=f"tar of {tree}")


def unpack(place: Path, tree: Path, lock: int | None = None) -> Path:
    """Lays the tar's files into a new folder, with owners, times and attributes."""
    tree.mkdir()
    run(
        ["tar", "-C", str(tree), "--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf", str(place)],
        lock=lock,
        named=f"untar of {place.name}",
    )
    return tree
