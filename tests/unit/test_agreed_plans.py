"""The recorded machines and the plans that were agreed for them, read and checked by a person.

A plan.json is written by hand of `railwright plan --json DIRECTORY > plan.json` and a review, never by this test.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import InputError, Plan, Policy, to_json
from railwright.plan import plan
from tests.machinery import build

MACHINES = Path(__file__).resolve().parents[1] / "machines"
AGREED = sorted(path.parent.name for path in MACHINES.glob("*/plan.json"))
REJECTS = sorted(path.parent.name for path in MACHINES.glob("rejects/*/message.txt"))


def _policy(folder: Path) -> Policy:
    path = folder / "policy.json"
    return Policy.read(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Policy()


def test_every_recorded_machine_has_an_agreed_plan() -> None:
    assert [path.parent.name for path in sorted(MACHINES.glob("*/machine.yml"))] == AGREED
    assert len(REJECTS) >= 7


@pytest.mark.parametrize("machine", AGREED)
def test_the_plan_of_a_recorded_machine_is_the_agreed_one(machine: str, tmp_path: Path) -> None:
    build(MACHINES / machine, tmp_path / "tree")
    made = plan(discover(tmp_path / "tree"), _policy(MACHINES / machine))
    agreed = json.loads((MACHINES / machine / "plan.json").read_text(encoding="utf-8"))
    assert to_json(made) == agreed


@pytest.mark.parametrize("machine", REJECTS)
def test_what_must_be_refused_is_refused_in_the_agreed_words(machine: str, tmp_path: Path) -> None:
    folder = MACHINES / "rejects" / machine
    build(folder, tmp_path / "tree")
    try:
        made = plan(discover(tmp_path / "tree"), _policy(folder))
    except InputError as error:
        said = str(error)
    else:
        assert made.status == "refused", "nothing was refused"
        assert not made.slices
        said = "\n".join(f"{each.where}: {each.why}. {each.remedy}" for each in made.refusals)
    for phrase in (folder / "message.txt").read_text(encoding="utf-8").splitlines():
        assert phrase in said


def _agreed(machine: str) -> Plan:
    return Plan.read(json.loads((MACHINES / machine / "plan.json").read_text(encoding="utf-8")))


def test_rails_follow_the_chassis_and_not_the_kernels_numbers() -> None:
    plans = [_agreed("2s_8xh100_10xcx7"), _agreed("2s_8xh100_10xcx7_backwards")]
    rails = [{nic.rail: nic.pci for nic in made.nics if nic.role == "rail"} for made in plans]
    assert rails[0] == rails[1]
    assert [nic.name for nic in plans[0].nics] != [nic.name for nic in plans[1].nics]


def test_a_missing_gpu_does_not_shift_the_rails_of_the_others() -> None:
    whole, short = _agreed("2s_8xh100_10xcx7"), _agreed("2s_7xh100_10xcx7")
    rail_of = {nic.pci: nic.rail for nic in whole.nics if nic.rail is not None}
    assert len(rail_of) == 8
    assert {nic.pci: nic.rail for nic in short.nics if nic.rail is not None} == rail_of
    (alone,) = (nic for nic in short.nics if nic.role == "spare")
    assert (alone.rail, alone.gpus, alone.irq_cpus) == (5, (), None)
