"""What `mlnx_qos -i IF` prints of one port, where a driver of DOCA-OFED is and iproute2's dcb is not.

It prints text for people only, and knows a code point's priority only while DSCP is trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ..model import InputError
from ..model.qos import Buffers, Ets
from .dcb import ALGORITHMS, number

_ROW = re.compile(r"^(priority|enabled|buffer)((?:\s+\d{1,3}){8})$", re.ASCII)
_DSCP = re.compile(r"^prio:([0-7]) dscp:((?:\d\d,)+)$", re.ASCII)
_CLASS = re.compile(r"^tc: ([0-7]) ratelimit: (.{1,40}?), tsa: (\w+)(?:, bw: (\d{1,3})%)?$", re.ASCII)
_MEMBER = re.compile(r"^priority:\s+([0-7])$", re.ASCII)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) (Gbps|Mbps)", re.ASCII)
_OWNERS = {"OS controlled": ("host", "ieee"), "Firmware controlled": ("ieee",)}
_BYTES = {"Gbps": 125_000_000, "Mbps": 125_000}


@dataclass
class Port:
    """One port. None where the output does not tell."""

    dcbx: Optional[tuple[str, ...]] = None
    trust: Optional[str] = None
    dscp_prio: Optional[dict[str, int]] = None
    cable_m: Optional[int] = None
    pfc: Optional[tuple[int, ...]] = None
    ets: Optional[Ets] = None
    tc_rate: Optional[tuple[int, ...]] = None
    buffers: Optional[Buffers] = None


def read(text: str, where: str) -> Port:
    """The port from the whole output. Raises InputError with the line."""
    port = Port()
    points: dict[str, int] = {}
    rows: dict[str, tuple[int, ...]] = {}
    sizes: Optional[tuple[int, ...]] = None
    total: Optional[int] = None
    classes: dict[int, tuple[str, int, int]] = {}
    member: dict[int, int] = {}
    current: Optional[int] = None
    for n, line in enumerate(text.splitlines(), start=1):
        place, words = f"{where}, line {n}", line.strip()
        if words.startswith("DCBX mode:"):
            port.dcbx = _owner(words, place)
        elif words.startswith("Priority trust state:"):
            port.trust = _trust(words, place)
        elif words.startswith("prio:"):
            _points(words, place, points)
        elif words.startswith("Receive buffer size"):
            sizes = _sizes(words, place)
            total = _total(words, place)
        elif words.startswith("Cable len:"):
            port.cable_m = number(words.partition(":")[2].strip(), 0, 2**16, place, "a length")
        elif words.startswith(("priority ", "enabled ", "buffer ")):
            name, row = _row(words, place)
            rows[name] = row
        elif words.startswith("tc:"):
            current, told = _class(words, place)
            if current in classes:
                raise InputError(place, f"tc {current} stands twice", "give one port at a time")
            classes[current] = told
        elif words.startswith("priority:"):
            _member(words, place, current, member)
    if port.trust is None and "enabled" not in rows:
        raise InputError(where, "shows neither trust nor PFC", "give the whole output of mlnx_qos -i IF")
    if "enabled" in rows:
        port.pfc = tuple(prio for prio, flag in enumerate(rows["enabled"]) if flag)
    if "buffer" in rows and sizes is not None:
        port.buffers = Buffers(rows["buffer"], sizes, total)
    if len(member) == 8 and set(member.values()) <= set(classes):
        port.ets, port.tc_rate = _scheduling(classes, member)
    if port.trust is not None:
        port.dscp_prio = points if port.trust == "dscp" else {}
    return port


def _owner(words: str, place: str) -> tuple[str, ...]:
    owner = words.partition(":")[2].strip()
    if owner not in _OWNERS:
        raise InputError(place, f"found {owner[:40]!r}", f"expected {' or '.join(_OWNERS)}")
    return _OWNERS[owner]


def _trust(words: str, place: str) -> str:
    state = words.partition(":")[2].strip()
    if state not in ("pcp", "dscp"):
        raise InputError(place, f"found {words[:60]!r}", "expected Priority trust state: pcp or dscp")
    return state


def _points(words: str, place: str, points: dict[str, int]) -> None:
    match = _DSCP.match(words)
    if match is None:
        raise InputError(place, f"found {words[:60]!r}", "expected a line like prio:5 dscp:47,46,45,")
    for part in match[2].rstrip(",").split(","):
        point, prio = number(part, 0, 63, place, "a DSCP"), int(match[1])
        if points.setdefault(str(point), prio) != prio:
            raise InputError(place, f"DSCP {point} has priorities {points[str(point)]} and {prio}")


def _sizes(words: str, place: str) -> tuple[int, ...]:
    # "20016,156096,0,0,0,0,0,0,max_buffer_size=262016" in newer versions.
    parts = [part for part in words.partition(":")[2].strip().split(",") if part and "=" not in part]
    if len(parts) != 8:
        raise InputError(place, f"found {len(parts)} sizes", "expected eight")
    return tuple(number(part.strip(), 0, 2**30, place, "a size") for part in parts)


def _total(words: str, place: str) -> Optional[int]:
    found = words.partition("max_buffer_size=")[2].partition(",")[0].strip()
    return number(found, 0, 2**30, place, "a size") if found else None


def _row(words: str, place: str) -> tuple[str, tuple[int, ...]]:
    match = _ROW.match(words)
    if match is None:
        raise InputError(place, f"found {words[:60]!r}", "expected eight numbers, one for each priority")
    name, row = match[1], tuple(int(part) for part in match[2].split())
    if name == "priority" and row != tuple(range(8)):
        raise InputError(place, f"found {words[:60]!r}", "expected the priorities 0 to 7")
    if name == "enabled" and not set(row) <= {0, 1}:
        raise InputError(place, f"found {words[:60]!r}", "expected 0 or 1 for each priority")
    if name == "buffer" and max(row) > 7:
        raise InputError(place, f"found {words[:60]!r}", "expected a buffer, 0 to 7, for each priority")
    return name, row


def _class(words: str, place: str) -> tuple[int, tuple[str, int, int]]:
    match = _CLASS.match(words)
    rate = None if match is None else _RATE.fullmatch(match[2])
    if match is None or match[3] not in ALGORITHMS or (rate is None and match[2] != "unlimited"):
        raise InputError(
            place,
            f"found {words[:60]!r}",
            "expected a line like tc: 0 ratelimit: unlimited, tsa: ets, bw: 9%",
        )
    share = number(match[4] or "0", 0, 100, place, "a share")
    limit = 0 if rate is None else int(float(rate[1]) * _BYTES[rate[2]])
    return int(match[1]), (match[3], share if match[3] == "ets" else 0, limit)


def _member(words: str, place: str, current: Optional[int], member: dict[int, int]) -> None:
    match = _MEMBER.match(words)
    if match is None or current is None:
        raise InputError(place, f"found {words[:60]!r}", "expected a priority below its traffic class")
    if member.setdefault(int(match[1]), current) != current:
        raise InputError(place, f"priority {match[1]} is in two traffic classes")


def _scheduling(
    classes: dict[int, tuple[str, int, int]], member: dict[int, int]
) -> tuple[Ets, tuple[int, ...]]:
    """A traffic class that is not printed has no priority: how it is served matters to nothing."""
    rows = [classes.get(tc, ("strict", 0, 0)) for tc in range(8)]
    ets = Ets(
        tuple(member[prio] for prio in range(8)), tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    )
    return ets, tuple(row[2] for row in rows)
