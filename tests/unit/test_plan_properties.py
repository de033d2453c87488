"""What must not change a plan, and what must not make it worse, on random machines."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railwright.node.model import Facts, Plan, Policy, to_json
from railwright.node.model.policy import WORKLOADS
from railwright.plan import explain, plan
from tests.unit.plan_machines import Chassis, Part, cores, with_cores

_ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


def _dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 (a dice, no secret)


def random_machine(dice: random.Random) -> Facts:
    """Switches, GPUs and NICs of several kinds and states, on one or two sockets, with cores."""
    chassis = Chassis()
    places: list[Part | int] = [0, 1]
    for _ in range(dice.randint(0, 6)):
        lying = dice.random() < 0.15
        places.append(
            chassis.switch(dice.choice(places), *((2.5, 1) if lying else (dice.choice([16.0, 32.0]), 16)))
        )
    for _ in range(dice.randint(1, 8)):
        chassis.gpu(dice.choice(places), dice.choice([16.0, 32.0]))
    for index in range(dice.randint(1, 8)):
        kind: dict[str, Any] = dice.choice(
            [{}, {}, {}, {"state": "down"}, {"link_layer": "Ethernet"}, {"default_route": True}]
        )
        chassis.nic(
            dice.choice(places),
            f"hca_{index}",
            dice.choice([200_000, 400_000]),
            netdev=f"zport{index}",
            **kind,
        )
    return with_cores(chassis.facts(dice.choice(["sysfs", "merged"])), *cores(2, 2, 24, l3=8))


def _bytes(result: Plan) -> str:
    return json.dumps(to_json(result))


# A dice whose throws hypothesis can make smaller. The same throws every time: a red run is red again.
on_random_machines = settings(max_examples=80, deadline=None, derandomize=True)
dices = st.randoms(use_true_random=False)


def _any_policy(dice: random.Random) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", "workload": dice.choice(WORKLOADS)})


@given(dices)
@on_random_machines
def test_same_inputs_same_bytes_through_json_and_back(dice: random.Random) -> None:
    facts, policy = random_machine(dice), _any_policy(dice)
    first = _bytes(plan(facts, policy))
    again = Policy.read(json.loads(json.dumps(to_json(policy))))
    assert _bytes(plan(Facts.read(json.loads(json.dumps(to_json(facts)))), again)) == first
    assert to_json(Plan.read(json.loads(first))) == json.loads(first)


@given(dices)
@on_random_machines
def test_the_order_of_the_facts_changes_nothing(dice: random.Random) -> None:
    facts, policy = random_machine(dice), _any_policy(dice)

    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dice.sample(items, len(items)))

    mixed = replace(
        facts,
        pci=shuffled(facts.pci),
        gpus=shuffled(facts.gpus),
        nics=shuffled(facts.nics),
        numa=shuffled(facts.numa),
        roots=shuffled(facts.roots),
        cpus=replace(facts.cpus, cores=shuffled(facts.cpus.cores)),
    )
    assert _bytes(plan(mixed, policy)) == _bytes(plan(facts, policy))


@given(dices)
@on_random_machines
def test_other_bus_numbers_in_the_same_order_change_names_only(dice: random.Random) -> None:
    facts, policy = random_machine(dice), _any_policy(dice)
    old = sorted({device.address for device in facts.pci})
    fresh = sorted(dice.sample(range(0x10, 0xF0), len(old)))
    renumbered = {address: f"0000:{bus:02x}{address[7:]}" for address, bus in zip(old, fresh, strict=True)}

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items()}
        if isinstance(value, list):
            return [change(item) for item in value]
        if isinstance(value, str):
            return _ADDRESS.sub(lambda match: renumbered.get(match[0], match[0]), value)
        return value

    moved = Facts.read(change(to_json(facts)))
    assert to_json(plan(moved, policy)) == change(to_json(plan(facts, policy)))


@given(dices)
@on_random_machines
def test_other_device_names_change_names_only(dice: random.Random) -> None:
    facts, policy = random_machine(dice), _any_policy(dice)

    def change(text: str) -> str:
        # Names of the same length and order, so that nothing else can differ.
        return text.replace("hca_", "hcb_").replace("zport", "yport")

    renamed = Facts.read(json.loads(change(json.dumps(to_json(facts)))))
    assert _bytes(plan(renamed, policy)) == change(_bytes(plan(facts, policy)))


@given(dices)
@on_random_machines
def test_device_names_in_any_order_change_nothing_but_the_pairing_by_index(dice: random.Random) -> None:
    facts, policy = random_machine(dice), _any_policy(dice)
    old = [nic.name for nic in facts.nics]
    new = dict(zip(old, dice.sample(old, len(old)), strict=True))
    swapped = replace(
        facts, nics=tuple(replace(nic, name=new[nic.name], rdma=new[nic.name]) for nic in facts.nics)
    )

    def decided(result: Plan) -> Any:
        place = {nic.name: nic.pci for nic in result.nics}
        return (
            result.status,
            [
                (gpu.name, [place[nic] for nic in gpu.nics], gpu.rail, gpu.path, gpu.cpus)
                for gpu in result.gpus
            ],
            sorted((nic.pci, nic.role, nic.rail, nic.gpus, nic.irq_cpus) for nic in result.nics),
            replace(result.bound, index_pairing_gbytes=None, verdict="", certificate=None),
        )

    assert decided(plan(swapped, policy)) == decided(plan(facts, policy))


def _all_rails(facts: Facts) -> Policy:
    nics = [{"match": nic.name, "role": "rail"} for nic in facts.nics if nic.state == "active"]
    return Policy.read({"schema": "railwright.policy/1", "nics": nics})


@given(dices)
@on_random_machines
def test_one_more_rail_never_lowers_a_rate(dice: random.Random) -> None:
    facts = random_machine(dice)
    up = [nic for nic in facts.nics if nic.state == "active"]
    for count in range(1, len(up)):
        fewer, more = (replace(facts, nics=tuple(up[:number])) for number in (count, count + 1))
        before, after = plan(fewer, _all_rails(fewer)).bound, plan(more, _all_rails(more)).bound
        assert (after.achieved_gbytes or 0) >= (before.achieved_gbytes or 0)
        assert (after.credible_gbytes or 0) >= (before.credible_gbytes or 0)
        assert (after.per_gpu_gbytes or 0) >= (before.per_gpu_gbytes or 0)


def _flow(links: dict[tuple[str, str], float], rate: float, sources: list[str], sinks: set[str]) -> int:
    """How many units of `rate` get from different sources to any sink, one path after the other (Ford-Fulkerson)."""
    left = {ends: int(gbytes / rate + 1e-9) for ends, gbytes in links.items()}
    ways: dict[str, set[str]] = {}
    for tail, head in links:
        ways.setdefault(tail, set()).add(head)
        ways.setdefault(head, set()).add(tail)

    def augment(here: str, seen: set[str]) -> bool:
        if here in sinks:
            return True
        seen.add(here)
        for there in sorted(ways.get(here, ())):
            if there not in seen and left.get((here, there), 0) > 0 and augment(there, seen):
                left[here, there] -= 1
                left[there, here] = left.get((there, here), 0) + 1
                return True
        return False

    return sum(augment(source, set()) for source in sources)


@pytest.mark.parametrize("seed", range(80))
def test_the_rate_of_the_plan_is_the_bound_of_the_flow(seed: int) -> None:
    """At its rate a flow from every GPU fits the links, and at the next possible rate none does; by another solver."""
    dice = _dice(seed)
    chassis = Chassis()
    places: list[Part | int] = [0, 1]
    for _ in range(dice.randint(0, 5)):
        places.append(chassis.switch(dice.choice(places), dice.choice([8.0, 16.0, 32.0]), 16))
    for _ in range(dice.randint(1, 8)):
        chassis.gpu(dice.choice(places), dice.choice([16.0, 32.0]))
    for index in range(dice.randint(1, 6)):
        chassis.nic(dice.choice(places), f"mlx5_{index}", dice.choice([100_000, 200_000, 400_000]))
    facts = chassis.facts()
    achieved = plan(facts, _all_rails(facts)).bound.achieved_gbytes or 0
    up: dict[tuple[str, str], float] = {}
    for gpu in chassis.gpus():
        for nic in chassis.nics():
            for name, gbytes in chassis.route(gpu, nic):
                tail, head = name.split(" -> ")
                up[tail, head] = gbytes
    sources = [gpu.address for gpu in chassis.gpus()]
    sinks = {f"port {nic.name}" for nic in chassis.nics()}
    rates = sorted({gbytes / k for gbytes in up.values() for k in range(1, len(sources) + 1)})
    assert _flow(up, achieved, sources, sinks) == len(sources)
    larger = [rate for rate in rates if rate > achieved * (1 + 1e-9)]
    assert not larger or _flow(up, larger[0], sources, sinks) < len(sources)


@given(dices)
@on_random_machines
def test_the_bounds_are_ordered_and_simpler_rules_never_beat_them(dice: random.Random) -> None:
    facts = random_machine(dice)
    bound = plan(facts, _all_rails(facts)).bound
    if bound.achieved_gbytes is None:
        return
    best = bound.achieved_gbytes * (1 + 1e-9)
    assert (bound.per_gpu_gbytes or 0) * (1 + 1e-9) >= bound.achieved_gbytes
    assert (bound.credible_gbytes or best) * (1 + 1e-9) >= bound.achieved_gbytes
    for rate in (bound.index_pairing_gbytes, bound.nearest_gbytes):
        assert rate is None or rate <= best
    assert bound.nccl_gbytes is None or bound.nccl_gbytes <= (bound.per_gpu_gbytes or 0) * (1 + 1e-9)


@given(dices)
@on_random_machines
def test_a_plan_is_whole(dice: random.Random) -> None:
    """Every device once, no NIC off its role, no core twice, loads within capacities, everything explained."""
    facts = random_machine(dice)
    result = plan(facts, Policy())
    assert result.status == "planned"
    assert {gpu.name for gpu in result.gpus} == {gpu.name for gpu in facts.gpus}
    assert {nic.name for nic in result.nics} == {nic.name for nic in facts.nics}
    roles = {nic.name: nic.role for nic in result.nics}
    assert all(roles[nic] in {"rail", "second-port"} for gpu in result.gpus for nic in gpu.nics)
    rails = [nic for nic in result.nics if nic.role == "rail"]
    numbers = [nic.rail for nic in rails if nic.rail is not None]
    assert len(numbers) == len(rails) == len(set(numbers))
    listed = result.nccl.get("NCCL_IB_HCA", "=").lstrip("=").split(",")
    assert [entry.split(":")[0] for entry in listed if entry] == [
        nic.rdma
        for nic in sorted(
            (n for n in result.nics if n.role in {"rail", "second-port"}), key=lambda n: n.rail or 0
        )
    ]
    for link in result.links:
        if link.capacity_gbytes is not None and link.load_gbytes is not None:
            assert link.load_gbytes <= link.capacity_gbytes * (1 + 1e-9)
    owners = Counter(
        cpu
        for cpus in (
            *(gpu.cpus for gpu in result.gpus),
            *(nic.irq_cpus for nic in result.nics),
            result.housekeeping_cpus,
        )
        for cpu in _cpus(cpus)
    )
    assert all(count == 1 for count in owners.values())
    said = [(gpu.name, gpu.because) for gpu in result.gpus] + [(nic.name, nic.because) for nic in result.nics]
    for name, because in said:
        assert because
        assert explain(result, name).startswith(name)
    assert 2 <= len(result.summary) <= 8


def _cpus(text: str | None) -> list[int]:
    parts = [part.split("-") for part in (text or "").split(",") if part]
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]


@pytest.mark.parametrize("seed", range(60))
def test_where_links_lie_the_believed_rate_is_the_best_there_is(seed: int) -> None:
    """Brute force over the believed links first, then over the stated ones among those that are as good."""
    dice = _dice(seed)
    chassis = Chassis()
    places: list[Part | int] = [0, 1]
    lying: set[str] = set()
    for _ in range(dice.randint(1, 4)):
        lies = dice.random() < 0.5
        switch = chassis.switch(dice.choice(places), *((2.5, 1) if lies else (32.0, 8)))
        places.append(switch)
        if lies:
            lying.add(switch.name)
    for _ in range(dice.randint(1, 4)):
        chassis.gpu(dice.choice(places))
    for index in range(dice.randint(1, 3)):
        chassis.nic(dice.choice(places), f"mlx5_{index}", dice.choice([200_000, 400_000]))
    facts = chassis.facts()
    result = plan(facts, _all_rails(facts))
    bad = {part.address for part in chassis.parts if part.name in lying}
    gpus, nics = chassis.gpus(), chassis.nics()
    routes = {(g, n): chassis.route(gpu, nic) for g, gpu in enumerate(gpus) for n, nic in enumerate(nics)}

    def rate(choice: tuple[int, ...], believed: bool) -> float:
        load = Counter(name for g, n in enumerate(choice) for name, _ in routes[g, n])
        capacity = {name: value for g, n in enumerate(choice) for name, value in routes[g, n]}
        return min(
            capacity[name] / count for name, count in load.items() if not (believed and _lies(name, bad))
        )

    choices = list(itertools.product(range(len(nics)), repeat=len(gpus)))
    credible = max(rate(choice, True) for choice in choices)
    assert result.bound.achieved_gbytes == pytest.approx(max(rate(choice, False) for choice in choices))
    assert result.bound.credible_gbytes == pytest.approx(credible)
    names = [part.name for part in nics]
    taken = tuple(names.index(gpu.nics[0]) for gpu in result.gpus)
    assert rate(taken, True) == pytest.approx(credible)
    as_good = [choice for choice in choices if rate(choice, True) >= credible * (1 - 1e-9)]
    assert rate(taken, False) == pytest.approx(max(rate(choice, False) for choice in as_good))


def _lies(link: str, bad: set[str]) -> bool:
    """Whether the link is a lying bridge's own uplink, in either direction."""
    a, b = link.split(" -> ")
    up = a in bad and (b.startswith("numa") or _number(b) < _number(a))
    down = b in bad and (a.startswith("numa") or _number(a) < _number(b))
    return up or down


def _number(address: str) -> int:
    # A switch has a lower bus number than everything below it.
    return int(address.split(":")[1], 16)
