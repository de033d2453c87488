"""Boot arguments and an initramfs in a virtual machine that boots through GRUB: its kernel says what holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import on_guest
from tests.lab.vm import saved
from tests.lab.vm.layout import layout
from tests.lab.vm.machine import Vm

WORDS = ["iommu=pt", "numa_balancing=disable", "pci=realloc=off"]
CONF = "/etc/modprobe.d/railwright-lab.conf"
SLICES: dict[str, Any] = {
    "kernel": [
        {"kind": "file", "path": CONF, "content": "blacklist railwright_lab_none\n"},
        {"kind": "initramfs", "name": "kernel", "inputs": [CONF], "reboot": True},
        {"kind": "boot_arguments", "name": "kernel", "arguments": WORDS, "reboot": True},
    ]
}
MOST_SECONDS = 2400.0


@pytest.fixture(scope="module")
def vm(vm_ready: None) -> Iterator[Vm]:
    machine = saved.up(f"grub{os.getpid()}", layout("two-nodes"))
    try:
        yield machine
    finally:
        machine.down()


def write(vm: Vm, *, check: bool = False) -> dict[str, Any]:
    return on_guest.converge(vm, SLICES, check=check, timeout=MOST_SECONDS)


def running(vm: Vm) -> list[str]:
    return vm.read("/proc/cmdline").split()


def in_initramfs(vm: Vm) -> bool:
    listed = vm.must("lsinitramfs /boot/initrd.img-$(uname -r)", timeout=MOST_SECONDS)
    return CONF.lstrip("/") in listed.splitlines()


def test_arguments_are_in_force_after_the_boot_and_go_again_after_a_revert(vm: Vm) -> None:
    before = running(vm)
    assert not set(WORDS) & set(before)
    main = vm.must("sha256sum /etc/default/grub")
    checked = write(vm, check=True)
    assert (checked["changed"], checked["failures"]) == (True, [])
    assert running(vm) == before

    first = write(vm)
    assert first["failures"] == []
    assert set(first["reboot_needed"]) == {"boot_arguments:kernel", "initramfs:kernel"}
    assert in_initramfs(vm)
    assert running(vm) == before, "nothing is in force without a boot"
    again = write(vm)
    assert (again["changed"], "boot_arguments:kernel" in again["reboot_needed"]) == (False, True)

    vm.reboot()
    assert set(WORDS) <= set(running(vm))
    after = write(vm)
    assert (after["changed"], after["reboot_needed"], after["failures"]) == (False, [], [])
    assert vm.must("sha256sum /etc/default/grub") == main

    back = on_guest.revert(vm, timeout=MOST_SECONDS)
    assert (back["failures"], "boot_arguments:kernel" in back["reboot_needed"]) == ([], True)
    assert not in_initramfs(vm)
    vm.reboot()
    assert running(vm) == before
