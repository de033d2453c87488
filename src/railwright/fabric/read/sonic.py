"""SONiC: `config_db.json`, whole or a part of it (tables of sonic-buildimage src/sonic-yang-models)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from railwright.captures.source import Source
from railwright.node.model import Finding, InputError

from ..points import number, numbers
from ..state import Marking, PortState, Seen, SwitchState
from ..texts import JsonDocument

_TABLES = {
    "PORT_QOS_MAP",
    "DSCP_TO_TC_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_PRIORITY_GROUP_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE",
    "WRED_PROFILE",
    "QUEUE",
    "SCHEDULER",
    "PORT",
    "DEVICE_METADATA",
    "BUFFER_PG",
}
# The MTU of a port that states none (sonic-port.yang leaves it to the platform; sonic-swss portmgr uses 9100).
_MTU = 9100
_MAPS = {
    "dscp_to_tc_map": ("DSCP_TO_TC_MAP", 63),
    "tc_to_queue_map": ("TC_TO_QUEUE_MAP", 7),
    "tc_to_pg_map": ("TC_TO_PRIORITY_GROUP_MAP", 7),
    "pfc_to_queue_map": ("MAP_PFC_PRIORITY_TO_QUEUE", 7),
}
# The map that every SONiC ships (sonic-buildimage files/build_templates/qos_config.j2).
_STOCK = "AZURE"


def read(source: Source, ports: Iterable[str]) -> SwitchState:
    """The state of these ports. Raises InputError with file and line."""
    document = JsonDocument(source)
    if not isinstance(document.value, dict) or not _TABLES & set(document.value):
        raise InputError(
            source.name,
            "holds none of SONiC's tables for ports and QoS",
            "give config_db.json, or the output of `sonic-cfggen -d --print-data`",
        )
    reader = _Reader(document)
    states = {port: reader.port(port) for port in dict.fromkeys(ports) if reader.knows(port)}
    return SwitchState(source.name, "sonic", states, stated_name(source), tuple(reader.faults.values()))


def stated_name(source: Source) -> str | None:
    """The host name in DEVICE_METADATA; None when there is none."""
    try:
        data = json.loads(source.text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    for key in ("DEVICE_METADATA", "localhost", "hostname"):
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, str) else None


class _Reader:
    def __init__(self, document: JsonDocument) -> None:
        self._document = document
        self.faults: dict[tuple[str, str], Finding] = {}
        self._maps: dict[tuple[str, str], dict[int, Seen[int]]] = {}
        # Old releases put all ports that are alike into one key.
        self._qos = {port: key for key in self._table("PORT_QOS_MAP") for port in key.split(",")}
        self._queues = self._by_port("QUEUE")
        self._groups = self._by_port("BUFFER_PG")
        self._cables = {
            port: (table, port)
            for table in self._table("CABLE_LENGTH")
            for port in self._entry("CABLE_LENGTH", table)
        }

    def knows(self, port: str) -> bool:
        """Whether the file says anything about a port."""
        return port in self._table("PORT") or port in self._qos or port in self._queues

    def port(self, port: str) -> PortState:
        key = self._qos.get(port, port)
        own = self._entry("PORT_QOS_MAP", key)
        dscp = self._bound(key, "dscp_to_tc_map")
        if not dscp and "dscp_to_tc_map" not in own:
            dscp = self._bound("global", "dscp_to_tc_map")
        where = self._document.at("PORT_QOS_MAP", key)
        identity = {n: Seen(n, where, default="SONiC's default") for n in range(8)}
        groups = self._bound(key, "tc_to_pg_map")
        to_queue = self._bound(key, "pfc_to_queue_map")
        strict, ecn = self._port_queues(port)
        trust = "dscp" if dscp else "cos" if "dot1p_to_tc_map" in own else "none"
        return PortState(
            port,
            where,
            Seen(trust, where, default="" if dscp else "no DSCP_TO_TC_MAP is bound to the port"),
            dscp,
            self._bound(key, "tc_to_queue_map") or identity,
            self._priorities(key, "pfc_enable"),
            ecn,
            strict,
            groups or None,
            to_queue or identity,
            self._watchdog(port),
            self._mtu(port),
            None,
            self._cable(port),
            self._speed(port),
            *self._headroom(port, groups),
        )

    # Tables.

    def _table(self, name: str) -> Mapping[str, Any]:
        return self._mapping(self._document.value.get(name, {}), name)

    def _entry(self, table: str, key: str) -> Mapping[str, Any]:
        return self._mapping(self._table(table).get(key, {}), table, key)

    def _mapping(self, value: Any, *path: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise InputError(
                self._document.at(*path),
                f"{'|'.join(path)} is {type(value).__name__}, no table",
                "give the file as the switch saved it",
            )
        return value

    def _by_port(self, table: str) -> dict[str, dict[int, str]]:
        """Port to queue (or group) to the table's key for it; one key may name several of both."""
        found: dict[str, dict[int, str]] = {}
        for key in self._table(table):
            ports, bar, which = key.rpartition("|")
            if not bar:
                raise InputError(
                    self._document.at(table, key), f"{table} has the key {key[:40]!r}", "expected PORT|NUMBER"
                )
            # A queue of a chassis has more parts, and the processor's port has 48: no leaf port has either.
            if "|" in ports or ports == "CPU":
                continue
            where = self._document.source.name
            spread = numbers(which, 0, 19, where, f"the queues of {table} {key[:40]}")
            for port in ports.split(","):
                found.setdefault(port, {}).update(dict.fromkeys(spread, key))
        return found

    def _reference(self, table: str, key: str, field: str, target: str) -> str | None:
        """The name that an entry refers to; old releases write it as [TABLE|name]."""
        value = self._entry(table, key).get(field)
        if value is None:
            return None
        where = self._document.at(table, key, field)
        if not isinstance(value, str):
            raise InputError(where, f"{field} is {type(value).__name__}", "expected a name")
        name = value.removeprefix("[").removesuffix("]").rpartition("|")[2]
        if name not in self._table(target):
            self.faults.setdefault(
                (target, name),
                Finding(
                    "fabric.reference",
                    "error",
                    where,
                    f"{table} {key} names {name[:40]!r} of {target}, which is not there: the binding is void",
                    f"add {name[:40]} to {target}, or name one that is there",
                ),
            )
            return None
        return name

    # What a port has.

    def _bound(self, key: str, field: str) -> dict[int, Seen[int]]:
        target, highest = _MAPS[field]
        name = self._reference("PORT_QOS_MAP", key, field, target)
        if name is None:
            return {}
        if (target, name) not in self._maps:
            made = {}
            for point, value in self._entry(target, name).items():
                where = self._document.at(target, name, point)
                default = "SONiC's default map" if target == "DSCP_TO_TC_MAP" and name == _STOCK else ""
                made[number(point, 0, highest, where, f"a key of {target}")] = Seen(
                    number(value, 0, 7, where, f"a value of {target}"), where, name, default
                )
            self._maps[target, name] = made
        return self._maps[target, name]

    def _priorities(self, key: str, field: str) -> Seen[frozenset[int]]:
        entry = self._entry("PORT_QOS_MAP", key)
        where = self._document.at("PORT_QOS_MAP", key, field)
        text = entry.get(field)
        if text is None:
            return Seen(frozenset(), where, default=f"no {field} on the port")
        if not isinstance(text, str):
            raise InputError(where, f"{field} is {type(text).__name__}", 'expected text like "3"')
        return Seen(frozenset(numbers(text, 0, 7, where, field)) if text else frozenset(), where)

    def _watchdog(self, port: str) -> Seen[bool]:
        key = self._qos.get(port, port)
        on = self._priorities(key, "pfcwd_sw_enable")
        if not self._entry("PFC_WD", port):
            return Seen(False, on.where, default="PFC_WD has no entry for the port")
        # Releases before pfcwd_sw_enable read PFC_WD alone.
        stated = "pfcwd_sw_enable" in self._entry("PORT_QOS_MAP", key)
        return Seen(bool(on.value) or not stated, self._document.at("PFC_WD", port))

    def _mtu(self, port: str) -> Seen[int]:
        where = self._document.at("PORT", port, "mtu")
        stated = self._entry("PORT", port).get("mtu")
        if stated is None:
            return Seen(_MTU, where, default="SONiC's default")
        return Seen(number(stated, 68, 9216, where, "an MTU"), where)

    def _speed(self, port: str) -> Seen[int] | None:
        stated = self._entry("PORT", port).get("speed")
        if stated is None:
            return None
        where = self._document.at("PORT", port, "speed")
        return Seen(number(stated, 10, 1_600_000, where, "a speed in Mb/s") // 1000, where)

    def _cable(self, port: str) -> Seen[int] | None:
        if port not in self._cables:
            return None
        table, key = self._cables[port]
        where = self._document.at("CABLE_LENGTH", table, key)
        stated = self._entry("CABLE_LENGTH", table)[key]
        text = stated[:-1] if isinstance(stated, str) and stated.endswith("m") else stated
        return Seen(number(text, 0, 300_000, where, "a cable length like 5m"), where, table)

    def _port_queues(self, port: str) -> tuple[dict[int, Seen[bool]], dict[int, Seen[Marking]]]:
        strict, ecn = {}, {}
        for queue, key in self._queues.get(port, {}).items():
            scheduler = self._reference("QUEUE", key, "scheduler", "SCHEDULER")
            if scheduler is not None:
                kind = self._entry("SCHEDULER", scheduler).get("type")
                where = self._document.at("SCHEDULER", scheduler)
                strict[queue] = Seen(kind == "STRICT", where, scheduler)
            profile = self._reference("QUEUE", key, "wred_profile", "WRED_PROFILE")
            marking = self._marking(profile) if profile is not None else None
            if marking is not None:
                ecn[queue] = marking
        return strict, ecn

    def _marking(self, profile: str) -> Seen[Marking] | None:
        """ECN of green packets: nothing on a leaf port colours them otherwise. None when the profile marks nothing."""
        entry = self._entry("WRED_PROFILE", profile)
        if entry.get("ecn", "ecn_none") not in {"ecn_all", "ecn_green", "ecn_green_yellow", "ecn_green_red"}:
            return None

        def stated(field: str, highest: int) -> int | None:
            value = entry.get(field)
            where = self._document.at("WRED_PROFILE", profile, field)
            return None if value is None else number(value, 0, highest, where, field)

        return Seen(
            Marking(
                stated("green_min_threshold", 2**40),
                stated("green_max_threshold", 2**40),
                stated("green_drop_probability", 100),
            ),
            self._document.at("WRED_PROFILE", profile),
            profile,
        )

    def _headroom(
        self, port: str, groups: Mapping[int, Seen[int]]
    ) -> tuple[Seen[int] | None, Seen[tuple[int, int]] | None]:
        """Xoff headroom and the dynamic threshold of the first lossless group, where profiles are stated."""
        for group, key in sorted(self._groups.get(port, {}).items()):
            name = self._entry("BUFFER_PG", key).get("profile")
            if not isinstance(name, str) or name in {"NULL", "0"} or group == 0:
                continue
            profile_name = self._reference("BUFFER_PG", key, "profile", "BUFFER_PROFILE")
            if profile_name is None or not any(seen.value == group for seen in groups.values()):
                continue
            profile = self._entry("BUFFER_PROFILE", profile_name)
            where = self._document.at("BUFFER_PROFILE", profile_name)
            if "xoff" not in profile:
                continue
            xoff = Seen(number(profile["xoff"], 0, 2**40, where, "xoff"), where, profile_name)
            return xoff, self._pool(profile_name, profile, where)
        return None, None

    def _pool(
        self, profile_name: str, profile: Mapping[str, Any], where: str
    ) -> Seen[tuple[int, int]] | None:
        if "dynamic_th" not in profile:
            return None
        pool = self._reference("BUFFER_PROFILE", profile_name, "pool", "BUFFER_POOL")
        size = self._entry("BUFFER_POOL", pool).get("size") if pool is not None else None
        if size is None:
            return None
        text = str(profile["dynamic_th"])
        alpha = (
            -number(text[1:], 0, 8, where, "dynamic_th")
            if text[:1] == "-"
            else number(text, 0, 8, where, "dynamic_th")
        )
        return Seen((number(size, 1, 2**40, where, "the size of the pool"), alpha), where, profile_name)
