"""The receive buffer of a lossless class in a NIC: what the mlx5 driver asks of it."""

from __future__ import annotations

# mlx5 reserves for at least this rate and this frame (torvalds/linux mlx5/core/en/port_buffer.c, .h).
LEAST_GBPS = 40
MAX_FRAME = 9216


def host_reserve(speed_gbps: int, cable_m: int, mtu: int) -> int:
    """Bytes that mlx5 keeps free above its Xoff point, with the driver's integer division.

    cable_m: whole metres, 7 when nobody said. mtu: of the netdev (torvalds/linux mlx5/core/en/port_buffer.c,
    calculate_xoff).
    """
    speed_mbps = max(speed_gbps, LEAST_GBPS) * 1000
    return (301 + 216 * cable_m // 100) * speed_mbps // 1000 + 272 * mtu // 100


def least_buffer(speed_gbps: int, cable_m: int, mtu: int, max_mtu: int = MAX_FRAME, cell: int = 128) -> int:
    """Bytes of the least lossless buffer; max_mtu: of the netdev; cell: of the NIC's buffer."""
    return host_reserve(speed_gbps, cable_m, mtu) + max(MAX_FRAME, max_mtu) + cell
