"""TOML as containerd's configuration is written: tables and keys, line by line; not the whole of TOML.

Node Pythons before 3.11 have no tomllib.
"""

from __future__ import annotations

import re

from ..model import InputError

Value = object
_TABLE = re.compile(r"\[{1,2}([^#]+?)\]{1,2}(?:[ \t]*#.*)?")
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:\.|$)""")
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=\s*(.*)""")
_STRING = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*,?""")
_NUMBER = re.compile(r"[+-]?[0-9][0-9_]*")
_MOST_LINES = 20_000
# A line of a person's is not longer, and the patterns above look at some of each more than once.
_LONGEST_LINE = 1000
_LONGEST_VALUE = 500  # lines
# What begins and ends a text over several lines.
_LONG = ('"' * 3, "'" * 3)


def read(text: str, where: str) -> dict[tuple[str, ...], Value]:
    """Values by their whole name: texts, whole numbers, true and false, lists of texts; all else is None.

    Raises InputError with the line for what is neither a table, a key nor a comment.
    """
    found: dict[tuple[str, ...], Value] = {}
    table: tuple[str, ...] = ()
    lines = text.lstrip("\ufeff").splitlines()
    if len(lines) > _MOST_LINES:
        raise InputError(where, f"has {len(lines)} lines", f"expected at most {_MOST_LINES}")
    for place, line in enumerate(lines, 1):
        if len(line) > _LONGEST_LINE:
            raise InputError(
                f"{where}, line {place}", f"has {len(line)} characters", f"expected at most {_LONGEST_LINE}"
            )
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        heading = _TABLE.fullmatch(line)
        if heading is not None:
            table = _parts(heading[1].strip(), f"{where}, line {number}")
            found.setdefault(table, None)
            continue
        key = _KEY.fullmatch(line)
        if key is None:
            raise InputError(
                f"{where}, line {number}", f"found {line[:60]!r}", "expected [table] or key = value"
            )
        first, value = number, key[2]
        while _is_open(value):
            if number >= len(lines) or number - first > _LONGEST_VALUE:
                raise InputError(f"{where}, line {first}", "the value does not end", "close it")
            value = f"{value}\n{lines[number]}"
            number += 1
        name = (*table, *_parts(key[1], f"{where}, line {first}"))
        found[name] = _value(value, f"{where}, line {first}")
    return found


def _is_open(value: str) -> bool:
    """Whether a list or a text over several lines goes on in the next line."""
    for mark in _LONG:
        if value.startswith(mark):
            return mark not in value[3:]
    if not value.startswith("["):
        return False
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', "", value)
    return bare.count("[") > bare.count("]")


def _parts(name: str, where: str) -> tuple[str, ...]:
    parts, place = [], 0
    while place < len(name):
        match = _PART.match(name, place)
        if match is None or match.end() == place:
            raise InputError(where, f"{name[:60]!r} is no name", "expected parts with dots between")
        parts.append(next(part for part in match.groups() if part is not None))
        place = match.end()
    return tuple(parts)


def _value(text: str, where: str) -> Value:
    bare = re.sub(r"\s+#[^\"']*$", "", text.strip())
    if bare in ("true", "false"):
        return bare == "true"
    if _NUMBER.fullmatch(bare):
        digits = bare.replace("_", "")
        return int(digits) if len(digits) < 20 else None
    if bare.startswith("[") and bare.endswith("]"):
        return _texts(bare[1:-1])
    match = _STRING.fullmatch(bare)
    if match is not None:
        return match[1] if match[1] is not None else match[2]
    if not bare:
        raise InputError(where, "the value is missing", "expected key = value")
    return None


def _texts(inner: str) -> Value:
    """A list of texts; None for any other list."""
    bare = re.sub(r"^\s*#[^\n]*$", "", inner, flags=re.MULTILINE)
    found, place = [], 0
    while bare[place:].strip():
        match = _STRING.match(bare, place)
        if match is None or match.end() == place:
            return None
        found.append(match[1] if match[1] is not None else match[2])
        place = match.end()
    return tuple(found)
