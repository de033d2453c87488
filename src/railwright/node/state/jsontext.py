"""JSON text that others own too: read strictly, changed at single places, written back in the form it had."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from .outcome import Foreign, Refused

_FIRST_INDENT = re.compile(r"^\s*[{\[][ \t]*\r?\n([ \t]*)\S")
# Of a pointer and of a value set there; a document has room for one at the end of the other. No configuration comes
# near, and every Python reads and writes it without running out of stack.
DEEPEST = 64
DEEPEST_DOCUMENT = 2 * DEEPEST
_DEFAULT_INDENT = "    "


class _Float(float):
    """A number that keeps the digits it was written with: others' 1e6 must not become 1000000.0."""

    text: str


@dataclass(frozen=True)
class Document:
    """A JSON object and the form of its text. indent: None is everything on one line."""

    value: dict[str, Any]
    indent: Optional[str] = _DEFAULT_INDENT
    end: str = "\n"


def load(data: bytes, path: str) -> Document:
    """The object in `data`. Raises Refused with line and column where it is no JSON object."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Foreign(f"{path}, line {line}: this is not UTF-8", "mend the file") from None
    if not text.strip():
        # dockerd and others take an empty file for an object without keys
        return Document({}, end="\n" if text.endswith("\n") else "")
    try:
        value = json.loads(text, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Foreign(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}",
            "mend the file; nothing was written",
        ) from None
    except (RecursionError, ValueError) as error:
        raise Foreign(f"{path}: {error}", "mend the file; nothing was written") from None
    if not isinstance(value, dict):
        raise Foreign(f"{path} holds no JSON object", "mend the file; nothing was written")
    if is_deeper(value, DEEPEST_DOCUMENT):
        raise Foreign(f"{path} is nested more than {DEEPEST_DOCUMENT} deep", "make it flatter")
    indent = _FIRST_INDENT.match(text)
    flat = indent is None and value
    return Document(
        value,
        None if flat else (indent[1] if indent else _DEFAULT_INDENT),
        "\n" if text.endswith("\n") else "",
    )


def dump(document: Document) -> bytes:
    """The text of the document."""
    return (_text(document.value, document.indent, 0) + document.end).encode()


def same(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1, the order of keys does not matter."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return bool(one == other)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether anything in `value` lies under more than so many objects and lists."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [part for whole in layer for part in _parts(whole)]
        if not layer:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def tokens(pointer: str) -> Optional[tuple[str, ...]]:
    """The names of an RFC 6901 pointer, None when it is none or names the whole document."""
    if not pointer.startswith("/") or re.search(r"~(?![01])", pointer):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def get(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What stands at these names: `{"value": ...}` or `{"absent": True}`."""
    for name in names:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and (index := _index(value, name)) is not None:
            value = value[index]
        else:
            return {"absent": True}
    return {"value": value}


def put(value: dict[str, Any], names: tuple[str, ...], new: Any, where: str) -> None:
    """Sets a place, making the objects on the way. Raises Refused when something else stands there."""
    place: Any = value
    for n, name in enumerate(names):
        last = n + 1 == len(names)
        if isinstance(place, dict):
            if last:
                place[name] = new
            else:
                place = place.setdefault(name, {})
        elif isinstance(place, list) and (index := _index(place, name)) is not None:
            if last:
                place[index] = new
            else:
                place = place[index]
        else:
            what = (
                "a list without that element" if isinstance(place, list) else "neither an object nor a list"
            )
            raise Refused(f"{where}: what stands above {name!r} is {what}", "mend the file or the pointer")


def drop(value: dict[str, Any], names: tuple[str, ...], origin: Mapping[str, Any]) -> None:
    """Takes a key away, and the objects above it that are empty then and that `origin` does not have."""
    for n in range(len(names), 0, -1):
        above = get(value, names[: n - 1]).get("value")
        if not isinstance(above, dict) or names[n - 1] not in above:
            return
        if n < len(names) and (above[names[n - 1]] != {} or "value" in get(origin, names[:n])):
            return
        del above[names[n - 1]]


def _index(place: list[Any], name: str) -> Optional[int]:
    if re.fullmatch(r"0|[1-9][0-9]*", name, re.ASCII) and int(name) < len(place):
        return int(name)
    return None


def _number(text: str) -> _Float:
    number = _Float(text)
    number.text = text
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def _text(value: Any, indent: Optional[str], depth: int) -> str:
    if isinstance(value, _Float):
        return value.text
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return _block(
            [f"{_quoted(key)}: {_text(item, indent, depth + 1)}" for key, item in value.items()],
            "{}",
            indent,
            depth,
        )
    if isinstance(value, (list, tuple)):
        return _block([_text(item, indent, depth + 1) for item in value], "[]", indent, depth)
    return json.dumps(value)


def _block(parts: list[str], brackets: str, indent: Optional[str], depth: int) -> str:
    if not parts:
        return brackets
    if indent is None:
        return brackets[0] + ", ".join(parts) + brackets[1]
    inner = "\n" + indent * (depth + 1)
    return brackets[0] + inner + ("," + inner).join(parts) + "\n" + indent * depth + brackets[1]


def _quoted(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can write
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)
