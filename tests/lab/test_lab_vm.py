"""The virtual machine is what its layout says: numactl, lscpu, lspci, lstopo and the kernel in the guest judge it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from xml.etree.ElementTree import Element

import pytest
from defusedxml import ElementTree

from tests.lab.errors import LabError
from tests.lab.vm import saved
from tests.lab.vm.layout import Layout, Slot, layout
from tests.lab.vm.machine import Vm

GPU, RAIL_NIC, FRONT_NIC, FRONT_VF = "10de:2330", "15b3:1021", "8086:10c9", "8086:10ca"
STAND_IN = "1234:11e8"
# The front end's NIC at work: a vector each of its queues has, beside the one that tells of the link.
QUEUE = "-TxRx-"


@pytest.fixture(scope="module")
def vm(vm_ready: None) -> Iterator[Vm]:
    machine = saved.up(f"v{os.getpid()}", layout("two-nodes"))
    try:
        yield machine
    finally:
        machine.down()


def functions(vm: Vm) -> dict[str, str]:
    """Vendor and device of each PCI function, by its address, as lspci has them."""
    lines = (line.split() for line in vm.must("lspci -Dn").splitlines())
    return {words[0]: words[2] for words in lines}


def numa_nodes(vm: Vm) -> tuple[dict[int, list[int]], list[list[int]]]:
    """What numactl says: the CPUs of each node, and the distances between them."""
    cpus, distances = {}, []
    for line in vm.must("numactl --hardware").splitlines():
        words = line.split()
        if words[2:3] == ["cpus:"]:
            cpus[int(words[1])] = [int(word) for word in words[3:]]
        elif words and words[0].rstrip(":").isdigit():
            distances.append([int(word) for word in words[1:]])
    return cpus, distances


def agrees(vm: Vm) -> None:
    """numactl, lscpu, lspci and the kernel's own words are what the layout says."""
    shape = vm.layout
    cpus, distances = numa_nodes(vm)
    assert cpus == {node: list(shape.cpus_of(node)) for node in range(shape.nodes)}
    every = range(shape.nodes)
    assert distances == [[shape.distance(one, other) for other in every] for one in every]
    assert cores(vm) == expected_cores(shape)
    found = functions(vm)
    for slots, identity in ((shape.gpus, GPU), (shape.rails, RAIL_NIC), ((shape.front,), FRONT_NIC)):
        assert {slot.pci for slot in slots} == {pci for pci, known in found.items() if known == identity}
    for slot in (*shape.gpus, *shape.rails, shape.front):
        local = shape.cpus_of(slot.node)
        where = f"/sys/bus/pci/devices/{slot.pci}"
        assert vm.must(f"cat {where}/numa_node {where}/local_cpulist").split() == [
            str(slot.node),
            f"{local[0]}-{local[-1]}",
        ]


def cores(vm: Vm) -> list[tuple[int, ...]]:
    """CPU, core, socket of each CPU, as lscpu has them."""
    lines = vm.must("lscpu --parse=CPU,CORE,SOCKET").splitlines()
    return [tuple(int(word) for word in line.split(",")) for line in lines if not line.startswith("#")]


def expected_cores(shape: Layout) -> list[tuple[int, ...]]:
    of_a_socket = shape.cores * shape.threads
    return [(cpu, cpu // shape.threads, cpu // of_a_socket) for cpu in range(shape.cpus)]


def lstopo(vm: Vm) -> Element:
    """hwloc's view of the machine."""
    tree: Element = ElementTree.fromstring(vm.must("lstopo-no-graphics --whole-io --of xml"))
    return tree


def near_cpus(tree: Element, pci: str) -> set[int]:
    """The CPUs that hwloc draws a PCI device beside: those of the smallest object around it that has any."""
    around = [
        one
        for one in tree.iter("object")
        if one.get("cpuset") and any(device.get("pci_busid") == pci for device in one.iter("object"))
    ]
    mask = int(around[-1].attrib["cpuset"], 16)
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}


def below(tree: Element, pci: str) -> set[str]:
    """The PCI devices that lstopo draws below a bridge, bridges left out."""
    bridge = next(one for one in tree.iter("object") if one.get("pci_busid") == pci)
    return {
        one.attrib["pci_busid"]
        for one in bridge.iter("object")
        if one.get("type") == "PCIDev" and one is not bridge
    }


def test_numactl_lscpu_lspci_and_the_kernel_agree_with_the_layout(vm: Vm) -> None:
    agrees(vm)


def test_lstopo_draws_a_gpu_and_its_rails_nic_under_one_switch_on_their_node(vm: Vm) -> None:
    tree = lstopo(vm)
    for gpu, rail in zip(vm.layout.gpus, vm.layout.rails, strict=True):
        assert gpu.switch is not None
        assert below(tree, gpu.switch) == {gpu.pci, rail.pci}
        assert near_cpus(tree, gpu.pci) == near_cpus(tree, rail.pci) == set(vm.layout.cpus_of(gpu.node))


def test_a_rails_nic_has_its_rdma_device_and_dcb(vm: Vm) -> None:
    for rail in vm.layout.rails:
        devices = vm.must(f"ls /sys/bus/pci/devices/{rail.pci}/infiniband").split()
        assert devices == [f"mlx5_{rail.number}"]
        netdev = netdev_of(vm, rail)
        assert "prio-pfc" in vm.must(f"dcb pfc show dev {netdev}")


def test_virtual_functions_appear_and_go(vm: Vm) -> None:
    path = f"/sys/bus/pci/devices/{vm.layout.front.pci}/sriov_numvfs"
    assert FRONT_VF not in functions(vm).values()
    vm.must(f"echo 2 > {path}")
    assert list(functions(vm).values()).count(FRONT_VF) == 2
    virtual = [pci for pci, known in functions(vm).items() if known == FRONT_VF]
    front = vm.layout.front
    for pci in virtual:
        assert vm.must(f"readlink -f /sys/bus/pci/devices/{pci}/physfn").strip().endswith(front.pci)
        assert vm.read(f"/sys/bus/pci/devices/{pci}/numa_node") == str(front.node)
    vm.must(f"echo 0 > {path}")
    assert FRONT_VF not in functions(vm).values()


def test_an_interrupt_goes_where_it_is_told_and_nowhere_that_is_absent(vm: Vm) -> None:
    queues = vm.must(f"grep -e {netdev_of(vm, vm.layout.front)}{QUEUE} /proc/interrupts").splitlines()
    assert len(queues) == vm.layout.cpus
    there = f"/proc/irq/{queues[0].split(':')[0].strip()}"
    for cpu in (vm.layout.cpus_of(0)[1], vm.layout.cpus_of(1)[-1]):
        vm.must(f"echo {cpu} > {there}/smp_affinity_list")
        assert vm.read(f"{there}/smp_affinity_list") == str(cpu)
        # The kernel moves it when it comes next; igb has each of its queues raise one every two seconds.
        served = f"until grep -qx {cpu} {there}/effective_affinity_list; do sleep 0.2; done"
        vm.must(f"timeout 300 sh -c '{served}'")
    absent = vm.ssh(f"/bin/echo {vm.layout.cpus} > {there}/smp_affinity_list")
    assert absent.returncode != 0
    assert "Numerical result out of range" in absent.stderr
    assert vm.read(f"{there}/effective_affinity_list") == str(vm.layout.cpus_of(1)[-1])


def test_a_resumed_machine_has_todays_time(vm: Vm) -> None:
    """To the minute, on however busy a machine."""
    assert abs(float(vm.must("date +%s")) - time.time()) < 60


def test_a_device_is_plugged_in_and_out_while_it_runs(vm: Vm) -> None:
    spare = vm.layout.spare[0].pci
    seen = f"timeout 300 sh -c 'until [ -e /sys/bus/pci/devices/{spare} ]; do sleep 0.2; done'"
    vm.qmp("device_add", driver="edu", bus="spareslot00", id="extra")
    vm.must(seen)
    assert functions(vm)[spare] == STAND_IN
    vm.qmp("device_del", id="extra")
    vm.must(seen.replace("until", "while"))
    with pytest.raises(LabError, match="Device 'another' not found"):
        vm.qmp("device_del", id="another")


def test_a_power_button_switches_it_off(vm: Vm) -> None:
    vm.halt()
    assert not vm.alive


def netdev_of(vm: Vm, slot: Slot) -> str:
    return vm.must(f"ls /sys/bus/pci/devices/{slot.pci}/net").strip()
