"""Taking values out of a mapping that a person wrote, with the place of each mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from .errors import MachineError

T = TypeVar("T")
_ABSENT = object()


def merge(base: object, patch: object) -> object:
    """RFC 7386 (JSON merge patch): mappings merge key by key, null takes a key out, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged: dict[object, object] = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class Fields:
    """One mapping. Each key is taken once; `done` complains about the keys that nobody took."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise MachineError(where, f"expected a mapping, found {data!r}", "write key: value pairs")
        self.where = where
        self._data: dict[str, Any] = {str(key): value for key, value in data.items()}
        self._taken: set[str] = set()

    @overload
    def take(self, key: str, kind: type[T]) -> T: ...
    @overload
    def take(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def take(self, key: str, kind: type[T], default: T) -> T: ...

    def take(self, key: str, kind: type[T], default: Any = _ABSENT) -> Any:
        """The value of `key`. A bool is no int here; a number is no text."""
        self._taken.add(key)
        value = self._data.get(key, _ABSENT)
        if value is _ABSENT:
            if default is _ABSENT:
                raise MachineError(f"{self.where}.{key}", "is missing", f"add a {kind.__name__}")
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise MachineError(
                f"{self.where}.{key}",
                f"expected a {kind.__name__}, found {value!r}",
                "quote it if YAML read the text as a number" if kind is str else "correct the value",
            )
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts."""
        items = self.take(key, list, list(default))
        for index, item in enumerate(items):
            if not isinstance(item, str):
                raise MachineError(
                    f"{self.where}.{key}[{index}]", f"expected a str, found {item!r}", "quote it"
                )
        return tuple(items)

    def section(self, key: str) -> Fields:
        """A mapping of its own; an absent one is empty."""
        return Fields(self.take(key, dict, {}), f"{self.where}.{key}")

    def items(self) -> list[tuple[str, Any]]:
        """Every key with its value, for mappings whose keys are names."""
        self._taken.update(self._data)
        return list(self._data.items())

    def done(self) -> None:
        unknown = sorted(set(self._data) - self._taken)
        if unknown:
            raise MachineError(
                self.where, f"does not know {', '.join(unknown)}", f"known: {', '.join(sorted(self._taken))}"
            )
