"""The rack on the page: nodes, rails and leaves, as the nodes of a run were planned together (`fleet.json`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railwright.fleet.told import SCHEMA
from railwright.node.check import is_open
from railwright.node.model import Finding, InputError, from_json

from .collect import SEVERITIES, load
from .order import natural

FILE = "fleet.json"
# More rows than this are folded: nodes that are alike and good share one.
MOST_ROWS = 48


@dataclass(frozen=True)
class End:
    """A rail's NIC and the switch's end of its cable; None is not known."""

    nic: str | None
    pci: str | None
    leaf: str | None = None
    port: str | None = None

    @property
    def at(self) -> str | None:
        """The leaf port in one word."""
        return None if self.leaf is None else f"{self.leaf}/{self.port}"


@dataclass(frozen=True)
class RackNode:
    """One node. rails: by number, as text."""

    shape: str
    status: str
    state: str
    left: str | None
    plan_sha256: str
    rails: dict[str, End]
    findings: tuple[Finding, ...]
    policy: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RackShape:
    """One build, and how many nodes have it."""

    key: str
    name: str
    nodes: int


@dataclass(frozen=True)
class Rack:
    """The file."""

    schema: str
    shapes: tuple[RackShape, ...]
    leaves: dict[str, int]
    findings: tuple[Finding, ...]
    nodes: dict[str, RackNode]


@dataclass(frozen=True)
class Stop:
    """One rail of a row. odd: what is wrong with it, or "". error: and it is. end None: the node has no such rail."""

    end: End | None
    odd: str = ""
    error: bool = False


@dataclass(frozen=True)
class RackRow:
    """One row of the picture: a node, or nodes that are alike. odd: what is wrong with the node as a whole, or ""."""

    names: tuple[str, ...]
    stops: tuple[Stop, ...]
    state: str
    odd: str = ""
    error: bool = False


@dataclass(frozen=True)
class RackView:
    """What the page shows. leaves: for each rail the leaves that carry it. reason: why the file cannot be used."""

    rack: Rack | None
    rails: tuple[int, ...] = ()
    leaves: tuple[tuple[str, ...], ...] = ()
    rows: tuple[RackRow, ...] = ()
    reason: str = ""

    @property
    def odd(self) -> int:
        """How many nodes have something odd."""
        return sum(len(row.names) for row in self.rows if row.odd or any(stop.odd for stop in row.stops))

    def leaf_port(self, node: str, rail: int | None) -> str | None:
        """Where a rail's cable ends."""
        found = None if self.rack is None else self.rack.nodes.get(node)
        end = None if found is None or rail is None else found.rails.get(str(rail))
        return None if end is None else end.at


def read_rack(directory: Path, of_run: Collection[str] | None = None) -> RackView | None:
    """The rack of a run; None where its nodes were not planned together. A file of no use is a reason, not an error."""
    path = directory / FILE
    if not path.is_symlink() and not path.exists():
        return None
    try:
        return view(_rack(load(path, FILE), FILE), of_run)
    except InputError as error:
        return RackView(None, reason=str(error))


def _rack(data: Any, where: str) -> Rack:
    rack = from_json(Rack, data, where)
    if rack.schema != SCHEMA:
        raise InputError(f"{where}.schema", f"found {rack.schema[:40]!r}", f"expected {SCHEMA!r}")
    for name, node in rack.nodes.items():
        for rail in node.rails:
            if not (rail.isdecimal() and len(rail) < 5):
                raise InputError(
                    f"{where}.nodes.{name}.rails", f"found {rail[:20]!r}", "expected a rail's number"
                )
        for finding in node.findings:
            if finding.severity not in SEVERITIES:
                raise InputError(
                    f"{where}.nodes.{name}.findings", f"unknown severity {finding.severity[:20]!r}"
                )
    return rack


def view(rack: Rack, of_run: Collection[str] | None = None) -> RackView:
    """Rows and columns of the picture."""
    names = sorted((name for name in rack.nodes if of_run is None or name in of_run), key=natural)
    rails = tuple(sorted({int(rail) for name in names for rail in rack.nodes[name].rails}))
    leaves = tuple(
        tuple(sorted((leaf for leaf, number in rack.leaves.items() if number == rail), key=natural))
        for rail in rails
    )
    rows = [_row(name, rack.nodes[name], rails) for name in names]
    return RackView(rack, rails, leaves, tuple(_folded(rows, rack) if len(rows) > MOST_ROWS else rows))


def _row(name: str, node: RackNode, rails: tuple[int, ...]) -> RackRow:
    wrong = [finding for finding in node.findings if is_open(finding) and finding.severity != "info"]
    told: set[int] = set()
    stops = []
    for rail in rails:
        end = node.rails.get(str(rail))
        own = [n for n, finding in enumerate(wrong) if _is_about(finding, rail, end)]
        told.update(own)
        stops.append(Stop(end, *_told([wrong[n] for n in own])))
    rest = [finding for n, finding in enumerate(wrong) if n not in told]
    return RackRow((name,), tuple(stops), node.state, *_told(rest))


def _told(findings: list[Finding]) -> tuple[str, bool]:
    return "; ".join(finding.why for finding in findings), any(one.severity == "error" for one in findings)


def _is_about(finding: Finding, rail: int, end: End | None) -> bool:
    if finding.where.startswith(f"rail{rail} "):
        return True
    return end is not None and end.pci is not None and end.pci in finding.where


def _folded(rows: list[RackRow], rack: Rack) -> list[RackRow]:
    """Good nodes of one build share a row; each odd one keeps its own, up to the most that a picture holds."""
    odd = [row for row in rows if row.odd or any(stop.odd for stop in row.stops)]
    good: dict[tuple[str, str], list[RackRow]] = {}
    for row in rows:
        if row not in odd:
            good.setdefault((rack.nodes[row.names[0]].shape, row.state), []).append(row)
    folded = [
        RackRow(
            tuple(row.names[0] for row in alike),
            tuple(Stop(None if stop.end is None else End(None, None)) for stop in alike[0].stops),
            state,
        )
        for (_, state), alike in good.items()
    ]
    return [*odd[:MOST_ROWS], *folded]
