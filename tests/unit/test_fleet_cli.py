"""`railwright fleet`, `place`, `advise` and `inventory` as an operator calls them: exit codes, files, sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.cli import main
from railwright.cli.files import read_policy
from railwright.node.model import Policy
from tests.unit.fleet_support import Json, node


@pytest.fixture
def rack(tmp_path: Path) -> Path:
    """Three nodes of four GPUs, as a run's folder."""
    for number in range(3):
        put(tmp_path, f"node{number}", node("four", number))
    return tmp_path


def put(folder: Path, name: str, facts: Json) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def test_a_dry_run_writes_nothing_and_a_run_writes_policies_plans_and_the_record(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, "fleet", "plan", rack)
    assert code == 0
    assert "3 x Example Systems GX-4" in said
    assert "new: 3 nodes" in said
    assert sorted(path.name for path in rack.rglob("*.json")) == ["facts.json"] * 3
    assert run(capsys, "fleet", "plan", rack, "--write")[0] == 0
    policy = Policy.read(json.loads((rack / "node1/policy.json").read_text("utf-8")))
    assert [(nic.role, nic.rail) for nic in policy.nics] == [("rail", rail) for rail in range(4)]
    assert (policy.expect.gpus, policy.expect.rails) == (4, 4)
    assert "same: 3 nodes" in run(capsys, "fleet", "plan", rack)[1]


def test_growth_lists_what_would_change_where_and_what_is_left(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "fleet", "plan", rack, "--write")
    before = (rack / "node0/plan.json").read_text("utf-8")
    put(rack, "node3", node("four", 3))
    policy = rack / "policy.yml"
    policy.write_text(
        "sysctls: {vm.swappiness: '1'}\nnccl: {env: {NCCL_IB_TIMEOUT: '22'}}\n", encoding="utf-8"
    )
    code, said = run(capsys, "fleet", "plan", rack, "--policy", policy, "--leave", "node1=lease 7")
    assert code in (0, 1)
    assert "new: 1 node" in said
    assert "changed: 2 nodes" in said
    assert "node0: nccl_conf: file /etc/nccl.conf: " in said
    assert "node2: nccl_conf: file /etc/nccl.conf: " in said
    assert "left: 1 node node1: lease 7" in said
    assert (rack / "node0/plan.json").read_text("utf-8") == before


def test_an_odd_node_is_told_and_gives_exit_1(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = node("four", 1)
    facts["nics"][2]["rate"] = 200_000
    put(rack, "node1", facts)
    code, said = run(capsys, "fleet", "plan", rack)
    assert code == 1
    assert "fleet.nic_link at mlx5_2" in said
    data: Any = json.loads(_json(capsys, rack))
    assert [finding["code"] for finding in data["nodes"]["node1"]["findings"]] == ["fleet.nic_link"]


def _json(capsys: pytest.CaptureFixture[str], rack: Path) -> str:
    main(["fleet", "plan", str(rack), "--json"])
    return capsys.readouterr().out


def test_cables_are_compared_with_the_table(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = rack / "cabling.csv"
    table.write_text("node,rail,leaf,port\nnode1,3,leaf3,9\nnode1,2,leaf2,9\n", encoding="utf-8")
    seen = rack / "seen.csv"
    seen.write_text("node,nic,leaf,port\nnode1,mlx5_3,leaf3,7\nnode1,mlx5_2,leaf2,9\n", encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack, "--cabling", table, "--neighbours", seen)
    assert code == 1
    assert "rail3 of node1 is on leaf3/7, should be leaf3/9" in said
    assert "move the cable to leaf3/9" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--leave", "node1"], "expected NODE=WHY"),
        (["--leave", "node9=x"], "node9 is no node of"),
        (["--replan", "node9"], "node9 is no node of this fleet"),
        (["--record", "nowhere.json"], "nowhere.json: is not there"),
    ],
)
def test_bad_usage_is_exit_2_with_a_sentence(
    rack: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, said = run(capsys, "fleet", "plan", rack, *words)
    assert (code, message in said) == (2, True), said


def test_a_folder_without_nodes_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "fleet", "plan", tmp_path)[0] == 2


def test_a_fleet_of_which_every_node_is_refused_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = node("four", 0)
    facts["gpus"] = []
    put(tmp_path, "node0", facts)
    assert run(capsys, "fleet", "plan", tmp_path)[0] == 3


def test_launch_files_and_the_rank_order_come_from_the_plans(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "fleet", "plan", rack, "--write")
    code, _ = run(capsys, "fleet", "launch", rack, "--output", rack / "launch")
    assert code == 0
    assert (rack / "launch/hostfile").read_text("utf-8").splitlines()[1] == "node1 slots=4"
    code, said = run(capsys, "place", rack, "--tensor", 4, "--data", 3, "--rankfile", rack / "ranks")
    assert code == 0
    assert "rank 5: node1 GPU 1 (rail 1)" in said
    assert (rack / "ranks").read_text("utf-8").splitlines()[5].startswith("rank 5=node1 slot=")
    assert run(capsys, "place", rack, "--tensor", 5)[0] == 2


def test_advice_states_its_assumptions_and_3_says_that_nothing_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "advise",
        "--parameters",
        "70e9",
        "--layers",
        "80",
        "--hidden",
        "8192",
        "--sequence",
        "4096",
        "--batch",
        "64",
    ]
    code, said = run(capsys, *words, "--gpus", 64)
    assert code == 0
    assert "arXiv 2205.05198" in said
    assert run(capsys, *words, "--gpus", 8)[0] == 3


def test_an_inventory_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("name,ip\ngpu01,10.0.0.11\ngpu02,10.0.0.12\n", encoding="utf-8")
    made = tmp_path / "hosts.yml"
    assert (
        run(capsys, "inventory", sheet, "--network", "10.100.0.0/16", "--rails", 2, "--output", made)[0] == 0
    )
    hosts = yaml.safe_load(made.read_text("utf-8"))["gpu_nodes"]["hosts"]
    assert hosts["gpu02"]["node_rails"] == [
        {"rail": 0, "address": "10.100.0.3/17"},
        {"rail": 1, "address": "10.100.128.3/17"},
    ]
    sheet.write_text("name,ip\ngpu01,10.0.0.11\ngpu02,10.0.0.11\n", encoding="utf-8")
    code, said = run(capsys, "inventory", sheet, "--output", tmp_path / "other.yml")
    assert code == 3
    assert "gpu01, gpu02 have the same address 10.0.0.11" in said
    assert not (tmp_path / "other.yml").exists()


def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_the_first_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("\ufeffname,ip\r\nn1,10.0.0.1\r\n", encoding="utf-8")
    code, said = run(capsys, "inventory", sheet)
    assert (code, "n1: {ansible_host: 10.0.0.1}" in said) == (0, True)


def test_what_steers_a_terminal_is_spelled_out_in_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("\x1b[31mnam,ip\nn1,10.0.0.1\n", encoding="utf-8")
    code, said = run(capsys, "inventory", sheet)
    assert code == 2
    assert "\\u001b[31mnam" in said
    assert "\x1b" not in said


def test_an_output_that_is_no_regular_file_is_refused_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, pipe = tmp_path / "sheet.csv", tmp_path / "pipe"
    sheet.write_text("name,ip\nn1,10.0.0.1\n", encoding="utf-8")
    os.mkfifo(pipe)
    code, said = run(capsys, "inventory", sheet, "--output", pipe)
    assert (code, "it is no regular file" in said, pipe.is_fifo()) == (2, True, True)
    stdout = tmp_path / "stdout"
    stdout.symlink_to("/proc/self/fd/1")
    assert run(capsys, "inventory", sheet, "--output", stdout)[0] == 2
    assert stdout.is_symlink()


def test_a_full_standard_output_is_exit_2(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("name,ip\nn1,10.0.0.1\n", encoding="utf-8")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "railwright.cli", "inventory", str(sheet)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "railwright: standard output: cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("names", ["node0,node0", "../x", "node0,,node1", "a\n,b"])
def test_nodes_that_are_named_twice_or_are_no_names_get_no_placement(
    rack: Path, capsys: pytest.CaptureFixture[str], names: str
) -> None:
    run(capsys, "fleet", "plan", rack, "--write")
    assert run(capsys, "place", rack, "--nodes", names, "--tensor", "8")[0] == 2


@pytest.mark.parametrize("text", ["[]", '{"nodes": []}', '{"nodes": {"node0": {"rails": {"0": null}}}}'])
def test_a_damaged_plan_of_the_fleet_is_named(
    rack: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    run(capsys, "fleet", "plan", rack, "--write")
    (rack / "fleet.json").write_text(text, encoding="utf-8")
    code, said = run(capsys, "place", rack, "--tensor", "4", "--data", "3")
    assert code == 2
    assert "fleet.json: is not a fleet's plan" in said


def test_a_policy_that_is_nested_too_deeply_is_exit_2(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = rack / "policy.yml"
    policy.write_text("x: " + "[" * 3000, encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack, "--policy", policy)
    assert (code, "is nested too deeply to be a policy" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        (
            "limits: {memlock: '{{ kib }}'}",
            "policy.yml.limits.memlock: is a template, which Ansible fills in",
        ),
        ("presets: ['{% if x %}']", "policy.yml.presets[0]: is a template"),
        ("accept: {x: 2026-02-30}", "has a value that YAML cannot read"),
    ],
)
def test_a_policy_that_only_ansible_or_nobody_can_read_is_exit_2_and_says_so(
    rack: Path, capsys: pytest.CaptureFixture[str], text: str, said_of_it: str
) -> None:
    (rack / "policy.yml").write_text(text, encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack, "--policy", rack / "policy.yml")
    assert (code, said_of_it in said) == (2, True)


def test_a_template_of_gos_in_a_policy_is_no_template_of_ansibles(rack: Path) -> None:
    text = "container_runtime: {runtime: docker, daemon: {/log-opts/tag: '{{.Name}}'}}"
    (rack / "policy.yml").write_text(text, encoding="utf-8")
    runtime = read_policy(rack / "policy.yml").container_runtime
    assert runtime is not None
    assert runtime.daemon == {"/log-opts/tag": "{{.Name}}"}


def test_a_key_that_stands_twice_in_a_policy_is_exit_2(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = rack / "policy.yml"
    policy.write_text("nccl:\n  gid_index: 3\n  gid_index: 1\n", encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack, "--policy", policy)
    assert code == 2
    assert "the key 'gid_index' stands twice" in said
    assert "line 3" in said


def test_a_merged_key_that_is_set_anew_stands_once(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = rack / "policy.yml"
    policy.write_text(
        "base: &base {gid_index: 3}\nnode_policy: {nccl: {<<: *base, gid_index: 1}}\n", encoding="utf-8"
    )
    assert run(capsys, "fleet", "plan", rack, "--policy", policy)[0] == 0


@pytest.mark.parametrize("text", ["", "[]", '{"slices": {"a": 5}}', '{"slices": {"a": {"entries": [{}]}}}'])
def test_a_damaged_plan_of_one_node_is_told_and_the_others_go_on(
    rack: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    run(capsys, "fleet", "plan", rack, "--write")
    (rack / "node0/plan.json").write_text(text, encoding="utf-8")
    policy = rack / "policy.yml"
    policy.write_text("nccl: {env: {NCCL_IB_TIMEOUT: '22'}}", encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack, "--policy", policy)
    assert code == 0
    assert "plan.json is no plan" in said
    assert "node1: nccl_conf: file /etc/nccl.conf" in said


@pytest.mark.parametrize(("file", "text"), [("facts.json", "{"), ("policy.json", '{"worklod": 1}')])
def test_a_node_whose_files_cannot_be_read_is_named_and_the_others_go_on(
    rack: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    (rack / "node1" / file).write_text(text, encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack)
    assert code == 1
    assert f"node1/{file}" in said
    assert "new: 2 nodes" in said


def test_a_folder_of_which_no_node_can_be_read_is_exit_2(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        (rack / f"node{number}/facts.json").write_text("{", encoding="utf-8")
    code, said = run(capsys, "fleet", "plan", rack)
    assert code == 2
    assert "no node of it can be planned: node0" in said
    assert "node0/facts.json:1:2" in said


def test_a_source_without_an_end_is_not_read_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("railwright.cli.files._MOST_BYTES", 1 << 20)
    code, said = run(capsys, "inventory", "/dev/zero")
    assert (code, "is larger than 1 MiB" in said) == (2, True)
