"""Facts of one Ethernet port's QoS: what DCB, pause, congestion control and RDMA-CM say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import to_json

# A NIC counts its buffers in cells, rounded down; none of a ConnectX is larger (mlx5: 128 to 256 bytes, as the firmware
# says).
CELL = 256
# Code points of an IP header (RFC 2474).
CODES = 64


@dataclass(frozen=True)
class Ets:
    """Transmit scheduling. prio_tc: the traffic class of each priority. tc_tsa: "strict", "ets", "vendor" or "cbs", by
    traffic class. tc_bw: % by traffic class, 0 for what is not scheduled by shares (mlx5 prints 100 there)."""

    prio_tc: tuple[int, ...]
    tc_tsa: tuple[str, ...]
    tc_bw: tuple[int, ...]


@dataclass(frozen=True)
class Buffers:
    """Receive buffers. prio_buffer: the buffer of each priority. size, total: bytes; total None is not told."""

    prio_buffer: tuple[int, ...]
    size: tuple[int, ...]
    total: Optional[int] = None


@dataclass(frozen=True)
class Qos:
    """One port. None is not known throughout.

    backend: the program that answers for it, "dcb" or "mlnx_qos". refusal: why there is no QoS to be managed here, in
    the tool's words. unread: what could not be read, and why, by part. trust: "dscp" or "pcp", where the driver has a
    file for it. dscp_prio: explicit entries; on mlx5 without such a file an empty map is trust in the VLAN tag. pfc:
    priorities. cable_m: metres on mlx5. tc_rate: bytes a second, 0 is no limit. dcbx: flags, "host" among them or not.
    pause_rx, pause_tx: of 802.3x. congestion: values by the names of node.qos.congestion. tos, roce_mode: of RDMA-CM.
    traffic_class: of all QPs, -1 where nobody has set one.
    """

    device: str
    netdev: str
    backend: Optional[str] = None
    refusal: Optional[str] = None
    unread: dict[str, str] = field(default_factory=dict)
    trust: Optional[str] = None
    dscp_prio: Optional[dict[str, int]] = None
    pfc: Optional[tuple[int, ...]] = None
    cable_m: Optional[int] = None
    ets: Optional[Ets] = None
    tc_rate: Optional[tuple[int, ...]] = None
    buffers: Optional[Buffers] = None
    dcbx: Optional[tuple[str, ...]] = None
    pause_rx: Optional[bool] = None
    pause_tx: Optional[bool] = None
    congestion: dict[str, int] = field(default_factory=dict)
    tos: Optional[int] = None
    roce_mode: Optional[str] = None
    traffic_class: Optional[int] = None

    def part(self, name: str) -> Any:
        """What an entry of kind "dcb" calls so, in the form of its values; None where it is not known."""
        if name == "dcbx":
            return None if self.dcbx is None else " ".join(sorted(self.dcbx))
        if name == "buffer":
            found = self.buffers
            return (
                None if found is None else {"prio_buffer": list(found.prio_buffer), "size": list(found.size)}
            )
        value = getattr(self, _FIELDS[name])
        return list(value) if isinstance(value, tuple) else to_json(value)


_FIELDS = {
    "trust": "trust",
    "app": "dscp_prio",
    "ets": "ets",
    "rate": "tc_rate",
    "pfc": "pfc",
    "cable": "cable_m",
}


def same(part: str, now: Any, value: Any) -> bool:
    """Whether `now` needs no write in order to be `value`: parts and values of an entry of kind "dcb"."""
    if part == "dcbx":
        return ("host" in now.split()) == ("host" in value.split())
    if part == "app":
        # Where all code points are named, none is left to the map that the firmware begins with.
        return bool(now == value) if len(value) == CODES else _whole(now) == _whole(value)
    if part == "buffer":
        sizes = zip(now["size"], value["size"])
        fits = all(0 <= asked - there < CELL for there, asked in sizes)
        return bool(now["prio_buffer"] == value["prio_buffer"]) and fits
    return bool(now == value)


def _whole(entries: Mapping[str, int]) -> Optional[list[int]]:
    """The priority of each code point; None where none has an entry, which is trust in the VLAN tag."""
    return [entries.get(str(point), 0) for point in range(CODES)] if entries else None
