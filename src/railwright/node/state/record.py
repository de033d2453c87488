"""What was there before: kept on the node, written and synced before anything else is.

/var/lib/railwright/state.json, mode 0600, schema "railwright.state/1":

    {"schema", "reload": bool, "made": [folder, ...], "origins": {item id: ...},
     "slices": {slice: {item id: {"entry": {...}, "cells": {cell: {"prior", "written": [...], "pending": bool}}}}}}

prior is what stood there before the first write of ours and never changes; written is every value that a run of ours
may have left there; made lists the folders that we made, outermost first; reload says that systemd has yet to read its
unit files again. A cell that was right when we came is not ours and not in here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..model import InputError
from . import confirm, files
from .fields import Fields, absolute, expected, mapping, sequence
from .item import Kept, KeptCell, Node, Value
from .outcome import Refused, StateError
from .place import FOLDER, RECORD

SCHEMA = "railwright.state/1"


@dataclass
class Record:
    """The record in memory; the names are those of the file. known_again: it holds what the file has forgotten."""

    slices: dict[str, dict[str, Kept]] = field(default_factory=dict)
    origins: dict[str, Value] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    reload: bool = False
    known_again: bool = False

    @classmethod
    def read(cls, node: Node) -> Record:
        """The node's record, empty when it has none; with what a run put back and forgot, where that was undone since
        nobody came back. Raises StateError when it is not one of ours."""
        found = files.read_ours(node.root, RECORD)
        back = (confirm.undone(node) or {}).get("record")
        if found is None and back is None:
            return cls()
        folder = os.stat(node.at(FOLDER))
        if folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
            raise StateError(
                FOLDER,
                f"it belongs to user {folder.st_uid} with mode {stat.S_IMODE(folder.st_mode):04o}, so others may have "
                "put another record there",
                "look at state.json in it, then give the folder back to root with mode 0755",
            )
        try:
            record = cls() if found is None else _decode(json.loads(found.data))
            if back is not None:
                record._know_again(_decode(back))
            return record
        except InputError as error:
            raise StateError(error.where, error.why, error.remedy) from None
        except (RecursionError, ValueError) as error:
            raise StateError(RECORD, f"this is not JSON: {error}", "put its last good copy back") from None

    def excerpt(self, item_id: str) -> Any:
        """The slices that hold this item, as JSON that `read` takes back."""
        slices = {name: items for name, items in self.slices.items() if item_id in items}
        return _encode(Record(slices, self.origins, self.made))

    def _know_again(self, other: Record) -> None:
        for name, items in other.slices.items():
            if name not in self.slices:
                self.slices[name] = items
                self.known_again = True
                for known in (cell for kept in items.values() for cell in kept.cells.values()):
                    known.pending = False  # all of it stands there again
        self.origins = {**other.origins, **self.origins}
        self.made += [path for path in other.made if path not in self.made]

    def kept(self, name: str, item_id: str) -> Kept:
        """What is known of an item of a slice, an empty thing when nothing is."""
        known = self.slices.get(name, {}).get(item_id) or Kept({})
        return Kept(known.entry, known.cells, self.origins.get(item_id))

    def items(self) -> Iterator[tuple[str, str, Kept]]:
        """All items: slice, id, what is known."""
        for name, items in self.slices.items():
            for item_id, kept in items.items():
                yield name, item_id, kept

    def tidy(self) -> None:
        """Forgets items without a cell, slices without an item and origins without an owner."""
        self.slices = {
            name: left
            for name, items in self.slices.items()
            if (left := {item_id: kept for item_id, kept in items.items() if kept.cells})
        }
        owned = {item_id for _, item_id, _ in self.items()}
        self.origins = {item_id: value for item_id, value in self.origins.items() if item_id in owned}

    def save(self, node: Node) -> None:
        """Writes the record and waits for the disk; a record of nothing goes, with the folders that we made.

        Raises StateError when the node cannot keep it.
        """
        try:
            self._save(node)
        except (OSError, Refused) as error:
            with suppress(OSError, Refused):
                files.remove_if_empty(node.root, FOLDER)
            raise _not_kept(error) from error

    def foresee(self, node: Node) -> None:
        """Raises the StateError of `save`, as far as it can be told without writing."""
        try:
            files.must_be_writable(node.root, RECORD, in_place=False)
            if self.slices or self.reload:
                self._bytes()
        except (OSError, Refused) as error:
            raise _not_kept(error) from error

    def _save(self, node: Node) -> None:
        if self.slices or self.reload:
            self._claim_folders(files.missing_parents(node.root, RECORD))
            self._write(node)
        else:
            self._forget(node)

    def leave_folders(self, node: Node) -> None:
        """Removes the folders that we made and that hold nothing any more."""
        for path in reversed(list(self.made)):
            if files.remove_if_empty(node.root, path):
                self.made.remove(path)

    def _claim_folders(self, missing: tuple[str, ...]) -> None:
        self.made.extend(path for path in missing if path not in self.made)

    def _write(self, node: Node) -> None:
        data = self._bytes()
        files.make_parents(node.root, RECORD)
        content = files.Content(data, "0600", os.geteuid(), os.getegid())
        files.replace(node.root, RECORD, content, files.read(node.root, RECORD))

    def _bytes(self) -> bytes:
        data = (json.dumps(_encode(self), indent=1, ensure_ascii=False) + "\n").encode(
            "utf-8", "surrogatepass"
        )
        if len(data) > files.LARGEST:
            raise Refused(
                f"the record would have {len(data)} bytes; at most {files.LARGEST} can be kept",
                "manage smaller files, or revert slices that are no longer needed",
            )
        return data

    def _forget(self, node: Node) -> None:
        found = files.read(node.root, RECORD)
        if found is not None:
            files.remove(node.root, RECORD, found)
        self.leave_folders(node)
        # The folder is ours by its name: a run that was killed may have made it without a word in the record.
        files.remove_if_empty(node.root, FOLDER)


def _not_kept(error: Exception) -> StateError:
    if isinstance(error, OSError):
        remedy = "free space or make the file system writable"
        return StateError(RECORD, f"the record cannot be kept: {error.strerror}", remedy)
    return StateError(RECORD, getattr(error, "why", str(error)), getattr(error, "remedy", ""))


def _encode(record: Record) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "reload": record.reload,
        "made": record.made,
        "origins": record.origins,
        "slices": {
            name: {
                item_id: {
                    "entry": dict(kept.entry),
                    "cells": {
                        cell: {"prior": known.prior, "written": known.written, "pending": known.pending}
                        for cell, known in kept.cells.items()
                    },
                }
                for item_id, kept in items.items()
            }
            for name, items in record.slices.items()
        },
    }


def _decode(data: Any) -> Record:
    fields = Fields(data, RECORD)
    schema = fields.text("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{RECORD}.schema",
            f"found {schema!r}, expected {SCHEMA!r}",
            "use the Railwright that wrote it, or a newer one",
        )
    made = sequence(fields.take("made"), f"{RECORD}.made")
    for n, path in enumerate(made):
        if not isinstance(path, str):
            raise expected(f"{RECORD}.made[{n}]", "text", path)
        absolute(path, f"{RECORD}.made[{n}]")
    record = Record(
        slices={
            name: {
                item_id: _decode_item(kept, f"{RECORD}.slices.{name}.{item_id}")
                for item_id, kept in mapping(items, f"{RECORD}.slices.{name}").items()
            }
            for name, items in mapping(fields.take("slices"), f"{RECORD}.slices").items()
        },
        origins=dict(mapping(fields.take("origins"), f"{RECORD}.origins")),
        made=made,
        reload=fields.flag("reload") or False,
    )
    fields.close()
    owned = {item_id for _, item_id, _ in record.items()}
    record.origins = {item_id: value for item_id, value in record.origins.items() if item_id in owned}
    return record


def _decode_item(data: Any, where: str) -> Kept:
    fields = Fields(data, where)
    entry = mapping(fields.take("entry"), f"{where}.entry")
    cells = mapping(fields.take("cells"), f"{where}.cells")
    fields.close()
    return Kept(entry, {cell: _decode_cell(known, f"{where}.cells.{cell}") for cell, known in cells.items()})


def _decode_cell(data: Any, where: str) -> KeptCell:
    fields = Fields(data, where)
    known = KeptCell(
        fields.take("prior"),
        sequence(fields.take("written"), f"{where}.written"),
        fields.flag("pending") or False,
    )
    fields.close()
    return known
