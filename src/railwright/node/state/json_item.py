"""Single keys of a JSON file that others own too, Docker's daemon.json above all."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ..model import InputError
from . import files, jsontext
from .fields import Fields, expected, mapping
from .file_item import check_kept_file, content_of, file_path, landing, with_bytes
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .outcome import Refused

_ABSENT = {"absent": True}


@dataclass(frozen=True)
class _Detail:
    """The file as it was read: whether it is not there, what it holds, and what it was before all keys of ours."""

    is_new: bool
    document: jsontext.Document
    origin: Value


class JsonKeysItem(Item):
    """`{"kind": "json_keys", "path", "keys": {"/default-runtime": "nvidia", ...}}`: RFC 6901 pointer to value.

    A cell is one pointer: `{"value": ...}` or `{"absent": true}`. The origin is the file before the first key: its
    bytes come back when the last key has gone and nobody else changed anything.
    """

    kind = "json_keys"
    turn = 0

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.path = file_path(fields)
        self.secret = fields.flag("secret") or False
        self.values = _keys(fields)

    @property
    def id(self) -> str:
        return f"json_keys:{self.path}"

    def claims(self, node: Node) -> Iterable[Claim]:
        place = landing(node, self.path, f"{self.where}.path")
        return [("file", place, *_names(pointer)) for pointer in self.values]

    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        found = files.read(node.root, self.path)
        document = _document(found, self.path)
        cells = {
            pointer: jsontext.get(document.value, _names(pointer)) for pointer in (*self.values, *kept.cells)
        }
        return Reading(cells, detail=_Detail(found is None, document, kept.origin or _origin(found)))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {pointer: {"value": value} for pointer, value in self.values.items()}

    def same(self, now: Value, value: Value) -> bool:
        return jsontext.same(now, value)

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        goal = super().goal(reading, kept)
        # A pointer through something else is refused before anything is written.
        self._after(reading.detail.document, reading.detail.origin, goal.cells)
        for pointer in goal.cells:
            self._must_be_keepable(pointer, reading.cells[pointer])
        return goal

    def _must_be_keepable(self, pointer: str, now: Value) -> None:
        try:
            self.check_cell(pointer, now, pointer)
        except InputError as error:  # 1e999 is JSON, and no number that Python has
            raise Refused(f"{self.path}, {error.where}: {error.why}", "mend the file") from None

    def origin(self, reading: Reading) -> Value:
        return reading.detail.origin

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if jsontext.tokens(cell) is None:
            raise InputError(where, f"{cell!r} is no JSON pointer to a key")
        if value != _ABSENT:
            fields = Fields(value, where)
            if jsontext.is_deeper(fields.take("value"), jsontext.DEEPEST_DOCUMENT):
                raise InputError(where, f"the value is nested more than {jsontext.DEEPEST_DOCUMENT} deep")
            _must_be_json(fields.take("value"), f"{where}.value")
            fields.close()

    def check_origin(self, value: Value, where: str) -> None:
        if value is None:
            raise InputError(where, "missing", "put the record's last good copy back")
        if value != _ABSENT:
            check_kept_file(value, where, whole=True)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        # Read again: another slice of this run may have set its own keys in the same file meanwhile.
        found = files.read(node.root, self.path)
        document = _document(found, self.path)
        for pointer in goal:
            if not self.same(jsontext.get(document.value, _names(pointer)), reading.cells[pointer]):
                raise Refused(
                    f"{self.path}, {pointer} changed while this run was at work",
                    "run again, and see who else writes it",
                )
        self._write(node, found, document, reading.detail.origin, goal)
        return Done()

    def _write(
        self,
        node: Node,
        found: Optional[files.Snapshot],
        document: jsontext.Document,
        origin: Value,
        goal: Mapping[str, Value],
    ) -> None:
        value = self._after(document, origin, goal)
        if not value and origin == _ABSENT:
            if found is not None:
                files.remove(node.root, self.path, found)
        elif "bytes" in origin and _equal(value, _before(origin, self.path).value):
            # The very file of before, under the owner and mode that it has now.
            old = content_of(origin)
            self._replace(node, old.data, found, old.mtime_ns)
        else:
            self._replace(
                node, jsontext.dump(jsontext.Document(value, document.indent, document.end)), found, None
            )

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        files.must_be_writable(node.root, self.path, in_place=False)

    def touches(self, reading: Reading, goal: Mapping[str, Value]) -> tuple[str, ...]:
        return (self.path,)

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "create" if reading.detail.is_new else "write"

    def show(self, value: Value) -> Any:
        if "value" not in value:
            return None
        return "(secret)" if self.secret else value["value"]

    def text(self, cells: Mapping[str, Value], reading: Reading) -> str:
        return "".join(
            f"{pointer} = {json.dumps(self.show(value), ensure_ascii=False)}\n"
            for pointer, value in cells.items()
            if "value" in value
        )

    def header(self, cells: Mapping[str, Value]) -> str:
        return self.path

    def _after(self, document: jsontext.Document, origin: Value, goal: Mapping[str, Value]) -> dict[str, Any]:
        start = _before(origin, self.path).value
        value = copy.deepcopy(document.value)
        for pointer, cell in goal.items():
            names = _names(pointer)
            if "value" in cell:
                jsontext.put(value, names, cell["value"], f"{self.path}, {pointer}")
            else:
                jsontext.drop(value, names, start)
        return value

    def _replace(
        self, node: Node, data: bytes, found: Optional[files.Snapshot], mtime_ns: Optional[int]
    ) -> None:
        if found is None:
            files.make_parents(node.root, self.path)
            mode = "0600" if self.secret else "0644"
            content = files.Content(data, mode, os.geteuid(), os.getegid())
        else:
            content = files.Content(data, found.mode, found.uid, found.gid, mtime_ns)
        files.replace(node.root, self.path, content, found)


def _keys(fields: Fields) -> dict[str, Any]:
    where = f"{fields.where}.keys"
    keys = mapping(fields.take("keys"), where)
    if not keys:
        raise InputError(where, "no key is named", "name at least one")
    for pointer, value in keys.items():
        if jsontext.tokens(pointer) is None:
            raise InputError(
                f"{where}.{pointer}",
                f"{pointer!r} is no JSON pointer to a key",
                "expected a form like /log-opts/max-size",
            )
        if len(_names(pointer)) > jsontext.DEEPEST:
            raise InputError(
                f"{where}.{pointer}",
                f"the pointer has {len(_names(pointer))} names",
                f"at most {jsontext.DEEPEST} are followed",
            )
        if jsontext.is_deeper(value, jsontext.DEEPEST):
            raise InputError(
                f"{where}.{pointer}",
                f"the value is nested more than {jsontext.DEEPEST} deep",
                "make it flatter",
            )
        _must_be_json(value, f"{where}.{pointer}")
    return dict(keys)


def _must_be_json(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in mapping(value, where).items():
            _must_be_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for n, item in enumerate(value):
            _must_be_json(item, f"{where}[{n}]")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise expected(where, "a JSON value", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(where, f"{value} is no JSON number")


def _document(found: Optional[files.Snapshot], path: str) -> jsontext.Document:
    return jsontext.Document({}) if found is None else jsontext.load(found.data, path)


def _names(pointer: str) -> tuple[str, ...]:
    return jsontext.tokens(pointer) or ()


def _origin(found: Optional[files.Snapshot]) -> dict[str, Any]:
    return dict(_ABSENT) if found is None else with_bytes(found)


def _before(origin: Mapping[str, Any], path: str) -> jsontext.Document:
    return jsontext.load(content_of(origin).data, path) if "bytes" in origin else jsontext.Document({})


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Equal with the order of the keys."""
    return json.dumps(one) == json.dumps(other)
