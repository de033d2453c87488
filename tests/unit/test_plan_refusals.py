"""What is refused or found, which device it names and what it says to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.model import (
    Acs,
    Claim,
    Conflict,
    Facts,
    Finding,
    Gpu,
    Link,
    Nic,
    NumaNode,
    NvLink,
    Path,
    Plan,
    Policy,
    Witness,
)
from railwright.node.model.facts import SCHEMA
from railwright.plan import plan
from tests.unit.plan_machines import Chassis, hgx


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


def _matrix(levels: Sequence[Sequence[str]], **more: Any) -> Facts:
    """GPU rows, NIC columns."""
    gpus = tuple(Gpu(f"GPU{index}", index) for index in range(len(levels)))
    nics = tuple(Nic(f"NIC{index}", rdma=f"mlx5_{index}") for index in range(len(levels[0])))
    paths = tuple(
        Path(gpu.name, nic.name, level)
        for gpu, row in zip(gpus, levels, strict=True)
        for nic, level in zip(nics, row, strict=True)
    )
    known = {
        "schema": SCHEMA,
        "witnesses": (Witness("nvidia-smi", "topo"),),
        "gpus": gpus,
        "nics": nics,
        "paths": paths,
    }
    return Facts(**{**known, **more})


def _only(findings: Sequence[Finding], code: str) -> Finding:
    (found,) = [finding for finding in findings if finding.code == code]
    return found


def _refusal(result: Plan) -> Finding:
    assert result.status == "refused"
    assert not result.slices
    assert not result.ranks
    (refusal,) = result.refusals
    assert refusal.remedy
    return refusal


def test_a_machine_without_a_gpu_is_refused() -> None:
    chassis = Chassis()
    chassis.nic(0, "mlx5_0")
    assert _refusal(plan(chassis.facts(), Policy())).code == "gpus.none"


def test_a_missing_gpu_is_refused_by_the_place_where_it_should_be() -> None:
    chassis = hgx(4)
    chassis.parts.remove([part for part in chassis.parts if part.kind == "gpu"][1])
    refusal = _refusal(plan(chassis.facts(), _policy(expect={"gpus": 4})))
    assert refusal.code == "expect.gpus"
    assert refusal.where == "beside mlx5_1"
    assert refusal.why.startswith("3 of 4 GPUs are visible: GPU0 0000:")
    assert "reseat" in refusal.remedy


def test_a_missing_gpu_is_refused_by_the_gap_between_slots() -> None:
    chassis = Chassis()
    for slot in ("1", "2", "4"):
        chassis.gpu(0, slot=slot)
    chassis.nic(0, "mlx5_0")
    assert _refusal(plan(chassis.facts(), _policy(expect={"gpus": 4}))).where == "slot 3"


def test_a_gap_between_slots_is_found_where_nobody_said_how_many_gpus_there_are() -> None:
    chassis = Chassis()
    for slot in ("1", "2", "4"):
        chassis.gpu(0, slot=slot)
    chassis.nic(0, "mlx5_0")
    gap = _only(plan(chassis.facts(), Policy()).findings, "gpus.gap")
    assert (gap.severity, gap.where) == ("warning", "slot 3")
    said = plan(chassis.facts(), _policy(expect={"gpus": 3}))
    assert "gpus.gap" not in [finding.code for finding in said.findings]


def test_slots_that_not_all_gpus_have_say_nothing() -> None:
    chassis = Chassis()
    for slot in ("1", None, "4"):
        chassis.gpu(0, slot=slot)
    chassis.nic(0, "mlx5_0")
    assert "gpus.gap" not in [finding.code for finding in plan(chassis.facts(), Policy()).findings]


def test_a_nic_that_sits_like_a_rail_without_a_gpu_is_found() -> None:
    chassis = hgx(4, storage=0)
    chassis.parts.remove([part for part in chassis.parts if part.kind == "gpu"][1])
    gap = _only(plan(chassis.facts(), Policy()).findings, "gpus.gap")
    assert (gap.severity, gap.where) == ("info", "beside mlx5_1")


def test_missing_rails_are_refused_by_name() -> None:
    facts = hgx(4).facts()
    facts = replace(
        facts, nics=tuple(replace(nic, state="down") if nic.name == "mlx5_2" else nic for nic in facts.nics)
    )
    refusal = _refusal(plan(facts, _policy(expect={"gpus": 4, "rails": 4})))
    assert (refusal.code, refusal.where) == ("expect.rails", "mlx5_2")
    assert (
        refusal.why
        == "3 of 4 rail NICs are usable: mlx5_0, mlx5_1, mlx5_3; not up: mlx5_2 (its link is down)"
    )


def test_rails_that_are_not_there_at_all_are_refused() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    refusal = _refusal(plan(chassis.facts(), _policy(expect={"rails": 1})))
    assert (refusal.code, refusal.where) == ("expect.rails", "nics")


def test_a_nic_that_the_policy_names_and_that_is_gone_is_refused() -> None:
    refusal = _refusal(plan(hgx(2).facts(), _policy(nics=[{"match": "mlx5_99", "role": "rail"}])))
    assert (refusal.code, refusal.where) == ("policy.nics", "mlx5_99")
    assert "NICs seen: mlx5_0, mlx5_1, mlx5_2" in refusal.remedy


def test_two_devices_with_one_address_are_refused() -> None:
    facts = hgx(2).facts()
    gpus = (facts.gpus[0], replace(facts.gpus[1], address=facts.gpus[0].address))
    refusal = _refusal(plan(replace(facts, gpus=gpus), Policy()))
    assert (refusal.code, refusal.where) == ("pci.twice", facts.gpus[0].address)


def test_two_rdma_devices_at_one_address_are_refused_and_two_ports_of_one_are_not() -> None:
    facts = hgx(2, storage=0).facts()
    first, second = facts.nics
    clash = plan(replace(facts, nics=(first, replace(second, address=first.address))), Policy())
    refusal = _refusal(clash)
    assert refusal.why == "2 devices have this PCI address: mlx5_0, mlx5_1"
    twin = replace(first, name="mlx5_0:2", port=2)
    assert plan(replace(facts, nics=(first, twin, second)), Policy()).status == "planned"
    # A port's netdev without an RDMA device of its own is no second device.
    bare = replace(first, name="ens9", rdma=None, netdev="ens9")
    assert plan(replace(facts, nics=(first, bare, second)), Policy()).status == "planned"


def test_two_bridges_at_one_address_are_refused() -> None:
    facts = hgx(1, storage=0).facts()
    refusal = _refusal(plan(replace(facts, pci=(facts.pci[0], *facts.pci)), Policy()))
    assert refusal.why == "2 devices have this PCI address: bridges"


@pytest.mark.parametrize("where", ["pci[0000:18:00.0].parent", "gpus[GPU0].numa", "GPU0-NIC1", "GPU0-GPU1"])
def test_witnesses_that_contradict_each_other_about_a_place_are_refused(where: str) -> None:
    claims = (Claim("row GPU0", "PIX"), Claim("row NIC1", "NODE"))
    facts = _matrix([["PIX", "NODE"], ["NODE", "PIX"]], conflicts=(Conflict(where, claims),))
    refusal = _refusal(plan(facts, Policy()))
    assert (refusal.code, refusal.where) == ("facts.conflict", where)
    assert refusal.why == "witnesses contradict each other: row GPU0 says PIX; row NIC1 says NODE"


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("gpus[GPU0].uuid", ("GPU-a", "GPU-b")),
        ("GPU0-GPU1", ("NV4", "NV2")),
        ("CPUs of NUMA node 0", ("0", "1")),
    ],
)
def test_other_contradictions_are_findings(where: str, values: tuple[str, str]) -> None:
    conflict = Conflict(where, tuple(Claim(f"w{n}", value) for n, value in enumerate(values)))
    result = plan(_matrix([["PIX", "NODE"], ["NODE", "PIX"]], conflicts=(conflict,)), Policy())
    assert result.status == "planned"
    assert _only(result.findings, "facts.conflict").severity == "warning"


def test_a_flat_matrix_is_refused_and_names_the_way_out() -> None:
    refusal = _refusal(plan(_matrix([["PHB"] * 8] * 8), Policy()))
    assert refusal.code == "topology.hidden"
    assert "pxb-pcie" in refusal.remedy
    assert "policy.nics" in refusal.remedy


@pytest.mark.parametrize(
    "levels",
    [
        [["PHB"]],
        [["PHB"]] * 4,
        [["PHB", "PHB"]],
        [["NODE", "NODE", "SYS"], ["SYS", "SYS", "NODE"]],
        [["PHB", "SYS"], ["SYS", "PHB"]],
    ],
)
def test_a_matrix_that_leaves_no_choice_or_shows_sockets_is_planned(levels: list[list[str]]) -> None:
    result = plan(_matrix(levels), Policy())
    assert result.status == "planned"
    assert all(gpu.nics for gpu in result.gpus)
    assert result.bound.optimal is None
    assert result.bound.achieved_gbytes is None


def test_a_flat_machine_is_refused_as_virtual_and_planned_as_bare_metal() -> None:
    chassis = Chassis()
    for index in range(2):
        chassis.gpu(0)
        chassis.nic(0, f"mlx5_{index}")
    facts = chassis.facts()
    assert plan(facts, Policy()).status == "planned"
    virtual = replace(facts, host=replace(facts.host, virtual="kvm"))
    assert _refusal(plan(virtual, Policy())).code == "topology.hidden"
    container = replace(facts, host=replace(facts.host, virtual="container"))
    assert plan(container, Policy()).status == "planned"


def test_a_virtual_machine_that_shows_switches_is_planned() -> None:
    assert plan(hgx(4, virtual="kvm").facts(), Policy()).status == "planned"


def test_a_flat_machine_whose_rails_the_policy_numbers_is_planned_by_those_numbers() -> None:
    facts = _matrix([["PHB"] * 3] * 3)
    nics = [{"match": f"NIC{index}", "role": "rail", "rail": 2 - index} for index in range(3)]
    result = plan(facts, _policy(nics=nics))
    assert [gpu.nics for gpu in result.gpus] == [("NIC2",), ("NIC1",), ("NIC0",)]
    assert [gpu.rail for gpu in result.gpus] == [0, 1, 2]
    assert result.nccl["NCCL_IB_HCA"] == "=mlx5_2,mlx5_1,mlx5_0"


def test_devices_whose_place_is_hidden_are_refused_by_name() -> None:
    facts = hgx(2, storage=0).facts()
    hidden = tuple(
        replace(device, parent=None) if device.address == facts.gpus[1].address else device
        for device in facts.pci
    )
    refusal = _refusal(plan(replace(facts, pci=hidden), Policy()))
    assert (refusal.code, refusal.where) == ("topology.hidden", "GPU1")


def test_devices_whose_place_is_hidden_pair_by_the_policys_numbers() -> None:
    facts = replace(hgx(4, storage=0).facts(), pci=())
    nics = [{"match": f"mlx5_{index}", "rail": index // 2} for index in range(4)]
    result = plan(facts, _policy(nics=nics))
    assert [gpu.nics for gpu in result.gpus] == [("mlx5_0", "mlx5_1")] * 2 + [("mlx5_2", "mlx5_3")] * 2
    assert result.gpus[0].because.startswith("mlx5_0 by the policy's rail numbers, shared with GPU1")


def test_one_nic_needs_no_tree() -> None:
    facts = replace(hgx(2, storage=0).facts(), pci=())
    result = plan(replace(facts, nics=facts.nics[:1]), Policy())
    assert [gpu.nics for gpu in result.gpus] == [("mlx5_0",)] * 2
    assert [gpu.path for gpu in result.gpus] == [None, None]


def test_a_matrix_without_a_nic_is_planned_for_one_node_and_says_so() -> None:
    facts = Facts(SCHEMA, (Witness("nvidia-smi", "topo"),), gpus=(Gpu("GPU0", 0), Gpu("GPU1", 1)))
    result = plan(facts, Policy())
    assert result.status == "planned"
    assert _only(result.findings, "nics.none").severity == "warning"
    assert "no NIC can be a rail" in result.findings[0].why
    quiet = plan(facts, _policy(workload="train-single-node"))
    assert _only(quiet.findings, "nics.none").severity == "info"


def test_a_cut_matrix_gives_rails_for_whole_rows_only() -> None:
    facts = _matrix([["PIX", "NODE"], ["NODE", "PIX"]], complete=False)
    facts = replace(facts, gpus=(facts.gpus[0], replace(facts.gpus[1], partial=True)))
    result = plan(facts, Policy())
    assert [gpu.nics for gpu in result.gpus] == [("NIC0",), ()]
    assert [nic.role for nic in result.nics] == ["rail", "unknown"]
    said = _only(result.findings, "facts.incomplete")
    assert "incomplete" in said.why
    assert said.where == "GPU1"
    assert [rank.rank for rank in result.ranks] == [0]


def test_nics_that_a_matrix_cannot_tell_apart_are_one_question() -> None:
    result = plan(_matrix([["PIX", "PIX"]]), Policy())
    assert result.gpus[0].nics == ("NIC0",)
    choice = _only(result.findings, "nics.choice")
    assert choice.why.startswith("NIC0, NIC1 are equally near to GPU0")


def test_a_gpu_without_the_nvlinks_of_its_peers_is_an_error() -> None:
    facts = hgx(4).facts()
    lame = replace(facts.gpus[2], nvlinks=(NvLink("0000:e0:00.0", 12),))
    result = plan(replace(facts, gpus=(*facts.gpus[:2], lame, facts.gpus[3])), Policy())
    found = _only(result.findings, "gpu.nvlinks")
    assert (found.severity, found.where) == ("error", "GPU2")
    assert found.why == "GPU2 has 12 NVLinks where its peers have 16"
    assert result.gpus[2].nics == ("mlx5_2",)


def _bridge(facts: Facts, control: tuple[str, ...]) -> Facts:
    acs = Acs(("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), control)
    pci = tuple(replace(device, acs=acs) if device.port == "downstream" else device for device in facts.pci)
    return replace(facts, pci=pci)


def test_acs_redirection_on_bare_metal_is_found_with_the_command_to_look() -> None:
    facts = _bridge(hgx(2, storage=0).facts(), ("SrcValid", "ReqRedir", "UpstreamFwd"))
    found = _only(plan(facts, Policy()).findings, "pcie.acs")
    ports = [device.address for device in facts.pci if device.port == "downstream"]
    assert found.where == ", ".join(ports)
    assert f"({ports[0]}: ReqRedir, UpstreamFwd)" in found.why
    assert f"setpci -s {ports[0]} ECAP_ACS+6.w" in found.remedy


@pytest.mark.parametrize(
    ("control", "virtual"), [(("SrcValid",), ""), ((), ""), (("ReqRedir",), "kvm"), (("ReqRedir",), None)]
)
def test_source_validation_alone_and_virtual_machines_are_no_acs_fault(
    control: tuple[str, ...], virtual: str | None
) -> None:
    facts = _bridge(hgx(2, virtual=virtual).facts(), control)
    assert "pcie.acs" not in [finding.code for finding in plan(facts, Policy()).findings]


def test_a_link_that_lost_lanes_is_an_error_and_a_slow_one_at_idle_is_not() -> None:
    facts = hgx(2, storage=0).facts()
    gpu = facts.gpus[0].address
    narrow = tuple(
        replace(device, link=Link(2.5, 8, 32.0, 16)) if device.address == gpu else device
        for device in facts.pci
    )
    found = _only(plan(replace(facts, pci=narrow), Policy()).findings, "pcie.link_width")
    assert (found.severity, found.where) == ("error", gpu)
    assert found.why == "the link of GPU0 runs at x8, and both ends can do x16"


def test_a_narrow_slot_is_no_lost_width() -> None:
    facts = hgx(1, storage=0).facts()
    gpu = next(device for device in facts.pci if device.address == facts.gpus[0].address)
    pci = tuple(
        replace(device, link=Link(2.5, 8, 32.0, 16))
        if device == gpu
        else replace(device, link=Link(2.5, 8, 32.0, 8))
        if device.address == gpu.parent
        else device
        for device in facts.pci
    )
    assert "pcie.link_width" not in [
        finding.code for finding in plan(replace(facts, pci=pci), Policy()).findings
    ]


def test_a_bridge_that_lost_lanes_is_a_warning_named_once() -> None:
    facts = hgx(2, storage=0).facts()
    switch = facts.pci[1]
    narrow = replace(switch, link=Link(32.0, 4, 32.0, 16))
    result = plan(replace(facts, pci=(facts.pci[0], narrow, *facts.pci[2:])), Policy())
    found = _only(result.findings, "pcie.link_width")
    assert (found.severity, found.where) == ("warning", switch.address)
    assert found.why == "the link of a switch above GPU0 runs at x4, and both ends can do x16"


def test_a_port_with_a_narrow_card_below_has_lost_nothing() -> None:
    # A virtual machine's root ports claim x32, and every card below them is narrower.
    facts = hgx(2, storage=0).facts()
    pci = tuple(
        replace(device, link=Link(32.0, 16, 64.0, 32)) if device.port in {"root", "downstream"} else device
        for device in facts.pci
    )
    assert not plan(replace(facts, pci=pci), Policy()).findings


def test_a_device_without_a_numa_node_on_bare_metal_is_found() -> None:
    facts = hgx(2, storage=0).facts()
    facts = replace(
        facts,
        numa=(NumaNode(0, "0-3"), NumaNode(1, "4-7")),
        gpus=(replace(facts.gpus[0], numa=None), facts.gpus[1]),
    )
    found = _only(plan(facts, Policy()).findings, "numa.unknown")
    assert found.where == "GPU0"


def test_a_gpu_and_its_nic_on_different_nodes_are_found() -> None:
    facts = hgx(2, storage=0).facts()
    facts = replace(facts, nics=(replace(facts.nics[0], numa=1), facts.nics[1]))
    assert _only(plan(facts, Policy()).findings, "numa.mismatch").where == "GPU0, mlx5_0"


def test_a_crossing_between_numa_nodes_is_found() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(1, "mlx5_0")
    found = _only(plan(chassis.facts(), Policy()).findings, "bindings.cross_numa")
    assert found.why == "GPU0 reaches its rail mlx5_0 only across NUMA nodes (node 0 to node 1)"


def test_idle_gpu_links_matter_from_nccl_2_30_7_on() -> None:
    facts = hgx(2).facts()
    codes = [finding.code for finding in plan(facts, _policy(nccl={"version": "2.30.7"})).findings]
    assert "nccl.idle_links" in codes
    codes = [finding.code for finding in plan(facts, _policy(nccl={"version": "2.30.6"})).findings]
    assert "nccl.idle_links" not in codes


def test_what_the_reader_noted_is_said() -> None:
    facts = _matrix([["PIX"]], notes=("the header has colours",))
    assert _only(plan(facts, Policy()).findings, "facts.note").why == "the header has colours"


def test_a_finding_that_the_policy_accepts_carries_the_reason_and_is_not_in_the_summary() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(1, "mlx5_0")
    result = plan(chassis.facts(), _policy(accept={"bindings.cross_numa": "one socket has no slots"}))
    assert result.findings[0].accepted == "one socket has no slots"
    assert not any("Look at" in sentence for sentence in result.summary)
