"""The initramfs of every kernel that may boot, rebuilt when what goes into it is newer.

What lies in modprobe.d, or a .link file of udev, holds for the next boot only when it is in the initramfs too. Nothing
is handed on by notification: a run that is killed before the rebuild leaves a file that is newer than the image, or a
rebuild that is owed, and the next run sees either.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model import InputError
from ..packages.cmdline import RESCUE
from .fields import Fields, absolute, expected, sequence
from .item import STAGE_WRITE, Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .program import first_program, last_words, tools_of

_CELL = "image"
_CURRENT, _OLDER = "current", "older"
# update-initramfs(8) of initramfs-tools (Debian, Ubuntu); dracut(8) (RHEL, Rocky).
_BUILDERS: Mapping[str, tuple[str, ...]] = {
    "update-initramfs": ("update-initramfs", "-u", "-k", "all"),
    "dracut": ("dracut", "--regenerate-all", "--force"),
}
_IMAGES = (("initrd.img-", ""), ("initramfs-", ".img"))
_KERNEL = "vmlinuz-"
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
# A new image is laid beside the old one before it takes its place.
_ROOM = 1.25


class InitramfsItem(Item):
    """`{"kind": "initramfs", "name": "kernel", "inputs": ["/etc/modprobe.d/x.conf"], "reboot": true}`.

    name: whose it is, so that each slice may ask for its own ("node" when left out). inputs: files that go into the
    images. One cell, "image": "current", or "older" when an image of a kernel in /boot is older than an input, when an
    input is written or removed by this run, or when an earlier run set out to rebuild and did not come to its end.
    Without a kernel in /boot there is nothing to rebuild, and the item says so.
    """

    kind = "initramfs"
    turn = 3
    owed = (_CELL,)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.slice_name = item_name(fields, "node")
        self.inputs = paths_of(fields, "inputs")

    @property
    def id(self) -> str:
        return f"initramfs:{self.slice_name}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("initramfs", self.slice_name)]

    def withheld(self, world: World) -> str:
        failed = sorted(world.failed.intersection(self.inputs))
        return f"the initramfs was left alone, since {failed[0]} could not be set" if failed else ""

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        images = _images(node)
        if not images:
            return Reading({_CELL: _CURRENT}, note="no kernel in /boot has an initramfs: nothing to rebuild")
        # Files that an earlier entry named went into the image too, and may be put back by this run.
        inputs = dict.fromkeys([*self.inputs, *kept.entry.get("inputs", ())])
        newer, notes = _newer(node, tuple(inputs), images, world)
        known = kept.cells.get(_CELL)
        if not newer and known is not None and known.pending:
            newer = ["what an earlier run wrote"]
        if newer:
            notes.append(f"older than {', '.join(newer)}")
        return Reading({_CELL: _OLDER if newer else _CURRENT}, "; ".join(notes), tuple(images.values()))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {_CELL: _CURRENT}

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        return super().goal(reading, Kept(kept.entry))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        """What was built with our files is built again without them."""
        if _CELL in kept.cells and reading.cells[_CELL] == _OLDER:
            return Goal({_CELL: _CURRENT})
        return Goal({})

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}  # putting back, too: after its inputs went back

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
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
        stale = [image for image in _images(node).values() if _stamp(node.at(image)) < self._newest(node)]
        if stale:
            raise Refused(
                f"{argv[0]} ran, and {stale[0]} is still older than its inputs",
                f"run {' '.join(argv)} by hand and see what it says of that kernel",
                changed=True,
            )
        return Done()

    def _newest(self, node: Node) -> int:
        now = time.time_ns()
        stamps = [_stamp(node.at(path)) for path in self.inputs if os.path.exists(node.at(path))]
        return max((stamp for stamp in stamps if stamp <= now), default=0)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        one_word(cell, value, where, {_CELL: (_CURRENT, _OLDER)})

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "rebuild"


def item_name(fields: Fields, default: str) -> str:
    """The `name` of an entry: that of the slice that asks. Raises InputError."""
    name = fields.text("name", default)
    if _NAME.fullmatch(name) is None:
        raise InputError(
            f"{fields.where}.name", f"{name!r} is no name", "expected lower-case letters, digits and _"
        )
    return name


def paths_of(fields: Fields, key: str) -> tuple[str, ...]:
    """Absolute paths under this key, at least one. Raises InputError."""
    where = f"{fields.where}.{key}"
    paths = sequence(fields.take(key), where)
    if not paths:
        raise InputError(where, "names nothing", "name the files")
    for n, path in enumerate(paths):
        if not isinstance(path, str):
            raise expected(f"{where}[{n}]", "text", path)
        absolute(path, f"{where}[{n}]")
    return tuple(paths)


def one_word(cell: str, value: Value, where: str, known: Mapping[str, Sequence[str]]) -> None:
    """Refuses a cell and a value that a kind of few words never keeps. Raises InputError."""
    if cell not in known:
        raise InputError(where, f"unknown cell {cell!r}", f"known cells: {', '.join(known)}")
    if not isinstance(value, str):
        raise expected(where, "text", value)
    if value not in known[cell]:
        raise InputError(where, f"found {value!r}", f"expected one of {', '.join(known[cell])}")


def written_since(node: Node, paths: Sequence[str], stamp: int, world: World) -> tuple[list[str], list[str]]:
    """Of these files those that this run writes or removes or that are newer than `stamp`, and what cannot be told."""
    changing = {os.path.realpath(node.at(path)) for path in world.changing}
    now = time.time_ns()
    newer, notes = [], []
    for path in paths:
        if os.path.realpath(node.at(path)) in changing:
            newer.append(path)
            continue
        try:
            written = _stamp(node.at(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if written > now:
            notes.append(f"{path} is dated in the future: whether it is newer cannot be told")
        elif written > stamp:
            newer.append(path)
    return newer, notes


def _newer(
    node: Node, inputs: Sequence[str], images: Mapping[str, str], world: World
) -> tuple[list[str], list[str]]:
    return written_since(node, inputs, min(_stamp(node.at(path)) for path in images.values()), world)


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


def _stamp(path: str) -> int:
    return os.stat(path).st_mtime_ns
