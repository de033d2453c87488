"""What a host says of one NIC port: `dcb -j` of iproute2, `ethtool -a`, and what LLDP heard from the switch.

Nothing here runs a command: the texts come from whoever read the node. A part that is missing stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from railwright.node.model import InputError
from railwright.node.qos import dcb

from .points import number

# IEEE 802.1Qaz: organisation and subtypes of the DCBX TLVs in LLDP.
_DCBX = "0080c2"
_PFC, _APPLICATION = 11, 12
# Selectors of the application TLV: UDP or TCP port of either, UDP, and DSCP.
_UDP, _EITHER, _DSCP = 3, 4, 5
ROCE_PORT = 4791


@dataclass(frozen=True)
class Dcb:
    """The host's own state. None is not known.

    pfc: priorities with PAUSE. delay: cable metres on mlx5. dscp_prio: what `dcb app` maps; on mlx5 a map that is not
    empty is trust in DSCP. prio_tc, tc_strict, tc_share: of `dcb ets`; tc_share: % by traffic class, of those with
    shares alone. host_managed: of `dcb dcbx`.
    """

    pfc: frozenset[int] | None = None
    delay: int | None = None
    dscp_prio: Mapping[int, int] | None = None
    prio_tc: tuple[int, ...] | None = None
    tc_strict: frozenset[int] | None = None
    host_managed: bool | None = None
    tc_share: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Heard:
    """What LLDP heard on a port. pfc, udp_prio, dscp_prio: None where the switch sent no such TLV."""

    chassis: str | None
    port: str | None
    pfc: frozenset[int] | None = None
    willing: bool | None = None
    roce_prio: int | None = None
    dscp_prio: Mapping[int, int] | None = None


def read_dcb(parts: Mapping[str, Any], where: str) -> Dcb:
    """The state from the outputs of `dcb -j {pfc,app,ets,dcbx} show dev IF`, by sub-command.

    Each is text or the JSON value. Raises InputError with the place.
    """
    values = {
        name: dcb.one_device(parts[name], f"{where}: dcb {name}")
        for name in ("pfc", "app", "ets", "dcbx")
        if name in parts
    }
    pfc, app, ets, dcbx = (values.get(name) for name in ("pfc", "app", "ets", "dcbx"))
    said = {name: f"{where}: dcb {name}" for name in values}
    words = None if ets is None or "tc_tsa" not in ets else dcb.algorithms(ets, said["ets"])
    return Dcb(
        None if pfc is None else frozenset(dcb.pfc(pfc, said["pfc"])),
        None if pfc is None else dcb.delay(pfc, said["pfc"]),
        None if app is None else dcb.dscp_prio(app, said["app"]),
        None if ets is None or "prio_tc" not in ets else dcb.prio_tc(ets, said["ets"]),
        None if words is None else frozenset(n for n, word in enumerate(words) if word == "strict"),
        None if dcbx is None else dcbx.get("host") is True,
        None if ets is None or words is None or "tc_bw" not in ets else _shares(words, ets, said["ets"]),
    )


def read_lldp(text: Any, netdev: str, where: str) -> Heard | None:
    """The neighbour on a netdev from `lldpcli -f json show neighbors details`; None when nobody was heard.

    Raises InputError with the place.
    """
    data = dcb.json_value(text, where)
    lldp = _first(data.get("lldp")) if isinstance(data, dict) else None
    if not isinstance(lldp, dict):
        raise InputError(where, "holds no LLDP neighbours", "give `lldpcli -f json show neighbors details`")
    interfaces = lldp.get("interface", [])
    heard = []
    # One neighbour is an object by netdev, several are a list of those; json0 has a list of objects with a name.
    for entry in interfaces if isinstance(interfaces, list) else [interfaces]:
        if not isinstance(entry, dict):
            raise InputError(
                where, f"found {type(entry).__name__}", "expected interfaces with their neighbours"
            )
        told = entry.get(netdev) if netdev in entry else entry if entry.get("name") == netdev else None
        # A switch may speak CDP beside it.
        if isinstance(told, dict) and told.get("via", "LLDP") == "LLDP":
            heard.append(_heard(told, f"{where}: {netdev}"))
    if len(heard) > 1:
        names = ", ".join(str(one.chassis) for one in heard[:4])
        raise InputError(
            where, f"{netdev} hears {len(heard)} neighbours: {names}", "a cable has one switch at its end"
        )
    return heard[0] if heard else None


def read_pause(text: str, where: str) -> bool:
    """Whether 802.3x pause is on in either direction, from `ethtool -a IF`. Raises InputError with the place."""
    return any(dcb.pause(text, where))


def _first(value: Any) -> Any:
    """json0 puts everything into lists."""
    return value[0] if isinstance(value, list) and value else value


def _word(value: Any) -> str | None:
    """The text of {"value": text}, or of a list of it."""
    value = _first(value)
    text = value.get("value") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _heard(entry: Mapping[str, Any], where: str) -> Heard:
    chassis = _first(entry.get("chassis"))
    name = None
    if isinstance(chassis, dict):
        # A switch that sends no name has its id alone.
        named = {key for key in chassis if isinstance(chassis[key], dict)} - {"id", "name"}
        name = (
            _word(chassis.get("name")) if {"id", "name"} & set(chassis) else next(iter(sorted(named)), None)
        )
    port = _first(entry.get("port"))
    ident = _word(port.get("id")) if isinstance(port, dict) else None
    pfc, willing, roce, dscp = None, None, None, None
    for subtype, data in _tlvs(entry, where):
        if subtype == _PFC and len(data) >= 2:
            pfc, willing = frozenset(n for n in range(8) if data[1] >> n & 1), bool(data[0] & 0x80)
        elif subtype == _APPLICATION:
            roce, dscp = _applications(data)
    return Heard(name, ident, pfc, willing, roce, dscp)


def _tlvs(entry: Mapping[str, Any], where: str) -> list[tuple[int, bytes]]:
    """Subtype and octets of the DCBX TLVs, which lldpd does not know and prints as they are."""
    unknown = _first(entry.get("unknown-tlvs"))
    rows = unknown.get("unknown-tlv", []) if isinstance(unknown, dict) else unknown or []
    found = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, dict):
            raise InputError(
                f"{where}: unknown-tlvs", f"found {type(row).__name__}", "expected oui, subtype, value"
            )
        if _hex(row.get("oui"), where) != bytes.fromhex(_DCBX):
            continue
        found.append(
            (number(row.get("subtype"), 0, 255, where, "a subtype"), _hex(row.get("value", ""), where))
        )
    return found


def _hex(text: Any, where: str) -> bytes:
    try:
        return bytes.fromhex(str(text).replace(",", "").replace("-", "").replace(":", ""))
    except ValueError as error:
        raise InputError(
            f"{where}: unknown-tlvs", f"found {str(text)[:40]!r}", "expected octets like 00,80,C2"
        ) from error


def _applications(data: bytes) -> tuple[int | None, dict[int, int] | None]:
    """RoCE's priority by its UDP port, and DSCP to priority: entries of three octets after a reserved one."""
    roce: int | None = None
    points: dict[int, int] = {}
    for start in range(1, len(data) - 2, 3):
        prio, selector = data[start] >> 5, data[start] & 7
        protocol = data[start + 1] << 8 | data[start + 2]
        if selector in (_UDP, _EITHER) and protocol == ROCE_PORT:
            roce = prio
        elif selector == _DSCP and protocol < 64:
            points[protocol] = prio
    return roce, points or None


def _shares(words: tuple[str, ...], ets: Mapping[str, Any], where: str) -> dict[int, int]:
    """Shares of the classes that have one: for strict ones and the vendor's mlx5 prints 100."""
    return {n: share for n, share in enumerate(dcb.tc_bw(ets, where)) if words[n] == "ets"}
