"""Lossless rails on the virtual machine, the slow half: a second run, another layout, a job, virtual functions, a
driver that comes back, and a reboot. Emulation is slow: a quarter of an hour.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railwright import fabric
from railwright.fleet import zipapp
from railwright.node.model import Facts
from tests.lab import on_guest
from tests.lab.lossless_rails import (
    CLASSES,
    POLICY,
    State,
    before,
    plan,
    settled,
    slices,
    state,
    until,
    vm,
    written,
)
from tests.lab.vm.machine import Vm

__all__ = ["before", "plan", "slices", "vm", "written"]


def test_a_second_run_changes_nothing_and_flaps_no_link(
    vm: Vm, slices: dict[str, Any], written: State
) -> None:
    assert on_guest.changed(on_guest.converge(vm, slices, check=True)) == set()
    again = on_guest.converge(vm, slices)
    assert (on_guest.changed(again), again["failures"]) == (set(), [])
    assert state(vm) == written


def test_the_check_and_the_linter_find_nothing_wrong_with_it(
    vm: Vm, plan: Any, written: State, tmp_path: Path
) -> None:
    facts = Facts.read(on_guest.program(vm, "discover"))
    ports = {
        f"swp{rail.number + 1}": {"host": "vm", "nic": written[rail.pci]["netdev"]}
        for rail in vm.layout.rails
    }
    contract = fabric.Contract.read(
        {
            "speed_gbps": 400,
            "cable_m": 30,
            "host_mtu": 1500,
            "classes": CLASSES,
            "switches": {"leaf": {"os": "nvue", "ports": ports}},
        }
    )
    states = fabric.read_hosts(fabric.host_states(contract, [("vm", facts)]), "vm")
    result = fabric.lint(fabric.Found(contract, "fabric", 42, policy_seen=True), {}, states)
    told = [one for one in result.findings if one.where.startswith("vm ") and one.severity != "info"]
    assert told == []
    vm.must("cat > /run/plan.json", stdin=json.dumps(plan))
    said = json.loads(vm.ssh("python3 /run/railwright-test.pyz check --plan /run/plan.json --json").stdout)
    assert [one for one in said["findings"] if one["code"].startswith("lossless.")] == []


def test_another_layout_takes_the_place_of_the_first_in_one_run(
    vm: Vm, slices: dict[str, Any], written: State
) -> None:
    """The data moves from priority 4 to 3, over a longer cable; dcb leaves code points that it is not given."""
    other = [
        {
            **entry,
            "app": {point: prio for point, prio in {**entry["app"], "10": 3}.items() if point != "18"},
            "pfc": [3],
            "cable": 100,
            "buffer": {"prio_buffer": [0, 0, 0, 1, 0, 0, 0, 0], "size": [18944, 260_000, 0, 0, 0, 0, 0, 0]},
        }
        if entry["kind"] == "dcb"
        else entry
        for entry in slices["lossless"]
    ]
    assert on_guest.converge(vm, {"lossless": other})["failures"] == []
    there = state(vm)
    for rail in vm.layout.rails:
        now = there[rail.pci]
        points = {point: prio for point, prio, *_ in now["app"]["dscp_prio"]}
        assert (points[10], 18 in points) == (3, False)
        assert [prio for prio, on in enumerate(now["pfc"]["prio_pfc"]) if on] == [3]
        assert (now["pfc"]["delay"], now["buffer"]["prio_buffer"][3]) == (100, 1)
        # What PFC protected is let go first.
        assert there.flaps[rail.pci] == written.flaps[rail.pci] + 2
    assert on_guest.converge(vm, slices)["failures"] == []
    assert state(vm).shown == written.shown


def test_a_port_in_use_keeps_its_link(vm: Vm, slices: dict[str, Any], written: State) -> None:
    rail = vm.layout.rails[0]
    one = "ib_send_bw -d mlx5_0 -D 600"
    vm.must(f"systemd-run -q --unit=lab-job sh -c '{one} & sleep 2; exec {one} 127.0.0.1'")
    try:
        until(lambda: '"RC"' in vm.must("rdma -j resource show qp"))
        # It must outlive calls that take a minute in emulation.
        vm.must("systemctl kill --signal=STOP lab-job")
        off = {
            "lossless": [
                {**entry, "pfc": []} if (entry["kind"], entry["device"]) == ("dcb", rail.pci) else entry
                for entry in slices["lossless"]
            ]
        }
        (failure,) = on_guest.converge(vm, off, check=True)["failures"]
        assert "in use by ib_send_bw" in failure["why"]
        (failure,) = on_guest.converge(vm, off)["failures"]
        assert "in use by ib_send_bw" in failure["why"]
    finally:
        vm.ssh("systemctl kill --signal=KILL lab-job")
    assert state(vm).shown == written.shown


def test_a_virtual_function_has_no_dcb_and_that_is_said(vm: Vm, written: State) -> None:
    rail = vm.layout.rails[1]
    vm.must(f"echo 1 > /sys/bus/pci/devices/{rail.pci}/sriov_numvfs")
    try:
        function = vm.must(f"basename $(readlink /sys/bus/pci/devices/{rail.pci}/virtfn0)").strip()
        until(lambda: vm.ssh(f"ls /sys/bus/pci/devices/{function}/net").stdout.strip() != "")
        done = on_guest.converge(vm, {"of_a_guest": [{"kind": "dcb", "device": function, "pfc": [3]}]})
        (failure,) = done["failures"]
        assert "its driver has no DCB" in failure["why"]
        assert "virtual function" in failure["remedy"]
    finally:
        vm.must(f"echo 0 > /sys/bus/pci/devices/{rail.pci}/sriov_numvfs")


def test_putting_back_is_exact(vm: Vm, slices: dict[str, Any], before: State, written: State) -> None:
    done = on_guest.revert(vm, "lossless")
    assert done["failures"] == []
    assert state(vm).shown == before.shown
    assert on_guest.changed(on_guest.revert(vm, "lossless")) == set()


@pytest.fixture(scope="module")
def owned(vm: Vm, plan: Any, slices: dict[str, Any]) -> State:
    """The same slice with the boot unit, written once more; what stood there then."""
    digest = zipapp.digest()
    # What the plan has against this machine besides is others' business, and emulation is slower than the unit allows.
    known = {finding["code"] for finding in plan["findings"] if finding["severity"] == "error"} | {
        "rails.mtu"
    }
    accept = dict.fromkeys(sorted(known), "the lab's machine is so")
    policy = {**POLICY, "boot": {"sha256": digest}, "accept": accept}
    for unit in ("railwright", "railwright-again"):
        place = f"/etc/systemd/system/{unit}.service.d"
        vm.must(f"mkdir -p {place} && printf '[Service]\\nTimeoutStartSec=1800\\n' > {place}/lab.conf")
    vm.must("systemctl daemon-reload")
    vm.must("cat > /run/policy.json", stdin=json.dumps(policy))
    made = on_guest.program(vm, "plan", "--policy", "/run/policy.json")
    both = {name: made["slices"][name]["entries"] for name in ("lossless", "boot_unit")}
    done = on_guest.converge(vm, both, blobs={digest: zipapp.blob()})
    assert done["failures"] == [], vm.ssh("journalctl -q --no-pager -o cat -u railwright.service").stdout
    return state(vm)


def test_a_driver_that_comes_back_gets_it_all_again(vm: Vm, owned: State) -> None:
    rail = vm.layout.rails[0]
    driver = "/sys/bus/pci/drivers/mlx5_core"
    vm.must(f"echo {rail.pci} > {driver}/unbind && echo {rail.pci} > {driver}/bind")
    until(lambda: settled(vm) == owned.shown)
    # A driver that is loaded again counts anew: one flap for PFC.
    assert state(vm).flaps[rail.pci] == 1


def test_a_reboot_forgets_it_and_the_boot_unit_puts_it_back(vm: Vm, owned: State) -> None:
    vm.reboot()
    until(lambda: settled(vm) == owned.shown)
    # What it found before it wrote: the kernel had forgotten.
    said = vm.must("journalctl -b -q --no-pager -o cat -u railwright.service")
    assert "lossless" in said
    on_guest.revert(vm)
