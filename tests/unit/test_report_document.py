"""report.json: what other programs read, and when it may say `"ok": true`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import report
from railwright.node.model import Finding, InputError, NvLink, Plan
from railwright.plan.nvlink import link_count
from tests.unit import report_samples as samples

NODE_KEYS = {
    "status",
    "ok",
    "summary",
    "reasons",
    "gpus",
    "rails",
    "achieved_gbytes",
    "credible_gbytes",
    "certificate",
    "findings",
    "checks",
    "changed",
    "failures",
    "reboot_needed",
    "slices",
}
PASSED = {"name": "a", "ok": True, "detail": "seen", "skipped": False}
FAILED = {"name": "b", "ok": False, "detail": "seen otherwise", "skipped": False}
SKIPPED = {"name": "c", "ok": False, "detail": "no tool", "skipped": True}
SKIPPED_BUT_OK = {"name": "d", "ok": True, "detail": "no tool", "skipped": True}
ERROR = Finding("x.y", "error", "GPU0", "is bad", "mend it")


def good_node(directory: Path, name: str = "n1", **options: Any) -> Path:
    return samples.write_node(directory, name, *samples.hgx(), **options)


def test_the_report_has_the_agreed_keys(tmp_path: Path) -> None:
    samples.write_rack(tmp_path)
    data = report.build(tmp_path)
    assert list(data) == ["schema", "ok", "verdict", "checks", "nodes", "rails", "totals"]
    assert data["schema"] == "railwright.report/1"
    assert all(set(node) == NODE_KEYS for node in data["nodes"].values())
    assert all(list(check) == ["name", "ok", "detail", "skipped"] for check in data["checks"])
    for node in data["nodes"].values():
        assert all(list(check) == ["name", "ok", "detail", "skipped"] for check in node["checks"])
        assert all(finding["code"] and finding["where"] for finding in node["findings"])


def test_every_folder_of_the_run_is_a_node_of_the_report(tmp_path: Path) -> None:
    samples.write_rack(tmp_path)
    (tmp_path / "never-reached").mkdir()
    (tmp_path / "notes.txt").write_text("not a node")
    (tmp_path / ".git").mkdir()
    nodes = report.build(tmp_path)["nodes"]
    assert {name: node["status"] for name, node in nodes.items()} == {
        "amd-07": "planned",
        "gpu-a01": "planned",
        "gpu-a02": "planned",
        "gpu-a03": "no result",
        "gpu-b07": "planned",
        "never-reached": "no result",
        "paste": "planned",
        "vm-c3": "refused",
    }
    assert nodes["never-reached"]["reasons"] == ["facts.json, policy.json, plan.json, findings.json missing"]


# When it is good.

TRUTH = [
    # plan, findings, checks, ok
    ("planned", [], [PASSED], True),
    ("planned", [], [PASSED, SKIPPED], True),
    ("planned", [], [PASSED, FAILED], False),
    ("planned", [], [FAILED], False),
    ("planned", [], [], False),
    ("planned", [], [SKIPPED], False),
    ("planned", [], [SKIPPED_BUT_OK], False),
    ("planned", [ERROR], [PASSED], False),
    ("planned", [replace(ERROR, severity="warning")], [PASSED], True),
    ("planned", [replace(ERROR, severity="info")], [PASSED], True),
    ("planned", [replace(ERROR, accepted="ticket 1")], [PASSED], True),
    ("planned", [replace(ERROR, accepted="")], [PASSED], True),
    ("planned", [replace(ERROR, accepted="ticket 1"), ERROR], [PASSED], False),
    ("planned", [replace(ERROR, accepted="ticket 1")], [PASSED, FAILED], False),
    ("refused", [], [PASSED], False),
    ("refused", [replace(ERROR, accepted="ticket 1")], [PASSED], False),
]


@pytest.mark.parametrize(("status", "findings", "checks", "expected"), TRUTH)
@pytest.mark.parametrize("place", ["plan", "check"])
def test_good_is_planned_without_open_error_or_failed_check(
    tmp_path: Path,
    status: str,
    findings: list[Finding],
    checks: list[dict[str, Any]],
    expected: bool,
    place: str,
) -> None:
    facts, plan = samples.hgx()
    plan = replace(plan, status=status, findings=tuple(findings) if place == "plan" else ())
    samples.write_node(
        tmp_path, "n1", facts, plan, findings=() if place == "plan" else tuple(findings), checks=checks
    )
    data = report.build(tmp_path)
    assert data["ok"] is expected
    assert data["nodes"]["n1"]["ok"] is expected


def test_one_bad_node_makes_the_run_bad(tmp_path: Path) -> None:
    for name in ("n1", "n2", "n3"):
        good_node(tmp_path, name)
    assert report.build(tmp_path)["ok"] is True
    good_node(tmp_path, "n4", checks=[FAILED])
    data = report.build(tmp_path)
    assert data["ok"] is False
    assert data["verdict"] == "1 of 4 nodes is not good: 1 with faults."
    assert [name for name, node in data["nodes"].items() if not node["ok"]] == ["n4"]


def test_a_run_without_nodes_is_not_good(tmp_path: Path) -> None:
    data = report.build(tmp_path)
    assert data["ok"] is False
    assert data["checks"] == [
        {"name": "nodes", "ok": False, "detail": "0 nodes in this run", "skipped": False}
    ]


def test_ok_is_what_the_checks_of_the_report_add_up_to(tmp_path: Path) -> None:
    for number, (status, findings, checks, expected) in enumerate(TRUTH):
        run = tmp_path / str(number)
        facts, plan = samples.hgx()
        samples.write_node(
            run, "n1", facts, replace(plan, status=status), findings=tuple(findings), checks=checks
        )
        data = report.build(run)
        bad = [check["name"] for check in data["checks"] if not check["ok"] and not check["skipped"]]
        assert (not bad) is expected is data["ok"], bad


def test_a_skipped_check_is_never_a_passed_one_whatever_the_file_says(tmp_path: Path) -> None:
    good_node(tmp_path, checks=[PASSED, SKIPPED, SKIPPED_BUT_OK])
    data = report.build(tmp_path)
    for checks in (data["checks"], data["nodes"]["n1"]["checks"]):
        skipped = [check for check in checks if check["skipped"]]
        assert len(skipped) == 2
        assert not any(check["ok"] for check in skipped)
    assert data["totals"]["checks"] == {"passed": 1, "failed": 0, "skipped": 2}


# Files that cannot be used.


def broken(content: bytes) -> Any:
    return lambda path: path.write_bytes(content)


BREAKAGES = {
    "missing": (lambda path: path.unlink(), "missing"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "is not JSON"),
    "empty": (broken(b""), "is not JSON"),
    "binary": (broken(b"\xff\xfe\x00"), "is not UTF-8 text: byte 0"),
    "list": (broken(b"[]"), "expected dict, found list"),
    "null": (broken(b"null"), "expected dict, found NoneType"),
    "nan": (broken(b'{"schema": NaN}'), "NaN is no number in JSON"),
    "huge": (broken(b'{"schema": 1e999}'), "1e999 is too large"),
    "digits": (broken(b'{"schema": ' + b"9" * 5000 + b"}"), "is not usable JSON"),
    "deep": (broken(b"[" * 200_000), "is not usable JSON"),
    "unknown-key": (broken(b'{"schemas": 1}'), "unknown key"),
    "directory": (lambda path: (path.unlink(), path.mkdir()), "cannot be read: Is a directory"),
    "dangling": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "cannot be read: No such file"),
}


@pytest.mark.parametrize("stem", ["facts", "policy", "plan", "findings"])
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_file_that_cannot_be_used_leaves_the_node_without_a_result_and_names_it(
    tmp_path: Path, stem: str, breakage: str
) -> None:
    good_node(tmp_path, "n2")
    node = good_node(tmp_path, "n1")
    spoil, words = BREAKAGES[breakage]
    spoil(node / f"{stem}.json")
    data = report.build(tmp_path)
    told = data["nodes"]["n1"]
    assert (told["status"], told["ok"], data["ok"]) == ("no result", False, False)
    (reason,) = told["reasons"]
    assert reason.startswith(f"{stem}.json")
    assert words in reason
    assert data["nodes"]["n2"]["ok"] is True
    assert report.write(tmp_path).read_text(encoding="utf-8").count(f"{stem}.json") >= 2


def test_changes_that_cannot_be_used_are_no_result_and_absent_ones_are_not_tuned(tmp_path: Path) -> None:
    good_node(tmp_path, "n1")
    (good_node(tmp_path, "n2") / "changes.json").write_text('{"changed": "yes"}')
    good_node(tmp_path, "n3", changes=samples.changes(False))
    good_node(tmp_path, "n4", changes=samples.changes(True))
    nodes = report.build(tmp_path)["nodes"]
    assert {name: (node["status"], node["changed"]) for name, node in nodes.items()} == {
        "n1": ("planned", None),
        "n2": ("no result", None),
        "n3": ("planned", False),
        "n4": ("planned", True),
    }
    assert nodes["n2"]["reasons"] == ["changes.json.changed: expected bool, found str"]


@pytest.mark.parametrize(
    ("stem", "path", "value", "reason"),
    [
        (
            "findings",
            ["findings", 0, "severity"],
            "critical",
            "findings.json.findings[0].severity: unknown severity 'critical' (one of error, warning, info)",
        ),
        (
            "plan",
            ["findings", 0, "severity"],
            "ERROR",
            "plan.json.findings[0].severity: unknown severity 'ERROR' (one of error, warning, info)",
        ),
        ("plan", ["status"], "fine", "plan.json.status: unknown status 'fine' (one of planned, refused)"),
        (
            "findings",
            ["checks", 0, "skipped"],
            "no",
            "findings.json.checks[0].skipped: expected bool, found str",
        ),
        ("findings", ["checks", 0, "ok"], 1, "findings.json.checks[0].ok: expected bool, found int"),
        (
            "plan",
            ["schema"],
            "railwright.plan/2",
            "plan.json.schema: found 'railwright.plan/2' (expected 'railwright.plan/1')",
        ),
    ],
)
def test_a_word_that_is_not_known_cannot_pass_as_good(
    tmp_path: Path, stem: str, path: list[Any], value: Any, reason: str
) -> None:
    facts, plan = samples.hgx()
    warning = replace(ERROR, severity="warning")
    node = samples.write_node(tmp_path, "n1", facts, replace(plan, findings=(warning,)), findings=(warning,))
    file = node / f"{stem}.json"
    data = json.loads(file.read_text())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file.write_text(json.dumps(data))
    told = report.build(tmp_path)
    assert told["ok"] is False
    assert told["nodes"]["n1"]["reasons"] == [reason]


def test_a_refused_node_without_a_check_stays_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    (samples.write_node(tmp_path, "vm", *samples.refused_vm()) / "findings.json").unlink()
    node = report.build(tmp_path)["nodes"]["vm"]
    assert (node["status"], node["ok"], node["reasons"]) == ("refused", False, ["findings.json missing"])
    assert node["findings"][0]["code"] == "facts.hidden_tree"


def test_a_directory_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be listed: No such file or directory"):
        report.build(tmp_path / "nowhere")


# What it tells.


def test_a_node_carries_its_rates_rails_and_certificate(tmp_path: Path) -> None:
    good_node(tmp_path, changes=samples.changes())
    node = report.build(tmp_path)["nodes"]["n1"]
    assert (node["achieved_gbytes"], node["credible_gbytes"]) == (48.0, 48.0)
    assert node["certificate"]["rate_gbytes"] == 50.0
    assert len(node["certificate"]["links"]) == 8
    assert [rail["nic"] for rail in node["rails"]][:3] == ["mlx5_0", "mlx5_3", "mlx5_4"]
    assert [gpu["slot"] for gpu in node["gpus"]] == ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert {name: part["changed"] for name, part in node["slices"].items()} == {
        "irq_affinity": True,
        "nccl_conf": True,
        "sysctls": False,
    }
    assert [item["id"] for item in node["slices"]["irq_affinity"]["items"]] == ["irq.312", "irq.313"]


def test_unknown_rates_are_null_and_never_zero(tmp_path: Path) -> None:
    samples.write_node(tmp_path, "paste", *samples.matrix())
    node = report.build(tmp_path)["nodes"]["paste"]
    assert (node["achieved_gbytes"], node["credible_gbytes"], node["certificate"]) == (None, None, None)


def test_a_finding_of_plan_and_check_is_told_once_and_errors_come_first(tmp_path: Path) -> None:
    facts, plan = samples.backwards()
    samples.write_node(tmp_path, "n1", facts, plan, findings=(plan.findings[0], ERROR))
    findings = report.build(tmp_path)["nodes"]["n1"]["findings"]
    assert [(finding["code"], finding["severity"]) for finding in findings] == [
        ("pcie.degraded", "error"),
        ("x.y", "error"),
        ("nic.order", "warning"),
        ("facts.note", "info"),
        ("pcie.acs", "error"),
    ]


def test_the_totals_count_by_hand(tmp_path: Path) -> None:
    samples.write_rack(tmp_path)
    totals = report.build(tmp_path)["totals"]
    assert totals == {
        "nodes": 7,
        "good": 3,  # amd-07, gpu-a01, gpu-b07
        "planned": 5,
        "refused": 1,
        "no_result": 1,
        "gpus": 40,  # 8 + 8 + 8 + 8 + 4 + 4
        "rails": 10,  # 0-7, 11, 12
        "odd_stops": 0,
        "renamed_stops": 8,  # all rails of gpu-a02, among three HGX H100
        "changed": 2,
        "owing_a_reboot": 0,
        "findings": {"error": 2, "warning": 3, "info": 1, "accepted": 1},
        "checks": {"passed": 13, "failed": 1, "skipped": 3},
    }


def with_nic(plan: Plan, rail: int, *, name: str | None = None, pci: str | None = None) -> Plan:
    return replace(
        plan,
        nics=tuple(
            replace(nic, name=name or nic.name, pci=pci or nic.pci) if nic.rail == rail else nic
            for nic in plan.nics
        ),
    )


def test_the_odd_one_of_a_rail_is_marked_among_machines_of_its_kind(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    for name in ("n1", "n2", "n10"):
        samples.write_node(tmp_path, name, facts, plan)
    samples.write_node(tmp_path, "n3", facts, with_nic(plan, 5, name="mlx5_77", pci="0000:77:00.0"))
    samples.write_node(tmp_path, "other", *samples.pcie_box())
    rails = report.build(tmp_path)["rails"]
    assert list(rails) == [str(rail) for rail in range(8)]
    odd = [(rail, name) for rail, row in rails.items() for name, stop in row.items() if stop["odd"]]
    assert odd == [("5", "n3")]
    assert rails["5"]["n3"]["nic"] == "mlx5_77"
    assert list(rails["0"]) == ["n1", "n2", "n3", "n10", "other"]
    assert rails["7"]["other"] == {"nic": None, "pci": None, "more": [], "odd": False, "renamed": False}


def test_a_missing_rail_is_odd_and_two_that_differ_are_both(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    short = replace(plan, nics=tuple(nic for nic in plan.nics if nic.rail != 7))
    for name, its in (("n1", plan), ("n2", plan), ("n3", short)):
        samples.write_node(tmp_path, name, facts, its)
    rails = report.build(tmp_path)["rails"]
    assert {name: stop["odd"] for name, stop in rails["7"].items()} == {"n1": False, "n2": False, "n3": True}
    assert rails["7"]["n3"]["nic"] is None

    pair = tmp_path / "pair"
    samples.write_node(pair, "n1", facts, plan)
    samples.write_node(pair, "n2", facts, with_nic(plan, 0, pci="0000:99:00.0"))
    row = report.build(pair)["rails"]["0"]
    assert {name: stop["odd"] for name, stop in row.items()} == {"n1": True, "n2": True}


def test_another_name_at_the_same_address_is_the_right_rail(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    for name, its in (("n1", plan), ("n2", plan), ("n3", with_nic(plan, 5, name="mlx5_77"))):
        samples.write_node(tmp_path, name, facts, its)
    data = report.build(tmp_path)
    row = data["rails"]["5"]
    assert {name: (stop["odd"], stop["renamed"]) for name, stop in row.items()} == {
        "n1": (False, False),
        "n2": (False, False),
        "n3": (False, True),
    }
    assert (data["totals"]["odd_stops"], data["totals"]["renamed_stops"]) == (0, 1)


def test_further_ports_of_a_rail_stand_behind_its_nic(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    ports = tuple(
        replace(nic, role="second-port", rail=2) if nic.name == "mlx5_1" else nic for nic in plan.nics
    )
    samples.write_node(tmp_path, "n1", facts, replace(plan, nics=ports))
    data = report.build(tmp_path)
    assert data["rails"]["2"]["n1"]["nic"] == "mlx5_4"
    assert data["rails"]["2"]["n1"]["more"] == ["mlx5_1"]
    assert data["nodes"]["n1"]["rails"][2]["more"] == ["mlx5_1"]


def test_a_spare_nic_that_keeps_a_number_is_no_stop_of_that_rail(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    spared = replace(
        plan, nics=tuple(replace(nic, role="spare") if nic.rail == 5 else nic for nic in plan.nics)
    )
    for name, its in (("n1", plan), ("n2", plan), ("n3", spared)):
        samples.write_node(tmp_path, name, facts, its)
    data = report.build(tmp_path)
    assert data["rails"]["5"]["n3"] == {"nic": None, "pci": None, "more": [], "odd": True, "renamed": False}
    assert [rail["rail"] for rail in data["nodes"]["n3"]["rails"]] == [0, 1, 2, 3, 4, 6, 7]
    assert data["nodes"]["n3"]["summary"].startswith("8 GPUs on 7 rails")


def test_a_refused_node_is_in_no_rail(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    samples.write_node(tmp_path, "n1", facts, replace(plan, status="refused"))
    assert report.build(tmp_path)["rails"] == {}


# Writing.


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for run in (first, second):
        samples.write_rack(run)
        report.write(run)
    for name in ("report.json", "index.html"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    before = (first / "index.html").read_bytes()
    os.utime(first / "gpu-a01" / "plan.json", (0, 0))
    report.write(first)
    assert (first / "index.html").read_bytes() == before


def test_a_time_is_told_only_when_it_is_given(tmp_path: Path) -> None:
    good_node(tmp_path)
    assert "generated" not in report.build(tmp_path)
    assert report.build(tmp_path, generated="2026-11-30 06:00 UTC")["generated"] == "2026-11-30 06:00 UTC"
    assert "2026-11-30 06:00 UTC" in report.write(tmp_path, generated="2026-11-30 06:00 UTC").read_text()


def test_write_leaves_the_two_files_readable_and_nothing_else(tmp_path: Path) -> None:
    good_node(tmp_path)
    page = report.write(tmp_path)
    assert page == tmp_path / "index.html"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index.html", "n1", "report.json"]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("index.html", "report.json")} == {0o644}
    assert json.loads((tmp_path / "report.json").read_text()) == report.build(tmp_path)


def test_a_write_that_fails_leaves_the_old_report_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_node(tmp_path)
    report.write(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("index.html", "report.json")}
    good_node(tmp_path, "n2")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot be written: No space left on device"):
        report.write(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index.html", "n1", "n2", "report.json"]


def test_a_node_name_that_is_not_text_is_told_and_written(tmp_path: Path) -> None:
    samples.write_node(tmp_path, os.fsdecode(b"gpu-\xff1"), *samples.hgx())
    data = report.build(tmp_path)
    assert list(data["nodes"]) == ["gpu-\udcff1"]
    assert "gpu-\\udcff1" in report.write(tmp_path).read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report.json").read_text(encoding="ascii")) == data


def test_a_report_is_of_the_nodes_of_its_run(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    for name in ("n1", "n2", "of-another-rack"):
        samples.write_node(tmp_path, name, facts, plan)
    report.write(tmp_path, None, {"n1", "n2", "never-kept-anything"})
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(written["nodes"]) == ["n1", "n2"]


def test_nvlinks_behind_switches_are_not_counted_once_for_each_peer() -> None:
    switched = [NvLink(f"GPU{peer}", 18) for peer in range(1, 8)]
    cube_mesh = [NvLink("GPU1", 1), NvLink("GPU2", 1), NvLink("GPU3", 2), NvLink("GPU4", 2)]
    switches = [NvLink(f"0000:0{bus}:00.0", count) for bus, count in enumerate((5, 5, 4, 4))]
    assert [link_count(links) for links in (switched, cube_mesh, switches)] == [18, 6, 18]


FAILURE = {"where": "slices.sysctls[0]", "why": "Invalid argument", "remedy": "give another value"}


def test_an_item_that_could_not_be_set_is_told_and_makes_its_node_bad(tmp_path: Path) -> None:
    good_node(tmp_path, changes={**samples.changes(False), "failures": [FAILURE], "reboot_needed": []})
    data = report.build(tmp_path)
    node = data["nodes"]["n1"]
    assert (data["ok"], node["ok"]) == (False, False)
    assert node["failures"] == [FAILURE]
    assert "1 item that could not be set" in node["summary"]
    assert {
        "name": "n1: written",
        "ok": False,
        "detail": "slices.sysctls[0]: Invalid argument",
        "skipped": False,
    } in data["checks"]


def test_what_the_next_boot_puts_in_force_is_told_and_is_no_fault(tmp_path: Path) -> None:
    owed = ["file:/etc/modprobe.d/a.conf", "file:/etc/b"]
    good_node(tmp_path, changes={**samples.changes(), "failures": [], "reboot_needed": owed})
    good_node(tmp_path, "n2")
    data = report.build(tmp_path)
    assert data["ok"] is True
    assert data["nodes"]["n1"]["reboot_needed"] == owed
    assert "2 items in force after the next boot" in data["nodes"]["n1"]["summary"]
    assert (data["nodes"]["n2"]["reboot_needed"], data["nodes"]["n2"]["failures"]) == (None, None)
    assert data["totals"]["owing_a_reboot"] == 1
