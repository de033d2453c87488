"""Forms: machines that differ in what is their own share a plan, and each plan is as if it were made alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railwright.fleet.form import Forms, canonical, mask
from railwright.node.discover import discover
from railwright.node.model import Facts, InputError, Policy, to_json
from railwright.plan import plan
from tests.machinery import build
from tests.unit.fleet_support import MACHINES, node

RECORDED = sorted(path.parent.name for path in MACHINES.glob("*/machine.yml"))
POLICIES = [
    Policy.read(data)
    for data in (
        {},
        {"workload": "inference-latency"},
        {"workload": "moe-alltoall", "nccl": {"version": "2.18.5"}},
        {"nccl": {"addr_range": "10.100.0.0/16", "version": "2.30.7"}},
        {"nccl": {"addr_range": "10.100.1.0/24", "version": "2.18.5"}},
        {"nccl": {"gid_index": 3}},
        {"nccl": {"gid_index": 1}},
    )
]


@pytest.mark.parametrize("machine", RECORDED)
def test_the_plan_of_a_form_filled_in_is_the_plan_of_the_machine(machine: str, tmp_path: Path) -> None:
    build(MACHINES / machine, tmp_path / "tree")
    facts = to_json(discover(tmp_path / "tree"))
    for place, gpu in enumerate(facts["gpus"]):
        gpu["uuid"] = f'GPU-"{place}\\'
    for policy in POLICIES:
        forms = Forms()
        member = forms.add("node", facts, policy.nccl.addr_range)
        assert forms.plan_json(member, policy) == canonical(to_json(plan(Facts.read(facts), policy)))


@settings(max_examples=15, deadline=None)
@given(
    first=st.integers(0, 1 << 20),
    second=st.integers(0, 1 << 20),
    kind=st.sampled_from(["clean", "pcie", "eight"]),
)
def test_nodes_of_one_build_share_a_form_whatever_is_their_own(first: int, second: int, kind: str) -> None:
    forms = Forms()
    members = [forms.add(f"node{number}", node(kind, number)) for number in (first, second)]
    assert len(forms.forms) == 1
    for number, member in zip((first, second), members, strict=True):
        alone = canonical(to_json(plan(Facts.read(node(kind, number)), Policy())))
        assert forms.plan_json(member, Policy()) == alone
    assert forms.plans_made == 1


def test_equal_values_stay_equal_and_zeros_stay_zeros() -> None:
    facts = node("clean", 1)
    facts["nics"][1]["sys_image_guid"] = facts["nics"][0]["sys_image_guid"]
    facts["nics"][2]["sys_image_guid"] = "0000:0000:0000:0000"
    masked, own = mask(facts)
    guids = [nic["sys_image_guid"] for nic in masked["nics"]]
    assert guids[0] == guids[1] != guids[3]
    assert guids[2] == "0000:0000:0000:0000"
    assert facts["nics"][0]["sys_image_guid"] in own


def test_a_machine_whose_host_holds_a_token_is_planned_as_it_is() -> None:
    facts = node("eight", 1)
    facts["host"]["kernel"] = "rw@0@rw"
    assert mask(facts) == (facts, ())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("gpus", 0, "uuid"), 7, "facts.gpus[0].uuid: expected str"),
        (("nics", 0, "mac"), ["x"], "facts.nics[0].mac: expected str"),
        (("nics",), "none", "facts.nics: expected list"),
        (("host",), [], "facts.host: expected dict"),
        (("host", "name"), "a b", "facts.host.name: found 'a b'"),
        (("irqs",), {}, "facts.irqs: expected list"),
    ],
)
def test_what_is_masked_is_still_refused_when_it_is_nonsense(
    place: tuple[str | int, ...], value: object, message: str
) -> None:
    facts = json.loads(json.dumps(node("eight", 1)))
    inner = facts
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InputError) as error:
        Forms().add("node9", facts)
    assert str(error.value).startswith(f"node9: {message}")
