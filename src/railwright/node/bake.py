"""`python3 -m railwright.node.bake` inside a root file system that becomes an image: what an installation writes there.

Standard input is `{"policy", "blobs"}`, standard output `{"status", "refusals", "findings", "slices", "failures"}`.
The same planner and the same writer as on a node; no GPU is there, and none is looked for. What the image then holds is
what a node of it begins with, so the writer's record is not kept: a revert on the node goes back to the image.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..plan import boot_unit
from ..plan import plan as make_plan
from ..plan.slices import INSTALL_SLICES
from . import state
from .discover import discover
from .model import Expect, InputError, Policy, to_json
from .model.rails_policy import RailsPolicy


def main() -> int:
    """Answers one request. Exit status 0 answered, whatever the answer is; 2 unreadable."""
    try:
        asked = json.loads(sys.stdin.buffer.read())
        answer = install(Policy.read(asked["policy"]), asked["blobs"])
    except (InputError, state.StateError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answer))
    return 0


def without_devices(policy: Policy) -> Policy:
    """The policy as far as it does not speak of devices: an image has none."""
    return replace(policy, expect=Expect(gpus=0), nics=(), rails=RailsPolicy(), lossless=None)


def install(policy: Policy, blobs: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """Writes the install slices and the boot unit's. Raises InputError and StateError."""
    facts = discover(root)
    planned = make_plan(facts, without_devices(policy))
    answer: dict[str, Any] = {
        "status": planned.status,
        "refusals": to_json(planned.refusals),
        "findings": to_json(planned.findings),
        "slices": {},
        "failures": [],
    }
    if planned.status == "refused":
        return answer
    slices = {name: planned.slices[name] for name in INSTALL_SLICES if name in planned.slices}
    own = boot_unit.slice_of(policy)
    if own is not None and policy.manage.get("boot_unit", True):
        slices["boot_unit"] = own
    for name, part in slices.items():
        outcome = state.apply({name: to_json(part.entries)}, blobs=dict(blobs), root=str(root), owner="bake")
        items = outcome.slices[name]
        answer["slices"][name] = [{"id": item.id, "action": item.action, "note": item.note} for item in items]
        answer["failures"] += [
            {"where": failure.where, "why": failure.why, "remedy": failure.remedy}
            for failure in outcome.failures
        ]
    return answer


if __name__ == "__main__":
    sys.exit(main())
