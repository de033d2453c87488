"""The index of package sources, read again when a source is newer than it.

The item must stand in an earlier call of the writer than the packages that come from these sources: what a transaction
would do is told by the index before anything of a call is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from . import apt, dnf
from .fields import Fields
from .item import Claim, Done, Goal, Kept, Node, Reading, Value, World
from .made_item import MadeItem, paths_of
from .outcome import Refused
from .packages_item import SYSTEMS, wait_for_locks

_FOLDERS = {"dpkg": "/var/lib/apt/lists", "rpm": "/var/cache/dnf"}


class PackageIndexItem(MadeItem):
    """`{"kind": "package_index", "system": "dpkg", "sources": ["/etc/apt/sources.list.d/x.sources"], "inputs": [...]}`.

    sources: the files whose index is read, each by itself, so that another one that cannot be reached does not matter.
    inputs: further files that a refresh depends on (keys). wait: as in `packages`. One cell, "index": "current", or
    "older" when one of the files is newer than the folder of the lists or written by this run, when there is no list,
    or when an earlier run set out to refresh it and did not come to its end.
    """

    kind = "package_index"
    turn = 1
    cell = "index"
    owed = (cell,)
    made = "the index"

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        name = fields.one_of("system", SYSTEMS)
        self.folder = _FOLDERS[name]
        self.system = apt if name == "dpkg" else dnf
        self.sources = paths_of(fields, "sources")
        self.inputs = paths_of(fields, "inputs") if fields.has("inputs") else ()
        fields.maybe("inputs")
        self.wait = fields.number("wait", 0, 86400) if fields.has("wait") else 120

    @property
    def id(self) -> str:
        return f"package_index:{self.set}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("package_index", self.set)]

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.sources, *self.inputs)

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        # Of this entry's files alone: what a source that is gone has told is of no use, and no harm.
        return self.compared(node, Kept({}, kept.cells), world, _stamp(node, self.folder))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        return Goal({})

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        locked = wait_for_locks(node, self.system.LOCKS, self.wait)
        if locked:
            raise Refused(locked, "see what it does; when it has ended, run again")
        began = time.time_ns()
        for source in self.sources:
            self.system.refresh(node, source)
        # What had not changed leaves no younger list behind: the folder's own time says when it was asked.
        folder = node.at(self.folder)
        if not os.path.isdir(folder):
            raise Refused(f"{self.folder} is not there after a refresh", "see what the package system says")
        os.utime(folder, ns=(began, began))
        return Done()

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "refresh"


def _stamp(node: Node, folder: str) -> int:
    """When the index was read last; 0 where there is none."""
    try:
        lists = [name for name in os.listdir(node.at(folder)) if name not in ("lock", "partial", "auxfiles")]
        return os.stat(node.at(folder)).st_mtime_ns if lists else 0
    except (FileNotFoundError, NotADirectoryError):
        return 0
