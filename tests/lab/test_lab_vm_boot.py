"""What a boot is decided by lies on the guest's own disk: GRUB's configuration, the initramfs, its .link files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.sharing import Booted
from tests.lab.test_lab_vm import agrees, netdev_of
from tests.lab.vm import assemble, seed
from tests.lab.vm.layout import FRONT_MAC
from tests.lab.vm.machine import Vm


@dataclass(frozen=True)
class Before:
    """boot: its id; parameters: of the kernel that ran then."""

    boot: str
    parameters: str


def before_boot(vm: Vm, folder: Path) -> Before:
    """Asks for a kernel parameter and for a name of the front end's NIC."""
    vm.must(
        "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX lab.parameter=1\"' > /etc/default/grub.d/parameter.cfg && "
        f"printf '[Match]\\nPermanentMACAddress={FRONT_MAC}\\n[Link]\\nName=front0\\n'"
        " > /etc/systemd/network/10-front.link && update-grub && update-initramfs -u",
    )
    return Before(vm.read("/proc/sys/kernel/random/boot_id"), vm.read("/proc/cmdline"))


@pytest.fixture
def before(booted: Booted, request: pytest.FixtureRequest) -> Before:
    found: Before = booted.before(request.module)
    return found


def test_a_kernel_parameter_holds_from_the_next_boot_on(booted: Booted, before: Before) -> None:
    vm = booted.vm
    assert vm.read("/proc/sys/kernel/random/boot_id") != before.boot
    assert "lab.parameter" not in before.parameters
    parameters = vm.read("/proc/cmdline")
    kernel = (vm.image / assemble.KERNEL).read_text("ascii").strip()
    assert parameters.startswith(f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=UUID=")
    assert f"{seed.COMMAND_LINE} lab.parameter=1" in parameters


def test_a_name_is_given_before_the_root_file_system_is_there(booted: Booted, before: Before) -> None:
    vm = booted.vm
    assert netdev_of(vm, vm.layout.front) == "front0"
    told = vm.must("dmesg | grep -e 'front0: renamed' -e 'EXT4-fs (vda1): mounted'").splitlines()
    assert "renamed" in told[0], "the initramfs names it"


def test_a_booted_machine_agrees_with_its_layout(booted: Booted, before: Before) -> None:
    agrees(booted.vm)
