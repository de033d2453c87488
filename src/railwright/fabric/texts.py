"""Switch configuration as data that knows its lines: JSON, YAML, and the indented text of EOS and NX-OS."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import yaml

from railwright.captures.source import MAX_BYTES, Source, decode
from railwright.node.model import InputError

_SPACE = re.compile(r"[ \t\n\r]*")
_DEEPEST = 60
_Composer = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_text(path: Path) -> Source:
    """A configuration file's text. Raises InputError that names the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error
    if not data.strip():
        raise InputError(str(path), "is empty", "give the switch's running configuration")
    return decode(str(path), data)


class Document:
    """A JSON or YAML value and the line of each part of it."""

    def __init__(self, source: Source, value: Any) -> None:
        self.source = source
        self.value = value

    def line(self, *path: str | int) -> int:
        """The line, from 1, on which the key or item at the end of `path` stands."""
        raise NotImplementedError

    def at(self, *path: str | int) -> str:
        """ "file:line" of that part."""
        return self.source.at(self.line(*path))


class JsonDocument(Document):
    """JSON. Lines are looked for when they are asked for: most parts of a file are never told about."""

    def __init__(self, source: Source) -> None:
        text = source.text.removeprefix("\ufeff")
        try:
            value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{source.at(error.lineno)}:{error.colno}",
                f"is not JSON: {error.msg}",
                "give the file as the switch saved it",
            ) from error
        except RecursionError as error:
            raise InputError(
                source.name, "is nested too deeply", "give the file as the switch saved it"
            ) from error
        except ValueError as error:
            raise InputError(source.name, str(error), "give the file as the switch saved it") from error
        super().__init__(source, value)
        self._text = text
        self._scan = json.JSONDecoder().raw_decode
        self._members: dict[int, dict[str | int, tuple[int, int]]] = {}
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def line(self, *path: str | int) -> int:
        """The line of a key, or of an item of a list."""
        place = start = _skip(self._text, 0)
        for part in path:
            members = self._parts(start)
            if part not in members:
                break
            place, start = members[part]
        return bisect_left(self._breaks, place) + 1

    def _parts(self, start: int) -> dict[str | int, tuple[int, int]]:
        """Key, or number of an item, to where it stands and where its value begins."""
        if start not in self._members:
            self._members[start] = dict(self._walk(start))
        return self._members[start]

    def _walk(self, start: int) -> list[tuple[str | int, tuple[int, int]]]:
        text = self._text
        found: list[tuple[str | int, tuple[int, int]]] = []
        opening = text[start : start + 1]
        if opening not in ("{", "["):
            return []
        index = _skip(text, start + 1)
        while text[index] not in "}]":
            place = index
            key: str | int = len(found)
            if opening == "{":
                key, index = scanstring(text, index + 1)
                index = _skip(text, _skip(text, index) + 1)
            found.append((key, (place, index)))
            _, index = self._scan(text, index)
            index = _skip(text, index)
            if text[index] == ",":
                index = _skip(text, index + 1)
        return found


class YamlDocument(Document):
    """YAML without anchors: a configuration that a switch saved has none, and they hide where a value stands."""

    def __init__(self, source: Source) -> None:
        try:
            for event in yaml.parse(source.text, Loader=_Composer):
                if isinstance(event, yaml.AliasEvent):
                    line = event.start_mark.line + 1 if event.start_mark is not None else 1
                    raise InputError(source.at(line), "uses a YAML alias", "write the value where it belongs")
            root = yaml.compose(source.text, Loader=_Composer)
            self._root = root
            value = _value(root, source, 0) if root is not None else None
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise InputError(
                source.at(line), f"is not YAML: {error.problem}", "give the file as the switch saved it"
            ) from error
        except (yaml.YAMLError, RecursionError) as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(
                source.name, f"is not usable YAML: {said}", "give the file as the switch saved it"
            ) from error
        super().__init__(source, value)

    def line(self, *path: str | int) -> int:
        """The line of a key, or of an item of a list."""
        node, line = self._root, 0
        for part in path:
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == str(part):
                        node, line = value, key.start_mark.line
                        break
                else:
                    break
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return line + 1


def _value(node: yaml.Node, source: Source, depth: int) -> Any:
    """Plain data; every scalar is text, so that `on` and 26 are what stands there."""
    if depth > _DEEPEST:
        raise InputError(source.at(node.start_mark.line + 1), "is nested too deeply")
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            where = source.at(key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(where, "has a key that is no text")
            if key.value in mapping:
                raise InputError(where, f"states {key.value!r} twice", "keep the one that is meant")
            mapping[key.value] = _value(value, source, depth + 1)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, source, depth + 1) for item in node.value]
    return node.value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"states {twice!r} twice")
    return mapping


def _no_number(text: str) -> float:
    raise ValueError(f"holds {text}, which is no number in JSON")


def _skip(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    return match.end() if match is not None else index


@dataclass
class Block:
    """One line of an indented configuration, its words, and the lines that stand below it."""

    number: int
    words: tuple[str, ...]
    below: list[Block] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The line with single blanks."""
        return " ".join(self.words)

    def has(self, *words: str) -> bool:
        """Whether the line begins with these words."""
        return self.words[: len(words)] == words


def running_config(source: Source, product: str, signs: Collection[str]) -> list[Block]:
    """The top lines of a product's running configuration, of which one begins with one of these words, at least.

    Raises InputError.
    """
    top = blocks(source)
    if not any(block.words[0] in signs for block in top):
        raise InputError(
            source.name, f"holds no {product} configuration", "give the output of `show running-config`"
        )
    return top


def host_name(top: Iterable[Block], *words: str) -> str | None:
    """The switch's own name, on the first line that begins with one of these words."""
    return next((block.words[1] for block in top if block.words[0] in words and len(block.words) > 1), None)


def blocks(source: Source) -> list[Block]:
    """The top lines of an indented configuration. Comments and banners are left out. Raises InputError.

    A line belongs to the nearest line above it that is indented less.
    """
    top: list[Block] = []
    stack: list[tuple[int, Block]] = []
    ending: str | None = None
    for number, raw in enumerate(source.text.splitlines(), 1):
        line = raw.rstrip()
        if ending is not None:
            if ending in line:
                ending = None
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith(("!", "#")):
            continue
        if not stripped.isprintable() and "\t" not in stripped:
            raise InputError(
                source.at(number),
                "holds characters that no configuration has",
                "give the output of `show running-config` as text",
            )
        words = tuple(stripped.split())
        if words[0] == "banner":
            ending = _banner_end(words, stripped)
            continue
        depth = len(line.expandtabs(8)) - len(line.expandtabs(8).lstrip())
        while stack and stack[-1][0] >= depth:
            stack.pop()
        if len(stack) > _DEEPEST:
            raise InputError(source.at(number), "is indented too deeply")
        block = Block(number, words)
        (stack[-1][1].below if stack else top).append(block)
        stack.append((depth, block))
    return top


def _banner_end(words: tuple[str, ...], line: str) -> str | None:
    """What ends a banner: EOF in EOS, the character after the kind in NX-OS; None when it ends on its own line."""
    if len(words) < 3:
        return "EOF"
    mark = words[2][0]
    rest = line.split(None, 2)[2]
    return None if rest.count(mark) > 1 else mark
