"""Boot arguments and an initramfs in a virtual machine that boots through GRUB: its kernel says what holds."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.vm import saved
from tests.lab.vm.layout import layout
from tests.lab.vm.machine import Vm

SOURCE = Path(__file__).resolve().parents[2] / "src"
WORDS = ["iommu=pt", "numa_balancing=disable", "pci=realloc=off"]
CONF = "/etc/modprobe.d/railwright-lab.conf"
SLICES: dict[str, Any] = {
    "kernel": [
        {"kind": "file", "path": CONF, "content": "blacklist railwright_lab_none\n"},
        {"kind": "initramfs", "name": "kernel", "inputs": [CONF], "reboot": True},
        {"kind": "boot_arguments", "name": "kernel", "arguments": WORDS, "reboot": True},
    ]
}
PROGRAM = """
import json, sys
sys.path.insert(0, "/root/railwright")
from railwright.node.state import apply, revert
asked = json.load(sys.stdin)
outcome = revert() if asked["verb"] == "revert" else apply(asked["slices"], check=asked["verb"] == "check")
print(json.dumps(outcome.to_json()))
"""
MOST_SECONDS = 2400.0


@pytest.fixture(scope="module")
def vm(vm_ready: None) -> Iterator[Vm]:
    machine = saved.up("grub", layout("two-nodes"))
    try:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name in ("__init__.py", "node", "plan"):
                archive.add(SOURCE / "railwright" / name, f"railwright/{name}")
        unpack = "mkdir -p /root/railwright && base64 -d | tar -xz -C /root/railwright"
        machine.must(unpack, stdin=base64.b64encode(packed.getvalue()).decode())
        machine.must("cat > /root/write.py", stdin=PROGRAM)
        yield machine
    finally:
        machine.down()


def write(vm: Vm, verb: str) -> dict[str, Any]:
    said = vm.must(
        "python3 /root/write.py", stdin=json.dumps({"verb": verb, "slices": SLICES}), timeout=MOST_SECONDS
    )
    return dict(json.loads(said))


def running(vm: Vm) -> list[str]:
    return vm.read("/proc/cmdline").split()


def in_initramfs(vm: Vm) -> bool:
    listed = vm.must("lsinitramfs /boot/initrd.img-$(uname -r)", timeout=MOST_SECONDS)
    return CONF.lstrip("/") in listed.splitlines()


def test_arguments_are_in_force_after_the_boot_and_go_again_after_a_revert(vm: Vm) -> None:
    before = running(vm)
    assert not set(WORDS) & set(before)
    main = vm.must("sha256sum /etc/default/grub")
    checked = write(vm, "check")
    assert (checked["changed"], checked["failures"]) == (True, [])
    assert running(vm) == before

    first = write(vm, "apply")
    assert first["failures"] == []
    assert set(first["reboot_needed"]) == {"boot_arguments:kernel", "initramfs:kernel"}
    assert in_initramfs(vm)
    assert running(vm) == before, "nothing is in force without a boot"
    again = write(vm, "apply")
    assert (again["changed"], "boot_arguments:kernel" in again["reboot_needed"]) == (False, True)

    vm.reboot()
    assert set(WORDS) <= set(running(vm))
    after = write(vm, "apply")
    assert (after["changed"], after["reboot_needed"], after["failures"]) == (False, [], [])
    assert vm.must("sha256sum /etc/default/grub") == main

    back = write(vm, "revert")
    assert (back["failures"], "boot_arguments:kernel" in back["reboot_needed"]) == ([], True)
    assert not in_initramfs(vm)
    vm.reboot()
    assert running(vm) == before
