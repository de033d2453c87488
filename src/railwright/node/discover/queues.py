"""Channels, rings and coalescing of the NICs' netdevs. Of a live machine only: no file holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from .. import ethtool
from ..model import Nic, Queues
from .tree import Tree


def read_queues(tree: Tree, nics: Sequence[Nic]) -> tuple[Queues, ...]:
    """One for each netdev whose driver tells of any; () for a recorded tree."""
    if not tree.live:
        return ()
    netdevs = {nic.netdev: None for nic in nics if nic.netdev and not nic.physical_function}
    found = (_queues(netdev) for netdev in netdevs)
    return tuple(queues for queues in found if queues != Queues(queues.netdev))


def _queues(netdev: str) -> Queues:
    channels = _read(netdev, ethtool.CHANNELS)
    rings = _read(netdev, ethtool.RINGS)
    waits = _read(netdev, ethtool.COALESCE)
    return Queues(
        netdev=netdev,
        combined=_count(channels, "combined"),
        most_combined=_count(channels, "most_combined"),
        rx_ring=_count(rings, "rx"),
        most_rx_ring=_count(rings, "most_rx"),
        tx_ring=_count(rings, "tx"),
        most_tx_ring=_count(rings, "most_tx"),
        adaptive_rx=None if waits is None else bool(waits["adaptive_rx"]),
        adaptive_tx=None if waits is None else bool(waits["adaptive_tx"]),
        rx_usecs=None if waits is None else waits["rx_usecs"],
        tx_usecs=None if waits is None else waits["tx_usecs"],
    )


def _count(values: Optional[dict[str, int]], name: str) -> Optional[int]:
    # 0 is what a driver says that does not expose it.
    return None if values is None else values[name] or None


def _read(netdev: str, group: ethtool.Group) -> Optional[dict[str, int]]:
    try:
        return ethtool.read(netdev, group)
    except OSError:
        return None  # the port went away, or this process may not ask
