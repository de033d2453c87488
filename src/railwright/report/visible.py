"""Text from machines that others had root on, made safe to look at.

Escaping for HTML and XML is the renderer's job. This module answers for characters that change what a reader sees:
control characters, bidirectional marks, zero-width characters and what no XML document may carry.
"""

from __future__ import annotations

import unicodedata

# Format (bidi marks, zero-width), control, surrogate and private-use characters, line and paragraph separators.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# XML 1.0, section 2.2: never allowed, though Unicode files them under "not assigned".
_NO_XML = ("\ufffe", "\uffff")


def visible(text: str) -> str:
    """The text with every hidden character spelled out as \\uXXXX; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{ord(character):04x}"
        if character not in "\n\t" and (unicodedata.category(character) in _HIDDEN or character in _NO_XML)
        else character
        for character in text
    )


def shorten(text: str, most: int) -> str:
    """At most `most` characters of the visible text, the middle cut out, so that an address keeps its end."""
    shown = visible(text)
    if len(shown) <= most:
        return shown
    tail = (most - 1) // 3
    return shown[: most - 1 - tail] + "…" + (shown[-tail:] if tail else "")
