"""Upgrades of the driver as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright import border
from railwright.fleet import upgrading

FILTERS = (
    upgrading.fabric_waiting,
    upgrading.upgrade_back_refusal,
    upgrading.upgrade_boots_back,
    upgrading.upgrade_failed,
    upgrading.upgrade_old,
    upgrading.upgrade_outlook,
    upgrading.upgrade_refusal,
    upgrading.upgrade_verdict,
    upgrading.upgrade_way_back,
)


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return border.filters(FILTERS)
