"""What each workload changes: assignment, NCCL, kernel and what later roles read, each by name and each switchable."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import Facts, InputError, NvLink, Plan, Policy, Setting
from railwright.node.model.policy import WORKLOADS
from railwright.plan import explain, plan
from railwright.plan.workloads import TABLE
from tests.unit.plan_machines import Chassis, Part, hgx

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


def _settings(result: Plan) -> dict[str, Setting]:
    return {setting.name: setting for setting in result.settings}


# ----- the table -----------------------------------------------------------------------------------------------------


def test_every_row_says_why_from_whom_and_how_sure() -> None:
    for effect in TABLE:
        assert effect.why, effect.name
        assert effect.source, effect.name
        assert effect.confidence in {"A", "B", "C"}
        assert effect.workloads, effect.name
        assert set(effect.workloads) <= set(WORKLOADS)
        # A value that nobody is quoted for is called a practice, and a practice is not read in a source.
        assert not (effect.source.startswith("practice") and effect.confidence != "C")


def test_one_workload_has_one_value_of_each_effect() -> None:
    said = Counter((effect.name, workload) for effect in TABLE for workload in effect.workloads)
    assert set(said.values()) == {1}
    kinds = {effect.name: {other.kind for other in TABLE if other.name == effect.name} for effect in TABLE}
    assert all(len(kind) == 1 for kind in kinds.values())


def test_what_good_sources_contradict_each_other_on_is_not_in_the_table() -> None:
    contested = {
        "vm.zone_reclaim_mode",
        "vm.swappiness",
        "net.core.rmem_max",
        "net.ipv4.conf.all.rp_filter",
        "vm.min_free_kbytes",
        "NCCL_IB_QPS_PER_CONNECTION",
        "isolcpus",
    }
    assert not contested & {effect.name for effect in TABLE}


@pytest.mark.parametrize(
    ("workload", "asked"),
    [
        (
            "train-large",
            {"assignment": "rate", "cpu.force_latency": "99", "memory.transparent_hugepage": "always"},
        ),
        ("train-single-node", {"assignment": "distance", "rails": "optional", "cpu.force_latency": "99"}),
        (
            "inference-latency",
            {
                "assignment": "distance",
                "NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1",
                "cpu.force_latency": "cstate.id_no_zero:1|3",
                "memory.transparent_hugepage": "never",
                "net.core.busy_poll": "50",
            },
        ),
        ("inference-throughput", {"assignment": "rate", "rails": "optional", "cpu.force_latency": "99"}),
        (
            "moe-alltoall",
            {"assignment": "rate-even", "rails": "expected", "cpu.force_latency": "cstate.id_no_zero:1|3"},
        ),
    ],
)
def test_each_workload_shows_what_it_asks_for(workload: str, asked: dict[str, str]) -> None:
    found = _settings(plan(hgx(2).facts(), _policy(workload=workload)))
    assert {name: found[name].value for name in asked} == asked
    assert ("kernel.numa_balancing" in found) is True
    # A node whose jobs stay inside it needs no large table of neighbours and no ECN.
    alone = workload == "train-single-node"
    assert ("roce.ecn" in found) is not alone
    assert ("net.ipv4.neigh.default.gc_thresh3" in found) is (workload in {"train-large", "moe-alltoall"})


def test_all_workloads_differ_in_what_they_ask_for() -> None:
    asked = [
        tuple(
            (setting.name, setting.value) for setting in plan(hgx(1).facts(), _policy(workload=name)).settings
        )
        for name in WORKLOADS
    ]
    assert len(set(asked)) == len(WORKLOADS)


# ----- switching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_effect_can_be_left_out_and_given_another_value(workload: str) -> None:
    facts = hgx(
        2, sysctls=dict.fromkeys({effect.name for effect in TABLE if effect.kind == "sysctl"}, "7")
    ).facts()
    usual = plan(facts, _policy(workload=workload))
    for setting in usual.settings:
        off = plan(facts, _policy(workload=workload, effects={setting.name: False}))
        assert _settings(off)[setting.name].value is None
        assert "policy" in _settings(off)[setting.name].because
        assert setting.name not in off.nccl
        assert setting.name not in _kernel(off)
        if setting.kind == "plan":
            continue
        other = plan(facts, _policy(workload=workload, effects={setting.name: "3"}))
        assert (_settings(other)[setting.name].value, _settings(other)[setting.name].source) == (
            "3",
            "the node's policy",
        )
        where = {"nccl": other.nccl, "sysctl": _kernel(other)}.get(setting.kind)
        assert where is None or where[setting.name] == "3"


def _kernel(result: Plan) -> dict[str, str]:
    entries = result.slices["sysctls"].entries if "sysctls" in result.slices else ()
    return {entry["name"]: entry["value"] for entry in entries if entry["kind"] == "sysctl"}


def test_an_effect_of_another_workload_can_be_taken_over() -> None:
    result = plan(hgx(1).facts(), _policy(effects={"NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1"}))
    assert result.nccl["NCCL_ALLOC_P2P_NET_LL_BUFFERS"] == "1"
    assert "train-large does not by itself" in _settings(result)["NCCL_ALLOC_P2P_NET_LL_BUFFERS"].because


def test_the_closer_word_of_the_policy_shows_in_the_settings_too() -> None:
    sysctls, nccl = {"kernel.numa_balancing": ""}, {"env": {"NCCL_ALLOC_P2P_NET_LL_BUFFERS": "0"}}
    result = plan(hgx(1).facts(), _policy(workload="inference-latency", sysctls=sysctls, nccl=nccl))
    found = _settings(result)
    assert found["kernel.numa_balancing"].value is None
    assert found["NCCL_ALLOC_P2P_NET_LL_BUFFERS"].value == "0"


@pytest.mark.parametrize(
    ("effects", "where", "remedy"),
    [
        ({"cpu.force_latenzy": False}, "policy.effects.cpu.force_latenzy", "cpu.force_latency"),
        ({"assignment": "nearest"}, "policy.effects.assignment", "distance"),
        ({"rails": "none"}, "policy.effects.rails", "optional"),
    ],
)
def test_an_effect_that_there_is_none_of_is_an_input_error(
    effects: dict[str, Any], where: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan(hgx(1).facts(), _policy(effects=effects))
    assert caught.value.where == where
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("value", [True, 1, "", "two words", "a\nb", None])
def test_an_effect_is_left_out_or_has_one_word(value: object) -> None:
    with pytest.raises(InputError) as caught:
        _policy(effects={"skew_tick": value})
    assert caught.value.where == "policy.effects.skew_tick"


# ----- the objective -------------------------------------------------------------------------------------------------


def _two_choices() -> Facts:
    """Two GPUs at Gen3 x8 beside a NIC that could serve both, and a second NIC one switch further."""
    chassis = Chassis()
    top = chassis.switch(0)
    inner = chassis.switch(top)
    chassis.gpu(inner, 8.0, 8)
    chassis.gpu(inner, 8.0, 8)
    chassis.nic(inner, "mlx5_0")
    chassis.nic(top, "mlx5_1")
    return chassis.facts()


@pytest.mark.parametrize(
    ("workload", "nics"),
    [
        ("train-large", ["mlx5_0", "mlx5_0"]),
        ("moe-alltoall", ["mlx5_0", "mlx5_1"]),
        ("inference-throughput", ["mlx5_0", "mlx5_0"]),
    ],
)
def test_for_all_to_all_nics_are_used_evenly_where_the_rate_is_the_same(
    workload: str, nics: list[str]
) -> None:
    # Each GPU sends 6 GB/s at most, so one NIC of 48 GB/s serves both at the full rate.
    result = plan(_two_choices(), _policy(workload=workload))
    assert [gpu.nics[0] for gpu in result.gpus] == nics
    assert result.bound.achieved_gbytes == 6


@pytest.mark.parametrize("workload", ["inference-latency", "train-single-node"])
def test_for_work_inside_the_node_the_nearest_nic_counts_before_the_rate_of_all(workload: str) -> None:
    chassis = Chassis()
    top = chassis.switch(0)
    inner = chassis.switch(top)
    chassis.gpu(inner)
    chassis.gpu(inner)
    chassis.nic(inner, "mlx5_0")
    chassis.nic(top, "mlx5_1")
    result = plan(chassis.facts(), _policy(workload=workload))
    assert [gpu.nics for gpu in result.gpus] == [("mlx5_0",), ("mlx5_0",)]
    assert result.bound.optimal is False
    told = plan(chassis.facts(), _policy(workload=workload, effects={"assignment": "rate"}))
    assert [gpu.nics for gpu in told.gpus] == [("mlx5_0",), ("mlx5_1",)]


def test_a_node_without_rails_is_a_warning_only_where_rails_are_expected() -> None:
    facts = replace(hgx(1, storage=0).facts(), nics=())
    severity = {
        workload: [
            f.severity for f in plan(facts, _policy(workload=workload)).findings if f.code == "nics.none"
        ]
        for workload in WORKLOADS
    }
    assert severity == {
        "train-large": ["warning"],
        "moe-alltoall": ["warning"],
        "train-single-node": ["info"],
        "inference-latency": ["info"],
        "inference-throughput": ["info"],
    }


def test_the_rate_of_an_all_to_all_is_told_for_that_workload_only() -> None:
    facts = hgx(8).facts()
    assert plan(facts, Policy()).bound.alltoall_gbytes is None
    result = plan(facts, _policy(workload="moe-alltoall"))
    # Relayed over NVSwitches each rail's NIC sends for the GPU beside it.
    assert result.bound.alltoall_gbytes == 48
    # Where nobody knows the NVLinks' rate: half of each GPU's traffic goes to the other socket, four share 22 GB/s.
    alone = plan(hgx(8, sm=None).facts(), _policy(workload="moe-alltoall"))
    assert alone.bound.alltoall_gbytes == pytest.approx(22 / (4 * 0.5))
    assert "In an all-to-all over all rails each gets 11 GB/s." in alone.summary


def test_slow_nvlinks_limit_what_is_relayed() -> None:
    # Two links of 18 GB/s each into the switches (compute capability 6.0).
    chassis = Chassis()
    for index in range(4):
        switch = chassis.switch(index // 2)
        chassis.gpu(switch, sm=60, nvlinks=(NvLink("0000:e0:00.0", 1), NvLink("0000:e1:00.0", 1)))
        chassis.nic(switch, f"mlx5_{index}")
    facts = chassis.facts()
    assert plan(facts, _policy(workload="moe-alltoall")).bound.alltoall_gbytes == 36
    # The GPU with fewest links limits all; one without any has to send everything itself.
    for links, rate in ((facts.gpus[0].nvlinks or ())[:1], 18), ((), 22 / (2 * 0.5)):
        odd = (replace(facts.gpus[0], nvlinks=links), *facts.gpus[1:])
        told = plan(replace(facts, gpus=odd), _policy(workload="moe-alltoall")).bound
        assert told.alltoall_gbytes == pytest.approx(max(rate, 22 / (2 * 0.5)))


def test_a_gpu_whose_place_is_not_known_leaves_the_all_to_all_without_a_rate() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    chassis.gpu(None)
    chassis.nic(0, "mlx5_0")
    facts = chassis.facts()
    hidden = tuple(device for device in facts.pci if device.address != facts.gpus[1].address)
    assert plan(replace(facts, pci=hidden), _policy(workload="moe-alltoall")).bound.alltoall_gbytes is None


def test_a_plan_that_puts_distance_first_does_not_claim_the_rate_that_it_gave_up() -> None:
    chassis = Chassis()
    top = chassis.switch(0)
    inner = chassis.switch(top)
    chassis.gpu(inner)
    chassis.gpu(inner)
    chassis.nic(inner, "mlx5_0")
    chassis.nic(top, "mlx5_1")
    near = plan(chassis.facts(), _policy(workload="inference-latency"))
    # Both GPUs share the 48 GB/s of the nearest NIC.
    assert (near.bound.plan_gbytes, near.bound.achieved_gbytes, near.bound.of_plan) == (24, 48, 24)
    assert (
        "With all GPUs sending, each is sure of 24 GB/s; another pairing gives 48, but here the shortest way "
        "counts first."
    ) in near.summary
    fast = plan(chassis.facts(), Policy()).bound
    assert (fast.plan_gbytes, fast.achieved_gbytes, fast.of_plan) == (48, 48, 48)


def _gbytes_evenly(chassis: Chassis, gpus: list[Part], nics: list[Part]) -> float:
    """Rate of each GPU that spreads its traffic evenly over these NICs, by the chassis's own knowledge of its links."""
    load: dict[str, float] = {}
    capacity: dict[str, float] = {}
    for gpu, nic in itertools.product(gpus, nics):
        for name, gbytes in chassis.route(gpu, nic):
            load[name] = load.get(name, 0) + 1 / len(nics)
            capacity[name] = gbytes
    return min(capacity[name] / load[name] for name in load)


@pytest.mark.parametrize("seed", range(120))
def test_the_assignment_for_all_to_all_is_the_best_of_all_by_brute_force(seed: int) -> None:
    """Rate, then crossings, then evenness, then hops: compared with every assignment of a small machine."""
    dice = random.Random(seed)  # noqa: S311 (a dice, no secret)
    chassis = Chassis()
    places: list[Part | int] = [0, 1]
    for _ in range(dice.randint(0, 4)):
        places.append(chassis.switch(dice.choice(places), dice.choice([16.0, 32.0]), 16))
    for _ in range(dice.randint(1, 4)):
        chassis.gpu(dice.choice(places), dice.choice([8.0, 16.0, 32.0]), dice.choice([8, 16]))
    for index in range(dice.randint(1, 4)):
        chassis.nic(dice.choice(places), f"mlx5_{index}", dice.choice([200_000, 400_000]))
    facts = chassis.facts()
    nics_policy = [{"match": nic.name, "role": "rail"} for nic in facts.nics]
    result = plan(facts, _policy(workload="moe-alltoall", nics=nics_policy))
    gpus, nics = chassis.gpus(), chassis.nics()
    routes = {(g, n): chassis.route(gpu, nic) for g, gpu in enumerate(gpus) for n, nic in enumerate(nics)}

    def worth(choice: tuple[int, ...]) -> tuple[float, int, int, int]:
        load = Counter(name for g, n in enumerate(choice) for name, _ in routes[g, n])
        capacity = {name: value for g, n in enumerate(choice) for name, value in routes[g, n]}
        rate = min(capacity[name] / count for name, count in load.items())
        crossings = sum(name.startswith("numa") and " -> numa" in name for name in load.elements())
        crowding = sum(count * (count - 1) // 2 for count in Counter(choice).values())
        return (-round(rate, 9), crossings, crowding, sum(load.values()))

    best = min(worth(choice) for choice in itertools.product(range(len(nics)), repeat=len(gpus)))
    names = [nic.name for nic in nics]
    taken = tuple(names.index(gpu.nics[0]) for gpu in result.gpus)
    assert worth(taken) == best
    if all(len(gpu.nics) == 1 for gpu in result.gpus):
        used = [nic for nic in nics if nic.name in {gpu.nics[0] for gpu in result.gpus}]
        assert result.bound.alltoall_gbytes == pytest.approx(_gbytes_evenly(chassis, gpus, used))


# ----- for people ----------------------------------------------------------------------------------------------------


def test_explaining_the_workload_gives_one_line_for_each_effect() -> None:
    facts = hgx(1, sysctls={"kernel.numa_balancing": "1"}).facts()
    result = plan(facts, _policy(effects={"skew_tick": False}))
    head, *lines = explain(result, "workload").splitlines()
    assert head == "train-large asks for (change any of it by name in policy.effects)"
    assert len(lines) == len(result.settings)
    assert (
        "  kernel.numa_balancing = 0 (written by sysctls): page migration fights the binding of ranks to cores and "
        "stalls GPU threads [A: tuned profiles/hpc-compute/tuned.conf; mlnx-tools mlnx_tune; open-mpi/ompi#11357]"
    ) in lines
    assert any(line.startswith("  cpu.governor = performance (for the role kernel): ") for line in lines)
    assert any(line.startswith("  assignment = rate (the planner follows it): ") for line in lines)
    assert any(line.startswith("  skew_tick = left out (for the role kernel): ") for line in lines)


def table_rows() -> list[str]:
    """The table of the page, from the data."""
    return [
        f"| `{effect.name}` | `{effect.value.replace('|', chr(92) + '|')}` | "
        f"{'all' if effect.workloads == WORKLOADS else ', '.join(effect.workloads)} | {effect.confidence} | "
        f"{effect.why} ({effect.source}) |"
        for effect in TABLE
    ]


def test_the_page_on_the_planner_holds_the_table_as_it_is() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| effect | value | workloads | sure | why (source) |")
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("|"))
    assert lines[start + 2 : end] == table_rows()
