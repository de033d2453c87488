"""What the picture knows of links and findings: which link carries how much, which device has a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from railwright.node.model import Finding, LoadedLink, Plan

from .layout import Layout
from .tree import MACHINE, Station


@dataclass(frozen=True)
class Traffic:
    """Links by the key of their lower end, those between NUMA nodes, and NIC ports by the key of the NIC."""

    by_key: dict[str, LoadedLink]
    between_numa: LoadedLink | None
    ports: dict[str, LoadedLink]

    @property
    def links(self) -> tuple[LoadedLink, ...]:
        """All that the picture shows."""
        between = () if self.between_numa is None else (self.between_numa,)
        return (*self.by_key.values(), *between, *self.ports.values())


def traffic_of(plan: Plan, layout: Layout) -> Traffic:
    """The plan's links on the picture. Both directions are one link there, and the fuller one speaks for it."""
    keys: dict[str, str] = {}
    for key, place in layout.places.items():
        for name in place.station.names:
            keys.setdefault(name, key)
    by_key: dict[str, list[LoadedLink]] = {}
    between: list[LoadedLink] = []
    ports: dict[str, LoadedLink] = {}
    for link in plan.links:
        a, b = keys.get(link.a), keys.get(link.b)
        if link.kind == "port" and a is not None:
            ports[a] = link
        elif a is None or b is None or a == b:
            continue
        elif layout.places[a].parent == MACHINE and layout.places[b].parent == MACHINE:
            between.append(link)
        elif _is_below(layout, a, b):
            by_key.setdefault(a, []).append(link)
        elif _is_below(layout, b, a):
            by_key.setdefault(b, []).append(link)
    fullest = {key: _fullest(links) for key, links in by_key.items()}
    return Traffic({key: link for key, link in fullest.items() if link is not None}, _fullest(between), ports)


def alarms_of(tree: Station, findings: Iterable[Finding]) -> dict[str, str]:
    """Key of each GPU and NIC that an open finding names, with the worst severity: error or warning."""
    told = [finding for finding in findings if finding.accepted is None]
    alarms: dict[str, str] = {}
    for leaf in tree.walk():
        if leaf.kind in ("gpu", "nic"):
            named = {finding.severity for finding in told if mentions(finding.where, leaf.names)}
            for severity in ("warning", "error"):
                if severity in named:
                    alarms[leaf.key] = severity
    return alarms


def mentions(where: str, names: Iterable[str]) -> bool:
    """Whether a place mentions one of the names as a whole word: "mlx5_1" is not in "mlx5_10"."""
    return any(re.search(rf"(?<![\w.:]){re.escape(name)}(?![\w:])", where) for name in names)


def _is_below(layout: Layout, key: str, other: str) -> bool:
    parent = layout.places[key].parent
    while parent is not None:
        if parent == other:
            return True
        parent = layout.places[parent].parent
    return False


def _fullest(links: Iterable[LoadedLink]) -> LoadedLink | None:
    return max(links, key=lambda link: (link.bottleneck, _fullness(link), not link.believed), default=None)


def _fullness(link: LoadedLink) -> float:
    if link.load_gbytes is None or not link.capacity_gbytes:
        return 0.0
    return link.load_gbytes / link.capacity_gbytes
