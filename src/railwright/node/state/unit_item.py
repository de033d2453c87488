"""systemd units: enabled, started, and running with the configuration that lies on the node.

A restart is owed when a configuration that the unit depends on is newer than the unit's start, when this run writes
one, or when an earlier run set out to restart it and did not come to it. Nothing is handed on by notification, so a
run that is killed loses nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from ..model import InputError
from . import command, container_gpus
from .fields import Fields, absolute, expected, sequence, under
from .item import STAGE_STOP, STAGE_UNITS, Claim, Done, Goal, Item, Kept, Node, Reading, Runner, Value, World
from .outcome import Refused

# Where unit files and drop-ins lie: systemd.unit(5), "Unit File Load Path".
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
_NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9:_.\\@-]*\.(?:service|socket|timer|path|mount|target|slice|swap|automount)",
    re.ASCII,
)
_PROPERTIES = "ActiveEnterTimestamp,ActiveState,LoadState,NeedDaemonReload,RemainAfterExit,SubState,Type"
_ENABLED = ("enabled", "alias")
# What outlives a run. "loaded" and "configuration" are about now.
_LASTING = ("enabled", "active")
# The cells of the record and the words that may stand in them; is-enabled has one word more with every other systemd.
_RECORDED: Mapping[str, tuple[str, ...]] = {
    "enabled": (),
    "active": ("active", "inactive"),
    "configuration": ("current", "older"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# A unit may take its time to start; one that takes longer has hung, and the lock must not be held for ever.
_LONGEST_SECONDS = 900


def systemctl(arguments: list[str]) -> tuple[int, str, str]:
    """Runs the node's systemctl. Raises Refused when there is none or it does not come back."""
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    try:
        done = command.wait_for(["systemctl", *arguments], environment, _LONGEST_SECONDS, "replace")
    except FileNotFoundError:
        raise Refused(
            "the node has no systemctl on its PATH", "units need a node that systemd runs"
        ) from None
    except subprocess.TimeoutExpired:
        raise Refused(
            f"systemctl {' '.join(arguments)} did not come back in {_LONGEST_SECONDS} s",
            "see systemctl list-jobs on the node",
        ) from None
    return done.returncode, done.stdout, done.stderr


def is_systemds(path: str) -> bool:
    """Whether systemd has to read its files again when this one changes: units, drop-ins, system.conf.d."""
    return under(path, ("/etc/systemd", *UNIT_FOLDERS))


def runs_systemd(node: Node) -> bool:
    """As sd_booted(3): whether this node was booted by systemd and has its systemctl."""
    return node.systemctl is not None and os.path.isdir(node.at("/run/systemd/system"))


def reload(node: Node, world: World) -> None:
    """Lets systemd read its unit files again, when that is due. Raises Refused."""
    if world.reload and runs_systemd(node):
        container_gpus.must_stay(node)
        _run(node.systemctl, ["daemon-reload"])
    world.reload = False


class UnitItem(Item):
    """`{"kind": "systemd_unit", "name", "enabled": true, "state": "started", "restart_if_older_than": [path, ...]}`.

    Cells: "enabled" (a word of systemctl is-enabled), "active" ("active" or "inactive"), "loaded" ("stale" when
    systemd should read the unit again), "configuration" ("older" when a restart is owed).
    """

    kind = "systemd_unit"
    turn = 40
    unrecorded = ("loaded",)
    owed = ("configuration",)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.unit = fields.text("name")
        if _NAME.fullmatch(self.unit) is None:
            raise InputError(
                f"{fields.where}.name",
                f"{self.unit!r} is no unit",
                "expected a form like railwright-tune.service",
            )
        self.enabled = fields.flag("enabled")
        self.state = _state(fields)
        self.depends = _paths(fields)

    @property
    def id(self) -> str:
        return f"systemd_unit:{self.unit}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("systemd_unit", self.unit)]

    def withheld(self, world: World) -> str:
        failed = sorted(
            path
            for path in world.failed
            if path in self.depends or path in self._files() or self._drop_in(path)
        )
        return f"{self.unit} was left alone, since {failed[0]} could not be set" if failed else ""

    @property
    def rests_on(self) -> tuple[str, ...]:
        # A unit that still runs or is enabled, without its file, could not be stopped or disabled any more.
        return (*self._files(), *self.depends)

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        cells = {"enabled": _enabled_word(node, self.unit), "loaded": "current", "configuration": "current"}
        if not runs_systemd(node):
            return self._in_an_image(cells, world)
        properties = _show(node, self.unit)
        load = properties["LoadState"]
        if load == "not-found":
            return self._not_loaded(node, cells, world)
        cells["active"] = _activity(properties)
        if properties["NeedDaemonReload"] == "yes":
            cells["loaded"] = "stale"
        newer, notes = self._newer(node, properties, kept, world) if cells["active"] == "active" else ([], [])
        if newer:
            cells["configuration"] = "older"
            notes = [*notes, f"older than {', '.join(newer)}"]
        passing = properties["Type"] == "oneshot" and properties["RemainAfterExit"] == "no"
        return Reading(
            cells, note="; ".join(notes), detail="passing" if passing and load == "loaded" else load
        )

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail == "not-found":
            if self.enabled or self.state == "started":
                raise Refused(
                    f"the node has no unit {self.unit}", "install what brings it, or write its unit file"
                )
            return {}
        if reading.detail == "masked" and (self.enabled or self.state == "started"):
            raise Refused(f"{self.unit} is masked", f"if that is not meant so: systemctl unmask {self.unit}")
        if reading.detail in ("bad-setting", "error"):
            raise Refused(
                f"systemd cannot load {self.unit}: {reading.detail}", f"see systemctl status {self.unit}"
            )
        if self.enabled and reading.cells["enabled"] == "static":
            raise Refused(f"{self.unit} cannot be enabled: it has no [Install] section", "leave enabled out")
        if self.state == "started" and reading.detail == "passing":
            raise Refused(
                f"{self.unit} is a one-shot unit that does not stay active: whether it has run cannot be told",
                "give it RemainAfterExit=yes, or leave state out",
            )
        if self.state == "started" and reading.detail == "image" and not self.enabled:
            raise Refused(
                f"no systemd runs here, so {self.unit} cannot be started",
                "enable it, or run on a booted node",
            )
        return self._wanted(reading)

    def _wanted(self, reading: Reading) -> dict[str, str]:
        wanted = {"loaded": "current"}
        if self.enabled is not None:
            wanted["enabled"] = "enabled" if self.enabled else "disabled"
        if self.state is not None and "active" in reading.cells:
            wanted["active"] = "active" if self.state == "started" else "inactive"
        if self.state != "stopped":
            wanted["configuration"] = "current"
        return wanted

    def same(self, now: Value, value: Value) -> bool:
        if value == "enabled":
            return now in _ENABLED
        if value == "disabled":
            return now not in (*_ENABLED, "enabled-runtime")
        return bool(now == value)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in _RECORDED:
            raise InputError(where, f"unknown cell {cell!r}", f"known cells: {', '.join(_RECORDED)}")
        if not isinstance(value, str):
            raise expected(where, "text", value)
        if value not in _RECORDED[cell] and _RECORDED[cell]:
            raise InputError(where, f"found {value!r}", f"expected one of {', '.join(_RECORDED[cell])}")

    def name(self, cell: str) -> str:
        return f"{self.unit} ({cell})" if cell else self.unit

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        return super().goal(reading, _lasting(kept))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        goal = super().release(reading, _lasting(kept), world)
        stays = reading.cells.get("active") == "active" and goal.cells.get("active") != "inactive"
        # Only what was restarted for our files is restarted for theirs.
        if stays and "configuration" in kept.cells and reading.cells["configuration"] == "older":
            return Goal({**goal.cells, "configuration": "current"}, goal.notes)
        return goal

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        if not releasing:
            return {STAGE_UNITS: goal}
        # What we brought up goes down while its files are still there; what was up before comes up with its own.
        up = {cell: value for cell, value in goal.items() if value in (*_ENABLED, "active", "current")}
        return {STAGE_STOP: {cell: goal[cell] for cell in goal if cell not in up}, STAGE_UNITS: up}

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "+".join([*(["reload"] if "loaded" in goal else []), *_verbs(goal)])

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if runs_systemd(node) and ("enabled" in goal or "loaded" in goal):
            container_gpus.must_stay(node)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if "enabled" in goal and runs_systemd(node):
            # systemctl(1): enable and disable have systemd read its units again, as daemon-reload does.
            container_gpus.must_stay(node)
        changed = "loaded" in goal
        world.reload = world.reload or changed
        reload(node, world)
        for verb in _verbs(goal):
            try:
                if verb in ("start", "restart"):
                    # A unit that failed too often is not started again before its count is forgotten.
                    _run(node.systemctl, ["reset-failed", self.unit], may_fail=True)
                _run(node.systemctl, [verb, self.unit])
            except Refused as error:
                raise Refused(error.why, f"see journalctl -u {self.unit}", changed) from None
            changed = True
        self._verify(node, goal)
        return Done()

    def _verify(self, node: Node, goal: Mapping[str, Value]) -> None:
        if "enabled" in goal and not self.same(word := _enabled_word(node, self.unit), goal["enabled"]):
            raise Refused(
                f"{self.unit} should be {goal['enabled']} and is {word}", "see its [Install] section", True
            )
        if "active" in goal or "configuration" in goal:
            found = _activity(_show(node, self.unit))
            if not self.same(found, goal.get("active", "active")):
                raise Refused(
                    f"{self.unit} was set and is {found} now", f"see journalctl -u {self.unit}", True
                )

    def _not_loaded(self, node: Node, cells: dict[str, str], world: World) -> Reading:
        if not world.creating.isdisjoint(self._files()):
            return Reading({**cells, "enabled": "disabled", "active": "inactive"}, detail="new")
        if any(os.path.isfile(node.at(path)) for path in self._files()):  # written, but not read yet
            return Reading({**cells, "active": "inactive", "loaded": "stale"}, detail="new")
        return Reading({}, detail="not-found")

    def _in_an_image(self, cells: dict[str, str], world: World) -> Reading:
        """Without a running systemd (an image, a container) a unit can be enabled, and starts at boot."""
        if cells["enabled"] == "not-found":
            if world.creating.isdisjoint(self._files()):
                return Reading({}, detail="not-found")
            cells["enabled"] = "disabled"
        note = "no systemd runs here: it starts at boot" if self.state == "started" else ""
        return Reading(cells, note=note, detail="image")

    def _newer(
        self, node: Node, properties: Mapping[str, str], kept: Kept, world: World
    ) -> tuple[list[str], list[str]]:
        since = _nanoseconds(properties["ActiveEnterTimestamp"])
        now = time.time_ns()
        newer, notes = [], []
        changing = {os.path.realpath(node.at(path)) for path in world.changing}
        for path in self.depends:
            try:
                written = os.stat(node.at(path)).st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                written = None
            if os.path.realpath(node.at(path)) in changing:
                newer.append(path)
            elif written is not None and written > now:
                notes.append(f"{path} is dated in the future: whether a restart is owed cannot be told")
            elif written is not None and since is not None and written > since:
                newer.append(path)
        owed = kept.cells.get("configuration")
        if not newer and owed is not None and owed.pending:
            newer.append("what an earlier run wrote")
        return newer, notes

    def _files(self) -> tuple[str, ...]:
        template = re.sub(r"@.*(?=\.[a-z]+$)", "@", self.unit)
        return tuple(
            f"{folder}/{name}" for folder in UNIT_FOLDERS for name in dict.fromkeys((self.unit, template))
        )

    def _drop_in(self, path: str) -> bool:
        return any(path.startswith(f"{file}.d/") for file in self._files())


def _verbs(goal: Mapping[str, Value]) -> list[str]:
    """What systemctl is to do with the unit."""
    verbs = []
    if "enabled" in goal:
        verbs.append("enable" if goal["enabled"] in _ENABLED else "disable")
    if "active" in goal:
        verbs.append("start" if goal["active"] == "active" else "stop")
    elif "configuration" in goal:
        verbs.append("restart")
    return verbs


def _state(fields: Fields) -> Optional[str]:
    state = fields.maybe("state")
    if state is None or state in ("started", "stopped"):
        return None if state is None else str(state)
    raise InputError(f"{fields.where}.state", f"found {state!r}", 'expected "started", "stopped" or null')


def _paths(fields: Fields) -> tuple[str, ...]:
    where = f"{fields.where}.restart_if_older_than"
    listed = fields.maybe("restart_if_older_than")
    paths = [] if listed is None else sequence(listed, where)
    for n, path in enumerate(paths):
        if not isinstance(path, str):
            raise expected(f"{where}[{n}]", "text", path)
        absolute(path, f"{where}[{n}]")
    return tuple(paths)


def _run(runner: Optional[Runner], arguments: list[str], may_fail: bool = False) -> str:
    if runner is None:
        raise Refused("this root is no running node, so its units cannot be set", "leave the units out")
    status, out, error = runner(arguments)
    if status != 0 and not may_fail:
        said = " ".join((error or out).split()) or f"exit status {status}"
        raise Refused(f"systemctl {' '.join(arguments)}: {said}", "see systemctl status on the node")
    return out


def _enabled_word(node: Node, unit: str) -> str:
    # Not the property UnitFileState: systemd keeps that from when it last read the unit.
    words = _run(node.systemctl, ["is-enabled", unit], may_fail=True).split()
    return words[0] if words else "not-found"  # before systemd 253 it says so on standard error only


def _show(node: Node, unit: str) -> dict[str, str]:
    out = _run(node.systemctl, ["show", "--no-pager", "--timestamp=us+utc", "-p", _PROPERTIES, unit])
    properties = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    for name in ("LoadState", "ActiveState"):
        if name not in properties:
            raise Refused(f"systemctl show {unit} tells no {name}", "is systemd running on the node?")
    return {name: properties.get(name, "") for name in _PROPERTIES.split(",")}


def _lasting(kept: Kept) -> Kept:
    return Kept(kept.entry, {cell: known for cell, known in kept.cells.items() if cell in _LASTING})


def _activity(properties: Mapping[str, str]) -> str:
    state = properties["ActiveState"]
    if state in ("active", "reloading", "refreshing"):
        return "active"
    if state == "activating":
        return "inactive" if properties["SubState"] == "auto-restart" else "active"
    return "inactive"


def _nanoseconds(stamp: str) -> Optional[int]:
    """Of "Mon 2026-11-30 06:38:11.123456 UTC", as --timestamp=us+utc prints it since systemd 247; None when empty.

    By the wall clock of that moment, like the time of a file: the monotonic stamp would move with every clock step.
    """
    parts = stamp.split()
    if len(parts) != 4 or parts[3] != "UTC":
        return None
    try:
        moment = datetime.strptime(f"{parts[1]} {parts[2]}+0000", "%Y-%m-%d %H:%M:%S.%f%z")
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
