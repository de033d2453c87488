"""The fleet's record: which rail each known node's NICs are, so that a fleet can grow without changing what is there.

It is a JSON file that belongs beside the inventory, under version control. A node that stands in it keeps its rails,
whoever joins; `replan` takes a node out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from railwright.node.model import InputError, from_json, normalise_address, to_json

from .rails import Part

SCHEMA = "railwright.fleet/1"


@dataclass(frozen=True)
class KnownShape:
    """One shape: how many GPUs and rails it has, and place to rail. places: all of them, in canonical order."""

    name: str
    gpus: int | None
    rails: int | None
    seats: dict[str, int]
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownNode:
    """One node: its shape's key, PCI address to rail, what is expected of it, and the digest of its plan."""

    shape: str
    rails: dict[str, int]
    gpus: int | None
    lanes: int | None
    plan_sha256: str

    @property
    def part(self) -> Part:
        return Part(tuple(self.rails.items()), self.gpus, self.lanes)


@dataclass(frozen=True)
class Record:
    """shapes by key; leaves: leaf to rail; nodes by name."""

    schema: str = SCHEMA
    shapes: dict[str, KnownShape] = field(default_factory=dict)
    leaves: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, KnownNode] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Any, where: str = "fleet") -> Record:
        """Record from JSON. Raises InputError with the place."""
        record = from_json(cls, data, where)
        if record.schema != SCHEMA:
            raise InputError(f"{where}.schema", f"found {record.schema!r}", f"expected {SCHEMA!r}")
        for name, node in record.nodes.items():
            for address, rail in node.rails.items():
                place = f"{where}.nodes.{name}.rails.{address}"
                if normalise_address(address, place) != address or rail < 0:
                    raise InputError(
                        place, f"found {address} as rail {rail}", "expected an address and a number from 0"
                    )
        return record

    def json(self) -> Any:
        """The record as JSON, nodes and shapes in order of their names, so that it can be diffed."""
        data = to_json(self)
        for key in ("shapes", "leaves", "nodes"):
            data[key] = dict(sorted(data[key].items()))
        return data


def plan_changes(old: Any, new: Any) -> tuple[str, ...]:
    """What differs between two plans of a node: each item with its slice; "" where nothing does. Plans as JSON."""
    before, after = _items(old), _items(new)
    told = []
    for key in [*before, *(key for key in after if key not in before)]:
        if key not in after:
            told.append(f"{key}: no longer written")
        elif key not in before:
            told.append(f"{key}: written anew")
        elif before[key] != after[key]:
            told.append(f"{key}: {_difference(before[key], after[key])}")
    return tuple(told)


def _items(plan: Any) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name, part in plan.get("slices", {}).items():
        for entry in part["entries"]:
            subject = entry.get("path") or entry.get("name") or entry.get("device") or ""
            found[f"{name}: {entry['kind']} {subject}"] = entry
    return found


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if isinstance(old.get("content"), str) and isinstance(new.get("content"), str):
        before, after = old["content"].splitlines(), new["content"].splitlines()
        changed = sum(line not in before for line in after) + sum(line not in after for line in before)
        if changed:
            return f"{changed} lines differ"
    fields = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}"[:160] for key in fields)
