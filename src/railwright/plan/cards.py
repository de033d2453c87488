"""Cards: the ports that are one NIC for the planner, because they share one PCI slot or one adapter.

NCCL fuses the ports of one card into one device (src/graph/topo.cc, merge level PORT), and a rail is a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

from ..node.model import Nic
from .constants import NIC_CREDIBLE_MBPS, NIC_DEFAULT_MBPS
from .joined import joined
from .order import DeviceKey, device_key


@dataclass(frozen=True)
class Card:
    """One NIC: its ports in PCI and port order. The first one gives it its name.

    functions: PCI addresses that lead to it, one for each slot (two for a card with one port behind two x4 links).
    """

    ports: tuple[Nic, ...]

    @cached_property
    def name(self) -> str:
        return self.ports[0].name

    @cached_property
    def functions(self) -> tuple[str, ...]:
        first_of_slot: dict[str, str] = {}
        for port in self.ports:
            if port.address is not None:
                first_of_slot.setdefault(slot(port.address), port.address)
        return tuple(first_of_slot.values())

    @cached_property
    def numa(self) -> Optional[int]:
        return next((port.numa for port in self.ports if port.numa is not None), None)

    @cached_property
    def rate_known(self) -> bool:
        """Whether every port states a rate that can be true."""
        return all(port.rate and port.rate <= NIC_CREDIBLE_MBPS for port in self.ports)

    @cached_property
    def mbps(self) -> int:
        """What all its ports send together, Mb/s; a port that states no rate counts as NCCL counts it."""
        return sum(port.rate or NIC_DEFAULT_MBPS for port in self.ports)

    @cached_property
    def key(self) -> DeviceKey:
        return port_key(self.ports[0])


def port_key(nic: Nic) -> DeviceKey:
    """Sort key of a port: PCI address, then name."""
    return device_key(nic.address, nic.name)


def slot(address: str) -> str:
    """The address without its function: what the functions of one card share."""
    return address.rsplit(".", 1)[0]


def group(nics: Sequence[Nic], together: Sequence[frozenset[str]] = ()) -> tuple[Card, ...]:
    """Cards of these ports, in PCI order. `together`: sets of port names that the policy puts on one rail."""
    ordered = sorted(nics, key=port_key)
    seen: dict[str, int] = {}
    alike = [
        (seen.setdefault(mark, index), index)
        for index, nic in enumerate(ordered)
        for mark in _marks(nic, together)
    ]
    return tuple(Card(tuple(ordered[index] for index in members)) for members in joined(len(ordered), alike))


def _marks(nic: Nic, together: Sequence[frozenset[str]]) -> list[str]:
    """What two ports of one card have in common."""
    marks = [f"rail {number}" for number, names in enumerate(together) if nic.name in names]
    if nic.address is not None:
        marks.append(f"slot {slot(nic.address)}")
    # A matrix's device may be shown with several ports and no address.
    elif nic.rdma is not None and nic.port is not None:
        marks.append(f"rdma {nic.rdma}")
    if nic.sys_image_guid is not None and nic.sys_image_guid.strip("0x:"):
        marks.append(f"guid {nic.sys_image_guid}")
    return marks
