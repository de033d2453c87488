"""One run: look at everything, decide everything, keep the prior values, then write.

What a check says and what a run does come from the same steps; a check stops before the first write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Optional

from ..model import InputError
from . import files, unit_item
from .item import (
    STAGE_RELEASE,
    STAGE_STOP,
    STAGE_UNITS,
    STAGE_WRITE,
    Item,
    Kept,
    KeptCell,
    Node,
    World,
)
from .kinds import Owned, recorded_item, refuse_overlap, refuse_overlaps
from .lock import Lock, refuse_if_held
from .outcome import Failure, Foreign, ItemOutcome, Outcome, Refused, StateError
from .place import FOLDER, REBOOT, RECORD
from .reboots import Reboots
from .record import Record
from .step import Step

_REMEDIES = {
    errno.ENOSPC: "free space or inodes on that file system: df, df -i",
    errno.EDQUOT: "raise the quota of that file system",
    errno.EROFS: "make that file system writable: mount -o remount,rw",
    errno.EACCES: "run as root (become: true)",
    errno.EPERM: "run as root (become: true); a file may also be immutable: lsattr",
    errno.EBUSY: "something is mounted there: findmnt",
}


def converge(node: Node, slices: Optional[Mapping[str, list[Item]]], verb: str, lock: Lock) -> Outcome:
    """Brings these slices to their items and puts back what the record has of them beside.

    slices: None is every slice of the record, without an item. verb: what putting back is called in the outcome.
    Raises InputError and StateError before anything is written.
    """
    refuse_overlaps(_owned(node, slices or {}))
    with lock:
        run = _Run(node, slices, verb)
        run.sweep()
        run.plan()
        run.execute(lock)
        if not run.world.requeued:
            return run.outcome()
        # Interrupts of new queues are there only now. What failed is not tried twice: it may have stopped a port.
        again = _Run(node, slices, verb)
        again.steps = [step for step in again.steps if step.item.follows_queues]
        again.plan()
        again.execute(lock)
        return run.outcome().then(again.outcome())


def foretell(node: Node, slices: Optional[Mapping[str, list[Item]]], verb: str, name: str = "") -> Outcome:
    """What `converge` would do. Changes nothing. name: of the run that this call is a part of. Raises as it does."""
    refuse_overlaps(_owned(node, slices or {}))
    refuse_if_held(node, name)
    run = _Run(node, slices, verb)
    run.plan()
    run.foretell()
    return run.outcome()


def _owned(node: Node, slices: Mapping[str, Iterable[Item]]) -> list[Owned]:
    return [Owned.of(f"slice {name}", item, node) for name, items in slices.items() for item in items]


class _Run:
    def __init__(self, node: Node, slices: Optional[Mapping[str, list[Item]]], verb: str) -> None:
        self.node = node
        self.verb = verb
        self.record = Record.read(node)
        self.reboots = Reboots(node)
        self.slices = {name: [] for name in self.record.slices} if slices is None else slices
        self.world = World(reload=self.record.reload)
        self.failures: list[Failure] = []
        self.steps = self._wanted()
        self.steps += self._released()

    def plan(self) -> None:
        """Reads every item and decides what is to be done; units come last, since they depend on files."""
        for step in sorted(self.steps, key=lambda step: step.item.turn):
            with self._caught(step):
                self._plan(step)

    def sweep(self) -> None:
        """Removes what a killed run left beside the files of this run."""
        for path in dict.fromkeys(
            [RECORD, REBOOT, *(path for step in self.steps for path in step.item.paths())]
        ):
            with suppress(Refused, OSError):  # whoever reads the item says it, with its place
                files.sweep(self.node.root, path)

    def execute(self, lock: Lock) -> None:
        """Keeps the prior values, writes, and keeps what was written."""
        if not self._is_due():
            if os.path.isdir(self.node.at(FOLDER)) and not self.record.slices:
                self.record.save(self.node)  # a killed run left its empty folder
            # Somebody else may have put back what stood there at the boot, and then no reboot is owed any more.
            for step in self.steps:
                self._settle_reboot(step)
            self.reboots.save()
            return
        # An exception that is none of ours leaves the record as it stands before the writes: it is true whatever
        # part of them was done.
        self._intend()
        self.record.save(self.node)
        self.reboots.save()
        for stage in (STAGE_STOP, STAGE_RELEASE, STAGE_WRITE):
            self._execute(stage)
        units = [step for step, _ in self._due(STAGE_UNITS) if step.failure is None]
        if not units:
            self._reload()
            self._settle(self.steps)
            return
        self._settle([step for step in self.steps if step not in units])
        try:
            with lock.lent([step.item.name("") for step in units]):
                self._execute(STAGE_UNITS)
                self._reload()
            # A unit that was started may have written, the boot unit above all.
            self.record = Record.read(self.node)
            self.reboots = Reboots(self.node)
            self._settle(units)
        except StateError as error:
            self.failures.append(_failure_of_record(error))

    def foretell(self) -> None:
        """Says of each step that it changes what `execute` would change. Raises StateError as it does."""
        if self._is_due():
            self._intend()
            self.record.foresee(self.node)
        for step in self.steps:
            if step.goal.cells and step.failure is None:
                with self._caught(step):
                    _refuse_withheld(step, self.world)
            step.changed = bool(step.goal.cells) and step.failure is None
            self._settle_reboot(step)

    def outcome(self) -> Outcome:
        told: dict[str, list[ItemOutcome]] = {name: [] for name in self.slices}
        for step in self.steps:
            told[step.name].append(step.tell(self.verb))
        changed = [step for step in self.steps if step.changed]
        owed = [step.item.id for step in self.steps if self._boot_owed(step)]
        return Outcome(
            slices={name: tuple(items) for name, items in told.items()},
            diff=tuple(step.diff() for step in changed),
            failures=tuple(self.failures),
            reboot_needed=tuple(dict.fromkeys([*owed, *self.reboots.in_force])),
        )

    def _boot_owed(self, step: Step) -> bool:
        """What the system itself tells comes before what was written since the last boot."""
        told = (
            None
            if step.releasing or step.failure is not None
            else step.item.boot_owed(self.node, step.reading)
        )
        return self.reboots.owed(step.item) if told is None else told and step.item.reboot

    # Deciding

    def _wanted(self) -> list[Step]:
        return [
            Step(name, item, self.record.kept(name, item.id), releasing=False)
            for name, items in self.slices.items()
            for item in items
        ]

    def _released(self) -> list[Step]:
        """The items of the record that their slice does not have any more."""
        wanted = {(step.name, step.item.id): step for step in self.steps}
        owned = _owned(self.node, self.slices)
        strangers: list[Owned] = []
        released: list[Step] = []
        for name, item_id, _ in list(self.record.items()):
            item = recorded_item(name, item_id, self.record.kept(name, item_id))
            known = Owned.of(f"slice {name}", item, self.node)
            if name not in self.slices:
                strangers.append(known)
            elif self._hand_over(name, item_id):
                continue
            else:
                self._refuse_moved_part(known, name, owned)
                if (name, item_id) not in wanted:
                    released.append(Step(name, item, self.record.kept(name, item_id), releasing=True))
        refuse_overlaps([*owned, *strangers])
        return released

    def _hand_over(self, name: str, item_id: str) -> bool:
        """Whether the item went from this slice to another one of this run, which then takes its prior values."""
        heirs = [step for step in self.steps if step.item.id == item_id]
        if len(heirs) != 1 or heirs[0].name == name or heirs[0].kept.cells:
            return False
        self.record.slices.setdefault(heirs[0].name, {})[item_id] = self.record.slices[name].pop(item_id)
        heirs[0].kept = self.record.kept(heirs[0].name, item_id)
        return True

    def _refuse_moved_part(self, known: Owned, name: str, owned: Iterable[Owned]) -> None:
        """What is put back in this run must not be written in it by another item: one would undo the other."""
        for other in owned:
            if (other.owner, other.item.id) != (known.owner, known.item.id):
                refuse_overlap(known, other, f"revert slice {name} first, so that it is put back before")

    def _plan(self, step: Step) -> None:
        _refuse_withheld(step, self.world)
        try:
            step.reading = step.item.read(self.node, step.kept, self.world)
        except Foreign as error:
            if not step.releasing:
                raise
            step.notes = [f"changed since by someone else: left ({error.why})"]
            return
        if step.releasing:
            goal = step.item.release(step.reading, step.kept, self.world)
            step.notes = list(goal.notes)  # how it stood to the entry is no matter any more
        else:
            goal = step.item.goal(step.reading, step.kept)
            step.notes = [note for note in (step.reading.note, *goal.notes) if note]
        if goal.cells:
            step.item.foresee(self.node, step.reading, goal.cells)
            touched = step.item.touches(step.reading, goal.cells)
            self.world.changing.update(touched)
            if step.item.action(step.reading, goal.cells) == "create":
                self.world.creating.update(touched)
        step.goal = goal

    def _is_due(self) -> bool:
        """Whether there is anything to write, be it in the record only."""
        return (
            self.world.reload
            or self.record.known_again
            or any(step.releasing or step.is_due for step in self.steps)
        )

    # Writing

    def _intend(self) -> None:
        """The record before the first write: every prior value, and what is about to stand there instead."""
        for step in self.steps:
            if step.item.reboot and step.goal.cells:
                self.reboots.begin(step.item, step.reading.cells)
            if step.releasing:
                for cell in step.goal.cells.keys() & step.kept.cells.keys():
                    step.kept.cells[cell].pending = True
            elif step.goal.cells:
                self._keep(step)
        self.record.reload = self.world.reload or any(map(unit_item.is_systemds, self.world.changing))

    def _keep(self, step: Step) -> None:
        kept = self.record.slices.setdefault(step.name, {}).setdefault(step.item.id, Kept({}))
        kept.entry = step.item.intended(kept)
        origin = step.item.origin(step.reading)
        if origin is not None:
            self.record.origins.setdefault(step.item.id, origin)
        for path in step.item.paths():
            missing = files.missing_parents(self.node.root, path)
            self.record.made.extend(folder for folder in missing if folder not in self.record.made)
        for cell, value in step.goal.cells.items():
            if cell not in step.item.unrecorded:
                step.taken += () if cell in kept.cells else (cell,)
                known = kept.cells.setdefault(cell, KeptCell(step.item.prior(step.reading, cell), []))
                known.pending = True
                known.written += [] if value in known.written else [value]
        step.kept = kept

    def _due(self, stage: int) -> list[tuple[Step, Mapping[str, Any]]]:
        due = []
        for step in self.steps:
            goal = step.item.stages(step.goal.cells, step.releasing).get(stage)
            if goal:
                due.append((step, goal))
        due.sort(key=lambda found: found[0].item.turn)
        return due[::-1] if stage in (STAGE_STOP, STAGE_RELEASE) else due

    def _execute(self, stage: int) -> None:
        for step, goal in self._due(stage):
            if step.failure is None:
                with self._caught(step):
                    self._write(step, goal)

    def _write(self, step: Step, goal: Mapping[str, Any]) -> None:
        _refuse_withheld(step, self.world)
        # Before the write: a unit file that was replaced has to be read again whatever comes after.
        touched = step.item.touches(step.reading, goal)
        self.world.reload = self.world.reload or any(map(unit_item.is_systemds, touched))
        done = step.item.write(self.node, step.reading, goal, self.world)
        step.changed = step.changed or done.changed
        step.skipped += done.skipped
        step.notes += [done.note] if done.note else []

    def _reload(self) -> None:
        try:
            unit_item.reload(self.node, self.world)
        except Refused as error:
            self.failures.append(Failure("systemd", error.why, error.remedy))

    def _settle(self, steps: Iterable[Step]) -> None:
        """The record after the writes: what was put back is forgotten, what was written is known to be."""
        for step in steps:
            items = self.record.slices.get(step.name, {})
            kept = items.get(step.item.id, Kept({}))
            if step.failure is not None:
                self._forget_untouched(step, kept)
            elif step.releasing:
                items.pop(step.item.id, None)
            else:
                _confirm(step, kept)
            self._settle_reboot(step)
        self.record.reload = self.world.reload
        self.record.tidy()
        try:
            self.reboots.save()  # first: what the record has forgotten no later run would look at again
            self.record.leave_folders(self.node)
            self.record.save(self.node)
        except (OSError, StateError) as error:
            # The record from before the writes still holds every prior value.
            self.failures.append(_failure_of_record(error))

    def _settle_reboot(self, step: Step) -> None:
        if step.failure is None and step.item.reboot:
            if not step.goal.cells and step.item.boot_owed(self.node, step.reading) is False:
                self.reboots.forget(step.item)
            else:
                self.reboots.settle(step.item, {**step.reading.cells, **step.goal.cells})

    def _forget_untouched(self, step: Step, kept: Kept) -> None:
        """After a failure: a cell that this run took up and that still has its prior value is not ours."""
        if step.releasing or not step.taken:
            return
        with suppress(InputError, OSError, Refused):  # then the record keeps what it has
            now = step.item.read(self.node, kept, World()).cells
            for cell, known in list(kept.cells.items()):
                untouched = cell in now and step.item.as_before(now[cell], known.prior)
                if cell in step.taken and untouched and cell not in step.item.owed:
                    del kept.cells[cell]

    @contextmanager
    def _caught(self, step: Step) -> Iterator[None]:
        """Turns what goes wrong with one item into its failure, so that the others go on."""
        try:
            yield
        except Refused as error:
            self._fail(step, error.why, error.remedy, error.changed)
        except InputError as error:
            self._fail(step, f"{error.where}: {error.why}", error.remedy, False)
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "see the kernel's log: dmesg")
            self._fail(step, f"{step.item.id}: {error.strerror or error}", remedy, False)

    def _fail(self, step: Step, why: str, remedy: str, changed: bool) -> None:
        step.failure = Failure(f"{step.item.where} ({step.item.id})", why, remedy)
        step.changed = step.changed or changed
        self.failures.append(step.failure)
        self.world.failed.update(step.item.paths())
        if step.releasing:
            self.world.failed.update(step.item.rests_on)


def _refuse_withheld(step: Step, world: World) -> None:
    why = step.item.withheld(world)
    if why:
        raise Refused(why, "mend that first, then run again")


def _confirm(step: Step, kept: Kept) -> None:
    kept.entry = step.item.recorded
    for cell in step.goal.dropped:
        kept.cells.pop(cell, None)
    for cell, value in step.goal.cells.items():
        known = kept.cells.get(cell)
        if known is None:
            continue
        if cell in step.skipped:
            known.written.remove(value)
            if not known.written:
                del kept.cells[cell]  # the node never took anything there
        else:
            known.written = [value]
        known.pending = False


def _failure_of_record(error: Exception) -> Failure:
    if isinstance(error, StateError):
        return Failure(error.where, error.why, error.remedy)
    why = f"a folder that we made cannot be removed: {getattr(error, 'strerror', error)}"
    return Failure(RECORD, why, "see the kernel's log: dmesg")
