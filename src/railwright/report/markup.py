"""Elements of SVG as text. Every value is made visible and escaped here, so that no caller can forget it."""

from __future__ import annotations

from html import escape

from .visible import visible


def element(tag: str, *children: str, **attributes: object) -> str:
    """One element. `children` are markup already; attributes of value None are left out; class_ is class."""
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{quoted(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return f"<{tag}{shown}>{inner}</{tag}>" if inner else f"<{tag}{shown}/>"


def words(text: str) -> str:
    """Text as the content of an element."""
    return escape(visible(text), quote=False)


def quoted(value: object) -> str:
    """A value inside double quotes; floats with one decimal, so that the bytes do not depend on arithmetic noise."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    # A line break in an attribute would come back as a blank.
    return escape(visible(str(value)), quote=True).replace("\n", "&#10;").replace("\t", "&#9;")
