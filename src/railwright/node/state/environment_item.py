"""A Python environment of exact wheels: built beside, shown by one rename of a link, kept by version, taken away again.

/opt/railwright/NAME/VERSION is an environment, VERSION its lock's digest and the Python that it was made with, and
/opt/railwright/NAME/current a link to the one that is meant. A run that is killed amid a build leaves the link as it
was, and a folder with a dot before its name that the next run removes, or takes over where it is whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .. import durable
from ..model import InputError
from ..model.runtime_policy import index_address, plain_path
from ..model.wheel_lock import read_lock
from ..words import some_of
from . import environment_build, environment_files, files, wheelhouse
from .environment_build import Build, Source
from .fields import Fields, expected, sequence
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Foreign, Refused

TOP = "/opt/railwright"
CURRENT = "current"
_BUILD = "build:"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}", re.ASCII)
_VERSION = re.compile(r"[0-9a-f]{12}-py3\.[0-9]{1,2}", re.ASCII)
_WHOLE, _DAMAGED, _UNFINISHED = "whole", "damaged", "unfinished"
_LONGEST_LINK = 255
_TOLD = 3
# The facts of an interpreter: its version, and whether it can make an environment with pip in it.
_ASK = (
    "import sys\n"
    "try:\n"
    "    import ensurepip\n"
    "except ImportError:\n"
    "    ensurepip = None\n"
    "print('%d.%d' % sys.version_info[:2], 'ensurepip' if ensurepip else 'bare')\n"
)


@dataclass
class _Detail:
    """What the write needs again. version: "" where `why` says why it cannot be told."""

    node: Node
    version: str
    minor: str = ""
    ensurepip: bool = False
    why: str = ""
    remedy: str = ""


class PythonEnvironmentItem(Item):
    """`{"kind": "python_environment", "name": "train", "lock": "torch==2.13.0 --hash=...", "wheelhouse": "/srv/w"}`.

    python: the node's interpreter ("/usr/bin/python3"). indexes, or wheelhouse: where the wheels come from; netrc: a
    file of the node for the indexes. keep: how many older versions stay (null: all). space: MiB that must be free
    before anything is fetched.

    Cells: "current", the link's target or None; "build:VERSION", None, "whole", "damaged" (a file of it was changed,
    removed or added) or "unfinished" (a build that did not come to its end).
    """

    kind = "python_environment"
    turn = 4

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        where = fields.where
        self.env = fields.text("name")
        if _NAME.fullmatch(self.env) is None:
            raise InputError(
                f"{where}.name", f"{self.env!r} is no name", "lower-case letters, digits, _ and -"
            )
        self.lock = read_lock(fields.text("lock"), f"{where}.lock")
        self.python = plain_path(fields.text("python", "/usr/bin/python3"), f"{where}.python")
        self.source = _source(fields)
        self.keep = fields.number("keep", 0, 100) if fields.maybe("keep") is not None else None
        self.space = fields.number("space", 0, 1 << 24) if fields.maybe("space") is not None else 0
        self.folder = f"{TOP}/{self.env}"
        self.link = f"{self.folder}/{CURRENT}"

    @property
    def id(self) -> str:
        return f"python_environment:{self.env}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("python_environment", self.env), ("file", self.link)]

    def paths(self) -> tuple[str, ...]:
        return (self.link,)

    # ----- reading ---------------------------------------------------------------------------------------------------

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        detail = self._asked(node)
        known = [cell[len(_BUILD) :] for cell in kept.cells if cell.startswith(_BUILD)]
        versions = dict.fromkeys([*known, *([detail.version] if detail.version else [])])
        cells: dict[str, Value] = {CURRENT: self._target(node)}
        notes = [detail.why] if detail.why else []
        for version in versions:
            state, differs = self._state(node, version)
            cells[_BUILD + version] = state
            if differs:
                notes.append(f"{version} is damaged: {some_of(differs, _TOLD)}")
        return Reading(cells, "; ".join(notes), detail)

    def _asked(self, node: Node) -> _Detail:
        if node.tools is None:
            return _Detail(node, "", why="this root is no running node, so its Python cannot be asked",
                           remedy="run this on the node itself")  # fmt: skip
        said = node.tools([self.python, "-I", "-c", _ASK])
        words = said.out.split()
        if not said.ok or len(words) != 2 or not re.fullmatch(r"3\.[0-9]{1,2}", words[0]):
            what = (
                f"the node has no {self.python}" if said.code is None else f"{self.python} says {said.word}"
            )
            return _Detail(node, "", why=what, remedy="install Python 3.9 or later, or name it in `python`")
        if int(words[0].split(".")[1]) < 9:
            why = f"{self.python} is Python {words[0]}"
            return _Detail(node, "", why=why, remedy="name a Python of 3.9 or later in `python`")
        version = f"{self.lock.digest[:12]}-py{words[0]}"
        return _Detail(node, version, words[0], words[1] == "ensurepip")

    def _target(self, node: Node) -> Optional[str]:
        place = node.at(self.link)
        try:
            return os.readlink(place)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise Foreign(
                f"{self.link} is no link",
                "see who put it there; the name is ours for the version that is meant",
            ) from None

    def _state(self, node: Node, version: str) -> tuple[Optional[str], list[str]]:
        place, beside = f"{self.folder}/{version}", self._beside(version)
        left = any(os.path.lexists(node.at(path)) for path in (beside, f"{beside}-old"))
        if not os.path.lexists(node.at(place)):
            return (_UNFINISHED if left else None), []
        manifest = environment_files.read(node.at(place))
        if manifest is None:
            return _DAMAGED, [f"{environment_files.NAME} is gone or cannot be read"]
        if f"{manifest.lock[:12]}-py{manifest.python}" != version:
            return _DAMAGED, [f"{environment_files.NAME} is of another environment"]
        differs = environment_files.differences(node.at(place), manifest)
        return (_DAMAGED if differs or left else _WHOLE), differs

    def _beside(self, version: str) -> str:
        return f"{self.folder}/{files.temporary(version)}"

    # ----- deciding --------------------------------------------------------------------------------------------------

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        detail: _Detail = reading.detail
        if not detail.version:
            raise Refused(detail.why, detail.remedy)
        meant = _BUILD + detail.version
        wanted: dict[str, Value] = {meant: _WHOLE, CURRENT: detail.version}
        older = [cell for cell in reading.cells if cell.startswith(_BUILD) and cell != meant]
        stand = [cell for cell in older if reading.cells[cell] in (_WHOLE, _DAMAGED)]
        gone = [] if self.keep is None else stand[: max(0, len(stand) - self.keep)]
        for cell in older:
            # What stands stays until it is told otherwise.
            wanted[cell] = reading.cells[cell] if cell in stand and cell not in gone else None
        return wanted

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, kept)
        detail: _Detail = reading.detail
        if goal.cells.get(_BUILD + detail.version) != _WHOLE:
            return goal
        pins = some_of((pin.words for pin in self.lock.pins), _TOLD)
        told = f"{detail.version} of Python {detail.minor} from {self.source.words}: {pins}"
        return Goal(goal.cells, (*goal.notes, told), goal.dropped)

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        goal = super().release(reading, kept, world)
        for cell, value in goal.cells.items():
            used = users_of(reading.detail.node, self.name(cell)) if value is None and cell != CURRENT else ""
            if used:
                raise Refused(f"{used} runs from {self.name(cell)}", "end it, then put back again")
        return goal

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        detail: _Detail = reading.detail
        if goal.get(_BUILD + detail.version) != _WHOLE:
            return
        build = self._build(detail)
        if any(
            environment_build.whole(node, place, self.lock, detail.minor)
            for place in (build.place, build.beside)
        ):
            return  # a killed run had it ready
        used = users_of(node, build.place)
        if used:
            raise Refused(
                f"{build.place} is damaged, and {used} runs from it: building it anew would change files under it",
                "end it, then run again",
            )
        room = wheelhouse.Room(self.space << 20, 0)
        if self.source.wheelhouse is not None:
            here = node.at(self.source.wheelhouse)
            held = wheelhouse.must_hold(here, self.source.wheelhouse, self.lock)
            found = wheelhouse.room_of(here, list(held.values()))
            room = wheelhouse.Room(max(room.bytes, found.bytes), found.files)
        environment_build.must_have_room(node, build.place, room, detail.version)
        if not detail.ensurepip and environment_build.own_pip(build) is None:
            raise Refused(
                f"{self.python} has no ensurepip, so an environment would have no pip",
                "install its package (python3-venv), or lock pip too and put its wheel into the wheelhouse",
            )
        _must_be_private(node, self.source.netrc)

    def _build(self, detail: _Detail) -> Build:
        place = f"{self.folder}/{detail.version}"
        return Build(
            detail.node,
            self.python,
            detail.minor,
            self.lock,
            self.source,
            place,
            self._beside(detail.version),
        )

    # ----- writing ---------------------------------------------------------------------------------------------------

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if _WHOLE in [goal[cell] for cell in goal if cell != CURRENT]:
            environment_build.make(self._build(reading.detail))
        if CURRENT in goal:
            self._switch(node, goal[CURRENT])
        stay: list[str] = []
        notes: list[str] = []
        for cell, value in goal.items():
            if cell.startswith(_BUILD) and value is None:
                version = cell[len(_BUILD) :]
                place = f"{self.folder}/{version}"
                used = users_of(node, place)
                if used:
                    stay.append(cell)
                    notes.append(f"{version} stays: {used} runs from it")
                    continue
                for path in (place, self._beside(version), f"{self._beside(version)}-old"):
                    environment_build.clear(node, path)
        return Done(len(stay) < len(goal), "; ".join(notes), tuple(stay))

    def _switch(self, node: Node, target: Optional[str]) -> None:
        """One rename: whoever looks sees the old version or the new one."""
        files.make_parents(node.root, self.link)
        place = node.at(self.link)
        beside = os.path.join(os.path.dirname(place), files.temporary(CURRENT))
        if os.path.lexists(beside):
            os.unlink(beside)
        if target is None:
            if os.path.lexists(place):
                os.unlink(place)
        else:
            os.symlink(target, beside)
            os.rename(beside, place)
        durable.sync(os.path.dirname(place))

    def touches(self, reading: Reading, goal: Mapping[str, Value]) -> tuple[str, ...]:
        return (self.link,) if CURRENT in goal else ()

    # ----- the record ------------------------------------------------------------------------------------------------

    def prior(self, reading: Reading, cell: str) -> Value:
        value = reading.cells[cell]
        return value if cell == CURRENT or value == _WHOLE else None

    def ours(self, now: Value, written: Value) -> bool:
        return now == written or now in (_DAMAGED, _UNFINISHED)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if value is not None and not isinstance(value, str):
            raise expected(where, "text", value)
        if cell == CURRENT:
            if value is not None and not 0 < len(value) <= _LONGEST_LINK:
                raise InputError(where, f"{len(value)} characters are no target of a link")
        elif not cell.startswith(_BUILD) or _VERSION.fullmatch(cell[len(_BUILD) :]) is None:
            raise InputError(where, f"unknown cell {cell!r}", "expected current or build:VERSION")
        elif value not in (None, _WHOLE, _DAMAGED):
            raise InputError(where, f"found {value!r}", f"expected null or {_WHOLE}")

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        built = [cell for cell, value in goal.items() if value == _WHOLE]
        words = {
            "build": any(reading.cells[cell] != _DAMAGED for cell in built),
            "mend": any(reading.cells[cell] == _DAMAGED for cell in built),
            "switch": CURRENT in goal,
            "remove": any(cell.startswith(_BUILD) and value is None for cell, value in goal.items()),
        }
        return "+".join(word for word, is_so in words.items() if is_so)

    def name(self, cell: str) -> str:
        return f"{self.folder}/{cell[len(_BUILD) :] if cell.startswith(_BUILD) else cell}"


def users_of(node: Node, place: str) -> str:
    """The first process that runs from this folder, as a person would call it; "" where none does."""
    proc = node.at("/proc")
    mark = f"{place}/".encode()
    for number in sorted((name for name in _listed(proc) if name.isdigit()), key=int):
        for page in ("cmdline", "maps"):
            try:
                with open(f"{proc}/{number}/{page}", "rb") as file:
                    data = file.read()
            except OSError:
                continue
            if mark in data:
                return f"process {number}"
    return ""


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _must_be_private(node: Node, path: Optional[str]) -> None:
    if path is None:
        return
    try:
        found = os.stat(node.at(path))
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error.strerror}", "put name and password for the index there"
        ) from None
    if found.st_mode & 0o077:
        raise Refused(f"{path} can be read by others", f"chmod 0600 {path}")


def _source(fields: Fields) -> Source:
    where = fields.where
    folder, netrc = fields.maybe("wheelhouse"), fields.maybe("netrc")
    listed = fields.maybe("indexes")
    addresses = [] if listed is None else sequence(listed, f"{where}.indexes")
    for n, address in enumerate(addresses):
        if not isinstance(address, str):
            raise expected(f"{where}.indexes[{n}]", "text", address)
        index_address(address, f"{where}.indexes[{n}]")
    for key, path in (("wheelhouse", folder), ("netrc", netrc)):
        if path is not None:
            plain_path(fields.text(key), f"{where}.{key}")
    if bool(addresses) == (folder is not None):
        raise InputError(
            where, "says not where its wheels come from", "give indexes, or a wheelhouse, and not both"
        )
    return Source(folder, tuple(addresses), netrc)
