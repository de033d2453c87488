"""One plan for many nodes: who is odd, which rail is which, and what growth leaves alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from railwright.fleet.form import canonical
from railwright.fleet.members import Asked
from railwright.fleet.planning import FleetPlan, plan_fleet
from railwright.fleet.record import Record
from railwright.node.model import Facts, InputError, NicPolicy, Policy, to_json
from railwright.plan import plan
from tests.unit.fleet_support import FAULTS, SHAPES, Json, machine, node

POLICY = Policy()


def fleet(*kinds: tuple[str, int], first: int = 0, plant: dict[int, str] | None = None) -> list[Asked]:
    """Nodes of these kinds and counts, numbered on; plant: node number to fault."""
    made = []
    number = first
    for kind, count in kinds:
        for _ in range(count):
            facts = node(kind, number)
            if plant and number in plant:
                FAULTS[plant[number]][0](facts)
            made.append(Asked(f"node{number}", facts, POLICY))
            number += 1
    return made


def findings(planned: FleetPlan) -> list[tuple[str, str]]:
    return [(name, finding.code) for name, one in planned.nodes.items() for finding in one.findings]


def test_planted_faults_are_all_found_and_nothing_else() -> None:
    """Each fault on a node of its own, among 40 whole ones; five shapes."""
    plant = dict(enumerate(FAULTS))
    planned = plan_fleet(
        fleet(("clean", 40 + len(FAULTS)), ("snc", 4), ("pcie", 3), ("eight", 5), ("four", 3), plant=plant)
    )
    expected = [(f"node{number}", FAULTS[fault][1]) for number, fault in plant.items()]
    assert findings(planned) == expected
    assert planned.findings == ()
    assert len(planned.shapes) == len(SHAPES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_finding_names_the_device_and_what_most_have(fault: str) -> None:
    planned = plan_fleet(fleet(("clean", 5), plant={3: fault}))
    (finding,) = planned.nodes["node3"].findings
    _, code, word = FAULTS[fault]
    assert finding.code == code
    assert word in f"{finding.where} {finding.why}"
    assert "4 of 5 nodes" in finding.why
    assert finding.remedy
    assert [name for name, one in planned.nodes.items() if one.findings] == ["node3"]


def test_several_faults_of_one_node_are_told_one_by_one() -> None:
    nodes = fleet(("clean", 4), plant={2: "a GPU is missing"})
    FAULTS["the BIOS is older"][0](nodes[2].facts)
    FAULTS["a link lost lanes"][0](nodes[2].facts)
    codes = {code for _, code in findings(plan_fleet(nodes))}
    assert codes == {"fleet.gpu_missing", "fleet.bios", "fleet.link_width"}


def test_one_machine_under_two_names_is_told_and_a_card_that_moved_is_none() -> None:
    nodes = fleet(("clean", 3))
    nodes.append(Asked("alias", node("clean", 1), POLICY))
    nodes[2].facts["nics"][0]["guid"] = nodes[0].facts["nics"][0]["guid"]
    # Its addresses are told besides.
    (finding,) = (one for one in plan_fleet(nodes).findings if one.code.startswith("fleet."))
    assert (finding.code, finding.where) == ("fleet.one_machine", "alias")
    devices = len(nodes[1].facts["gpus"]) + sum(nic["address"] is not None for nic in nodes[1].facts["nics"])
    assert finding.why.startswith(f"is the machine node1: {devices} of its {devices} devices are the same")


def test_of_two_machines_the_one_with_more_devices_is_the_whole_one() -> None:
    planned = plan_fleet(fleet(("clean", 2), plant={0: "a GPU is missing"}))
    assert findings(planned) == [("node0", "fleet.gpu_missing")]


def test_machines_of_two_products_with_one_tree_are_no_measure_for_each_other() -> None:
    nodes = fleet(("clean", 2))
    nodes[1].facts["host"] |= {"product": "Another Maker's GX", "kernel": "6.8.0-1"}
    assert findings(plan_fleet(nodes)) == []


def test_where_no_value_has_a_majority_nobody_is_called_odd() -> None:
    planned = plan_fleet(fleet(("clean", 4), plant={0: "the BIOS is older", 1: "the BIOS is older"}))
    assert findings(planned) == []
    (finding,) = planned.findings
    assert finding.code == "fleet.no_majority"
    assert "2.2.9 on 2" in finding.why
    assert "2.3.1 on 2" in finding.why


def test_a_half_populated_chassis_is_a_shape_of_its_own() -> None:
    def half(facts: Json) -> Json:
        for bus in ("81", "a0", "b8", "d0"):
            top = f"pci0000:{bus}"
            below = {top}
            for device in sorted(facts["pci"], key=lambda device: device["address"]):
                if device["parent"] in below:
                    below.add(device["address"])
            for key in ("pci", "gpus", "nics"):
                facts[key] = [entry for entry in facts[key] if entry["address"] not in below]
        return facts

    nodes = fleet(("clean", 8))
    nodes += [Asked(f"half{n}", half(node("clean", 100 + n)), POLICY) for n in range(2)]
    planned = plan_fleet(nodes)
    assert findings(planned) == []
    assert [shape.nodes for shape in planned.shapes] == [8, 2]


# -- rails --


def rails_by_place(planned: FleetPlan, name: str, facts: Json) -> dict[int, str]:
    """Rail to the chassis's slot, read off the plan's JSON and the facts."""
    slots = {device["address"]: device["slot"] for device in facts["pci"]}
    made = json.loads(planned.plan_json(name))
    return {nic["rail"]: slots[nic["pci"]] for nic in made["nics"] if nic["role"] == "rail"}


def test_nodes_whose_kernel_numbers_nics_differently_have_equal_rails() -> None:
    planned = plan_fleet(fleet(("clean", 2), ("backwards", 2)))
    clean = rails_by_place(planned, "node0", machine("clean"))
    assert clean == dict(enumerate(["41", "42", "43", "44", "45", "46", "47", "48"]))
    assert rails_by_place(planned, "node3", machine("backwards")) == clean
    assert len(planned.shapes) == 1


def renumbered(facts: Json) -> Json:
    """Another BIOS: buses of the second socket come first. Slots stay what they are."""
    text = json.dumps(facts)
    for bus in range(256):
        text = text.replace(f"0000:{bus:02x}:", f"@{(bus + 0x80) & 0xFF:02x}:").replace(
            f"pci0000:{bus:02x}", f"pci@{(bus + 0x80) & 0xFF:02x}"
        )
    changed = json.loads(text.replace("@", "0000:"))
    changed["gpus"].sort(key=lambda gpu: gpu["address"])
    for index, gpu in enumerate(changed["gpus"]):
        gpu["index"], gpu["name"] = index, f"GPU{index}"
    return changed  # type: ignore[no-any-return]


def test_rails_follow_the_slot_where_the_firmware_numbers_buses_differently() -> None:
    nodes = fleet(("clean", 3))
    other = renumbered(node("clean", 9))
    alone = {nic.rail: nic.pci for nic in plan(Facts.read(other), POLICY).nics if nic.role == "rail"}
    planned = plan_fleet([*nodes, Asked("other", other, POLICY)])
    together = rails_by_place(planned, "other", other)
    assert together == rails_by_place(planned, "node0", machine("clean"))
    slots = {device["address"]: device["slot"] for device in other["pci"]}
    # On its own this node would have begun with the other socket.
    assert [slots[alone[rail]] for rail in range(2)] == ["45", "46"]


def test_without_slot_names_renumbered_buses_are_matched_by_the_form_of_the_tree() -> None:
    def bare(facts: Json) -> Json:
        for device in facts["pci"]:
            device["slot"] = None
        return facts

    nodes = [Asked(f"node{n}", bare(node("clean", n)), POLICY) for n in range(3)]
    other = renumbered(bare(node("clean", 9)))
    planned = plan_fleet([*nodes, Asked("other", other, POLICY)])
    (finding,) = planned.nodes["other"].findings
    assert finding.code == "fleet.renumbered"
    rails = {
        nic["pci"]: nic["rail"]
        for nic in json.loads(planned.plan_json("other"))["nics"]
        if nic["role"] == "rail"
    }
    # Bus 0c of the others is 8c here.
    assert rails["0000:8c:00.0"] == 0
    assert rails["0000:55:00.0"] == 7


def test_the_users_word_on_a_nic_is_kept_and_gets_its_rail_number() -> None:
    asked = replace(POLICY, nics=(NicPolicy("mlx5_0", "rail"), NicPolicy("mlx5_3", "management")))
    planned = plan_fleet([Asked("node0", node("clean", 0), asked)])
    nics = planned.nodes["node0"].policy.nics
    assert nics[:2] == (NicPolicy("mlx5_0", "rail", 0), NicPolicy("mlx5_3", "management"))
    assert [entry.rail for entry in nics[2:]] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("state", ["down", "slower"])
def test_a_port_that_looks_like_no_rail_alone_keeps_the_number_of_its_seat(state: str) -> None:
    nodes = fleet(("clean", 3))
    nic = next(nic for nic in nodes[1].facts["nics"] if nic["address"] == "0000:a5:00.0")
    nic.update({"state": "down", "rate": None} if state == "down" else {"rate": 200_000})
    part = dict(plan_fleet(nodes).nodes["node1"].part.rails)
    assert part == dict(plan_fleet(nodes).nodes["node0"].part.rails)


def test_a_missing_gpu_is_refused_by_the_shape_that_is_expected() -> None:
    planned = plan_fleet(fleet(("clean", 3), plant={1: "a GPU is missing"}))
    assert planned.nodes["node1"].policy.expect.gpus == 8
    assert planned.nodes["node1"].status == "refused"
    assert "7 of 8 GPUs" in planned.plan_json("node1")


def test_the_plan_of_a_node_is_what_its_policy_alone_gives() -> None:
    """What the node's own first boot does: facts and policy, and no fleet."""
    nodes = fleet(
        ("clean", 2), ("backwards", 1), ("snc", 1), ("pcie", 1), ("eight", 1), plant={1: "a GPU is missing"}
    )
    planned = plan_fleet(nodes)
    for asked in nodes:
        policy = Policy.read(to_json(planned.nodes[asked.name].policy))
        assert canonical(to_json(plan(Facts.read(asked.facts), policy))) == planned.plan_json(asked.name)


def test_naming_all_rails_changes_no_binding_and_no_other_role() -> None:
    for kind in (*SHAPES, "backwards"):
        facts = node(kind, 0)
        alone = plan(Facts.read(facts), POLICY)
        planned = json.loads(plan_fleet([Asked("node0", facts, POLICY)]).plan_json("node0"))
        assert [(gpu["name"], gpu["rail"], gpu["nics"]) for gpu in planned["gpus"]] == [
            (gpu.name, gpu.rail, list(gpu.nics)) for gpu in alone.gpus
        ]
        assert {nic["name"]: nic["role"] for nic in planned["nics"]} == {
            nic.name: nic.role for nic in alone.nics
        }
        assert planned["nccl"] == alone.nccl


# -- growth --


def texts(planned: FleetPlan, names: Iterable[str]) -> dict[str, str]:
    return {name: planned.plan_json(name) for name in names}


@pytest.mark.parametrize("more", [1, 2, 1000])
def test_nodes_that_join_leave_the_plans_of_the_others_byte_for_byte(more: int) -> None:
    """The newcomers are of a kind that would outvote the old ones: the reversed numbering, and another BIOS."""
    old = fleet(("clean", 3), ("pcie", 1))
    first = plan_fleet(old)
    record = Record.read(json.loads(json.dumps(first.record.json())))
    template = renumbered(node("backwards", 77))
    new = [
        Asked(f"new{n}", {**template, "host": {**template["host"], "name": f"new{n}"}}, POLICY)
        for n in range(more)
    ]
    grown = plan_fleet([*old, *new], record=record)
    assert texts(grown, first.nodes) == texts(first, first.nodes)
    assert {one.state for name, one in grown.nodes.items() if name in first.nodes} == {"same"}
    assert {one.state for name, one in grown.nodes.items() if name not in first.nodes} == {"new"}
    assert rails_by_place(grown, "new0", template) == rails_by_place(first, "node0", machine("clean"))


def test_newcomers_without_slot_names_are_matched_to_the_places_of_the_record() -> None:
    """Their buses are numbered otherwise, they are more, and nobody who was there before is in this run."""

    def bare(facts: Json) -> Json:
        for device in facts["pci"]:
            device["slot"] = None
        return facts

    record = plan_fleet([Asked("node0", bare(node("clean", 0)), POLICY)]).record
    record = Record.read(json.loads(json.dumps(record.json())))
    new = [Asked(f"new{n}", renumbered(bare(node("clean", 50 + n))), POLICY) for n in range(3)]
    part = dict(plan_fleet(new, record=record).nodes["new2"].part.rails)
    # Bus 0c of the old node is 8c here.
    assert (part["0000:8c:00.0"], part["0000:55:00.0"]) == (0, 7)


def test_without_the_record_the_newcomers_would_have_had_their_say() -> None:
    """The rack above, asked anew: what the record is for."""
    template = renumbered(node("clean", 77))
    new = [
        Asked(f"new{n}", {**template, "host": {**template["host"], "name": f"new{n}"}}, POLICY)
        for n in range(9)
    ]
    alone = plan_fleet([*fleet(("clean", 1)), *new])
    assert rails_by_place(alone, "node0", machine("clean"))[0] == "45"


def test_a_leased_node_is_left_and_keeps_its_entry() -> None:
    old = fleet(("clean", 2))
    record = plan_fleet(old).record
    changed = [replace(asked, policy=replace(POLICY, workload="moe-alltoall")) for asked in old]
    changed[0] = replace(changed[0], left="Slurm job 4711")
    planned = plan_fleet(changed, record=record)
    assert [(one.state, one.left) for one in planned.nodes.values()] == [
        ("left", "Slurm job 4711"),
        ("changed", None),
    ]
    assert planned.record.nodes["node0"] == record.nodes["node0"]
    assert planned.record.nodes["node1"] != record.nodes["node1"]


def test_a_card_that_moved_is_told_and_replan_follows_it() -> None:
    old = fleet(("clean", 3))
    record = plan_fleet(old).record
    moved = node("clean", 1)
    FAULTS["a NIC is in another slot"][0](moved)
    nodes = [old[0], Asked("node1", moved, POLICY), old[2]]
    told = plan_fleet(nodes, record=record).nodes["node1"]
    assert {finding.code for finding in told.findings} == {"fleet.other_slot", "fleet.rail_gone"}
    assert told.status == "refused"
    again = plan_fleet(nodes, record=record, replan=["node1"]).nodes["node1"]
    assert dict(again.part.rails)["0000:5b:01.0"] == 3
    assert again.status == "planned"


def test_one_name_for_two_nodes_is_an_error() -> None:
    with pytest.raises(InputError, match="node0: stands twice"):
        plan_fleet([*fleet(("eight", 1)), *fleet(("eight", 1))])


def test_a_node_of_no_use_is_named_with_the_place_and_stops_nobody() -> None:
    facts = node("eight", 0)
    facts["gpus"][2]["index"] = "two"
    planned = plan_fleet([*fleet(("eight", 2)), Asked("node5", facts, POLICY)])
    assert list(planned.nodes) == ["node0", "node1"]
    (finding,) = planned.findings
    assert (finding.code, finding.where) == ("fleet.unusable", "node5")
    assert "node5: facts.gpus[2].index: expected int, found str" in finding.why


def test_a_policy_that_contradicts_itself_stops_its_own_node_only() -> None:
    wrong = replace(POLICY, nics=(NicPolicy("mlx5_0", "storage", 3),))
    nodes = fleet(("eight", 3))
    planned = plan_fleet([nodes[0], replace(nodes[1], policy=wrong), nodes[2]])
    assert list(planned.nodes) == ["node0", "node2"]
    assert "only a rail has a rail number" in planned.findings[0].remedy
