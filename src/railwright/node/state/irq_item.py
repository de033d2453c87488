"""The interrupts of one PCI function: which CPU serves which vector."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ..model import InputError, format_cpulist, normalise_address, parse_cpulist
from .fields import Fields, expected
from .item import Claim, Done, Goal, Item, Kept, Node, Reading, Value, World
from .kernel_items import inside, read_value, write_value
from .outcome import Refused
from .port import missing
from .switch_function import must_be_no_switch

# mlx5: data event queues are mlx5_comp<N> (mlx5_sf_comp<N> on sub-functions) and mlx5_combined<N> where there is one
# vector only; all else of mlx5 is control (mlx5_async, mlx5_ctrl, mlx5_pages, mlx5_cmd, ...):
# Linux drivers/net/ethernet/mellanox/mlx5/core/pci_irq.c and eq.c.
_MLX5 = "mlx5_"
_MLX5_DATA = re.compile(r"mlx5_(?:sf_)?com(?:p|bined)\d.*", re.ASCII | re.DOTALL)
# Other drivers name their control vectors in words: ice "misc", iavf "mbx", irdma "AEQ", virtio "config", ...
_CONTROL_WORDS = frozenset(
    ["admin", "aeq", "async", "cmd", "config", "ctrl", "health", "mailbox", "mbx", "misc", "pages"]
)
# The table's header; after the counts of the CPUs the controller's name, the number there ("524288-edge"; on Arm
# "524288 Edge"), then the actions: Linux kernel/irq/proc.c, show_interrupts().
_COLUMN = re.compile(r"CPU\d+", re.ASCII)
_ACTIONS = re.compile(r"(?:^|\s)\d+(?:-\w+|\s+(?:Edge|Level)\b)\s*(.*)", re.ASCII | re.DOTALL)
_WAITING = "queues change in this run, and with them the interrupts: placed after that"


@dataclass(frozen=True)
class _Vector:
    """One interrupt: number, action (None: no driver asked for it), CPUs asked for and CPUs in force (None: not
    told); fixed: the kernel alone places it."""

    irq: int
    action: Optional[str]
    asked: str
    effective: Optional[str]
    fixed: bool


class IrqAffinityItem(Item):
    """`{"kind": "irq_affinity", "device": "0000:18:00.0", "cpus": "4,6,8", "control_cpus": "2"}`.

    Completion vectors take turns on `cpus`, in the order of their numbers; control vectors go to `control_cpus`
    together, and stay where they are without it. A cell is one interrupt number; its value is a cpulist.
    """

    kind = "irq_affinity"
    turn = 30
    follows_queues = True

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = normalise_address(fields.text("device"), f"{fields.where}.device")
        self.cpus = _cpus(fields, "cpus")
        self.control_cpus = _cpus(fields, "control_cpus") if fields.has("control_cpus") else ()

    @property
    def id(self) -> str:
        return f"irq_affinity:{self.device}"

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("irq_affinity", self.device)]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        folder = node.at(f"/sys/bus/pci/devices/{self.device}")
        if not os.path.isdir(folder):
            return Reading({}, detail=None)
        must_be_no_switch(node, self.device)
        vectors = _vectors(node, f"{folder}/msi_irqs")
        wanted = self._wanted(vectors)
        named = {*wanted, *kept.cells}
        cells = {str(vector.irq): vector.asked for vector in vectors if str(vector.irq) in named}
        note = _WAITING if world.requeued else "; ".join(self._notes(vectors, wanted))
        return Reading(cells, note=note, detail=vectors)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        if reading.detail is None:
            raise missing(self.device)
        return self._wanted(reading.detail)

    def goal(self, reading: Reading, kept: Kept) -> Goal:
        return Goal({}) if reading.note == _WAITING else super().goal(reading, kept)

    def same(self, now: Value, value: Value) -> bool:
        return parse_cpulist(now, self.id) == parse_cpulist(value, self.id)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        if not _is_number(cell):
            raise InputError(where, f"{cell!r} is no interrupt number")
        if not isinstance(value, str):
            raise expected(where, "text", value)
        parse_cpulist(value, where)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        if os.statvfs(node.at("/proc/irq")).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/proc/irq")

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        skipped: list[str] = []
        lagging: list[str] = []
        refused: dict[tuple[str, str], list[str]] = {}
        for irq, cpus in goal.items():
            try:
                write_value(_affinity(node, irq), cpus)
            except OSError as error:
                # Of the write alone: an error with a file's name is one of opening it.
                if error.errno in (errno.EIO, errno.EPERM) and error.filename is None:
                    skipped.append(irq)
                else:
                    refused.setdefault(_refusal(cpus, error), []).append(irq)
                continue
            if not _in_force(_effective(node, irq), cpus):
                lagging.append(irq)
        changed = len(goal) > len(skipped) + sum(map(len, refused.values()))
        if refused:
            why = "; ".join(f"IRQ {', '.join(irqs)}: {why}" for (why, _), irqs in refused.items())
            raise Refused(why, next(remedy for _, remedy in refused), changed)
        notes = [*([_managed(skipped)] if skipped else []), *([_lagging(lagging)] if lagging else [])]
        return Done(changed, "; ".join(notes), tuple(skipped))

    def name(self, cell: str) -> str:
        return f"IRQ {cell}"

    def _wanted(self, vectors: Iterable[_Vector]) -> dict[str, str]:
        movable = [vector for vector in vectors if vector.action is not None and not vector.fixed]
        data = [vector for vector in movable if not is_control(vector.action or "")]
        wanted = {str(vector.irq): str(self.cpus[n % len(self.cpus)]) for n, vector in enumerate(data)}
        if self.control_cpus:
            control = [vector for vector in movable if is_control(vector.action or "")]
            wanted.update({str(vector.irq): format_cpulist(self.control_cpus) for vector in control})
        return wanted

    def _notes(self, vectors: tuple[_Vector, ...], wanted: Mapping[str, str]) -> list[str]:
        if not vectors:
            return [f"{self.device} has no MSI vectors: its driver is not bound or uses none"]
        notes = []
        fixed = [str(vector.irq) for vector in vectors if vector.fixed and vector.action is not None]
        if fixed:
            notes.append(_managed(fixed))
        if not any(vector.action is not None and not is_control(vector.action) for vector in vectors):
            notes.append(
                f"none of the {len(vectors)} MSI vectors is a completion vector in use: "
                "the driver asks for them when the interface comes up"
            )
        lagging = [
            irq
            for vector in vectors
            if (irq := str(vector.irq)) in wanted
            and self.same(vector.asked, wanted[irq])
            and not _in_force(vector.effective, wanted[irq])
        ]
        return [*notes, _lagging(lagging)] if lagging else notes


def _vectors(node: Node, folder: str) -> tuple[_Vector, ...]:
    """The MSI vectors of a function in the order of their numbers."""
    try:
        numbers = sorted(int(name) for name in os.listdir(folder) if _is_number(name))
    except FileNotFoundError:
        return ()
    actions = _actions(node)
    return tuple(vector for number in numbers if (vector := _vector(node, number, actions)) is not None)


def _vector(node: Node, irq: int, actions: Mapping[int, str]) -> Optional[_Vector]:
    path = _affinity(node, str(irq))
    asked = read_value(path)
    if asked is None:
        return None  # freed since the folder was listed
    # Linux 6.11 and later take the write bit from what only the kernel may place (kernel/irq/proc.c,
    # register_irq_proc); before, only a write tells.
    fixed = os.stat(path).st_mode & 0o222 == 0
    return _Vector(irq, actions.get(irq), asked, _effective(node, str(irq)), fixed)


def _affinity(node: Node, irq: str) -> str:
    return inside(node, f"/proc/irq/{irq}/smp_affinity_list", ("/proc/irq",))


def _effective(node: Node, irq: str) -> Optional[str]:
    return read_value(node.at(f"/proc/irq/{irq}/effective_affinity_list")) or None


def _actions(node: Node) -> dict[int, str]:
    """Interrupt number to the name that its driver gave it. Raises Refused where the table cannot be read."""
    with open(node.at("/proc/interrupts"), encoding="utf-8", errors="replace") as file:
        header, *rows = file.read().splitlines() or [""]
    columns = header.split()
    if not columns or not all(_COLUMN.fullmatch(column) for column in columns):
        raise Refused("/proc/interrupts, line 1: expected the CPUs' names", "is /proc mounted whole?")
    actions = {}
    for n, row in enumerate(rows, start=2):
        name, _, rest = row.partition(":")
        if not _is_number(name.strip()):
            continue  # NMI, LOC, ... belong to no device
        fields = rest.split(None, len(columns))
        # All of a row at once: a table has a count for each CPU, and is read for each device.
        if len(fields) < len(columns) or not _is_number("".join(fields[: len(columns)])):
            raise Refused(
                f"/proc/interrupts, line {n}: expected {len(columns)} counts", "run again; a CPU came or went"
            )
        match = _ACTIONS.search(fields[len(columns)]) if len(fields) > len(columns) else None
        if match is not None and match[1]:
            actions[int(name)] = match[1].strip()
    return actions


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def is_control(action: str) -> bool:
    """Whether a vector of this name carries commands and events, not data."""
    if action.startswith(_MLX5):
        return _MLX5_DATA.fullmatch(action) is None
    words = {word.lower() for word in re.split(r"[^A-Za-z]+", action)}
    return not words.isdisjoint(_CONTROL_WORDS)


def _in_force(effective: Optional[str], cpus: str) -> bool:
    """Whether the kernel serves it there; where it does not tell, what was asked for counts."""
    if effective is None:
        return True
    return set(parse_cpulist(effective, "effective_affinity_list")) <= set(parse_cpulist(cpus, "cpus"))


def _managed(irqs: Iterable[str]) -> str:
    return f"IRQ {', '.join(irqs)}: managed by the kernel, left"


def _lagging(irqs: Iterable[str]) -> str:
    return f"IRQ {', '.join(irqs)}: set, not in force yet: the kernel moves an interrupt when it next occurs"


def _refusal(cpus: str, error: OSError) -> tuple[str, str]:
    if error.errno == errno.ENOSPC:
        return (
            f"CPU {cpus} has no free vector",
            "spread the interrupts over more CPUs, or have fewer of them (ethtool -L)",
        )
    if error.errno in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
        return f"CPU {cpus} does not exist or is offline", "plan again with the CPUs that are there"
    return f"{error.strerror}", "see the kernel's log: dmesg"


def _cpus(fields: Fields, key: str) -> tuple[int, ...]:
    cpus = parse_cpulist(fields.text(key), f"{fields.where}.{key}")
    if not cpus:
        raise InputError(f"{fields.where}.{key}", "no CPU is named", "expected a form like 4,6,8")
    return cpus
