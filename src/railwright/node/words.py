"""Phrases that several parts say alike."""

from __future__ import annotations

from collections.abc import Iterable


def some_of(names: Iterable[str], most: int) -> str:
    """The first names and how many more there are: "a, b, c and 4 more"."""
    told = list(names)
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")
