"""What the steps of an upgrade come to, as functions of JSON: filters share them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from railwright import border
from railwright.node.check import driver, reboot
from railwright.node.model import Facts, Plan
from railwright.node.model.driver_packages import is_driver, upstream

from . import upgrade
from .installing import LOCAL

Json = dict[str, Any]


def upgrade_outlook(facts: Json, plan: Json) -> Json:
    """What an upgrade to this plan does, before it does anything."""
    seen = upgrade.outlook(Facts.read(facts), Plan.read(plan))
    return {**seen, "says": border.line(seen["says"])}


def upgrade_refusal(outlook: Json, connection: str = "") -> str:
    """Why this node is not upgraded, whatever its driver; "" where nothing speaks against it."""
    if outlook["reboot"] and connection in LOCAL:
        return "it is the machine that this playbook runs on, and it would have to be rebooted: do it from another one"
    return ""


def upgrade_way_back(plan: Json, recorded: dict[str, str]) -> Json:
    """The slices that put the recorded set back."""
    return upgrade.way_back(Plan.read(plan), recorded)


def upgrade_old(recorded: dict[str, str], loaded: str | None = None) -> str:
    """The version that is to be loaded again with the recorded set; "" for a node that had no driver.

    loaded: what was loaded when this run began, which counts where the set is of several versions. It does not
    otherwise: a run that was broken off may have booted into the new one.
    """
    versions = {upstream(version) for name, version in recorded.items() if is_driver(name)}
    return (versions.pop() if len(versions) == 1 else loaded) or "" if recorded else ""


def upgrade_boots_back(outlook: Json, loads: str, facts: Json) -> bool:
    """Whether a node on which the recorded set is back has to be rebooted.

    loads: the version that is to be loaded again, "" for none. facts: of the node as it is now. Packages that nobody
    had loaded before, and nobody has loaded now, need no boot.
    """
    now = Facts.read(facts).host.driver or ""
    return now != loads and (now != "" or outlook["loaded"] is not None)


def upgrade_failed(result: Json) -> str:
    """Why a step failed, in a sentence, of the result of its task: one that waited in vain has no message."""
    if result.get("busy"):
        return border.line(f"somebody uses the GPUs: {result['busy']}.")
    if result.get("stat", {}).get("exists"):
        return border.line(f"somebody else leases the node ({result['stat'].get('path')}).")
    if result.get("cmd") and "rc" in result:
        told = str(result.get("stderr") or result.get("stdout") or "it says nothing")
        ended = f"ended with {result['rc']}" if result["rc"] else "still answers"
        command = result["cmd"]
        words = command if isinstance(command, str) else " ".join(map(str, command))
        return border.line(f"{words} {ended}: {told}.")
    return border.line(str(result.get("msg") or "a task failed"))


def upgrade_back_refusal(facts: Json, plan: Json, recorded: dict[str, str]) -> str:
    """Why a node on which the recorded set is back must not be rebooted; "" where nothing speaks against it."""
    planned = Plan.read(plan)
    if not recorded:
        planned = replace(planned, slices={})
    elif upgrade.SLICES[0] in planned.slices:
        entries = tuple(upgrade.way_back(planned, recorded)[upgrade.SLICES[0]])
        part = replace(planned.slices[upgrade.SLICES[0]], entries=entries)
        planned = replace(planned, slices={**planned.slices, upgrade.SLICES[0]: part})
    return border.line("; ".join(reboot.refusals(Facts.read(facts), planned)))


def upgrade_verdict(facts: Json, plan: Json, cuda: Json | None = None, wanted: str | None = None) -> Json:
    """Whether the driver works. cuda: what a use of CUDA said; without it module and libraries are compared.

    wanted: the version that should be loaded, where it is not the plan's.
    """
    found = upgrade.verdict(Facts.read(facts), Plan.read(plan), cuda, wanted)
    return {
        **found,
        "says": border.line(found["says"]),
        "problems": [border.line(row) for row in found["problems"]],
    }


def fabric_waiting(facts: Json) -> str:
    """GPUs whose NVLink fabric is not complete, as the driver tells; "" where all are, or there is none."""
    return border.line(", ".join(driver.fabric_waiting(Facts.read(facts))))
