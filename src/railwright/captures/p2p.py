"""`nvidia-smi topo -p2p`: for each pair of GPUs whether one reaches the other's memory, by the driver's word."""

from __future__ import annotations

from collections.abc import Iterable

from railwright.node.model import InputError, P2p

from .smi_table import Table
from .source import Source

# The letter after -p2p (nvidia-smi topo -h).
_CAPABILITIES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}
_WORDS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPUs do not support it",
    "TNS": "their place does not allow it",
    "NS": "not supported",
    "DR": "switched off by an option of the driver",
    "U": "the driver does not know",
}
_SHOWN = 4


def read_p2p(source: Source, tables: list[Table]) -> tuple[tuple[P2p, ...], tuple[str, ...]]:
    """States of ordered pairs; notes on tables that are cut and on each reason why pairs cannot.

    Raises InputError with file and line.
    """
    cut: list[str] = []
    found: dict[tuple[str, str, str | None], P2p] = {}
    for table in tables:
        capability = _CAPABILITIES.get(table.asked or "")
        for name, (line, cells) in table.states.items():
            where = f"{source.at(line)}: row {name}"
            if len(cells) > len(table.columns):
                raise InputError(
                    where, f"{len(cells)} states for {len(table.columns)} columns", "copy it again"
                )
            for column, status in zip(table.columns, cells, strict=False):
                if (status == "X") != (column == name):
                    raise InputError(
                        where, f"{status} stands under {column}", "X belongs under the row's own name"
                    )
                if status == "X":
                    continue
                if (name, column, capability) in found:
                    raise InputError(
                        where,
                        "a second table of the same states",
                        "give each with its command: nvidia-smi topo -p2p r",
                    )
                found[name, column, capability] = P2p(name, column, status, capability)
        missing = [name for name in table.columns if not _whole(table, name)]
        if missing:
            cut.append(f"the table of P2P states is cut: rows of {', '.join(missing)} are not whole")
    return tuple(found.values()), (*cut, *_notes(found.values()))


def _whole(table: Table, name: str) -> bool:
    return len(table.states.get(name, (0, []))[1]) == len(table.columns)


def _notes(pairs: Iterable[P2p]) -> list[str]:
    closed: dict[tuple[str | None, str], list[str]] = {}
    for pair in pairs:
        # NVLink is a matter of the machine, not a fault.
        if pair.status != "OK" and pair.capability != "nvlink":
            closed.setdefault((pair.capability, pair.status), []).append(f"{pair.a} to {pair.b}")
    notes = []
    for (capability, status), names in closed.items():
        more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
        what = f"P2P {capability}" if capability else "P2P"
        notes.append(
            f"{what} is not possible ({status}: {_WORDS[status]}): {', '.join(names[:_SHOWN])}{more}"
        )
    return notes
