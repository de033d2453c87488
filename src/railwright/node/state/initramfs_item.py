"""The initramfs of every kernel that may boot, rebuilt when what goes into it is newer.

What lies in modprobe.d, or a .link file of udev, holds for the next boot only when it is in the initramfs too. Nothing
is handed on by notification: a run that is killed before the rebuild leaves a file that is newer than the image, or a
rebuild that is owed, and the next run sees either.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..packages.cmdline import RESCUE
from .fields import Fields
from .item import Claim, Done, Kept, Node, Reading, Value, World
from .made_item import CURRENT, MadeItem, paths_of, stamp_of
from .outcome import Refused
from .program import first_program, last_words, tools_of

# update-initramfs(8) of initramfs-tools (Debian, Ubuntu); dracut(8) (RHEL, Rocky).
_BUILDERS: Mapping[str, tuple[str, ...]] = {
    "update-initramfs": ("update-initramfs", "-u", "-k", "all"),
    "dracut": ("dracut", "--regenerate-all", "--force"),
}
_IMAGES = (("initrd.img-", ""), ("initramfs-", ".img"))
_KERNEL = "vmlinuz-"
# A new image is laid beside the old one before it takes its place.
_ROOM = 1.25


class InitramfsItem(MadeItem):
    """`{"kind": "initramfs", "name": "kernel", "inputs": ["/etc/modprobe.d/x.conf"], "reboot": true}`.

    name: whose it is, so that each slice may ask for its own ("node" when left out). inputs: files that go into the
    images. One cell, "image": "current", or "older" when an image of a kernel in /boot is older than an input, when an
    input is written or removed by this run, or when an earlier run set out to rebuild and did not come to its end.
    Without a kernel in /boot there is nothing to rebuild, and the item says so.
    """

    kind = "initramfs"
    turn = 3
    cell = "image"
    owed = (cell,)
    made = "the initramfs"

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.inputs = paths_of(fields, "inputs")

    @property
    def id(self) -> str:
        return f"initramfs:{self.set}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("initramfs", self.set)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        images = tuple(_images(node).values())
        if not images:
            return Reading(
                {self.cell: CURRENT}, note="no kernel in /boot has an initramfs: nothing to rebuild"
            )
        oldest = min(stamp_of(node.at(path)) for path in images)
        return self.compared(node, kept, world, oldest, images)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        super().foresee(node, reading, goal)
        _builder(node)
        _must_have_room(node, reading.detail)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        argv = _BUILDERS[_builder(node)]
        said = tools_of(node)(argv)
        if said.code != 0:
            full = "No space left" in f"{said.out}{said.err}"
            raise Refused(
                f"{argv[0]} ended with {said.code}: {last_words(said, 4)}",
                "free space in /boot (df /boot), remove kernels that nobody boots"
                if full
                else "run it by hand",
                changed=True,
            )
        stale = [image for image in _images(node).values() if stamp_of(node.at(image)) < self._newest(node)]
        if stale:
            raise Refused(
                f"{argv[0]} ran, and {stale[0]} is still older than its inputs",
                f"run {' '.join(argv)} by hand and see what it says of that kernel",
                changed=True,
            )
        return Done()

    def _newest(self, node: Node) -> int:
        now = time.time_ns()
        stamps = [stamp_of(node.at(path)) for path in self.inputs if os.path.exists(node.at(path))]
        return max((stamp for stamp in stamps if stamp <= now), default=0)


def _images(node: Node) -> dict[str, str]:
    """Images by the release of their kernel, of all kernels in /boot that have one."""
    try:
        names = set(os.listdir(node.at("/boot")))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    releases = sorted(
        name[len(_KERNEL) :]
        for name in names
        if name.startswith(_KERNEL) and not name.startswith(f"{_KERNEL}{RESCUE}")
    )
    found = {}
    for release in releases:
        for before, after in _IMAGES:
            if f"{before}{release}{after}" in names:
                found[release] = f"/boot/{before}{release}{after}"
                break
    return found


def _builder(node: Node) -> str:
    name = first_program(node, tuple(_BUILDERS))
    if name is None:
        raise Refused(
            f"the node has none of {', '.join(_BUILDERS)}",
            "install initramfs-tools or dracut, then run again",
        )
    return name


def _must_have_room(node: Node, images: Sequence[str]) -> None:
    largest = max((os.stat(node.at(image)).st_size for image in images), default=0)
    room = os.statvfs(node.at("/boot"))
    free = room.f_bavail * room.f_frsize
    if free < largest * _ROOM:
        raise Refused(
            f"/boot has {free >> 20} MiB free, and a new image of up to {largest >> 20} MiB is laid beside the old one",
            "free space in /boot: remove kernels that nobody boots",
        )
