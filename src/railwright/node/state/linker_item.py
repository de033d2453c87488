"""The dynamic linker's cache, made anew when what it is made from is newer.

A file in ld.so.conf.d does nothing before ldconfig has run. Nothing is handed on by notification: a run that is killed
before it leaves a file that is newer than the cache, and the next run sees that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .fields import Fields
from .item import Claim, Done, Kept, Node, Reading, Value, World
from .made_item import MadeItem, paths_of, stamp_of
from .outcome import Refused
from .program import last_words, tools_of

CACHE = "/etc/ld.so.cache"


class LinkerCacheItem(MadeItem):
    """`{"kind": "linker_cache", "name": "cuda", "inputs": ["/etc/ld.so.conf.d/00-x.conf"]}`.

    inputs: files of ld.so.conf.d. One cell, "cache": "current", or "older" when it is missing or older than an input,
    when an input is written or removed by this run, or when an earlier run set out to make it and did not come to its
    end.
    """

    kind = "linker_cache"
    turn = 4
    cell = "cache"
    owed = (cell,)
    made = "the linker's cache"

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.inputs = paths_of(fields, "inputs")

    @property
    def id(self) -> str:
        return f"linker_cache:{self.set}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("linker_cache", self.set)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        return self.compared(node, kept, world, _stamp(node))

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        said = tools_of(node)(("ldconfig",))
        if said.code is None:
            raise Refused("the node has no ldconfig", "install its C library's programs (libc-bin, glibc)")
        if not said.ok:
            raise Refused(f"ldconfig ended with {said.code}: {last_words(said, 3)}", "run it by hand")
        return Done()


def _stamp(node: Node) -> int:
    try:
        return stamp_of(node.at(CACHE))
    except (FileNotFoundError, NotADirectoryError):
        return 0
