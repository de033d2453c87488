"""Which GID each RoCE port uses now, for a launcher, a container or a person: asked anew, for an index moves."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ..plan.gid import CHOOSES_SINCE, Address, Pick, Range, Version, pick
from .model import Facts, InputError, Nic


@dataclass(frozen=True)
class Gids:
    """picks: one for each port. wanted: the range of the rails' addresses, where one is known."""

    picks: tuple[Pick, ...]
    wanted: Optional[Range]

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each port of which no single GID can be named."""
        return tuple(one.why for one in self.picks if one.index is None)

    def to_json(self) -> list[dict[str, Any]]:
        """device, port, netdev, gid_index, address, why; null is unknown."""
        return [
            {
                "device": one.nic.rdma,
                "port": one.nic.port,
                "netdev": one.nic.netdev,
                "gid_index": one.index,
                "address": None if one.address is None else str(one.address),
                "why": one.why or None,
            }
            for one in self.picks
        ]

    def lines(self) -> tuple[str, ...]:
        """A row for each port, for a person."""
        return tuple(
            f"{_port(one.nic)}  "
            + (
                f"not usable: {one.why}"
                if one.index is None
                else f"GID {one.index}  {one.address}  {one.nic.netdev or 'netdev in another namespace'}"
            )
            for one in self.picks
        )

    def variables(self, version: Version) -> dict[str, str]:
        """NCCL's variables for these ports: the range before an index, which a flap can move.

        Raises InputError where an index is needed and no single one is right for all ports.
        """
        families = {one.address.version for one in self.picks if one.address is not None}
        six = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if families == {6} else {}
        chooses = version is not None and version >= CHOOSES_SINCE
        if self.wanted is not None and (version is None or chooses):
            return {"NCCL_IB_ADDR_RANGE": str(self.wanted), **six}
        if chooses:
            return six
        indexes = {one.index for one in self.picks if one.index is not None}
        if len(indexes) > 1:
            said = ", ".join(f"{_port(one.nic)} {one.index}" for one in self.picks if one.index is not None)
            raise InputError(
                "gid",
                f"no single index is right for all ports: {said}",
                "give --range, or run NCCL 2.21 or later, which chooses by itself",
            )
        return dict.fromkeys(["NCCL_IB_GID_INDEX"] if indexes else [], str(*indexes))


def read_gids(facts: Facts, devices: Sequence[str], wanted: Optional[Range], rails: Collection[str]) -> Gids:
    """The GIDs of these devices ("mlx5_0"); of the rails where none is named; of every RoCE port that is up otherwise.

    rails: RDMA devices that NCCL's file on the node names. Raises InputError for a device that is not there or speaks
    no RoCE.
    """
    roce = [
        nic
        for nic in facts.nics
        if nic.rdma is not None and nic.link_layer == "Ethernet" and not nic.management
    ]
    local = {_address(held.address) for held in facts.network.addresses}
    if devices:
        known = {nic.rdma for nic in roce}
        for name in devices:
            if name not in known:
                said = ", ".join(sorted(filter(None, known))) or "none"
                raise InputError(name, "is no RoCE device that can be seen from here", f"there is {said}")
        chosen = [nic for nic in roce if nic.rdma in devices]
    else:
        chosen = [nic for nic in roce if nic.rdma in rails] or [nic for nic in roce if nic.state == "active"]
    return Gids(tuple(pick(nic, wanted, local) for nic in chosen), wanted)


def _address(text: str) -> Address:
    return ipaddress.ip_interface(text).ip


def _port(nic: Nic) -> str:
    return f"{nic.rdma}:{nic.port or 1}"
