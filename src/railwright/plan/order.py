"""One order of devices for all parts of the planner: PCI address first, then the name with its numbers as numbers."""

from __future__ import annotations

import re
from typing import Optional, Union

from ..node.model import sort_key

_DIGITS = re.compile(r"(\d+)")
Natural = tuple[tuple[int, Union[int, str]], ...]
DeviceKey = tuple[int, tuple[int, int, int, int], Natural]


def natural(name: str) -> Natural:
    """Sort key of a name in which mlx5_2 comes before mlx5_10."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(name) if part)


def device_key(address: Optional[str], name: str) -> DeviceKey:
    """Sort key of a device: by PCI address where there is one, those without after them by name."""
    if address is None:
        return (1, (0, 0, 0, 0), natural(name))
    return (0, sort_key(address), natural(name))
