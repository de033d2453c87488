"""Headroom tables of switch platforms, as their vendors ship them in SONiC. Vendors differ by 2 to 3 times.

The numbers stand in platforms.json, each table with the file it was read from: `pg_profile_lookup.ini` of the platform,
and for NVIDIA's chips the constants of `platform/mellanox/asic_table.j2`, both of sonic-buildimage at 086b03bd70.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from railwright.node.model import from_json


@dataclass(frozen=True)
class Asic:
    """What the switch formula needs of a chip: bytes of a buffer cell, latency of the pipeline and delay of MAC and PHY
    in KiB."""

    cell_bytes: int
    pipeline_kib: float
    mac_phy_kib: float


@dataclass(frozen=True)
class Row:
    """One line of a table: for a speed and cable of up to `cable_m`, bytes of one lossless priority group."""

    speed_gbps: int
    cable_m: int
    size: int
    xon: int
    xoff: int


@dataclass(frozen=True)
class Platform:
    """One platform. vendor: SONiC's asic_type. asic: None where the switch formula's constants are not published."""

    vendor: str
    source: str
    rows: tuple[Row, ...]
    asic: Asic | None = None

    def row(self, speed_gbps: int, cable_m: int) -> Row | None:
        """The line for this speed with the nearest length that is not shorter; None where the table ends before."""
        fits = [row for row in self.rows if row.speed_gbps == speed_gbps and row.cable_m >= cable_m]
        return min(fits, key=lambda row: row.cable_m, default=None)


def _load() -> dict[str, Platform]:
    text = resources.files(__package__).joinpath("platforms.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return {name: from_json(Platform, value, f"platforms.json: {name}") for name, value in data.items()}


PLATFORMS = _load()
