"""Addresses of BARs and windows: each BAR inside all windows above it, no two of them overlapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .functions import Function
from .model import Address, Machine

_PAGE = 1 << 20  # a bridge window's grain
_NARROW_BASE = 0x80000000
_WIDE_BASE = 0x200000000000


@dataclass(frozen=True)
class Assigned:
    """The addresses of one function: BAR index -> base, and a bridge's windows by kind, ends inclusive."""

    bars: Mapping[int, int]
    windows: Mapping[str, tuple[int, int]]


class Layout:
    """Gives each BAR an address inside all windows above it."""

    def __init__(self, machine: Machine, found: Mapping[Address, Function]) -> None:
        self._found = found
        self._bars: dict[Address, dict[int, int]] = {address: {} for address in found}
        self._windows: dict[Address, dict[str, tuple[int, int]]] = {address: {} for address in found}
        for kind, base in (("narrow", _NARROW_BASE), ("prefetchable", _WIDE_BASE)):
            at = base
            for host in machine.hosts:
                tops = tuple(a for a, f in found.items() if f.device.host == host and f.device.under is None)
                size, align = self._need(tops, kind)
                at = _up(at, align)
                self._place(tops, kind, at)
                at += size

    def assigned(self, address: Address) -> Assigned:
        return Assigned(self._bars[address], self._windows[address])

    def _wants(self, address: Address, kind: str) -> list[tuple[int, int, int | None]]:
        """(size, alignment, BAR index or None for the window) of one function."""
        function = self._found[address]
        wants: list[tuple[int, int, int | None]] = [
            (bar.size, bar.size, index)
            for index, bar in function.device.part.bars.items()
            if bar.size and bar.prefetchable == (kind == "prefetchable")
        ]
        size, align = self._need(function.children, kind) if function.children else (0, _PAGE)
        if size:
            wants.append((_up(size, _PAGE), max(align, _PAGE), None))
        return wants

    def _order(self, addresses: tuple[Address, ...], kind: str) -> list[tuple[Address, int, int, int | None]]:
        wants = [(address, *want) for address in addresses for want in self._wants(address, kind)]
        return sorted(wants, key=lambda want: (-want[2], want[0]))

    def _need(self, addresses: tuple[Address, ...], kind: str) -> tuple[int, int]:
        at, most = 0, _PAGE
        for _, size, align, _index in self._order(addresses, kind):
            at = _up(at, align) + size
            most = max(most, align)
        return at, most

    def _place(self, addresses: tuple[Address, ...], kind: str, at: int) -> None:
        for address, size, align, index in self._order(addresses, kind):
            at = _up(at, align)
            if index is None:
                self._windows[address][kind] = (at, at + size - 1)
                self._place(self._found[address].children, kind, at)
            else:
                self._bars[address][index] = at
            at += size


def _up(value: int, grain: int) -> int:
    return (value + grain - 1) // grain * grain
