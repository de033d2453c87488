"""Cores: whole, disjoint, fair, and never guessed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.model import CorePolicy, Cpus, Facts, Gpu, Nic, NumaNode, Policy, parse_cpulist
from railwright.plan import plan
from railwright.plan.cards import Card
from railwright.plan.cores import Cores, allot
from tests.unit.plan_machines import Chassis, cores, hgx, with_cores


def _machine(cpus: Cpus, numa: Sequence[NumaNode]) -> Facts:
    return with_cores(Chassis().facts(), cpus, numa)


def _gpus(*nodes: int | None) -> list[Gpu]:
    return [Gpu(f"GPU{index}", index, numa=node) for index, node in enumerate(nodes)]


def _cards(*nodes: int | None) -> dict[str, Card]:
    return {f"mlx5_{index}": Card((Nic(f"mlx5_{index}", numa=node),)) for index, node in enumerate(nodes)}


def _set(cpulist: str | None) -> set[int]:
    assert cpulist is not None
    return set(parse_cpulist(cpulist, "test"))


def test_siblings_in_the_upper_half() -> None:
    # Two sockets of 8 cores: 0-7,16-23 and 8-15,24-31. Core 0 stays, the last two serve the NIC, 5 cores for 2 GPUs.
    cpus, numa = cores(sockets=2, nodes=2, each=8)
    got = allot(_machine(cpus, numa), CorePolicy(), _gpus(0, 0, 1, 1), _cards(0, 1))
    assert got.rank == {"GPU0": "1-2,17-18", "GPU1": "3-4,19-20", "GPU2": "9-10,25-26", "GPU3": "11-12,27-28"}
    assert got.irq == {"mlx5_0": "6-7,22-23", "mlx5_1": "14-15,30-31"}
    # One thread of each core: two vectors on one core only wait for each other.
    assert got.vectors == {"mlx5_0": "6-7", "mlx5_1": "14-15"}
    assert got.control == {"mlx5_0": "0,16", "mlx5_1": "8,24"}
    # The fifth core of each node cannot be divided: it stays with the system.
    assert got.housekeeping == "0,5,8,13,16,21,24,29"
    assert got.because["GPU0"] == "2 cores of numa0; 1 left over by the even division stay with the system"


def test_sockets_numbered_odd_and_even() -> None:
    cpus, numa = cores(sockets=2, nodes=2, each=4, numbering="odd-even")
    assert numa[0].cpus == "0,2,4,6,8,10,12,14"
    got = allot(_machine(cpus, numa), CorePolicy(1, 1), _gpus(0, 1), _cards(0, 1))
    # Cores of node 0 are (0,8) (2,10) (4,12) (6,14); of node 1 (1,9) (3,11) (5,13) (7,15).
    assert got.rank == {"GPU0": "2,4,10,12", "GPU1": "3,5,11,13"}
    assert got.irq == {"mlx5_0": "6,14", "mlx5_1": "7,15"}


def test_siblings_side_by_side() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=4, numbering="pairs")
    got = allot(_machine(cpus, numa), CorePolicy(1, 1), _gpus(0), _cards(0))
    assert got.rank == {"GPU0": "2-5"}
    assert got.irq == {"mlx5_0": "6-7"}


def test_nodes_with_three_and_one_gpu_under_snc_are_pooled_by_socket() -> None:
    # Two sockets of two nodes of 12 cores. Each node keeps 1; each NIC takes 1: the nodes have 8, 10, 8, 10 left.
    # 18 cores for 4 GPUs of a socket: 4 each. Node 0 alone would give its three GPUs only 2 (8 // 3).
    cpus, numa = cores(sockets=2, nodes=4, each=12)
    got = allot(
        _machine(cpus, numa), CorePolicy(1, 1), _gpus(0, 0, 0, 1, 2, 2, 2, 3), _cards(0, 0, 0, 1, 2, 2, 2, 3)
    )
    assert {name: len(_set(cpus_)) // 2 for name, cpus_ in got.rank.items()} == {
        f"GPU{index}": 4 for index in range(8)
    }
    # Node 0 has 8 cores left: 2, 3 and 3; the missing 2, 1 and 1 come from node 1.
    assert got.because["GPU0"].startswith("4 cores of numa0, 2 of them borrowed from numa1")
    assert got.because["GPU3"].startswith("4 cores of numa1; 2 left over")
    sockets = [
        _set(",".join(got.rank[f"GPU{index}"] or "" for index in group))
        for group in ((0, 1, 2, 3), (4, 5, 6, 7))
    ]
    assert max(cpu for cpu in sockets[0] if cpu < 48) < 24
    assert min(cpu for cpu in sockets[1] if cpu < 48) >= 24


def test_ranks_take_whole_l3_groups_where_they_fit() -> None:
    # Three groups of 4: core 0 stays, the last core serves the NIC: 3, 4 and 3 are left for two ranks of 5.
    cpus, numa = cores(sockets=1, nodes=1, each=12, threads=1, l3=4)
    got = allot(_machine(cpus, numa), CorePolicy(1, 1), _gpus(0, 0), _cards(0))
    assert got.rank == {"GPU0": "1,4-7", "GPU1": "2-3,8-10"}


def test_the_cores_of_a_node_without_gpus_on_the_same_socket_are_used() -> None:
    # Four nodes on one socket, GPUs on nodes 3 and 1 only, as EPYC numbers them.
    cpus, numa = cores(sockets=1, nodes=4, each=4, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(1, 0), _gpus(3, 1), {})
    assert got.rank == {"GPU0": "0-3,12-15", "GPU1": "4-11"}


def test_a_gpu_whose_node_has_no_cores_takes_the_nearest() -> None:
    cpus, numa = cores(sockets=2, nodes=2, each=4, threads=1)
    memory = NumaNode(2, "", (40, 80, 10))
    got = allot(_machine(cpus, (*numa, memory)), CorePolicy(1, 1), _gpus(2), {})
    assert got.rank == {"GPU0": "1-3"}
    assert got.because["GPU0"] == "3 cores of numa0, the nearest node with cores (numa2 has none)"


def test_an_unknown_node_is_not_node_0() -> None:
    cpus, numa = cores(sockets=2, nodes=2, each=5, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(1, 1), _gpus(None, None), _cards(None))
    assert got.rank == {"GPU0": "1-4", "GPU1": "6-9"}
    assert got.because["GPU1"] == "4 cores of numa1, since its own node is not known"
    assert (got.irq, got.vectors, got.control) == ({"mlx5_0": None}, {"mlx5_0": None}, {"mlx5_0": None})


def test_a_known_gpu_keeps_its_node_beside_an_unknown_one() -> None:
    cpus, numa = cores(sockets=2, nodes=2, each=5, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(1, 1), _gpus(None, 0), {})
    assert got.rank == {"GPU0": "6-9", "GPU1": "1-4"}


def test_a_machine_without_numa_is_one_group() -> None:
    cpus, _ = cores(sockets=1, nodes=1, each=6, threads=1)
    flat = replace(cpus, cores=tuple(replace(core, numa=None, socket=None) for core in cpus.cores))
    got = allot(_machine(flat, ()), CorePolicy(1, 1), _gpus(None, None), _cards(None))
    assert got.rank == {"GPU0": "1-2", "GPU1": "3-4"}
    assert got.irq == {"mlx5_0": "5"}
    assert got.because["GPU0"] == "2 cores of the machine"


def test_isolated_offline_and_forbidden_cpus_are_left_out_and_named() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=8, threads=1)
    held = replace(cpus, isolated="2", offline="3", allowed="0-6")
    got = allot(_machine(held, numa), CorePolicy(1, 1), _gpus(0), _cards(0))
    assert got.rank == {"GPU0": "1,4-5"}
    assert got.irq == {"mlx5_0": "6"}
    assert [(finding.code, finding.severity, finding.where) for finding in got.findings] == [
        ("cores.offline", "info", "3"),
        ("cores.isolated", "info", "2"),
        ("cores.allowed", "warning", "7"),
    ]
    assert got.findings[2].why.startswith("CPUs 7 are barred by the cgroup or affinity of who read the node")


def test_a_cpu_that_is_left_out_for_two_reasons_is_named_once() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=8, threads=1)
    held = replace(cpus, isolated="2-3", offline="3", allowed="0-1,3-7")
    got = allot(_machine(held, numa), CorePolicy(1, 1), _gpus(0), _cards(0))
    assert [(finding.code, finding.where) for finding in got.findings] == [
        ("cores.offline", "3"),
        ("cores.isolated", "2"),
    ]


def test_one_thread_that_is_left_out_leaves_the_other_to_its_core() -> None:
    # Siblings n and n + 4; CPU 6 is offline, so core 2 is CPU 2 alone.
    cpus, numa = cores(sockets=1, nodes=1, each=4)
    got = allot(_machine(replace(cpus, offline="6"), numa), CorePolicy(1, 1), _gpus(0), _cards(0))
    assert (got.rank, got.irq) == ({"GPU0": "1-2,5"}, {"mlx5_0": "3,7"})


def test_a_machine_of_which_every_cpu_is_barred_says_who_bars_them() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=2, threads=1)
    got = allot(_machine(replace(cpus, allowed="8-9"), numa), CorePolicy(), _gpus(0), _cards(0))
    assert (got.rank, got.because) == ({"GPU0": None}, {"GPU0": "no core is left for it"})
    assert [(finding.code, finding.where) for finding in got.findings] == [("cores.allowed", "0-1")]


def test_on_an_epyc_ranks_share_no_l3_that_they_need_not_share() -> None:
    # Four L3 groups of 4 on each node, two GPUs: one core stays, the NIC's two come off the end, so 13 are left
    # (3, 4, 4, 2) and each rank has 6: a whole group and half of another's rest.
    cpus, numa = cores(sockets=2, nodes=2, each=16, threads=1, l3=4)
    got = allot(_machine(cpus, numa), CorePolicy(2, 1), _gpus(0, 0), _cards(0))
    groups = {name: {cpu // 4 for cpu in _set(cpulist)} for name, cpulist in got.rank.items()}
    assert {name: len(_set(cpulist)) for name, cpulist in got.rank.items()} == {"GPU0": 6, "GPU1": 6}
    # Six cores need two groups of four at least.
    assert {name: len(own) for name, own in groups.items()} == {"GPU0": 2, "GPU1": 2}
    assert not groups["GPU0"] & groups["GPU1"]


def test_few_cores_shrink_interrupts_before_ranks() -> None:
    # 8 cores, 4 GPUs, 2 NICs: with two cores a NIC, 3 would be left for 4 ranks; with one, 5.
    cpus, numa = cores(sockets=1, nodes=1, each=8, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(2, 1), _gpus(0, 0, 0, 0), _cards(0, 0))
    assert got.rank == {"GPU0": "1", "GPU1": "2", "GPU2": "3", "GPU3": "4"}
    assert got.irq == {"mlx5_0": "7", "mlx5_1": "6"}
    (few,) = got.findings
    assert (few.code, few.where) == ("cores.few", "numa0")
    assert few.why == "too few cores for 2 to each of 2 NICs: interrupts get 1 each"


def test_with_fewer_still_interrupts_share_the_systems_core() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=4, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(2, 1), _gpus(0, 0, 0), _cards(0, 0))
    assert got.rank == {"GPU0": "1", "GPU1": "2", "GPU2": "3"}
    assert got.irq == {"mlx5_0": "0", "mlx5_1": "0"}
    assert got.findings[0].why.endswith("interrupts get the system's cores")


def test_with_a_core_for_each_gpu_only_the_system_keeps_none() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=2, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(2, 1), _gpus(0, 0), {})
    assert got.rank == {"GPU0": "0", "GPU1": "1"}
    assert [finding.why for finding in got.findings] == ["too few cores to keep 1 for the system: none stay"]


def test_fewer_cores_than_gpus_are_shared() -> None:
    cpus, numa = cores(sockets=1, nodes=1, each=2, threads=1)
    got = allot(_machine(cpus, numa), CorePolicy(), _gpus(0, 0, 0), _cards(0))
    assert set(got.rank.values()) == {"0-1"}
    assert "2 cores for 3 GPUs: their ranks share them" in [finding.why for finding in got.findings]
    assert got.irq == {"mlx5_0": "0"}


def test_unknown_cores_stay_unknown() -> None:
    result = plan(hgx(2).facts(), Policy())
    assert {gpu.cpus for gpu in result.gpus} == {None}
    assert result.housekeeping_cpus is None
    assert {rank.command for rank in result.ranks} == {None}
    assert result.gpus[0].because.endswith("the witness does not show the cores")
    assert "irq_affinity" not in result.slices


def _check(facts: Facts, policy: CorePolicy, gpus: Sequence[Gpu], cards: dict[str, Card], got: Cores) -> None:
    siblings = {cpu: set(core.cpus) for core in facts.cpus.cores for cpu in core.cpus}
    shares = [("house", _set(got.housekeeping))]
    shares += [(gpu.name, _set(got.rank[gpu.name])) for gpu in gpus]
    shares += [(name, _set(got.irq[name])) for name in cards]
    for name, cpus in shares:
        assert all(siblings[cpu] <= cpus for cpu in cpus), f"{name} holds half a core"
    everything = [cpu for _, cpus in shares for cpu in cpus]
    assert len(everything) == len(set(everything)), "a core has two owners"
    assert set(everything) == set(siblings)
    numa_of = {cpu: core.numa for core in facts.cpus.cores for cpu in core.cpus}
    for name, card in cards.items():
        assert {numa_of[cpu] for cpu in _set(got.irq[name])} == {card.numa}
        assert len(_set(got.irq[name])) == policy.irq_per_nic * len(next(iter(siblings.values())))
    threads = len(next(iter(siblings.values())))
    for socket in {core.socket for core in facts.cpus.cores}:
        nodes = {core.numa for core in facts.cpus.cores if core.socket == socket}
        own = [gpu for gpu in gpus if gpu.numa in nodes]
        total = sum(core.socket == socket for core in facts.cpus.cores)
        left = (
            total
            - policy.housekeeping * len(nodes)
            - policy.irq_per_nic * sum(c.numa in nodes for c in cards.values())
        )
        for gpu in own:
            # Nobody can have more without another having less than that.
            assert len(_set(got.rank[gpu.name])) == left // len(own) * threads
            assert {numa_of[cpu] for cpu in _set(got.rank[gpu.name])} <= nodes


@pytest.mark.parametrize("seed", range(300))
def test_on_random_machines_cores_are_whole_disjoint_local_and_fair(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 (a dice, no secret)
    sockets = dice.choice([1, 2])
    nodes = sockets * dice.choice([1, 2, 4])
    cpus, numa = cores(
        sockets,
        nodes,
        each=dice.randint(28, 36),
        threads=dice.choice([1, 2]),
        numbering=dice.choice(["half", "odd-even", "pairs"]),
        l3=dice.choice([None, 4, 8]),
    )
    gpus = _gpus(*sorted(dice.randrange(nodes) for _ in range(dice.randint(1, 8))))
    nics: list[Any] = [dice.randrange(nodes) for _ in range(dice.randint(0, 4))]
    policy = CorePolicy(dice.choice([1, 2]), dice.choice([0, 1, 2]))
    facts = _machine(cpus, numa)
    got = allot(facts, policy, gpus, _cards(*nics))
    assert not got.findings
    _check(facts, policy, gpus, _cards(*nics), got)


def test_a_policy_that_asks_for_more_cores_than_there_are_gets_what_fits_and_is_told() -> None:
    cpus, numa = cores(sockets=2, nodes=2, each=8)
    got = allot(_machine(cpus, numa), CorePolicy(10**12, 10**12), _gpus(0, 0, 1, 1), _cards(0, 1))
    assert all(got.rank[f"GPU{index}"] for index in range(4))
    assert "cores.few" in {finding.code for finding in got.findings}
