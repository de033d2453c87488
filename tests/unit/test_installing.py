"""What an installation's steps come to: what each wrote is kept, and revert leaves what an installation writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from railwright.fleet import steps
from railwright.plan.slices import INSTALL_SLICES

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"


def changes(name: str, changed: bool, owed: list[str]) -> dict[str, Any]:
    return {
        "changed": changed,
        "slices": {name: {"changed": changed, "items": []}},
        "failures": [],
        "reboot_needed": owed,
    }


def test_what_an_earlier_step_wrote_stays_beside_what_the_next_one_writes() -> None:
    first = changes("kernel", True, ["boot_arguments:kernel"])
    booted = steps.node_changes_since(changes("kernel", False, []), first)
    assert (booted["changed"], booted["slices"]["kernel"]["changed"], booted["reboot_needed"]) == (
        True,
        True,
        [],
    )
    tuned = steps.node_changes_since(changes("sysctls", False, []), booted)
    assert (list(tuned["slices"]), tuned["changed"]) == (["kernel", "sysctls"], True)
    assert steps.node_changes_since({}, first) == first
    assert steps.node_changes_since(first, {}) == first


def test_a_revert_leaves_exactly_what_an_installation_writes() -> None:
    (page,) = yaml.safe_load((PLAYBOOKS / "revert.yml").read_text("utf-8"))
    assert tuple(page["vars"]["revert_installed"]) == INSTALL_SLICES
