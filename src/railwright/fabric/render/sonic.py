"""SONiC: a part of config_db.json (tables of sonic-buildimage src/sonic-yang-models)."""

from __future__ import annotations

import json
from typing import Any

from ..contract import Contract, Port, Switch
from ..platforms import PLATFORMS, Row

NAME = "RAILWRIGHT_ROCE"
STRICT, SHARE, REST = "RAILWRIGHT_STRICT", "RAILWRIGHT_SHARE", "RAILWRIGHT_REST"
LOAD = (
    "sudo config load {file} -y",
    "sudo config save -y",
    # It writes the vendor's maps again, SONiC's default map among them.
    "do not run `config qos reload` afterwards: it puts the shipped maps back",
)
VERIFY = (
    "show pfc priority {port}",
    "show pfc counters",
    "show priority-group watermark headroom",
    "show queue counters {port}",
    "show pfcwd config",
    "ecnconfig -l",
    "sonic-db-cli CONFIG_DB hgetall 'PORT_QOS_MAP|{port}'",
)
# Only these chips read the map from a PFC priority to a priority group (qos_config.j2: pfc_to_pg_map_supported_asics).
_PFC_TO_GROUP = ("mellanox", "barefoot")


def render(contract: Contract, name: str) -> str:
    """The tables, keys in a fixed order."""
    switch = contract.switches[name]
    return json.dumps(_tables(contract, switch), indent=4) + "\n"


def missing(contract: Contract, name: str) -> tuple[str, ...]:
    """What of the contract is not in the tables."""
    switch = contract.switches[name]
    unknown = sorted(
        {
            f"{contract.speed(plug)}G and {contract.cable(plug)} m"
            for plug in switch.ports.values()
            if _row(switch, contract, plug) is None
        }
    )
    queues = ", ".join(str(n) for n in range(8) if n not in {one.prio for one in contract.lossless.values()})
    return (
        *(
            [
                f"headroom for {', '.join(unknown)}: no profile is known here; write a length of the platform's "
                "pg_profile_lookup.ini into CABLE_LENGTH"
            ]
            if unknown
            else []
        ),
        *([] if contract.watchdog.enabled else ["the PFC watchdog where it still runs: `sudo pfcwd stop`"]),
        "what an earlier contract left, for loading only adds: `wred_profile` in QUEUE PORT|N for the queues "
        f"{queues} (`sonic-db-cli CONFIG_DB hdel 'QUEUE|PORT|N' wred_profile`), and ports that left the contract",
    )


def _tables(contract: Contract, switch: Switch) -> dict[str, Any]:
    lossless = {str(one.prio) for one in contract.lossless.values()}
    strict = {str(one.prio) for one in contract.classes.values() if one.strict}
    classes = [str(n) for n in range(8)]
    speeds = sorted({contract.speed(plug) for plug in switch.ports.values()})
    tables: dict[str, Any] = {
        "DSCP_TO_TC_MAP": {
            NAME: {str(point): str(contract.prio_of.get(point, contract.default_prio)) for point in range(64)}
        },
        "TC_TO_QUEUE_MAP": {NAME: {n: n for n in classes}},
        # Class 7, the network's own traffic, keeps the group that SONiC gives it.
        "TC_TO_PRIORITY_GROUP_MAP": {
            NAME: {n: n if n in lossless or (n == "7" and "7" not in strict) else "0" for n in classes}
        },
        "MAP_PFC_PRIORITY_TO_QUEUE": {NAME: {n: n for n in classes}},
    }
    platform = PLATFORMS.get(switch.platform or "")
    grouped = platform is not None and platform.vendor in _PFC_TO_GROUP
    if grouped:
        tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"] = {NAME: {n: n for n in classes if n in lossless}}
    tables["WRED_PROFILE"] = {f"RAILWRIGHT_{speed}G": _wred(contract, speed) for speed in speeds}
    tables["SCHEDULER"] = _schedulers(contract)
    tables["PORT_QOS_MAP"] = {"global": {"dscp_to_tc_map": NAME}} | {
        port: _port_map(contract, lossless, grouped) for port in switch.ports
    }
    tables["QUEUE"] = {
        f"{port}|{queue}": _queue(contract, queue, contract.speed(plug))
        for port, plug in switch.ports.items()
        for queue in classes
    }
    tables["CABLE_LENGTH"] = {"AZURE": {port: f"{_length(switch, contract, port)}m" for port in switch.ports}}
    tables["PORT"] = {port: {"mtu": str(contract.switch_mtu)} for port in switch.ports}
    if contract.watchdog.enabled:
        dog = contract.watchdog
        watch = {
            "action": "drop",
            "detection_time": str(dog.detection_ms),
            "restoration_time": str(dog.restoration_ms),
        }
        poll = min(dog.detection_ms, dog.restoration_ms, 1000)
        tables["PFC_WD"] = {"GLOBAL": {"POLL_INTERVAL": str(poll)}} | dict.fromkeys(switch.ports, watch)
    return tables


def _wred(contract: Contract, speed: int) -> dict[str, str]:
    ecn = contract.marking(speed)
    profile = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        profile |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(ecn.min_bytes),
            f"{colour}_max_threshold": str(ecn.max_bytes),
            f"{colour}_drop_probability": str(ecn.probability_percent),
        }
    return profile


def _schedulers(contract: Contract) -> dict[str, Any]:
    made: dict[str, Any] = {STRICT: {"type": "STRICT"}}
    for prio, share in sorted(contract.shares.items()):
        name = REST if prio == contract.default_prio else f"{SHARE}_{prio}"
        made[name] = {"type": "DWRR", "weight": str(share)}
    return made


def _port_map(contract: Contract, lossless: set[str], grouped: bool) -> dict[str, str]:
    prios = ",".join(sorted(lossless))
    port = {
        "dscp_to_tc_map": NAME,
        "tc_to_queue_map": NAME,
        "tc_to_pg_map": NAME,
        "pfc_to_queue_map": NAME,
    }
    if grouped:
        port["pfc_to_pg_map"] = NAME
    port["pfc_enable"] = prios
    port["pfcwd_sw_enable"] = prios if contract.watchdog.enabled else ""
    return port


def _queue(contract: Contract, queue: str, speed: int) -> dict[str, str]:
    one = next((one for one in contract.classes.values() if str(one.prio) == queue), None)
    if one is None:
        return {"scheduler": REST}
    entry = {"scheduler": STRICT if one.strict else f"{SHARE}_{queue}"}
    return entry | {"wred_profile": f"RAILWRIGHT_{speed}G"} if one.lossless else entry


def _length(switch: Switch, contract: Contract, port: str) -> int:
    """A length that the platform's table has: SONiC takes a profile only where length and speed match a line."""
    row = _row(switch, contract, switch.ports[port])
    return row.cable_m if row is not None else contract.cable(switch.ports[port])


def _row(switch: Switch, contract: Contract, plug: Port) -> Row | None:
    platform = PLATFORMS.get(switch.platform or "")
    return platform.row(contract.speed(plug), contract.cable(plug)) if platform is not None else None
