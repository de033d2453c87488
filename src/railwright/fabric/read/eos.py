"""Arista EOS: running-config text. Syntax as EOS 4.3x prints it; what depends on the chip is taken as stated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from railwright.captures.source import Source
from railwright.node.model import Finding, InputError

from ..points import EOS_CLASSES, EOS_STRICT_UNSTATED, after, amount, code_points, number, numbers, port_names
from ..state import Marking, PortState, Seen, SwitchState
from ..texts import Block, host_name, running_config

_DEFAULT = "EOS's default"
# Routed ports carry frames of up to 9214; EOS prints `mtu` only where it differs from 1500.
_MTU = 1500
_SIGNS = ("interface", "qos", "hostname", "service-profile", "vlan", "priority-flow-control", "transceiver")


@dataclass(frozen=True)
class _Settings:
    """What a profile or an interface says; None says nothing."""

    trust: Seen[str] | None = None
    pfc_on: Seen[bool] | None = None
    no_drop: dict[int, Seen[bool]] = field(default_factory=dict)
    watchdog: Seen[bool] | None = None
    ecn: dict[int, Seen[Marking]] = field(default_factory=dict)
    strict: dict[int, Seen[bool]] = field(default_factory=dict)
    mtu: Seen[int] | None = None
    pause: Seen[bool] | None = None
    routed: bool = False
    profile: Seen[str] | None = None
    cable_m: Seen[int] | None = None

    def over(self, below: _Settings) -> _Settings:
        """These settings with another's where these say nothing."""
        return _Settings(
            self.trust or below.trust,
            self.pfc_on or below.pfc_on,
            {**below.no_drop, **self.no_drop},
            self.watchdog or below.watchdog,
            {**below.ecn, **self.ecn},
            {**below.strict, **self.strict},
            self.mtu or below.mtu,
            self.pause or below.pause,
            self.routed or below.routed,
            self.profile or below.profile,
            self.cable_m or below.cable_m,
        )


def read(source: Source, ports: Iterable[str]) -> SwitchState:
    """The state of these ports. Raises InputError with file and line."""
    top = running_config(source, "EOS", _SIGNS)
    reader = _Reader(source, top)
    states = {port: reader.port(port) for port in dict.fromkeys(ports) if port in reader.interfaces}
    name = host_name(top, "hostname")
    return SwitchState(source.name, "eos", states, name, tuple(reader.faults.values()))


class _Reader:
    def __init__(self, source: Source, top: list[Block]) -> None:
        self._source = source
        self.faults: dict[str, Finding] = {}
        self.interfaces: dict[str, tuple[str, _Settings]] = {}
        self._profiles: dict[str, _Settings] = {}
        self._dscp: dict[int, Seen[int]] = {}
        self._queue: dict[int, Seen[int]] = {}
        self._watchdog: Seen[bool] | None = None
        for block in top:
            self._top(block)

    def _at(self, block: Block) -> str:
        return self._source.at(block.number)

    def _top(self, block: Block) -> None:
        where = self._at(block)
        if block.has("qos", "map"):
            self._map(block, where)
        elif block.has("qos", "profile"):
            if len(block.words) != 3:
                raise InputError(where, f"found {block.text[:60]!r}", "expected qos profile NAME")
            self._profiles[block.words[2]] = self._settings(block, block.words[2])
        elif block.has("interface"):
            settings = self._settings(block, "")
            for port in port_names("".join(block.words[1:]), where):
                before = self.interfaces.get(port)
                self.interfaces[port] = (where, settings.over(before[1]) if before is not None else settings)
        elif block.has("priority-flow-control", "pause", "watchdog"):
            self._watchdog = self._watchdog or Seen(True, where)

    def _map(self, block: Block, where: str) -> None:
        words = block.words[2:]
        if not words or words[0] not in {"dscp", "traffic-class"}:
            return
        if "to" not in words or words.index("to") < 2 or len(words) < words.index("to") + 3:
            raise InputError(
                where, f"found {block.text[:60]!r}", "expected qos map dscp 26 to traffic-class 3"
            )
        index = words.index("to")
        subject, target, value = words[1:index], words[index + 1], words[index + 2]
        if words[0] == "dscp" and target == "traffic-class":
            seen = Seen(number(value, 0, 7, where, "a traffic class"), where)
            self._dscp.update(dict.fromkeys(code_points(subject, where), seen))
        elif words[0] == "traffic-class" and target in {"tx-queue", "uc-tx-queue"}:
            seen = Seen(number(value, 0, 7, where, "a queue"), where)
            classes = numbers(",".join(subject), 0, 7, where, "a traffic class")
            self._queue.update(dict.fromkeys(classes, seen))

    def _settings(self, block: Block, name: str) -> _Settings:
        found = _Settings()
        for line in block.below:
            found = self._setting(found, line, name)
        return found

    def _setting(self, found: _Settings, line: Block, name: str) -> _Settings:
        where = self._at(line)
        if line.has("qos", "trust") and len(line.words) == 3:
            return replace(found, trust=Seen(line.words[2], where, name))
        if line.has("no", "qos", "trust"):
            return replace(found, trust=Seen("none", where, name))
        if line.has("priority-flow-control"):
            return self._flow_control(found, line, where, name)
        if line.has("no", "priority-flow-control"):
            return self._no_flow_control(found, line, where, name)
        if line.words[0] in {"uc-tx-queue", "tx-queue"} and len(line.words) == 2:
            return self._queue_settings(found, line, where, name)
        if line.has("mtu") and len(line.words) == 2:
            return replace(found, mtu=Seen(number(line.words[1], 68, 9216, where, "an MTU"), where))
        if line.has("flowcontrol") and len(line.words) == 3:
            on = line.words[2] in {"on", "desired"}
            return replace(found, pause=Seen(on, where)) if on or found.pause is None else found
        if line.has("no", "switchport") and len(line.words) == 2:
            return replace(found, routed=True)
        if line.has("service-profile") and len(line.words) == 2:
            return replace(found, profile=Seen(line.words[1], where))
        return found

    def _flow_control(self, found: _Settings, line: Block, where: str, name: str) -> _Settings:
        words = line.words[1:]
        if words in (("on",), ("off",)) or words[:1] == ("mode",):
            return replace(found, pfc_on=Seen(words[-1] == "on", where, name))
        if words[:1] == ("priority",):
            if len(words) != 3 or words[2] not in {"drop", "no-drop"}:
                raise InputError(
                    where, f"found {line.text[:60]!r}", "expected priority-flow-control priority 3 no-drop"
                )
            seen = Seen(words[2] == "no-drop", where, name)
            prios = numbers(words[1], 0, 7, where, "a priority")
            return replace(found, no_drop={**found.no_drop, **dict.fromkeys(prios, seen)})
        if words[:2] == ("pause", "watchdog"):
            off = words[2:3] in (("disabled",), ("disable",), ("off",))
            return replace(found, watchdog=Seen(not off, where, name))
        return found

    def _no_flow_control(self, found: _Settings, line: Block, where: str, name: str) -> _Settings:
        words = line.words[2:]
        if words in ((), ("on",), ("mode",)):
            return replace(found, pfc_on=Seen(False, where, name))
        if words[:1] == ("priority",) and len(words) > 1:
            prios = numbers(words[1], 0, 7, where, "a priority")
            return replace(found, no_drop={**found.no_drop, **dict.fromkeys(prios, Seen(False, where, name))})
        if words == ("pause", "watchdog"):
            return replace(found, watchdog=Seen(False, where, name))
        return found

    def _queue_settings(self, found: _Settings, line: Block, where: str, name: str) -> _Settings:
        queue = number(line.words[1], 0, 7, where, "a queue")
        for inner in line.below:
            at = self._at(inner)
            if inner.has("priority"):
                strict = Seen(inner.words[1:2] == ("strict",), at, name)
                found = replace(found, strict={**found.strict, queue: strict})
            elif inner.has("no", "priority"):
                found = replace(found, strict={**found.strict, queue: Seen(False, at, name)})
            elif inner.has("random-detect", "ecn") and inner.words[2:3] != ("count",):
                seen = Seen(self._marking(inner, at), at, name)
                found = replace(found, ecn={**found.ecn, queue: seen})
        return found

    def _marking(self, line: Block, where: str) -> Marking:
        words = line.words[2:]
        if "minimum-threshold" not in words or "maximum-threshold" not in words:
            raise InputError(
                where,
                f"found {line.text[:80]!r}",
                "expected random-detect ecn minimum-threshold N UNIT maximum-threshold N UNIT",
            )
        low = amount(words, "minimum-threshold", where)
        high = amount(words, "maximum-threshold", where)
        chance = None
        if "max-mark-probability" in words:
            chance = number(after(words, "max-mark-probability"), 0, 100, where, "a probability")
        return Marking(low, high, chance)

    def port(self, port: str) -> PortState:
        where, own = self.interfaces[port]
        settings = own
        if own.profile is not None:
            profile = self._profiles.get(own.profile.value)
            if profile is None:
                self.faults.setdefault(
                    own.profile.value,
                    Finding(
                        "fabric.reference",
                        "error",
                        own.profile.where,
                        f"{port} has the service profile {own.profile.value[:40]!r}, which is not there: nothing of it "
                        "holds",
                        f"add `qos profile {own.profile.value[:40]}`",
                    ),
                )
            else:
                settings = own.over(profile)
        default_trust = Seen("dscp" if settings.routed else "cos", where, default=_DEFAULT)
        prios = {prio: seen for prio, seen in settings.no_drop.items() if seen.value}
        return PortState(
            port,
            where,
            settings.trust or default_trust,
            {point: self._dscp.get(point) or self._class(point, where) for point in range(64)},
            {n: self._queue.get(n) or Seen(n, where, default=_DEFAULT) for n in range(8)},
            _pfc(settings, prios, where),
            settings.ecn,
            {
                n: settings.strict.get(n) or Seen(EOS_STRICT_UNSTATED, where, default=_DEFAULT)
                for n in range(8)
            },
            watchdog=settings.watchdog or self._watchdog or Seen(False, where, default="not stated"),
            mtu=settings.mtu or Seen(_MTU if settings.routed else 9214, where, default=_DEFAULT),
            pause=settings.pause or Seen(False, where, default=_DEFAULT),
        )

    def _class(self, point: int, where: str) -> Seen[int]:
        return Seen(EOS_CLASSES[point >> 3], where, default=_DEFAULT)


def _pfc(settings: _Settings, prios: dict[int, Seen[bool]], where: str) -> Seen[frozenset[int]]:
    if settings.pfc_on is None:
        return Seen(frozenset(), where, default="priority-flow-control is not on")
    if not settings.pfc_on.value:
        return Seen(frozenset(), settings.pfc_on.where, settings.pfc_on.name, "priority-flow-control is off")
    stated = next(iter(prios.values()), settings.pfc_on)
    return Seen(frozenset(prios), stated.where, stated.name)
