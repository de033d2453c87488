"""What iproute2's `dcb -j PART show dev IF` and `ethtool -a IF` say of one port."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Optional

from ..model import InputError
from ..model.qos import Buffers, Ets

# What is asked for; "RX negotiated" is another line.
_PAUSE = re.compile(r"^(RX|TX):[ \t]+(on|off)[ \t]*$", re.MULTILINE)
ALGORITHMS = ("strict", "cbs", "ets", "vendor")
_DCBX = ("host", "lld_managed", "cee", "ieee", "static")
# Eight buffers of a NIC are far below a GiB; dcb counts both in bytes and rates in bytes a second.
_MOST_BYTES, _MOST_RATE = 2**30, 2**64 - 1


def one_device(text: Any, where: str) -> Mapping[str, Any]:
    """The object of one device; dcb prints it alone or in a list. Raises InputError."""
    data = json_value(text, where)
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if not isinstance(data, dict):
        raise InputError(where, f"found {type(data).__name__}", "give `dcb -j ... show dev IF` of one device")
    return data


def json_value(text: Any, where: str) -> Any:
    """The value of JSON text; what is a value already stays. Raises InputError."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"is not JSON: {str(error)[:120]}") from None


def pfc(data: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The priorities with PFC."""
    flags = data.get("prio_pfc")
    if not isinstance(flags, list) or len(flags) != 8 or not all(isinstance(flag, bool) for flag in flags):
        raise InputError(f"{where}.prio_pfc", f"found {str(flags)[:60]}", "expected eight of true and false")
    return tuple(n for n, flag in enumerate(flags) if flag)


def delay(data: Mapping[str, Any], where: str) -> Optional[int]:
    """The delay that PFC allows for: metres of cable on mlx5. None where it is not printed."""
    return number(data["delay"], 0, 2**32, where, "delay") if "delay" in data else None


def dscp_prio(data: Mapping[str, Any], where: str) -> dict[int, int]:
    """DSCP to priority, as far as there are entries."""
    rows = data.get("dscp_prio", [])
    found: dict[int, int] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        # iproute2 6.5 and later print a blank third item into each pair of the JSON.
        blank = isinstance(row, list) and len(row) == 3 and isinstance(row[2], str) and not row[2].strip()
        if not isinstance(row, list) or (len(row) != 2 and not blank):
            raise InputError(f"{where}.dscp_prio", f"found {str(row)[:60]}", "expected pairs like [26, 3]")
        point = number(row[0], 0, 63, f"{where}.dscp_prio", "a DSCP")
        # With several entries for a code point the kernel takes the highest priority.
        found[point] = max(number(row[1], 0, 7, f"{where}.dscp_prio", "a priority"), found.get(point, 0))
    return found


def prio_tc(data: Mapping[str, Any], where: str) -> tuple[int, ...]:
    return _eight(data, "prio_tc", 7, where, "classes", "a class")


def algorithms(data: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """How each traffic class is served."""
    row = data.get("tc_tsa")
    if not isinstance(row, list) or len(row) != 8:
        raise InputError(f"{where}.tc_tsa", f"found {str(row)[:60]}", "expected eight words")
    for word in row:
        if word not in ALGORITHMS:
            raise InputError(
                f"{where}.tc_tsa", f"found {str(word)[:40]!r}", f"one of {', '.join(ALGORITHMS)}"
            )
    return tuple(row)


def tc_bw(data: Mapping[str, Any], where: str) -> tuple[int, ...]:
    return _eight(data, "tc_bw", 100, where, "shares", "a share")


def ets(data: Mapping[str, Any], where: str) -> Ets:
    """Scheduling. A class that is not scheduled by shares has none, whatever number stands there: mlx5 prints 100."""
    words = algorithms(data, where)
    row = tc_bw(data, where)
    return Ets(
        prio_tc(data, where), words, tuple(share if word == "ets" else 0 for word, share in zip(words, row))
    )


def maxrate(data: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Bytes a second of each traffic class; 0 is no limit."""
    return _eight(data, "tc_maxrate", _MOST_RATE, where, "rates", "a rate")


def buffers(data: Mapping[str, Any], where: str) -> Buffers:
    total = data.get("total_size")
    return Buffers(
        _eight(data, "prio_buffer", 7, where, "buffers", "a buffer"),
        _eight(data, "buffer_size", _MOST_BYTES, where, "sizes", "a size"),
        None if total is None else number(total, 0, _MOST_BYTES, f"{where}.total_size", "a size"),
    )


def dcbx(data: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The flags that are on."""
    for key, value in data.items():
        if not isinstance(value, bool):
            raise InputError(f"{where}.{key}", f"found {str(value)[:60]}", "expected true or false")
    return tuple(flag for flag in _DCBX if data.get(flag))


def pause(text: str, where: str) -> tuple[bool, bool]:
    """Whether 802.3x pause is on, received and sent, from `ethtool -a IF`. Raises InputError."""
    ways = dict(_PAUSE.findall(text))
    if set(ways) != {"RX", "TX"}:
        raise InputError(where, f"found {text[:60]!r}", "expected RX and TX, each on or off")
    return ways["RX"] == "on", ways["TX"] == "on"


def number(value: Any, low: int, high: int, where: str, what: str) -> int:
    """A whole number in a range, of JSON or in digits. Raises InputError."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(where, f"found {str(value)[:40]!r} as {what}", f"expected {low} to {high}")
    return value


def _eight(data: Mapping[str, Any], key: str, most: int, where: str, what: str, one: str) -> tuple[int, ...]:
    row = data.get(key)
    if not isinstance(row, list) or len(row) != 8:
        raise InputError(f"{where}.{key}", f"found {str(row)[:60]}", f"expected eight {what}")
    return tuple(number(value, 0, most, f"{where}.{key}", one) for value in row)
