"""The graph is NCCL's: both forms of a witness agree, capacities follow its table, Broadcom trees fold by exact ids."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from railwright.node.model import C2c, Cpus, Facts, InputError, Nic, Plan, Policy
from railwright.plan import plan
from railwright.plan.constants import cpu_link_mbps, gbytes, nvlink_mbps, pcie_mbps
from railwright.plan.tree import Tree
from tests.unit.plan_machines import Chassis, Part, hgx

OUTER = {"vendor": "0x1000", "device": "0xc030", "subsystem_vendor": "0x1000", "subsystem_device": "0x0072"}
INNER = {**OUTER, "subsystem_device": "0x1003"}
OEM = {**OUTER, "subsystem_vendor": "0x15d9", "subsystem_device": "0x1d25"}
GEN4 = {"vendor": "0x1000", "device": "0xc010", "subsystem_vendor": "0x1000", "subsystem_device": "0xa096"}


def _two_level(outer: dict[str, str], inner: dict[str, str], uplink: float = 5.0) -> Chassis:
    chassis = Chassis()
    for index in range(2):
        top = chassis.switch(0, uplink, 16, **outer)
        chassis.gpu(chassis.switch(top, 32.0, 16, **inner))
        chassis.nic(chassis.switch(top, 32.0, 16, **inner), f"mlx5_{index}")
    return chassis


def _deep(seed: int) -> Chassis:
    dice = random.Random(seed)  # noqa: S311 (a dice, no secret)
    chassis = Chassis()
    places: list[Part | int] = [0, 1]
    for _ in range(dice.randint(1, 8)):
        ids = dice.choice([{}, OUTER, INNER, OEM, GEN4])
        places.append(chassis.switch(dice.choice(places), dice.choice([5.0, 16.0, 32.0]), 16, **ids))
    for _ in range(dice.randint(2, 6)):
        chassis.gpu(dice.choice(places))
    for index in range(dice.randint(1, 6)):
        chassis.nic(dice.choice(places), f"mlx5_{index}")
    return chassis


@pytest.mark.parametrize("seed", range(60))
def test_a_machine_seen_through_sysfs_and_through_a_nccl_dump_has_one_plan(seed: int) -> None:
    chassis = _deep(seed)
    assert plan(chassis.facts("sysfs"), Policy()) == plan(chassis.facts("merged"), Policy())


@pytest.mark.parametrize("form", ["sysfs", "merged"])
@pytest.mark.parametrize("ids", [(OUTER, INNER), (GEN4, GEN4)])
def test_a_two_level_broadcom_switch_is_one_switch(
    form: str, ids: tuple[dict[str, str], dict[str, str]]
) -> None:
    result = plan(_two_level(*ids).facts(form), Policy())
    assert [gpu.path for gpu in result.gpus] == ["PIX", "PIX"]
    assert result.bound.achieved_gbytes == 48
    # The outer level's own uplink is not on the way, and no link below it is the 5 GT/s one (30 * 16 / 80 = 6).
    assert 6.0 not in [link.capacity_gbytes for link in result.links]


@pytest.mark.parametrize(
    "ids", [(OEM, OEM), (OUTER, OUTER), (INNER, INNER), (OUTER, {**INNER, "device": "0xc010"})]
)
def test_other_ids_do_not_fold(ids: tuple[dict[str, str], dict[str, str]]) -> None:
    assert [gpu.path for gpu in plan(_two_level(*ids).facts(), Policy()).gpus] == ["PXB", "PXB"]


def test_the_uplink_of_a_folded_switch_is_not_believed() -> None:
    chassis = Chassis()
    top = chassis.switch(0, 5.0, 16, **OUTER)
    chassis.gpu(chassis.switch(top, 32.0, 16, **INNER))
    chassis.nic(0, "mlx5_0")
    result = plan(chassis.facts(), Policy())
    assert result.bound.achieved_gbytes == 6
    assert result.bound.credible_gbytes == 48
    assert [link.believed for link in result.links] == [True, False, True, True]


def test_three_levels_fold_once() -> None:
    # NCCL marks a folded switch so that it is not folded again: the third level stays.
    chassis = Chassis()
    top = chassis.switch(0, 32.0, 16, **GEN4)
    middle = chassis.switch(top, 32.0, 16, **GEN4)
    chassis.gpu(chassis.switch(middle, 32.0, 16, **GEN4))
    chassis.nic(middle, "mlx5_0")
    facts = chassis.facts()
    ascent = Tree(facts).ascent(facts.gpus[0].address or "")
    assert ascent is not None
    assert [step.lower for step in ascent.steps] == [
        facts.gpus[0].address,
        chassis.parts[2].address,
        chassis.parts[0].address,
    ]


# NCCL 2.30.7 topo.cc:545-556, by hand: GB/s of x16.
@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        (2.5, 16, 3.0),
        (5.0, 16, 6.0),
        (8.0, 16, 12.0),
        (16.0, 16, 24.0),
        (32.0, 16, 48.0),
        (64.0, 16, 96.0),
        (2.5, 1, 0.1875),
        (16.0, 4, 6.0),
        (None, 16, 12.0),
        (32.0, None, 48.0),
        (32.0, 0, 48.0),
        (12.0, 8, 6.0),
    ],
)
def test_pcie_rates_follow_nccl(speed: float | None, width: int | None, rate: float) -> None:
    assert gbytes(pcie_mbps(speed, width)) == rate


@pytest.mark.parametrize(
    ("cpus", "rate"),
    [
        (Cpus("x86_64", "GenuineIntel", 6, 0x4F), 6),
        (Cpus("x86_64", "GenuineIntel", 6, 0x55), 10),
        (Cpus("x86_64", "GenuineIntel", 6, 0x6A), 10),
        (Cpus("x86_64", "GenuineIntel", 6, 0x8F), 22),
        (Cpus("x86_64", "GenuineIntel", 6, 0xCF), 40),
        (Cpus("x86_64", "AuthenticAMD", 25, 1), 16),
        (Cpus("aarch64"), 6),
        (Cpus("arm64"), 6),
        (Cpus("ppc64le"), 32),
        (Cpus("x86_64", "  Shanghai  ", 7, 0x5B), 9),
        (Cpus("x86_64", "CentaurHauls", 7, 0x3B), 6),
        (Cpus("x86_64", "HygonGenuine", 24, 1), None),
        (Cpus(), None),
    ],
)
def test_the_rate_between_sockets_follows_nccl(cpus: Cpus, rate: int | None) -> None:
    mbps = cpu_link_mbps(cpus)
    assert (None if mbps is None else gbytes(mbps)) == rate


@pytest.mark.parametrize(
    ("sm", "rate"),
    [(60, 18), (70, 20), (80, 20), (86, 12), (89, 20), (90, 20.6), (100, 40.1), (52, None), (None, None)],
)
def test_nvlink_rates_follow_nccl(sm: int | None, rate: float | None) -> None:
    mbps = nvlink_mbps(sm)
    assert (None if mbps is None else gbytes(mbps)) == rate


def test_both_ends_of_a_link_decide_its_rate() -> None:
    chassis = hgx(2, storage=0)
    facts = chassis.facts()
    # The port above GPU0 is of the generation before.
    port = facts.pci[2]
    assert port.port == "downstream"
    slower = replace(port, link=replace(port.link, max_speed=16.0, max_width=8))
    facts = replace(facts, pci=tuple(slower if device == port else device for device in facts.pci))
    result = plan(facts, Policy())
    # Gen4 x8: 8 * 120 / 80.
    assert result.bound.achieved_gbytes == 12


def test_unknown_links_count_as_nccl_counts_them_and_are_not_believed() -> None:
    chassis = Chassis()
    switch = chassis.switch(0)
    chassis.gpu(switch, None, None)
    chassis.nic(switch, "mlx5_0", rate=None)
    result = plan(chassis.facts(), Policy())
    # The NIC's unknown speed counts as 10 Gb/s: 1.25 GB/s. What is known allows Gen5 x16.
    assert result.bound.achieved_gbytes == 1.25
    assert result.bound.credible_gbytes == 48
    assert [link.believed for link in result.links] == [False, True, False]


def test_an_unknown_processor_does_not_limit_but_is_not_believed() -> None:
    chassis = Chassis(cpus=Cpus(arch="x86_64", vendor="Elbrus"))
    chassis.gpu(0)
    chassis.nic(1, "mlx5_0")
    crossing = [link for link in plan(chassis.facts(), Policy()).links if link.kind == "cpu"]
    assert [(link.capacity_gbytes, link.believed) for link in crossing] == [(5000, False)]


def test_a_nic_that_claims_more_than_any_port_is_not_believed() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(0, "cxi0", rate=200_000_000)
    result = plan(chassis.facts(), Policy())
    assert result.bound.achieved_gbytes == 48
    assert [link.believed for link in result.links][-1] is False
    assert "200000 Gb/s" not in " ".join(result.summary)


def test_two_ports_of_one_card_are_one_nic() -> None:
    chassis = hgx(2, storage=0)
    facts = chassis.facts()
    first = facts.nics[0]
    twin = replace(first, name="mlx5_0:2", port=2)
    halves = tuple(
        replace(nic, rate=180_000)
        for nic in (first, twin, facts.nics[1], replace(facts.nics[1], name="mlx5_1:2", port=2))
    )
    result = plan(replace(facts, nics=halves), Policy())
    # 2 x 180 Gb/s is 45 GB/s, below Gen5 x16.
    assert result.bound.achieved_gbytes == 45
    assert [gpu.nics for gpu in result.gpus] == [("mlx5_0", "mlx5_0:2"), ("mlx5_1", "mlx5_1:2")]
    assert [nic.role for nic in result.nics] == ["rail", "second-port", "rail", "second-port"]
    assert [nic.rail for nic in result.nics] == [0, 0, 1, 1]
    assert result.nccl["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_0:2,mlx5_1:1,mlx5_1:2"


def test_two_functions_of_one_slot_are_one_nic() -> None:
    chassis = hgx(1, storage=0)
    facts = chassis.facts()
    first, device = facts.nics[0], facts.pci[-1]
    assert device.address == first.address
    second = (first.address or "")[:-1] + "1"
    facts = replace(
        facts,
        pci=(*facts.pci, replace(device, address=second)),
        nics=(first, replace(first, name="mlx5_1", rdma="mlx5_1", address=second)),
    )
    result = plan(facts, Policy())
    assert result.gpus[0].nics == ("mlx5_0", "mlx5_1")
    # Both ports behind one Gen5 x16 link.
    assert result.bound.achieved_gbytes == result.bound.per_gpu_gbytes == 48


def _one_port_twice(guid: str | None) -> Facts:
    """A GB10: one card behind two x4 Gen5 links on two roots, and one GPU that is not on PCIe at all."""
    chassis = Chassis(6, Cpus(arch="aarch64"))
    chassis.gpu(0, 2.5, 16, c2c=C2c(8, 43125))
    chassis.nic(0, "rocep1s0f0", 200_000, 32.0, 4, sys_image_guid=guid)
    chassis.nic(0, "roceP2p1s0f0", 200_000, 32.0, 4, sys_image_guid=guid)
    return chassis.facts()


def test_a_card_behind_two_links_is_one_nic_by_its_system_image_guid() -> None:
    result = plan(_one_port_twice("0x0c42a10300aabbcc"), Policy())
    assert [nic.role for nic in result.nics] == ["rail", "second-port"]
    assert result.gpus[0].nics == ("rocep1s0f0", "roceP2p1s0f0")
    # x4 Gen5 is 4 * 240 / 80 = 12 GB/s; one path carries one flow, both together twice as much.
    assert result.bound.achieved_gbytes == 12
    assert result.bound.per_gpu_gbytes == 24


def test_a_gpu_takes_a_second_nic_as_near_when_that_raises_its_rate() -> None:
    result = plan(_one_port_twice(None), Policy())
    assert result.gpus[0].nics == ("rocep1s0f0", "roceP2p1s0f0")
    assert [nic.rail for nic in result.nics] == [0, 1]
    assert result.bound.achieved_gbytes == 12
    assert result.nccl["NCCL_IB_HCA"] == "=rocep1s0f0:1,roceP2p1s0f0:1"
    assert sum(link.load_gbytes or 0 for link in result.links if link.kind == "port") == 24
    assert result.summary[0] == "1 GPU, 2 rails: every GPU has two 200 Gb/s NICs of its own (P2C)."


def test_an_all_zero_guid_says_nothing() -> None:
    chassis = hgx(2, storage=0)
    facts = chassis.facts()
    nics = tuple(replace(nic, sys_image_guid="0000:0000:0000:0000") for nic in facts.nics)
    assert len({gpu.nics for gpu in plan(replace(facts, nics=nics), Policy()).gpus}) == 2


def test_a_nic_without_a_pci_function_hangs_on_its_numa_node() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    facts = chassis.facts("merged")
    facts = replace(facts, nics=(Nic("eth0", rdma="eth0", rate=100_000, numa=0),))
    result: Plan = plan(facts, Policy())
    assert result.gpus[0].nics == ("eth0",)
    assert result.bound.achieved_gbytes == 12.5


def test_a_function_that_hangs_below_itself_is_an_input_error() -> None:
    facts = hgx(1).facts()
    looped = replace(facts.pci[0], parent=facts.pci[1].address)
    with pytest.raises(InputError, match="is its own parent"):
        plan(replace(facts, pci=(looped, *facts.pci[1:])), Policy())


def test_the_numa_node_of_a_root_serves_where_the_function_names_none() -> None:
    facts = hgx(2, storage=0).facts()
    blind = tuple(replace(device, numa=None) for device in facts.pci)
    assert plan(replace(facts, pci=blind), Policy()).gpus == plan(facts, Policy()).gpus
