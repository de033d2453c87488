"""Registers, queues and interrupts on a kernel that takes and refuses them: setpci, lspci, ethtool and /proc judge."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.on_guest import changed, converge, revert
from tests.lab.test_lab_vm import netdev_of
from tests.lab.vm.layout import Slot
from tests.lab.vm.machine import Vm
from tests.unit.state_support import register

# A rail's way up: its port of the switch and the root port, by the machine's layout.
PORT, ROOT = "0000:22:00.0", "0000:20:01.0"
FOREIGN = "0000:52:00.0"
ACS_DEFAULT, REDIRECTS_OFF = "001d", "0000"


def slices(rail: Slot) -> dict[str, Any]:
    here = rail.pci
    return {
        "queues": [
            {"kind": "ethtool_channels", "device": here, "combined": 4},
            {"kind": "ethtool_rings", "device": here, "rx": 2048, "tx": 4096},
            {"kind": "ethtool_coalesce", "device": here, "adaptive_rx": 0, "rx_usecs": 16},
        ],
        "pcie": [
            register(here, "CAP_EXP", 8, "7000", "5000"),
            register(PORT, "ECAP_ACS", 6, "001d", REDIRECTS_OFF),
            register(ROOT, "ECAP_ACS", 6, "001d", REDIRECTS_OFF),
        ],
        "irq_affinity": [
            {"kind": "irq_affinity", "device": here, "cpus": "2-3", "control_cpus": "0"},
            {"kind": "queue_cpus", "device": here, "steering": "xps", "cpus": "2-3"},
        ],
    }


TUNED = {
    "read": "MaxReadReq 4096 bytes",
    "acs": (REDIRECTS_OFF, REDIRECTS_OFF),
    "channels": "4",
    "rings": ("2048", "4096"),
    "coalescing": ("off", "16"),
    "asked": ["2", "3", "2", "3"],
    "served": ["2", "3", "2", "3"],
    "control": "0",
    "xps": [4, 8, 4, 8],
    "carrier": "1",
}


def column(text: str, row: str, number: int = -1) -> str:
    """The last word of ethtool's n-th line that begins so: the last one is what is in force."""
    return [line for line in text.splitlines() if line.startswith(row)][number].split()[-1]


def look(vm: Vm, rail: Slot) -> dict[str, Any]:
    """What other tools than ours say of it."""
    netdev = netdev_of(vm, rail)
    rings, waits = vm.must(f"ethtool -g {netdev}"), vm.must(f"ethtool -c {netdev}")
    table = vm.must(f"grep -e @pci:{rail.pci} /proc/interrupts").splitlines()
    numbers = {line.split()[-1].partition("@")[0]: line.split(":")[0].strip() for line in table}
    data = [numbers[f"mlx5_comp{n}"] for n in range(len(numbers) - 1)]
    # The kernel moves an interrupt when it next occurs: the driver has each occur at a change.
    asked = [vm.read(f"/proc/irq/{irq}/smp_affinity_list") for irq in data]
    served = [vm.read(f"/proc/irq/{irq}/effective_affinity_list") for irq in data]
    capabilities = vm.must(f"lspci -vvv -s {rail.pci}")
    return {
        "read": next(part.strip() for part in capabilities.split(",") if "MaxReadReq" in part).splitlines()[
            0
        ],
        "acs": tuple(vm.must(f"setpci -s {bridge} ECAP_ACS+6.w").strip() for bridge in (PORT, ROOT)),
        "channels": column(vm.must(f"ethtool -l {netdev}"), "Combined:"),
        "rings": (column(rings, "RX:"), column(rings, "TX:")),
        "coalescing": (waits.split("Adaptive RX:")[1].split()[0], column(waits, "rx-usecs:")),
        "asked": asked,
        "served": served,
        "control": vm.read(f"/proc/irq/{numbers['mlx5_async0']}/smp_affinity_list"),
        "xps": [
            int(mask.replace(",", ""), 16)
            for mask in vm.must(f"cat /sys/class/net/{netdev}/queues/tx-*/xps_cpus").split()
        ],
        "carrier": vm.read(f"/sys/class/net/{netdev}/carrier"),
    }


@pytest.fixture(scope="module")
def rail(nic_vm: Vm) -> Slot:
    return nic_vm.layout.rails[0]


@pytest.fixture(scope="module")
def before(nic_vm: Vm, rail: Slot) -> dict[str, Any]:
    return look(nic_vm, rail)


@pytest.fixture(scope="module")
def first(nic_vm: Vm, rail: Slot, before: dict[str, Any]) -> dict[str, Any]:
    foreseen = converge(nic_vm, slices(rail), check=True)
    assert look(nic_vm, rail) == before
    done = converge(nic_vm, slices(rail))
    # Interrupts of the new queues are there only after they were made, so a check cannot name them.
    assert changed(done) - changed(foreseen) == {f"irq_affinity:{rail.pci}", f"queue_cpus:{rail.pci}:xps"}
    return done


def test_all_of_it_is_in_force_by_the_word_of_other_tools(
    nic_vm: Vm, rail: Slot, first: dict[str, Any], before: dict[str, Any]
) -> None:
    assert first["failures"] == []
    assert before["acs"] == (ACS_DEFAULT, ACS_DEFAULT)
    assert look(nic_vm, rail) == TUNED
    assert nic_vm.must(f"setpci -s {FOREIGN} ECAP_ACS+6.w").strip() == ACS_DEFAULT


def test_a_second_run_changes_nothing_and_takes_no_link_down(
    nic_vm: Vm, rail: Slot, first: dict[str, Any]
) -> None:
    flaps = f"/sys/class/net/{netdev_of(nic_vm, rail)}/carrier_changes"
    count = nic_vm.read(flaps)
    again = converge(nic_vm, slices(rail))
    assert (again["failures"], again["changed"]) == ([], False)
    assert nic_vm.read(flaps) == count


def test_it_is_put_back_after_the_driver_was_bound_anew_and_registers_were_lost(
    nic_vm: Vm, rail: Slot, first: dict[str, Any]
) -> None:
    for bridge in (PORT, ROOT):
        nic_vm.must(f"setpci -s {bridge} ECAP_ACS+6.w={ACS_DEFAULT}")
    nic_vm.must(f"setpci -s {rail.pci} CAP_EXP+8.w=2000:7000")
    driver = nic_vm.must(f"readlink -f /sys/bus/pci/devices/{rail.pci}/driver").strip()
    nic_vm.must(f"echo {rail.pci} > {driver}/unbind && echo {rail.pci} > {driver}/bind")
    there = f"ls /sys/bus/pci/devices/{rail.pci}/net"
    nic_vm.must(f"timeout 120 sh -c 'until {there}; do sleep 0.2; done'")
    nic_vm.must(f"ip link set {netdev_of(nic_vm, rail)} up")
    nic_vm.must(
        f"timeout 120 sh -c 'until grep -qx 1 /sys/class/net/{netdev_of(nic_vm, rail)}/carrier; do sleep 0.2; done'"
    )
    lost = look(nic_vm, rail)
    assert (lost["read"], lost["acs"]) == ("MaxReadReq 512 bytes", (ACS_DEFAULT, ACS_DEFAULT))
    assert lost["channels"] != TUNED["channels"]
    assert converge(nic_vm, slices(rail))["failures"] == []
    assert look(nic_vm, rail) == TUNED


def test_more_channels_than_the_driver_has_are_refused_by_name(nic_vm: Vm, rail: Slot) -> None:
    wish = {"more": [{"kind": "ethtool_channels", "device": nic_vm.layout.rails[1].pci, "combined": 512}]}
    (failure,) = converge(nic_vm, wish)["failures"]
    assert "at most 8 channels combined, asked for 512" in failure["why"]


def test_a_revert_gives_back_what_the_boot_brought(nic_vm: Vm, rail: Slot, before: dict[str, Any]) -> None:
    done = revert(nic_vm, "queues", "pcie", "irq_affinity")
    assert done["failures"] == []
    assert look(nic_vm, rail) == before
    assert not revert(nic_vm, "queues", "pcie", "irq_affinity")["changed"]
