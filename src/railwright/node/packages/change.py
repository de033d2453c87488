"""One package in a transaction that was simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Change:
    """old None: it comes anew. new None: it goes. origin: the archive that it would come from, where that is told."""

    name: str
    old: Optional[str]
    new: Optional[str]
    origin: Optional[str] = None

    @property
    def words(self) -> str:
        if self.new is None:
            return f"{self.name} {self.old or ''} goes".replace("  ", " ")
        return (
            f"{self.name} {self.new} comes" if self.old is None else f"{self.name} {self.old} -> {self.new}"
        )
