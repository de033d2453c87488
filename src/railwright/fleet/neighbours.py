"""Who is on the other end of a cable: LLDP as lldpd tells it, `ibnetdiscover`, and the switches' own tables.

Every reader gives `Cable`s. The node's end is told in the words of the witness (a netdev, an RDMA device, a GUID or a
MAC); `cabling` finds the NIC.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from railwright.node import lldp
from railwright.node.model import InputError


@dataclass(frozen=True)
class Cable:
    """One cable. node None: the witness knows the node's end by GUID or MAC only.

    nic: netdev, RDMA device, PCI address, MAC, GUID, or "rail 3". leaf, port: the switch's end. source: the witness.
    """

    node: str | None
    nic: str
    leaf: str
    port: str
    source: str


_CA = re.compile(r'^Ca\s+\d+\s+"(?P<id>[^"]+)"\s*#\s*"(?P<name>[^"]*)"')
_SWITCH = re.compile(r'^Switch\s+\d+\s+"(?P<id>[^"]+)"\s*#\s*"(?P<name>[^"]*)"')
_LINK = re.compile(
    r'^\[(?P<port>\d+)\](?:\[ext \d+\])?(?:\((?P<own>[0-9a-fA-F]+)\))?\s+"(?P<peer>[^"]+)"\[(?P<at>\d+)\]'
    r'(?:\[ext \d+\])?(?:\((?P<guid>[0-9a-fA-F]+)\))?(?:\s*#\s*"(?P<name>[^"]*)")?'
)
# NVIDIA's managed switches call themselves "MF0;leaf3:MQM9700/U1".
_MANAGED = re.compile(r"^MF0;([^:]+):[^/]+/U(\d+)$")
_SONIC = re.compile(r"^(?P<port>Ethernet\S+)\s+(?P<node>\S+)\s+(?P<nic>\S+)\s+")


def read_cables(text: str, source: str, host: str | None = None) -> tuple[Cable, ...]:
    """Cables from a file of any known kind, told apart by its content.

    host: the node, where the file is its own `lldpcli -f json show neighbors`; or the leaf, where it is a switch's own
    table. Raises InputError that names the file, the line where there is one, and what was expected.
    """
    start = text.lstrip()[:1]
    if start in ("{", "["):
        return _from_json(text, source, host)
    if re.search(r"^(vendid|switchguid|caguid)=", text, re.MULTILINE):
        return tuple(_ibnetdiscover(text, source))
    if re.search(r"^LocalPort\s+RemoteDevice\s", text, re.MULTILINE):
        return tuple(_sonic(text, source, host))
    return tuple(_table(text, source))


# -- JSON: lldpd, and Arista's `show lldp neighbors | json` --


def _from_json(text: str, source: str, host: str | None) -> tuple[Cable, ...]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(source, f"is not JSON: {error}") from error
    if isinstance(data, dict) and isinstance(data.get("lldpNeighbors"), list):
        if host is None:
            raise InputError(source, "a switch's table without the switch's name", "give it as LEAF=FILE")
        return tuple(_arista(data["lldpNeighbors"], source, host))
    if isinstance(data, dict) and "lldp" in data:
        if host is None:
            raise InputError(source, "a node's neighbours without the node's name", "give it as NODE=FILE")
        heard = lldp.neighbours(data["lldp"], source)
        return tuple(_neighbour(neighbour, host, netdev, source) for netdev, neighbour in heard)
    raise InputError(
        source,
        "neither lldpd's nor a switch's JSON",
        "expected `lldpcli -f json show neighbors` or a known switch table",
    )


def _neighbour(neighbour: dict[str, Any], host: str, netdev: str, source: str) -> Cable:
    chassis, port = lldp.first(neighbour.get("chassis")), lldp.first(neighbour.get("port"))
    if not isinstance(chassis, dict) or not isinstance(port, dict):
        raise InputError(f"{source}: {netdev}", "a neighbour without chassis or port", "take it again, whole")
    leaf, own = lldp.chassis_name(neighbour), lldp.text(port.get("id"))
    # Switches that put a MAC there tell the port in words.
    named = _kind(port.get("id")) in ("ifname", "local", "ifalias")
    wanted = own if named else lldp.text(port.get("descr")) or own
    if not leaf or not wanted:
        raise InputError(
            f"{source}: {netdev}", "a neighbour without a name or a port", "take it again, whole"
        )
    return Cable(host, netdev, leaf, wanted, source)


def _kind(value: Any) -> str | None:
    value = lldp.first(value)
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _arista(entries: list[Any], source: str, leaf: str) -> Iterator[Cable]:
    for number, entry in enumerate(entries):
        words = [
            entry.get(key) if isinstance(entry, dict) else None
            for key in ("port", "neighborDevice", "neighborPort")
        ]
        port, node, nic = words
        if not (isinstance(port, str) and isinstance(node, str) and isinstance(nic, str)):
            raise InputError(
                f"{source}: lldpNeighbors[{number}]", "expected port, neighborDevice and neighborPort"
            )
        yield Cable(node, nic, leaf, port, source)


# -- text --


def _ibnetdiscover(text: str, source: str) -> Iterator[Cable]:
    """Links of switches to channel adapters, as the switch's block tells them."""
    leaf: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        switch = _SWITCH.match(line)
        if switch is not None:
            leaf = _leaf_name(switch["name"], switch["id"])
        elif _CA.match(line) is not None or not line.strip():
            leaf = None if not line.startswith("[") else leaf
        elif line.startswith("[") and leaf is not None:
            link = _LINK.match(line)
            if link is None:
                raise InputError(
                    f"{source}:{number}", f"found {line[:60]!r}", "expected a link as ibnetdiscover writes it"
                )
            if link["peer"].startswith("H-"):
                host = (link["name"] or "").split()
                guid = link["guid"] or link["peer"][2:]
                yield Cable(
                    host[0] if len(host) > 1 else None, f"guid {guid.lower()}", leaf, link["port"], source
                )


def _leaf_name(name: str, guid: str) -> str:
    managed = _MANAGED.match(name)
    if managed is None:
        # A switch without a manager only has its model's name, which many share.
        return name if name and " " not in name else guid
    return managed[1] if managed[2] == "1" else f"{managed[1]}/U{managed[2]}"


def _sonic(text: str, source: str, host: str | None) -> Iterator[Cable]:
    """SONiC's `show lldp table`."""
    if host is None:
        raise InputError(source, "a switch's table without the switch's name", "give it as LEAF=FILE")
    for line in text.splitlines():
        row = _SONIC.match(line)
        if row is not None:
            yield Cable(row["node"], row["nic"], host, row["port"], source)


_COLUMNS = {
    "node": ("node", "host", "server"),
    "nic": ("nic", "interface", "netdev", "rail", "device"),
    "leaf": ("leaf", "switch"),
    "port": ("port", "leaf_port", "switch_port"),
}


def _table(text: str, source: str) -> Iterator[Cable]:
    """A CSV table with the columns node, nic (or rail), leaf, port."""
    rows = csv.DictReader(io.StringIO(text))
    try:
        yield from _cables(rows, source)
    except csv.Error as error:
        raise InputError(f"{source}:{rows.line_num}", f"is no CSV table: {error}") from error


def _cables(rows: csv.DictReader[str], source: str) -> Iterator[Cable]:
    heads = {head.strip().lower(): head for head in rows.fieldnames or ()}
    chosen: dict[str, str] = {}
    for column, names in _COLUMNS.items():
        found = next((name for name in names if name in heads), None)
        if found is None:
            raise InputError(
                f"{source}:1",
                f"no column {' or '.join(names)}; found {', '.join(heads) or 'nothing'}",
                "expected CSV with node, nic or rail, leaf, port; or lldpd's JSON, ibnetdiscover, a switch's table",
            )
        chosen[column] = heads[found]
    is_rail = chosen["nic"].strip().lower() == "rail"
    for number, row in enumerate(rows, 2):
        values = {column: (row.get(head) or "").strip() for column, head in chosen.items()}
        _whole(values, f"{source}:{number}")
        nic = values["nic"].lower().removeprefix("rail").strip() if is_rail else values["nic"]
        if is_rail and not re.fullmatch(r"[0-9]{1,3}", nic):
            raise InputError(f"{source}:{number}", f"rail {values['nic'][:40]!r}", "expected a number to 999")
        yield Cable(
            values["node"], f"rail {int(nic)}" if is_rail else nic, values["leaf"], values["port"], source
        )


def _whole(values: Mapping[str, str], where: str) -> None:
    for column, value in values.items():
        if not value.isprintable():
            raise InputError(where, f"{column} {value[:40]!r} holds control characters", "correct it")
        if not value:
            raise InputError(where, f"{column} is empty", "each row names node, nic or rail, leaf and port")
