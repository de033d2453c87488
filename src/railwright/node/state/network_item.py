"""The rails' network: the back-end has read its files, and the rails have what these say.

The files are items of their own; this one comes after them. It tells the back-end when a file changed, and of a rail
that has lost its address, rule or route without one. Before the first write it arms the way back (`confirm`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..model import InputError
from . import backends, confirm, port
from .fields import Fields, absolute, expected, sequence
from .item import STAGE_STOP, STAGE_UNITS, Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .kernel_items import read_value
from .outcome import Failure, Outcome, Refused
from .program import tools_of
from .rail_port import MAIN, NOWHERE, RailPort, Told, ask, ports_of
from .record import Record

_GUARD, _CONFIGURATION, _RAILS = "guard", "configuration", "rails"
_NONE, _ARMED = "none", "armed"
_CURRENT, _OLDER, _RELEASED = "current", "older", "released"
_IN_FORCE, _NO_LINK = "in force", "no carrier"
_MODES = ("subnet", "flat")
_LONGEST_CONFIRM = 3600
# A back-end sets addresses within a second of its reload; NetworkManager waits for a link up to six.
_SECONDS = 20.0
_BETWEEN = 0.25


class NetworkItem(Item):
    """`{"kind": "network", "backend", "mode", "files": [path, ...], "confirm_seconds": 120, "ports": [port, ...]}`.

    A port: `{"rail", "device", "netdev", "name", "address", "gateway", "table", "priority", "mtu", "rdma_mtu"}`.
    Cells: "configuration" ("older" when a file changed that the back-end has not read), "guard" ("armed" while a change
    is unconfirmed), "rails" ("in force", or what which of them lacks).
    """

    kind = "network"
    turn = 35
    unrecorded = (_GUARD, _RAILS)
    owed = (_CONFIGURATION,)

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.backend = fields.one_of("backend", backends.BACKENDS)
        self.mode = fields.one_of("mode", _MODES)
        self.seconds = fields.number("confirm_seconds", 0, _LONGEST_CONFIRM)
        self.files = _files(fields)
        self.ports = ports_of(fields)
        self._before: tuple[str, ...] = ()
        self.guarded = self.seconds > 0
        self._releasing = False

    @property
    def id(self) -> str:
        return "network:rails"

    def intended(self, kept: Kept) -> Mapping[str, Any]:
        given = {rail.given for rail in self.ports}
        earlier = zip(kept.entry.get("ports", ()), _known(kept))
        files = [path for path in kept.entry.get("files", ()) if path not in self.files]
        ports = [entry for entry, rail in earlier if rail.given not in given]
        return {**self.entry, "files": [*self.files, *files], "ports": [*self.entry["ports"], *ports]}

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("network", "rails")]

    def paths(self) -> tuple[str, ...]:
        """Its files: where there is no way back, none of them may change."""
        return (*self.files, *self._before)

    def withheld(self, world: World) -> str:
        failed = sorted(world.failed.intersection(self.files))
        return f"the network was left alone, since {failed[0]} could not be set" if failed else ""

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        self._before = tuple(path for path in kept.entry.get("files", ()) if path not in self.files)
        self.guarded = self.seconds > 0 and not node.alone
        known = kept.cells.get(_CONFIGURATION)
        changing = self._changing(world)
        owed = bool(changing) or (known is not None and known.pending)
        cells: dict[str, Value] = {_GUARD: _NONE, _CONFIGURATION: _OLDER if owed else _CURRENT}
        notes = [f"changed: {', '.join(changing)}"] if changing else []
        standing = {} if node.tools is None else self._standing(node)
        if standing:
            lacking = [f"{device} {word}" for device, word in standing.items() if word.startswith("lacks")]
            cells[_RAILS] = "; ".join(lacking) or _IN_FORCE
            notes += _without_link(standing)
        before = _known(kept)
        lost = [rail for rail in before if rail.given not in {rail.given for rail in self.ports}]
        # After a run that did not come to its end the record names what may not stand yet.
        sure = [
            rail.given
            for rail in before
            if known is None or not known.pending or standing.get(rail.device) == _IN_FORCE
        ]
        new = [rail for rail in self.ports if rail.given not in sure]
        return Reading(cells, "; ".join(notes), (standing, lost, new))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        wanted = {_CONFIGURATION: _CURRENT}
        return {**wanted, _RAILS: _IN_FORCE} if _RAILS in reading.cells else wanted

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, Kept(kept.entry))
        if _CONFIGURATION in goal.cells and self.guarded:
            return Goal({_GUARD: _ARMED, **goal.cells}, goal.notes)
        return goal

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        """The back-end reads the files that were put back, and what it leaves of ours goes; that has a way back too."""
        self._releasing = True
        if _CONFIGURATION not in kept.cells:
            return Goal({})
        return Goal({**({_GUARD: _ARMED} if self.guarded else {}), _CONFIGURATION: _RELEASED})

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        guard = {cell: value for cell, value in goal.items() if cell == _GUARD}
        return {STAGE_STOP: guard, STAGE_UNITS: {cell: goal[cell] for cell in goal if cell not in guard}}

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        tools_of(node)
        if goal.get(_CONFIGURATION) == _CURRENT:
            self._must_have_own_tables(node, reading)
        if not (self._releasing and self.guarded):
            self._must_leave_the_way_in(node)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        if _GUARD in goal:
            self._arm(node, reading, world)
            return Done()
        standing, lost, _ = reading.detail
        if _CONFIGURATION in goal:
            if not self.guarded:
                confirm.forget(node)
            else:
                confirm.count(node, confirm.TOLD)
            backends.reload(node, self.backend, self._present(world), self._dark(node))
        else:
            self._again(node, standing)
        if goal.get(_CONFIGURATION) == _RELEASED:
            _take_away(node, self.ports, ())
            return Done()
        _take_away(node, lost, self.ports)
        return self._verify(node, _CONFIGURATION in goal)

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        verbs = ["reload"] if _CONFIGURATION in goal else ["configure"]
        return "+".join([*(["arm"] if _GUARD in goal else []), *verbs])

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if cell != _CONFIGURATION:
            raise InputError(where, f"unknown cell {cell!r}", f"known cells: {_CONFIGURATION}")
        if value not in (_CURRENT, _OLDER, _RELEASED):
            raise InputError(where, f"found {value!r}", f"expected {_CURRENT} or {_OLDER}")

    def name(self, cell: str) -> str:
        return f"the rails' network ({cell})" if cell else "the rails' network"

    @property
    def change(self) -> Mapping[str, Any]:
        """This change and no other, to know again what was undone. The rails' names may be others after a boot."""
        data = {key: self.entry.get(key) for key in ("backend", "mode", "confirm_seconds")}
        ports = [
            {key: value for key, value in entry.items() if key not in ("netdev", "name")}
            for entry in self.entry["ports"]
        ]
        return {**data, "ports": ports}

    # -- what stands there --

    def _changing(self, world: World) -> list[str]:
        return sorted({*self.files, *self._before} & world.changing)

    def _present(self, world: World) -> list[str]:
        return [path for path in self.files if path in world.changing]

    def _standing(self, node: Node) -> dict[str, Value]:
        """What each port that is there has, or lacks. Raises Refused where `ip` does not tell."""
        netdevs = {rail.device: port.netdev_of(node, rail.device) for rail in self.ports}
        if not any(netdevs.values()):
            return {}
        told = ask(node)
        cells = {}
        for rail in self.ports:
            netdev = netdevs[rail.device]
            if netdev is not None:
                cells[rail.device] = self._word(node, rail, netdev, told)
        return cells

    def _word(self, node: Node, rail: RailPort, netdev: str, told: Told) -> str:
        lacks = []
        if str(rail.interface) not in told.addresses.get(netdev, ()):
            lacks.append(f"the address {rail.interface}")
        if (rail.source, str(rail.table), rail.priority) not in told.rules:
            lacks.append(f"the rule from {rail.source} to table {rail.table}")
        lacks += [
            f"the {route[2]} route in table {rail.table}"
            if route[2] == NOWHERE
            else f"the route to {route[2]} in table {rail.table}"
            for route in rail.routes(netdev)
            if route not in told.routes
        ]
        if not lacks:
            return _IN_FORCE
        # Without a carrier NetworkManager sets nothing; networkd is told to.
        if self.backend == backends.NETWORK_MANAGER and not port.has_carrier(node, netdev):
            return _NO_LINK
        return f"lacks {', '.join(lacks)}"

    def _again(self, node: Node, standing: Mapping[str, str]) -> None:
        for rail in self.ports:
            if standing.get(rail.device, "").startswith("lacks"):
                netdev = port.must_have_netdev(node, rail.device)
                backends.configure_again(node, self.backend, netdev, rail.profile)

    def _verify(self, node: Node, changed: bool) -> Done:
        deadline = time.monotonic() + _SECONDS
        while True:
            standing = self._standing(node)
            wrong = {device: word for device, word in standing.items() if word.startswith("lacks")}
            if not wrong:
                return Done(note="; ".join(_without_link(standing)))
            if time.monotonic() >= deadline:
                device, word = next(iter(wrong.items()))
                raise Refused(
                    f"{device} {word} {_SECONDS:.0f} s after {self.backend} was told",
                    f"see what {self.backend} says of it: networkctl status, nmcli device, journalctl",
                    changed=changed,
                )
            time.sleep(_BETWEEN)

    def _dark(self, node: Node) -> list[str]:
        """Profiles of rails whose link is down, where the back-end sets nothing without one."""
        if self.backend != backends.NETWORK_MANAGER:
            return []
        netdevs = {rail.profile: port.netdev_of(node, rail.device) for rail in self.ports}
        return [name for name, netdev in netdevs.items() if netdev and not port.has_carrier(node, netdev)]

    def _mtus(self, node: Node) -> Iterator[tuple[str, str]]:
        """The MTU that each rail has now: one that the switch does not take cuts off as well as a wrong address."""
        for rail in self.ports:
            with suppress(OSError, Refused):  # a port that is not there has nothing to lose
                netdev = port.must_have_netdev(node, rail.device)
                mtu = read_value(node.at(f"/sys/class/net/{netdev}/mtu")) or ""
                if mtu.isdecimal():
                    yield netdev, mtu

    def _must_have_own_tables(self, node: Node, reading: Reading) -> None:
        """Raises Refused where a rail's table holds other routes: who speaks by them would leave by the rail."""
        _, lost, _ = reading.detail
        own = {"", *(port.netdev_of(node, rail.device) for rail in (*self.ports, *lost))}
        tables = {str(rail.table) for rail in self.ports}
        for table, netdev, to in sorted(ask(node).routes):
            if table in tables and netdev not in own:
                raise Refused(
                    f"table {table} holds the route to {to} by {netdev}, which is no rail",
                    "give policy.rails.table numbers that nobody else uses: ip route show table all",
                )

    def _must_leave_the_way_in(self, node: Node) -> None:
        """Raises Refused where a rail's device holds the node's own default route: whoever runs this came by it."""
        netdevs = {port.netdev_of(node, rail.device): rail for rail in self.ports}
        for table, netdev, to in sorted(ask(node).routes):
            if (table, to) == (MAIN, "default") and netdev in netdevs:
                raise Refused(
                    f"{netdev} (rail {netdevs[netdev].rail}) holds the node's default route: its addresses are left as "
                    "they are",
                    "take its address out of policy.rails.addresses, or lead the default route by another device first",
                )

    # -- the way back --

    def _arm(self, node: Node, reading: Reading, world: World) -> None:
        folder, ending = backends.FILES[self.backend]
        paths = sorted(path for path in world.changing if path.startswith(folder) and path.endswith(ending))
        profiles = [os.path.basename(path)[: -len(ending)] for path in paths if os.path.exists(node.at(path))]
        paths += [backends.UDEV] if backends.UDEV in world.changing else []
        commands = [["ip", "link", "set", "dev", netdev, "mtu", mtu] for netdev, mtu in self._mtus(node)]
        _, _, new = reading.detail
        for rail in new:
            with suppress(Refused):  # a port that is not there has nothing to lose
                commands += _away(rail, port.must_have_netdev(node, rail.device), ())
        # What is put back comes after what goes: the two may share a route.
        telling = backends.undoing(self.backend, profiles, commands)
        # What is put back is forgotten when the run ends, and known again when that is undone.
        record = Record.read(node).excerpt(self.id) if self._releasing else None
        confirm.arm(node, paths, telling, self.seconds, self.change, record)


def held_back(
    node: Node, slices: Mapping[str, list[Item]]
) -> tuple[dict[str, list[Item]], tuple[Failure, ...]]:
    """The slices without one whose very change was undone since nobody came back after it, and the failure.

    Where nobody waits for the answer, nothing is set after an undoing.
    """
    kept: dict[str, list[Item]] = {}
    failures = []
    for name, items in slices.items():
        again = next(
            (item for item in items if isinstance(item, NetworkItem) and _was_undone(node, item)),
            None,
        )
        if again is None:
            kept[name] = items
        else:
            failures.append(
                Failure(
                    f"{again.where} ({again.id})",
                    _why_undone(node),
                    "correct the policy, then run playbooks/retune.yml; to try again as it is, set "
                    f"policy.rails.confirm_seconds to another value, or remove {confirm.CONFIRM} on the node",
                )
            )
    return kept, tuple(failures)


def _without_link(standing: Mapping[str, str]) -> list[str]:
    dark = [device for device, word in standing.items() if word == _NO_LINK]
    return [f"without a carrier, so without an address: {', '.join(dark)}"] if dark else []


def settled(node: Node, slices: Mapping[str, list[Item]], outcome: Outcome) -> None:
    """After a run: the time of what it armed begins, and what was undone before it is over where its network stands."""
    confirm.count(node, confirm.ENDED)
    if not outcome.failures and any(
        isinstance(item, NetworkItem) for items in slices.values() for item in items
    ):
        confirm.forget(node)


def _was_undone(node: Node, item: NetworkItem) -> bool:
    known = confirm.undone(node)
    if known is None or known.get("record") is not None:
        return False  # what was undone was taking this network away
    # A card that is late makes another change of it, and at a boot there is nobody to come back.
    return node.alone or known.get("change") == item.change


def _why_undone(node: Node) -> str:
    seconds = (confirm.undone(node) or {}).get("seconds")
    within = f"within {seconds} s" if isinstance(seconds, int) else "in time"
    return f"this change was undone: nobody came back {within} after it"


def _known(kept: Kept) -> tuple[RailPort, ...]:
    """What an earlier entry gave."""
    with suppress(InputError):  # the record's entry was looked at when it was read
        return ports_of(Fields(kept.entry, "the record")) if "ports" in kept.entry else ()
    return ()


def _away(rail: RailPort, netdev: str, keep: Sequence[RailPort]) -> list[list[str]]:
    """What takes a rail's address, rule and routes away, as far as none of `keep` has them."""
    table = str(rail.table)
    kept = [other for other in keep if other.device == rail.device]
    commands = []
    if rail.interface not in [other.interface for other in kept]:
        commands.append(["ip", "-4", "address", "del", str(rail.interface), "dev", netdev])
    rule = (rail.source, rail.table, rail.priority)
    if rule not in [(other.source, other.table, other.priority) for other in keep]:
        commands.append(
            ["ip", "-4", "rule", "del", "priority", str(rail.priority), "from", rail.source, "table", table]
        )
    # A route to nowhere has no device: whichever rail has its table keeps it.
    stay = {
        route
        for other in keep
        for route in other.routes(netdev)
        if other.device == rail.device or not route[1]
    }
    for to, route in zip(rail.ways, rail.routes(netdev)):
        if route not in stay:
            by = ["dev", netdev] if route[1] else []
            commands.append(["ip", "-4", "route", "del", *to.split(), *by, "table", table])
    return commands


def _take_away(node: Node, ports: Sequence[RailPort], keep: Sequence[RailPort]) -> None:
    """No back-end is sure to take away what a file does not say any more; what it did take is no failure."""
    for rail in ports:
        with suppress(Refused):  # a port that is gone has taken all of it along
            for argv in _away(rail, port.must_have_netdev(node, rail.device), keep):
                if node.tools is not None:
                    node.tools(argv)


# -- the entry --


def _files(fields: Fields) -> tuple[str, ...]:
    where = f"{fields.where}.files"
    paths = sequence(fields.take("files"), where)
    for n, path in enumerate(paths):
        if not isinstance(path, str):
            raise expected(f"{where}[{n}]", "text", path)
        absolute(path, f"{where}[{n}]")
    return tuple(paths)
