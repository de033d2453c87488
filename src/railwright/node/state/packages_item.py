"""Packages at exact versions, in one transaction, held; and the way back to the versions that were there before.

Nothing is done that was not simulated first, and a simulation that would move or remove a package beyond those that are
named is refused. What comes anew because the named ones need it is kept in the record too, so that putting back takes
it away again. A run that is killed amid the transaction leaves what its package system leaves: the next one brings that
to its end and goes on from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..model import InputError
from ..model.values import PACKAGE, VERSION
from ..packages import locks
from ..packages.change import Change
from ..words import some_of
from . import apt, dnf
from .fields import Fields, expected, mapping, sequence
from .item import Claim, Done, Goal, Item, Kept, KeptCell, Node, Reading, Value, World
from .made_item import item_name, paths_of
from .outcome import Refused

SYSTEMS = ("dpkg", "rpm")
_VERSION, _HOLD = "version:", "hold:"
# A version that stands on the node: its text, then how far it came; rpm may have several of one name.
_STANDING = re.compile(rf"{VERSION.pattern}(?: [0-9A-Za-z:.+~^_-]+)*", re.ASCII)
_HALF_WAY = frozenset(
    {"half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending", "reinstreq"}
)
_RELEASE = "/proc/sys/kernel/osrelease"
_LOOK_AGAIN_SECONDS = 0.5
_LONGEST_WAIT = 86400
_TOLD = 6


@dataclass
class _Detail:
    """What the write needs again. left: what an earlier transaction left half-way. locked: who holds the lock and did
    not let it go. stays: names that came with others, and stay as they are. holds: on the way back, those that the
    record knows. ours: names that came by us."""

    node: Node
    cells: dict[str, Value]
    left: tuple[str, ...] = ()
    locked: str = ""
    stays: tuple[str, ...] = ()
    holds: Mapping[str, bool] = field(default_factory=dict)
    ours: tuple[str, ...] = ()


class PackagesItem(Item):
    """`{"kind": "packages", "name": "kernel", "system": "dpkg", "versions": {"nvidia-open": "580.173.02-1"}}`.

    versions: null is "must not be there". hold: whether exactly these are held (true). recommends (false). may_change:
    further packages that the transaction may move or remove. sources: files without which the index cannot know these
    versions. wait: seconds for another program's lock (120).

    Cells: "version:NAME", None or the version that stands there (with dpkg's word for it where that is not "installed";
    of rpm all versions that stand there), and "hold:NAME".
    """

    kind = "packages"
    turn = 2

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.set = item_name(fields, "node")
        system = fields.one_of("system", SYSTEMS)
        self.system = apt if system == "dpkg" else dnf
        self.several = system == "rpm"
        self.versions = _versions(fields)
        self.hold = fields.flag("hold") is not False
        self.recommends = fields.flag("recommends") or False
        self.may_change = _names(fields, "may_change")
        self.sources = paths_of(fields, "sources") if fields.has("sources") else ()
        fields.maybe("sources")
        self.wait = fields.number("wait", 0, _LONGEST_WAIT) if fields.has("wait") else 120

    @property
    def id(self) -> str:
        return f"packages:{self.set}"

    def intended(self, kept: Kept) -> Mapping[str, Any]:
        # A name that neither knows would be one that came with others, and stay.
        return {**self.entry, "versions": {**kept.entry.get("versions", {}), **self.versions}}

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("package", name) for name in self.versions]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        # While somebody else is at work the record is not what it will be.
        locked = wait_for_locks(node, self.system.LOCKS, self.wait)
        found = self.system.installed(node)
        known = [cell[len(_VERSION) :] for cell in kept.cells if cell.startswith(_VERSION)]
        cells: dict[str, Value] = {}
        for name in dict.fromkeys([*self.versions, *known]):
            one = found.get(name)
            cells[_VERSION + name] = None if one is None else one.cell
            cells[_HOLD + name] = one is not None and one.held
        left = self.system.interrupted(node, found)
        named = {*self.versions, *kept.entry.get("versions", ())}
        stays = tuple(name for name in known if name not in named)
        note = f"an earlier transaction was interrupted: {some_of(left, _TOLD)}" if left else ""
        ours = tuple(name for name in known if kept.cells[_VERSION + name].prior is None)
        return Reading(cells, note, _Detail(node, cells, left, locked, stays, ours=ours))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        wanted: dict[str, Value] = {_VERSION + name: version for name, version in self.versions.items()}
        for name in reading.detail.stays:
            stands = reading.cells[_VERSION + name]
            # What was left half-way is brought to its end; else it stays as it is.
            wanted[_VERSION + name] = (
                stands if _HALF_WAY.isdisjoint(str(stands).split()) else stands.split()[0]
            )
        for name, version in self.versions.items():
            if version is not None:
                wanted[_HOLD + name] = self.hold
        return wanted

    def same(self, now: Value, value: Value) -> bool:
        if self.several and isinstance(now, str) and isinstance(value, str):
            return set(value.split()) <= set(now.split())
        return bool(now == value)

    def as_before(self, now: Value, prior: Value) -> bool:
        return bool(now == prior)

    def ours(self, now: Value, written: Value) -> bool:
        # What was left half-way was left so by a transaction of ours that did not come to its end.
        return self.same(now, written) or (isinstance(now, str) and not _HALF_WAY.isdisjoint(now.split()))

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = _without_running(reading.detail.node, super().goal(reading, _with_torn_holds(kept)))
        holds = {name: self.hold for name, version in self.versions.items() if version is not None}
        return self._foreseen(reading, goal, {**_prior_holds(kept), **holds})

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        goal = super().release(reading, _with_torn_holds(kept), world)
        running = _of_running(reading.detail.node, goal.cells)
        if running:
            raise Refused(
                f"{some_of(running, _TOLD)} would go, and the kernel that runs is of it",
                "boot another kernel, then put back again",
            )
        # What is not in the record was held, or not, as the entry says.
        reading.detail.holds = _prior_holds(kept)
        return self._foreseen(reading, goal, reading.detail.holds)

    def _foreseen(self, reading: Reading, goal: Goal, holds: Mapping[str, bool]) -> Goal:
        """The goal with all that its transaction brings besides. Raises Refused for what it must not do.

        holds: how packages are to be held. dpkg takes a hold off what it moves, so one that stands is recorded too.
        """
        detail: _Detail = reading.detail
        target = _target(goal.cells)
        if not target:
            return goal
        taken_off = {
            _HOLD + name: holds[name]
            for name, version in target.items()
            if version is not None and name in holds and detail.cells[_HOLD + name] == holds[name]
        }
        goal = Goal({**goal.cells, **taken_off}, goal.notes, goal.dropped)
        missing = self._not_indexed(detail.node)
        if missing:
            why = f"its source {missing} is not there yet, so what else it brings is told after that"
            return Goal(goal.cells, (*goal.notes, why), goal.dropped)
        changes = self._simulated(detail.node, target)
        new = [change for change in changes if change.name not in target]
        more: dict[str, Value] = {}
        for change in new:
            detail.cells[_VERSION + change.name] = change.old
            more[_VERSION + change.name] = change.new
        told = (f"with them: {some_of((change.words for change in new), _TOLD)}",) if new else ()
        return Goal({**goal.cells, **more}, (*goal.notes, *told), goal.dropped)

    def _simulated(self, node: Node, target: Mapping[str, Optional[str]]) -> tuple[Change, ...]:
        changes: tuple[Change, ...] = self.system.simulate(node, target, self.recommends)
        moved = [
            change
            for change in changes
            if change.name not in (*target, *self.may_change) and change.old not in (None, change.new)
        ]
        if moved:
            words = some_of((one.words for one in moved), _TOLD)
            raise Refused(
                f"this would also move or remove packages that nobody named: {words}",
                "name them with their versions, or in may_change; or choose versions that go with what is there",
            )
        return changes

    def _not_indexed(self, node: Node) -> str:
        return next((path for path in self.sources if not _is_file(node, path)), "")

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if reading.detail.locked:
            raise Refused(reading.detail.locked, "see what it does; when it has ended, run again")

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        target = _target(goal)
        if reading.detail.left:
            self.system.recover(node, reading.detail.left, target)
        if target:
            self._carry_out(node, target, reading.detail.ours)
        self._set_holds(node, goal, reading.detail.holds)
        self._prove(node)
        return Done()

    def _carry_out(self, node: Node, target: Mapping[str, Optional[str]], ours: Sequence[str]) -> None:
        missing = self._not_indexed(node)
        if missing:
            raise Refused(
                f"{missing} is not there, so no index knows these versions", "write the sources first"
            )
        changes = self._simulated(node, target)
        more = [change for change in changes if change.name not in target]
        if more:
            raise Refused(
                f"the archives have changed since this was looked at: {some_of((one.words for one in more), _TOLD)}",
                "run it again",
            )
        self.system.carry_out(node, target, self.recommends, ours)
        found = self.system.installed(node)
        for name, version in target.items():
            one = found.get(name)
            standing = None if one is None else one.cell
            if not self.same(standing, version):
                raise Refused(
                    f"{name} was to be {version or 'gone'} and is {standing or 'not there'}",
                    "see the package system's log on the node",
                    changed=True,
                )

    def _set_holds(self, node: Node, goal: Mapping[str, Value], before: Mapping[str, bool]) -> None:
        """Holds as they should be: those of the goal, and those that a transaction may have taken off.

        before: those of the way back; a run that was killed may have left them as they were.
        """
        found = self.system.installed(node)
        wanted = {name: self.hold for name, version in self.versions.items() if version is not None}
        wanted.update(before)
        wanted.update({cell[len(_HOLD) :]: value for cell, value in goal.items() if cell.startswith(_HOLD)})
        here = {name: found[name] for name in wanted if name in found}
        free = [name for name, one in here.items() if wanted[name] and not one.held and one.cell is not None]
        kept = [name for name, one in here.items() if not wanted[name] and one.listed]
        for names, on in ((free, True), (kept, False)):
            if names:
                self.system.hold(node, names, on)

    def _prove(self, node: Node) -> None:
        """A hold that silently does nothing is worse than none: an upgrade is simulated. Raises Refused."""
        found = self.system.installed(node)
        held = {name for name in self.versions if name in found and found[name].held}
        if not held:
            return
        moving = [change.words for change in self.system.upgrade(node) if change.name in held]
        if moving:
            raise Refused(
                f"these are held, and a simulated upgrade would move them all the same: {some_of(moving, _TOLD)}",
                "see what overrides the hold (a preference above 1000, another front end)",
                changed=True,
            )

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        kind, _, name = cell.partition(":")
        if kind not in ("version", "hold") or PACKAGE.fullmatch(name) is None:
            raise InputError(where, f"unknown cell {cell!r}", "expected version:NAME or hold:NAME")
        if kind == "hold":
            if not isinstance(value, bool):
                raise expected(where, "true or false", value)
        elif value is not None:
            if not isinstance(value, str):
                raise expected(where, "text", value)
            if _STANDING.fullmatch(value) is None:
                raise InputError(where, f"found {value[:80]!r}", "expected a version")

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        acts = {
            "hold": any(cell.startswith(_HOLD) and reading.cells[cell] != v for cell, v in goal.items()),
            "install": any(
                reading.cells[_VERSION + n] is None for n, v in _target(goal).items() if v is not None
            ),
            "change": any(
                reading.cells[_VERSION + n] is not None for n, v in _target(goal).items() if v is not None
            ),
            "remove": any(value is None for value in _target(goal).values()),
        }
        return "+".join(word for word in ("install", "change", "remove", "hold") if acts[word])

    def name(self, cell: str) -> str:
        kind, _, name = cell.partition(":")
        return name if kind == "version" else f"{name} (held)"


def _of_running(node: Node, cells: Mapping[str, Value]) -> list[str]:
    """Packages that would go and are of the kernel that runs: Debian and Ubuntu have its release in their names."""
    try:
        with open(node.at(_RELEASE), encoding="utf-8") as file:
            release = file.read(256).strip()
    except OSError:
        return []
    names = [
        cell[len(_VERSION) :] for cell, value in cells.items() if cell.startswith(_VERSION) and value is None
    ]
    return [name for name in names if release and name.endswith(f"-{release}")]


def _without_running(node: Node, goal: Goal) -> Goal:
    """The goal without the removal of the running kernel, to which one falls back where the next one does not boot."""
    running = _of_running(node, goal.cells)
    if not running:
        return goal
    cells = {cell: value for cell, value in goal.cells.items() if cell[len(_VERSION) :] not in running}
    return Goal(
        cells, (*goal.notes, f"{some_of(running, _TOLD)} stays: the kernel that runs is of it"), goal.dropped
    )


def _prior_holds(kept: Kept) -> dict[str, bool]:
    return {cell[len(_HOLD) :]: known.prior for cell, known in kept.cells.items() if cell.startswith(_HOLD)}


def _with_torn_holds(kept: Kept) -> Kept:
    """The record, with a hold that a transaction took off and a run that was killed did not set again as ours."""
    cells = {
        cell: KeptCell(known.prior, [*known.written, False], True)
        if cell.startswith(_HOLD) and known.pending
        else known
        for cell, known in kept.cells.items()
    }
    return Kept(kept.entry, cells, kept.origin)


def _target(cells: Mapping[str, Value]) -> dict[str, Optional[str]]:
    """Packages to versions, of the cells of a goal; of one that was left half-way its whole version."""
    return {
        cell[len(_VERSION) :]: value if value is None else value.split()[0]
        for cell, value in cells.items()
        if cell.startswith(_VERSION)
    }


def _versions(fields: Fields) -> dict[str, Optional[str]]:
    where = f"{fields.where}.versions"
    given = mapping(fields.take("versions"), where)
    if not given:
        raise InputError(where, "names nothing", "name the packages")
    for name, version in given.items():
        if PACKAGE.fullmatch(name) is None:
            raise InputError(where, f"{name!r} is no name of a package")
        if version is not None and not isinstance(version, str):
            raise expected(f"{where}.{name}", "text", version)
        if version is not None and VERSION.fullmatch(version) is None:
            raise InputError(
                f"{where}.{name}",
                f"{version!r} is no version",
                "give it to the last digit: no * and no range",
            )
    return dict(given)


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    where = f"{fields.where}.{key}"
    given = fields.maybe(key)
    names = [] if given is None else sequence(given, where)
    for n, name in enumerate(names):
        if not isinstance(name, str):
            raise expected(f"{where}[{n}]", "text", name)
        if PACKAGE.fullmatch(name) is None:
            raise InputError(f"{where}[{n}]", f"{name!r} is no name of a package", "name it exactly: no *")
    return tuple(names)


def wait_for_locks(node: Node, paths: Sequence[str], seconds: float) -> str:
    """Waits until nobody holds any of these; the sentence that says who does when that takes longer, else ""."""
    deadline = time.monotonic() + seconds
    while True:
        held = _held_lock(node, paths)
        if held is None:
            return ""
        if time.monotonic() >= deadline:
            path, number = held
            holder = locks.process_words(number, node.at("/proc"))
            return f"{path} is held by {holder}, and was not let go in {seconds} s"
        time.sleep(_LOOK_AGAIN_SECONDS)


def _held_lock(node: Node, paths: Sequence[str]) -> Optional[tuple[str, int]]:
    for path in paths:
        number = locks.holder_of(path, node.at(path), node.at("/proc"))
        if number is not None:
            return path, number
    return None


def _is_file(node: Node, path: str) -> bool:
    try:
        with open(node.at(path), "rb"):
            return True
    except OSError:
        return False
