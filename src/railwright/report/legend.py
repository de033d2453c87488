"""What the signs of a picture mean; only those that it holds."""

from __future__ import annotations

from collections.abc import Iterator

from .layout import Layout
from .marks import alarm_mark, badge, gpu_mark, is_neck, neck, nic_mark
from .markup import element, words
from .traffic import Traffic
from .tree import Station

_ROW = 24.0
_LETTER = 7.2  # about the width of a letter
_LEFT = 24.0


def legend(
    tree: Station, layout: Layout, traffic: Traffic, alarms: dict[str, str], top: float
) -> tuple[str, float]:
    """The legend in rows as wide as the picture, from height `top` on, and its own height."""
    drawn = []
    x, y = _LEFT, top
    for mark, text in _entries(tree, layout, traffic, alarms):
        needed = 26 + _LETTER * len(text)
        if x + needed > layout.width and x > _LEFT:
            x, y = _LEFT, y + _ROW
        label = element("text", words(text), class_="mute", x=22, y=4.2)
        drawn.append(element("g", mark, label, transform=f"translate({x:.1f} {y:.1f})"))
        x += needed + 22
    return element("g", *drawn, class_="legend"), y - top + _ROW


def _entries(
    tree: Station, layout: Layout, traffic: Traffic, alarms: dict[str, str]
) -> Iterator[tuple[str, str]]:
    stations = list(tree.walk())
    kinds = {station.kind for station in stations}
    if "gpu" in kinds:
        yield gpu_mark(0, 0, "n", True, 9.0), "GPU, CUDA index"
    roles = dict.fromkeys(
        station.planned_nic.role if station.planned_nic is not None else "not planned"
        for station in stations
        if station.kind == "nic"
    )
    if "rail" in roles:
        yield badge(0, 0, 0, 9.0, "n"), "NIC of rail n"
    for role in roles:
        if role != "rail":
            yield element("g", nic_mark(0, 0, role, None), transform="scale(.85)"), role
    for kind, shape, text in (
        ("switch", "bar", "PCIe switch"),
        ("host-bridge", "bar bridge", "host bridge"),
        ("numa", "bar cpu", "NUMA node"),
    ):
        if kind in kinds:
            yield element("rect", class_=shape, x=-5, y=-9, width=10, height=18, rx=5), text
    if layout.lines:
        yield _sample("bed", 9.0) + _sample("line r0", 3.5), "a flow on a link"
    if any(link.load_gbytes for link in traffic.links):
        yield element("text", words("48/96"), class_="num mid", x=-2, y=4.2), "load/capacity in GB/s"
    necks = [link for link in traffic.links if is_neck(link)]
    if any(len(link.flows) == 1 for link in necks):
        yield neck("M-10 0h24", 11.0, False), "full: limits its flow"
    if any(len(link.flows) > 1 for link in necks):
        yield neck("M-10 0h24", 13.0, True), "shared bottleneck"
    if any(not link.believed for link in traffic.links):
        yield _sample("bed unbelieved", 4.0), "link not believed"
    if alarms:
        worst = "error" if "error" in alarms.values() else "warning"
        yield alarm_mark(0, 0, worst), "see findings"


def _sample(shape: str, width: float) -> str:
    return element("path", class_=shape, d="M-10 0h24", stroke_width=width)
