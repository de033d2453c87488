"""The boot entry: read the node, plan it by the policy that lies on it, put the plan back, look again and say so.

What the kernel forgets at a boot comes back here, by the same reader, planner and writer that Ansible uses. The boot
unit's own slice is left alone: a program does not replace itself while it runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from ..plan import plan as make_plan
from ..plan.slices import BOOT_UNIT, POLICY_FILE, ZIPAPP
from . import state
from .check import check
from .discover import discover
from .model import Facts, Finding, InputError, Plan, Policy, to_json

GOOD, FINDINGS, UNREADABLE, REFUSED = 0, 1, 2, 3
OWN_SLICE = "boot_unit"
# Refusals that time may heal: devices come up one after the other.
_EARLY = frozenset({"expect.gpus", "expect.rails", "gpus.none"})
_POLICY_BYTES = 4 * 1024 * 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class Waiting:
    """How long the boot waits for the devices that the policy expects, and by which clock. Seconds."""

    longest: float = 60.0
    between: float = 2.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def boot(root: Path, say: Say, *, archive: Optional[Path] = None, waiting: Optional[Waiting] = None) -> int:
    """Plans the node below `root` ("/" is this one) and brings it to the plan. Says each step in a line.

    archive: the zipapp that runs this, whose digest the policy states. Returns 0 when the node is as planned, 1 when
    something of it could not be set or differs (warnings are said, and do not count), 2 when policy or node cannot be
    read, 3 when the plan or the write is refused.
    """
    try:
        policy = read_policy(root)
        facts, plan = _plan_when_ready(root, policy, say, waiting or Waiting())
    except InputError as error:
        say(f"unreadable: {error}")
        return UNREADABLE
    say(f"read {_count(len(facts.gpus), 'GPU')} and {_count(len(facts.nics), 'NIC port')}")
    if plan.status == "refused":
        for refusal in plan.refusals:
            say(f"refused: {_told(refusal)}")
        return REFUSED
    for line in plan.summary:
        say(f"planned: {line}")
    try:
        failures = _apply(root, plan, say)
        found = list(_remaining(root, policy, plan, archive))
    except state.Held as error:
        say(f"refused: {error}")
        return REFUSED
    except (InputError, state.StateError) as error:
        say(f"unreadable: {error}")
        return UNREADABLE
    return _verdict(failures, found, say)


def read_policy(root: Path) -> Policy:
    """The policy that lies on the node. Raises InputError."""
    path = root / POLICY_FILE.lstrip("/")
    try:
        with open(path, "rb") as file:
            data = file.read(_POLICY_BYTES + 1)
    except OSError as error:
        raise InputError(
            str(path),
            f"cannot be read: {error.strerror}",
            "run playbooks/retune.yml, which lays the policy down",
        ) from None
    if len(data) > _POLICY_BYTES:
        raise InputError(str(path), f"is larger than {_POLICY_BYTES} bytes", "expected a policy")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InputError(
            str(path), f"is no JSON: {error}", "run playbooks/retune.yml, which lays it down again"
        ) from None
    return Policy.read(value, str(path))


def wrong_archive(policy: Policy, archive: Optional[Path]) -> Optional[Finding]:
    """The finding when the zipapp that runs is not the one that the policy states. Raises InputError."""
    if policy.boot is None or archive is None:
        return None
    try:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(str(archive), f"cannot be read: {error.strerror}") from None
    if digest == policy.boot.sha256:
        return None
    return Finding(
        "boot_unit.zipapp",
        "error",
        str(archive),
        f"this program is another one than the policy states (sha256 {digest[:12]}, planned {policy.boot.sha256[:12]})",
        "run playbooks/retune.yml for this node from the checkout that it shall follow",
        policy.accept.get("boot_unit.zipapp"),
    )


def runtime_slices(plan: Plan) -> dict[str, list[Any]]:
    """What the boot puts back: every slice that needs no reboot, without the boot unit's own."""
    return {
        name: to_json(part.entries)
        for name, part in plan.slices.items()
        if part.stage == "runtime" and name != OWN_SLICE
    }


def _plan_when_ready(root: Path, policy: Policy, say: Say, waiting: Waiting) -> tuple[Facts, Plan]:
    """Facts and plan, once the devices that the policy expects are there or the time for them is over."""
    deadline = waiting.now() + waiting.longest
    told = False
    while True:
        facts = discover(root, sysctls=tuple(policy.sysctls))
        plan = make_plan(facts, policy)
        missing = [refusal for refusal in plan.refusals if refusal.code in _EARLY]
        if len(missing) != len(plan.refusals) or not missing or not _expects(policy):
            return facts, plan
        if waiting.now() >= deadline:
            say(f"waited {waiting.longest:.0f} s in vain")
            return facts, plan
        if not told:
            say(f"waiting up to {waiting.longest:.0f} s: {missing[0].why}")
            told = True
        waiting.sleep(waiting.between)


def _expects(policy: Policy) -> bool:
    return policy.expect.gpus is not None or policy.expect.rails is not None


def _apply(root: Path, plan: Plan, say: Say) -> int:
    """Writes the slices; how many items could not be set. Raises InputError, StateError and Held."""
    outcome = state.apply(runtime_slices(plan), root=str(root), owner="boot", unit=BOOT_UNIT, wait=60.0)
    for name, items in outcome.slices.items():
        changed = [item for item in items if item.changed]
        say(f"{name}: {len(changed)} of {len(items)} items set" if changed else f"{name}: as planned already")
        for item in changed:
            say(f"{name}: {item.id}: {item.action}")
        for item in items:
            if item.note:
                say(f"{name}: {item.id}: {item.note}")
    for failure in outcome.failures:
        say(f"failed: {failure.where}: {failure.why}" + (f" ({failure.remedy})" if failure.remedy else ""))
    for item_id in outcome.reboot_needed:
        say(f"takes effect at the next boot: {item_id}")
    return len(outcome.failures)


def _remaining(root: Path, policy: Policy, plan: Plan, archive: Optional[Path]) -> Iterator[Finding]:
    facts = discover(root, watch=plan.files(), units=plan.units(), sysctls=tuple(policy.sysctls))
    own = wrong_archive(policy, archive)
    if own is not None:
        yield own
    for finding in check(plan, facts, policy.accept):
        # The file that runs has been judged above; one finding of it is enough.
        if own is None or finding.code != own.code or archive != root / ZIPAPP.lstrip("/"):
            yield finding


def _verdict(failures: int, found: list[Finding], say: Say) -> int:
    for finding in found:
        if finding.accepted is not None:
            say(f"accepted: {finding.code}: {finding.where}: {finding.accepted}")
        else:
            say(f"{finding.severity}: {finding.code}: {_told(finding)}")
    errors = sum(finding.severity == "error" and finding.accepted is None for finding in found)
    if failures or errors:
        say(f"not as planned: {_count(failures, 'failure')}, {_count(errors, 'error')}")
        return FINDINGS
    say("good: the node is as planned")
    return GOOD


def _told(finding: Finding) -> str:
    return f"{finding.where}: {finding.why}" + (f" ({finding.remedy})" if finding.remedy else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
