"""The same value in every file of a pattern: the clock governor of every CPU, say."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..model import InputError
from .fields import Fields, absolute, expected, under
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .kernel_items import chosen, must_take_writes, one_line, read_value, write_value
from .outcome import Refused
from .switch_function import must_be_of_no_switch

_PLACE = "/sys"


class SysfsEachItem(Item):
    """`{"kind": "sysfs_each", "path": "/sys/devices/system/cpu/cpu*/cpuidle/state3/disable", "value": "1"}`.

    path: of folders and files, with * and [...] as in a shell. The cells are the files' paths, their values text; of a
    file that shows all choices the chosen one.
    """

    kind = "sysfs_each"
    turn = 2

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        where = f"{fields.where}.path"
        self.pattern = absolute(fields.text("path"), where)
        if not under(self.pattern, (_PLACE,)) or "**" in self.pattern:
            raise InputError(
                where, f"{self.pattern} is no pattern of the kernel's files", f"expected one under {_PLACE}"
            )
        self.value = one_line(fields)

    @property
    def id(self) -> str:
        return f"sysfs_each:{self.pattern}"

    def claims(self, node: Node) -> Iterable[Claim]:
        yield ("sysfs_each", self.pattern)
        for path in self._paths(node):
            yield ("sysfs", os.path.realpath(node.at(path)))

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        cells: dict[str, Value] = {}
        for path in dict.fromkeys([*self._paths(node), *kept.cells]):
            must_be_of_no_switch(node, path)
            text = read_value(node.at(path))
            if text is not None:
                cells[path] = chosen(text)
        return Reading(cells)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if not reading.cells:
            raise Refused(f"the kernel has no {self.pattern}", "leave it out on this machine")
        return {path: self.value for path in reading.cells if fnmatch.fnmatchcase(path, self.pattern)}

    def same(self, now: Value, value: Value) -> bool:
        return bool(now.split() == value.split())

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        for path in goal:
            must_take_writes(node.at(path))

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        for number, (path, value) in enumerate(goal.items()):
            try:
                write_value(node.at(path), value)
            except OSError as error:
                raise Refused(
                    f"{path}: the kernel refuses {value!r}: {error.strerror}",
                    "give a value that it takes",
                    changed=number > 0,
                ) from error
        now = self.read(node, Kept({}), world).cells
        for path, value in goal.items():
            if path in now and not self.same(now[path], value):
                raise Refused(
                    f"{path}: {value!r} was written and reads back as {now[path]!r}",
                    "something else sets it: tuned, cpupower, power-profiles-daemon",
                    changed=True,
                )
        return Done()

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        absolute(cell, where)
        if not fnmatch.fnmatchcase(cell, self.pattern):
            raise InputError(where, f"unknown cell {cell!r}", f"expected a path that fits {self.pattern}")
        if not isinstance(value, str):
            raise expected(where, "text", value)

    def _paths(self, node: Node) -> list[str]:
        root = "" if node.root == "/" else node.root
        found = glob.glob(glob.escape(root) + self.pattern)
        return sorted(path[len(root) :] for path in found if os.path.isfile(path))
