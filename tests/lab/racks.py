"""The rack of two that the tests and the demo bring up: a node of each Debian, their NICs numbered differently."""

from __future__ import annotations

from .lab import Wanted

MACHINES = ("2s_8xh100_10xcx7", "2s_8xh100_10xcx7_backwards")


def two(first: str, second: str) -> tuple[Wanted, Wanted]:
    """Wanted nodes of these names."""
    return Wanted(first, "bookworm", MACHINES[0]), Wanted(second, "trixie", MACHINES[1])
