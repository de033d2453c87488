"""What only a booted kernel shows of rails: Soft-RoCE GIDs, names and ACS after a reboot, who starts the unit again.

The judges are rdma-core's programs, the kernel and systemd of the guest. Emulation is slow: a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from railwright.node.model import Facts, Policy
from railwright.plan import acs, boot_unit, plan
from railwright.plan.tree import Tree
from tests.lab import on_guest
from tests.lab.railnet import HOME, push
from tests.lab.vm import saved
from tests.lab.vm.layout import layout
from tests.lab.vm.machine import Vm

POLICY = Policy.read(
    {
        "rails": {"prefix": "rail"},
        "expect": {"gpus": 2, "rails": 2},
        "pcie": {"acs": "bare-metal", "acs_by": "kernel"},
    }
)
# It stands for the program: who starts it is the question here, not what it does.
PROGRAM = "import time\nopen('/root/runs', 'a').write('%d\\n' % time.time())\n"
RUNS = "cat /root/runs | wc -l"
# A run begins three seconds after the event; on a busy machine an emulated second takes its time.
PATIENT = 240.0


@pytest.fixture(scope="module")
def vm(vm_ready: None) -> Iterator[Vm]:
    machine = saved.up(f"railsvm{os.getpid()}", layout("two-nodes"))
    try:
        push(machine)
        yield machine
    finally:
        machine.down()


@pytest.fixture(scope="module")
def units(vm: Vm) -> None:
    """The boot unit's files as planned, and a program that only counts its runs."""
    made = boot_unit.slice_of(Policy.read({"boot": {"sha256": "ab" * 32}}))
    assert made is not None
    for entry in made.entries:
        if "content" in entry:
            write(vm, entry["path"], entry["content"])
    write(vm, boot_unit.ZIPAPP, PROGRAM)
    vm.must(
        "systemctl daemon-reload; udevadm control --reload; "
        f"systemctl start {boot_unit.BOOT_UNIT} {boot_unit.PATH_UNIT}"
    )


def write(vm: Vm, path: str, text: str) -> None:
    vm.must(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)


def settled(vm: Vm) -> int:
    """How often the program has run, once nothing is asked for and nothing runs."""
    deadline = time.monotonic() + PATIENT
    quiet = (
        f"udevadm settle; sleep 5; test ! -e {boot_unit.ASKED} && "
        f"systemctl is-active {boot_unit.AGAIN_UNIT} | grep -qx inactive"
    )
    while vm.ssh(quiet).returncode != 0:
        assert time.monotonic() < deadline, vm.must(
            f"systemctl status --no-pager {boot_unit.AGAIN_UNIT}; true"
        )
    return int(vm.must(RUNS))


def driver(vm: Vm, pci: str) -> str:
    return vm.must(f"basename $(readlink /sys/bus/pci/devices/{pci}/driver)").strip()


def netdev(vm: Vm, pci: str) -> str:
    names = vm.ssh(f"ls /sys/bus/pci/devices/{pci}/net").stdout.split()
    assert names, vm.must(f"lspci -nnk; dmesg | grep -e lab_ -e mlx5 -e igb -e {pci} | tail -n 60; true")
    return names[0]


def test_the_chosen_gid_is_the_one_that_ibverbs_shows_and_a_ping_pong_goes_over_it(vm: Vm) -> None:
    page = json.loads(vm.must(f"cd {HOME} && python3 -m railwright.node gid --json"))
    assert [port["device"] for port in page["ports"]] == ["mlx5_0", "mlx5_1"]
    for port in page["ports"]:
        shown = vm.must(f"ibv_devinfo -v -d {port['device']}")
        table = dict(re.findall(r"GID\[\s*(\d+)\]:\s*(\S+), RoCE v2", shown))
        assert table[str(port["gid_index"])] == f"::ffff:{port['address']}"
        assert pingpong(vm, port["device"], port["gid_index"])
        # An entry that is not set is no way to send.
        assert not pingpong(vm, port["device"], 9)


def pingpong(vm: Vm, device: str, index: int) -> bool:
    """ibv_rc_pingpong with itself over that GID."""
    command = f"timeout 120 ibv_rc_pingpong -d {device} -g {index} -n 20 -s 1024 -m 1024"
    done = vm.ssh(f"({command} > /dev/null 2>&1 &); sleep 5; {command} 127.0.0.1")
    return done.returncode == 0 and "20 iters" in done.stdout


def test_an_address_that_is_set_anew_has_another_index_and_the_verb_follows_it(vm: Vm) -> None:
    name = netdev(vm, vm.layout.rails[0].pci)
    # A second address takes the next place, and the first one's comes back behind it.
    vm.must(
        f"ip addr add 10.9.0.77/24 dev {name}; ip addr add 10.9.9.1/24 dev {name}; sleep 2; "
        f"ip addr del 10.9.0.1/24 dev {name}; sleep 2"
    )
    try:
        asked = f"cd {HOME} && python3 -m railwright.node gid --json --range 10.9.9.0/24 mlx5_0"
        (port,) = json.loads(vm.must(asked))["ports"]
        shown = vm.must("ibv_devinfo -v -d mlx5_0")
        table = dict(re.findall(r"GID\[\s*(\d+)\]:\s*(\S+), RoCE v2", shown))
        assert port["gid_index"] != 1
        assert table[str(port["gid_index"])] == "::ffff:10.9.9.1"
    finally:
        vm.must(
            f"ip addr del 10.9.9.1/24 dev {name}; ip addr del 10.9.0.77/24 dev {name}; "
            f"ip addr replace 10.9.0.1/24 dev {name}"
        )


def test_the_mtu_that_is_asked_for_admits_the_largest_rdma_mtu(vm: Vm) -> None:
    """Soft-RoCE takes 80 bytes off (RXE_MAX_HDR_LENGTH), mlx5 96: what is enough for one is enough for the other."""
    name = netdev(vm, vm.layout.rails[0].pci)
    for mtu, active in ((9000, 4096), (4192, 4096), (1500, 1024)):
        vm.must(f"ip link set {name} mtu {mtu}")
        assert f"active_mtu:\t\t{active} (" in vm.must("ibv_devinfo -d mlx5_0")


def test_new_queues_and_a_driver_that_comes_back_start_the_unit_again_and_virtual_functions_do_not(
    vm: Vm, units: None
) -> None:
    first, second = vm.layout.rails[:2]
    begun = settled(vm)
    vm.must(f"ethtool -L {netdev(vm, first.pci)} combined 1")
    fewer = settled(vm)
    vm.must(f"ethtool -L {netdev(vm, first.pci)} combined 2")
    more = settled(vm)
    assert (fewer - begun, more - fewer) == (0, 1)
    name = driver(vm, second.pci)
    vm.must(
        f"cd /sys/bus/pci/drivers/{name} && echo {second.pci} > unbind && sleep 3 && echo {second.pci} > bind"
    )
    back = settled(vm)
    # What came while a run was at work has a run of its own.
    assert back - more in (1, 2)
    place = f"/sys/bus/pci/devices/{first.pci}/sriov_numvfs"
    vm.must(f"echo 2 > {place}")
    try:
        assert settled(vm) == back
    finally:
        vm.must(f"echo 0 > {place}")


@dataclass(frozen=True)
class Booted:
    """What was asked of the next boot, and what stood there before it. acs: what each bridge was, by address."""

    front: str
    addresses: int
    asked: tuple[acs.Bits, ...]
    acs: dict[str, int]


def bare_metal(vm: Vm) -> Facts:
    """The guest's facts, but for its being a guest: what ACS is for is the host's to decide."""
    found = on_guest.program(vm, "discover")
    found["host"]["virtual"] = ""
    return Facts.read(found)


def control(vm: Vm, bridge: str) -> int:
    return int(vm.must(f"setpci -s {bridge} ECAP_ACS+6.w"), 16)


def bits(facts: Facts) -> tuple[acs.Bits, ...]:
    made = plan(facts, POLICY)
    gpus = [gpu.pci for gpu in made.gpus if gpu.pci is not None]
    nics = [nic.pci for nic in made.nics if nic.rail is not None and nic.pci is not None]
    return acs.wanted(facts, POLICY, Tree(facts), gpus, nics)


@pytest.fixture(scope="module")
def booted(vm: Vm) -> Booted:
    """One boot for both: names in the initramfs, and ACS on the kernel's command line."""
    facts = bare_metal(vm)
    made = plan(facts, POLICY)
    names = [entry for entry in made.slices["rail_names"].entries if entry["kind"] == "file"]
    for entry in names:
        write(vm, entry["path"], entry["content"])
    vm.must("update-initramfs -u -k all", timeout=1800)
    # Debian's hook puts those of /etc beside udev's own.
    inside = vm.must("lsinitramfs /boot/initrd.img-$(uname -r)").split()
    links = {os.path.basename(entry["path"]) for entry in names if entry["path"].endswith(".link")}
    assert len(links) == 2
    assert links <= {os.path.basename(path) for path in inside if "/systemd/network/" in path}
    (argument,) = [entry for entry in made.slices["kernel"].entries if entry.get("name") == "acs"]
    done = on_guest.converge(vm, {"kernel": [argument]})
    assert done["failures"] == []
    asked = bits(facts)
    before = Booted(
        netdev(vm, vm.layout.front.pci),
        vm.must("ip -4 -br addr").count("/24"),
        asked,
        {one.bridge: control(vm, one.bridge) for one in asked},
    )
    vm.reboot()
    return before


def test_rails_have_their_names_after_a_reboot_and_virtual_functions_and_the_front_end_have_not(
    vm: Vm, booted: Booted
) -> None:
    names = {slot.pci: netdev(vm, slot.pci) for slot in vm.layout.rails}
    assert list(names.values()) == ["rail0", "rail1"]
    assert netdev(vm, vm.layout.front.pci) == booted.front
    assert vm.must("ip -4 -br addr").count("/24") == booted.addresses
    # A tenant's NCCL_IB_HCA=mlx5 still matches.
    assert vm.must("ls /sys/class/infiniband").split() == ["mlx5_0", "mlx5_1"]
    vm.must(f"echo 2 > /sys/bus/pci/devices/{vm.layout.rails[0].pci}/sriov_numvfs; udevadm settle")
    functions = vm.must(f"ls /sys/bus/pci/devices/{vm.layout.rails[0].pci}/virtfn*/net").split()
    assert [name for name in functions if re.fullmatch(r"rail\d+", name)] == []
    assert netdev(vm, vm.layout.rails[0].pci) == "rail0"


def test_the_kernel_sets_acs_at_boot_and_the_registers_say_whether_it_did(vm: Vm, booted: Booted) -> None:
    """The plan believes the bits and not the command line: kernels before the fix take the first entry only."""
    print(vm.must("uname -rv"), vm.read("/proc/cmdline"))
    assert len(booted.asked) >= 4, "each rail's and each GPU's way up"
    word = acs.kernel_argument(booted.asked)
    assert word is not None
    assert vm.read("/proc/cmdline").split()[-1] == word, "the whole of it came through GRUB's script"
    now = {one.bridge: control(vm, one.bridge) for one in booted.asked}
    for one in booted.asked:
        print(f"{one.bridge} {one.pattern}: {booted.acs[one.bridge]:04x} before, {now[one.bridge]:04x} after")
    assert all(value & acs.JUDGED for value in booted.acs.values())
    other = [one.bridge for one in booted.asked if (now[one.bridge] ^ one.value) & one.mask & acs.JUDGED]
    made = plan(bare_metal(vm), POLICY)
    assert made.status == "planned", made.refusals
    told = [one for one in made.findings if one.code == "pcie.acs"]
    assert [(one.severity, one.where) for one in told] == ([("error", ", ".join(other))] if other else [])
    # The first entry holds on every kernel that knows the parameter (Linux 6.11 and later).
    assert booted.asked[0].bridge not in other
