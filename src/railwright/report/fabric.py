"""The lossless contract on the page: classes of hosts and switches side by side, headroom of each link.

It is there when `railwright lint-fabric --output DIR` has left fabric.json in the run's directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railwright.fabric.links import Link
from railwright.fabric.lint import SCHEMA
from railwright.node.check import is_open
from railwright.node.model import Finding, InputError, from_json

from .collect import SEVERITIES, Check, load
from .numbers import count

FILE = "fabric.json"


@dataclass(frozen=True)
class Place:
    """What a switch or a host makes of a class. dscp: code point to class or priority. None is not known."""

    name: str
    kind: str
    dscp: dict[str, int | None]
    pfc: bool | None = None
    ecn: bool | None = None
    strict: bool | None = None
    agrees: bool | None = None


@dataclass(frozen=True)
class TrafficClass:
    """One class of the contract and every place where it was looked for."""

    name: str
    dscp: tuple[int, ...]
    prio: int
    lossless: bool
    strict: bool
    bandwidth_percent: int | None
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Pool:
    """Headroom that a switch's links want, and what it has. Bytes."""

    switch: str
    wanted_bytes: int
    pool_bytes: int | None = None


@dataclass(frozen=True)
class Ecn:
    """Marking at one speed, and where the numbers come from."""

    speed_gbps: int
    min_bytes: int
    max_bytes: int
    probability_percent: int
    source: str
    confidence: str | None = None


@dataclass(frozen=True)
class Fabric:
    """The lint's document, as lint-fabric writes it. ok is judged anew from the findings."""

    schema: str
    ok: bool
    source: str
    classes: tuple[TrafficClass, ...]
    default_prio: int
    host_mtu: int
    switch_mtu: int
    ecn: tuple[Ecn, ...]
    links: tuple[Link, ...]
    pools: tuple[Pool, ...]
    findings: tuple[Finding, ...]
    seen: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One class at one place, in words. state: "agrees", "differs" or "unseen"."""

    words: str
    state: str


@dataclass(frozen=True)
class Row:
    """One place with its cells, in the order of the classes."""

    name: str
    kind: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class FabricView:
    """What the template shows. reason: why the file cannot be used; then nothing else is there."""

    fabric: Fabric | None
    rows: tuple[Row, ...]
    sources: tuple[str, ...]
    open: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    reason: str = ""


def read_fabric(directory: Path) -> FabricView | None:
    """The fabric of a run, None when nothing linted it. A file that cannot be used is a reason, not an error."""
    path = directory / FILE
    if not path.is_symlink() and not path.exists():
        return None
    try:
        return view(_fabric(load(path, FILE), FILE))
    except InputError as error:
        return FabricView(None, (), (), (), (), (), str(error))


def _fabric(data: Any, where: str) -> Fabric:
    fabric = from_json(Fabric, data, where)
    if fabric.schema != SCHEMA:
        raise InputError(f"{where}.schema", f"found {fabric.schema[:40]!r}", f"expected {SCHEMA!r}")
    for number, finding in enumerate(fabric.findings):
        if finding.severity not in SEVERITIES:
            raise InputError(
                f"{where}.findings[{number}].severity",
                f"unknown severity {finding.severity!r}",
                f"one of {', '.join(SEVERITIES)}",
            )
    return fabric


def view(fabric: Fabric) -> FabricView:
    """The rows and groups of the page."""
    numbers = [
        number
        for link in fabric.links
        for number in (link.bound, link.table, link.formula, link.host_buffer)
        if number is not None
    ]
    sources = {f"{one.formula}; {one.source} ({one.confidence})" for one in numbers}
    return FabricView(
        fabric,
        _rows(fabric),
        tuple(sorted(sources)),
        tuple(finding for finding in fabric.findings if is_open(finding)),
        tuple(one for one in fabric.findings if one.severity == "info" and one.accepted is None),
        tuple(finding for finding in fabric.findings if finding.accepted is not None),
    )


def check(fabric: FabricView | None) -> tuple[Check, ...]:
    """The run's own check of its fabric; none when nothing linted it, skipped when the lint had nothing to look at."""
    if fabric is None:
        return ()
    if fabric.fabric is None:
        return (Check("fabric", False, fabric.reason, False),)
    unseen = "no switch and no host was looked at"
    if fabric.open:
        detail = count(len(fabric.open), "open finding")
        return (Check("fabric", False, detail if fabric.fabric.seen else f"{detail}; {unseen}", False),)
    if not fabric.fabric.seen:
        return (Check("fabric", False, unseen, True),)
    return (Check("fabric", True, "hosts and switches agree where they were seen", False),)


def summary(fabric: FabricView) -> dict[str, Any]:
    """The fabric in report.json."""
    return {
        "ok": all(one.ok for one in check(fabric)),
        "reason": fabric.reason or None,
        "open": len(fabric.open),
        "seen": list(fabric.fabric.seen) if fabric.fabric is not None else [],
    }


def _rows(fabric: Fabric) -> tuple[Row, ...]:
    """The contract first, then each place; every class has the same places in the same order."""
    rows = [Row("contract", "contract", tuple(Cell(_wanted(one), "agrees") for one in fabric.classes))]
    for places in zip(*(one.places for one in fabric.classes), strict=False):
        cells = tuple(_cell(one, place) for one, place in zip(fabric.classes, places, strict=True))
        rows.append(Row(places[0].name, places[0].kind, cells))
    return tuple(rows)


def _wanted(one: TrafficClass) -> str:
    parts = [f"DSCP {', '.join(map(str, one.dscp))} → {one.prio}"]
    parts += ["PFC", "ECN"] if one.lossless else []
    parts += ["strict"] if one.strict else []
    return " · ".join(parts)


def _cell(one: TrafficClass, place: Place) -> Cell:
    state = "unseen" if place.agrees is None else "agrees" if place.agrees else "differs"
    seen = [f"{point} → {value}" for point, value in place.dscp.items() if value is not None]
    if not seen and place.pfc is None:
        return Cell("not seen", state)
    parts = [", ".join(seen) if seen else f"DSCP {', '.join(place.dscp)} not mapped"]
    for word, has in (("PFC", place.pfc), ("ECN", place.ecn), ("strict", place.strict)):
        if has:
            parts.append(word)
        elif has is False and word in _wanted(one):
            parts.append(f"no {word}")
    return Cell(" · ".join(parts), state)
