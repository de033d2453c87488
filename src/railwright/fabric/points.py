"""Words and ranges of switch configuration: DSCP names, lists of numbers, ranges of ports."""

from __future__ import annotations

import re

from railwright.node.model import InputError

# RFC 2474 (class selectors), RFC 2597 (assured forwarding), RFC 3246 (expedited forwarding).
DSCP_NAMES = {
    **{f"cs{n}": 8 * n for n in range(8)},
    **{f"af{n}{m}": 8 * n + 2 * m for n in range(1, 5) for m in range(1, 4)},
    "ef": 46,
    "default": 0,
    "be": 0,
}
# EOS's own map by the upper three bits: 0 to 7 lie in class 1 and 8 to 15 in class 0 (EOS user manual, QoS chapters).
EOS_CLASSES = (1, 0, 2, 3, 4, 5, 6, 7)
# A queue that says neither `priority strict` nor `no priority` is strict on EOS (the same chapters).
EOS_STRICT_UNSTATED = True
_UNITS = {"bytes": 1, "kbytes": 1000, "mbytes": 1_000_000}
_MOST = 4096
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)
_PORTS = re.compile(r"([A-Za-z][\w/.-]*?)(\d{1,5})(?:-(?:\1)?(\d{1,5}))?", re.ASCII)
_LONGEST = 80


def number(text: object, low: int, high: int, where: str, what: str) -> int:
    """A whole number in a range, from text or JSON. Raises InputError."""
    if isinstance(text, int) and not isinstance(text, bool):
        value: int | None = text
    else:
        value = int(text) if isinstance(text, str) and re.fullmatch(r"\d{1,12}", text, re.ASCII) else None
    if value is None or not low <= value <= high:
        raise InputError(where, f"found {str(text)[:40]!r} as {what}", f"expected {low} to {high}")
    return value


def numbers(text: str, low: int, high: int, where: str, what: str) -> tuple[int, ...]:
    """A list like "3,4" or "24-31,48". Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            found.append(number(part.strip(), low, high, where, what))
            continue
        first, last = (number(end, low, high, where, what) for end in match.groups())
        if last < first:
            raise InputError(where, f"found {part!r} as {what}", "a range goes upwards")
        found += range(first, last + 1)
    return tuple(found)


def code_points(words: tuple[str, ...], where: str) -> tuple[int, ...]:
    """DSCP values from words like "26", "cs3,af31" or "24-31". Raises InputError."""
    found: list[int] = []
    for word in words:
        for part in filter(None, word.split(",")):
            named = DSCP_NAMES.get(part.lower())
            found += [named] if named is not None else numbers(part, 0, 63, where, "a DSCP")
    if not found:
        raise InputError(where, "names no DSCP", "expected numbers of 0 to 63, or names like cs3")
    return tuple(found)


def port_names(text: str, where: str) -> tuple[str, ...]:
    """Ports from "Ethernet1/1-4", "swp1-32,swp40" or a single name. Raises InputError for more than 4096."""
    found: list[str] = []
    before = ""
    for part in text.replace(" ", "").split(","):
        if len(part) > _LONGEST:
            raise InputError(where, f"found {part[:40]!r}... as ports", "a port has a short name")
        match = _PORTS.fullmatch(part if not part[:1].isdigit() else before + part)
        if match is None:
            found.append(part)
            continue
        before, first, last = match[1], int(match[2]), int(match[3] or match[2])
        if last < first or len(found) + last - first >= _MOST:
            raise InputError(
                where, f"found {part!r} as ports", f"a range goes upwards, to {_MOST} ports at most"
            )
        found += [f"{before}{n}" for n in range(first, last + 1)]
    return tuple(name for name in found if name)


def after(words: tuple[str, ...], word: str) -> str:
    """The word behind a word; "" where there is none."""
    index = words.index(word) + 1
    return words[index] if index < len(words) else ""


def amount(words: tuple[str, ...], word: str, where: str) -> int | None:
    """Bytes of "minimum-threshold 500 kbytes"; None where the word is missing or the unit is not one of bytes.

    Segments depend on the chip and milliseconds on the rate. Raises InputError for what is no number.
    """
    if word not in words:
        return None
    value = number(after(words, word), 0, 2**40, where, word)
    index = words.index(word) + 2
    factor = _UNITS.get(words[index] if index < len(words) else "")
    return None if factor is None else value * factor
