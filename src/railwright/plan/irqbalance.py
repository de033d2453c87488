"""How irqbalance is told to leave the rails' interrupts: a policy script, and a drop-in that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..node.model import Policy
from .entries import HEADER, file

UNIT = "irqbalance.service"
SCRIPT = "/etc/railwright/irqbalance-policy"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-railwright.conf"


def entries(policy: Policy, devices: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Files and a restart; () unless the policy asks. devices: PCI functions whose interrupts were placed."""
    if policy.queues.irqbalance is None:
        return ()
    return (
        file(SCRIPT, script(devices), "0755"),
        file(DROP_IN, _drop_in()),
        {"kind": "systemd_unit", "name": UNIT, "restart_if_older_than": [SCRIPT, DROP_IN]},
    )


def script(devices: Sequence[str]) -> str:
    """What irqbalance asks of each interrupt: $1 is the device's folder in sysfs (irqbalance(1), --policyscript)."""
    patterns = "|".join(f"*/{device}" for device in devices)
    return (
        f"#!/bin/sh\n{HEADER}# Interrupts of the rails have their cores; irqbalance keeps all others.\n"
        f'case "$1" in\n{patterns}) echo ban=true ;;\nesac\nexit 0\n'
    )


def _drop_in() -> str:
    """The daemon's own arguments stay: Debian, Ubuntu and Enterprise Linux keep them in IRQBALANCE_ARGS, older ones of
    the former two in OPTIONS; one that is not set is no argument (systemd.service(5))."""
    return (
        f"{HEADER}[Service]\nExecStart=\n"
        f"ExecStart=/usr/sbin/irqbalance --foreground $OPTIONS $IRQBALANCE_ARGS --policyscript={SCRIPT}\n"
    )
