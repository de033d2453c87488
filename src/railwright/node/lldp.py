"""What lldpd heard of the devices beyond a node's ports: `lldpcli -f json show neighbors` (and json0) as it prints it.

json has an object for each interface, named by it; json0 has lists everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Optional

from .discover.tools import NEIGHBOURS, tool_named
from .model import Facts, InputError


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
    if not isinstance(data, dict) or "lldp" not in data:
        raise InputError(where, "printed no object named lldp", "expected lldpcli -f json show neighbors")
    for netdev, neighbour in neighbours(data["lldp"], where):
        port = first(neighbour.get("port"))
        size = text(port.get("mfs")) if isinstance(port, dict) else None
        if size is None:
            continue
        if not size.isdecimal() or len(size) > 6:
            raise InputError(f"{where}: {netdev}", f"found a frame size of {size[:20]!r}", "expected bytes")
        found[netdev] = (chassis_name(neighbour) or "the switch", int(size))
    return found


def neighbours(lldp: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Netdev and neighbour, each pair. lldp: the value of the key of that name. Raises InputError."""
    for top in _listed(lldp):
        if not isinstance(top, dict):
            raise InputError(where, f"expected an object in lldp, found {type(top).__name__}")
        for interface in _listed(top.get("interface", [])):
            if not isinstance(interface, dict):
                raise InputError(where, f"expected an interface, found {type(interface).__name__}")
            named = {interface["name"]: interface} if isinstance(interface.get("name"), str) else interface
            for netdev, heard in named.items():
                for neighbour in _listed(heard):
                    if not isinstance(neighbour, dict):
                        raise InputError(
                            f"{where}: {netdev}", f"expected a neighbour, found {type(neighbour).__name__}"
                        )
                    yield netdev, neighbour


def chassis_name(neighbour: dict[str, Any]) -> Optional[str]:
    """The other device's own name, or else its id; None where neither is told."""
    chassis = first(neighbour.get("chassis"))
    if not isinstance(chassis, dict):
        return None
    if "id" in chassis or "name" in chassis:
        return text(chassis.get("name")) or text(chassis.get("id"))
    # json names the object by it.
    return next(iter(chassis), None)


def first(value: Any) -> Any:
    """The first of a list that is not empty; else the value."""
    return value[0] if isinstance(value, list) and value else value


def text(value: Any) -> Optional[str]:
    """A value as text, out of its list or object; None where there is none."""
    value = first(value)
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
