"""The assignment is the best there is: against brute force, with a certificate that other code checks."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from railwright.node.model import Plan, Policy
from railwright.plan import plan
from tests.unit.plan_machines import Chassis, Part


# All NICs are rails here: what the roles make of a machine is another test.
def _named(chassis: Chassis) -> Policy:
    nics = [{"match": part.name, "role": "rail"} for part in chassis.nics()]
    return Policy.read({"schema": "railwright.policy/1", "nics": nics})


def _random_chassis(seed: int) -> Chassis:
    dice = random.Random(seed)  # noqa: S311 (a dice, no secret)
    chassis = Chassis(cross=22)
    places: list[Part | int] = [0, 1] if dice.random() < 0.8 else [0]
    roots = list(places)
    for _ in range(dice.randint(0, 4)):
        below = dice.choice(places)
        places.append(chassis.switch(below, dice.choice([8.0, 16.0, 32.0]), dice.choice([4, 8, 16])))
    # A switch without a device below is no part of the way: put GPUs and NICs anywhere.
    for _ in range(dice.randint(1, 4)):
        chassis.gpu(dice.choice(places), dice.choice([16.0, 32.0]), 16)
    for index in range(dice.randint(1, 3)):
        place = dice.choice(roots if dice.random() < 0.2 else places)
        chassis.nic(
            place, f"mlx5_{index}", dice.choice([100_000, 200_000, 400_000]), dice.choice([8.0, 16.0, 32.0])
        )
    return chassis


def _by_brute_force(chassis: Chassis) -> tuple[float, tuple[int, ...]]:
    """Best rate and assignment (NIC indices in PCI order), trying every assignment."""
    gpus, nics = chassis.gpus(), chassis.nics()
    routes = {(g, n): chassis.route(gpu, nic) for g, gpu in enumerate(gpus) for n, nic in enumerate(nics)}
    best: tuple[float, tuple[int, ...]] | None = None
    best_cost: tuple[float, int, int, int, tuple[int, ...]] | None = None
    for choice in itertools.product(range(len(nics)), repeat=len(gpus)):
        load = Counter(name for g, n in enumerate(choice) for name, _ in routes[g, n])
        capacity = {name: value for g, n in enumerate(choice) for name, value in routes[g, n]}
        rate = min(capacity[name] / count for name, count in load.items())
        crossings = sum(
            name.startswith("numa") and " -> numa" in name
            for g, n in enumerate(choice)
            for name, _ in routes[g, n]
        )
        hops = sum(len(routes[g, n]) for g, n in enumerate(choice))
        crowding = sum(count * count for count in Counter(choice).values())
        cost = (-round(rate, 9), crossings, hops, crowding, choice)
        if best_cost is None or cost < best_cost:
            best_cost, best = cost, (rate, choice)
    assert best is not None
    return best


def _check_certificate(chassis: Chassis, result: Plan) -> bool:
    """Whether the plan carries a certificate; asserts that it proves what it says."""
    certificate, achieved = result.bound.certificate, result.bound.achieved_gbytes
    gpus, nics = chassis.gpus(), chassis.nics()
    routes = {(g, n): chassis.route(gpu, nic) for g, gpu in enumerate(gpus) for n, nic in enumerate(nics)}
    capacity = {name: value for route in routes.values() for name, value in route}
    candidates = {value / k for value in capacity.values() for k in range(1, len(gpus) + 1)}
    larger = sorted(value for value in candidates if value > (achieved or 0) * (1 + 1e-9))
    if certificate is None:
        assert not larger
        return False
    assert certificate.rate_gbytes == pytest.approx(larger[0])
    for link in certificate.links:
        assert capacity[link.link] == pytest.approx(link.capacity_gbytes)
        assert link.admits == int(link.capacity_gbytes / certificate.rate_gbytes + 1e-9)
    assert certificate.admits == sum(link.admits for link in certificate.links)
    assert certificate.admits < certificate.gpus
    cut = {link.link for link in certificate.links}
    behind = [
        g for g in range(len(gpus)) if all(cut & {name for name, _ in routes[g, n]} for n in range(len(nics)))
    ]
    assert len(behind) >= certificate.gpus
    return True


@pytest.mark.parametrize("block", range(10))
def test_no_assignment_of_2500_random_machines_is_better_and_ties_break_as_promised(block: int) -> None:
    certified = 0
    for seed in range(block * 250, block * 250 + 250):
        chassis = _random_chassis(seed)
        result = plan(chassis.facts("merged" if seed % 2 else "sysfs"), _named(chassis))
        assert result.status == "planned", seed
        rate, choice = _by_brute_force(chassis)
        assert result.bound.achieved_gbytes == pytest.approx(rate), seed
        names = [part.name for part in chassis.nics()]
        assert [gpu.nics[0] for gpu in result.gpus] == [names[n] for n in choice], seed
        assert result.bound.optimal is True
        certified += _check_certificate(chassis, result)
    assert certified > 100
