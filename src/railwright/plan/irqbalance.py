"""How irqbalance is told to leave the rails' interrupts: a policy script, and a drop-in that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..node.model import Policy

UNIT = "irqbalance.service"
SCRIPT = "/etc/railwright/irqbalance-policy"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-railwright.conf"
_HEADER = "# Written by Railwright; changes made here are lost.\n"


def entries(policy: Policy, devices: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Files and a restart; () unless the policy asks. devices: PCI functions whose interrupts were placed."""
    if policy.queues.irqbalance is None:
        return ()
    return (
        {"kind": "file", "path": SCRIPT, "content": script(devices), "mode": "0755"},
        {"kind": "file", "path": DROP_IN, "content": _drop_in(), "mode": "0644"},
        {"kind": "systemd_unit", "name": UNIT, "restart_if_older_than": [SCRIPT, DROP_IN]},
    )


def script(devices: Sequence[str]) -> str:
    """What irqbalance asks of each interrupt: $1 is the device's folder in sysfs (irqbalance(1), --policyscript)."""
    patterns = "|".join(f"*/{device}" for device in devices)
    return (
        f"#!/bin/sh\n{_HEADER}# Interrupts of the rails have their cores; irqbalance keeps all others.\n"
        f'case "$1" in\n{patterns}) echo ban=true ;;\nesac\nexit 0\n'
    )


def _drop_in() -> str:
    """The daemon's own arguments stay: Debian, Ubuntu and Enterprise Linux keep them in IRQBALANCE_ARGS, older ones of
    the former two in OPTIONS; one that is not set is no argument (systemd.service(5))."""
    return (
        f"{_HEADER}[Service]\nExecStart=\n"
        f"ExecStart=/usr/sbin/irqbalance --foreground $OPTIONS $IRQBALANCE_ARGS --policyscript={SCRIPT}\n"
    )
