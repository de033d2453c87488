"""What the steps of an installation come to, as functions of JSON: filters share them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from railwright import border
from railwright.node.check import gate, reboot
from railwright.node.model import Facts, Plan, from_json
from railwright.node.model.platform_facts import DriverUse
from railwright.plan.slices import INSTALL_SLICES
from railwright.plan.stack import pairs

from . import upgrade

Json = dict[str, Any]
# What runs on the machine that the playbook runs on: a reboot would end the playbook.
LOCAL = ("local", "ansible.builtin.local")


def install_slices(plan: Json) -> list[str]:
    """The slices of the plan that an installation writes, in their order; none where the policy asks for none."""
    planned = Plan.read(plan)
    return [name for name in INSTALL_SLICES if name in planned.slices]


def install_replaces(facts: Json, plan: Json) -> str:
    """The loaded driver whose packages an installation would replace, in a sentence; "" where it replaces none.

    Who began with the old one goes on, and nobody who begins after it does: that is a matter of an upgrade.
    """
    planned, now = Plan.read(plan), Facts.read(facts)
    if gate.planned_version(planned) is None or now.host.driver is None or now.software is None:
        return ""
    seen = upgrade.outlook(now, planned)
    return (
        border.line(f"driver {seen['loaded']} is loaded, and {seen['to']} would be put under it")
        if seen["needed"]
        else ""
    )


def reboot_refusal(facts: Json, plan: Json, connection: str = "", driver: Json | None = None) -> str:
    """Why this node must not be rebooted now, one reason a line; "" where nothing speaks against it.

    driver: who uses the driver (node_driver), where that was asked.
    """
    now, planned = Facts.read(facts), Plan.read(plan)
    reasons = [*reboot.refusals(now, planned), *_known_pairs(now, planned)]
    busy = from_json(DriverUse, driver, "driver").busy if driver else None
    if busy:
        reasons.insert(0, f"its GPUs are in use: {busy}")
    if connection in LOCAL:
        reasons.insert(
            0, "it is the machine that this playbook runs on: reboot it by hand, then run this again"
        )
    return "\n".join(map(border.line, reasons))


def _known_pairs(facts: Facts, plan: Plan) -> Iterator[str]:
    """What is known of kernels that lack the planned driver's module: a pair that works may not be on this node."""
    version, software = gate.planned_version(plan), facts.software
    if version is None or software is None:
        return
    for kernel in software.kernels:
        row = pairs.bad_pair(version, kernel.release)
        if row is not None and not gate.has_module(facts, kernel.release, version):
            yield (
                f"driver {version} on kernel {kernel.release} is known not to build: {row.why}; what works: {row.works}"
            )


def reboot_words(changes: Json) -> str:
    """What waits for a reboot, in a sentence; "" where nothing does."""
    owed = changes.get("reboot_needed") or []
    return border.line(f"takes effect at the next boot: {', '.join(owed)}") if owed else ""
