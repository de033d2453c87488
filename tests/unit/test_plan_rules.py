"""What simpler rules would pick, against results measured with NCCL 2.30.7 itself and against hand calculation."""

from __future__ import annotations

from dataclasses import replace

from railwright.node.model import C2c, Cpus, Facts, NvLink, Policy
from railwright.plan import plan
from railwright.plan.cards import group
from railwright.plan.graph import Graph, build, nccl_order
from railwright.plan.rules import by_index, by_nccl, evaluate, nearest
from railwright.plan.split import split_rate
from railwright.plan.tree import Tree
from tests.unit.plan_machines import Chassis, hgx

AMD = Cpus(arch="x86_64", vendor="AuthenticAMD", family=23, model=49)
SKYLAKE = Cpus(arch="x86_64", vendor="GenuineIntel", family=6, model=0x55)


def _graph(facts: Facts) -> tuple[Graph, list[int]]:
    tree, cards = Tree(facts), group(facts.nics)
    return build(facts, facts.gpus, cards, tree), nccl_order(facts, facts.gpus, cards, tree)


def test_nccl_mirrors_bits_on_a_flat_machine_of_eight_and_eight() -> None:
    chassis = Chassis()
    for _ in range(8):
        chassis.gpu(0)
    for index in range(8):
        chassis.nic(0, f"mlx5_{index}")
    graph, order = _graph(chassis.facts())
    # Measured: all PHB, GPU0..7 use NIC 0, 4, 2, 6, 1, 5, 3, 7.
    assert [by_nccl(graph, order)[gpu] for gpu in range(8)] == [[0], [4], [2], [6], [1], [5], [3], [7]]


def test_nccl_does_not_mirror_bits_when_the_nics_are_no_power_of_two() -> None:
    chassis = Chassis()
    for _ in range(3):
        chassis.gpu(0)
    for index in range(6):
        chassis.nic(0, f"mlx5_{index}")
    graph, order = _graph(chassis.facts())
    # ceil(6 / 3) = 2 NICs each, from GPU k's place on.
    assert by_nccl(graph, order) == {0: [0, 1], 1: [1, 2], 2: [2, 3]}


def _near_and_far(cpus: Cpus, cross: float) -> Chassis:
    chassis = Chassis(cross, cpus)
    switch = chassis.switch(0)
    chassis.gpu(switch)
    chassis.nic(switch, "mlx5_0", rate=100_000)
    chassis.nic(1, "mlx5_1", rate=400_000, link_layer="Ethernet")
    return chassis


def test_on_sapphire_rapids_nccl_prefers_a_fast_storage_nic_on_the_other_socket() -> None:
    # Measured: 22 GB/s over the sockets beat 12.5 GB/s on the GPU's own switch.
    result = plan(_near_and_far(Chassis().cpus, 22).facts(), Policy())
    assert [nic.role for nic in result.nics] == ["rail", "storage"]
    assert result.bound.achieved_gbytes == 12.5
    assert result.bound.nccl_gbytes == 22
    assert result.bound.verdict == (
        "NCCL on its own would put GPU0 on mlx5_1, which is no rail (SYS): the exact list below keeps it off."
    )
    assert result.nccl["NCCL_IB_HCA"] == "=mlx5_0:1"


def test_on_skylake_nccl_stays_on_the_near_nic() -> None:
    result = plan(_near_and_far(SKYLAKE, 10).facts(), Policy())
    assert result.bound.nccl_gbytes == 12.5
    assert result.bound.verdict.startswith("NCCL already reaches this on its own: no change needed")


def test_on_a_clean_hgx_the_honest_answer_is_no_change_needed() -> None:
    result = plan(hgx().facts(), Policy())
    bound = result.bound
    # PCIe Gen5 x16 carries 48 GB/s by NCCL's table, a 400 Gb/s port 50.
    assert (
        bound.achieved_gbytes == bound.nccl_gbytes == bound.nearest_gbytes == bound.index_pairing_gbytes == 48
    )
    assert bound.verdict == (
        "NCCL already reaches this on its own: no change needed; the list below only keeps other NICs out."
    )


def test_with_nics_spread_unevenly_over_sockets_nccl_loses_a_quarter() -> None:
    # Two NICs on one socket, one on the other, four GPUs on each: 24 GB/s each by Gen4 x16. Best is three GPUs to a
    # NIC (8 GB/s), so one crosses; NCCL puts four on the lonely NIC (6). Divisible: 72 / 8 = 9, 12 over 16 GB/s.
    chassis = Chassis(16, AMD)
    for node in (0, 0, 0, 0, 1, 1, 1, 1):
        chassis.gpu(node, 16.0)
    for index, node in enumerate((0, 0, 1)):
        chassis.nic(node, f"mlx5_{index}", 200_000, 16.0)
    result = plan(chassis.facts(), Policy())
    assert result.bound.achieved_gbytes == 8
    assert result.bound.per_gpu_gbytes == 9
    assert result.bound.nccl_gbytes == 6
    assert result.bound.verdict == (
        "NCCL would put GPU4 on mlx5_2, which gives 6 instead of 8 GB/s. "
        "The exact list alone brings NCCL to 6 of 8 GB/s."
    )
    assert [finding.code for finding in result.findings] == ["bindings.cross_numa"]


def _backwards(count: int) -> Chassis:
    """Each GPU shares a virtual bridge with its NIC, NIC numbers run backwards, uplinks say 2.5 GT/s x1."""
    chassis = Chassis()
    for index in range(count):
        bridge = chassis.switch(index * 2 // count, 2.5, 1)
        chassis.gpu(bridge)
        chassis.nic(bridge, f"mlx5_{count - 1 - index}")
    return chassis


def test_pairing_by_index_is_ruinous_where_nic_numbers_run_backwards() -> None:
    result = plan(_backwards(8).facts(), Policy())
    # One lane of 2.5 GT/s is 15/80 GB/s.
    assert result.bound.index_pairing_gbytes == 15 / 80
    assert result.bound.achieved_gbytes == 48
    assert [gpu.nics[0] for gpu in result.gpus] == [f"mlx5_{7 - gpu.index}" for gpu in result.gpus]
    assert [gpu.rail for gpu in result.gpus] == list(range(8))


def test_the_nearest_nic_with_the_first_index_piles_gpus_up() -> None:
    chassis = Chassis()
    for _ in range(4):
        chassis.gpu(0)
    for index in range(4):
        chassis.nic(0, f"mlx5_{index}")
    graph, _ = _graph(chassis.facts())
    assert nearest(graph, range(4)) == {0: [0], 1: [0], 2: [0], 3: [0]}
    assert by_index(graph, range(4)) == {0: [0], 1: [1], 2: [2], 3: [3]}
    # Four on one 400 Gb/s port behind Gen5 x16.
    assert plan(chassis.facts(), Policy()).bound.nearest_gbytes == 12


def test_index_order_reads_numbers_as_numbers() -> None:
    chassis = Chassis()
    for name in ("mlx5_10", "mlx5_2"):
        switch = chassis.switch(0)
        chassis.gpu(switch)
        chassis.nic(switch, name)
    graph, _ = _graph(chassis.facts())
    assert [graph.cards[by_index(graph, range(2))[gpu][0]].name for gpu in range(2)] == ["mlx5_2", "mlx5_10"]


def test_a_bridge_that_lies_does_not_push_a_gpu_off_its_own_nic() -> None:
    # As with the PEX88096 whose virtual bridge says 2.5 GT/s x1 above the NIC: NCCL put two GPUs on one NIC.
    chassis = Chassis()
    switch = chassis.switch(0)
    chassis.gpu(switch)
    chassis.nic(chassis.switch(switch, 2.5, 1), "mlx5_0")
    other = chassis.switch(1)
    chassis.gpu(other)
    chassis.nic(other, "mlx5_1")
    result = plan(chassis.facts(), Policy())
    assert [gpu.nics for gpu in result.gpus] == [("mlx5_0",), ("mlx5_1",)]
    # As stated GPU0 does best across the sockets (22 GB/s); what can be believed says 48.
    assert result.bound.achieved_gbytes == 22
    assert result.bound.credible_gbytes == 48
    assert result.bound.optimal is True
    assert "NCCL would put GPU0 on mlx5_1" in result.bound.verdict
    assert "The exact list alone brings NCCL to" in result.bound.verdict
    assert [link.believed for link in result.links if link.capacity_gbytes == 15 / 80] == [False]


def test_nvlink_c2c_carries_traffic_that_an_idle_pcie_link_could_not() -> None:
    chassis = Chassis(6, Cpus(arch="aarch64"))
    chassis.gpu(0, 2.5, 16, c2c=C2c(8, 43125))
    chassis.nic(0, "mlx5_0")
    result = plan(chassis.facts(), Policy())
    assert result.gpus[0].path == "P2C"
    assert result.bound.achieved_gbytes == 48
    assert [link.kind for link in result.links] == ["c2c", "pcie", "port"]


def test_relay_over_nvlink_lifts_the_bound_of_divided_traffic() -> None:
    # One 400 Gb/s NIC for two GPUs, each with Gen3 x16 (12 GB/s): one NIC each gives 12; nothing more can be had.
    # A second NIC beside GPU0 only: over NVLink GPU1's spare 12 do not grow, so 12 stays; with Gen5 on GPU0 it grows.
    chassis = Chassis()
    switch = chassis.switch(0)
    links = (NvLink("0000:e0:00.0", 12),)
    chassis.gpu(switch, 32.0, sm=80, nvlinks=links)
    chassis.nic(switch, "mlx5_0")
    lonely = chassis.switch(1)
    chassis.gpu(lonely, 8.0, sm=80, nvlinks=links)
    chassis.nic(lonely, "mlx5_1")
    result = plan(chassis.facts(), Policy())
    assert result.bound.achieved_gbytes == 12
    # 48 by GPU0's link and 12 by GPU1's, shared evenly.
    assert result.bound.per_gpu_gbytes == 30


def test_direct_nvlinks_relay_as_switched_ones_do() -> None:
    # GPU1 sits beside no NIC and behind a Gen3 link (12 GB/s); GPU0 beside a 48 GB/s NIC has a Gen5 link.
    chassis = Chassis()
    switch = chassis.switch(0)
    chassis.gpu(switch, 32.0, sm=80, nvlinks=(NvLink("GPU1", 12),))
    chassis.nic(switch, "mlx5_0")
    chassis.gpu(0, 8.0, sm=80, nvlinks=(NvLink("GPU0", 12),))
    bound = plan(chassis.facts(), Policy()).bound
    # One path each: 12. Divided and relayed, both share the NIC's 48.
    assert (bound.achieved_gbytes, bound.per_gpu_gbytes) == (12, 24)


def test_gpus_that_reach_no_nic_leave_the_rules_without_a_rate() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.gpu(None)
    chassis.nic(0, "mlx5_0")
    facts = chassis.facts()
    hidden = [device for device in facts.pci if device.address != facts.gpus[1].address]
    graph, order = _graph(replace(facts, pci=tuple(hidden)))
    for choice in (by_index(graph, order), nearest(graph, order), by_nccl(graph, order)):
        assert choice == {0: [0]}
        assert evaluate(graph, choice) is None
    assert split_rate(graph, order) is None


def test_links_to_all_nvswitches_together_carry_the_relay() -> None:
    # GPU1 has next to no PCIe (2.5 GT/s x1) and one link of 18 GB/s to each of two switches: 36, so the NIC limits.
    chassis = Chassis()
    switch = chassis.switch(0)
    links = (NvLink("0000:e0:00.0", 1), NvLink("0000:e1:00.0", 1))
    chassis.gpu(switch, 32.0, sm=60, nvlinks=links)
    chassis.nic(switch, "mlx5_0")
    chassis.gpu(0, 2.5, 1, sm=60, nvlinks=links)
    assert plan(chassis.facts(), Policy()).bound.per_gpu_gbytes == 24


def test_of_two_links_to_one_card_nccl_takes_the_faster() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.nic(0, "mlx5_0", 400_000, 32.0, 4, sys_image_guid="0x0c42a10300aabbcc")
    chassis.nic(0, "mlx5_1", 400_000, 32.0, 8, sys_image_guid="0x0c42a10300aabbcc")
    bound = plan(chassis.facts(), Policy()).bound
    # Gen5 x8 is 24 GB/s, x4 is 12; both together 36.
    assert (bound.achieved_gbytes, bound.nearest_gbytes, bound.nccl_gbytes, bound.per_gpu_gbytes) == (
        24,
        24,
        24,
        36,
    )
