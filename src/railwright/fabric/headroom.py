"""PFC headroom: what still arrives at a port after it has said PAUSE, by three formulas.

`bound` is what the protocol demands at least of any receiver. `switch` is SONiC's formula for NVIDIA's switches, which
counts buffer cells. `host_nic` is what the mlx5 driver asks of its own buffer. A platform's own table goes before any
formula: vendors differ by 2 to 3 times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from railwright.plan.buffers import MAX_FRAME, least_buffer

from .platforms import Asic
from .quanta import response_bytes

# m/s on the cable (sonic-swss cfgmgr/buffer_headroom_mellanox.lua: speed_of_light).
VELOCITY = 198_000_000
PFC_FRAME = 64
_KIB = 1024


@dataclass(frozen=True)
class Number:
    """Bytes, with the formula they come from, its source, and how sure that is.

    confidence: A read in a primary source, B seen in a secondary one, C common practice, N recomputed from a formula.
    """

    bytes: int
    formula: str
    source: str
    confidence: str


def bound(speed_gbps: int, cable_m: float, port_mtu: int, lossless_mtu: int) -> Number:
    """The least headroom of one port and lossless priority, bytes (IEEE 802.1Qbb reasoning).

    A frame of any class that delays the PAUSE, a frame that the peer has begun, the PAUSE itself, both ways of the
    cable, and what the peer may send until it obeys. The delay of PCS, PMA and FEC is not in it.
    """
    cable = 2 * cable_m * speed_gbps * 1e9 / (8 * VELOCITY)
    total = port_mtu + lossless_mtu + PFC_FRAME + cable + response_bytes(speed_gbps)
    return Number(
        math.ceil(total),
        "F1: MTU of the port + MTU of the class + 64 + 2 L R / 8 v + the peer's response",
        "IEEE 802.1Qbb; pause quanta of IEEE 802.3 31B.3.7",
        "N",
    )


@dataclass(frozen=True)
class Profile:
    """A lossless priority group as SONiC sizes it, bytes."""

    xoff: int
    xon: int
    size: int


def occupancy(cell_bytes: int, small_percent: float = 100) -> float:
    """How much more room frames take in cells than on the wire, when `small_percent` of them are 64 byte ones."""
    worst = cell_bytes / 64 if cell_bytes > 2 * 64 else 2 * cell_bytes / (1 + cell_bytes)
    return (100 - small_percent + small_percent * worst) / 100


def switch(
    speed_gbps: int,
    cable_m: float,
    asic: Asic,
    port_mtu: int,
    lossless_mtu: int = 1024,
    small_percent: float = 100,
    lanes: int | None = None,
    shared_pool: bool = False,
    gearbox_ns: float = 0,
) -> Profile:
    """SONiC's formula for NVIDIA's switches (sonic-swss cfgmgr/buffer_headroom_mellanox.lua).

    lossless_mtu, small_percent: SONiC's LOSSLESS_TRAFFIC_PATTERN, whose defaults are 1024 bytes and 100 %. Bytes on the
    cable are exact here; the script divides by 1024 where 1000 is meant and gets 2.3 % less, while NVIDIA's own tables
    grow with the cable as the exact value does.
    """
    eight = lanes == 8
    pipeline = asic.pipeline_kib * _KIB
    if eight:
        pipeline = 2 * pipeline - _KIB
    cable = 2 * cable_m * speed_gbps * 1e9 / (8 * VELOCITY)
    gearbox = speed_gbps * gearbox_ns / 8
    delay = port_mtu + cable + 2 * gearbox + asic.mac_phy_kib * _KIB + response_bytes(speed_gbps)
    xoff = _whole_kib(lossless_mtu + delay * occupancy(asic.cell_bytes, small_percent))
    xon = _whole_kib(pipeline)
    size = xon if shared_pool else xoff + xon + (port_mtu if eight else 0)
    return Profile(xoff, xon, _whole_kib(size))


def switch_number(speed_gbps: int, cable_m: float, asic: Asic, port_mtu: int, lanes: int | None) -> Number:
    """`switch` as the Xoff headroom to be compared with a table."""
    return Number(
        switch(speed_gbps, cable_m, asic, port_mtu, lanes=lanes).xoff,
        "F2: MTU of the class + (MTU of the port + 2 cable + MAC and PHY + the peer's response) x cell occupancy",
        "sonic-swss cfgmgr/buffer_headroom_mellanox.lua; chip constants of sonic-buildimage asic_table.j2",
        "A",
    )


def host_nic(speed_gbps: int, cable_m: int, mtu: int, max_mtu: int = MAX_FRAME, cell: int = 128) -> Number:
    """The least lossless buffer of an mlx5 port, bytes; max_mtu: of the netdev; cell: of the NIC's buffer."""
    return Number(
        least_buffer(speed_gbps, cable_m, mtu, max_mtu, cell),
        "F3: (301 + 2.16 L) R + 2.72 MTU + max(9216, largest MTU) + one cell",
        "torvalds/linux mlx5/core/en/port_buffer.c",
        "A",
    )


def xoff_point(pool_bytes: int, dynamic_th: int, congested: int) -> int:
    """Fill at which one port's lossless group sends PAUSE, bytes, under a dynamic threshold.

    A group may take alpha = 2^dynamic_th of what is free in its pool; with `congested` groups at that threshold each
    holds pool * alpha / (1 + alpha * congested).
    """
    alpha = 2.0**dynamic_th
    return int(pool_bytes * alpha / (1 + alpha * congested))


def _whole_kib(count: float) -> int:
    return math.ceil(count / _KIB) * _KIB
