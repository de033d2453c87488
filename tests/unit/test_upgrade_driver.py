"""An upgrade of the driver: what it comes to beforehand, the way back, and when it is called good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railwright.fleet import installing, upgrade, upgrading
from railwright.node.model import Fabric, InputError, Nic, Plan, Slice, to_json
from railwright.node.model.software import Dkms, Kernel, Package
from railwright.plan import fabric_manager, nvidia_driver
from tests.unit.stack_support import B200, H100, machine, policy, software, with_driver

OLD, NEW = "570.211.01", "580.173.02"


def plan_for(facts: Any, version: str = NEW) -> Plan:
    parts = {
        "nvidia_driver": nvidia_driver.slice_of(facts, policy(version))[0],
        "fabric_manager": fabric_manager.slice_of(facts, policy(version))[0],
    }
    slices: dict[str, Slice] = {name: part for name, part in parts.items() if part is not None}
    return Plan(schema="railwright.plan/1", status="planned", slices=slices)


def test_an_upgrade_is_announced_with_both_versions_and_its_reboot() -> None:
    facts = with_driver(machine(H100), OLD, OLD)
    seen = upgrade.outlook(facts, plan_for(facts))
    assert (seen["needed"], seen["reboot"], seen["loaded"], seen["to"]) == (True, True, OLD, NEW)
    assert seen["says"].startswith(f"driver {OLD} -> {NEW} in one transaction")
    assert "one reboot" in seen["says"]
    assert seen["from"]["nvidia-open"] == f"{OLD}-1"


def test_a_node_that_has_it_all_needs_nothing() -> None:
    facts = with_driver(machine(H100), NEW, NEW)
    assert upgrade.outlook(facts, plan_for(facts))["needed"] is False


def test_packages_that_are_there_and_not_loaded_need_a_reboot_only() -> None:
    facts = with_driver(machine(H100), NEW, OLD)
    seen = upgrade.outlook(facts, plan_for(facts))
    assert (seen["needed"], seen["reboot"]) == (True, True)


def test_a_plan_without_a_driver_says_why() -> None:
    with pytest.raises(InputError, match="the policy names no driver"):
        upgrade.outlook(machine(H100), Plan(schema="railwright.plan/1", status="planned"))


def test_the_machine_that_runs_the_playbook_is_refused_only_where_it_would_reboot() -> None:
    facts = with_driver(machine(H100), OLD, OLD)
    seen = upgrade.outlook(facts, plan_for(facts))
    assert "the machine that this playbook runs on" in upgrading.upgrade_refusal(seen, "local")
    assert upgrading.upgrade_refusal(seen, "ssh") == ""
    same = with_driver(machine(H100), NEW, NEW)
    assert upgrading.upgrade_refusal(upgrade.outlook(same, plan_for(same)), "local") == ""


def packages(slices: dict[str, Any]) -> dict[str, Any]:
    (entry,) = (row for row in slices["nvidia_driver"] if row["kind"] == "packages")
    return dict(entry["versions"])


def test_the_way_back_has_every_name_of_both_sets() -> None:
    facts = with_driver(machine(H100), OLD, OLD)
    plan = plan_for(facts)
    recorded = {**upgrade.installed(facts), "nvidia-utils-570": f"{OLD}-1"}
    slices = upgrade.way_back(plan, recorded)
    back = packages(slices)
    assert back["nvidia-open"] == back["nvidia-utils-570"] == f"{OLD}-1"
    assert set(packages({"nvidia_driver": to_json(plan.slices["nvidia_driver"].entries)})) <= set(back)
    pins = [row["content"] for row in slices["nvidia_driver"] if row.get("path") == nvidia_driver.PIN]
    assert f"Pin: version {OLD}-1\n" in pins[0]


def test_a_node_that_had_no_driver_goes_back_to_none() -> None:
    plan = plan_for(machine(H100))
    assert set(packages(upgrade.way_back(plan, {})).values()) == {None}


def test_a_set_of_several_versions_goes_back_without_a_pin() -> None:
    recorded = {"nvidia-open": f"{OLD}-1", "nvidia-utils": "570.1-1"}
    slices = upgrade.way_back(plan_for(machine(H100)), recorded)
    pins = [row["content"] for row in slices["nvidia_driver"] if row.get("path") == nvidia_driver.PIN]
    assert "Pin:" not in pins[0]


def test_a_driver_that_computes_is_good_and_the_proof_is_said() -> None:
    facts = with_driver(machine(H100), NEW, NEW)
    found = upgrade.verdict(
        facts, plan_for(facts), {"ok": True, "why": "1 GPUs allocate, fill and read back memory"}
    )
    assert found["ok"]
    assert "allocate" in found["says"]


def test_without_cuda_the_answer_says_that_it_is_less() -> None:
    facts = with_driver(machine(H100), NEW, NEW)
    found = upgrade.verdict(facts, plan_for(facts), None)
    assert found["ok"]
    assert "that a GPU computes is not shown" in found["says"]


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        (
            {"ok": False, "why": "cuInit answers 803: library and loaded module are of different versions"},
            "803",
        ),
        ({"ok": None, "why": "libcuda.so.1 cannot be loaded"}, "cannot be loaded"),
    ],
)
def test_cuda_that_fails_or_cannot_be_tried_is_not_good(cuda: dict[str, Any], why: str) -> None:
    facts = with_driver(machine(H100), NEW, NEW)
    found = upgrade.verdict(facts, plan_for(facts), cuda)
    assert not found["ok"]
    assert why in found["problems"][0]


def test_a_module_that_was_not_replaced_is_not_good() -> None:
    facts = with_driver(machine(H100), NEW, OLD)
    found = upgrade.verdict(facts, plan_for(facts), {"ok": True, "why": "1 GPUs"})
    assert not found["ok"]
    assert any("parts of different versions" in problem for problem in found["problems"])


def test_after_the_way_back_the_old_version_is_what_is_wanted() -> None:
    facts = with_driver(machine(H100), OLD, OLD)
    plan = plan_for(facts)
    assert not upgrade.verdict(facts, plan, None)["ok"]
    assert upgrade.verdict(facts, plan, None, OLD)["ok"]


def test_a_fabric_that_is_not_complete_is_waited_for_by_name() -> None:
    facts = machine(H100, H100, switches=1)
    states = ("Completed", "In Progress")
    gpus = tuple(replace(gpu, fabric=Fabric(state)) for gpu, state in zip(facts.gpus, states, strict=True))
    assert upgrading.fabric_waiting(to_json(replace(facts, gpus=gpus))) == "GPU1 In Progress"
    assert upgrading.fabric_waiting(to_json(facts)) == ""


def test_half_installed_packages_are_no_set_to_go_back_to() -> None:
    facts = with_driver(machine(H100), OLD, OLD)
    known = facts.software
    assert known is not None
    half = (*known.packages, Package("nvidia-utils", f"{NEW}-1", status="half-configured"))
    assert "nvidia-utils" not in upgrade.installed(replace(facts, software=replace(known, packages=half)))


def test_parts_whose_names_are_none_of_the_drivers_are_of_the_set_forth_and_back() -> None:
    five = Nic("mlx5_8", rdma="mlx5_8", link_layer="InfiniBand", management=True)
    asked = policy(NEW, fabric_manager={"nvlsm": "2025.10.11-1"})
    facts = with_driver(replace(machine(B200), nics=(five,)), NEW, NEW)
    part = nvidia_driver.slice_of(facts, asked)[0]
    assert part is not None
    plan = Plan(schema="railwright.plan/1", status="planned", slices={"nvidia_driver": part})
    known = facts.software
    assert known is not None
    wanted = packages({"nvidia_driver": to_json(part.entries)})
    there = tuple(Package(name, version) for name, version in wanted.items() if version is not None)
    whole = replace(facts, software=replace(known, packages=there))
    assert "nvlsm" in {package.name for package in there}
    assert upgrade.outlook(whole, plan)["needed"] is False
    older = tuple(replace(one, version="2025.06.1-1") if one.name == "nvlsm" else one for one in there)
    seen = upgrade.outlook(replace(facts, software=replace(known, packages=older)), plan)
    assert seen["needed"]
    back = upgrade.way_back(plan, seen["from"])
    assert packages(back)["nvlsm"] == "2025.06.1-1"
    pins = [row["content"] for row in back["nvidia_driver"] if row.get("path") == nvidia_driver.PIN]
    assert f"Pin: version {NEW}-1\n" in pins[0]


def test_what_is_loaded_again_is_told_by_the_recorded_set_also_after_a_run_that_was_broken_off() -> None:
    recorded = {"nvidia-open": f"{OLD}-1", "nvidia-utils": f"{OLD}-1", "nvlsm": "2025.06.1-1"}
    assert upgrading.upgrade_old(recorded, NEW) == OLD
    assert upgrading.upgrade_old({**recorded, "nvidia-utils": f"{NEW}-1"}, OLD) == OLD
    assert upgrading.upgrade_old({}, NEW) == upgrading.upgrade_old({}, None) == ""


def test_the_way_back_is_gated_by_the_modules_of_the_old_driver() -> None:
    facts = with_driver(machine(H100), OLD, NEW)
    plan, recorded = to_json(plan_for(facts)), upgrade.installed(facts)
    assert upgrading.upgrade_back_refusal(to_json(facts), plan, recorded) == ""
    half = with_driver(machine(H100), NEW, NEW)
    said = upgrading.upgrade_back_refusal(to_json(half), plan, recorded)
    assert f"has no module of driver {OLD}" in said
    assert upgrading.upgrade_back_refusal(to_json(half), plan, {}) == ""


def test_an_installation_tells_which_loaded_driver_it_would_replace() -> None:
    old, same, bare = (
        with_driver(machine(H100), OLD, OLD),
        with_driver(machine(H100), NEW, NEW),
        machine(H100),
    )
    plan = to_json(plan_for(old))
    assert (
        installing.install_replaces(to_json(old), plan)
        == f"driver {OLD} is loaded, and {NEW} would be put under it"
    )
    assert (
        installing.install_replaces(to_json(same), plan)
        == installing.install_replaces(to_json(bare), plan)
        == ""
    )
    nothing = to_json(Plan(schema="railwright.plan/1", status="planned"))
    assert installing.install_replaces(to_json(old), nothing) == ""


@pytest.mark.parametrize(
    ("was_loaded", "loads", "now", "boots"),
    [
        (OLD, OLD, NEW, True),  # the new one came up, and failed
        (OLD, OLD, OLD, False),  # it failed before a boot
        (OLD, OLD, "", True),  # the new one does not load
        (None, "", "", False),  # nobody ever had one loaded
        (None, "", NEW, True),  # a node without a driver booted into the new one
        (None, OLD, "", False),  # packages that nobody had loaded
    ],
)
def test_a_node_that_goes_back_is_rebooted_only_where_another_module_is_to_run(
    was_loaded: str | None, loads: str, now: str, boots: bool
) -> None:
    facts = to_json(with_driver(machine(H100), OLD, now or None))
    assert upgrading.upgrade_boots_back({"loaded": was_loaded}, loads, facts) is boots


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"msg": "the archives have no version x"}, "the archives have no version x"),
        (
            {"failed": True, "busy": "in use by python (process 7)"},
            "somebody uses the GPUs: in use by python (process 7).",
        ),
        (
            {"stat": {"exists": True, "path": "/var/lib/lease"}},
            "somebody else leases the node (/var/lib/lease).",
        ),
        (
            {"cmd": ["squeue", "-h"], "rc": 0, "stdout": "4711\n4712", "stderr": ""},
            "squeue -h still answers: 4711 4712.",
        ),
        (
            {
                "cmd": ["scontrol", "update"],
                "rc": 1,
                "stdout": "",
                "stderr": "Invalid node",
                "msg": "non-zero",
            },
            "scontrol update ended with 1: Invalid node.",
        ),
        ({}, "a task failed"),
    ],
)
def test_a_step_that_failed_says_why_also_where_its_task_has_no_message(
    result: dict[str, Any], says: str
) -> None:
    assert upgrading.upgrade_failed(result) == says


def test_a_reboot_that_is_refused_for_a_known_pair_names_one_that_works() -> None:
    """Debian 13 of 2026-11: 550.163.01 does not build on 6.12.117, and no kernel of the node has the module."""
    driver, kernel = "550.163.01", "6.12.117+deb13-amd64"
    asked = {"kind": "packages", "name": "nvidia_driver", "versions": {"nvidia-open": f"{driver}-1"}}
    part = Slice("persistent", (asked,), "a test")
    plan = Plan(schema="railwright.plan/1", status="planned", slices={"nvidia_driver": part})
    rows = (Kernel(kernel, headers=True, initramfs=True),)
    facts = machine(H100, software=software(kernels=rows, next_kernel=kernel))
    said = installing.reboot_refusal(to_json(facts), to_json(plan)).splitlines()
    assert len(said) == 2
    assert said[0].startswith(f"kernel {kernel} has no module of driver {driver}")
    assert "what works: 550.163.01 with a 6.12 kernel from before that change" in said[1]
    # One that has its module all the same is no matter of the table.
    built = (Dkms("nvidia", driver, kernel, "x86_64", "installed"),)
    good = machine(H100, software=software(kernels=rows, next_kernel=kernel, dkms=built))
    assert installing.reboot_refusal(to_json(good), to_json(plan)) == ""
