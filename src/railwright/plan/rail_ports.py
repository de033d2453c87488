"""The ports of the rails by their place in the chassis: what names and addresses go to, whether a link is up or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import Facts, ManagedPort, Nic, PlannedNic
from .cards import port_key, slot

# A further port of a rail's card that is down has no rail of its own in the plan, and keeps its name all the same.
_WITHOUT_RAIL = ("down", "second-port")


@dataclass(frozen=True)
class Place:
    """One port of a rail's card. ordinal: 1 for the card's first port. device: its PCI function.

    path: udev's ID_PATH. file, link_file: what configures it and what named it; None is unknown.
    """

    rail: int
    ordinal: int
    device: str
    nic: Nic
    path: str
    file: Optional[str] = None
    link_file: Optional[str] = None

    def name(self, prefix: str) -> str:
        """rail0 for the first port of rail 0's card, rail0p2 for the second."""
        return f"{prefix}{self.rail}" + (f"p{self.ordinal}" if self.ordinal > 1 else "")

    @property
    def label(self) -> str:
        """As a person would call it in a sentence."""
        return self.nic.netdev or self.nic.name


def places(facts: Facts, nics: Sequence[PlannedNic]) -> tuple[Place, ...]:
    """Ports of rail cards, in rail order. Virtual functions and NVSwitch management functions are none of them."""
    own = {nic.name: nic for nic in facts.nics}
    rails: dict[str, int] = {}
    for planned in nics:
        if planned.rail is not None and planned.pci is not None and _is_physical(own.get(planned.name)):
            rails.setdefault(slot(planned.pci), planned.rail)
    known = {port.netdev: port for port in facts.managers.ports}
    found = []
    for planned in nics:
        nic = own.get(planned.name)
        if nic is None or planned.pci is None or not _is_physical(nic):
            continue
        rail = planned.rail
        if rail is None and planned.role in _WITHOUT_RAIL:
            rail = rails.get(slot(planned.pci))
        if rail is not None:
            found.append(_place(rail, planned.pci, nic, facts.nics, known))
    return tuple(sorted(found, key=lambda place: (place.rail, place.ordinal, place.device, place.nic.name)))


def _place(rail: int, device: str, nic: Nic, nics: Sequence[Nic], known: Mapping[str, ManagedPort]) -> Place:
    card = sorted(
        (
            port
            for port in nics
            if port.address is not None and slot(port.address) == slot(device) and _is_physical(port)
        ),
        key=port_key,
    )
    managed = known.get(nic.netdev or "")
    return Place(
        rail,
        1 + [port.name for port in card].index(nic.name),
        device,
        nic,
        # As udev makes it of a function of the PCI bus (src/udev/udev-builtin-path_id.c).
        (managed.path if managed is not None else None) or f"pci-{device}",
        managed.file if managed is not None else None,
        managed.link_file if managed is not None else None,
    )


def _is_physical(nic: Optional[Nic]) -> bool:
    return nic is not None and not nic.physical_function and not nic.management
