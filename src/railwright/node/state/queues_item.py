"""Queues of a network port: channels, rings, coalescing, and which CPUs a queue is for. A boot forgets them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from .. import ethtool
from ..model import InputError, format_cpulist, parse_cpulist
from . import port
from .fields import Fields, expected
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .kernel_items import inside, must_take_writes, read_value, write_value
from .outcome import Refused
from .pause_item import Link
from .program import tools_of

_QUEUE = re.compile(r"[rt]x-([0-9]{1,5})", re.ASCII)
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{8})*", re.ASCII)
_LARGEST = 2**32 - 1


class _Group(Item):
    """Numbers of one structure of ethtool's; a cell is one of them."""

    group: ClassVar[ethtool.Group]
    # The names in an entry, and under which one the driver tells the most of it.
    numbers: ClassVar[Mapping[str, str]]
    _remedy: ClassVar[str] = "ask for what the driver makes of it"

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = port.device_of(fields)
        self.values = {name: self._number(fields, name) for name in self.numbers if fields.has(name)}
        if not self.values:
            raise InputError(fields.where, "sets nothing", f"expected one of {', '.join(self.numbers)}")

    def _number(self, fields: Fields, name: str) -> int:
        return fields.number(name, 1, _LARGEST)

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [(self.kind, self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        netdev = port.netdev_of(node, self.device)
        if netdev is None:
            return Reading({}, detail=(node, None, {}))
        now = _read(node, netdev, self.group)
        named = {*self.values, *kept.cells}
        cells = {name: now[name] for name in self.numbers if name in named and self._exposed(now, name)}
        return Reading(cells, detail=(node, netdev, now))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        node, netdev, now = reading.detail
        if netdev is None:
            port.must_have_netdev(node, self.device)
        for name, value in self.values.items():
            most = now.get(self.numbers[name], 0)
            if most and value > most:
                raise Refused(
                    f"{netdev} has at most {most} {self._noun} {name}, asked for {value}", "ask for fewer"
                )
        return dict(self.values)

    def same(self, now: Value, value: Value) -> bool:
        return bool(now == value)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell not in self.numbers:
            raise InputError(where, f"{cell!r} is none of {', '.join(self.numbers)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise expected(where, "a whole number", value)
        if not 0 <= value <= _LARGEST:
            raise InputError(where, f"{value} is out of range", f"expected 0 to {_LARGEST}")

    def touches(self, reading: Reading, goal: Mapping[str, Value]) -> tuple[str, ...]:
        return (f"/sys/class/net/{reading.detail[1]}/queues",) if self._requeues(goal) else ()

    def withheld(self, world: World) -> str:
        if world.dark and self._requeues(self.values):
            return f"{self.id} was left alone, since the link of {world.dark[0]} did not come back"
        return ""

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if self._requeues(goal):
            port.must_be_free(node, self.device, f"a change of {self._noun}")

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if self._requeues(goal):
            # A job may have begun since this was looked at.
            port.must_be_free(node, self.device, f"a change of {self._noun}")
        _, netdev, _ = reading.detail
        link = Link(node, netdev, world) if self._requeues(goal) else None
        try:
            self._set(netdev, goal)
        except OSError as error:
            wish = ", ".join(f"{name} {value}" for name, value in goal.items())
            raise Refused(
                f"{netdev}: the driver refuses {self._noun} {wish}: {error.strerror}",
                "give values that it takes: see ethtool -l, -g and -c",
            ) from error
        note = "" if link is None else link.back()
        now = _read(node, netdev, self.group)
        other = [
            f"{name} is {now[name]}, asked for {value}" for name, value in goal.items() if now[name] != value
        ]
        if other:
            raise Refused(
                f"{netdev}: {'; '.join(other)}",
                self._remedy,
                changed=any(now[name] != reading.cells[name] for name in goal),
            )
        return Done(note=note)

    def absent(self, cell: str) -> str:
        return f"{self.device}: its driver does not expose {self._noun} {cell}"

    def name(self, cell: str) -> str:
        return f"{self.device} {self._noun} {cell}"

    def _requeues(self, names: Iterable[str]) -> bool:
        """Whether a change of these makes the port's queues anew: its link may go down for a moment."""
        return True

    def _set(self, netdev: str, goal: Mapping[str, int]) -> None:
        ethtool.write(netdev, self.group, goal)

    @property
    def _noun(self) -> str:
        return self.kind.rpartition("_")[2]

    def _exposed(self, now: Mapping[str, int], name: str) -> bool:
        # Most drivers leave what they do not have at 0; a number with a bound of 0 does not exist.
        return self.numbers[name] not in now or now[self.numbers[name]] != 0


class ChannelsItem(_Group):
    """`{"kind": "ethtool_channels", "device": "0000:18:00.0", "combined": 8}` (also rx, tx), as `ethtool -L`."""

    kind = "ethtool_channels"
    turn = 6
    group = ethtool.CHANNELS
    numbers: ClassVar[Mapping[str, str]] = {"combined": "most_combined", "rx": "most_rx", "tx": "most_tx"}


class RingsItem(_Group):
    """`{"kind": "ethtool_rings", "device": "0000:18:00.0", "rx": 8192, "tx": 8192}`, as `ethtool -G`."""

    kind = "ethtool_rings"
    turn = 7
    group = ethtool.RINGS
    numbers: ClassVar[Mapping[str, str]] = {"rx": "most_rx", "tx": "most_tx"}


class CoalesceItem(_Group):
    """`{"kind": "ethtool_coalesce", "device": "0000:18:00.0", "adaptive_rx": 0, "rx_usecs": 8}`, as `ethtool -C`.

    Also adaptive_tx, tx_usecs, rx_frames, tx_frames. Microseconds; adaptive is 0 or 1.
    """

    kind = "ethtool_coalesce"
    turn = 8
    group = ethtool.COALESCE
    numbers: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("adaptive_rx", "adaptive_tx", "rx_usecs", "tx_usecs", "rx_frames", "tx_frames"), ""
    )
    _remedy = (
        "ask for what the driver makes of it; with adaptive_rx or adaptive_tx on it chooses these itself"
    )

    def _number(self, fields: Fields, name: str) -> int:
        return fields.number(name, 0, 1 if _is_switch(name) else _LARGEST)

    def _requeues(self, names: Iterable[str]) -> bool:
        # mlx5 opens all channels anew for it (Linux up to 6.9, en_ethtool.c, mlx5e_ethtool_set_coalesce).
        return any(map(_is_switch, names))

    def _set(self, netdev: str, goal: Mapping[str, int]) -> None:
        # Where a switch moves, mlx5 takes its own numbers instead of those of the same call (as above).
        switches = {name: value for name, value in goal.items() if _is_switch(name)}
        numbers = {name: value for name, value in goal.items() if not _is_switch(name)}
        for part in (switches, numbers):
            if part:
                ethtool.write(netdev, self.group, part)


class QueueCpusItem(Item):
    """`{"kind": "queue_cpus", "device": "0000:18:00.0", "steering": "xps", "cpus": "4,6"}`.

    xps: transmit queues are for these CPUs in turn, as the interrupts are; rps: the receive queues hand packets on to
    them, all alike, and with "" to none. A cell is a queue ("tx-0"); its value is a cpulist.
    """

    kind = "queue_cpus"
    turn = 31
    follows_queues = True

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = port.device_of(fields)
        self.steering = fields.text("steering")
        if self.steering not in ("xps", "rps"):
            raise InputError(f"{fields.where}.steering", f"found {self.steering!r}", "expected xps or rps")
        self.cpus = parse_cpulist(fields.text("cpus"), f"{fields.where}.cpus")
        if self.steering == "xps" and not self.cpus:
            raise InputError(f"{fields.where}.cpus", "no CPU is named", "expected a form like 4,6,8")

    @property
    def id(self) -> str:
        return f"queue_cpus:{self.device}:{self.steering}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("queue_cpus", self.device, self.steering)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        netdev = port.netdev_of(node, self.device)
        if netdev is None:
            return Reading({}, detail=(None, False, node))
        folder = f"/sys/class/net/{netdev}/queues"
        prefix = "tx-" if self.steering == "xps" else "rx-"
        queues = [
            name for name in os.listdir(node.at(folder)) if _QUEUE.fullmatch(name) and name.startswith(prefix)
        ]
        cells = {}
        for queue in sorted(queues, key=lambda name: int(name[3:])):
            text = read_value(node.at(f"{folder}/{queue}/{self.steering}_cpus"))
            if text is not None:
                cells[queue] = _cpulist(text, f"{folder}/{queue}/{self.steering}_cpus")
        note = "queues change in this run: decided after that" if world.requeued else ""
        return Reading(cells, note, (folder, world.requeued, node))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail[1]:
            return dict(reading.cells)
        if reading.detail[0] is None:
            port.must_have_netdev(reading.detail[2], self.device)
        if not reading.cells:
            raise Refused(
                self.absent(""), "leave it out for this port: the kernel or driver has no such steering"
            )
        if self.steering == "rps":
            return dict.fromkeys(reading.cells, format_cpulist(self.cpus))
        return {queue: str(self.cpus[n % len(self.cpus)]) for n, queue in enumerate(reading.cells)}

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        if reading.detail[1]:
            return Goal({})
        return super().goal(reading, kept)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if _QUEUE.fullmatch(cell) is None:
            raise InputError(where, f"{cell!r} is no queue")
        if not isinstance(value, str):
            raise expected(where, "text", value)
        parse_cpulist(value, where)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        for queue in goal:
            must_take_writes(self._path(node, reading, queue))

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        for place, (queue, cpus) in enumerate(goal.items()):
            path = self._path(node, reading, queue)
            try:
                write_value(path, _mask(parse_cpulist(cpus, self.id)))
            except OSError as error:
                raise Refused(
                    f"{self.name(queue)}: the kernel refuses {cpus!r}: {error.strerror}",
                    "plan again with the CPUs and queues that are there",
                    changed=place > 0,
                ) from error
            now = _cpulist(read_value(path) or "", path)
            if not self.same(now, cpus):
                raise Refused(
                    f"{self.name(queue)}: {cpus!r} was written and reads back as {now!r}",
                    "plan again with the CPUs that are there",
                    changed=True,
                )
        return Done()

    def absent(self, cell: str) -> str:
        return f"{self.device} has no queue with {self.steering}_cpus"

    def name(self, cell: str) -> str:
        return f"{self.device} {cell} {self.steering}"

    def _path(self, node: Node, reading: Reading, queue: str) -> str:
        return inside(node, f"{reading.detail[0]}/{queue}/{self.steering}_cpus", ("/sys",))


def _read(node: Node, netdev: str, group: ethtool.Group) -> dict[str, int]:
    """Raises Refused where the driver does not expose it and OSError."""
    tools_of(node)
    try:
        found = ethtool.read(netdev, group)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        raise Refused(f"{netdev}: {error.strerror}", "see what has become of the port: ip link") from error
    if found is None:
        raise Refused(f"{netdev}: its driver does not expose this", "leave it out for this port")
    return found


def _is_switch(name: str) -> bool:
    return name.startswith("adaptive")


def _cpulist(mask: str, where: str) -> str:
    """A CPU mask ("00000000,0000ffff") as a cpulist. Raises Refused."""
    if _MASK.fullmatch(mask) is None:
        raise Refused(f"{where}: found {mask[:80]!r}, expected a CPU mask", "see the kernel's log: dmesg")
    value = int(mask.replace(",", ""), 16)
    return format_cpulist(cpu for cpu in range(value.bit_length()) if value >> cpu & 1)


def _mask(cpus: Iterable[int]) -> str:
    """CPUs as the kernel takes them: groups of 32 bits, separated by commas."""
    value = sum(1 << cpu for cpu in cpus)
    groups: list[str] = []
    while value or not groups:
        groups.append(f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    return ",".join(reversed(groups))
