"""The colours of the page and of the pictures: one table for light, one for dark.

Rails have eight colours; rail 8 has the colour of rail 0 and a light core, as line maps do with a ninth line. No
colour carries meaning alone: rails carry their number, states a shape and a word.
"""

from __future__ import annotations

import re

RAILS = 8

LIGHT = {
    "paper": "#f6f4ee",
    "sheet": "#fffefb",
    "ink": "#15181c",
    "mute": "#585e66",
    "rule": "#d8d4c8",
    "bed": "#c4bfb2",
    "box": "#f1eee5",
    "code": "#f1eee5",
    "link": "#0b5394",
    "good": "#14703f",
    "caution": "#875300",
    "stop": "#b3261e",
    "good-wash": "#e4f1e8",
    "caution-wash": "#fbeed3",
    "stop-wash": "#fbe6e2",
    "on-rail": "#ffffff",
    "rail-0": "#0b5fa5",
    "rail-1": "#b8480b",
    "rail-2": "#0d7548",
    "rail-3": "#7439a3",
    "rail-4": "#8a5c00",
    "rail-5": "#08727c",
    "rail-6": "#ab2168",
    "rail-7": "#566618",
}

DARK = {
    "paper": "#0f1317",
    "sheet": "#161b20",
    "ink": "#eceae4",
    "mute": "#a0a8b1",
    "rule": "#2e363e",
    "bed": "#49535d",
    "box": "#1d2329",
    "code": "#1d2329",
    "link": "#7db9f0",
    "good": "#62cf93",
    "caution": "#efbf55",
    "stop": "#ff8f80",
    "good-wash": "#12291d",
    "caution-wash": "#2e2410",
    "stop-wash": "#351a17",
    "on-rail": "#0f1317",
    "rail-0": "#6fb4f3",
    "rail-1": "#f39a5f",
    "rail-2": "#5bcc97",
    "rail-3": "#c69bf0",
    "rail-4": "#dfbd4b",
    "rail-5": "#54cdd4",
    "rail-6": "#f189be",
    "rail-7": "#b4c85b",
}

PAPER = {**LIGHT, "paper": "#ffffff", "sheet": "#ffffff"}

_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")


def variables(colours: dict[str, str]) -> str:
    """The colours as CSS custom properties."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def resolved(css: str, colours: dict[str, str]) -> str:
    """`css` with each var(--name) replaced by its colour: what draws SVG outside a browser knows no variables."""
    return _VARIABLE.sub(lambda match: colours[match[1]], css)
