"""What a check of one port says, before ports that say the same are put together."""

from __future__ import annotations

from dataclasses import dataclass

from .contract import Contract, Port, Switch
from .state import PortState, Seen


@dataclass(frozen=True)
class Said:
    """One disagreement of one port. kind and values: of the line that mends it (see `mend`); "" has none."""

    code: str
    severity: str
    where: str
    why: str
    kind: str
    values: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Subject:
    """One port to be checked: what the contract wants of it and what it has. system: its switch's."""

    contract: Contract
    switch: Switch
    port: str
    plug: Port
    here: PortState
    system: str

    @property
    def speed(self) -> int:
        """Gb/s, as the contract has it."""
        return self.contract.speed(self.plug)


def said(code: str, severity: str, seen: Seen[object], why: str, kind: str, **values: object) -> Said:
    """A disagreement at the place of a value; the object that holds the value is what has to be mended."""
    if seen.name:
        values.setdefault("name", seen.name)
    return Said(f"fabric.{code}", severity, seen.where, why, kind, tuple(values.items()))


def by(seen: Seen[object]) -> str:
    """Whose default a value is, to be put behind what is said of it."""
    return f": {seen.default}" if seen.default else ""
