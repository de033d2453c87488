"""What the switch beyond a port says of itself, as lldpd heard it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Optional

from ..discover.tools import NEIGHBOURS, tool_named
from ..model import Facts, InputError


def frame_sizes(facts: Facts) -> dict[str, tuple[str, int]]:
    """By netdev the neighbour's name and the largest frame that its port takes, in bytes with header and checksum.

    IEEE 802.3 Annex 79.3.4, Maximum Frame Size TLV. {} where lldpd was not asked or did not answer. Raises InputError.
    """
    tool = tool_named(facts.tools, NEIGHBOURS)
    if tool is None:
        return {}
    where = " ".join(tool.argv)
    try:
        data = json.loads(tool.output)
    except (ValueError, RecursionError):
        raise InputError(
            where, f"printed {tool.output[:60]!r}", "expected JSON; is this lldpd's lldpcli?"
        ) from None
    found = {}
    for netdev, neighbour in _neighbours(data, where):
        size = _text(_first(neighbour.get("port")), "mfs")
        if size is None:
            continue
        if not size.isdecimal() or len(size) > 6:
            raise InputError(f"{where}: {netdev}", f"found a frame size of {size[:20]!r}", "expected bytes")
        found[netdev] = (_name(neighbour), int(size))
    return found


def _neighbours(data: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for top in _listed(data.get("lldp", [])) if isinstance(data, dict) else [None]:
        if not isinstance(top, dict):
            raise InputError(where, "printed no object named lldp", "expected lldpcli -f json show neighbors")
        for interface in _listed(top.get("interface", [])):
            if not isinstance(interface, dict):
                raise InputError(where, f"found {str(interface)[:40]!r}", "expected an interface")
            named = {interface["name"]: interface} if isinstance(interface.get("name"), str) else interface
            for netdev, heard in named.items():
                yield from ((netdev, one) for one in _listed(heard) if isinstance(one, dict))


def _name(neighbour: dict[str, Any]) -> str:
    """The switch's own name: the key of its object in one of lldpd's forms, a field in the other."""
    chassis = _first(neighbour.get("chassis"))
    if not isinstance(chassis, dict):
        return "the switch"
    if "id" in chassis or "name" in chassis:
        return _text(chassis, "name") or "the switch"
    return next(iter(chassis), "the switch")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _text(holder: Any, key: str) -> Optional[str]:
    value = _first(holder.get(key)) if isinstance(holder, dict) else None
    if isinstance(value, dict):
        value = value.get("value")
    return value if isinstance(value, str) and value else str(value) if isinstance(value, int) else None
