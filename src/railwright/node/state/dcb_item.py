"""The DCB of one port: who owns DCBX, trust and the map of code points, scheduling, rates, PFC, cable and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..model import InputError
from ..model.qos import same
from . import dcb_tools
from .fields import Fields
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .pause_item import Link, dark, must_be_without_pause
from .port import device_of, must_be_free, must_have_netdev, netdev_of

# Cells in the order in which they are set; see `_steps`.
_ORDER = ("dcbx", "trust", "app", "ets", "rate", "cable", "buffer", "pfc")
_FLAP = "a change of PFC"


class DcbItem(Item):
    """`{"kind": "dcb", "device": "0000:18:00.0", "dcbx": "host ieee", "trust": "dscp", "app": {"26": 3, "48": 6},
    "ets": {"prio_tc": [...], "tc_tsa": [...], "tc_bw": [...]}, "rate": [...], "pfc": [3], "cable": 30,
    "buffer": {"prio_buffer": [...], "size": [...]}}`; each part may be left out. Values as in `dcb_tools.PARTS`.

    A cell is a part. "trust" is written only where the driver has it for itself; elsewhere it follows from the map.
    "buffer" is told and left where the firmware alone deals out buffers. A change of PFC takes the link away: it is
    made only when something differs, while nobody is at work on the port, and the next port waits until the link is
    back.
    """

    kind = "dcb"
    turn = 11

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.parts: dict[str, Any] = {}
        for part in _ORDER:
            if fields.has(part):
                value = fields.take(part)
                dcb_tools.check_value(part, value, f"{fields.where}.{part}")
                self.parts[part] = value
            else:
                fields.maybe(part)
        if not self.parts:
            raise InputError(fields.where, "names nothing to be set", f"one of {', '.join(_ORDER)}")

    @property
    def id(self) -> str:
        return f"dcb:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("dcb", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        netdev = netdev_of(node, self.device)
        if netdev is None:
            return Reading({}, detail=None)
        tool = dcb_tools.backend(node, netdev)
        cells = tool.read([part for part in _ORDER if part in self.parts or part in kept.cells])
        left = "buffer" in self.parts and "buffer" not in cells
        return Reading(
            cells, f"{netdev} has no buffers to be set: its firmware sizes them" if left else "", netdev
        )

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        wanted = dict(self.parts)
        for part in ("trust", "buffer") if reading.detail is not None else ():
            if part not in reading.cells:
                wanted.pop(part, None)
        return wanted

    def same(self, now: Value, value: Value) -> bool:
        return same(_part(value), now, value)

    def as_before(self, now: Value, prior: Value) -> bool:
        return bool(now == prior)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in _ORDER:
            raise InputError(where, f"unknown cell {cell!r}", f"one of {', '.join(_ORDER)}")
        dcb_tools.check_value(cell, value, where)

    def withheld(self, world: World) -> str:
        return dark(world)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        must_have_netdev(node, self.device)
        if "pfc" in goal:
            must_be_free(node, self.device, _FLAP)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        netdev = must_have_netdev(node, self.device)
        tool = dcb_tools.backend(node, netdev)
        changed = False
        notes: list[str] = []
        for part, value in _steps(goal, reading):
            try:
                if part == "pfc":
                    notes.append(self._set_pfc(node, netdev, tool, value, world))
                elif not (changed and part == "buffer" and _holds(tool, part, value)):
                    tool.set(part, value)
                self._must_hold(tool, netdev, part, value)
            except Refused as error:
                raise Refused(error.why, error.remedy, changed or error.changed) from error
            changed = True
        return Done(note="; ".join(filter(None, notes)))

    def _set_pfc(self, node: Node, netdev: str, tool: dcb_tools.Backend, value: Value, world: World) -> str:
        """What there is to say of the link. Raises Refused."""
        must_be_free(node, self.device, _FLAP)
        if value:
            must_be_without_pause(node, netdev)
        link = Link(node, netdev, world)
        try:
            tool.set("pfc", value)
        except Refused:
            # mlx5 sets PFC and toggles the port before it counts the buffers anew, and that may fail (en_dcbnl.c,
            # ieee_setpfc): what stands there then counts, and buffers come after.
            if not _holds(tool, "pfc", value):
                raise
        return link.back()

    def _must_hold(self, tool: dcb_tools.Backend, netdev: str, part: str, value: Value) -> None:
        now = tool.read([part]).get(part)
        if now is None or not same(part, now, value):
            raise Refused(
                f"{netdev}: {part} was set to {value!r} and reads back as {now!r}",
                "two owners write it, or the driver takes other values: see dmesg",
                changed=True,
            )

    def absent(self, cell: str) -> str:
        return f"{self.device} tells no {cell}: its driver is not bound, or does not have it"

    def name(self, cell: str) -> str:
        return f"{self.device} {cell}"


def _holds(tool: dcb_tools.Backend, part: str, value: Value) -> bool:
    now = tool.read([part]).get(part)
    return now is not None and same(part, now, value)


def _steps(goal: Mapping[str, Value], reading: Reading) -> list[tuple[str, Value]]:
    """The parts of a goal, and their values, in the order in which they are set.

    mlx5 refuses a lossless buffer that is too small for the cable at every step (torvalds/linux
    mlx5/core/en/port_buffer.c, update_xoff_threshold; a new map of priorities is held against the old sizes). So a
    buffer is made while its priorities are lossy, PFC comes after it, a longer cable after a larger buffer and a
    shorter one before a smaller; what PFC protected and shall not is let go before all else.
    """
    order = list(_ORDER)
    if "cable" in goal and goal["cable"] > reading.cells.get("cable", 0):
        order.remove("cable")
        order.insert(order.index("buffer") + 1, "cable")
    if "dcbx" in goal and "host" not in goal["dcbx"].split():
        # The firmware follows the switch from there on.
        order.remove("dcbx")
        order.append("dcbx")
    steps = [(part, goal[part]) for part in order if part in goal]
    if "pfc" not in goal:
        return steps
    kept = [prio for prio in reading.cells["pfc"] if prio in goal["pfc"]]
    if kept != reading.cells["pfc"]:
        if kept == goal["pfc"]:
            steps.remove(("pfc", kept))
        steps.insert(0, ("pfc", kept))
    buffer = goal.get("buffer", reading.cells.get("buffer"))
    if kept != goal["pfc"] and buffer is not None:
        # The firmware may deal out buffers anew when PFC changes.
        steps.insert(steps.index(("pfc", goal["pfc"])) + 1, ("buffer", buffer))
    return steps


def _part(value: Value) -> str:
    """The part that a value is of, by its form: `same` is not told."""
    if isinstance(value, str):
        return "trust" if value in ("dscp", "pcp") else "dcbx"
    if isinstance(value, dict):
        return "ets" if "prio_tc" in value else "buffer" if "prio_buffer" in value else "app"
    return "pfc"
