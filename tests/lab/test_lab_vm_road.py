"""The whole road on the virtual machine, twice, with the one boot between (see conftest.py): its kernel says where
interrupts are served."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import write_inventory
from tests.lab.sharing import Booted
from tests.lab.shell import ask
from tests.lab.test_lab_road import PROJECT, State, look
from tests.lab.test_lab_vm import lstopo, near_cpus
from tests.lab.vm.machine import Vm

# A node of this machine has two cores: one for the rank of its GPU, one for the interrupts of its rail.
POLICY = {
    "expect": {"gpus": 2, "rails": 2},
    "cores": {"irq_per_nic": 1, "housekeeping": 0},
    "accept": {
        "pcie.bar": "emulated GPUs have no memory to show",
        "rails.mtu": "no rail network is set up here",
    },
}
# For every service: a busy machine may emulate slower than a unit's own limit allows for.
_PATIENT = "/etc/systemd/system/service.d"
# A quarter of an hour after the boot, and a run in emulation may last as long.
_ON_A_CLOCK = ("systemd-tmpfiles-clean.service",)
# One run in emulation on a busy machine.
MOST_SECONDS = 2400
DAY = 86400


@dataclass(frozen=True)
class Road:
    """One run of `railwright up`: its code, what it printed, and how the machine was afterwards."""

    code: int
    said: str
    state: State


@dataclass(frozen=True)
class Begun:
    """Before the boot: the machine as it was, the first run, and the folder that the second goes on with."""

    virgin: State
    first: Road
    output: Path


def before_boot(vm: Vm, folder: Path) -> Begun:
    """Tunes the machine for the first time."""
    write_inventory(vm.run, {vm.name: {**vm.host_entry(), "node_policy": POLICY}})
    vm.must(f"mkdir {_PATIENT} && printf '[Service]\\nTimeoutStartSec=1800\\n' > {_PATIENT}/lab.conf")
    vm.must("systemctl daemon-reload")
    virgin = look(vm)
    first = go(vm, folder / "out")
    assert first.code == 0, first.said
    return Begun(virgin, first, folder / "out")


def go(vm: Vm, output: Path) -> Road:
    argv = [sys.executable, "-m", "railwright.cli", "up", str(vm.inventory), "--output", str(output)]
    done = ask(argv, cwd=PROJECT, timeout=MOST_SECONDS)
    return Road(done.returncode, done.stdout[-3000:] + done.stderr[-1000:], look(vm))


@pytest.fixture(scope="module")
def begun(booted: Booted, request: pytest.FixtureRequest) -> Begun:
    begun: Begun = booted.before(request.module)
    return begun


@pytest.fixture(scope="module")
def vm(booted: Booted, begun: Begun) -> Vm:
    return booted.vm


@pytest.fixture(scope="module")
def output(begun: Begun) -> Path:
    return begun.output


@pytest.fixture(scope="module")
def rebooted(vm: Vm) -> State:
    """With a clock that has jumped a day ahead since, and without the timers that such a day would set off."""
    vm.must("systemctl stop '*.timer' && date -s '+1 day'")
    return look(vm)


@pytest.fixture(scope="module")
def second(vm: Vm, rebooted: State, output: Path) -> Road:
    road = go(vm, output)
    assert road.code == 0, road.said
    return road


@pytest.fixture
def plan(vm: Vm, output: Path) -> Any:
    return json.loads((output / vm.name / "plan.json").read_text("utf-8"))


def test_the_plan_pairs_each_gpu_with_the_nic_under_its_switch(vm: Vm, plan: Any) -> None:
    paired = {gpu["pci"]: gpu["nics"] for gpu in plan["gpus"]}
    assert paired == {gpu.pci: [f"mlx5_{gpu.number}"] for gpu in vm.layout.gpus}
    roles = {nic["pci"]: nic["role"] for nic in plan["nics"]}
    assert {pci for pci, role in roles.items() if role == "rail"} == {rail.pci for rail in vm.layout.rails}


def test_interrupts_are_served_where_planned_and_hwloc_calls_that_near(
    vm: Vm, plan: Any, second: Road
) -> None:
    """After the second run, and so after a reboot: what the kernel serves with, beside what hwloc sees."""
    tree = lstopo(vm)
    placed = [
        entry
        for part in plan["slices"].values()
        for entry in part["entries"]
        if entry["kind"] == "irq_affinity"
    ]
    assert {entry["device"] for entry in placed} >= {rail.pci for rail in vm.layout.rails}
    nodes = {slot.pci: slot.node for slot in (*vm.layout.rails, vm.layout.front)}
    for entry in placed:
        device = f"/sys/bus/pci/devices/{entry['device']}"
        near = near_cpus(tree, entry["device"])
        local = vm.layout.cpus_of(nodes[entry["device"]])
        assert near == set(local)
        assert vm.read(f"{device}/numa_node") == str(nodes[entry["device"]])
        assert vm.read(f"{device}/local_cpulist") == f"{local[0]}-{local[-1]}"
        served = vm.must(
            f"for irq in $(ls {device}/msi_irqs); do echo $(cat /proc/irq/$irq/effective_affinity_list)"
            ' $(sed -n "s/^ *$irq:.* //p" /proc/interrupts); done'
        )
        vectors = [(int(cpu), name) for cpu, name in (line.split() for line in served.splitlines())]
        data = {cpu for cpu, name in vectors if "_comp" in name}
        control = {cpu for cpu, name in vectors if "_comp" not in name}
        assert data
        assert data <= cpus(entry["cpus"]) <= near, entry["device"]
        assert control
        assert control <= cpus(entry["control_cpus"]) <= near, entry["device"]


def test_a_reboot_forgets_and_the_boot_unit_puts_back(
    vm: Vm, plan: Any, begun: Begun, rebooted: State
) -> None:
    virgin, first = begun.virgin, begun.first.state
    assert rebooted.boot != first.boot == virgin.boot
    entries = [
        entry for part in plan["slices"].values() for entry in part["entries"] if entry["kind"] == "sysctl"
    ]
    planned = {entry["name"]: entry["value"] for entry in entries}
    for state in (first, rebooted):
        assert {name: state.sysctls[name] for name in planned} == planned
    assert {name: virgin.sysctls[name] for name in planned} != planned
    assert "Finished railwright.service" in vm.must(
        "journalctl -b -q --no-pager -o cat -u railwright.service"
    )


def test_the_second_run_changes_nothing_and_restarts_nothing(vm: Vm, rebooted: State, second: Road) -> None:
    assert not re.search(rf"{vm.name} changed", second.said)
    before, after = started(rebooted), started(second.state)
    assert "railwright.service" in before
    assert after == before, "a unit was started again"
    assert second.state.files == rebooted.files
    assert second.state.irqs == rebooted.irqs
    assert second.state.sysctls == rebooted.sysctls


def test_the_second_run_met_a_clock_that_is_a_day_off(vm: Vm, second: Road) -> None:
    assert DAY / 2 < float(vm.must("date +%s")) - time.time() < 2 * DAY


def test_lspci_sysctl_systemctl_and_stat_agree(vm: Vm, second: Road, output: Path) -> None:
    argv = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/node", f"--hosts=paramiko://{vm.name}",
        f"--ssh-config={vm.run.folder / 'ssh_config'}", f"--known-hosts={vm.run.known_hosts}",
        f"--node-output={output}",
    ]  # fmt: skip
    done = ask(argv, cwd=PROJECT, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def started(state: State) -> dict[str, str]:
    """The units, each with the id of its last start, but those that a clock starts."""
    return {unit: start for unit, start in state.units.items() if unit not in _ON_A_CLOCK}


def cpus(text: str) -> set[int]:
    """A CPU list as the kernel writes it."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
