"""Where each station of the picture stands and how each line runs. Lengths are SVG user units (CSS pixels at 100 %)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .tree import MACHINE, Station

ROW = 38
_GROUP_GAP = 8
_BOX_HEAD = 36
_BOX_FOOT = 12
_BOX_GAP = 16
_RADIUS = 7.0


@dataclass(frozen=True)
class Measures:
    """Widths of a picture.

    step: from one line to the next on a shared link. gap: between two bars, room for an address. names: whether bridges
    and the link between NUMA nodes have their names beside them. name, detail, head: most characters.
    """

    left: float
    beside_trunk: float
    cpu: float
    gap: float
    leaf_gap: float
    text: float
    right: float
    step: float
    line: float
    names: bool
    name: int
    detail: int
    head: int


WIDE = Measures(14, 24, 28, 86, 86, 342, 10, 5, 3.5, True, 24, 42, 80)
# Fits a telephone without scrolling: bridges lose their names, which stand in the tables too.
NARROW = Measures(6, 0, 10, 18, 62, 196, 6, 3.6, 2.8, False, 13, 24, 42)


@dataclass(frozen=True)
class Place:
    """A station with its place. x: its bar or marker. y: its link upwards. top, bottom: its rows."""

    station: Station
    x: float
    y: float
    top: float
    bottom: float
    parent: str | None


@dataclass(frozen=True)
class Line:
    """One flow from a GPU to a NIC. rail: None when the NIC has no number. points: corners of its way."""

    gpu: str
    nic: str
    rail: int | None
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Layout:
    """Everything placed. loads: lines on each link, by the key of its lower end; halves: half the width of each bar."""

    measures: Measures
    places: dict[str, Place]
    lines: tuple[Line, ...]
    loads: dict[str, int]
    halves: dict[str, float]
    height: float
    width: float
    box_x: float

    def children(self, key: str) -> list[Place]:
        """Places of a station's children, top to bottom."""
        return [self.places[child.key] for child in self.places[key].station.children]


def lay_out(tree: Station, measures: Measures) -> Layout:
    """Rows from top to bottom, levels from left to right, one line for each GPU and NIC that belong together."""
    places = _places(tree, dict.fromkeys(_levels(tree), 0.0))
    routes = _routes(tree, places)
    loads = {key: sum(key in route.links for route in routes) for key in places}
    edge_slots = _edge_slots(routes, places)
    bar_slots, bars = _bar_slots(routes, places)
    halves = {key: max(5.0, (lines * measures.step + 6) / 2) for key, lines in bars.items()}
    columns = _columns(tree, places, halves, measures)
    places = _places(tree, columns)
    lines = tuple(_line(route, places, edge_slots, bar_slots, loads, bars, measures.step) for route in routes)
    width = columns["leaf"] + measures.text + measures.right
    return Layout(measures, places, lines, loads, halves, places[MACHINE].bottom, width, columns["box"])


def _levels(tree: Station) -> dict[str, list[str]]:
    """Level to the keys of its stations, from left to right; the leaves last."""
    levels: dict[str, list[str]] = {MACHINE: [], "box": [], "numa": [], "host-bridge": []}
    leaves: list[str] = []

    def look(station: Station, switches: int) -> None:
        if station.kind == "switch":
            switches += 1
            levels.setdefault(f"switch {switches}", []).append(station.key)
        elif station.kind in ("gpu", "nic"):
            leaves.append(station.key)
        else:
            levels[station.kind].append(station.key)
        for child in station.children:
            look(child, switches)

    look(tree, 0)
    if not levels["host-bridge"]:
        del levels["host-bridge"]
    return {**levels, "leaf": leaves}


def _columns(
    tree: Station, places: dict[str, Place], halves: dict[str, float], measures: Measures
) -> dict[str, float]:
    """Where each level stands: its bars' middle, the left side of the boxes, the leaves' marks."""
    columns: dict[str, float] = {}
    x = measures.left
    for level, keys in _levels(tree).items():
        half = max((halves[key] for key in keys), default=0.0)
        if level == MACHINE:
            columns[level] = x + measures.beside_trunk + half
            x = columns[level] + half + measures.gap / 6 if len(tree.children) > 1 else x
        elif level == "box":
            columns[level] = x
        elif level == "leaf":
            columns[level] = x + measures.leaf_gap
        else:
            columns[level] = x + (measures.cpu if level == "numa" else measures.gap) + half
            x = columns[level] + half
    return columns


def _places(tree: Station, columns: dict[str, float]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    height = 0.0
    for numa in tree.children:
        _place(numa, MACHINE, height + _BOX_HEAD, columns, places)
        height = places[numa.key].bottom + _BOX_FOOT + _BOX_GAP
    middles = [places[numa.key].y for numa in tree.children]
    middle = (middles[0] + middles[-1]) / 2 if middles else 0.0
    places[MACHINE] = Place(tree, columns[MACHINE], middle, 0.0, max(height - _BOX_GAP, 0.0), None)
    return places


def _place(
    station: Station,
    parent: str,
    top: float,
    columns: dict[str, float],
    places: dict[str, Place],
    switches: int = 0,
) -> None:
    if station.kind in ("gpu", "nic"):
        places[station.key] = Place(station, columns["leaf"], top + ROW / 2, top, top + ROW, parent)
        return
    if station.kind == "switch":
        switches += 1
    column = f"switch {switches}" if station.kind == "switch" else station.kind
    below = top
    before: Station | None = None
    for child in station.children:
        if before is not None and (before.children or child.children):
            below += _GROUP_GAP
        _place(child, station.key, below, columns, places, switches)
        below = places[child.key].bottom
        before = child
    ways = [places[child.key].y for child in station.children]
    middle = (ways[0] + ways[-1]) / 2 if ways else top + ROW / 2
    places[station.key] = Place(station, columns[column], middle, top, max(below, top + ROW), parent)


# Lines.


@dataclass(frozen=True)
class _Route:
    """The way of one flow: links by the key of their lower end, up to `top` and down again."""

    gpu: Station
    nic: Station
    up: tuple[str, ...]
    top: str
    down: tuple[str, ...]

    @property
    def links(self) -> tuple[str, ...]:
        return self.up + self.down

    @property
    def name(self) -> tuple[str, str]:
        return self.gpu.key, self.nic.key

    @property
    def rail(self) -> int | None:
        if self.nic.planned_nic is not None and self.nic.planned_nic.rail is not None:
            return self.nic.planned_nic.rail
        return self.gpu.planned_gpu.rail if self.gpu.planned_gpu is not None else None


def _routes(tree: Station, places: dict[str, Place]) -> list[_Route]:
    nics = {station.label: station for station in tree.walk() if station.kind == "nic"}
    routes = []
    for gpu in tree.walk():
        if gpu.planned_gpu is None:
            continue
        for name in gpu.planned_gpu.nics:
            if name in nics:
                routes.append(_route(gpu, nics[name], places))
    return routes


def _route(gpu: Station, nic: Station, places: dict[str, Place]) -> _Route:
    above_gpu, above_nic = _above(gpu.key, places), _above(nic.key, places)
    top = next(key for key in above_gpu if key in above_nic)
    up = (gpu.key, *above_gpu[: above_gpu.index(top)])
    down = (nic.key, *above_nic[: above_nic.index(top)])
    return _Route(gpu, nic, up, top, tuple(reversed(down)))


def _above(key: str, places: dict[str, Place]) -> list[str]:
    keys = []
    parent = places[key].parent
    while parent is not None:
        keys.append(parent)
        parent = places[parent].parent
    return keys


def _edge_slots(routes: list[_Route], places: dict[str, Place]) -> dict[tuple[str, tuple[str, str]], int]:
    """Which of the parallel lines of a link each route is, counted from the top."""
    slots = {}
    for key in places:
        here = [route for route in routes if key in route.links]
        here.sort(key=lambda route: (_far_end(route, key, places), route.name))
        for slot, route in enumerate(here):
            slots[key, route.name] = slot
    return slots


def _far_end(route: _Route, key: str, places: dict[str, Place]) -> float:
    """Height of the end of the route that lies beyond this link, seen from below."""
    return places[route.nic.key if key in route.up else route.gpu.key].y


def _bar_slots(
    routes: list[_Route], places: dict[str, Place]
) -> tuple[dict[tuple[str, tuple[str, str]], int], dict[str, int]]:
    """Lines of one bar that overlap run beside each other, the longest way farthest left."""
    slots: dict[tuple[str, tuple[str, str]], int] = {}
    widths: dict[str, int] = {}
    for key, place in places.items():
        spans = []
        for route in routes:
            ends = _ends_at(route, key, place, places)
            if ends is not None:
                spans.append((min(ends), max(ends), route))
        spans.sort(key=lambda span: (span[0] - span[1], span[0], span[2].name))
        rows: list[list[tuple[float, float]]] = []
        for low, high, route in spans:
            slot = next((n for n, row in enumerate(rows) if _is_free(row, low, high)), len(rows))
            if slot == len(rows):
                rows.append([])
            rows[slot].append((low, high))
            slots[key, route.name] = slot
        widths[key] = len(rows)
    return slots, widths


def _ends_at(route: _Route, key: str, place: Place, places: dict[str, Place]) -> tuple[float, float] | None:
    """Heights between which a route runs inside the bar of a station, None when it does not come by."""
    if key == route.top:
        return places[route.up[-1]].y, places[route.down[0]].y
    if key in route.up[1:]:
        return places[route.up[route.up.index(key) - 1]].y, place.y
    if key in route.down[:-1]:
        return place.y, places[route.down[route.down.index(key) + 1]].y
    return None


def _is_free(row: Iterable[tuple[float, float]], low: float, high: float) -> bool:
    return all(high < other_low - 2 or low > other_high + 2 for other_low, other_high in row)


def _line(
    route: _Route,
    places: dict[str, Place],
    edge_slots: dict[tuple[str, tuple[str, str]], int],
    bar_slots: dict[tuple[str, tuple[str, str]], int],
    loads: dict[str, int],
    bars: dict[str, int],
    step: float,
) -> Line:
    def height(key: str) -> float:
        return places[key].y + (edge_slots[key, route.name] - (loads[key] - 1) / 2) * step

    def across(key: str) -> float:
        return places[key].x + (bar_slots[key, route.name] - (bars[key] - 1) / 2) * step

    points = [(places[route.gpu.key].x, height(route.gpu.key))]
    for key, above in zip(route.up, [*route.up[1:], route.top], strict=True):
        points.append((across(above), height(key)))
        following = route.up[route.up.index(key) + 1] if above != route.top else route.down[0]
        points.append((across(above), height(following)))
    for key, below in zip(route.down, route.down[1:], strict=False):
        points.append((across(key), height(key)))
        points.append((across(key), height(below)))
    points.append((places[route.nic.key].x, height(route.nic.key)))
    return Line(route.gpu.label, route.nic.label, route.rail, tuple(points))


def rounded(points: tuple[tuple[float, float], ...]) -> str:
    """SVG path data through the corners, each corner rounded."""
    path = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for (x0, y0), (x1, y1), (x2, y2) in zip(points, points[1:], points[2:], strict=False):
        before, after = abs(x1 - x0) + abs(y1 - y0), abs(x2 - x1) + abs(y2 - y1)
        radius = min(_RADIUS, before / 2, after / 2)
        if radius < 0.5:
            path.append(f"L{_n(x1)} {_n(y1)}")
            continue
        enter = (x1 + (x0 - x1) / before * radius, y1 + (y0 - y1) / before * radius)
        leave = (x1 + (x2 - x1) / after * radius, y1 + (y2 - y1) / after * radius)
        path.append(f"L{_n(enter[0])} {_n(enter[1])}Q{_n(x1)} {_n(y1)} {_n(leave[0])} {_n(leave[1])}")
    path.append(f"L{_n(points[-1][0])} {_n(points[-1][1])}")
    return "".join(path)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
