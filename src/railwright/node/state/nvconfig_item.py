"""The lasting settings of a NIC's firmware. What is set is in force after a reset of the card or a reboot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .. import nvconfig
from ..model import InputError
from .command import Said
from .fields import Fields, expected, mapping
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .port import device_of, folder, missing
from .program import tools_of
from .reboots import Reboots
from .switch_function import must_be_no_switch

_RESET = "mstfwreset"


@dataclass(frozen=True)
class _Card:
    """tool: which of the twins answers. settings: what the card has."""

    tool: str
    settings: Mapping[str, nvconfig.Setting]


class NvconfigItem(Item):
    """`{"kind": "nvconfig", "device": "0000:18:00.0", "settings": {"CNP_DSCP_P1": "48"}, "reset": false,
    "reboot": true}`.

    A cell is a setting; its value is what the next boot brings, as the tool shows it. What the card shows only with its
    advanced settings on (nvconfig.HIDDEN) is set in the run after these are in force. reset: false where a reset of the
    card would cut the node off, so that only a reboot is named. Nothing here resets a card.
    """

    kind = "nvconfig"
    turn = 5

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.settings = _settings(fields)
        self.may_reset = fields.flag("reset") is not False

    @property
    def id(self) -> str:
        return f"nvconfig:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("nvconfig", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        must_be_no_switch(node, self.device)
        if not os.path.isdir(folder(node, self.device)):
            return Reading({})  # the card is gone, and what it was set to with it
        card = _card(node, self.device)
        named = {*self.settings, *kept.cells, nvconfig.ADVANCED}
        cells = {name: told.next for name, told in card.settings.items() if name in named}
        return Reading(cells, note="; ".join(self._notes(card)), detail=card)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        card = reading.detail
        if not isinstance(card, _Card):
            raise missing(self.device)
        wanted: dict[str, Value] = {}
        absent = []
        for name, state, _ in nvconfig.states(card.settings, self.settings):
            if state == "absent":
                absent += [] if nvconfig.is_known(name) else [name]
            elif state != "hidden":
                wanted[name] = self.settings[name]
        # It stays on while it is needed: a run that put it back would hide again what the next one looks for.
        if nvconfig.HIDDEN & self.settings.keys() and nvconfig.ADVANCED in card.settings:
            wanted[nvconfig.ADVANCED] = "1"
        if absent:
            raise Refused(
                f"{self.device} has no setting {', '.join(absent)}",
                "correct the name, or leave it out for this kind of card: mstconfig -d ADDRESS -e q",
            )
        return wanted

    def same(self, now: Value, value: Value) -> bool:
        return nvconfig.same(now, value)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if nvconfig.NAME.fullmatch(cell) is None:
            raise InputError(where, f"{cell!r} is no name of a setting")
        if not isinstance(value, str):
            raise expected(where, "text", value)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        card: _Card = reading.detail
        pairs = [f"{name}={nvconfig.plain(value)}" for name, value in goal.items()]
        said = _run(node, [card.tool, "-d", self.device, "-y", "set", *pairs])
        if not said.ok:
            raise Refused(
                f"{self.device}: {card.tool} set {' '.join(pairs)}: {said.word}",
                "see what the card allows by hand",
                changed=self._has_moved(node, reading, goal),
            )
        after = _card(node, self.device)
        told = {name: after.settings[name].next for name in goal if name in after.settings}
        missed = [
            name for name, value in goal.items() if name not in told or not self.same(told[name], value)
        ]
        if missed:
            raise Refused(
                f"{self.device}: {', '.join(missed)} was set and does not read back",
                "see what the card allows by hand",
                changed=any(told.get(name) != reading.cells.get(name) for name in goal),
            )
        return Done(note=self._due(node))

    def boot_owed(self, node: Node, reading: Reading) -> Optional[bool]:
        """The card itself tells whether what it is set to is in force, whoever set it."""
        if not isinstance(reading.detail, _Card):
            return None
        settings = reading.detail.settings
        # A setting that the entry has dropped is in none of its cells any more.
        names = settings.keys() & {*reading.cells, *Reboots(node).in_force.get(self.id, {})}
        if any(settings[name].current != settings[name].next for name in names):
            return True
        told = [state for _, state, _ in nvconfig.states(settings, self.settings)]
        # Where nothing was to be set, nothing is owed; else what was written in this run decides.
        return False if set(told) <= {"ok", "absent"} else None

    def absent(self, cell: str) -> str:
        return f"{self.device} has no setting {cell}"

    def name(self, cell: str) -> str:
        return f"{self.device} {cell}"

    def _has_moved(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> bool:
        """Whether a tool that failed, or was stopped for its time, set something all the same."""
        try:
            after = _card(node, self.device).settings
        except (Refused, InputError):
            return False  # the tool's own failure is what is told
        return any(name in after and after[name].next != reading.cells.get(name) for name in goal)

    def _notes(self, card: _Card) -> list[str]:
        found: dict[str, list[str]] = {}
        for name, state, _ in nvconfig.states(card.settings, self.settings):
            found.setdefault(state, []).append(name)
        notes = []
        if "pending" in found:
            notes.append(
                f"{', '.join(found['pending'])}: set, in force after a reset of the card or a reboot"
            )
        if "absent" in found:
            notes.append(f"{', '.join(found['absent'])}: this card has none of that name, left out")
        if "hidden" in found:
            notes.append(
                f"{', '.join(found['hidden'])}: hidden until {nvconfig.ADVANCED} is in force; set by the run after that"
            )
        return notes

    def _due(self, node: Node) -> str:
        """What makes it real. The tool is asked for the levels and never told to reset."""
        if not self.may_reset:
            return "in force after a reboot (this card carries the node's way out: it is not to be reset)"
        said = _run(node, [_RESET, "-d", self.device, "q"])
        levels = [
            line.strip() for line in said.out.splitlines() if "-Supported" in line or "- Supported" in line
        ]
        if not said.ok or not levels:
            return "in force after a reboot, or a reset of the card on a drained node"
        return f"in force after a reboot, or on a drained node after `{_RESET} -d {self.device} reset` at {levels[0]}"


def _settings(fields: Fields) -> dict[str, str]:
    where = f"{fields.where}.settings"
    found = mapping(fields.take("settings"), where)
    for name, value in found.items():
        if nvconfig.NAME.fullmatch(name) is None:
            raise InputError(where, f"{name!r} is no name of a setting", "expected a form like CNP_DSCP_P1")
        if not isinstance(value, str):
            raise expected(f"{where}.{name}", "text", value)
        if nvconfig.VALUE.fullmatch(value) is None:
            raise InputError(f"{where}.{name}", f"{value!r} is no value", "expected a number or one word")
    if not found:
        raise InputError(where, "names no setting", "expected at least one")
    hidden = sorted(nvconfig.HIDDEN & found.keys())
    if hidden and not nvconfig.same("1", found.get(nvconfig.ADVANCED, "1")):
        raise InputError(
            f"{where}.{nvconfig.ADVANCED}", f"is off, and hides {hidden[0]}", "leave one of them out"
        )
    return {str(name): str(value) for name, value in found.items()}


def _card(node: Node, device: str) -> _Card:
    """Raises Refused where no tool answers for this device, or not in a form that is known."""
    for tool in nvconfig.TOOLS:
        said = _run(node, [tool, "-d", device, "-e", "q"])
        if said.code is None:
            continue
        if not said.ok:
            raise Refused(f"{device}: {tool}: {said.word}", f"look by hand: {tool} -d {device} -e q")
        return _Card(tool, nvconfig.parse(said.out, f"{tool} -d {device} -e q"))
    raise Refused(
        f"{device}: neither {' nor '.join(nvconfig.TOOLS)} is on the node",
        "install mstflint, or NVIDIA's MFT",
    )


def _run(node: Node, argv: list[str]) -> Said:
    return tools_of(node)(argv)
