"""The signs of the picture: a shape for each kind of device, so that a picture without colours says the same."""

from __future__ import annotations

from railwright.node.model import LoadedLink

from . import palette
from .markup import element, words


def stroke(rail: int | None) -> str:
    """CSS class of a rail's line."""
    return "rx" if rail is None or rail < 0 else f"r{rail % palette.RAILS}"


def fill(rail: int | None) -> str:
    """CSS class of a rail's badge."""
    return "fx" if rail is None or rail < 0 else f"f{rail % palette.RAILS}"


def has_core(rail: int | None) -> bool:
    """Rails 8 to 15 have the colours of 0 to 7 with a light core."""
    return rail is not None and rail // palette.RAILS % 2 == 1


def badge(x: float, y: float, rail: int | None, radius: float, text: str | None = None) -> str:
    """A rail's number in its colour; "?" where it has none."""
    drawn = element("circle", class_=fill(rail), cx=x, cy=y, r=radius)
    if has_core(rail):
        drawn += element("circle", class_="core", cx=x, cy=y, r=radius - 1.2)
    label = text if text is not None else "?" if rail is None else str(rail)
    return drawn + element("text", words(label), class_="on-rail", x=x, y=y + 4.2)


def gpu_mark(x: float, y: float, label: str, served: bool, half: float = 11.0) -> str:
    """A GPU with its CUDA index; hollow when it has no NIC."""
    return element(
        "rect",
        class_="gpu" if served else "gpu idle",
        x=x - half,
        y=y - half,
        width=2 * half,
        height=2 * half,
        rx=4,
    ) + element("text", words(label), class_="on-gpu" if served else "on-gpu on-idle", x=x, y=y + 4.2)


def nic_mark(x: float, y: float, role: str, rail: int | None) -> str:
    """A NIC by its role."""
    if role == "rail":
        return badge(x, y, rail, 11.0)
    if role == "second-port":
        return element("circle", class_=f"hollow {stroke(rail)}", cx=x, cy=y, r=8.5) + _letter(
            x, y, "" if rail is None else str(rail)
        )
    if role == "storage":
        return _square(x, y) + _strokes(f"M{x - 9:.1f} {y - 3:.1f}h18M{x - 9:.1f} {y + 3:.1f}h18")
    if role == "management":
        return _diamond(x, y) + _strokes(f"M{x - 4:.1f} {y:.1f}h8M{x:.1f} {y - 4:.1f}v8")
    if role == "nvlink-mgmt":
        return _diamond(x, y, "3 2")
    if role == "down":
        return _ring(x, y) + _strokes(f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10")
    if role == "vf":
        return element("path", class_="other", d=f"M{x:.1f} {y - 10:.1f}l10 18h-20z")
    if role == "spare":
        return _ring(x, y)
    return _square(x, y, "3 2") + _letter(x, y, "?")


def alarm_mark(x: float, y: float, severity: str) -> str:
    """A triangle: there is a finding."""
    return element(
        "path",
        class_="alarm" if severity == "error" else "alarm warning",
        d=f"M{x:.1f} {y - 7:.1f}l7.5 13h-15z",
    ) + element("text", "!", class_="on-alarm", x=x, y=y + 4.6)


def is_neck(link: LoadedLink | None) -> bool:
    """Whether a link is drawn as a bottleneck: a figure that nobody believes limits nothing."""
    return link is not None and link.bottleneck and link.believed


def neck(path: str, width: float, shared: bool) -> str:
    """A full link along a straight path, hatched like sleepers under a track; a shared one in the colour of trouble."""
    return element("path", class_="neck hot" if shared else "neck", d=path, stroke_width=width) + element(
        "path", class_="sleepers", d=path, stroke_width=width
    )


def _square(x: float, y: float, dashes: str | None = None) -> str:
    return element(
        "rect", class_="other", x=x - 9, y=y - 9, width=18, height=18, rx=2, stroke_dasharray=dashes
    )


def _diamond(x: float, y: float, dashes: str | None = None) -> str:
    return element(
        "path", class_="other", d=f"M{x:.1f} {y - 11:.1f}l11 11l-11 11l-11 -11z", stroke_dasharray=dashes
    )


def _ring(x: float, y: float) -> str:
    return element("circle", class_="other", cx=x, cy=y, r=9, stroke_dasharray="3 2")


def _strokes(path: str) -> str:
    return element("path", class_="mark", d=path)


def _letter(x: float, y: float, text: str) -> str:
    return element("text", words(text), class_="ask", x=x, y=y + 4.2)
