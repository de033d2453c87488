"""What is in a kernel's first root file system: it is packed, so a search of the tree's bytes does not see into it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from . import seal
from .inside import Room
from .landing import landing

_UNPACKS = "unmkinitramfs"


def held(room: Room, texts: tuple[str, ...]) -> list[str]:
    """What none of them may hold: keys, these texts, what of one machine went from the tree. Raises InputError.

    Those that the tree has no program to unpack (dracut's) are not looked into.
    """
    tool = room.has(_UNPACKS)
    if tool is None:
        return []
    return [row for kernel in room.kernels for row in _held(room, tool, f"/boot/initrd.img-{kernel}", texts)]


def _held(room: Room, tool: str, image: str, texts: tuple[str, ...]) -> Iterator[str]:
    file = landing(room.tree, image)
    if file.is_symlink() or not file.is_file():
        return
    place = room.scratch / "initramfs"
    place.mkdir()
    try:
        room.run(tool, image, "/run/initramfs", folders=((place, "/run/initramfs", "rw"),))
        for root in _roots(place):
            yield from (f"{image}: {path} (a private key)" for path in seal.private_keys(root))
            yield from (f"{image}: {path} (a forbidden text)" for path in seal.holders(root, texts))
            # It has no machine-id of its own: that none is there is no fault.
            found = [(path, why) for path, why in seal.leftovers(root) if path != "etc/machine-id"]
            yield from (f"{image}: {path} ({why})" for path, why in found)
    finally:
        shutil.rmtree(place)


def _roots(place: Path) -> list[Path]:
    """It may be several archives one after the other; each has a folder then."""
    parts = [part for part in sorted(place.iterdir()) if part.name == "main" or part.name.startswith("early")]
    return parts or [place]
