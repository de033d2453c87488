"""The form that every kind of item has: read, diff, write, and the prior value that puts it back.

An item is a set of cells: a file is one cell, a JSON file one for each key, a device's interrupts one for each IRQ.
A kind says what stands in its cells (`read`), what should (`wanted`), when two values are the same, and how cells are
set (`write`). Putting back is writing the prior values, so the rules of the record are the same for all kinds.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Optional

from .command import Tools
from .fields import Fields, expected
from .outcome import Refused

# Runs systemctl with these arguments: exit status, standard output, standard error.
Runner = Callable[[list[str]], tuple[int, str, str]]
# A value of a cell is JSON; which form it has is the kind's own matter.
Value = Any
# What nobody else may own: one claim that begins another overlaps it.
Claim = tuple[str, ...]

STAGE_STOP, STAGE_RELEASE, STAGE_WRITE, STAGE_UNITS = range(4)


@dataclass(frozen=True)
class Node:
    """Where things are written: a folder that holds a node's files, its systemctl and its other programs (None: it has
    none). link_seconds: how long a run waits for links, all of them together; None waits for each its own time. alone:
    nobody waits for the answer, as at a boot, so nobody comes back to confirm anything."""

    root: str = "/"
    systemctl: Optional[Runner] = None
    tools: Optional[Tools] = None
    link_seconds: Optional[float] = None
    alone: bool = False

    def at(self, path: str) -> str:
        return path if self.root == "/" else self.root + path


@dataclass
class World:
    """What the run does elsewhere, for items that depend on other items.

    changing: paths whose content it writes or removes. creating: those that were not there. failed: those that it
    could not set. reload: systemd has to read its unit files again. dark: ports whose link did not come back.
    link_waits: seconds that the run has waited for links.
    """

    changing: set[str] = field(default_factory=set)
    creating: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    reload: bool = False
    dark: list[str] = field(default_factory=list)
    link_waits: float = 0.0

    @property
    def requeued(self) -> bool:
        """Whether it changes a port's channels or rings: their interrupts are made anew, and read in a second pass."""
        return any(path.startswith("/sys/class/net/") and path.endswith("/queues") for path in self.changing)


@dataclass
class KeptCell:
    """What the record knows of one cell. written: every value that a run may have left there; pending: the last run
    that set out to write it did not say that it had."""

    prior: Value
    written: list[Value]
    pending: bool = False


@dataclass
class Kept:
    """What the record knows of one item. entry: as given, without its content. origin: of the kind's own use."""

    entry: Mapping[str, Any]
    cells: dict[str, KeptCell] = field(default_factory=dict)
    origin: Value = None


@dataclass(frozen=True)
class Reading:
    """An item as it stands on the node. detail: what the kind needs again in order to write."""

    cells: Mapping[str, Value]
    note: str = ""
    detail: Any = None


@dataclass(frozen=True)
class Done:
    """A write that came to its end. skipped: cells that the node would not let go, which is no failure."""

    changed: bool = True
    note: str = ""
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """Cells to be set, and what there is to say about those that are not.

    dropped: cells of the record that the entry does not name any more; after the run they are not ours.
    """

    cells: Mapping[str, Value]
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class Item(abc.ABC):
    """One entry of a slice."""

    kind: ClassVar[str]
    # The place of the kind in a run: what others depend on comes first.
    turn: ClassVar[int]
    # Cells that the record does not keep: what they say is over when the run is.
    unrecorded: ClassVar[tuple[str, ...]] = ()
    # Cells that the record keeps until they are set, whatever stands there: what they say is owed.
    owed: ClassVar[tuple[str, ...]] = ()
    # What a port's queues bring with them: where these change in a run, it is set in a second pass.
    follows_queues: ClassVar[bool] = False

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        """blobs: bytes by their SHA-256, for an entry that names bytes so. Raises InputError."""
        self.where = fields.where
        self.entry = entry
        fields.text("kind")
        fields.text("because", "")
        self.reboot = fields.flag("reboot") or False

    @property
    @abc.abstractmethod
    def id(self) -> str:
        """The name of the thing on the node: the same entry has the same id in every run."""

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The entry as the record keeps it: enough to put it back."""
        return self.entry

    def intended(self, kept: Kept) -> Mapping[str, Any]:
        """The entry as the record keeps it until the run has written it: with what an earlier one gave, where only the
        entry tells what is to be taken away."""
        return self.recorded

    @abc.abstractmethod
    def claims(self, node: Node) -> Iterable[Claim]:
        """What this item owns on the node."""

    @abc.abstractmethod
    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        """What stands there: the cells that the entry and the record name, as far as the node has them."""

    @abc.abstractmethod
    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        """What should stand there. Raises Refused when it cannot be told or cannot be."""

    @abc.abstractmethod
    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        """Sets these cells. Raises Refused or OSError."""

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        """Raises what writing these cells would raise, Refused or OSError, as far as it can be told without."""
        return None  # of this kind nothing can be told

    def same(self, now: Value, value: Value) -> bool:
        """Whether `now` needs no write in order to be `value`."""
        return bool(now == value)

    def ours(self, now: Value, written: Value) -> bool:
        """Whether `now` is what we left there."""
        return self.same(now, written)

    def as_before(self, now: Value, prior: Value) -> bool:
        """Whether `now` is the prior value to the last detail."""
        return self.same(now, prior)

    def prior(self, reading: Reading, cell: str) -> Value:
        """What the record keeps of a cell before its first write."""
        return reading.cells[cell]

    @abc.abstractmethod
    def check_cell(self, cell: str, value: Value, where: str) -> None:
        """Refuses a value of the record that this kind never keeps. Raises InputError."""

    def check_prior(self, cell: str, value: Value, where: str) -> None:
        """Refuses a prior value of the record that cannot be put back. Raises InputError."""
        self.check_cell(cell, value, where)

    def check_origin(self, value: Value, where: str) -> None:
        """Refuses an origin of the record that this kind never keeps. Raises InputError."""
        if value is not None:
            raise expected(where, "nothing", value)

    def origin(self, reading: Reading) -> Value:
        """What the record keeps beside the cells, for all slices that share the id; None is nothing."""
        return None

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        """The difference between what stands there and what should; cells that are no longer wanted go back."""
        wanted = self.wanted(reading)
        cells = {cell: value for cell, value in wanted.items() if not self._is(reading, cell, value)}
        dropped = {cell: known for cell, known in kept.cells.items() if cell not in wanted}
        back = self._back(reading, dropped)
        return Goal({**cells, **back.cells}, back.notes, tuple(dropped))

    def release(self, reading: Reading, kept: Kept, world: World) -> Goal:
        """The way back to what stood there before the first write."""
        return self._back(reading, kept.cells)

    def boot_owed(self, node: Node, reading: Reading) -> Optional[bool]:
        """Whether the running system still has to boot into this item, where the system itself tells; None where it
        does not, and what was written since the last boot decides."""
        return None

    def stages(self, goal: Mapping[str, Value], releasing: bool) -> Mapping[int, Mapping[str, Value]]:
        """When in a run which cells are set."""
        return {STAGE_RELEASE if releasing else STAGE_WRITE: goal}

    def withheld(self, world: World) -> str:
        """Why this item must not be touched after what failed before it; "" when nothing speaks against it."""
        return ""

    def touches(self, reading: Reading, goal: Mapping[str, Value]) -> tuple[str, ...]:
        """The paths whose content this goal changes."""
        return ()

    def paths(self) -> tuple[str, ...]:
        """The files that this item replaces, beside which a killed run may have left something."""
        return ()

    @property
    def rests_on(self) -> tuple[str, ...]:
        """The files that must stay as long as this item could not be put back."""
        return ()

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        """One word, or several joined by "+", for what this goal does."""
        return "write"

    def absent(self, cell: str) -> str:
        """The sentence for a wanted cell that the node does not have."""
        return f"the node has no {self.id}"

    def name(self, cell: str) -> str:
        """A cell as a person would call it."""
        return cell or self.id

    def show(self, value: Value) -> Any:
        """A value, short enough for a log."""
        return value

    def text(self, cells: Mapping[str, Value], reading: Reading) -> str:
        """Cells as text, one side of a diff."""
        return "".join(f"{self.name(cell)} = {self.show(value)}\n" for cell, value in cells.items())

    def header(self, cells: Mapping[str, Value]) -> str:
        """The line over one side of a diff."""
        return self.id

    def _is(self, reading: Reading, cell: str, value: Value) -> bool:
        if cell not in reading.cells:
            raise Refused(self.absent(cell))
        return self.same(reading.cells[cell], value)

    def _back(self, reading: Reading, kept: Mapping[str, KeptCell]) -> Goal:
        cells: dict[str, Value] = {}
        notes: list[str] = []
        for cell, known in kept.items():
            name = self.name(cell)
            if cell not in reading.cells:
                notes.append(f"{name} is gone: nothing to put back")
            elif self.as_before(reading.cells[cell], known.prior):
                continue  # never written, put back already, or reset by a reboot
            elif any(self.ours(reading.cells[cell], value) for value in known.written):
                cells[cell] = known.prior
            elif not self.same(reading.cells[cell], known.prior):
                notes.append(f"{name} was changed since by someone else: left")
        return Goal(cells, tuple(notes))
