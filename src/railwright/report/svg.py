"""The picture of one node, drawn as a line map: rails are lines, PCIe switches are interchanges.

GPUs and NICs stand in rows at the right, what they hang from at the left. Each GPU's way to its NIC is one coloured
line along the real links, so links that several flows share show several lines.
"""

from __future__ import annotations

from importlib import resources

from railwright.node.model import Facts, Finding, Plan

from . import palette, tracks
from .devices import device
from .layout import NARROW, WIDE, lay_out
from .legend import legend
from .markup import element, words
from .numbers import count
from .traffic import alarms_of, traffic_of
from .tree import MACHINE, Station, node_tree


def node_svg(plan: Plan, facts: Facts) -> str:
    """The node as a self-contained SVG document in text, light or dark as the viewer prefers."""
    return draw(plan, facts, findings=plan.refusals + plan.findings, style=stylesheet())


def stylesheet() -> str:
    """The picture's CSS with the colours written out."""
    css = css_text()
    dark = palette.resolved(css, palette.DARK)
    return f"{palette.resolved(css, palette.LIGHT)}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def css_text() -> str:
    """The picture's CSS, colours as variables."""
    return resources.files(__package__).joinpath("picture.css").read_text(encoding="utf-8")


def draw(
    plan: Plan,
    facts: Facts,
    *,
    findings: tuple[Finding, ...] = (),
    name: str | None = None,
    prefix: str = "rw",
    style: str | None = None,
    narrow: bool = False,
) -> str:
    """The picture. findings mark their devices; prefix keeps ids apart where a page holds several pictures.

    narrow: for a telephone, without the names of bridges.
    """
    tree = node_tree(plan, facts)
    layout = lay_out(tree, NARROW if narrow else WIDE)
    measures, places = layout.measures, layout.places.values()
    traffic = traffic_of(plan, layout)
    alarms = alarms_of(tree, findings)
    right = layout.width - measures.right
    key, key_height = legend(tree, layout, traffic, alarms, layout.height + 26)
    parts = [
        *(tracks.box(layout, place, right) for place in layout.children(MACHINE)),
        *(tracks.bed(layout, place, traffic) for place in places),
        *(tracks.bar(layout, place) for place in places),
        *(tracks.line(line, measures) for line in layout.lines),
        *(tracks.link_label(layout, place, traffic) for place in places),
        tracks.trunk_label(layout, traffic),
        *(
            device(
                place, right, measures, alarms.get(place.station.key), traffic.ports.get(place.station.key)
            )
            for place in places
            if place.station.kind in ("gpu", "nic")
        ),
        key,
    ]
    width, height = f"{layout.width:.0f}", f"{layout.height + 26 + key_height:.0f}"
    drawn = element(
        "svg",
        element("title", words(_title(plan, tree, name or facts.host.name)), id=f"{prefix}-title"),
        element("desc", words(_description(plan, tree)), id=f"{prefix}-desc"),
        element("style", words(style)) if style else "",
        element("rect", class_="ground", x=0, y=0, width=width, height=height),
        element("g", *parts, transform="translate(0 2)"),
        xmlns="http://www.w3.org/2000/svg",
        class_="rw",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{prefix}-title {prefix}-desc",
    )
    return drawn + "\n"


def _title(plan: Plan, tree: Station, name: str | None) -> str:
    kinds = [station.kind for station in tree.walk()]
    devices = f"{count(kinds.count('gpu'), 'GPU')}, {count(kinds.count('nic'), 'NIC port')}"
    return f"{name or 'One node'}: {devices}, {plan.status}"


def _description(plan: Plan, tree: Station) -> str:
    """The picture in words, for those who do not see it."""
    sentences = []
    for gpu in plan.gpus:
        if gpu.nics:
            rail = "no rail number" if gpu.rail is None else f"rail {gpu.rail}"
            sentences.append(
                f"{gpu.name} uses {', '.join(gpu.nics)} ({rail}) over {gpu.path or 'an unknown path'}."
            )
        else:
            sentences.append(f"{gpu.name} has no NIC.")
    for numa in tree.children:
        leaves = [leaf.label for leaf in numa.walk() if leaf.kind in ("gpu", "nic")]
        sentences.append(f"{numa.label} holds {', '.join(leaves)}.")
    return " ".join(sentences) or "No GPU and no NIC is known."
