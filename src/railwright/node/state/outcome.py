"""What a run did, or would do, and how it says that something could not be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional


class StateError(Exception):
    """The whole run cannot go on: where, why and what to do. Nothing of the node was changed by it."""

    def __init__(self, where: str, why: str, remedy: str = "") -> None:
        self.where = where
        self.why = why
        self.remedy = remedy
        super().__init__(f"{where}: {why}" + (f" ({remedy})" if remedy else ""))


class Refused(Exception):
    """One item cannot be set; the others go on. changed: a part of it was set before it failed."""

    def __init__(self, why: str, remedy: str = "", changed: bool = False) -> None:
        self.why = why
        self.remedy = remedy
        self.changed = changed
        super().__init__(why)


class Foreign(Refused):
    """Something else stands in the place of what the item owns: in the way of setting it, no matter of putting back."""


@dataclass(frozen=True)
class Failure:
    """An item that could not be set: its place in the input or the record, why, and what to do."""

    where: str
    why: str
    remedy: str

    def to_json(self) -> dict[str, Any]:
        return {"where": self.where, "why": self.why, "remedy": self.remedy}


@dataclass(frozen=True)
class ItemOutcome:
    """One item. action: "none", "create", "write", "remove", "release", "revert", "restart", ... joined by "+".

    before, after: what stood there and what stands there now, short enough for a log; None is absent.
    """

    id: str
    kind: str
    changed: bool
    action: str
    before: Any
    after: Any
    note: str

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "changed": self.changed,
            "action": self.action,
            "before": self.before,
            "after": self.after,
            "note": self.note,
        }


def _later(item: ItemOutcome, later: Optional[ItemOutcome]) -> ItemOutcome:
    return later if later is not None and (later.changed or not item.changed) else item


@dataclass(frozen=True)
class Outcome:
    """A run: its items by slice, the diff in Ansible's form, what failed, and the items that a reboot makes real."""

    slices: Mapping[str, tuple[ItemOutcome, ...]]
    diff: tuple[Mapping[str, str], ...]
    failures: tuple[Failure, ...]
    reboot_needed: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return any(item.changed for items in self.slices.values() for item in items)

    def then(self, later: Outcome) -> Outcome:
        """This run and the second pass over some of its items as one: an item is told as it changed last."""
        told = {item.id: item for items in later.slices.values() for item in items}
        return Outcome(
            slices={
                name: tuple(_later(item, told.get(item.id)) for item in items)
                for name, items in self.slices.items()
            },
            diff=(*self.diff, *later.diff),
            failures=tuple(dict.fromkeys((*self.failures, *later.failures))),
            reboot_needed=tuple(dict.fromkeys((*self.reboot_needed, *later.reboot_needed))),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "changed": self.changed,
            "slices": {
                name: {
                    "changed": any(item.changed for item in items),
                    "items": [item.to_json() for item in items],
                }
                for name, items in self.slices.items()
            },
            "diff": [dict(entry) for entry in self.diff],
            "failures": [failure.to_json() for failure in self.failures],
            "reboot_needed": list(self.reboot_needed),
        }
