"""Seats: the places of GPUs, NICs and NVSwitches in a chassis, and the canonical form of its PCI tree.

The kernel's numbers and names are no part of it: a seat is the chassis's own name of the slot where the firmware tells
one, else the PCI address.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from railwright.node.model import Facts, PciDevice, sort_key
from railwright.plan.tree import Tree

# PCI class "other bridge", which NVSwitches bear up to HGX H200.
_NVSWITCH = ("0x10de", "0x0680")


@dataclass(frozen=True)
class Seat:
    """One endpoint. kind: "GPU", "NIC" or "NVSwitch". place: "slot 41", or the PCI address. model: "10de:2330".

    name: how the node calls it.
    """

    kind: str
    place: str
    address: str
    model: str
    name: str

    @property
    def device(self) -> str:
        """What sits there, for comparing."""
        return f"{self.kind} {self.model}"


@dataclass(frozen=True)
class Chassis:
    """Seats in canonical order, and the digest of the tree's canonical form."""

    seats: tuple[Seat, ...]
    form: str

    @property
    def places(self) -> dict[str, Seat]:
        return {seat.place: seat for seat in self.seats}


def chassis_of(facts: Facts) -> Chassis:
    """The chassis that these facts show; without a seat where the witness hides PCI addresses."""
    tree = Tree(facts)
    found = sorted(_endpoints(facts, tree), key=lambda seat: sort_key(seat.address))
    slots = Counter(slot for seat in found if (slot := tree.slot(seat.address)) is not None)
    seats = [_with_place(seat, tree, slots) for seat in found]
    canonical = _Canonical(facts, {seat.address: seat for seat in seats})
    ordered = sorted(seats, key=lambda seat: (canonical.way(seat.address), sort_key(seat.address)))
    return Chassis(tuple(ordered), canonical.digest())


def _endpoints(facts: Facts, tree: Tree) -> Iterator[Seat]:
    for gpu in facts.gpus:
        if gpu.address is not None:
            yield Seat("GPU", "", gpu.address, _model(tree.device(gpu.address)), gpu.name)
    told: set[str] = set()
    for nic in facts.nics:
        if nic.address is None or nic.rdma is None or nic.physical_function or nic.address in told:
            continue
        told.add(nic.address)
        yield Seat("NIC", "", nic.address, _card(tree.device(nic.address)), nic.name)
    for device in facts.pci:
        if (device.vendor, (device.class_code or "")[:6]) == _NVSWITCH:
            yield Seat("NVSwitch", "", device.address, _model(device), device.address)


def _model(device: PciDevice | None) -> str:
    if device is None or device.vendor is None or device.device is None:
        return "unknown"
    return f"{device.vendor.removeprefix('0x')}:{device.device.removeprefix('0x')}"


def _card(device: PciDevice | None) -> str:
    """A NIC's model with its board: one and two ports are one chip on two boards."""
    model = _model(device)
    if device is None or device.subsystem_vendor is None or device.subsystem_device is None:
        return model
    return f"{model} board {device.subsystem_vendor.removeprefix('0x')}:{device.subsystem_device.removeprefix('0x')}"


def _with_place(seat: Seat, tree: Tree, slots: Counter[str]) -> Seat:
    slot = tree.slot(seat.address)
    if slot is None:
        place = seat.address
    else:
        # The functions of one card share its slot.
        function = seat.address.rpartition(".")[2]
        place = f"slot {slot}" if slots[slot] == 1 else f"slot {slot}.{function}"
    return Seat(seat.kind, place, seat.address, seat.model, seat.name)


class _Canonical:
    """The canonical form: what does not change when bus numbers, names or the order of equal branches do."""

    def __init__(self, facts: Facts, seats: dict[str, Seat]) -> None:
        self._seats = seats
        self._devices = {device.address: device for device in facts.pci}
        self._children: dict[str, set[str]] = {}
        self._tops: set[str] = set()
        for address in seats:
            here = self._devices.get(address)
            while here is not None and here.parent is not None:
                self._children.setdefault(here.parent, set()).add(here.address)
                above = self._devices.get(here.parent)
                if above is None:
                    self._tops.add(here.parent)
                here = above

    @functools.cache  # noqa: B019 - lives as long as one call of chassis_of
    def _form(self, name: str) -> str:
        below = sorted(self._form(child) for child in self._children.get(name, ()))
        seat = self._seats.get(name)
        own = (
            seat.device
            if seat is not None
            else _model(self._devices.get(name))
            if name in self._devices
            else "root"
        )
        return f"{own}({','.join(below)})"

    def digest(self) -> str:
        """SHA-256 of the form, in hexadecimal."""
        alone = sorted(seat.device for seat in self._seats.values() if seat.address not in self._devices)
        text = ";".join([*sorted(self._form(top) for top in self._tops), *alone])
        return hashlib.sha256(text.encode()).hexdigest()

    def way(self, address: str) -> tuple[int, str]:
        """Sort key of an endpoint: its NUMA node, then the form of the branch that it is on."""
        device = self._devices.get(address)
        if device is None:
            return (-1, "")
        top = device
        while top.parent in self._devices:
            top = self._devices[top.parent or ""]
        return (-1 if device.numa is None else device.numa, self._form(top.address))
