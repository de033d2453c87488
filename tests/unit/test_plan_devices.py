"""What the plan says of registers, ACS, queues and firmware, on recorded machines. Values are the specification's."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover import discover
from railwright.node.model import (
    Acs,
    Bar,
    Facts,
    Finding,
    InputError,
    PciDevice,
    PcieFacts,
    Plan,
    Policy,
    Queues,
    format_cpulist,
    parse_cpulist,
)
from railwright.node.model.software import Software
from railwright.plan import plan
from railwright.plan.irqbalance import script
from tests.machinery import build
from tests.unit.plan_machines import Chassis, cores, with_cores
from tests.unit.state_support import register

MACHINES = Path(__file__).resolve().parents[1] / "machines"
CLEAN, BACKWARDS, SNC, VM = (
    "2s_8xh100_10xcx7",
    "2s_8xh100_10xcx7_backwards",
    "2s_8xh200_8xcx7_snc2",
    "1s_8xh200_8xcx7_vm",
)
RAILS = tuple(f"0000:{bus}:00.0" for bus in ("0c", "2a", "41", "58", "86", "a5", "bd", "d5"))
GPUS = tuple(f"0000:{bus}:00.0" for bus in ("0f", "2d", "44", "5b", "89", "a8", "c0", "d8"))


@cache
def _facts(machine: str) -> Facts:
    with tempfile.TemporaryDirectory() as folder:
        build(MACHINES / machine, Path(folder) / "tree")
        return discover(Path(folder) / "tree")


def facts(machine: str = CLEAN) -> Facts:
    return _facts(machine)


def planned(machine: Facts, **policy: Any) -> Plan:
    return plan(machine, Policy.read({"schema": "railwright.policy/1", **policy}))


def entries(made: Plan, name: str) -> list[dict[str, Any]]:
    return list(made.slices[name].entries) if name in made.slices else []


def found(made: Plan, code: str) -> list[Finding]:
    return [finding for finding in made.findings if finding.code == code]


def above(machine: Facts, addresses: tuple[str, ...]) -> set[str]:
    """Bridges with ACS above these functions, by walking up one by one."""
    devices = {device.address: device for device in machine.pci}
    bridges: set[str] = set()
    for address in addresses:
        bridge = devices.get(devices[address].parent or "")
        while bridge is not None:
            if bridge.acs is not None and bridge.acs.capability:
                bridges.add(bridge.address)
            bridge = devices.get(bridge.parent or "")
    return bridges


@pytest.mark.parametrize("machine", [CLEAN, BACKWARDS, SNC, VM])
def test_nothing_is_written_that_the_policy_does_not_ask_for(machine: str) -> None:
    made = planned(facts(machine))
    assert not {"pcie", "queues", "nic_firmware"} & made.slices.keys()
    kinds = {entry["kind"] for part in made.slices.values() for entry in part.entries}
    assert not any(kind.startswith(("pci_", "ethtool_", "nvconfig", "queue_")) for kind in kinds)


def test_small_read_requests_are_told_and_how_to_have_them_written() -> None:
    (finding,) = found(planned(facts(BACKWARDS)), "pcie.read_request")
    assert finding.where == ", ".join(RAILS)
    assert "512 bytes" in finding.why
    assert "policy.pcie.read_request to 4096" in finding.remedy
    assert not found(planned(facts(CLEAN)), "pcie.read_request")
    assert not found(planned(facts(BACKWARDS), pcie={"read_request": 4096}), "pcie.read_request")


@pytest.mark.parametrize(
    ("size", "value"),
    [(128, "0000"), (256, "1000"), (512, "2000"), (1024, "3000"), (2048, "4000"), (4096, "5000")],
)
def test_read_requests_of_rails_alone_are_set_in_three_bits(size: int, value: str) -> None:
    made = planned(facts(), pcie={"read_request": size})
    assert entries(made, "pcie") == [register(nic, "CAP_EXP", 8, "7000", value) for nic in RAILS]
    assert made.slices["pcie"].stage == "runtime"


@pytest.mark.parametrize(("on", "value"), [(True, "0010"), (False, "0000")])
def test_relaxed_ordering_is_one_bit_beside_them(on: bool, value: str) -> None:
    made = planned(facts(), pcie={"relaxed_ordering": on})
    assert entries(made, "pcie") == [register(nic, "CAP_EXP", 8, "0010", value) for nic in RAILS]


def test_on_bare_metal_redirects_are_cleared_on_path_bridges_and_on_no_other() -> None:
    machine = facts(BACKWARDS)
    made = planned(machine, pcie={"acs": "bare-metal"})
    written = entries(made, "pcie")
    # setpci ECAP_ACS+6.w=0000:001d
    assert {(entry["mask"], entry["value"]) for entry in written} == {("001d", "0000")}
    assert {entry["device"] for entry in written} == above(machine, RAILS + GPUS)
    # The front end's and the NVSwitches' bridges have ACS too, and are left alone.
    assert {"0000:4a:01.0", "0000:e0:01.0"}.isdisjoint(entry["device"] for entry in written)
    assert not found(made, "pcie.acs")


def test_a_bridge_may_be_left_out() -> None:
    made = planned(facts(), pcie={"acs": "bare-metal", "acs_except": ["0000:07:01.0"]})
    assert "0000:07:01.0" not in {entry["device"] for entry in entries(made, "pcie")}


def test_for_guests_the_nics_port_translates_directly_and_all_others_redirect() -> None:
    machine = facts()
    made = planned(machine, pcie={"acs": "virtual"})
    written = {entry["device"]: (entry["mask"], entry["value"]) for entry in entries(made, "pcie")}
    ports = {device.parent for device in machine.pci if device.address in RAILS}
    # 1x111x1 is 101 1101 with bits 5 and 1 left; xx111x1 is 1 1101.
    assert {written[port] for port in ports if port is not None} == {("005d", "005d")}
    assert {value for bridge, value in written.items() if bridge not in ports} == {("001d", "001d")}
    assert found(made, "pcie.acs_ats")


def direct(machine: Facts) -> Facts:
    """The same machine with a function for direct data on a port beside each GPU's."""
    devices = {device.address: device for device in machine.pci}
    more = []
    for number, gpu in enumerate(GPUS):
        switch = devices[devices[gpu].parent or ""].parent
        port = f"0001:{number:02x}:00.0"
        capable = Acs(("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), ())
        more.append(
            PciDevice(port, switch, "0x1000", "0xc030", class_code="0x060400", port="downstream", acs=capable)
        )
        more.append(PciDevice(f"0002:{number:02x}:00.0", port, "0x15b3", "0x2100", class_code="0x080100"))
    return replace(machine, pci=(*machine.pci, *more))


def test_direct_nics_have_bits_of_their_own_on_each_port() -> None:
    machine = direct(facts())
    made = planned(machine, pcie={"acs": "direct-nic"})
    written = {entry["device"]: (entry["mask"], entry["value"]) for entry in entries(made, "pcie")}
    devices = {device.address: device for device in machine.pci}
    # xx110x1 is 1 1001, xx101x1 is 1 0101, xx111x0 is 1 1100; bits 6, 5 and 1 are left.
    assert {written[f"0001:{number:02x}:00.0"] for number in range(8)} == {("001d", "0019")}
    assert {written[devices[gpu].parent or ""] for gpu in GPUS} == {("001d", "0015")}
    assert written["0000:07:01.0"] == ("001d", "001c")


@pytest.mark.parametrize("scenario", ["bare-metal", "virtual"])
def test_one_value_for_all_ports_is_refused_beside_a_direct_nic(scenario: str) -> None:
    made = planned(direct(facts()), pcie={"acs": scenario})
    assert entries(made, "pcie") == []
    assert "cuts it off" in found(made, "pcie.acs")[0].why
    made = planned(facts(), pcie={"acs": "direct-nic"})
    assert "no function for direct data" in found(made, "pcie.acs")[0].why


def test_an_arm_machine_is_handed_to_rdma_topo() -> None:
    machine = replace(facts(), cpus=replace(facts().cpus, arch="aarch64"))
    for policy in ({}, {"acs": "bare-metal"}):
        made = planned(machine, pcie=policy)
        assert entries(made, "pcie") == []
        (finding,) = [one for one in made.findings if one.code.startswith("pcie.acs")]
        assert "rdma_topo check" in finding.remedy


@pytest.mark.parametrize(("virtual", "why"), [("kvm", "this is a guest"), (None, "is not known")])
def test_in_a_guest_no_acs_is_written(virtual: str | None, why: str) -> None:
    machine = replace(facts(), host=replace(facts().host, virtual=virtual))
    made = planned(machine, pcie={"acs": "bare-metal"})
    assert entries(made, "pcie") == []
    assert why in found(made, "pcie.acs")[0].why


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci", "pci-stub"])
def test_below_bridges_of_guests_acs_is_not_cleared(driver: str) -> None:
    machine = facts(BACKWARDS)

    def with_driver(address: str) -> Facts:
        pci = tuple(replace(one, driver=driver) if one.address == address else one for one in machine.pci)
        return replace(machine, pci=pci)

    made = planned(with_driver(GPUS[2]), pcie={"acs": "bare-metal"})
    assert entries(made, "pcie") == []
    (finding,) = found(made, "pcie.acs")
    assert finding.why.startswith(f"nothing is written: {GPUS[2]} belongs to guests")
    assert entries(planned(with_driver(GPUS[2]), pcie={"acs": "virtual"}), "pcie")
    by_kernel = planned(on_disk(with_driver(GPUS[2])), pcie={"acs": "bare-metal", "acs_by": "kernel"})
    assert "kernel" not in by_kernel.slices
    # The front end's card is below none of these bridges.
    assert entries(planned(with_driver("0000:4b:00.0"), pcie={"acs": "bare-metal"}), "pcie")


def test_a_bridge_above_a_rail_alone_that_was_not_readable_is_named() -> None:
    machine = facts()
    port = next(device.parent for device in machine.pci if device.address == RAILS[0])
    pci = tuple(replace(one, acs=None) if one.address == port else one for one in machine.pci)
    made = planned(replace(machine, pci=pci), pcie={"acs": "bare-metal"})
    assert entries(made, "pcie") == []
    assert f"configuration space of {port} was not readable" in found(made, "pcie.acs")[0].why


def test_a_virtual_function_that_the_policy_calls_a_rail_gets_no_register() -> None:
    machine = facts()
    nics = tuple(
        replace(nic, physical_function="0000:0c:00.7") if nic.address == RAILS[0] else nic
        for nic in machine.nics
    )
    made = planned(
        replace(machine, nics=nics), nics=[{"match": RAILS[0], "role": "rail"}], pcie={"read_request": 4096}
    )
    assert [entry["device"] for entry in entries(made, "pcie")] == list(RAILS[1:])


def test_a_locked_down_kernel_gets_no_entries_and_a_finding() -> None:
    machine = replace(facts(), pcie=replace(facts().pcie, lockdown="integrity"))
    made = planned(machine, pcie={"read_request": 4096})
    assert entries(made, "pcie") == []
    assert "locked down (integrity)" in found(made, "pcie.lockdown")[0].why


def on_disk(machine: Facts) -> Facts:
    return replace(machine, software=Software(boot_loader="grub"))


def test_the_kernel_is_told_of_every_bridge_in_one_word() -> None:
    machine = on_disk(facts(BACKWARDS))
    made = planned(machine, pcie={"acs": "bare-metal", "acs_by": "kernel"})
    assert entries(made, "pcie") == []
    (entry,) = entries(made, "kernel")
    assert (entry["kind"], entry["name"], entry["reboot"]) == ("boot_arguments", "acs", True)
    (word,) = entry["arguments"]
    assert word.startswith("pci=config_acs=xx000x0@0000:07:01.0;xx000x0@0000:09:00.0;")
    assert {part.partition("@")[2] for part in word[len("pci=config_acs=") :].split(";")} == above(
        machine, RAILS + GPUS
    )
    (finding,) = found(made, "pcie.acs")
    assert finding.where == "0000:40:00.0, 0000:bc:00.0"
    assert "at the next boot" in finding.why


def test_after_the_boot_it_is_the_redirect_bits_that_are_judged() -> None:
    machine = on_disk(facts(BACKWARDS))
    told = replace(machine, host=replace(machine.host, cmdline="ro pci=config_acs=xx000x0@0000:07:01.0"))
    policy = {"acs": "bare-metal", "acs_by": "kernel"}
    (finding,) = found(planned(told, pcie=policy), "pcie.acs")
    assert finding.severity == "error"
    assert "first entry only" in finding.remedy
    # As after pci=disable_acs_redir: source validation alone is left, and nothing is redirected.
    mild = tuple(
        replace(device, acs=replace(device.acs, control=("SrcValid",)))
        if device.acs is not None and device.acs.control
        else device
        for device in told.pci
    )
    assert not found(planned(replace(told, pci=mild), pcie=policy), "pcie.acs")


def test_without_a_boot_loader_that_is_known_the_word_is_given_to_a_person() -> None:
    made = planned(facts(BACKWARDS), pcie={"acs": "bare-metal", "acs_by": "kernel"})
    assert "kernel" not in made.slices
    assert "pci=config_acs=xx000x0@" in found(made, "pcie.boot_loader")[0].why


def test_a_gpu_whose_memory_has_no_place_and_one_with_less_than_its_peers_are_named() -> None:
    machine = facts()
    functions = list(machine.pcie.functions)
    for index, function in enumerate(functions):
        if function.address == GPUS[0]:
            functions[index] = replace(function, bars=(Bar(0, 1 << 24, True), Bar(1, 1 << 37, False)))
        elif function.address == GPUS[1]:
            functions[index] = replace(function, bars=(Bar(0, 1 << 24, True), Bar(1, 1 << 28, True)))
    made = planned(replace(machine, pcie=PcieFacts(tuple(functions))))
    told = {finding.where: (finding.severity, finding.why) for finding in found(made, "pcie.bar")}
    assert told[GPUS[0]][0] == "error"
    assert "128 GiB" in told[GPUS[0]][1]
    assert told[GPUS[1]] == ("warning", "this GPU shows 256 MiB of its memory, others of its kind 128 GiB")


def test_gpus_whose_window_the_kernel_forgot_are_named_though_all_are_alike() -> None:
    """BAR1 is 0M: start, end and flags of it are 0, and the windows of the registers are left."""
    machine = facts()
    functions = tuple(
        replace(one, bars=(Bar(0, 1 << 24, True), Bar(3, 1 << 25, True))) if one.address in GPUS else one
        for one in machine.pcie.functions
    )
    told = found(planned(replace(machine, pcie=PcieFacts(functions))), "pcie.bar")
    assert [(finding.severity, finding.where) for finding in told] == [("error", gpu) for gpu in GPUS]
    assert "largest window is 32 MiB" in told[0].why


def test_translated_addresses_few_tags_and_a_slow_link_are_told() -> None:
    assert found(planned(facts(BACKWARDS)), "pcie.iommu")[0].where.startswith(GPUS[0])
    assert not found(planned(facts()), "pcie.iommu")
    machine = facts()
    functions = tuple(replace(one, ten_bit_tags=False) for one in machine.pcie.functions)
    (finding,) = found(planned(replace(machine, pcie=PcieFacts(functions))), "pcie.tags")
    assert (finding.severity, finding.where) == ("info", ", ".join(RAILS))

    def at(speed: float) -> list[Finding]:
        pci = tuple(
            replace(one, link=replace(one.link, speed=speed)) if one.address == RAILS[0] else one
            for one in machine.pci
        )
        return found(planned(replace(machine, pci=pci)), "pcie.link_speed")

    assert [finding.where for finding in at(16.0)] == [RAILS[0]]
    assert at(2.5) == at(32.0) == []  # an idle link is no fault


def test_an_iommu_that_is_off_is_told_on_a_machine_with_more_cpus_than_interrupts_reach() -> None:
    off = replace(facts(), host=replace(facts().host, iommu=False))
    assert not found(planned(off), "pcie.iommu")  # 224 CPUs
    cores = off.cpus.cores + tuple(
        replace(core, cpus=tuple(cpu + 1000 for cpu in core.cpus), numa=None) for core in off.cpus.cores[:20]
    )
    many = replace(off, cpus=replace(off.cpus, cores=cores, allowed=None))
    assert "264 CPUs" in found(planned(many), "pcie.iommu")[0].why


def test_a_board_with_another_firmware_than_is_allowed_is_named() -> None:
    versions = {"MT_0000000838": ["28.40.1000", "28.41.1000"]}
    (finding,) = found(planned(facts(), nic_firmware={"versions": versions}), "nic_firmware.version")
    assert finding.severity == "warning"
    assert "mlx5_0 has 28.39.1002" in finding.why
    assert "allowed: 28.40.1000, 28.41.1000" in finding.why
    by_id = {"versions": {"15b3:1021": ["28.39.1002"]}}
    assert not found(planned(facts(), nic_firmware=by_id), "nic_firmware.version")
    # The front end's card is of another board: nobody's list, so not judged.
    assert "mlx5_3" not in finding.where.split(", ")


def test_rails_of_one_board_with_two_firmwares_are_named() -> None:
    machine = facts()
    nics = tuple(
        replace(nic, firmware="28.40.1000") if nic.address == RAILS[2] else nic for nic in machine.nics
    )
    (finding,) = found(planned(replace(machine, nics=nics)), "nic_firmware.mixed")
    assert "28.39.1002, 28.40.1000" in finding.why


def test_firmware_is_looked_at_and_written_only_where_the_policy_says_so() -> None:
    wish = {"settings": {"CNP_DSCP_P1": "48", "ATS_ENABLED": "0"}}
    looked = planned(facts(), nic_firmware=wish)
    assert "nic_firmware" not in looked.slices
    assert looked.network.nic_firmware == wish["settings"]
    made = planned(facts(), nic_firmware={**wish, "write": True})
    assert made.slices["nic_firmware"].stage == "persistent"
    assert entries(made, "nic_firmware") == [
        {
            "kind": "nvconfig",
            "device": rail,
            "settings": {"ATS_ENABLED": "0", "CNP_DSCP_P1": "48"},
            "reset": True,
            "reboot": True,
        }
        for rail in RAILS
    ]


def test_a_rail_that_carries_the_way_out_is_not_to_be_reset() -> None:
    machine = facts()
    nics = tuple(replace(nic, default_route=nic.address == RAILS[0]) for nic in machine.nics)
    named = [{"match": RAILS[0], "role": "rail"}]
    made = planned(
        replace(machine, nics=nics),
        nics=named,
        nic_firmware={"settings": {"CNP_DSCP_P1": "48"}, "write": True},
    )
    assert [entry["reset"] for entry in entries(made, "nic_firmware")] == [False] + [True] * 7


def test_cards_of_another_vendor_and_dpus_get_no_nvconfig() -> None:
    machine = facts()
    pci = tuple(
        replace(one, vendor="0x14e4", device="0x1760") if one.address in RAILS[:4] else one
        for one in machine.pci
    )
    nics = tuple(replace(nic, bluefield="dpu") if nic.address in RAILS[4:6] else nic for nic in machine.nics)
    policy = {"settings": {"CNP_DSCP_P1": "48"}, "write": True}
    made = planned(replace(machine, pci=pci, nics=nics), nic_firmware=policy)
    assert {entry["device"] for entry in entries(made, "nic_firmware")} <= set(RAILS[6:])
    assert found(made, "nic_firmware.vendor")


def with_queues(machine: Facts, **values: Any) -> Facts:
    told = {
        "combined": 56,
        "most_combined": 56,
        "rx_ring": 1024,
        "most_rx_ring": 8192,
        "tx_ring": 1024,
        **values,
    }
    netdevs = [nic.netdev for nic in machine.nics if nic.address in RAILS]
    return replace(machine, queues=tuple(Queues(netdev or "", **told) for netdev in netdevs))


def test_queues_are_set_in_the_drivers_order_for_all_rails() -> None:
    wish = {
        "channels": 8,
        "rx_ring": 8192,
        "tx_ring": 8192,
        "adaptive_rx": False,
        "rx_usecs": 8,
        "rps": False,
    }
    made = planned(with_queues(facts()), queues=wish)
    kinds = [entry["kind"] for entry in entries(made, "queues")]
    assert kinds == (
        ["ethtool_channels"] * 8 + ["ethtool_rings"] * 8 + ["ethtool_coalesce"] * 8 + ["queue_cpus"] * 8
    )
    assert entries(made, "queues")[0] == {"kind": "ethtool_channels", "device": RAILS[0], "combined": 8}
    assert entries(made, "queues")[8] == {"kind": "ethtool_rings", "device": RAILS[0], "rx": 8192, "tx": 8192}
    assert entries(made, "queues")[16] == {
        "kind": "ethtool_coalesce",
        "device": RAILS[0],
        "adaptive_rx": 0,
        "rx_usecs": 8,
    }


def test_what_a_driver_allows_bounds_what_is_asked() -> None:
    machine = with_queues(facts(), most_combined=4, most_rx_ring=2048)
    made = planned(machine, queues={"channels": 8, "rx_ring": 8192})
    assert entries(made, "queues")[0]["combined"] == 4
    assert entries(made, "queues")[8]["rx"] == 2048
    assert "channels 4 of 8" in found(made, "queues.bounded")[0].why


def test_many_channels_are_told_and_how_to_have_fewer() -> None:
    (finding,) = found(planned(with_queues(facts())), "queues.channels")
    assert (finding.severity, "has 56 channels" in finding.why) == ("info", True)
    assert not found(planned(with_queues(facts(), combined=8)), "queues.channels")


def test_transmit_queues_follow_the_interrupts() -> None:
    made = planned(facts(), queues={"xps": True})
    written = entries(made, "irq_affinity")
    cpus = {entry["device"]: entry["cpus"] for entry in written if entry["kind"] == "irq_affinity"}
    steering = {entry["device"]: entry["cpus"] for entry in written if entry["kind"] == "queue_cpus"}
    assert steering == cpus
    assert [entry["kind"] for entry in written] == ["irq_affinity"] * 8 + ["queue_cpus"] * 8


@pytest.mark.parametrize(("nodes", "each"), [(8, 32), (4, 64), (2, 128)])
def test_interrupts_and_transmit_queues_of_512_cpus_stay_on_their_node_and_on_what_is_online(
    nodes: int, each: int
) -> None:
    """Four, two and one NUMA node a socket (NPS4, SNC2); one core of each node is offline."""
    chassis = Chassis()
    for number in range(8):
        switch = chassis.switch(number * nodes // 8)
        chassis.gpu(switch)
        chassis.nic(switch, f"mlx5_{number}", link_layer="Ethernet", netdev=f"enp{number}s0np0")
    cpus, numa = cores(2, nodes, each)
    # Core n has the CPUs n and n + 256.
    gone = {cpu for node in range(nodes) for cpu in (node * each + 5, node * each + 5 + 256)}
    offline = format_cpulist(sorted(gone))
    online = format_cpulist([cpu for cpu in range(512) if cpu not in gone])
    machine = with_cores(chassis.facts(), replace(cpus, offline=offline, online=online, allowed=online), numa)
    made = planned(machine, queues={"xps": True})
    written = entries(made, "irq_affinity")
    place = {nic.address: nic.numa for nic in machine.nics}
    assert [entry["kind"] for entry in written] == ["irq_affinity"] * 8 + ["queue_cpus"] * 8
    used: list[int] = []
    for entry in written[:8]:
        given = parse_cpulist(entry["cpus"], "cpus")
        used += given
        first = (place[entry["device"]] or 0) * each
        assert all(first <= cpu % 256 < first + each and cpu not in gone for cpu in given)
        steered = [other["cpus"] for other in written[8:] if other["device"] == entry["device"]]
        assert steered == [entry["cpus"]]
    assert len(used) == len(set(used))


def test_a_port_that_two_functions_serve_has_each_ones_vectors_on_its_own_node() -> None:
    machine = facts()
    other = RAILS[7]  # of the other socket
    nics = tuple(
        replace(nic, functions=(RAILS[0], other)) if nic.address == RAILS[0] else nic
        for nic in machine.nics
        if nic.address != other
    )
    made = planned(replace(machine, nics=nics))
    cpus = {entry["device"]: entry["cpus"] for entry in entries(made, "irq_affinity")}
    node = {device.address: device.numa for device in machine.pci}
    cores = {cpu: core.numa for core in machine.cpus.cores for cpu in core.cpus}
    assert node[other] == 1
    for address in (RAILS[0], other):
        assert {cores[cpu] for cpu in parse_cpulist(cpus[address], "cpus")} == {node[address]}


def test_irqbalance_is_told_of_the_rails_by_a_script_that_bans_no_other(tmp_path: Path) -> None:
    made = planned(facts(), queues={"irqbalance": "leave-rails"})
    policy, drop_in, unit = entries(made, "irq_affinity")[-3:]
    assert unit == {
        "kind": "systemd_unit",
        "name": "irqbalance.service",
        "restart_if_older_than": [policy["path"], drop_in["path"]],
    }
    assert (
        "ExecStart=\nExecStart=/usr/sbin/irqbalance --foreground $OPTIONS $IRQBALANCE_ARGS --policyscript="
        in drop_in["content"]
    )
    place = tmp_path / "policy"
    place.write_text(policy["content"])
    place.chmod(0o755)

    def ban(device: str) -> str:
        argv = [str(place), f"/sys/bus/pci/devices/{device}", "77"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert {ban(rail) for rail in RAILS} == {"ban=true\n"}
    assert ban("0000:4b:00.0") == ban("0000:0c:00.1") == ""
    assert policy["content"] == script(RAILS)


def test_functions_that_manage_nvswitches_are_in_no_entry_whatever_the_policy_asks() -> None:
    machine = facts()
    barred = RAILS[3]
    nics = tuple(
        replace(nic, management=True, link_layer="InfiniBand") if nic.address == barred else nic
        for nic in machine.nics
    )
    made = planned(
        replace(with_queues(machine), nics=nics),
        pcie={"read_request": 4096, "relaxed_ordering": True},
        queues={"channels": 8, "xps": True, "irqbalance": "leave-rails"},
        nic_firmware={"settings": {"CNP_DSCP_P1": "48"}, "write": True},
    )
    for name in ("pcie", "queues", "nic_firmware", "irq_affinity"):
        assert entries(made, name)
        assert barred not in str(entries(made, name))


def test_a_machine_without_a_nic_plans_none_of_it() -> None:
    machine = replace(facts(), nics=())
    made = planned(
        machine,
        pcie={"read_request": 4096},
        queues={"channels": 8, "irqbalance": "leave-rails"},
        nic_firmware={"settings": {"CNP_DSCP_P1": "48"}, "write": True},
    )
    assert made.status == "planned"
    assert not {"pcie", "queues", "nic_firmware", "irq_affinity"} & made.slices.keys()


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        ({"pcie": {"acs": "off"}}, "policy.pcie.acs"),
        ({"pcie": {"acs_by": "bios"}}, "policy.pcie.acs_by"),
        ({"pcie": {"acs_by": "kernel"}}, "policy.pcie.acs_by"),
        ({"pcie": {"read_request": 4000}}, "policy.pcie.read_request"),
        ({"pcie": {"acs_except": ["7:1.0"]}}, "policy.pcie.acs_except[0]"),
        ({"queues": {"channels": 0}}, "policy.queues.channels"),
        ({"queues": {"rx_ring": 1 << 20}}, "policy.queues.rx_ring"),
        ({"queues": {"rps": True}}, "policy.queues.rps"),
        ({"queues": {"adaptive_rx": True, "rx_usecs": 8}}, "policy.queues.rx_usecs"),
        ({"queues": {"adaptive_tx": True, "tx_usecs": 8}}, "policy.queues.tx_usecs"),
        ({"queues": {"irqbalance": "off"}}, "policy.queues.irqbalance"),
        ({"nic_firmware": {"settings": {"cnp": "1"}}}, "policy.nic_firmware.settings.cnp"),
        ({"nic_firmware": {"write": True}}, "policy.nic_firmware.write"),
        ({"nic_firmware": {"versions": {"x": ["latest"]}}}, "policy.nic_firmware.versions.x[0]"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_its_place(policy: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as error:
        planned(facts(), **policy)
    assert error.value.where == where
