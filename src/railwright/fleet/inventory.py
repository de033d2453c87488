"""Nodes from what people have: a rack sheet, a list of hosts, a NetBox export."""

from __future__ import annotations

import csv
import io
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from railwright.node.model import InputError

_COLUMNS = {
    "name": ("name", "host", "hostname", "node", "server"),
    "address": ("address", "ip", "mgmt_ip", "mgmt ip", "management ip", "ansible_host", "primary ip"),
    "rack": ("rack", "cabinet"),
    "position": ("u", "position", "rack unit", "unit"),
    "role": ("role", "type"),
}
# No node has a thousand rails, and Python reads no number of any length.
_RAIL_COLUMN = re.compile(r"rail\s*_?([0-9]{1,3})")


@dataclass(frozen=True)
class Rail:
    """One rail of a node. address: with its prefix length. leaf, port: where its cable should be."""

    rail: int
    address: str | None = None
    leaf: str | None = None
    port: str | None = None


@dataclass(frozen=True)
class Machine:
    """One node as a list tells it. where: the line or entry, for sentences."""

    name: str
    address: str | None
    where: str
    rack: str | None = None
    position: str | None = None
    rails: tuple[Rail, ...] = field(default=())


def read_machines(text: str, source: str, roles: Sequence[str] = ()) -> tuple[Machine, ...]:
    """Nodes from a CSV rack sheet, a hosts-like list or a NetBox export, told apart by the content.

    roles: NetBox roles or values of the sheet's role column that count; all where none is given. Raises InputError.
    """
    start = text.lstrip()[:1]
    if start in ("{", "["):
        found = tuple(_netbox(text, source, roles))
    elif _is_hosts(text):
        found = tuple(_hosts(text, source))
    else:
        found = tuple(_sheet(text, source, roles))
    if not found:
        raise InputError(
            source, "names no node", "expected a CSV table, lines of address and name, or a NetBox export"
        )
    return found


# -- readers --


def _is_hosts(text: str) -> bool:
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    first = next((words for words in lines if words), [])
    return len(first) >= 2 and ip_of(first[0]) is not None


def _hosts(text: str, source: str) -> Iterator[Machine]:
    """Lines of /etc/hosts: address, name, aliases."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        address = ip_of(words[0])
        if address is None or len(words) < 2:
            raise InputError(
                f"{source}:{number}", f"found {line.strip()[:60]!r}", "expected an address and a name"
            )
        if address.is_loopback or address.is_multicast or address.is_link_local:
            continue
        yield Machine(words[1], str(address), f"{source}:{number}")


def _sheet(text: str, source: str, roles: Sequence[str]) -> Iterator[Machine]:
    sample = text[:4096]
    delimiter = max(",;\t", key=sample.count)
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    heads = _heads(rows, source)
    chosen = {
        column: heads[name] for column, names in _COLUMNS.items() for name in names[::-1] if name in heads
    }
    if "name" not in chosen:
        raise InputError(
            f"{source}:1",
            f"no column {' or '.join(_COLUMNS['name'])}; found {', '.join(heads) or 'nothing'}",
            "name the column of the nodes' names so",
        )
    rails: dict[int, str] = {}
    for name, head in heads.items():
        match = _RAIL_COLUMN.fullmatch(name)
        if match is None:
            continue
        if int(match[1]) in rails:
            raise InputError(f"{source}:1", f"two columns for rail {int(match[1])}", "leave one of them out")
        rails[int(match[1])] = head
    for number, row in _rows(rows, source):
        value = {column: (row.get(head) or "").strip() or None for column, head in chosen.items()}
        if not any(value.values()) or (roles and value.get("role") not in roles):
            continue
        if value["name"] is None:
            raise InputError(f"{source}:{number}", "the node's name is empty", "each row names a node")
        ends = tuple(
            Rail(rail, *_rail_cell((row.get(head) or "").strip(), f"{source}:{number}: {head}"))
            for rail, head in sorted(rails.items())
            if (row.get(head) or "").strip()
        )
        yield Machine(
            value["name"],
            value.get("address"),
            f"{source}:{number}",
            value.get("rack"),
            value.get("position"),
            ends,
        )


def _heads(rows: csv.DictReader[str], source: str) -> dict[str, str]:
    """Names of columns in small letters, as they stand. A column that stands twice would hide one of them."""
    heads: dict[str, str] = {}
    try:
        names = rows.fieldnames or ()
    except csv.Error as error:
        raise InputError(f"{source}:1", f"is no CSV table: {error}") from error
    for head in names:
        name = (head or "").strip().lower()
        if name and name in heads:
            raise InputError(f"{source}:1", f"two columns {name!r}", "leave one of them out")
        heads[name] = head
    return heads


def _rows(rows: csv.DictReader[str], source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with the line that each ends in."""
    try:
        for row in rows:
            # DictReader keeps what is beyond the columns under None; a spreadsheet leaves empty cells there.
            if any(cell.strip() for cell in row.get(None, ())):
                raise InputError(
                    f"{source}:{rows.line_num}", "more cells than the table has columns", "correct the row"
                )
            yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"{source}:{rows.line_num}", f"is no CSV table: {error}") from error


def _rail_cell(text: str, where: str) -> tuple[str | None, str | None, str | None]:
    """An address, a leaf port ("leaf3/9", "leaf3 Ethernet9"), or both with a blank between."""
    address = leaf = port = None
    for word in text.replace(" Ethernet", "/Ethernet").replace(" swp", "/swp").split():
        if interface_of(word) is not None:
            address = word
        elif word.partition("/")[0] and word.partition("/")[2]:
            leaf, _, port = word.partition("/")
        else:
            raise InputError(
                where,
                f"found {text!r}",
                "expected an address like 10.100.3.1/31, a leaf port like leaf3/9, or both",
            )
    return address, leaf, port


def _netbox(text: str, source: str, roles: Sequence[str]) -> Iterator[Machine]:
    """Devices of /api/dcim/devices/, with the interfaces of /api/dcim/interfaces/ where the export has them."""
    try:
        data = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(source, f"is not JSON: {error}") from error
    entries = data if isinstance(data, list) else data.get("results")
    if not isinstance(entries, list):
        raise InputError(
            source, "no list of results", "expected what NetBox's API answers for devices or interfaces"
        )
    if isinstance(data, dict) and isinstance(data.get("next"), str):
        raise InputError(
            source,
            f"is one page of {data.get('count')} entries: the rest is missing",
            "export with ?limit=0, or join the pages into one list",
        )
    interfaces = _interfaces(
        [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("device"), dict)]
    )
    for number, entry in enumerate(entries):
        where = f"{source}: results[{number}]"
        if not isinstance(entry, dict):
            raise InputError(where, f"expected an object, found {type(entry).__name__}")
        if "device" in entry:
            continue
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise InputError(where, "a device without a name", "name it in NetBox")
        role = _inner(entry.get("role") or entry.get("device_role"), "slug", "name")
        status = _inner(entry.get("status"), "value", "label")
        if (roles and role not in roles) or status in ("offline", "decommissioning", "planned"):
            continue
        address = _inner(entry.get("primary_ip4") or entry.get("primary_ip"), "address")
        position = entry.get("position")
        yield Machine(
            name,
            address.split("/")[0] if address else None,
            where,
            _inner(entry.get("rack"), "name", "display"),
            None if position is None else f"{position:g}" if isinstance(position, float) else str(position),
            tuple(interfaces.get(name, ())),
        )


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _interfaces(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Rail]]:
    found: dict[str, list[Rail]] = {}
    for entry in entries:
        match = _RAIL_COLUMN.fullmatch(str(entry.get("name", "")).lower())
        device = _inner(entry["device"], "name")
        if match is None or device is None:
            continue
        ends = entry.get("connected_endpoints") or ()
        end = ends[0] if isinstance(ends, list) and ends and isinstance(ends[0], dict) else {}
        port = end.get("name")
        found.setdefault(device, []).append(
            Rail(
                int(match[1]),
                None,
                _inner(end.get("device"), "name"),
                port if isinstance(port, str) else None,
            )
        )
    return found


def _inner(value: Any, *keys: str) -> str | None:
    for key in keys:
        inner = value.get(key) if isinstance(value, dict) else None
        if isinstance(inner, str) and inner:
            return inner
    return None


def ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or None for a text that is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def interface_of(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    """The address with its prefix length, or None for a text that is none."""
    if "/" not in text and ip_of(text) is None:
        return None
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None
