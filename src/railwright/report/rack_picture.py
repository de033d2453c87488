"""The picture of a rack: a row for each node, a line for each rail, its leaves above it.

What is odd has the colour of trouble and a hatched square with a mark in it, so that a print without colours says the
same.
"""

from __future__ import annotations

from .marks import alarm_mark, badge, has_core, stroke
from .markup import element, words
from .rack import RackRow, RackView, Stop
from .visible import shorten

_LEFT, _TOP, _COLUMN, _ROW, _RIGHT = 190.0, 66.0, 112.0, 38.0, 40.0
_MOST_LEAVES = 2


def rack_svg(rack: RackView, *, narrow: bool = False) -> str:
    """The picture as an SVG element. narrow: for a telephone."""
    left, column = (118.0, 66.0) if narrow else (_LEFT, _COLUMN)
    width = left + column * len(rack.rails) + _RIGHT
    height = _TOP + _ROW * len(rack.rows) + 14
    parts = [
        _line(left + column * (place + 0.25), rail, rack.leaves[place], height, narrow)
        for place, rail in enumerate(rack.rails)
    ]
    parts += [
        _node(row, _TOP + _ROW * (number + 0.5), rack, left, column, narrow)
        for number, row in enumerate(rack.rows)
    ]
    return element(
        "svg",
        element("title", words(_title(rack))),
        element("desc", words(_description(rack))),
        element("rect", class_="ground", x=0, y=0, width=width, height=height),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="rw rack",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
    )


def _line(x: float, rail: int, leaves: tuple[str, ...], height: float, narrow: bool) -> str:
    """A rail with the leaves that it is, from top to bottom."""
    path = f"M{x:.1f} {_TOP - 14:.1f}V{height - 8:.1f}"
    drawn = element("path", class_=f"line {stroke(rail)}", d=path, stroke_width=4)
    if has_core(rail):
        drawn += element("path", class_="core", d=path)
    drawn += badge(x, _TOP - 22, rail, 11.0)
    shown = list(leaves[:_MOST_LEAVES]) + (
        [f"+{len(leaves) - _MOST_LEAVES}"] if len(leaves) > _MOST_LEAVES else []
    )
    for number, leaf in enumerate(shown or ["leaf ?"]):
        text = shorten(leaf, 7 if narrow else 13)
        drawn += element("text", words(text), class_="small mid", x=x, y=14 + 12 * number)
    return drawn


def _node(row: RackRow, y: float, rack: RackView, left: float, column: float, narrow: bool) -> str:
    name = row.names[0] if len(row.names) == 1 else f"{len(row.names)} nodes"
    drawn = element("text", words(shorten(name, 12 if narrow else 20)), class_="name", x=26, y=y - 1)
    aside = {"left": "left alone", "new": "new", "changed": "changed"}.get(row.state, "")
    if len(row.names) > 1:
        aside = f"{row.names[0]} … {row.names[-1]}"
    drawn += (
        element("text", words(shorten(aside, 14 if narrow else 26)), class_="small", x=26, y=y + 12)
        if aside
        else ""
    )
    if row.odd:
        drawn += alarm_mark(13, y, "error" if row.error else "warning")
    told = [part for part in (f"{name}: {row.odd}" if row.odd else name,) if part]
    for place, (rail, stop) in enumerate(zip(rack.rails, row.stops, strict=True)):
        x = left + column * (place + 0.25)
        drawn += _stop(x, y, rail, stop, rack.leaves[place], narrow)
        if stop.odd:
            told.append(f"rail {rail}: {stop.odd}")
    return element("g", element("title", words("; ".join(told))), drawn, class_="rack-row")


def _stop(x: float, y: float, rail: int, stop: Stop, leaves: tuple[str, ...], narrow: bool) -> str:
    if stop.end is None:
        return element("circle", class_="other", cx=x, cy=y, r=8, stroke_dasharray="3 2")
    drawn = _hatched(x, y, stop.error) if stop.odd else badge(x, y, rail, 9.0)
    if stop.end.leaf is None or stop.end.port is None:
        return drawn
    # The leaf stands above the line, unless the line has several or this is not one of them.
    lines = [stop.end.port] if leaves == (stop.end.leaf,) else [stop.end.leaf, stop.end.port]
    shape = "small hot" if stop.odd and stop.error else "small"
    for number, text in enumerate(lines):
        height = y + 4 + 12 * (number - (len(lines) - 1) / 2)
        drawn += element("text", words(shorten(text, 6 if narrow else 11)), class_=shape, x=x + 17, y=height)
    return drawn


def _hatched(x: float, y: float, error: bool) -> str:
    """A square with slanted lines and a mark: odd, whatever colours a reader sees."""
    lines = "".join(f"M{x - 13 + step:.1f} {y + 11:.1f}l10 -22" for step in (2, 8, 14))
    less = "" if error else " warning"
    return (
        element("rect", class_=f"odd-stop{less}", x=x - 13, y=y - 11, width=26, height=22)
        + element("path", class_=f"odd-lines{less}", d=lines)
        + alarm_mark(x, y - 1, "error" if error else "warning")
    )


def _title(rack: RackView) -> str:
    count = sum(len(row.names) for row in rack.rows)
    return f"{count} nodes on {len(rack.rails)} rails, {rack.odd} odd"


def _description(rack: RackView) -> str:
    """The picture in words, for those who do not see it."""
    told = []
    for rail, leaves in zip(rack.rails, rack.leaves, strict=True):
        if leaves:
            told.append(f"Rail {rail} is {', '.join(leaves)}.")
    for row in rack.rows:
        told += [f"{row.names[0]}: {row.odd}."] if row.odd else []
        told += [
            f"{row.names[0]}, rail {rail}: {stop.odd}."
            for rail, stop in zip(rack.rails, row.stops, strict=True)
            if stop.odd
        ]
    return " ".join(told) or "Nothing is odd."
