"""One item of one slice in a run: what is known of it, what is to be done with it, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from .item import Goal, Item, Kept, Reading, Value
from .outcome import Failure, ItemOutcome


@dataclass(eq=False)
class Step:
    """releasing: the item goes back to its prior values. skipped: cells that the node would not let go.
    taken: cells that the record did not have before this run."""

    name: str
    item: Item
    kept: Kept
    releasing: bool
    reading: Reading = field(default_factory=lambda: Reading({}))
    goal: Goal = field(default_factory=lambda: Goal({}))
    notes: list[str] = field(default_factory=list)
    changed: bool = False
    skipped: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    failure: Optional[Failure] = None

    @property
    def is_due(self) -> bool:
        """Whether an item that stays has anything to write, be it that the record's entry names what it gave up."""
        told = self.kept.cells and self.failure is None and self.kept.entry != self.item.recorded
        return bool(self.goal.cells or self.goal.dropped or told)

    def tell(self, verb: str) -> ItemOutcome:
        """What became of the item. verb: what putting back is called."""
        item, reading = self.item, self.reading
        notes = "; ".join([*self.notes, *([self.failure.why] if self.failure is not None else [])])
        if not self.changed:
            standing = self._shown(reading.cells)
            return ItemOutcome(item.id, item.kind, False, "none", standing, standing, notes)
        now, goal = self._sides()
        action = verb if self.releasing else item.action(reading, goal)
        return ItemOutcome(item.id, item.kind, True, action, self._shown(now), self._shown(goal), notes)

    def diff(self) -> dict[str, str]:
        """The change in the form of Ansible's diff."""
        now, goal = self._sides()
        return {
            "before_header": self.item.header(now),
            "after_header": self.item.header(goal),
            "before": self.item.text(now, self.reading),
            "after": self.item.text(goal, self.reading),
        }

    def _sides(self) -> tuple[Mapping[str, Value], Mapping[str, Value]]:
        goal = {cell: value for cell, value in self.goal.cells.items() if cell not in self.skipped}
        return {cell: self.reading.cells[cell] for cell in goal}, goal

    def _shown(self, cells: Mapping[str, Value]) -> Any:
        """Cells for a log: the value where there is one without a name, else a mapping."""
        shown = {cell: self.item.show(value) for cell, value in cells.items()}
        return shown[""] if shown.keys() == {""} else shown
