"""RoCE's congestion control of one port: the marks of its notifications, and DCQCN's parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ..model import InputError
from ..qos import congestion
from .fields import Fields, expected, mapping
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .kernel_items import inside, must_take_writes, read_value, write_value
from .outcome import Refused
from .port import device_of, netdev_of

_PLACES = ("/sys",)


class CongestionItem(Item):
    """`{"kind": "congestion", "device": "0000:18:00.0", "values": {"np_cnp_dscp": 48, "rp_enable_3": 1}}`.

    Names are those of `qos.congestion.SYSFS`. A cell is a value. What this driver shows nowhere is told and left: the
    card's firmware holds it then.
    """

    kind = "congestion"
    turn = 12

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.values: dict[str, int] = {}
        for name, value in mapping(fields.take("values"), f"{fields.where}.values").items():
            self.check_cell(name, value, f"{fields.where}.values.{name}")
            self.values[name] = value
        if not self.values:
            raise InputError(f"{fields.where}.values", "is empty", "leave the entry out")

    @property
    def id(self) -> str:
        return f"congestion:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("congestion", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        netdev = netdev_of(node, self.device)
        if netdev is None:
            return Reading({}, detail=None)
        found: dict[str, tuple[str, int]] = {}
        for name in dict.fromkeys((*self.values, *kept.cells)):
            held = _held(node, name, netdev, self.device)
            if held is not None:
                found[name] = held
        hidden = [name for name in self.values if name not in found]
        note = f"{netdev} shows no {', '.join(hidden)}: the card's firmware decides" if hidden else ""
        cells = {name: value for name, (_, value) in found.items()}
        return Reading(cells, note, {name: path for name, (path, _) in found.items()})

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail is None:
            raise Refused(f"{self.device} has no netdev", "see what has become of its driver: dmesg")
        return {name: value for name, value in self.values.items() if name in reading.cells}

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in congestion.SYSFS:
            raise InputError(where, f"{cell!r} is none of DCQCN's", "see docs/lossless.md")
        if isinstance(value, bool) or not isinstance(value, int):
            raise expected(where, "a whole number", value)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        for name in goal:
            must_take_writes(reading.detail[name])

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        changed = False
        for name, value in goal.items():
            path = reading.detail[name]
            try:
                write_value(path, str(value))
                now = _number(path)
            except OSError as error:
                raise Refused(
                    f"{self.device}: {name} cannot be set to {value}: {error.strerror}",
                    "a kernel in lockdown refuses it: let the firmware hold it (nic_firmware)",
                    changed,
                ) from error
            changed = True
            if now != value:
                raise Refused(
                    f"{self.device}: {name} was set to {value} and reads back as {now}",
                    "give a value that the card takes",
                    changed,
                )
        return Done()

    def name(self, cell: str) -> str:
        return f"{self.device} {cell}"


def _held(node: Node, name: str, netdev: str, device: str) -> Optional[tuple[str, int]]:
    """The file that holds a value on this node, and the value; None where none does."""
    for place in congestion.places(name, netdev, device):
        if os.path.isfile(node.at(place)):
            path = inside(node, place, _PLACES)
            try:
                return path, _number(path)
            except PermissionError:  # a kernel in lockdown shows the file and no more
                return None
    return None


def _number(path: str) -> int:
    text = read_value(path) or ""
    if not text.isdecimal() or len(text) > 20:
        raise Refused(f"{path} holds {text[:40]!r}", "expected a whole number")
    return int(text)
