"""NUMA nodes, bridges, links and the lines that run on them."""

from __future__ import annotations

from railwright.node.model import LoadedLink

from .layout import Layout, Line, Measures, Place, rounded
from .marks import has_core, is_neck, neck, stroke
from .markup import element, words
from .numbers import rate
from .traffic import Traffic
from .tree import MACHINE
from .visible import shorten

_BAR_CLASSES = {"numa": "bar cpu", "host-bridge": "bar bridge", "switch": "bar", MACHINE: "bar cpu"}


def box(layout: Layout, place: Place, right: float) -> str:
    """A NUMA node's ground with its name."""
    station, x = place.station, layout.box_x
    label = shorten(station.label, layout.measures.head // 2)
    detail = shorten(station.detail, layout.measures.head - len(label))
    return element(
        "g",
        element(
            "rect",
            class_="box",
            x=x,
            y=place.top - 34,
            width=right - x,
            height=place.bottom - place.top + 44,
            rx=6,
        ),
        element(
            "text",
            element("tspan", words(label), class_="head"),
            element("tspan", words(detail), class_="mute", dx=10) if detail else "",
            x=x + 14,
            y=place.top - 14,
        ),
    )


def bed(layout: Layout, place: Place, traffic: Traffic) -> str:
    """The link from a station up to its parent, as broad as what it carries."""
    if place.parent is None or (place.parent == MACHINE and len(layout.children(MACHINE)) == 1):
        return ""
    parent = layout.places[place.parent]
    link = traffic.by_key.get(place.station.key)
    width = _bed_width(layout, place)
    path = f"M{place.x:.1f} {place.y:.1f}H{parent.x:.1f}"
    if link is not None and is_neck(link):
        drawn = neck(path, width + (6 if len(link.flows) > 1 else 2), len(link.flows) > 1)
    else:
        shape = "bed" if link is None or link.believed else "bed unbelieved"
        drawn = element("path", class_=shape, d=path, stroke_width=width)
    ends = f"{place.station.label} to {parent.station.label}"
    return element("g", element("title", words(link_words(ends, link))), drawn)


def link_words(ends: str, link: LoadedLink | None) -> str:
    """A link in words: what it carries of what it could, and what is wrong with it."""
    if link is None:
        return ends
    load = "load unknown" if link.load_gbytes is None else f"{rate(link.load_gbytes)} GB/s"
    flows = f", {', '.join(link.flows)}" if link.flows else ""
    doubt = "" if link.believed else "; what the link says of itself is not believed"
    tight = "; bottleneck" if link.bottleneck else ""
    return f"{ends} ({link.kind}): {load} of {rate(link.capacity_gbytes)} GB/s{flows}{doubt}{tight}"


def bar(layout: Layout, place: Place) -> str:
    """A NUMA node, host bridge or switch: an interchange over the height of what hangs from it."""
    station = place.station
    if station.kind in ("gpu", "nic") or (station.kind == MACHINE and len(station.children) < 2):
        return ""
    below = layout.children(station.key)
    heights = [child.y for child in below] + ([] if station.kind == MACHINE else [place.y])
    half = layout.halves[station.key]
    overhang = 9.0 + max((layout.loads[child.station.key] for child in below), default=0) * 1.6
    top, bottom = min(heights) - overhang, max(heights) + overhang
    drawn = element(
        "rect",
        class_=_BAR_CLASSES[station.kind],
        x=place.x - half,
        y=top,
        width=2 * half,
        height=bottom - top,
        rx=min(half, 9.0),
    )
    return element("g", element("title", words(f"{station.label} {station.detail}".strip())), drawn)


def line(drawn_line: Line, measures: Measures) -> str:
    """One flow, from its GPU to its NIC along the links between them."""
    path = rounded(drawn_line.points)
    drawn = element("path", class_=f"line {stroke(drawn_line.rail)}", d=path, stroke_width=measures.line)
    if has_core(drawn_line.rail):
        drawn += element("path", class_="core", d=path)
    rail = "" if drawn_line.rail is None else f", rail {drawn_line.rail}"
    return element("g", element("title", words(f"{drawn_line.gpu} to {drawn_line.nic}{rail}")), drawn)


def link_label(layout: Layout, place: Place, traffic: Traffic) -> str:
    """The name of a bridge above its link upwards, and load over capacity where the link has something to tell."""
    station = place.station
    if place.parent in (None, MACHINE):
        return ""
    link = traffic.by_key.get(station.key)
    lift = _bed_width(layout, place) / 2 + (3 if is_neck(link) else 0)
    is_leaf = station.kind in ("gpu", "nic")
    x = place.x - (15 if is_leaf else layout.halves[station.key] + 5)
    drawn = ""
    if not is_leaf and layout.measures.names:
        drawn = element(
            "text", words(shorten(station.label, 13)), class_="small end", x=x, y=place.y - 3 - lift
        )
    if link is None or not (link.load_gbytes or link.bottleneck or not link.believed):
        return drawn
    if not is_leaf and not layout.measures.names:
        return drawn
    y = place.y - 3 - lift if is_leaf else place.y + 11 + lift
    hot = is_neck(link) and len(link.flows) > 1
    shape = "num end hot" if hot else "num end"
    return drawn + element("text", words(load_over_capacity(link)), class_=shape, x=x, y=y)


def load_over_capacity(link: LoadedLink) -> str:
    """ "48/96", with a question mark where the link is not believed."""
    return f"{rate(link.load_gbytes)}/{rate(link.capacity_gbytes)}" + ("" if link.believed else " ?")


def trunk_label(layout: Layout, traffic: Traffic) -> str:
    """What runs between NUMA nodes, along their link."""
    trunk = layout.places[MACHINE]
    if len(trunk.station.children) < 2 or not layout.measures.names:
        return ""
    link = traffic.between_numa
    text = "between NUMA nodes" if link is None else f"between NUMA nodes: {load_over_capacity(link)} GB/s"
    x = trunk.x - layout.halves[MACHINE] - 7
    return element(
        "text",
        words(text),
        class_="num mid hot" if is_neck(link) else "small mid",
        transform=f"translate({x:.1f} {trunk.y:.1f}) rotate(-90)",
    )


def _bed_width(layout: Layout, place: Place) -> float:
    flows = layout.loads[place.station.key]
    return flows * layout.measures.step + 4.0 if flows else 3.0
