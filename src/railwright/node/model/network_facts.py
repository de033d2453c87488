"""Facts of the network beside the NICs: local addresses, bonds and bridges, and InfiniBand's own view of its ports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class LocalAddress:
    """An address of this network namespace, "10.0.0.5/24". interface None: several could hold it, none was told."""

    address: str
    interface: Optional[str] = None


@dataclass(frozen=True)
class Master:
    """What a port is a member of. kind: "bond", "bridge", "vrf", "team"; None where the witness does not tell."""

    name: str
    kind: Optional[str] = None


@dataclass(frozen=True)
class InfinibandPort:
    """What an InfiniBand port knows of its fabric. nic: the port's name in the facts.

    lid, sm_lid: local identifiers of the port and of its subnet manager; 0 says that nobody gave one. pkeys: the
    partition keys in use, as sysfs prints them ("0xffff"; bit 15 is full membership, IBA 1.5 volume 1, 10.9.1.1);
    None where they are not shown. physical: "LinkUp", "Polling", ... as the port says.
    """

    nic: str
    lid: Optional[int] = None
    sm_lid: Optional[int] = None
    pkeys: Optional[tuple[str, ...]] = None
    physical: Optional[str] = None


@dataclass(frozen=True)
class NetworkFacts:
    """subnet_managers: process numbers of opensm that run here; None where processes are not shown."""

    addresses: tuple[LocalAddress, ...] = ()
    masters: tuple[Master, ...] = ()
    infiniband: tuple[InfinibandPort, ...] = ()
    subnet_managers: Optional[tuple[int, ...]] = None
