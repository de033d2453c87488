"""NVIDIA Cumulus Linux: NVUE configuration as YAML (startup.yaml) or JSON (`nv config show -o json`).

`qos roce` stands for a whole set of values, which NVUE does not write out; later keys move single ones. The defaults
are those of the Cumulus Linux 5.9 user guide, "Quality of Service" and "RDMA over Converged Ethernet".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from railwright.captures.source import Source
from railwright.node.model import InputError

from ..points import code_points, number, numbers, port_names
from ..state import Marking, PortState, Seen, SwitchState
from ..texts import Document, JsonDocument, YamlDocument

_ROCE = "Cumulus's RoCE defaults"
_PLAIN = "Cumulus's default"
_MTU = 9216
_GLOBAL = "default-global"
_Path = tuple[str | int, ...]


def read(source: Source, ports: Iterable[str]) -> SwitchState:
    """The state of these ports. Raises InputError with file and line."""
    document = _document(source)
    root, base = _set(document)
    reader = _Reader(document, root, base)
    return SwitchState(
        source.name,
        "nvue",
        {port: reader.port(port) for port in dict.fromkeys(ports) if port in reader.interfaces},
        reader.host_name(),
    )


def stated_name(source: Source) -> str | None:
    """The host name under `system`; None when there is none or the text is not NVUE's."""
    try:
        document = _document(source)
        root, base = _set(document)
    except InputError:
        return None
    return _Reader(document, root, base).host_name()


def _document(source: Source) -> Document:
    if source.text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return JsonDocument(source)
    return YamlDocument(source)


def _set(document: Document) -> tuple[Mapping[str, Any], _Path]:
    """The tree of what is set, and the way to it: NVUE writes a list of header and set."""
    value = document.value
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict) and isinstance(item.get("set"), dict):
                return item["set"], (index, "set")
    elif isinstance(value, dict):
        if isinstance(value.get("set"), dict):
            return value["set"], ("set",)
        if {"qos", "interface"} & set(value):
            return value, ()
    raise InputError(
        document.source.name,
        "holds no NVUE configuration",
        "give /etc/nvue.d/startup.yaml, or the output of `nv config show -o yaml`",
    )


class _Reader:
    def __init__(self, document: Document, root: Mapping[str, Any], base: _Path) -> None:
        self._document = document
        self._root = root
        self._base = base
        self.interfaces: dict[str, list[str]] = {}
        for key in self._get("interface"):
            for port in port_names(str(key), self._at("interface", key)):
                self.interfaces.setdefault(port, []).append(key)
        roce = self._get("qos", "roce") if "roce" in self._get("qos") else None
        state = str(roce.get("enable", "on")) if roce is not None else "off"
        self._roce = state.lower() in {"on", "true", "enable", "enabled"}
        self._lossless = self._roce and roce is not None and str(roce.get("mode", "lossless")) == "lossless"

    def host_name(self) -> str | None:
        name = self._get("system").get("hostname") if isinstance(self._root.get("system"), dict) else None
        return name if isinstance(name, str) else None

    def port(self, port: str) -> PortState:
        where = self._at("interface", self.interfaces[port][-1])
        mapping, mapping_path = self._profile(port, "mapping")
        strict = self._strict(port)
        return PortState(
            port,
            where,
            self._trust(mapping, mapping_path),
            self._dscp(mapping, mapping_path),
            self._to_queue(),
            self._pfc(port),
            self._ecn(port),
            strict,
            watchdog=self._watchdog(port),
            mtu=self._mtu(port),
            pause=self._pause(port),
            cable_m=self._cable(port),
        )

    # The tree.

    def _at(self, *path: str | int) -> str:
        return self._document.at(*self._base, *path)

    def _get(self, *path: str | int) -> Mapping[str, Any]:
        """The mapping at a path; empty where there is none."""
        value: Any = self._root
        for depth, part in enumerate(path):
            value = value.get(part)
            if value is None:
                return {}
            if not isinstance(value, dict):
                raise InputError(
                    self._at(*path[: depth + 1]),
                    f"{part} is {type(value).__name__}",
                    "expected keys below it",
                )
        return value if isinstance(value, dict) else {}

    def _own(self, port: str, *path: str) -> tuple[Any, str] | None:
        """A value of an interface, the last one stated, with its place."""
        for key in reversed(self.interfaces[port]):
            value = self._get("interface", key, *path[:-1]).get(path[-1])
            if value is not None:
                return value, self._at("interface", key, *path)
        return None

    def _profile(self, port: str, kind: str) -> tuple[Mapping[str, Any], _Path]:
        own = self._own(port, "qos", kind, "profile")
        name = str(own[0]) if own is not None else _GLOBAL
        if own is not None and name not in self._get("qos", kind):
            raise InputError(
                own[1], f"names the {kind} profile {name[:40]!r}, which is not there", "add it to qos"
            )
        return self._get("qos", kind, name), ("qos", kind, name)

    def _spread(
        self, value: Mapping[str, Any], path: _Path, low: int, high: int
    ) -> dict[int, tuple[str, Any]]:
        """Number to (key, value) of a mapping whose keys are numbers or lists of them."""
        found = {}
        for key, item in value.items():
            where = self._at(*path, key)
            points = (
                code_points((str(key),), where)
                if high == 63
                else numbers(str(key), low, high, where, "a class")
            )
            found.update(dict.fromkeys(points, (key, item)))
        return found

    # What a port has.

    def _trust(self, mapping: Mapping[str, Any], path: _Path) -> Seen[str]:
        stated = mapping.get("trust")
        words = {"l3": "dscp", "both": "dscp", "l2": "cos", "port": "none"}
        if stated is not None:
            where = self._at(*path, "trust")
            if stated not in words:
                raise InputError(where, f"found trust {str(stated)[:40]!r}", "one of l2, l3, both, port")
            return Seen(words[stated], where, str(path[-1]))
        if self._roce:
            return Seen("dscp", self._at("qos", "roce"), default=_ROCE)
        return Seen("cos", self._at("qos"), default=_PLAIN)

    def _dscp(self, mapping: Mapping[str, Any], path: _Path) -> dict[int, Seen[int]]:
        where = self._at("qos")
        found = {point: Seen(point >> 3, where, default=_PLAIN) for point in range(64)}
        for point, (key, item) in self._spread(
            self._below(mapping, path, "dscp"), (*path, "dscp"), 0, 63
        ).items():
            place = (*path, "dscp", key)
            value = self._inner(item, place, "switch-priority")
            if value is not None:
                at = self._at(*place)
                found[point] = Seen(number(value, 0, 7, at, "a switch priority"), at, str(path[-1]))
        return found

    def _to_queue(self) -> dict[int, Seen[int]]:
        where = self._at("qos", "roce") if self._roce else self._at("qos")
        kept = {3: 3, 6: 6}
        found = {
            prio: Seen(
                kept.get(prio, 0) if self._roce else prio, where, default=_ROCE if self._roce else _PLAIN
            )
            for prio in range(8)
        }
        path: _Path = ("qos", "egress-queue-mapping", _GLOBAL, "switch-priority")
        for prio, (key, item) in self._spread(self._get(*path), path, 0, 7).items():
            value = self._inner(item, (*path, key), "traffic-class")
            if value is not None:
                at = self._at(*path, key)
                found[prio] = Seen(number(value, 0, 7, at, "a traffic class"), at, _GLOBAL)
        return found

    def _pfc(self, port: str) -> Seen[frozenset[int]]:
        profile, path = self._profile(port, "pfc")
        stated = self._below(profile, path, "switch-priority") if "switch-priority" in profile else None
        if stated is not None:
            on = self._spread(stated, (*path, "switch-priority"), 0, 7)
            stopped = [
                side for side in ("tx", "rx") if str(profile.get(side, "enable")).startswith("disable")
            ]
            if stopped:
                at = self._at(*path, stopped[0])
                return Seen(frozenset(), at, str(path[-1]), f"{stopped[0]} is disabled")
            return Seen(frozenset(on), self._at(*path, "switch-priority"), str(path[-1]))
        if self._lossless:
            return Seen(frozenset({3}), self._at("qos", "roce"), default=_ROCE)
        why = "RoCE is in lossy mode" if self._roce else "RoCE is not enabled"
        return Seen(frozenset(), self._at("qos", "roce") if self._roce else self._at("qos"), default=why)

    def _ecn(self, port: str) -> dict[int, Seen[Marking]]:
        found: dict[int, Seen[Marking]] = {
            0: Seen(Marking(150_000, 1_500_000, 100), self._at("qos"), default=_PLAIN)
        }
        if self._roce:
            found[3] = Seen(Marking(150_000, 1_501_500, 100), self._at("qos", "roce"), default=_ROCE)
        profile, path = self._profile(port, "congestion-control")
        path = (*path, "traffic-class")
        for queue, (key, item) in self._spread(
            self._below(profile, path[:-1], "traffic-class"), path, 0, 7
        ).items():
            at = self._at(*path, key)
            entry = item if isinstance(item, dict) else {}
            if str(entry.get("ecn", "enable")).startswith("disable"):
                found.pop(queue, None)
                continue
            before = found.get(queue, found[0]).value if queue in found else Marking(150_000, 1_500_000, 100)
            found[queue] = Seen(
                Marking(
                    _stated(entry, "min-threshold", 2**40, at, before.min_bytes),
                    _stated(entry, "max-threshold", 2**40, at, before.max_bytes),
                    _stated(entry, "probability", 100, at, before.probability_percent),
                ),
                at,
                str(path[2]),
            )
        return found

    def _strict(self, port: str) -> dict[int, Seen[bool]]:
        found = {}
        if self._roce:
            found[6] = Seen(True, self._at("qos", "roce"), default=_ROCE)
        profile, path = self._profile(port, "egress-scheduler")
        path = (*path, "traffic-class")
        for queue, (key, item) in self._spread(
            self._below(profile, path[:-1], "traffic-class"), path, 0, 7
        ).items():
            mode = self._inner(item, (*path, key), "mode")
            if mode is not None:
                found[queue] = Seen(mode == "strict", self._at(*path, key), str(path[2]))
        return found

    def _watchdog(self, port: str) -> Seen[bool]:
        own = self._own(port, "qos", "pfc-watchdog")
        if own is None:
            return Seen(False, self._at("interface", self.interfaces[port][-1]), default=_PLAIN)
        state = own[0].get("state", "enable") if isinstance(own[0], dict) else own[0]
        return Seen(not str(state).startswith(("disable", "off")), own[1])

    def _mtu(self, port: str) -> Seen[int]:
        own = self._own(port, "link", "mtu")
        if own is None:
            return Seen(_MTU, self._at("interface", self.interfaces[port][-1]), default=_PLAIN)
        return Seen(number(own[0], 552, 9216, own[1], "an MTU"), own[1])

    def _pause(self, port: str) -> Seen[bool]:
        own = self._own(port, "qos", "link-pause", "profile")
        if own is None:
            return Seen(False, self._at("interface", self.interfaces[port][-1]), default=_PLAIN)
        return Seen(True, own[1], str(own[0]))

    def _cable(self, port: str) -> Seen[int] | None:
        profile, path = self._profile(port, "pfc")
        for entry, place in ((profile, path), (self._get("qos", "roce"), ("qos", "roce"))):
            if "cable-length" in entry:
                at = self._at(*place, "cable-length")
                return Seen(
                    number(entry["cable-length"], 1, 100_000, at, "a cable length"), at, str(path[-1])
                )
        return None

    def _below(self, value: Mapping[str, Any], path: _Path, key: str) -> Mapping[str, Any]:
        below = value.get(key)
        if below is None:
            return {}
        if not isinstance(below, dict):
            raise InputError(
                self._at(*path, key), f"{key} is {type(below).__name__}", "expected keys below it"
            )
        return below

    def _inner(self, item: Any, path: _Path, key: str) -> Any:
        if item is None or item == "":
            return None
        if not isinstance(item, dict):
            raise InputError(self._at(*path), f"found {str(item)[:40]!r}", f"expected {key} below it")
        return item.get(key)


def _stated(entry: Mapping[str, Any], key: str, high: int, where: str, default: int | None) -> int | None:
    value = entry.get(key)
    return default if value is None else number(value, 0, high, where, key)
