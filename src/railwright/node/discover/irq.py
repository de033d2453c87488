"""Interrupts of NICs and GPUs: numbers from msi_irqs, names from proc/interrupts, CPUs from proc/irq."""

from __future__ import annotations

import re
from typing import Optional

from ..model import InputError, Irq
from .pci import PciTree
from .tree import Tree, each_line

_INTERRUPTS = "proc/interrupts"
# 512 CPUs at 11 characters and 8000 lines are 45 MB.
_TABLE_BYTES = 48 * 1024 * 1024
# 512 CPUs of 200 vectors each (arch/x86/include/asm/irq_vectors.h).
_MOST = 102_400
_HEADER = re.compile(r"(?:CPU\d+\s*)+", re.ASCII)
_LINE = re.compile(r"\s*(\d{1,9}):(.*)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}")
# Of a 64-bit count.
_DIGITS = 20
# The end of a line whose interrupt nobody has asked for: "PCI-MSI 524288-edge", "ITS-MSI 524288 Edge".
_NO_ACTION = re.compile(r"\S+\s+\d+(?:-\w+|\s+(?:Edge|Level|None))?", re.ASCII)
_GAP = re.compile(r"\s{2,}|\t")


def read_irqs(tree: Tree, pci: PciTree, addresses: frozenset[str]) -> tuple[Irq, ...]:
    """MSI interrupts of these functions, in PCI order and by number. Raises InputError."""
    actions = read_actions(tree.text(_INTERRUPTS, _TABLE_BYTES) or "", tree.where(_INTERRUPTS))
    found = []
    for device in pci.devices:
        if device.address in addresses:
            names = tree.names(f"{pci.places[device.address]}/msi_irqs")
            for number in sorted(int(name) for name in names if _NUMBER.fullmatch(name)):
                found.append(_irq(tree, device.address, number, actions.get(number)))
    return tuple(found)


def read_actions(text: str, where: str) -> dict[int, str]:
    """Interrupt number to its name, from the text of /proc/interrupts. Raises InputError with file and line.

    The header says how many counters a line has: offline CPUs have no column. After them stand the chip, its number
    and trigger, then two blanks and the name (kernel/irq/proc.c, show_interrupts).
    """
    lines = each_line(text)
    header = next(lines, None)
    if header is None:
        return {}
    if not _HEADER.fullmatch(header.strip()):
        raise InputError(f"{where}:1", f"found {header[:80]!r}", "expected a header like 'CPU0 CPU1'")
    columns = len(header.split())
    actions: dict[int, str] = {}
    for number, line in enumerate(lines, start=2):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        parts = match[2].split(None, columns)
        if len(parts) < columns or not _are_counts(parts[:columns]):
            raise InputError(
                f"{where}:{number}", f"found {line[:80]!r}", f"expected {columns} counters, one for each CPU"
            )
        action = _action(parts[columns]) if len(parts) > columns else None
        if action is not None:
            actions[int(match[1])] = action
            if len(actions) > _MOST:
                raise InputError(
                    f"{where}:{number}", f"more than {_MOST} interrupts", "expected those of one machine"
                )
    return actions


def _are_counts(cells: list[str]) -> bool:
    """Of a row at once: a large machine has a hundred thousand of them."""
    row = "".join(cells)
    return row.isascii() and row.isdigit() and max(map(len, cells)) <= _DIGITS


def _action(rest: str) -> Optional[str]:
    rest = rest.strip()
    return None if _NO_ACTION.fullmatch(rest) else _GAP.split(rest)[-1]


def _irq(tree: Tree, device: str, number: int, action: Optional[str]) -> Irq:
    place = f"proc/irq/{number}"
    status = tree.status(f"{place}/smp_affinity_list")
    return Irq(
        number=number,
        device=device,
        action=action or _handler(tree, place),
        affinity=tree.cpulist(f"{place}/smp_affinity_list"),
        effective=tree.cpulist(f"{place}/effective_affinity_list"),
        # Linux 6.11 takes the write bit from what only the kernel may place (kernel/irq/proc.c, register_irq_proc).
        managed=True if status is not None and not status.st_mode & 0o222 else None,
    )


def _handler(tree: Tree, place: str) -> Optional[str]:
    """The name of the one folder that the kernel makes for an interrupt's handler (kernel/irq/proc.c)."""
    folders = [name for name in tree.names(place) if tree.is_folder(f"{place}/{name}")]
    return folders[0] if len(folders) == 1 else None
