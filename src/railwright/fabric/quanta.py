"""How long a peer may take to obey PAUSE, in pause quanta of 512 bit times, by speed in Gb/s.

IEEE 802.3 31B.3.7, as sonic-swss cfgmgr/buffer_headroom_mellanox.lua lists them (pause_quanta_per_speed).
"""

from __future__ import annotations

QUANTA = {10: 67, 25: 80, 40: 118, 50: 147, 100: 394, 200: 453, 400: 905, 800: 905}
QUANTUM_BYTES = 64


def response_bytes(speed_gbps: int) -> int:
    """Bytes that a peer may still send after PAUSE reached it."""
    return QUANTA[speed_gbps] * QUANTUM_BYTES
