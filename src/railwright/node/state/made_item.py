"""What is made from files, and made again when one of them is newer: an initramfs, an index, the linker's cache.

Nothing is handed on by notification: a run that is killed before it leaves a file that is newer than what is made from
it, or a making that is owed, and the next run sees either.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..model import InputError
from .fields import Fields, absolute, expected, sequence
from .item import STAGE_WRITE, Goal, Item, Kept, Node, Reading, Value, World
from .program import tools_of

CURRENT, OLDER = "current", "older"
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


class MadeItem(Item):
    """One cell, named by `cell`: "current", or "older" when what is made is older than a file, when this run writes or
    removes one, or when an earlier run set out to make it and did not come to its end.

    set: the entry's name, so that each slice may ask for its own. inputs: the files. made: what is made, in words.
    """

    cell: ClassVar[str]
    made: ClassVar[str]
    inputs: tuple[str, ...] = ()

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.set = item_name(fields, "node")

    @property
    def files(self) -> tuple[str, ...]:
        """All that it is made from."""
        return self.inputs

    def withheld(self, world: World) -> str:
        failed = sorted(world.failed.intersection(self.files))
        return f"{self.made} was left alone, since {failed[0]} could not be set" if failed else ""

    def compared(self, node: Node, kept: Kept, world: World, stamp: int, detail: Any = None) -> Reading:
        """What a read gives. stamp: when it was made, in ns."""
        # Files that an earlier entry named went into it too, and may be put back by this run.
        files = tuple(dict.fromkeys([*self.files, *kept.entry.get("inputs", ())]))
        newer, notes = written_since(node, files, stamp, world)
        known = kept.cells.get(self.cell)
        if not newer and known is not None and known.pending:
            newer = ["what an earlier run wrote"]
        if newer:
            notes.append(f"older than {', '.join(newer)}")
        return Reading({self.cell: OLDER if newer else CURRENT}, "; ".join(notes), detail)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {self.cell: CURRENT}

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        return super().goal(reading, Kept(kept.entry))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        """What was made with our files is made again without them."""
        if self.cell in kept.cells and reading.cells[self.cell] == OLDER:
            return Goal({self.cell: CURRENT})
        return Goal({})

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}  # putting back, too: after its inputs went back

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        one_word(cell, value, where, {self.cell: (CURRENT, OLDER)})

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
            written = stamp_of(node.at(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if written > now:
            notes.append(f"{path} is dated in the future: whether it is newer cannot be told")
        elif written > stamp:
            newer.append(path)
    return newer, notes


def stamp_of(path: str) -> int:
    """When the file was written, in ns. Raises OSError."""
    return os.stat(path).st_mtime_ns
