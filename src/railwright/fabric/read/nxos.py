"""Cisco NX-OS (Nexus 9000): running-config text with its three kinds of QoS policies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from railwright.captures.source import Source
from railwright.node.model import Finding, InputError

from ..points import after, amount, code_points, number, numbers, port_names
from ..state import Marking, PortState, Seen, SwitchState
from ..texts import Block, host_name, running_config

_DEFAULT = "NX-OS's default"
_MTU = 1500
_SIGNS = ("interface", "class-map", "policy-map", "system", "hostname", "switchname", "feature", "vlan")
_OUT_QUEUE = re.compile(r"c-out-(?:8q-)?q([0-7])")
_NETWORK = re.compile(r"c-(?:8q-)?nq([0-7])")


@dataclass
class _Policies:
    """The policies by name: what each says of its classes, with lines."""

    maps: dict[str, dict[int, Block]] = field(default_factory=dict)
    groups: dict[str, list[tuple[str, Seen[int]]]] = field(default_factory=dict)
    queuing: dict[str, dict[int, list[Block]]] = field(default_factory=dict)
    network: dict[str, dict[int, list[Block]]] = field(default_factory=dict)
    network_maps: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Applied:
    """What is attached to an interface or to the system; None attaches nothing."""

    where: str = ""
    qos: Seen[str] | None = None
    queuing: Seen[str] | None = None
    network: Seen[str] | None = None
    pfc: Seen[str] | None = None
    watchdog: Seen[bool] | None = None
    mtu: Seen[int] | None = None
    pause: Seen[bool] | None = None


def read(source: Source, ports: Iterable[str]) -> SwitchState:
    """The state of these ports. Raises InputError with file and line."""
    top = running_config(source, "NX-OS", _SIGNS)
    reader = _Reader(source, top)
    states = {port: reader.port(port) for port in dict.fromkeys(ports) if port in reader.interfaces}
    name = host_name(top, "hostname", "switchname")
    return SwitchState(source.name, "nxos", states, name, tuple(reader.faults.values()))


class _Reader:
    def __init__(self, source: Source, top: list[Block]) -> None:
        self._source = source
        self.faults: dict[str, Finding] = {}
        self._policies = _Policies()
        self._system = _Applied()
        self.interfaces: dict[str, _Applied] = {}
        for block in top:
            self._top(block)

    def _at(self, block: Block) -> str:
        return self._source.at(block.number)

    def _top(self, block: Block) -> None:
        where, words = self._at(block), block.words
        if block.has("class-map", "type", "qos"):
            self._policies.maps[words[-1]] = {
                point: line
                for line in block.below
                if line.has("match", "dscp")
                for point in code_points(line.words[2:], self._at(line))
            }
        elif block.has("class-map", "type", "network-qos"):
            for line in block.below:
                if line.has("match", "qos-group"):
                    group = number(line.words[-1], 0, 7, self._at(line), "a qos-group")
                    self._policies.network_maps[words[-1]] = group
        elif block.has("policy-map", "type", "qos"):
            self._policies.groups[words[-1]] = [
                self._group(line) for line in block.below if line.has("class")
            ]
        elif block.has("policy-map", "type", "queuing"):
            self._policies.queuing[words[-1]] = self._classes(block, _OUT_QUEUE, {})
        elif block.has("policy-map", "type", "network-qos"):
            self._policies.network[words[-1]] = self._classes(block, _NETWORK, self._policies.network_maps)
        elif block.has("system", "qos"):
            self._system = self._attached(block, self._system)
        elif block.has("interface"):
            for port in port_names("".join(words[1:]), where):
                self.interfaces[port] = self._attached(block, self.interfaces.get(port, _Applied(where)))
        elif block.has("priority-flow-control", "watch-dog-interval"):
            self._system = replace(self._system, watchdog=Seen(words[2:3] != ("off",), where))

    def _group(self, line: Block) -> tuple[str, Seen[int]]:
        where = self._at(line)
        for inner in line.below:
            if inner.has("set", "qos-group"):
                at = self._at(inner)
                return line.words[-1], Seen(number(inner.words[-1], 0, 7, at, "a qos-group"), at)
        return line.words[-1], Seen(0, where, default="no qos-group is set")

    def _classes(
        self, block: Block, pattern: re.Pattern[str], named: dict[str, int]
    ) -> dict[int, list[Block]]:
        found: dict[int, list[Block]] = {}
        for line in block.below:
            if not line.has("class"):
                continue
            name = line.words[-1]
            match = pattern.fullmatch(name)
            if match is not None:
                found[int(match[1])] = [line, *line.below]
            elif name in named:
                found[named[name]] = [line, *line.below]
            elif "default" in name:
                found[0] = [line, *line.below]
        return found

    def _attached(self, block: Block, found: _Applied) -> _Applied:
        for line in block.below:
            where, words = self._at(line), line.words
            if line.has("service-policy", "type", "qos", "input") and len(words) > 4:
                found = replace(found, qos=Seen(words[4], where, words[4]))
            elif line.has("service-policy", "type", "queuing", "output") and len(words) > 4:
                found = replace(found, queuing=Seen(words[4], where, words[4]))
            elif line.has("service-policy", "type", "network-qos") and len(words) > 3:
                found = replace(found, network=Seen(words[3], where, words[3]))
            elif line.has("priority-flow-control", "mode") and len(words) == 3:
                if words[2] not in {"on", "off", "auto"}:
                    raise InputError(where, f"found {line.text[:60]!r}", "expected mode on, off or auto")
                found = replace(found, pfc=Seen(words[2], where))
            elif line.has("priority-flow-control", "watch-dog-interval"):
                found = replace(found, watchdog=Seen(words[2:3] != ("off",), where))
            elif line.has("no", "priority-flow-control"):
                found = replace(found, pfc=Seen("off", where))
            elif line.has("mtu") and len(words) == 2:
                found = replace(found, mtu=Seen(number(words[1], 576, 9216, where, "an MTU"), where))
            elif line.has("flowcontrol") and len(words) == 3:
                on = words[2] == "on"
                found = replace(found, pause=Seen(on, where)) if on or found.pause is None else found
        return found

    def _named(self, attached: Seen[str] | None, kind: str, known: Iterable[str], what: str) -> str | None:
        """The name of an attached policy that is there."""
        if attached is None:
            return None
        if attached.value in known or attached.value.startswith("default-"):
            return attached.value
        self.faults.setdefault(
            f"{kind} {attached.value}",
            Finding(
                "fabric.reference",
                "error",
                attached.where,
                f"attaches the {kind} policy {attached.value[:40]!r}, which is not there: {what}",
                f"add `policy-map type {kind} {attached.value[:40]}`",
            ),
        )
        return None

    def port(self, port: str) -> PortState:
        own, system = self.interfaces[port], self._system
        where = own.where
        qos = own.qos or system.qos
        queuing = own.queuing or system.queuing
        classes = self._dscp(qos, where)
        queues = self._policies.queuing.get(
            self._named(queuing, "queuing", self._policies.queuing, "every queue is as NX-OS ships it") or "",
            {},
        )
        paused, to_queue = self._paused(system.network)
        return PortState(
            port,
            where,
            Seen("dscp", qos.where, qos.value)
            if qos is not None
            else Seen("none", where, default="no input policy"),
            classes,
            {n: Seen(n, where, default=_DEFAULT) for n in range(8)},
            self._pfc(own.pfc, paused, where),
            self._ecn(queues, queuing),
            self._strict(queues, queuing),
            pfc_to_queue={**{n: Seen(n, where, default=_DEFAULT) for n in range(8)}, **to_queue},
            watchdog=own.watchdog or system.watchdog or Seen(False, where, default=_DEFAULT),
            mtu=own.mtu or Seen(_MTU, where, default=_DEFAULT),
            pause=own.pause or Seen(False, where, default=_DEFAULT),
        )

    def _dscp(self, qos: Seen[str] | None, where: str) -> dict[int, Seen[int]]:
        found = {
            point: Seen(
                0, qos.where if qos is not None else where, qos.value if qos else "", "no class matches it"
            )
            for point in range(64)
        }
        name = self._named(qos, "qos", self._policies.groups, "all traffic goes to qos-group 0")
        taken: set[int] = set()
        for class_name, group in self._policies.groups.get(name or "", []):
            # The first class that matches wins.
            for point, line in self._policies.maps.get(class_name, {}).items():
                if point not in taken:
                    taken.add(point)
                    found[point] = Seen(group.value, group.where or self._at(line), name or "")
        return found

    def _paused(self, network: Seen[str] | None) -> tuple[Seen[frozenset[int]], dict[int, Seen[int]]]:
        name = self._named(network, "network-qos", self._policies.network, "no class is lossless")
        found: dict[int, Seen[int]] = {}
        for group, lines in self._policies.network.get(name or "", {}).items():
            for line in lines[1:]:
                if line.has("pause", "pfc-cos"):
                    at = self._at(line)
                    for prio in numbers(line.words[-1], 0, 7, at, "a priority"):
                        found[prio] = Seen(group, at, name or "")
        where = network.where if network is not None else self._source.name
        default = "" if network is not None else "no network-qos policy is attached"
        return Seen(frozenset(found), where, name or "", default), found

    def _pfc(self, mode: Seen[str] | None, paused: Seen[frozenset[int]], where: str) -> Seen[frozenset[int]]:
        if mode is None or mode.value == "auto":
            why = "mode auto waits for DCBX, which hosts that manage themselves do not speak"
            return Seen(frozenset(), mode.where if mode is not None else where, default=why)
        if mode.value == "off":
            return Seen(frozenset(), mode.where, default="the mode is off")
        return Seen(paused.value, paused.where if paused.value else mode.where, paused.name, paused.default)

    def _ecn(self, queues: dict[int, list[Block]], queuing: Seen[str] | None) -> dict[int, Seen[Marking]]:
        found = {}
        for queue, lines in queues.items():
            for line in lines[1:]:
                if line.has("random-detect") and "ecn" in line.words:
                    at = self._at(line)
                    name = queuing.value if queuing is not None else ""
                    found[queue] = Seen(self._marking(line, at), at, name)
        return found

    def _marking(self, line: Block, where: str) -> Marking:
        words = line.words
        if words[1:2] == ("threshold",):
            # `threshold burst-optimized`: values of the chip.
            return Marking(None, None, None)
        chance = None
        if "drop-probability" in words:
            chance = number(after(words, "drop-probability"), 0, 100, where, "a probability")
        return Marking(
            amount(words, "minimum-threshold", where), amount(words, "maximum-threshold", where), chance
        )

    def _strict(self, queues: dict[int, list[Block]], queuing: Seen[str] | None) -> dict[int, Seen[bool]]:
        found = {}
        name = queuing.value if queuing is not None else ""
        for queue, lines in queues.items():
            level = next((line for line in lines[1:] if line.has("priority", "level")), None)
            found[queue] = Seen(level is not None, self._at(level or lines[0]), name)
        return found
