"""The drawing of `lspci -t`, with -v or -nn or without: where each function hangs, and by -nn which one it is.

It shows no classes, so it tells bridges from the rest but no GPUs from NICs: merge it with `lspci -nn`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from railwright.node.model import Facts, InputError, PciDevice, sort_key

from .fields import facts_of, refuse_crowd
from .pci_functions import host_bridge, roots
from .source import Source
from .terminal import Line

_ROOT = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.ASCII)
_FUNCTION = re.compile(r"([01][0-9a-f])\.([0-7])", re.ASCII)
_BELOW = re.compile(r"-\[([0-9a-f]{2})(?:-([0-9a-f]{2}))?\]", re.ASCII)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]$", re.ASCII)
_DRAWN = re.compile(
    r"^[ |]*(?:[-+\\]{1,3}\[[0-9a-f]{4,8}:[0-9a-f]{2}(?:-[0-9a-f]{2})?\]|[+\\]-[01][0-9a-f]\.[0-7])", re.ASCII
)


@dataclass(frozen=True)
class _Bus:
    domain: str
    number: int
    parent: str


def is_drawing(lines: list[Line]) -> bool:
    """Whether the first line that says anything is one of a drawing."""
    return any(_DRAWN.match(line.text) for line in lines[:2000])


def read_drawing(source: Source, lines: list[Line]) -> Facts:
    """Functions and bridges of the drawing. Raises InputError with file and line."""
    return _Drawing(source).facts(lines)


class _Drawing:
    def __init__(self, source: Source) -> None:
        self._source = source
        # Column of a fork to the bus whose functions begin there.
        self._forks: dict[int, _Bus] = {}
        self._found: dict[str, PciDevice] = {}

    def facts(self, lines: list[Line]) -> Facts:
        begun = False
        for line in lines:
            if _DRAWN.match(line.text):
                begun = True
                self._read(line)
            elif begun and line.text.strip(" |"):
                raise InputError(
                    self._source.at(line.number),
                    f"found {line.text.strip()[:60]!r}",
                    "expected a line of the drawing",
                )
        devices = tuple(self._found[address] for address in sorted(self._found, key=sort_key))
        return facts_of(
            "lspci",
            self._source,
            roots=roots(self._found, devices),
            pci=devices,
            notes=(
                "the drawing of lspci -t shows no classes: which functions are GPUs and NICs is not known;"
                " give lspci -nn with it",
            ),
        )

    def _read(self, line: Line) -> None:
        text, where = line.text, self._source.at(line.number)
        at = next(n for n, character in enumerate(text) if character not in " |")
        root = _ROOT.search(text)
        bus: _Bus | None
        # Roots are joined by a column of their own, before which nothing but its strokes stands.
        if root is not None and not _FUNCTION.search(text[: root.start()]):
            domain, number = f"{int(root[1], 16):04x}", int(root[2], 16)
            bus = _Bus(domain, number, host_bridge(domain, number))
            self._forks.clear()
            at = root.end()
        else:
            bus = self._forks.get(at)
            if bus is None:
                raise InputError(
                    where,
                    "this line hangs on nothing above it",
                    "give the whole drawing, from its first line -[0000:00]-",
                )
            self._forks = {column: other for column, other in self._forks.items() if column <= at}
            if text[at] == "\\":
                del self._forks[at]
        self._branch(text, at, bus, where)

    def _branch(self, text: str, at: int, bus: _Bus, where: str) -> None:
        """Goes along one line: a function, the bus behind it, the first function there, and so on."""
        while True:
            while at < len(text) and text[at] in "-+\\":
                if text[at] == "+":
                    self._forks[at] = bus
                at += 1
            function = _FUNCTION.match(text, at)
            if function is None:
                if text[at:].strip():
                    raise InputError(where, f"found {text[at:][:40]!r}", "expected a function like 00.0")
                return
            address = f"{bus.domain}:{bus.number:02x}:{function[1]}.{function[2]}"
            at = function.end()
            below = _BELOW.match(text, at)
            self._add(address, bus, text[at:] if below is None else "", below is not None, where)
            if below is None:
                return
            number = int(below[1], 16)
            if number <= bus.number:
                raise InputError(
                    where, f"bus {below[1]} below bus {bus.number:02x}", "expected a higher number below"
                )
            bus, at = _Bus(bus.domain, number, address), below.end()

    def _add(self, address: str, bus: _Bus, rest: str, bridge: bool, where: str) -> None:
        if address in self._found:
            raise InputError(where, f"{address} stands twice", "give one machine at a time")
        if rest and not rest.startswith("  "):
            raise InputError(where, f"found {rest[:40]!r}", "expected two blanks and a name after a function")
        ids = _IDS.search(rest.strip())
        self._found[address] = PciDevice(
            address,
            bus.parent,
            f"0x{ids[1]}" if ids else None,
            f"0x{ids[2]}" if ids else None,
            # What has a bus behind it is a bridge; nothing else is told.
            class_code="0x0604" if bridge else None,
        )
        refuse_crowd(len(self._found), "PCI functions", where)
