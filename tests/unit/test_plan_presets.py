"""What facts cannot tell of a NIC: presets, kinds of NICs in the policy, NVSwitch management, refused plans."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import presets
from railwright.cli import main
from railwright.node.model import Facts, Gpu, InputError, Nic, PciDevice, Plan, Policy, Root, Witness, to_json
from railwright.node.model.facts import SCHEMA
from railwright.plan import plan
from tests.unit.plan_machines import Chassis, hgx

_PLACE = os.environ.get("RAILWRIGHT_CAPTURES", "")
_MODELS = {"CX-7": "0x1021", "BF3": "0xa2dc", "CX-6 Lx": "0x101f"}


def _policy(**more: Any) -> Policy:
    return Policy.read(presets.expanded({"schema": "railwright.policy/1", **more}, "policy"))


def _roles(result: Plan) -> dict[str, str]:
    return {nic.name: nic.role for nic in result.nics}


def _only(result: Plan, code: str) -> Any:
    (found,) = [finding for finding in (*result.refusals, *result.findings) if finding.code == code]
    return found


# -- machines of which somebody published what each port is for --


def _sr675() -> tuple[Facts, dict[str, str]]:
    """The machine of the captures' presets, and by RDMA device whether it carries GPU traffic."""
    told = (Path(_PLACE) / "presets/sr675v3-rtxpro6000.tsv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(told.splitlines(), delimiter="\t"))
    pci: list[PciDevice] = []
    nics: list[Nic] = []
    gpus: dict[int, Gpu] = {}
    buses = {row["pci"][5:7] for row in rows}
    for row in rows:
        bus, numa = row["pci"][5:7], int(row["numa"])
        switch = f"0000:{int(bus, 16) - 1:02x}:00.0"
        if switch not in {device.address for device in pci}:
            pci.append(PciDevice(switch, f"pci0000:{bus}", class_code="0x060400", numa=numa))
        # By the file's source: 41 is a ConnectX-6 Lx, 85 the BlueField-3, all others ConnectX-7.
        model = {"41": "CX-6 Lx", "85": "BF3"}.get(bus, "CX-7")
        pci.append(PciDevice(row["pci"], switch, "0x15b3", _MODELS[model], class_code="0x020000", numa=numa))
        nics.append(
            Nic(
                row["rdma"],
                row["pci"],
                row["rdma"],
                1,
                state="active",
                rate=25_000 if model == "CX-6 Lx" else 200_000,
                link_layer="InfiniBand" if model == "CX-7" and bus != "21" else "Ethernet",
                numa=numa,
                management=False,
            )
        )
        if row["gpu"]:
            index = int(row["gpu"].removeprefix("GPU"))
            address = f"0000:{bus}:1{index}.0"
            gpus[index] = Gpu(row["gpu"], index, address, numa=numa)
            pci.append(PciDevice(address, switch, "0x10de", "0x2bb5", class_code="0x030200", numa=numa))
    for index in (0, 1):
        address = f"0000:0{index + 1}:00.0"
        gpus[index] = Gpu(f"GPU{index}", index, address, numa=0)
        pci.append(PciDevice(address, "pci0000:00", "0x10de", "0x2bb5", class_code="0x030200", numa=0))
    facts = Facts(
        SCHEMA,
        (Witness("nccl-xml", "test"),),
        roots=(Root("pci0000:00", 0), *(Root(f"pci0000:{bus}", None) for bus in sorted(buses))),
        pci=tuple(pci),
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        nics=tuple(nics),
    )
    return facts, {row["rdma"]: row["traffic"] for row in rows}


@pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")
def test_the_published_sr675_is_told_by_its_preset_and_not_by_its_facts() -> None:
    facts, traffic = _sr675()
    east_west = {name for name, word in traffic.items() if word == "east-west"}
    by_facts = {
        name for name, role in _roles(plan(facts, Policy())).items() if role in {"rail", "second-port"}
    }
    assert by_facts != east_west
    result = plan(facts, _policy(presets=["lenovo-sr675v3-rtxpro6000"]))
    assert result.status == "planned"
    assert {name for name, role in _roles(result).items() if role in {"rail", "second-port"}} == east_west
    dpu = next(nic for nic in result.nics if nic.name == "mlx5_10")
    # PIX to GPU4, and north-south.
    assert (dpu.role, dpu.because) == ("storage", "the preset lenovo-sr675v3-rtxpro6000 says storage")


def _xe9680(dpu_rate: int = 400_000) -> Chassis:
    """Eight SuperNICs and a DPU that shares GPU4's switch, all of one PCI id, told apart by their boards."""
    chassis = Chassis()
    for index in range(8):
        switch = chassis.switch(index // 4)
        chassis.gpu(switch)
        if index == 4:
            # First in PCI order, so that nothing but its board speaks against it.
            chassis.nic(switch, "mlx5_9", dpu_rate, vendor="0x15b3", device="0xa2dc", board="MT_0000000884")
        chassis.nic(switch, f"mlx5_{index}", vendor="0x15b3", device="0xa2dc", board="MT_0000001069")
    return chassis


def test_the_front_end_dpu_of_an_xe9680_is_kept_off_the_rails_by_its_board() -> None:
    facts = _xe9680().facts()
    by_facts = plan(facts, Policy())
    assert by_facts.gpus[4].nics == ("mlx5_9",)
    result = plan(facts, _policy(presets=["dell-xe9680-h200"]))
    assert _roles(result)["mlx5_9"] == "storage"
    assert [gpu.nics for gpu in result.gpus] == [(f"mlx5_{index}",) for index in range(8)]
    assert "mlx5_9" not in result.nccl["NCCL_IB_HCA"]


def test_a_preset_for_another_machine_is_refused_by_name() -> None:
    result = plan(hgx(2).facts(), _policy(presets=["dell-xe9680-h200"]))
    refusal = _only(result, "policy.nics")
    assert refusal.where == "MT_0000001069"
    assert refusal.why == "the preset dell-xe9680-h200 names MT_0000001069, and this node has no such NIC"
    assert "take it out of policy.presets" in refusal.remedy


def test_the_users_word_comes_before_a_presets_and_one_nic_before_its_kind() -> None:
    facts = _xe9680().facts()
    spoken = [
        {"match": "mlx5_9", "role": "spare"},
        {"match": "15b3:A2DC", "role": "rail"},
        {"match": "mlx5_0", "role": "management"},
    ]
    result = plan(facts, _policy(presets=["dell-xe9680-h200"], nics=spoken))
    assert (_roles(result)["mlx5_9"], _roles(result)["mlx5_0"]) == ("spare", "management")
    assert result.nics[1].because == "the policy says rail"


def test_two_words_of_the_user_for_one_nic_are_still_an_error() -> None:
    for twice in (["mlx5_0", "0000:15:00.0"], ["15b3:a2dc", "MT_0000001069"]):
        with pytest.raises(InputError, match="name the same port"):
            plan(_xe9680().facts(), _policy(nics=[{"match": match, "role": "rail"} for match in twice]))


def test_a_kind_of_front_end_card_that_is_not_fitted_refuses_nothing() -> None:
    front = _policy(nics=[{"match": "15b3:101f", "role": "management"}])
    assert plan(hgx(2).facts(), front).status == "planned"
    rails = _policy(nics=[{"match": "15b3:1023", "role": "rail"}])
    assert _only(plan(hgx(2).facts(), rails), "policy.nics").where == "15b3:1023"


# -- presets as data --


@pytest.mark.parametrize("name", presets.names())
def test_each_preset_says_for_what_machine_why_and_from_where(name: str) -> None:
    data = presets.preset(name)
    assert all(len(data[key]) > 20 for key in ("machine", "source", "because"))
    assert {entry["role"] for entry in data["nics"]} > {"rail"}


def test_a_preset_that_there_is_none_of_is_an_input_error_with_its_place() -> None:
    with pytest.raises(InputError) as error:
        presets.expanded({"presets": ["dell-xe9680-h200", "dgx"]}, "node_policy")
    assert error.value.where == "node_policy.presets[1]"
    assert "lenovo-sr675v3-rtxpro6000" in error.value.remedy


def test_an_expanded_policy_stays_as_it_is_and_needs_no_file_to_be_planned_with() -> None:
    once = presets.expanded({"presets": ["dell-xe9680-h200"], "nics": [{"match": "mlx5_0"}]}, "policy")
    assert [entry.get("source") for entry in once["nics"]] == [None, *["preset dell-xe9680-h200"] * 2]
    assert presets.expanded(once, "policy") == once
    # As it lies on the node for first boot.
    again = json.loads(json.dumps(to_json(Policy.read(once))))
    assert presets.expanded(again, "policy") == again
    assert plan(_xe9680().facts(), Policy.read(again)).status == "planned"


def test_a_preset_that_was_not_expanded_is_not_passed_over_in_silence() -> None:
    with pytest.raises(InputError) as error:
        plan(_xe9680().facts(), Policy(presets=("dell-xe9680-h200",)))
    assert error.value.where == "policy.presets[0]"


@pytest.mark.parametrize(
    "policy", [None, [], "x", {"presets": 1}, {"presets": ["dell-xe9680-h200"], "nics": 1}]
)
def test_what_is_no_policy_is_left_to_the_reader_of_policies(policy: Any) -> None:
    assert presets.expanded(policy, "policy") == policy


def test_the_command_line_takes_a_policy_that_names_a_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(to_json(_xe9680().facts())))
    (tmp_path / "policy.yml").write_text("node_policy:\n  presets: [dell-xe9680-h200]\n")
    asked = [
        "plan",
        str(tmp_path / "facts.json"),
        "--policy",
        str(tmp_path / "policy.yml"),
        "--explain",
        "mlx5_9",
    ]
    assert main(asked) == 0
    assert "because the preset dell-xe9680-h200 says storage" in capsys.readouterr().out


# -- NVSwitch management functions whose VPD nobody could read --


def _hgx_b200(management: bool | None, **more: Any) -> Facts:
    """Eight GPUs with rails beside them, and four functions on the root like those that manage NVSwitches."""
    chassis = Chassis()
    for index in range(8):
        switch = chassis.switch(index // 4)
        chassis.gpu(switch, vendor="0x10de", device="0x2901")
        chassis.nic(switch, f"mlx5_{index}", vendor="0x15b3", device="0x1021", management=False)
    for index in range(8, 12):
        known = {"vendor": "0x15b3", "device": "0x1021", "management": management, **more}
        chassis.nic(0, f"mlx5_{index}", **known)
    return chassis.facts()


def test_functions_like_nvswitch_management_are_a_question_where_the_vpd_could_not_be_read() -> None:
    result = plan(_hgx_b200(None), Policy())
    names = [f"mlx5_{index}" for index in range(8, 12)]
    assert {_roles(result)[name] for name in names} == {"unknown"}
    assert not any(name + ":" in result.nccl["NCCL_IB_HCA"] for name in names)
    asked = _only(result, "nics.management")
    assert (asked.severity, asked.where) == ("warning", ", ".join(names))
    assert "role: nvlink-mgmt" in asked.remedy
    # One question, not two.
    assert "nics.role" not in [finding.code for finding in result.findings]


@pytest.mark.parametrize(
    ("management", "more", "role"),
    [
        (True, {}, "nvlink-mgmt"),
        (False, {}, "storage"),
        (None, {"link_layer": "Ethernet"}, "storage"),
        (None, {"device": "0x101b"}, "storage"),
        (None, {"state": "down"}, "down"),
    ],
)
def test_what_can_be_told_of_such_functions_is_told(
    management: bool | None, more: dict[str, Any], role: str
) -> None:
    assert _roles(plan(_hgx_b200(management, **more), Policy()))["mlx5_9"] == role


def test_the_policy_answers_the_question() -> None:
    nics = [{"match": f"mlx5_{index}", "role": "nvlink-mgmt"} for index in range(8, 12)]
    result = plan(_hgx_b200(None), _policy(nics=nics))
    assert _roles(result)["mlx5_8"] == "nvlink-mgmt"
    assert not result.findings


def test_they_are_no_rails_either_where_no_nic_is_beside_a_gpu() -> None:
    chassis = Chassis()
    for index in range(4):
        chassis.gpu(0, vendor="0x10de", device="0x3182")
        chassis.nic(0, f"mlx5_{index}", vendor="0x15b3", device="0x1021")
    assert set(_roles(plan(chassis.facts(), Policy())).values()) == {"unknown"}
    # A machine without such switches keeps its rails.
    older = chassis.facts()
    older = replace(
        older,
        pci=tuple(
            replace(device, device="0x2330") if device.device == "0x3182" else device for device in older.pci
        ),
    )
    assert set(_roles(plan(older, Policy())).values()) == {"rail"}


# -- refused plans --


def test_a_refused_plan_does_not_call_a_rail_what_was_only_presumed() -> None:
    chassis = Chassis(virtual="kvm")
    for index in range(2):
        chassis.gpu(0)
        chassis.nic(0, f"mlx5_{index}")
    result = plan(chassis.facts(), Policy())
    assert result.status == "refused"
    assert _roles(result) == {"mlx5_0": "unknown", "mlx5_1": "unknown"}
    assert result.nics[0].because.startswith("perhaps a rail (up, 400 Gb/s, at best PHB to a GPU")


def test_a_refused_plan_still_tells_what_the_facts_show() -> None:
    result = plan(hgx(2).facts(), _policy(expect={"gpus": 4}))
    assert result.status == "refused"
    assert _roles(result) == {"mlx5_0": "rail", "mlx5_1": "rail", "mlx5_2": "storage"}
