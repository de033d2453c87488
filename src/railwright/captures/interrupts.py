"""/proc/interrupts: interrupts of PCI functions that name their address, and the CPUs that have served them.

It shows counts, not affinities: a note tells which CPUs each function's interrupts have run on.
"""

from __future__ import annotations

import re

from railwright.node.discover.irq import read_actions
from railwright.node.model import Cpus, Facts, InputError, Irq, format_cpulist, normalise_address, sort_key

from .fields import facts_of, lines_of, refuse_crowd
from .source import Source

_HEADER = re.compile(r"^\s*(?:CPU\d+\s*)+$", re.ASCII)
_LINE = re.compile(r"^\s*(\d{1,7}):\s+(\d.*)$", re.ASCII)
# mlx5_comp0@pci:0000:65:00.0 (drivers/net/ethernet/mellanox/mlx5/core/pci_irq.c)
_ADDRESS = re.compile(r"@pci:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b", re.ASCII)
_MAX_CPU = 8191


def read_interrupts(source: Source) -> Facts:
    """Interrupts by function and number. Raises InputError with file and line."""
    lines = lines_of(source)
    start = next((n for n, line in enumerate(lines) if _HEADER.match(line.text) and line.text.strip()), None)
    if start is None:
        raise InputError(source.name, "has no header", "expected a first line like CPU0 CPU1")
    cpus = _columns(source.at(lines[start].number), lines[start].text)
    actions = _actions(source, [line.text for line in lines[start:]], start)
    seen: set[int] = set()
    irqs: list[Irq] = []
    served: dict[str, set[int]] = {}
    for line in lines[start + 1 :]:
        match = _LINE.match(line.text)
        action = actions.get(int(match[1])) if match else None
        address = _ADDRESS.search(action or "")
        if match is None or address is None:
            continue
        where = source.at(line.number)
        device = normalise_address(address[1], where)
        number = int(match[1])
        if number in seen:
            raise InputError(
                where, f"interrupt {number} stands twice", "give one reading of /proc/interrupts"
            )
        seen.add(number)
        irqs.append(Irq(number, device, action=action))
        refuse_crowd(len(irqs), "interrupts of PCI functions", where)
        counts = match[2].split(None, len(cpus))[: len(cpus)]
        served.setdefault(device, set()).update(
            cpu for cpu, count in zip(cpus, counts, strict=False) if count.strip("0")
        )
    irqs.sort(key=lambda irq: (sort_key(irq.device), irq.number))
    notes = tuple(
        f"interrupts of {device} have run on CPU {format_cpulist(ran) or 'none'}"
        for device, ran in served.items()
    )
    return facts_of(
        "interrupts", source, cpus=Cpus(online=format_cpulist(cpus)), irqs=tuple(irqs), notes=notes
    )


def _actions(source: Source, texts: list[str], before: int) -> dict[int, str]:
    """Names by number, as the node's own reader takes them from the file; it counts lines from the header."""
    try:
        return read_actions("\n".join(texts), source.name)
    except InputError as error:
        number = int(error.where.rpartition(":")[2])
        raise InputError(source.at(number + before), error.why, error.remedy) from None


def _columns(where: str, text: str) -> list[int]:
    cpus = [int(number) for number in re.findall(r"CPU([0-9]{1,6})", text)]
    if cpus != sorted(set(cpus)) or cpus[-1] > _MAX_CPU:
        raise InputError(where, f"found {text.strip()[:60]!r}", "expected the CPUs in ascending order")
    return cpus
