"""The rack of two that the tests and the demo bring up: a node of each Debian, their NICs numbered differently."""

from __future__ import annotations

from .lab import Wanted

# Its NICs of the front end and of storage take another CPU here: the record has 218 vectors on CPU 0, and an x86 kernel
# can place about 202 there, so that it could not be put back once it was moved.
_MOVED = {"nics": {"front": {"irq_cpus": "1"}, "storage": {"irq_cpus": "2"}}}
MACHINES = ("2s_8xh100_10xcx7", "2s_8xh100_10xcx7_backwards")


def two(first: str, second: str) -> tuple[Wanted, Wanted]:
    """Wanted nodes of these names."""
    return Wanted(first, "bookworm", MACHINES[0]), Wanted(second, "trixie", MACHINES[1], _MOVED)
