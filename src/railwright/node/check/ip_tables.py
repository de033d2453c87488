"""Rules and routes as `ip -j` tells them."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from ..discover.tools import ROUTES, RULES, tool_named
from ..model import Facts, InputError, Tool

MAIN, LOCAL = "254", "255"
# Linux include/uapi/linux/rtnetlink.h, for an `ip` that prints names where numbers were asked for.
_TABLES = {"default": "253", "main": MAIN, "local": LOCAL}


@dataclass(frozen=True)
class Rule:
    """source None: of any address. interface: the outgoing one that the rule asks for. table None: no look-up."""

    priority: int
    source: Optional[ipaddress.IPv4Network]
    interface: Optional[str]
    table: Optional[str]


@dataclass(frozen=True)
class Way:
    """One route. devices: one, or one for each next hop. direct: without a gateway."""

    table: str
    destination: ipaddress.IPv4Network
    devices: tuple[str, ...]
    direct: bool


def read_rules(facts: Facts) -> Optional[tuple[Rule, ...]]:
    """The node's IPv4 rules in their order; None where `ip` was not asked or did not answer. Raises InputError."""
    tool = tool_named(facts.tools, RULES)
    return None if tool is None else tuple(_rule(entry, where) for where, entry in _entries(tool))


def read_ways(facts: Facts) -> Optional[tuple[Way, ...]]:
    """The node's IPv4 routes of all tables; None where `ip` was not asked or did not answer. Raises InputError."""
    tool = tool_named(facts.tools, ROUTES)
    return None if tool is None else tuple(_way(entry, where) for where, entry in _entries(tool))


def _entries(tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
    where = " ".join(tool.argv)
    try:
        found = json.loads(tool.output or "[]")
    except (ValueError, RecursionError):
        raise InputError(where, f"printed {tool.output[:60]!r}", "expected JSON; is this iproute2?") from None
    if not isinstance(found, list):
        raise InputError(where, f"printed {type(found).__name__}", "expected a list of JSON objects")
    for number, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise InputError(f"{where}[{number}]", f"found {str(entry)[:60]!r}", "expected a JSON object")
        # An empty object stands for what `ip` left out.
        if entry:
            yield f"{where}[{number}]", entry


def _text(entry: dict[str, Any], key: str, where: str) -> Optional[str]:
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{where}.{key}", f"found {str(value)[:40]!r}", "expected a text")


def _network(text: str, length: Optional[str], where: str) -> ipaddress.IPv4Network:
    whole = {"default": "0.0.0.0/0", "all": "0.0.0.0/0"}.get(text, text)
    try:
        return ipaddress.IPv4Network(whole if length is None or "/" in whole else f"{whole}/{length}", False)
    except ValueError:
        raise InputError(where, f"found {text[:40]!r}", "expected an IPv4 address or network") from None


def _rule(entry: dict[str, Any], where: str) -> Rule:
    priority = entry.get("priority")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InputError(f"{where}.priority", f"found {str(priority)[:40]!r}", "expected a number")
    source = _text(entry, "src", where)
    table = _text(entry, "table", where)
    return Rule(
        priority,
        None
        if source in (None, "all")
        else _network(source or "", _text(entry, "srclen", where), f"{where}.src"),
        _text(entry, "oif", where) or _text(entry, "oifname", where),
        None if table is None else _TABLES.get(table, table),
    )


def _way(entry: dict[str, Any], where: str) -> Way:
    table = _text(entry, "table", where) or MAIN
    hops = entry.get("nexthops", [])
    if not isinstance(hops, list) or not all(isinstance(hop, dict) for hop in hops):
        raise InputError(f"{where}.nexthops", f"found {str(hops)[:40]!r}", "expected a list of JSON objects")
    ends = [_text(part, "dev", where) for part in (entry, *hops)]
    return Way(
        _TABLES.get(table, table),
        _network(_text(entry, "dst", where) or "", None, f"{where}.dst"),
        tuple(end for end in ends if end is not None),
        not any("gateway" in part or "via" in part for part in (entry, *hops)),
    )
