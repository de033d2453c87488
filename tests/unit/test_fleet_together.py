"""The nodes of a run planned together, from what lies in its record: who gets which plan, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import kept, steps, together, zipapp
from railwright.fleet.together import Files, Read, keep_fleet, plan_run
from railwright.node.model import Facts, InputError, Plan, Policy, to_json
from railwright.plan import plan
from tests.unit.fleet_support import Json, node

NAMES = ("node0", "node1", "node2")


def read(folder: Path, name: str, facts: Json, policy: Json | None = None, left: str = "") -> Read:
    (folder / name).mkdir()
    there = kept.keep(folder / name, {"facts": facts})
    return Read(there["facts"], to_json(Policy.read(policy or {})), left)


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, Read]:
    """Three nodes of one form."""
    return {name: read(tmp_path, name, node("four", number)) for number, name in enumerate(NAMES)}


def test_what_was_kept_is_read_as_it_was_and_what_was_not_is_itself(tmp_path: Path) -> None:
    facts = node("four", 0)
    there = kept.keep(tmp_path, {"facts": facts, "plan": {"a": ["é", None, 1.5]}, "policy": {}})
    assert kept.read(there["facts"]) == facts
    assert json.loads((tmp_path / "facts.json").read_text("utf-8")) == facts
    assert kept.read(there["plan"]) == {"a": ["é", None, 1.5]}
    assert kept.read(there["policy"]) == {}
    values: tuple[Any, ...] = (facts, None, "text", [], {"kept": "x"})
    for value in values:
        assert kept.read(value) == value


def test_a_record_that_another_run_has_written_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    there = kept.keep(tmp_path, {"facts": {"a": 1}})["facts"]
    kept.keep(tmp_path, {"facts": {"a": 2}})
    with pytest.raises(InputError, match=r"facts\.json: is not what this run has kept there: another run"):
        kept.read(there)
    (tmp_path / "facts.json").unlink()
    with pytest.raises(InputError, match=r"facts\.json: cannot be read: No such file"):
        kept.read(there)


def test_each_node_gets_the_plan_that_it_would_get_alone_with_the_fleets_policy(
    nodes: dict[str, Read],
) -> None:
    handed, fleet = plan_run(nodes, Files())
    assert list(handed) == list(NAMES)
    for name in NAMES:
        policy = Policy.read(kept.read(handed[name]["policy"]))
        assert policy == fleet.nodes[name].policy
        own = to_json(plan(Facts.read(kept.read(nodes[name].facts)), policy))
        # With the slices in their order, in which they are written.
        assert json.dumps(kept.read(handed[name]["plan"])) == json.dumps(own)
        assert handed[name]["refused"] == ""
    assert fleet.nodes["node0"].policy.expect.gpus == 4


def test_a_form_whose_plan_is_not_its_first_nodes_own_is_shared_by_none(
    nodes: dict[str, Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_its_own(facts: Facts, policy: Policy) -> Plan:
        return dataclasses.replace(plan(facts, policy), nccl={"NCCL_HOSTID": str(facts.host.name)})

    monkeypatch.setattr(together, "make_plan", of_its_own)
    handed, _ = plan_run(nodes, Files())
    names = {name: kept.read(nodes[name].facts)["host"]["name"] for name in NAMES}
    assert len(set(names.values())) == 3
    assert {name: kept.read(handed[name]["plan"])["nccl"]["NCCL_HOSTID"] for name in NAMES} == names


def test_a_node_whose_record_was_changed_is_refused_and_the_others_are_planned(
    nodes: dict[str, Read],
) -> None:
    Path(nodes["node1"].facts["kept"]).write_text("{}", encoding="utf-8")
    handed, fleet = plan_run(nodes, Files())
    assert "another run has written it since" in handed["node1"]["refused"]
    assert "plan" not in handed["node1"]
    assert [name for name in NAMES if handed[name]["refused"] == ""] == ["node0", "node2"]
    assert [(finding.code, finding.where) for finding in fleet.findings] == [("fleet.unusable", "node1")]


def test_facts_that_the_planner_has_no_use_for_refuse_their_node_alone(tmp_path: Path) -> None:
    good = read(tmp_path, "node0", node("four", 0))
    bad = read(tmp_path, "node1", {**node("four", 1), "worn": True})
    handed, _ = plan_run({"node0": good, "node1": bad}, Files())
    assert "worn: unknown key" in handed["node1"]["refused"]
    assert handed["node0"]["refused"] == ""


def test_a_node_that_is_left_alone_is_planned_and_its_check_is_a_skipped_one(tmp_path: Path) -> None:
    handed, _ = plan_run({"node0": read(tmp_path, "node0", node("four", 0), left="job 4711")}, Files())
    assert kept.read(handed["node0"]["plan"])["status"] == "planned"
    found: Any = json.loads((tmp_path / "node0/findings.json").read_text("utf-8"))
    assert found["checks"] == [
        {"name": "fleet.left", "ok": False, "skipped": True, "detail": "left alone: job 4711"}
    ]


def test_the_record_is_written_once_and_a_dry_run_leaves_it(nodes: dict[str, Read], tmp_path: Path) -> None:
    _, fleet = plan_run(nodes, Files())
    record = tmp_path / "site/record.json"
    keep_fleet(tmp_path, fleet, None)
    assert not record.exists()
    assert set(json.loads((tmp_path / "fleet.json").read_text("utf-8"))["nodes"]) == set(NAMES)
    keep_fleet(tmp_path, fleet, str(record))
    written = record.stat().st_ino
    keep_fleet(tmp_path, fleet, str(record))
    assert record.stat().st_ino == written
    again, known = plan_run(nodes, Files(record=str(record)))
    assert {node.state for node in known.nodes.values()} == {"same"}
    assert again["node0"]["refused"] == ""


@pytest.mark.parametrize(("text", "why"), [("{", "is not JSON"), ('{"schema": 1}', "schema"), ("[]", "dict")])
def test_a_damaged_record_is_named(nodes: dict[str, Read], tmp_path: Path, text: str, why: str) -> None:
    record = tmp_path / "record.json"
    record.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"record\.json.*" + why):
        plan_run(nodes, Files(record=str(record)))


def test_a_program_is_sent_only_where_it_does_not_lie_as_planned() -> None:
    sha256 = zipapp.digest()
    entry = {"kind": "file", "path": "/usr/local/lib/x.pyz", "sha256": sha256, "mode": "0644"}
    asked = {
        "schema": "railwright.plan/1",
        "status": "planned",
        "slices": {"boot_unit": {"stage": "runtime", "entries": [entry], "because": ""}},
    }
    there = {"path": "/usr/local/lib/x.pyz", "sha256": sha256, "mode": "0644", "uid": 0, "gid": 0}
    whole = {sha256: zipapp.blob()}
    assert steps.blobs_to_send(asked, {"files": [there]}) == {}
    for other in ({"sha256": None}, {"sha256": "0" * 64}, {"mode": "0600"}, {"uid": 1}, {"path": "/x"}):
        assert steps.blobs_to_send(asked, {"files": [{**there, **other}]}) == whole
    assert steps.blobs_to_send(asked, {"files": []}) == whole
