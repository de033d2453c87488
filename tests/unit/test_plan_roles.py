"""What each NIC is for, and what only the user can say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railwright.node.model import Facts, InputError, Nic, Plan, Policy
from railwright.plan import plan
from tests.unit.plan_machines import Chassis, hgx


def _policy(*nics: dict[str, Any], **more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", "nics": list(nics), **more})


def _with(facts: Facts, name: str, **changes: Any) -> Facts:
    return replace(
        facts, nics=tuple(replace(nic, **changes) if nic.name == name else nic for nic in facts.nics)
    )


def _roles(result: Plan) -> dict[str, str]:
    return {nic.name: nic.role for nic in result.nics}


def _codes(result: Plan) -> list[str]:
    return [finding.code for finding in result.findings]


def test_nics_on_gpu_switches_are_rails_and_a_fast_one_elsewhere_is_storage() -> None:
    result = plan(hgx(4).facts(), Policy())
    assert _roles(result) == {
        "mlx5_0": "rail",
        "mlx5_1": "rail",
        "mlx5_2": "rail",
        "mlx5_3": "rail",
        "mlx5_4": "storage",
    }
    assert result.nics[0].because == "up, PIX to GPU0"
    assert result.nics[4].because == "beside no GPU, while 4 other ports are"


@pytest.mark.parametrize(
    ("changes", "role", "because"),
    [
        ({"management": True}, "nvlink-mgmt", "SW_MNG"),
        ({"physical_function": "0000:18:00.0"}, "vf", "a virtual function of 0000:18:00.0"),
        ({"state": "down"}, "down", "its link is down"),
        ({"state": "init"}, "down", "no subnet manager"),
        ({"state": "armed"}, "down", "armed"),
        ({"default_route": True}, "management", "holds the node's default route"),
        ({"rdma": None, "netdev": "eno1"}, "unknown", "no RDMA device"),
        ({"rdma": None, "netdev": "eno1", "default_route": True}, "management", "default route; no RDMA"),
        ({"rdma": None}, "unknown", "no RDMA device"),
        (
            {"rate": 100_000},
            "storage",
            "PIX to GPU3, but 100 Gb/s InfiniBand where the NICs beside GPUs have 400 Gb/s",
        ),
        ({"rate": 25_000}, "unknown", "PIX to GPU3, but 25 Gb/s"),
        (
            {"link_layer": "Ethernet"},
            "storage",
            "Ethernet where the NICs beside GPUs have 400 Gb/s InfiniBand",
        ),
        ({"rate": None}, "unknown", "rate unknown"),
    ],
)
def test_a_port_that_is_unlike_the_rails_is_none(changes: dict[str, Any], role: str, because: str) -> None:
    result = plan(_with(hgx(4).facts(), "mlx5_3", **changes), Policy())
    odd = result.nics[3]
    assert (odd.name, odd.role) == ("mlx5_3", role)
    assert because in odd.because
    assert "mlx5_3" not in result.nccl["NCCL_IB_HCA"]
    assert [gpu.nics for gpu in result.gpus[:3]] == [("mlx5_0",), ("mlx5_1",), ("mlx5_2",)]


def test_a_port_of_the_bond_that_holds_the_default_route_is_management() -> None:
    facts = hgx(4, storage=2).facts()
    bond = Nic("bond0", netdev="bond0", default_route=True, addresses=("10.0.0.5/24",))
    facts = _with(replace(facts, nics=(*facts.nics, bond)), "mlx5_4", master="bond0", netdev="ens0")
    result = plan(facts, Policy())
    assert _roles(result)["mlx5_4"] == "management"
    assert _roles(result)["mlx5_5"] == "storage"
    assert result.nccl["NCCL_SOCKET_IFNAME"] == "=bond0"


def test_the_only_rdma_nic_carries_rails_even_with_the_default_route_and_a_finding_says_so() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(
        0,
        "mlx5_0",
        netdev="eth0",
        default_route=True,
        link_layer="Ethernet",
        addresses=("10.0.0.5/24",),
    )
    result = plan(chassis.facts(), Policy())
    assert _roles(result) == {"mlx5_0": "rail"}
    # Beside what the policy is asked for wherever there are rails.
    assert [code for code in _codes(result) if not code.endswith((".ask", ".unmanaged"))] == ["nics.shared"]


def test_on_a_pcie_machine_the_fastest_nics_of_one_kind_are_rails() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.gpu(1)
    chassis.nic(0, "mlx5_0", 200_000)
    chassis.nic(1, "mlx5_1", 200_000)
    chassis.nic(0, "mlx5_2", 25_000, link_layer="Ethernet")
    chassis.nic(0, "mlx5_3", 200_000, link_layer="Ethernet")
    chassis.nic(0, "mlx5_4", None)
    result = plan(chassis.facts(), Policy())
    assert _roles(result) == {
        "mlx5_0": "rail",
        "mlx5_1": "rail",
        "mlx5_2": "unknown",
        "mlx5_3": "unknown",
        "mlx5_4": "unknown",
    }
    assert result.nics[0].because == "up, 200 Gb/s, at best PHB to a GPU; no NIC shares a switch with a GPU"
    assert result.nics[2].because == "25 Gb/s Ethernet, slower than 200 Gb/s"
    assert result.nics[3].because == "Ethernet, while as fast InfiniBand ports are there"
    (question,) = [finding for finding in result.findings if finding.code == "nics.role"]
    assert question.where == "mlx5_2, mlx5_3, mlx5_4"
    assert question.remedy.startswith(
        "is it storage, management or a rail? say so in policy.nics: {match: mlx5_2"
    )


def test_a_front_end_dpu_on_a_gpus_switch_is_told_by_its_model() -> None:
    chassis = hgx(2, storage=0)
    for part in chassis.parts:
        if part.kind == "nic":
            part.more.update(vendor="0x15b3", device="0x1021")
    # First in PCI order on GPU0's switch, as fast as the rails.
    dpu = chassis.nic(chassis.parts[0], "mlx5_9", vendor="0x15b3", device="0xa2dc")
    chassis.parts.insert(1, chassis.parts.pop())
    assert chassis.parts[1] is dpu
    result = plan(chassis.facts(), Policy())
    assert _roles(result) == {"mlx5_9": "unknown", "mlx5_0": "rail", "mlx5_1": "rail"}
    assert result.gpus[0].nics == ("mlx5_0",)
    assert "another model than the 2 other rails" in result.nics[0].because


def test_the_users_word_counts_before_everything_else() -> None:
    facts = hgx(2, storage=1).facts()
    spoken = _policy(
        {"match": "mlx5_0", "role": "storage"},
        {"match": facts.nics[1].address, "role": "management"},
        {"match": "ens0", "rail": 7},
    )
    result = plan(facts, spoken)
    assert _roles(result) == {"mlx5_0": "storage", "mlx5_1": "management", "mlx5_2": "rail"}
    assert [gpu.rail for gpu in result.gpus] == [7, 7]
    assert result.nics[2].because == "the policy says rail"


@pytest.mark.parametrize("match", ["0000:13:00.0", "13:00.0", "00000000:13:00.0", "mlx5_0"])
def test_a_nic_is_named_by_address_in_any_form_or_by_device(match: str) -> None:
    facts = hgx(1, storage=1).facts()
    assert facts.nics[0].address == "0000:15:00.0"
    match = match.replace("13", "15")
    assert _roles(plan(facts, _policy({"match": match, "role": "storage"})))["mlx5_0"] == "storage"


def test_a_rail_that_the_policy_names_and_that_is_down_is_a_finding() -> None:
    facts = _with(hgx(2).facts(), "mlx5_1", state="down")
    result = plan(facts, _policy({"match": "mlx5_1", "role": "rail", "rail": 1}))
    assert (result.nics[1].role, result.nics[1].rail) == ("down", 1)
    (down,) = [finding for finding in result.findings if finding.code == "nics.down"]
    assert (down.severity, down.where) == ("error", "mlx5_1")


@pytest.mark.parametrize(
    ("nics", "why"),
    [
        ([{"match": "mlx5_0", "role": "storage", "rail": 1}], "only a rail has a rail number"),
        ([{"match": "mlx5_0", "rail": -1}], "rails count from 0"),
        (
            [{"match": "mlx5_0", "role": "rail"}, {"match": "0000:15:00.0", "role": "storage"}],
            "name the same port",
        ),
    ],
)
def test_a_policy_that_contradicts_itself_is_an_input_error(nics: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan(hgx(1).facts(), _policy(*nics))


def test_rails_that_the_policy_gives_one_number_are_one_nic() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(0, "mlx5_0", 200_000)
    chassis.nic(0, "mlx5_1", 200_000)
    result = plan(chassis.facts(), _policy({"match": "mlx5_0", "rail": 3}, {"match": "mlx5_1", "rail": 3}))
    assert _roles(result) == {"mlx5_0": "rail", "mlx5_1": "second-port"}
    assert {nic.rail for nic in result.nics} == {3}


def test_ports_of_one_card_on_two_rails_are_refused() -> None:
    facts = hgx(1, storage=0).facts()
    twin = replace(facts.nics[0], name="mlx5_1", rdma="mlx5_1", address="0000:15:00.1")
    result = plan(
        replace(facts, nics=(facts.nics[0], twin)),
        _policy({"match": "mlx5_0", "rail": 0}, {"match": "mlx5_1", "rail": 1}),
    )
    assert [(refusal.code, refusal.where) for refusal in result.refusals] == [("policy.rails", "mlx5_0")]


def test_rail_numbers_of_the_policy_come_first_and_the_others_fill_up() -> None:
    result = plan(
        hgx(4, storage=0).facts(), _policy({"match": "mlx5_2", "rail": 0}, {"match": "mlx5_0", "rail": 2})
    )
    assert [gpu.rail for gpu in result.gpus] == [2, 1, 0, 3]
    assert result.nccl["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_1:1,mlx5_0:1,mlx5_3:1"


def test_a_rail_that_is_down_does_not_shift_the_numbers_of_the_others() -> None:
    facts = _with(hgx(4, storage=0).facts(), "mlx5_1", state="down", rate=None)
    result = plan(facts, Policy())
    assert {nic.name: nic.rail for nic in result.nics} == {"mlx5_0": 0, "mlx5_1": 1, "mlx5_2": 2, "mlx5_3": 3}
    assert _roles(result)["mlx5_1"] == "down"
    # GPU1 shares the NIC of its own socket, PHB away.
    assert result.gpus[1].nics == ("mlx5_0",)
    assert result.nccl["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_2:1,mlx5_3:1"
    (down,) = [finding for finding in result.findings if finding.code == "nics.down"]
    assert down.where == "mlx5_1"
    assert "beside GPU1" in down.why


def test_a_second_nic_that_is_down_beside_a_gpu_that_has_one_takes_no_number() -> None:
    chassis = hgx(2, storage=0)
    chassis.nic(chassis.parts[0], "mlx5_9", state="down")
    result = plan(chassis.facts(), Policy())
    assert {nic.name: nic.rail for nic in result.nics} == {"mlx5_0": 0, "mlx5_9": None, "mlx5_1": 1}


def test_more_rails_than_gpus_leave_spares() -> None:
    chassis = Chassis()
    switch = chassis.switch(0)
    chassis.gpu(switch, 16.0)
    chassis.nic(switch, "mlx5_0")
    chassis.nic(switch, "mlx5_1")
    result = plan(chassis.facts(), Policy())
    # The GPU's Gen4 link (24 GB/s) is full with one NIC: a second raises nothing.
    assert _roles(result) == {"mlx5_0": "rail", "mlx5_1": "spare"}
    assert "mlx5_1" not in result.nccl["NCCL_IB_HCA"]
    assert "every GPU has a NIC at least as near" in result.nics[1].because


def test_a_small_card_that_drives_a_screen_has_no_rail_and_no_rank() -> None:
    chassis = hgx(2, storage=0)
    chassis.parts.insert(
        0, chassis.gpu(0, class_code="0x030000", vendor="0x10de", device="0x1fb2", model="NVIDIA T400")
    )
    chassis.parts.pop()
    result = plan(chassis.facts(), _policy(expect={"gpus": 2, "rails": 2}))
    assert result.status == "planned"
    assert [(gpu.index, gpu.nics) for gpu in result.gpus] == [(0, ()), (1, ("mlx5_0",)), (2, ("mlx5_1",))]
    assert [rank.rank for rank in result.ranks] == [1, 2]
    assert [gpu.rail for gpu in result.gpus] == [None, 0, 1]
    (said,) = [finding for finding in result.findings if finding.code == "gpus.display"]
    assert "takes CUDA index 0" in said.why


def test_gpus_of_a_workstation_all_drive_screens_and_all_count() -> None:
    chassis = Chassis()
    chassis.gpu(0, class_code="0x030000", device="0x2684", vendor="0x10de")
    chassis.gpu(0, class_code="0x030000", device="0x2204", vendor="0x10de")
    chassis.nic(0, "mlx5_0")
    assert len(plan(chassis.facts(), Policy()).ranks) == 2


def test_a_port_that_came_up_slower_than_its_like_is_an_error_and_not_only_no_rail() -> None:
    facts = hgx(4).facts()
    cards = {nic.address for nic in facts.nics}
    devices = (
        replace(device, vendor="0x15b3", device="0x1021") if device.address in cards else device
        for device in facts.pci
    )
    facts = replace(facts, pci=tuple(devices))
    assert "rails.speed" not in _codes(plan(facts, Policy()))
    slow = _with(facts, "mlx5_1", rate=200_000)
    result = plan(slow, Policy())
    assert _roles(result)["mlx5_1"] == "storage"
    (finding,) = [finding for finding in result.findings if finding.code == "rails.speed"]
    assert (finding.severity, finding.where) == ("error", "mlx5_1")
    assert "200 Gb/s where the same card has 400 Gb/s" in finding.why
    # The user's word that it is meant so is enough.
    assert "rails.speed" not in _codes(plan(slow, _policy({"match": "mlx5_1", "role": "storage"})))
