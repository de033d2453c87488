"""The boot entry: read the node, plan it by the policy that lies on it, put the plan back, look again and say so.

What the kernel forgets at a boot comes back here, by the same reader, planner and writer that Ansible uses. The boot
unit's own slice is left alone: a program does not replace itself while it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from ..plan.boot_unit import BOOT_UNIT, POLICY_FILE, ZIPAPP
from ..plan.kernel import NAME as KERNEL
from ..plan.slices import INSTALL_SLICES, SLICES
from . import boot_note, state
from .check import check, checks, is_open
from .discover import discover
from .discover.pci import DEVICES
from .durable import digest_of
from .model import Finding, InputError, Plan, Policy, to_json
from .readiness import Say, Waiting, faults, plan_when_ready

GOOD, FINDINGS, UNREADABLE, REFUSED = 0, 1, 2, 3
OWN_SLICE = "boot_unit"
# Files that say which devices there are. A link that is still training must not write itself out of them.
_OF_DEVICES = ("nccl_conf", "gpu_order")
# What is set on each rail's device: one that has no link for a while keeps it.
_OF_RAILS = ("irq_affinity", "pcie", "queues")
# What depends on the machine and lies in files or registers. Firmware stays: no boot writes it.
_OF_A_MACHINE = tuple(name for name in SLICES if name not in (*INSTALL_SLICES, OWN_SLICE, "nic_firmware"))
# Of the slice `kernel`: what a boot can set. (A profile of tuned's is files too, and comes with its unit at the bake.)
_POWER_KINDS = frozenset({"file", "sysfs", "sysfs_each"})
_POLICY_BYTES = 4 * 1024 * 1024
# With the wait for devices both must fit into the unit's TimeoutStartSec of 120 s.
_LOCK_SECONDS = 30.0
_LINK_SECONDS = 20.0


def boot(
    root: Path,
    say: Say,
    *,
    archive: Optional[Path] = None,
    waiting: Optional[Waiting] = None,
    note: Optional[boot_note.Note] = None,
) -> int:
    """Plans the node below `root` ("/" is this one) and brings it to the plan. Says each step in a line.

    Waits a while for devices and links that are not up yet. Where a rail stays down, the files that name devices are
    left as they are. archive: the zipapp that runs this, whose digest the policy states. note: is told what is seen and
    done; with one, what an image's node was tuned for on another machine is put back. Returns 0 when the node is as
    planned, 1 when something of it could not be set or differs or an error of the plan is open, 2 when policy or node
    cannot be read, 3 when the plan or the write is refused.
    """
    try:
        policy = read_policy(root)
        facts, plan = plan_when_ready(root, policy, say, waiting or Waiting())
    except InputError as error:
        say(f"unreadable: {error}")
        return UNREADABLE
    note = note if note is not None else boot_note.Note(0.0)
    note.saw(facts, plan)
    say(f"read {_count(len(facts.gpus), 'GPU')} and {_count(len(facts.nics), 'NIC port')}")
    other = _other_machine(root, note, say)
    if plan.status == "refused":
        for refusal in plan.refusals:
            say(f"refused: {_told(refusal)}")
        if other:
            _put_back(root, policy, note, say)
        return REFUSED
    for line in plan.summary:
        say(f"planned: {line}")
    wrong = faults(root, policy, plan)
    if wrong:
        say(f"left as they are, for something is wrong with the devices: {', '.join(_OF_DEVICES)}")
        slices = {name: part for name, part in plan.slices.items() if name not in _OF_DEVICES}
        plan = replace(plan, slices=slices)
    try:
        if any(fault.code == "nics.down" for fault in wrong):
            plan = _with_lost_rails(root, plan)
        failures = _apply(root, _slices(root, policy, plan, note, other), say, note)
        found = [*wrong, *_remaining(root, policy, plan, archive, note)]
        note.findings = tuple(found)
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
    except (ValueError, RecursionError) as error:
        raise InputError(
            str(path), f"is no JSON: {error}", "run playbooks/retune.yml, which lays it down again"
        ) from None
    return Policy.read(value, str(path))


def wrong_archive(policy: Policy, archive: Optional[Path]) -> Optional[Finding]:
    """The finding when the zipapp that runs is not the one that the policy states. Raises InputError."""
    if policy.boot is None or not policy.boot.sha256 or archive is None:
        return None
    try:
        digest = digest_of(archive)
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
    """What the boot puts back: every slice that needs no reboot, without the boot unit's own.

    Nobody is there to confirm a change of the network, and what lies on the node was confirmed before.
    """
    return {
        name: [
            {**entry, "confirm_seconds": 0} if entry["kind"] == "network" else entry
            for entry in to_json(part.entries)
        ]
        for name, part in plan.slices.items()
        if part.stage == "runtime" and name != OWN_SLICE
    }


def _slices(
    root: Path, policy: Policy, plan: Plan, note: boot_note.Note, other: bool
) -> dict[str, list[Any]]:
    """What this boot writes. On a node that was made from an image nobody else has named its rails, or could say at the
    bake how its processors save power: it does that too, the names for the next boot; and on another machine than the
    last, what this plan has no use for is empty, and goes back."""
    slices = runtime_slices(plan)
    if note.image is None:
        return slices
    named = plan.slices.get("rail_names")
    if named is not None:
        slices = {"rail_names": to_json(named.entries), **slices}
    slices = {**_power(root, plan), **slices}
    if not other:
        return slices
    managed = [name for name in _OF_A_MACHINE if policy.manage.get(name, True) and name not in plan.slices]
    return {**{name: [] for name in managed}, **slices}


def _with_lost_rails(root: Path, plan: Plan) -> Plan:
    """The plan with what was written for rails that have no link now: nobody would set it again when they come back.

    Interrupts stay where they are, all of them: their cores were dealt out together. Raises StateError.
    """
    recorded = state.recorded(root=str(root))
    slices = dict(plan.slices)
    for name in _OF_RAILS:
        if name not in slices:
            continue
        now = dict(zip(state.item_ids(name, to_json(slices[name].entries)), slices[name].entries))
        kept = recorded.get(name, {})
        before = {item: entry for item, entry in kept.items() if _is_there(root, entry.get("device"))}
        together = {**now, **before} if name == "irq_affinity" else {**before, **now}
        slices[name] = replace(slices[name], entries=tuple(together.values()))
    return replace(plan, slices=slices)


def _is_there(root: Path, device: Optional[str]) -> bool:
    return device is not None and (root / DEVICES / device).exists()


def _power(root: Path, plan: Optional[Plan]) -> dict[str, list[Any]]:
    """The slice `kernel` as far as it needs neither packages nor a reboot, for a node of an image: the bake saw no
    processor of it. Empty where somebody has installed the whole slice since, who then keeps it. plan: None for
    nothing of it. Raises StateError."""
    kept = state.recorded(root=str(root)).get(KERNEL, {})
    if any(item.partition(":")[0] not in _POWER_KINDS for item in kept):
        return {}
    part = None if plan is None else plan.slices.get(KERNEL)
    entries = [] if part is None else to_json(part.entries)
    power = [entry for entry in entries if entry["kind"] in _POWER_KINDS]
    return {KERNEL: power} if power or kept else {}


def _other_machine(root: Path, note: boot_note.Note, say: Say) -> bool:
    """Whether this root file system was tuned for another machine, or for one that has lost or got a part since, or
    nobody knows for which, since a boot was cut off while it wrote."""
    if note.image is None:
        return False
    note.tuned = boot_note.tuned_before(root)
    if not boot_note.is_other(note.tuned, note.shape):
        return False
    if note.tuned.get("sha256") == boot_note.BETWEEN:
        say("an earlier boot did not write all that it had begun: what this machine has no use for goes back")
        return True
    say(f"this is not the machine that was tuned last: {boot_note.spoken(note.shape)}")
    say(f"it was tuned for: {boot_note.spoken(note.tuned)}")
    note.words.append("another machine than at the last boot")
    return True


def _put_back(root: Path, policy: Policy, note: boot_note.Note, say: Say) -> None:
    """A machine that cannot be planned must not run with what another one was tuned for."""
    try:
        _keep_that_it_writes(root, note)
        outcome = state.apply(
            _slices_put_back(root, policy),
            root=str(root),
            owner="boot",
            unit=BOOT_UNIT,
            wait=_LOCK_SECONDS,
        )
    except (InputError, state.StateError) as error:
        say(f"failed: {error}")
        note.failures += 1
        return
    note.wrote(outcome)
    gone = sum(item.changed for items in outcome.slices.values() for item in items)
    say(f"put back, for this machine is another one: {_count(gone, 'item')}")
    for failure in outcome.failures:
        say(f"failed: {failure.where}: {failure.why}")


def _slices_put_back(root: Path, policy: Policy) -> dict[str, list[Any]]:
    every = {**{name: [] for name in _OF_A_MACHINE}, **_power(root, None)}
    return {name: items for name, items in every.items() if policy.manage.get(name, True)}


def _keep_that_it_writes(root: Path, note: boot_note.Note) -> None:
    """On the disk before the first write: a boot that is cut off must not look like one that had not begun."""
    if note.image is not None:
        note.writing()
        boot_note.save(root, note.to_json())


def _apply(root: Path, slices: dict[str, list[Any]], say: Say, note: boot_note.Note) -> int:
    """Writes the slices; how many items could not be set. Raises InputError, StateError and Held."""
    _keep_that_it_writes(root, note)
    outcome = state.apply(
        slices,
        root=str(root),
        owner="boot",
        unit=BOOT_UNIT,
        wait=_LOCK_SECONDS,
        link_seconds=_LINK_SECONDS,
    )
    note.wrote(outcome)
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


def _remaining(
    root: Path, policy: Policy, plan: Plan, archive: Optional[Path], note: boot_note.Note
) -> Iterator[Finding]:
    facts = discover(
        root,
        watch=plan.files(),
        units=plan.units(),
        sysctls=tuple(policy.sysctls),
        packages=plan.packages(),
        ports=True,
    )
    note.checks = checks(plan, facts, policy.accept)
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
    wrong = sum(map(is_open, found))
    if failures or wrong:
        say(f"not as planned: {_count(failures, 'failure')}, {_count(wrong, 'finding')}")
        return FINDINGS
    say("good: the node is as planned")
    return GOOD


def _told(finding: Finding) -> str:
    return f"{finding.where}: {finding.why}" + (f" ({finding.remedy})" if finding.remedy else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
