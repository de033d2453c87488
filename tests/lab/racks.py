"""The rack of two that the tests and the demo bring up: a node of each Debian, their NICs numbered differently."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .lab import Lab, Wanted, up

MACHINES = ("2s_8xh100_10xcx7", "2s_8xh100_10xcx7_backwards")


def two(first: str, second: str) -> tuple[Wanted, Wanted]:
    """Wanted nodes of these names."""
    return Wanted(first, "bookworm", MACHINES[0]), Wanted(second, "trixie", MACHINES[1])


@contextmanager
def raised(run: str, *wanted: Wanted) -> Iterator[Lab]:
    """These nodes, or the rack of two, up as a run of this process; at the end each has to halt by itself."""
    lab = up(f"{run}{os.getpid()}", wanted or two("n1", "n2"))
    try:
        yield lab
    finally:
        forced = lab.down()
    assert forced == [], f"did not halt by themselves: {forced}"
