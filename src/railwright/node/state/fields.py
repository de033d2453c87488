"""The keys of one entry, read strictly: an unknown key, a missing one or a wrong type names its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Optional

from ..model import InputError
from ..model.values import SHA256, one_of

_NAMES = {
    bool: "true or false",
    dict: "a mapping",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "text",
    type(None): "nothing",
}
_MODE = re.compile(r"0[0-7]{3}", re.ASCII)


class Fields:
    """Takes the keys of an entry one by one; `close` refuses what nobody took."""

    def __init__(self, data: Any, where: str) -> None:
        self.where = where
        self._data: Mapping[str, Any] = mapping(data, where)
        self._taken: list[str] = []

    def has(self, key: str) -> bool:
        return key in self._data

    def take(self, key: str) -> Any:
        """The value as it came. Raises InputError when the key is missing."""
        self._taken.append(key)
        if key not in self._data:
            raise InputError(f"{self.where}.{key}", "missing")
        return self._data[key]

    def maybe(self, key: str) -> Any:
        """The value as it came, None when the key is not there."""
        self._taken.append(key)
        return self._data.get(key)

    def text(self, key: str, default: Optional[str] = None) -> str:
        value = self.take(key) if default is None else self._data.get(key, default)
        self._taken.append(key)
        if not isinstance(value, str):
            raise expected(f"{self.where}.{key}", "text", value)
        if not _is_unicode(value):
            raise InputError(
                f"{self.where}.{key}", "the text holds a lone surrogate", "send it as UTF-8, or by sha256"
            )
        return value

    def one_of(self, key: str, known: Collection[str]) -> str:
        value = self.text(key)
        one_of(value, known, f"{self.where}.{key}")
        return value

    def flag(self, key: str) -> Optional[bool]:
        """True, False, or None when the key is not there or null."""
        value = self.maybe(key)
        if value is not None and not isinstance(value, bool):
            raise expected(f"{self.where}.{key}", "true or false", value)
        return value

    def mode(self, key: str, default: str) -> str:
        value = self.text(key, default)
        if _MODE.fullmatch(value) is None:
            raise InputError(
                f"{self.where}.{key}", f"{value!r} is no file mode", 'expected a form like "0644"'
            )
        return value

    def number(self, key: str, lowest: int, highest: int) -> int:
        value = self.take(key)
        where = f"{self.where}.{key}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise expected(where, "a whole number", value)
        if not lowest <= value <= highest:
            raise InputError(where, f"{value} is out of range", f"expected {lowest} to {highest}")
        return value

    def sha256(self, key: str) -> str:
        return digest(self.text(key), f"{self.where}.{key}")

    def close(self) -> None:
        for key in self._data:
            if key not in self._taken:
                raise InputError(
                    f"{self.where}.{key}", "unknown key", f"known keys: {', '.join(sorted(self._taken))}"
                )


def mapping(data: Any, where: str) -> Mapping[str, Any]:
    """`data`, when it is a mapping with text keys. Raises InputError."""
    if not isinstance(data, Mapping):
        raise expected(where, "a mapping", data)
    for key in data:
        if not isinstance(key, str):
            raise InputError(where, f"expected text as a key, found {key!r}", "quote it")
    return data


def sequence(data: Any, where: str) -> list[Any]:
    """`data`, when it is a list. Raises InputError."""
    if not isinstance(data, list):
        raise expected(where, "a list", data)
    return data


def digest(text: str, where: str) -> str:
    """`text`, when it is a SHA-256 in lower-case hex. Raises InputError."""
    if SHA256.fullmatch(text) is None:
        raise InputError(where, f"{text!r} is no SHA-256 digest", "expected 64 lower-case hex digits")
    return text


def only_cell(cell: str, where: str) -> None:
    """Refuses a name of a cell where a kind has one cell, without a name. Raises InputError."""
    if cell != "":
        raise InputError(where, f"unknown cell {cell!r}")


def absolute(path: str, where: str) -> str:
    """`path`, when it is absolute and in its shortest form. Raises InputError."""
    parts = path.split("/")
    if parts[0] != "" or len(parts) < 2:
        raise InputError(where, f"{path!r} is not absolute", "expected a path that begins with /")
    if "\0" in path or any(part in ("", ".", "..") for part in parts[1:]):
        raise InputError(
            where, f"{path!r} is not a plain path", 'write it without "..", ".", "//" and a "/" at its end'
        )
    return path


def under(path: str, places: tuple[str, ...]) -> bool:
    """Whether `path` lies in one of these folders."""
    return any(path.startswith(place + "/") for place in places)


def expected(where: str, what: str, found: Any) -> InputError:
    """The error for a wrong type."""
    kind = next((name for known, name in _NAMES.items() if type(found) is known), type(found).__name__)
    # YAML takes an unquoted 0 for a number, yes for true and even 0000:18:00.0 for one, to the base of 60.
    return InputError(where, f"expected {what}, found {kind}", "quote it" if what == "text" else "")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
