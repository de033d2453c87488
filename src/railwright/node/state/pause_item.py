"""802.3x pause of one port: it stops every class of traffic, and PFC is nothing beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..model import InputError
from ..qos import dcb
from . import port
from .fields import Fields, expected
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .port import ask, device_of, must_be_free, must_have_netdev, netdev_of

_WAYS = ("rx", "tx")


class PauseItem(Item):
    """`{"kind": "pause", "device": "0000:18:00.0", "rx": false, "tx": false}`: one cell for each way.

    Autonegotiation of pause is left as it is: mlx5 has none, and ethtool may fail for it alone though the rest was set.
    """

    kind = "pause"
    turn = 10

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.ways = {way: value for way in _WAYS if (value := fields.flag(way)) is not None}
        if not self.ways:
            raise InputError(fields.where, "names neither rx nor tx", "say which of them is on or off")

    @property
    def id(self) -> str:
        return f"pause:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("pause", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        netdev = netdev_of(node, self.device)
        if netdev is None:
            return Reading({}, detail=None)
        return Reading(dict(zip(_WAYS, _pause(node, netdev))), detail=netdev)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return self.ways

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in _WAYS:
            raise InputError(where, f"{cell!r} is no way of pause", "rx or tx")
        if not isinstance(value, bool):
            raise expected(where, "true or false", value)

    def withheld(self, world: World) -> str:
        return dark(world)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        must_have_netdev(node, self.device)
        must_be_free(node, self.device, "a change of 802.3x pause")

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        netdev = must_have_netdev(node, self.device)
        must_be_free(node, self.device, "a change of 802.3x pause")
        link = Link(node, netdev, world)
        words = [word for way, on in goal.items() for word in (way, "on" if on else "off")]
        said = ask(node, "ethtool", "-A", netdev, *words)
        # What was set counts, not the exit status.
        now = dict(zip(_WAYS, _pause(node, netdev)))
        if any(now[way] != on for way, on in goal.items()):
            moved = any(now[way] != was for way, was in reading.cells.items())
            raise Refused(
                f"{netdev}: 802.3x pause cannot be set: {said.word}", "see the kernel's log: dmesg", moved
            )
        return Done(note=link.back())

    def absent(self, cell: str) -> str:
        return f"{self.device} has no netdev: its driver is not bound, or the card is gone"

    def name(self, cell: str) -> str:
        return f"{self.device} pause {cell}"


def must_be_without_pause(node: Node, netdev: str) -> None:
    """Raises Refused while 802.3x pause is on: the driver refuses PFC, or takes every priority for lossless."""
    if any(_pause(node, netdev)):
        raise Refused(
            f"{netdev}: PFC is not set while 802.3x pause is on",
            f"turn it off first: ethtool -A {netdev} rx off tx off",
        )


def dark(world: World) -> str:
    """Why no link must be touched in this run any more; "" when nothing speaks against it."""
    return f"left alone, since the link of {world.dark[0]} did not come back" if world.dark else ""


class Link:
    """A port's link over a write that may take it away; made before the write."""

    def __init__(self, node: Node, netdev: str, world: World) -> None:
        self.node, self.netdev, self.world = node, netdev, world
        self.was_up = port.has_carrier(node, netdev)
        self.losses = port.losses(node, netdev)

    def back(self) -> str:
        """Waits for a link that was up before; what there is to say of it, "" when it is up again.

        Raises Refused when it stays away, and the run flaps no other. When all that a run may wait is spent, a link is
        not waited for, and that is said.
        """
        if not self.was_up:
            return ""
        total, start = self.node.link_seconds, time.monotonic()
        left = port.LINK_SECONDS if total is None else min(port.LINK_SECONDS, total - self.world.link_waits)
        came = left > 0 and port.await_carrier(self.node, self.netdev, left, self.losses)
        self.world.link_waits += time.monotonic() - start
        if came:
            return ""
        if total is not None and left < port.LINK_SECONDS:
            return f"{self.netdev}: its link was not waited for to the end: this run waits {total:.0f} s for all links"
        self.world.dark.append(self.netdev)
        raise Refused(
            f"{self.netdev}: what was asked for is set, and the link has not come back",
            "see the switch's port and the kernel's log: dmesg",
            changed=True,
        )


def _pause(node: Node, netdev: str) -> tuple[bool, bool]:
    said = ask(node, "ethtool", "-a", netdev)
    if said.code is None:
        raise Refused("the node has no ethtool", "install ethtool")
    if not said.ok:
        raise Refused(
            f"{netdev}: its 802.3x pause cannot be read: {said.word}", "no pause to be managed here"
        )
    return dcb.pause(said.out, f"ethtool -a {netdev}")
