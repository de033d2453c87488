"""Real machines with agreed answers: rails, roles, refusals and rates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.node.model import Facts, Plan, Policy, to_json
from railwright.plan import plan

_PLACE = os.environ.get("RAILWRIGHT_CAPTURES", "")
pytestmark = pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")


def _expected() -> dict[str, dict[str, Any]]:
    if not _PLACE:
        return {"none": {}}
    answers: dict[str, dict[str, Any]] = json.loads((Path(_PLACE) / "expected.json").read_text())
    return {name: answer for name, answer in answers.items() if not name.startswith("_")}


@pytest.mark.parametrize("name", _expected())
def test_a_real_machine_gets_its_agreed_answer(name: str) -> None:
    answer = _expected()[name]
    facts = captures.read([Path(_PLACE) / name])
    result = plan(facts, Policy())
    assert result.status == ("refused" if answer.get("refuse") else "planned")
    gpus = {str(gpu.index): gpu for gpu in result.gpus}
    for index, right in answer.get("rails", {}).items():
        assert gpus[index].nics, f"GPU{index} has no rail"
        assert set(gpus[index].nics) <= set(right)
    used = [nic for gpu in result.gpus for nic in gpu.nics]
    if answer.get("distinct"):
        assert len(used) == len(set(used))
    rails = {nic.name for nic in result.nics if nic.role in {"rail", "second-port"}}
    assert not rails & set(answer.get("nonrail", []))
    assert {index: gpus[index].numa for index in answer.get("numa", {})} == answer.get("numa", {})
    if "says" in answer:
        said = json.dumps(to_json((*result.findings, *result.refusals))).lower()
        assert any(word in said for word in answer["says"])
    if "bound_gbytes" in answer:
        assert result.bound.achieved_gbytes == pytest.approx(answer["bound_gbytes"], rel=0.02)
        assert result.bound.optimal is True


def _topologies() -> list[str]:
    return sorted(path.name for path in (Path(_PLACE) / "nccl_xml").glob("*.xml")) if _PLACE else ["none"]


@pytest.mark.parametrize("name", _topologies())
def test_every_topology_file_is_planned_at_its_bound_or_has_no_rail(name: str) -> None:
    result = plan(captures.read([Path(_PLACE) / "nccl_xml" / name]), Policy())
    if any(nic.role == "rail" for nic in result.nics):
        assert (result.status, result.bound.optimal) == ("planned", True)
    else:
        codes = {finding.code for finding in (*result.refusals, *result.findings)}
        assert codes & {"nics.none", "gpus.none"}


@pytest.mark.parametrize("name", _expected())
def test_the_plan_of_a_real_machine_survives_json_and_is_the_same_again(name: str) -> None:
    facts = captures.read([Path(_PLACE) / name])
    first = json.dumps(to_json(plan(facts, Policy())))
    again = json.dumps(to_json(plan(Facts.read(json.loads(json.dumps(to_json(facts)))), Policy())))
    assert first == again
    assert to_json(Plan.read(json.loads(first))) == json.loads(first)
