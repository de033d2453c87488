"""Long sweeps in turns: every run takes one part of each, and RAILWRIGHT_LONG=1 (`make test-long`) the whole.

The part follows from the commit, so that a run can be made again and many commits make a whole sweep.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

PARTS = 8
ROW_PARTS = 4

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., object])


@functools.cache
def turn() -> tuple[int | None, str]:
    """The part of this run (0 to PARTS - 1; None: the whole) and what it follows from."""
    if os.environ.get("RAILWRIGHT_LONG") == "1":
        return None, "RAILWRIGHT_LONG=1"
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 0:
        commit = found.stdout.strip()
        return int(commit, 16) % PARTS, f"commit {commit}"
    today = datetime.now(UTC).date()  # a checkout without its history
    return today.toordinal() % PARTS, f"{today}"


def told() -> str:
    """One line that says what of the long sweeps is run."""
    part, why = turn()
    share = "all of them" if part is None else f"part {part + 1} of {PARTS}"
    return f"long sweeps: {share}, by {why}" + ("" if part is None else "; all: make test-long")


def share(points: Sequence[T]) -> list[T]:
    """The points of a sweep that this run takes: every PARTS-th one."""
    part, _ = turn()
    return list(points if part is None else points[part % max(1, min(PARTS, len(points))) :: PARTS])


def second_row(files: Iterable[Path], unit: Path) -> set[Path]:
    """Of test files those that the second row runs: all but unit tests, which the main row runs whole, and of these as
    many as make a whole in ROW_PARTS runs."""
    part, _ = turn()
    units = sorted(file for file in files if file.is_relative_to(unit))
    return {*files} - ({*units} - {*(units if part is None else units[part % ROW_PARTS :: ROW_PARTS])})


def in_turns(test: Test) -> Test:
    """Marks a long test, of which each run takes its share with the others of its layer."""
    test.__dict__["in_turns"] = True
    return test


def takes_turns(test: object) -> bool:
    """Whether a test is marked so."""
    return bool(getattr(test, "in_turns", False))
