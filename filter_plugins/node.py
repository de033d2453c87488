"""The planner as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright import border
from railwright.fleet import steps

FILTERS = (
    steps.nccl_conf,
    steps.node_blobs,
    steps.node_changes,
    steps.node_changes_since,
    steps.node_explain,
    steps.node_launch,
    steps.node_plan,
    steps.node_policy,
    steps.node_problems,
    steps.node_refusal,
    steps.node_slices,
    steps.node_watch,
    steps.slice_entries,
)


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return border.filters(FILTERS)
