"""PCI functions with what follows from their place: path, node, buses, negotiated link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import MachineError
from .model import BRIDGES, Address, Device, Link, Machine


@dataclass(frozen=True)
class Function:
    """A device with what the kernel derives from its place."""

    device: Device
    path: str
    node: int
    children: tuple[Address, ...]
    now: Link
    buses: tuple[int, int, int] | None
    multifunction: bool

    @property
    def bridge(self) -> bool:
        return self.device.part.port in BRIDGES


def functions(machine: Machine) -> dict[Address, Function]:
    """Every function of the machine, in PCI order."""
    below: dict[Address | None, list[Device]] = {}
    for device in machine.devices:
        below.setdefault(device.under, []).append(device)
    found: dict[Address, Function] = {}
    for device in below.get(None, []):
        _descend(machine, device, f"sys/devices/pci{device.host}", below, None, found)
    return dict(sorted(found.items()))


def _descend(
    machine: Machine,
    device: Device,
    folder: str,
    below: Mapping[Address | None, list[Device]],
    above: Device | None,
    found: dict[Address, Function],
) -> int:
    """Adds `device` and all below it; returns the highest bus number met."""
    address = device.address
    path = f"{folder}/{address}"
    children = below.get(address, [])
    buses = None
    highest = address.bus
    if device.part.port in BRIDGES:
        secondary = _secondary(machine, device, children)
        highest = secondary
        for child in children:
            highest = max(highest, _descend(machine, child, path, below, device, found))
        buses = (address.bus, secondary, highest)
    siblings = [other for other in below.get(device.under, []) if other.host == device.host]
    found[address] = Function(
        device=device,
        path=path,
        node=machine.hosts[device.host] if device.numa is None else device.numa,
        children=tuple(child.address for child in children),
        now=_negotiated(device, above, children),
        buses=buses,
        multifunction=any(
            other.address.function
            and (other.address.bus, other.address.device) == (address.bus, address.device)
            for other in siblings
        ),
    )
    return highest


def _secondary(machine: Machine, device: Device, children: list[Device]) -> int:
    where = f"{machine.name}.devices.{device.address}"
    buses = {child.address.bus for child in children}
    if len(buses) > 1 or any(child.address.domain != device.address.domain for child in children):
        raise MachineError(
            where, "what is below it lies on more than one bus", "correct an address or a parent"
        )
    if buses:
        if device.secondary is not None and device.secondary not in buses:
            raise MachineError(where, "its secondary bus is not its children's", "drop the key `secondary`")
        return buses.pop()
    if device.secondary is None:
        raise MachineError(
            where, "a port with nothing below it", "say its bus number with the key `secondary`"
        )
    return device.secondary


def _negotiated(device: Device, above: Device | None, children: list[Device]) -> Link:
    """The link state that this end shows: its own `now`, else what the two ends agree on."""
    if device.now is not None:
        return device.now
    if device.part.port in ("root-port", "downstream"):
        if not children:
            return Link("2.5", 0)  # nothing trained: LnkSta keeps the lowest speed and no lanes
        partner = children[0]
        return device.link.meet(partner.link if partner.now is None else partner.now)
    if above is not None and above.part.port in ("root-port", "downstream"):
        return device.link.meet(above.link)
    return device.link
