"""Queues of a network port as its driver tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Queues:
    """One netdev. Entries of rings are packets. None: the driver does not expose it.

    combined, rx, tx: channels in use; most_combined, ...: how many there may be. rx_usecs, tx_usecs: microseconds that
    an interrupt waits for more packets; adaptive_rx, adaptive_tx: the driver chooses them itself.
    """

    netdev: str
    combined: Optional[int] = None
    most_combined: Optional[int] = None
    rx_ring: Optional[int] = None
    most_rx_ring: Optional[int] = None
    tx_ring: Optional[int] = None
    most_tx_ring: Optional[int] = None
    adaptive_rx: Optional[bool] = None
    adaptive_tx: Optional[bool] = None
    rx_usecs: Optional[int] = None
    tx_usecs: Optional[int] = None
