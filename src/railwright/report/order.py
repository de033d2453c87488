"""Order as people expect it."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts "mlx5_9" before "mlx5_10"; equal only for equal texts."""
    parts = [
        (0, int(part), part) if number % 2 else (1, 0, part)
        for number, part in enumerate(_DIGITS.split(text))
    ]
    return tuple(parts)
