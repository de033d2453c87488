"""An alternative: which of several things on the node a common name leads to (update-alternatives(1), alternatives(8)).

Read from the record that Debian's and RHEL's tool keep in the same form: the mode, the link, then names of slaves up to
an empty line, then a path and its priority in turns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ..model import InputError
from .fields import Fields, absolute, expected, only_cell
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .program import last_words, tools_of

_RECORDS = ("/var/lib/dpkg/alternatives", "/var/lib/alternatives")
_CHOSEN = "/etc/alternatives"
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}", re.ASCII)
_VALUE = re.compile(r"(?:auto|manual) /.*", re.ASCII | re.DOTALL)
_TOOL = "update-alternatives"
# Below what packages register for themselves, so that a group that goes back to "auto" chooses as if we were not there.
_PRIORITY = "1"


class AlternativeItem(Item):
    """`{"kind": "alternative", "name": "cuda", "link": "/usr/local/cuda", "path": "/usr/local/cuda-13.0"}`.

    One cell: None where there is no such group, else its mode and what it leads to ("manual /usr/local/cuda-13.0"). It
    is set by hand, so that a package that comes later does not take the link along.
    """

    kind = "alternative"
    turn = 3

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.group = fields.text("name")
        if _NAME.fullmatch(self.group) is None:
            raise InputError(
                f"{fields.where}.name", f"{self.group!r} is no name", "expected one like cuda or nvcc"
            )
        self.link = absolute(fields.text("link"), f"{fields.where}.link")
        self.path = absolute(fields.text("path"), f"{fields.where}.path")

    @property
    def id(self) -> str:
        return f"alternative:{self.group}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("alternative", self.group), ("file", self.link)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        lines = _record(node, self.group)
        former = self._former(kept)
        if not lines:
            return Reading({"": None}, detail=former)
        try:
            target = os.readlink(node.at(f"{_CHOSEN}/{self.group}"))
        except OSError:
            # A record without its link: the tool makes it anew.
            target = ""
        return Reading({"": f"{lines[0]} {target}" if target.startswith("/") else None}, detail=former)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {"": f"manual {self.path}"}

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
        place = node.at(self.link)
        foreign = (
            os.readlink(place) != f"{_CHOSEN}/{self.group}"
            if os.path.islink(place)
            else os.path.exists(place)
        )
        if foreign and goal.get("") is not None:
            raise Refused(
                f"{self.link} is not held by an alternative: somebody has put a folder or a link of their own there",
                f"move it away (mv {self.link} {self.link}.old), then run again",
            )

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        value = goal[""]
        if value is None:
            self._leave(node)
            return Done()
        mode, _, path = str(value).partition(" ")
        if not os.path.lexists(node.at(path)):
            raise Refused(
                f"{path} is not there, so nothing may lead to it",
                "see what the package that brings it has put in its place (dpkg -L, rpm -ql)",
            )
        if path not in _choices(_record(node, self.group)):
            self._tell(node, "--install", self.link, self.group, path, _PRIORITY)
        if mode == "auto":
            self._tell(node, "--auto", self.group)
        else:
            self._tell(node, "--set", self.group, path)
        self._drop(node, [one for one in (*reading.detail, self.path) if one != path])
        now = self.read(node, Kept({}), world).cells[""]
        if now != value and mode != "auto":
            raise Refused(f"{self.group} was set and reads back as {now}", "see who sets it", changed=True)
        return Done()

    def _former(self, kept: Kept) -> tuple[str, ...]:
        """What an earlier entry led to, unless that stood there before us."""
        former, known = kept.entry.get("path"), kept.cells.get("")
        prior = "" if known is None else str(known.prior).partition(" ")[2]
        return (former,) if isinstance(former, str) and former != prior else ()

    def _leave(self, node: Node) -> None:
        """Before us there was no such group: all that has our priority is ours. Raises Refused."""
        self._drop(node, list(_choices(_record(node, self.group))))
        left = [
            path for path, priority in _choices(_record(node, self.group)).items() if priority == _PRIORITY
        ]
        if left:
            raise Refused(
                f"{self.group} should be gone and still has {', '.join(left)}",
                "see who sets it",
                changed=True,
            )

    def _drop(self, node: Node, paths: list[str]) -> None:
        """Takes these choices away where they have our priority: one with another is a package's."""
        for path in dict.fromkeys(paths):
            if _choices(_record(node, self.group)).get(path) == _PRIORITY:
                self._tell(node, "--remove", self.group, path)

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        """What an earlier entry led to needs no way back of its own: the group has one choice."""
        return super().goal(reading, Kept(kept.entry))

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        only_cell(cell, where)
        if value is None:
            return
        if not isinstance(value, str):
            raise expected(where, "text or nothing", value)
        if _VALUE.fullmatch(value) is None:
            raise InputError(
                where, f"found {value!r}", "expected a mode and a path, like manual /usr/local/x"
            )

    def _tell(self, node: Node, *words: str) -> None:
        said = tools_of(node)((_TOOL, *words))
        if said.code is None:
            raise Refused(f"the node has no {_TOOL}", "install dpkg (Debian) or alternatives (RHEL)")
        if not said.ok:
            raise Refused(f"{_TOOL} {' '.join(words)} ended with {said.code}: {last_words(said, 3)}")


def _record(node: Node, group: str) -> tuple[str, ...]:
    """The lines of the group's record; none where there is no such group."""
    text = next((found for found in (_text(node.at(f"{place}/{group}")) for place in _RECORDS) if found), "")
    lines = tuple(line.rstrip("\r") for line in text.split("\n"))
    return lines if lines[0] in ("auto", "manual") else ()


def _choices(lines: tuple[str, ...]) -> dict[str, str]:
    """The choices of a group with their priorities: behind the first empty line, each with a line for each slave."""
    if "" not in lines:
        return {}
    head = lines.index("")
    behind = lines[head + 1 :]
    step = 2 + max(head - 2, 0) // 2
    return {behind[n]: behind[n + 1] for n in range(0, len(behind) - 1, step) if behind[n].startswith("/")}


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
