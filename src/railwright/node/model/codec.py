"""Dataclass to JSON and back, strict, with the place of every error.

Facts come from machines that others had root on and from pasted files, so the way in is a border: an unknown key, a
missing key, a wrong type or a bool where an int is meant is an error that names the place.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, Union

T = TypeVar("T")
# `X | None` as the controller's dataclasses write it; Python 3.9 has no such type.
_UNIONS = (Union, getattr(types, "UnionType", Union))
# The kernel counts with 64 bits. JSON as Python reads it knows larger numbers, NaN and Infinity, which hold for no
# comparison.
_LARGEST = 2**64 - 1
# Entries of one list: a machine of 512 CPUs and 10 NICs has some 3,000 interrupts, the most that it has of anything.
_MOST = 100_000
# YAML reads 13.0 as a number, 2026-11-01 as a day and no as false.
_QUOTES = "put it in quotes"


class InputError(ValueError):
    """Input that cannot be used: where it stands, why it cannot be used and what to do about it."""

    def __init__(self, where: str, why: str, remedy: str = "") -> None:
        self.where = where
        self.why = why
        self.remedy = remedy
        super().__init__(f"{where}: {why}" + (f" ({remedy})" if remedy else ""))


def to_json(value: Any) -> Any:
    """Plain JSON data of a dataclass: dicts, lists, str, int, float, bool and None, keys in field order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, where: str) -> T:
    """The dataclass `cls` read from JSON `data`.

    `where` names the origin in errors (for example "facts" or a file name). Raises InputError.
    """
    kind: Any = cls
    return typing.cast(T, _decoder(kind)(data, where))


Decoder = Callable[[Any, str], Any]


@functools.cache
def _decoder(kind: Any) -> Decoder:
    """What reads values of this type, made once: a machine's facts have some 10,000 values of some hundred types."""
    if kind is Any:
        return _as_it_is
    origin = typing.get_origin(kind)
    if origin in _UNIONS:
        return _optional_of(kind)
    if origin is tuple:
        kinds = typing.get_args(kind)
        if kinds[-1] is not Ellipsis:
            return _row_of([_decoder(each) for each in kinds])
        return _tuple_of(_decoder(kinds[0]))
    if origin is dict:
        return _dict_of(_decoder(typing.get_args(kind)[1]))
    if dataclasses.is_dataclass(kind):
        return _dataclass_of(kind)
    return functools.partial(_decode_scalar, kind)


def _as_it_is(data: Any, where: str) -> Any:
    return data


def _optional_of(kind: Any) -> Decoder:
    (inner,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    decode = _decoder(inner)

    def optional(data: Any, where: str) -> Any:
        return None if data is None else decode(data, where)

    return optional


def _tuple_of(item: Decoder) -> Decoder:
    def entries_of(data: Any, where: str) -> Any:
        entries = _is(list, data, where)
        if len(entries) > _MOST:
            raise InputError(where, f"found {len(entries)} entries", f"expected at most {_MOST}")
        return tuple(item(entry, f"{where}[{n}]") for n, entry in enumerate(entries))

    return entries_of


def _row_of(items: list[Decoder]) -> Decoder:
    """A tuple of so many entries, each of a type of its own."""

    def row_of(data: Any, where: str) -> Any:
        entries = _is(list, data, where)
        if len(entries) != len(items):
            raise InputError(where, f"found {len(entries)} entries", f"expected {len(items)}")
        return tuple(item(entry, f"{where}[{n}]") for n, (item, entry) in enumerate(zip(items, entries)))

    return row_of


def _dict_of(item: Decoder) -> Decoder:
    def mapping_of(data: Any, where: str) -> Any:
        return {key: item(entry, f"{where}.{key}") for key, entry in _mapping(data, where).items()}

    return mapping_of


def _dataclass_of(kind: Any) -> Decoder:
    hints = typing.get_type_hints(kind)
    fields = [
        (
            field.name,
            _decoder(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    ]
    known = {name for name, *_ in fields}

    def instance(data: Any, where: str) -> Any:
        mapping = _mapping(data, where)
        if not known.issuperset(mapping):
            key = next(key for key in mapping if key not in known)
            names = ", ".join(name for name, *_ in fields)
            raise InputError(f"{where}.{key}", "unknown key", f"known keys: {names}")
        values = {}
        for name, decode, is_owed in fields:
            if name in mapping:
                values[name] = decode(mapping[name], f"{where}.{name}")
            elif is_owed:
                raise InputError(f"{where}.{name}", "missing")
        return kind(**values)

    return instance


def _decode_scalar(kind: Any, data: Any, where: str) -> Any:
    # A bool is an int to Python, never to us: "true" as a NUMA node is nonsense, not node 1.
    if isinstance(data, bool) and kind is not bool:
        remedy = _QUOTES if kind is str else ""
        raise InputError(where, f"expected {kind.__name__}, found bool", remedy)
    if isinstance(data, (int, float)) and not -_LARGEST <= data <= _LARGEST:
        raise InputError(where, "a number that no machine has", "expected one of at most 64 bits")
    if kind is float and isinstance(data, int):
        return float(data)
    return _is(kind, data, where)


def _mapping(data: Any, where: str) -> dict[str, Any]:
    mapping: dict[str, Any] = _is(dict, data, where)
    for key in mapping:
        if not isinstance(key, str):
            raise InputError(where, f"expected text as a key, found {key!r}", _QUOTES)
    return mapping


def _is(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, kind):
        remedy = "" if kind is not str or isinstance(data, (list, dict)) else _QUOTES
        raise InputError(where, f"expected {kind.__name__}, found {type(data).__name__}", remedy)
    return data
