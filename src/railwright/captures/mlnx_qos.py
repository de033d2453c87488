"""`mlnx_qos -i NETDEV`: trust, PFC and ETS of one interface. It does not print which interface it was asked for.

The interface is known only where the command line stands above the output. Facts have no place for QoS as it is
(the node's own reader asks the tools anew), so what is seen is said in notes.
"""

from __future__ import annotations

import re

from railwright.node.model import Facts, InputError, Nic

from .fields import facts_of, lines_of, name, whole
from .source import Source

_COMMAND = re.compile(r"\bmlnx_qos\b.{0,80}?\s(?:-i|--interface)[ =]?([^\s]+)")
_TRUST = re.compile(r"^Priority trust state: (\S+)$")
_ROW = re.compile(r"^(priority|enabled|buffer)((?:\s+\d{1,3}){8})$", re.ASCII)
_DSCP = re.compile(r"^prio:([0-7]) dscp:((?:\d\d,)+)$", re.ASCII)
_CLASS = re.compile(r"^tc: (\d) ratelimit: (.{1,40}?), tsa: (\w+)(?:, bw: (\d{1,3})%)?$", re.ASCII)


def read_mlnx_qos(source: Source) -> Facts:
    """One interface's QoS as notes, and the interface where its name is told. Raises InputError with file and line."""
    netdev: str | None = None
    trust: str | None = None
    rows: dict[str, tuple[int, ...]] = {}
    moved: list[str] = []
    owner: dict[int, int] = {}
    shares: dict[int, str] = {}
    for line in lines_of(source):
        where, text = source.at(line.number), line.text.strip()
        if command := _COMMAND.search(text):
            netdev = name(command[1], where)
        elif text.startswith("Priority trust state:"):
            trust = _trust(text, where)
        elif text.startswith(("priority ", "enabled ", "buffer ")) and not text.startswith("priority:"):
            kind, numbers = _row(text, where)
            rows[kind] = numbers
        elif text.startswith("prio:"):
            _dscp(text, where, owner, moved)
        elif text.startswith("tc:"):
            number, share = _traffic_class(text, where)
            if number in shares:
                raise InputError(where, f"tc {number} stands twice", "give one interface at a time")
            shares[number] = share
    if trust is None and "enabled" not in rows:
        raise InputError(
            source.name, "shows neither trust nor PFC", "give the whole output of mlnx_qos -i NETDEV"
        )
    return facts_of(
        "mlnx_qos",
        source,
        nics=() if netdev is None else (Nic(netdev, netdev=netdev),),
        notes=_notes(netdev, trust, rows, moved, shares),
    )


def _trust(text: str, where: str) -> str:
    match = _TRUST.match(text)
    if match is None or match[1] not in {"pcp", "dscp"}:
        raise InputError(where, f"found {text[:60]!r}", "expected Priority trust state: pcp or dscp")
    return match[1]


def _row(text: str, where: str) -> tuple[str, tuple[int, ...]]:
    match = _ROW.match(text)
    if match is None:
        raise InputError(where, f"found {text[:60]!r}", "expected eight numbers, one for each priority")
    numbers = tuple(int(part) for part in match[2].split())
    if match[1] == "priority" and numbers != tuple(range(8)):
        raise InputError(where, f"found {text[:60]!r}", "expected the priorities 0 to 7")
    if match[1] == "enabled" and not set(numbers) <= {0, 1}:
        raise InputError(where, f"found {text[:60]!r}", "expected 0 or 1 for each priority")
    return match[1], numbers


def _dscp(text: str, where: str, owner: dict[int, int], moved: list[str]) -> None:
    match = _DSCP.match(text)
    if match is None:
        raise InputError(where, f"found {text[:60]!r}", "expected a line like prio:5 dscp:47,46,45,")
    priority = int(match[1])
    for part in match[2].rstrip(",").split(","):
        point = whole(part, 0, 63, where)
        if owner.setdefault(point, priority) != priority:
            raise InputError(where, f"DSCP {point} has priorities {owner[point]} and {priority}")
        # The default is the three upper bits (mlnx_qos; RFC 8325 class selectors).
        if priority != point >> 3:
            moved.append(f"{point} to {priority}")


def _traffic_class(text: str, where: str) -> tuple[int, str]:
    match = _CLASS.match(text)
    if match is None or int(match[4] or "0") > 100:
        raise InputError(
            where, f"found {text[:60]!r}", "expected a line like tc: 0 ratelimit: unlimited, tsa: ets, bw: 9%"
        )
    return whole(match[1], 0, 7, where), f"{match[3]} {match[4]}%" if match[4] else match[3]


def _notes(
    netdev: str | None,
    trust: str | None,
    rows: dict[str, tuple[int, ...]],
    moved: list[str],
    shares: dict[int, str],
) -> tuple[str, ...]:
    whose = f"mlnx_qos of {netdev}" if netdev else "mlnx_qos of an interface that it does not name"
    said = [f"{whose}: trust {trust or 'not shown'}"]
    if "enabled" in rows:
        on = [str(priority) for priority, flag in enumerate(rows["enabled"]) if flag]
        said.append(f"PFC on for priority {', '.join(on)}" if on else "PFC on for no priority")
    else:
        said.append("PFC not shown")
    if moved:
        said.append(f"DSCP moved: {', '.join(moved)}")
    if shares:
        said.append("classes " + ", ".join(f"{number}: {share}" for number, share in sorted(shares.items())))
        if len(shares) < 8:
            said.append(f"{len(shares)} of 8 classes shown")
    return ("; ".join(said),)
