"""What a netdev's driver tells and takes of its queues: the ethtool ioctl, whose structures never change.

`ethtool --json` tells of channels and coalescing in recent releases only (of Ubuntu 22.04's 5.16 neither).
Numbers and layouts: Linux include/uapi/linux/ethtool.h, include/uapi/linux/sockios.h.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

_SIOCETHTOOL = 0x8946
_NAME_BYTES = 16


@dataclass(frozen=True)
class Group:
    """One structure of 32-bit numbers after its command: how it is asked for and set, and what stands in it."""

    get: int
    set: int
    fields: tuple[str, ...]


CHANNELS = Group(
    0x3C,
    0x3D,
    ("most_rx", "most_tx", "most_other", "most_combined", "rx", "tx", "other", "combined"),
)
RINGS = Group(
    0x10,
    0x11,
    ("most_rx", "most_rx_mini", "most_rx_jumbo", "most_tx", "rx", "rx_mini", "rx_jumbo", "tx"),
)
COALESCE = Group(
    0x0E,
    0x0F,
    (
        "rx_usecs", "rx_frames", "rx_usecs_irq", "rx_frames_irq", "tx_usecs", "tx_frames", "tx_usecs_irq",
        "tx_frames_irq", "stats_usecs", "adaptive_rx", "adaptive_tx", "pkt_rate_low", "rx_usecs_low",
        "rx_frames_low", "tx_usecs_low", "tx_frames_low", "pkt_rate_high", "rx_usecs_high", "rx_frames_high",
        "tx_usecs_high", "tx_frames_high", "sample_interval",
    ),
)  # fmt: skip
# The driver has no such thing.
NOT_THERE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY})


def read(netdev: str, group: Group) -> Optional[dict[str, int]]:
    """The group's numbers by name; None where the driver does not expose it. Raises OSError."""
    try:
        numbers = _call(
            netdev, struct.pack(f"={1 + len(group.fields)}I", group.get, *[0] * len(group.fields))
        )
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise
    return dict(zip(group.fields, numbers[1:]))


def write(netdev: str, group: Group, values: Mapping[str, int]) -> None:
    """Sets these numbers; the others stay as they are. Raises OSError."""
    now = read(netdev, group)
    if now is None:
        raise OSError(errno.EOPNOTSUPP, "the driver does not expose it", netdev)
    now.update(values)
    numbers = [now[name] for name in group.fields]
    _call(netdev, struct.pack(f"={1 + len(numbers)}I", group.set, *numbers))


def _call(netdev: str, request: bytes) -> tuple[int, ...]:
    name = netdev.encode()
    if not 0 < len(name) < _NAME_BYTES:
        raise OSError(errno.ENODEV, "is no name of a netdev", netdev)
    buffer = array.array("B", request)
    address, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # struct ifreq has 40 bytes on 64-bit machines; the name is followed by a pointer to the structure.
        fcntl.ioctl(handle, _SIOCETHTOOL, struct.pack("=16sQ16x", name, address))
    return struct.unpack(f"={len(request) // 4}I", buffer.tobytes())
