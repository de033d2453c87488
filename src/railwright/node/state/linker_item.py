"""The dynamic linker's cache, made anew when what it is made from is newer.

A file in ld.so.conf.d does nothing before ldconfig has run. Nothing is handed on by notification: a run that is killed
before it leaves a file that is newer than the cache, and the next run sees that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .fields import Fields
from .initramfs_item import item_name, one_word, paths_of, written_since
from .item import STAGE_WRITE, Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .program import last_words, tools_of

CACHE = "/etc/ld.so.cache"
_CELL = "cache"
_CURRENT, _OLDER = "current", "older"


class LinkerCacheItem(Item):
    """`{"kind": "linker_cache", "name": "cuda", "inputs": ["/etc/ld.so.conf.d/00-x.conf"]}`.

    inputs: files of ld.so.conf.d. One cell, "cache": "current", or "older" when it is missing or older than an input,
    when an input is written or removed by this run, or when an earlier run set out to make it and did not come to its
    end.
    """

    kind = "linker_cache"
    turn = 4
    owed = (_CELL,)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.set = item_name(fields, "node")
        self.inputs = paths_of(fields, "inputs")

    @property
    def id(self) -> str:
        return f"linker_cache:{self.set}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("linker_cache", self.set)]

    def withheld(self, world: World) -> str:
        failed = sorted(world.failed.intersection(self.inputs))
        return f"the linker's cache was left alone, since {failed[0]} could not be set" if failed else ""

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        # A file that an earlier entry named went into the cache too, and may be put back by this run.
        inputs = tuple(dict.fromkeys([*self.inputs, *kept.entry.get("inputs", ())]))
        newer, notes = written_since(node, inputs, _stamp(node), world)
        known = kept.cells.get(_CELL)
        if not newer and known is not None and known.pending:
            newer = ["what an earlier run wrote"]
        if newer:
            notes.append(f"older than {', '.join(newer)}")
        return Reading({_CELL: _OLDER if newer else _CURRENT}, "; ".join(notes))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {_CELL: _CURRENT}

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        return super().goal(reading, Kept(kept.entry))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        """What was made with our files is made again without them."""
        if _CELL in kept.cells and reading.cells[_CELL] == _OLDER:
            return Goal({_CELL: _CURRENT})
        return Goal({})

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        return {STAGE_WRITE: goal}  # putting back, too: after its inputs went back

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        said = tools_of(node)(("ldconfig",))
        if said.code is None:
            raise Refused("the node has no ldconfig", "install its C library's programs (libc-bin, glibc)")
        if not said.ok:
            raise Refused(f"ldconfig ended with {said.code}: {last_words(said, 3)}", "run it by hand")
        return Done()

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        one_word(cell, value, where, {_CELL: (_CURRENT, _OLDER)})

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "rebuild"


def _stamp(node: Node) -> int:
    try:
        return os.stat(node.at(CACHE)).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0
