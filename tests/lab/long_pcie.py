"""Registers, queues and interrupts over a reboot of the virtual machine; what test_lab_pcie.py shows needs none."""

from __future__ import annotations

from typing import Any

from tests.lab.on_guest import converge, revert
from tests.lab.test_lab_pcie import TUNED, before, first, look, rail, slices
from tests.lab.vm.layout import Slot
from tests.lab.vm.machine import Vm

__all__ = ["before", "first", "rail"]


def test_a_reboot_forgets_it_and_the_next_run_puts_it_back(
    nic_vm: Vm, rail: Slot, first: dict[str, Any], before: dict[str, Any]
) -> None:
    nic_vm.reboot()
    forgotten = look(nic_vm, rail)
    for what in ("read", "acs", "channels"):
        assert forgotten[what] == before[what]
    assert converge(nic_vm, slices(rail))["failures"] == []
    assert look(nic_vm, rail) == TUNED


def test_a_revert_after_it_gives_back_what_the_boot_brought(
    nic_vm: Vm, rail: Slot, before: dict[str, Any]
) -> None:
    assert revert(nic_vm, "queues", "pcie", "irq_affinity")["failures"] == []
    assert look(nic_vm, rail) == before
