"""Whether a node that boots is ready to be planned, and what is wrong with its devices where it does not get so.

Devices and links come up one after the other. A rail that is only late must not be planned away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ..plan import plan as make_plan
from ..plan.slices import NCCL_CONF
from .check import is_open
from .check.rails import GID
from .check.rails import answers as rail_answers
from .discover import discover
from .discover.pci import FUNCTION
from .model import Facts, Finding, Plan, Policy
from .state.irq_item import is_control

# Refusals that time may heal: devices come up one after the other.
_EARLY = frozenset({"expect.gpus", "expect.rails", "gpus.none"})
_MOST_BYTES = 4 * 1024 * 1024

Say = Callable[[str], None]


@dataclass(frozen=True)
class Waiting:
    """How long the boot waits for the devices that the policy expects, and by which clock. Seconds."""

    longest: float = 60.0
    between: float = 2.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def plan_when_ready(root: Path, policy: Policy, say: Say, waiting: Waiting) -> tuple[Facts, Plan]:
    """Facts and plan, once the devices that the policy expects are there or the time for them is over."""
    deadline = waiting.now() + waiting.longest
    told = False
    while True:
        facts = discover(root, sysctls=tuple(policy.sysctls))
        plan = make_plan(facts, policy)
        missing = _not_yet(root, facts, policy, plan)
        if not missing:
            return facts, plan
        if waiting.now() >= deadline:
            say(f"waited {waiting.longest:.0f} s in vain")
            return facts, plan
        if not told:
            say(f"waiting up to {waiting.longest:.0f} s: {missing[0]}")
            told = True
        waiting.sleep(waiting.between)


def _may_heal(refusal: Finding) -> bool:
    # A NIC that the policy names by its PCI address has a place in this chassis; another name may be a misspelt one.
    named = refusal.code == "policy.nics" and FUNCTION.fullmatch(refusal.where) is not None
    return named or refusal.code in _EARLY


def _not_yet(root: Path, facts: Facts, policy: Policy, plan: Plan) -> list[str]:
    """What time may heal: expected devices, rails without link or address, interrupts of an interface not yet open."""
    if plan.status == "refused":
        asked = policy.expect.gpus is not None or policy.expect.rails is not None
        early = all(map(_may_heal, plan.refusals))
        return [refusal.why for refusal in plan.refusals] if asked and early else []
    wrong = faults(root, policy, plan)
    down = [f"{fault.where}: {fault.why}" for fault in wrong if fault.code == "nics.down"]
    placed = [
        entry["device"]
        for part in plan.slices.values()
        for entry in part.entries
        if entry["kind"] == "irq_affinity"
    ]
    served = {irq.device for irq in facts.irqs if irq.action is not None and not is_control(irq.action)}
    unaddressed = [
        f"{answer.finding.where}: {answer.finding.why}"
        for answer in rail_answers(plan, facts)
        if answer.finding is not None and answer.finding.code == GID and GID not in policy.accept
    ]
    return (
        down
        + unaddressed
        + [f"{device}: has no completion vector yet" for device in placed if device not in served]
    )


def faults(root: Path, policy: Policy, plan: Plan) -> list[Finding]:
    """What is wrong with the devices: open errors of the plan, and rails that it would drop."""
    errors = [fault for fault in plan.findings if fault.severity == "error" and is_open(fault)]
    return [*errors, *_lost_rails(root, policy, plan)]


def _lost_rails(root: Path, policy: Policy, plan: Plan) -> list[Finding]:
    """Ports that are down and were rails of the last plan, by NCCL's file on the node; all, where no rail is up."""
    if "nics.down" in policy.accept:
        return []
    told = {fault.where for fault in plan.findings if fault.code == "nics.down"}
    none_up = not any(nic.role == "rail" for nic in plan.nics)
    written = written_rails(root)
    return [
        Finding(
            "nics.down",
            "error",
            nic.name,
            f"{nic.because}, and "
            + ("no other rail is up" if none_up else f"{NCCL_CONF} names it as a rail"),
            "check cable, transceiver and switch port (InfiniBand: the subnet manager); then plan again",
        )
        for nic in plan.nics
        if nic.role == "down" and nic.name not in told and (none_up or nic.rdma in written)
    ]


def written_rails(root: Path) -> set[str]:
    """RDMA devices in NCCL's list that lies on the node; none where there is no such file."""
    try:
        with open(root / NCCL_CONF.lstrip("/"), encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError:
        return set()
    lists = [line.partition("=")[2] for line in lines if line.startswith("NCCL_IB_HCA=")]
    return {entry.partition(":")[0] for value in lists for entry in value.lstrip("=^").split(",")}
