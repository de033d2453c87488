"""The command as a user meets it: words, exit codes, and nothing half-written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import defusedxml.ElementTree
import pytest
from rich.console import Console

from railwright.cli import main, view
from railwright.fleet.play import Outcome, Step
from railwright.node.model import Facts, Finding, Host, Plan, Slice, Witness, to_json
from tests.machinery import build

ROOT = Path(__file__).resolve().parents[2]
# Two GPUs with a NIC each behind their switch, and one NIC that is beside neither.
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNODE\tPIX\tSYS\t0-15\t0
GPU1\tNV18\t X \tSYS\tSYS\tPIX\t16-31\t1
NIC0\tNODE\tSYS\t X \tNODE\tSYS
NIC1\tPIX\tSYS\tNODE\t X \tSYS
NIC2\tSYS\tPIX\tSYS\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_2
"""
HIDDEN = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPHB\tPHB\t0-31\t0-1
GPU1\tNV18\t X \tPHB\tPHB\t0-31\t0-1
NIC0\tPHB\tPHB\t X \tPHB
NIC1\tPHB\tPHB\tPHB\t X
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX, encoding="utf-8")
    return path


def test_plan_prints_a_table_that_names_each_pair(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(matrix)]) == 0
    shown = capsys.readouterr().out
    rows = {words[0]: words for words in map(str.split, shown.splitlines()) if len(words) > 4}
    assert rows["GPU0"][3] == "NIC1"
    assert rows["GPU1"][3] == "NIC2"
    assert "NCCL_IB_HCA==mlx5_1" in shown


def test_plan_prints_json_that_is_a_plan(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", str(matrix)]) == 0
    plan = Plan.read(json.loads(capsys.readouterr().out))
    assert [(gpu.name, gpu.nics, gpu.path) for gpu in plan.gpus] == [
        ("GPU0", ("NIC1",), "PIX"),
        ("GPU1", ("NIC2",), "PIX"),
    ]


def test_a_hidden_tree_is_refused_with_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vm.txt"
    path.write_text(HIDDEN, encoding="utf-8")
    assert main(["plan", str(path)]) == 3
    shown = capsys.readouterr().out
    assert "Refused" in shown
    assert "NIC0" in shown


def test_a_policy_moves_the_plan(matrix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yml"
    policy.write_text("node_policy:\n  expect: {gpus: 3}\n", encoding="utf-8")
    assert main(["plan", "--policy", str(policy), str(matrix)]) == 3
    assert "3" in capsys.readouterr().out


def test_a_plan_tells_what_the_policy_has_installed_and_nothing_of_it_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, tree = tmp_path / "policy.yml", tmp_path / "tree"
    build(ROOT / "tests/machines/2s_4xh100pcie_2xcx6", tree)
    policy.write_text("limits: {}\n", encoding="utf-8")
    assert main(["plan", "--policy", str(policy), str(tree)]) == 0
    assert "Installed by install.yml\n  limits: RDMA locks every buffer" in capsys.readouterr().out
    assert main(["plan", str(tree)]) == 0
    assert "Installed by" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload: fast\n", "found 'fast'"),
        ("a: [\n", "is not YAML"),
        ("- 1\n", "expected dict, found list"),
    ],
)
def test_a_bad_policy_is_named_with_code_two(
    matrix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    policy = tmp_path / "policy.yml"
    policy.write_text(text, encoding="utf-8")
    assert main(["plan", "--policy", str(policy), str(matrix)]) == 2
    said = capsys.readouterr().err
    assert "policy.yml" in said
    assert words in said


def test_a_capture_that_is_none_is_named_with_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shopping.txt"
    path.write_text("milk\nbread\n", encoding="utf-8")
    assert main(["plan", str(path)]) == 2
    assert "shopping.txt" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "absent.txt")]) == 2
    assert "absent.txt" in capsys.readouterr().err


def test_plan_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert main(["plan", "-"]) == 0
    assert "GPU1" in capsys.readouterr().out


def test_explain_tells_of_one_device_and_refuses_an_unknown_one(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--explain", "GPU1", str(matrix)]) == 0
    assert "NIC2" in capsys.readouterr().out
    assert main(["plan", "--explain", "GPU9", str(matrix)]) == 2
    assert "GPU9" in capsys.readouterr().err


def test_svg_draws_the_node_whole_or_not_at_all(
    matrix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "node.svg"
    assert main(["plan", "--svg", str(picture), str(matrix)]) == 0
    drawn = defusedxml.ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert drawn.tag.endswith("svg")
    assert main(["plan", "--svg", str(tmp_path / "absent/node.svg"), str(matrix)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.svg", "topo.txt"]


def test_names_from_a_node_cannot_steer_the_terminal() -> None:
    evil = "PowerEdge\x1b[2J\u202e[red]x"
    facts = Facts("railwright.facts/1", (Witness("sysfs", evil),), Host(product=evil), notes=(evil,))
    plan = Plan("railwright.plan/1", "planned", summary=(evil,), nccl={"NCCL_DEBUG": evil})
    finding = Finding("x.y", "error", evil, evil, evil)
    out = Console(file=io.StringIO(), width=200, force_terminal=False, markup=False, highlight=False)
    view.show_facts(out, facts)
    view.show_plan(out, plan, facts)
    view.show_findings(out, [finding], "Findings")
    view.Progress(out)(Step("play", evil))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("PowerEdge\\u001b[2J\\u202e[red]x") == 9


def test_a_reader_that_goes_away_is_no_error(matrix: Path) -> None:
    command = f"'{sys.executable}' -m railwright.cli plan --json '{matrix}' | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout == "{"
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["plan"], ["plan", "--json"], ["plan", "--explain", "workload"]])
def test_a_reader_that_is_gone_before_the_first_line_is_no_finding(matrix: Path, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "railwright.cli", *words, str(matrix)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_standard_output_and_error_give_no_traceback(matrix: Path) -> None:
    command = f"'{sys.executable}' -m railwright.cli plan '{matrix}'"
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run(["sh", "-c", f"{command}/none >&- 2>&-"], check=False).returncode == 2


def test_two_ways_to_print_a_plan_are_refused(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(matrix), "--launch", "table", "--json"])
    assert ended.value.code == 2
    assert "argument --json: not allowed with argument --launch" in capsys.readouterr().err


def test_verbs_that_run_playbooks_say_that_they_need_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["look", "node1"], ["up", "inventory"]):
        assert main(words) == 2
        assert "checkout" in capsys.readouterr().err


def test_up_without_a_node_does_not_show_the_report_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = {"ok": True, "verdict": "All 2 nodes are good.", "nodes": {}}
    (tmp_path / "report.json").write_text(json.dumps(earlier), encoding="utf-8")
    # What Ansible says of an inventory without the group: statistics, exit status 0 and no host.
    monkeypatch.setattr("railwright.fleet.play.run", lambda *_, **__: Outcome(code=0, finished=True))
    assert main(["up", str(tmp_path), "--output", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "gpu_nodes" in said.err
    assert said.out == ""


@pytest.fixture
def odd_sysctl(tmp_path: Path) -> tuple[Path, Path]:
    """A machine, and its plan of one kernel setting that is not among those that are always read."""
    tree = tmp_path / "tree"
    build(ROOT / "tests/machines/2s_4xh100pcie_2xcx6", tree)
    (tree / "proc/sys/kernel/odd_one").write_text("7\n", encoding="utf-8")
    entry = {"kind": "sysctl", "name": "kernel.odd_one", "value": "8"}
    plan = Plan("railwright.plan/1", "planned", slices={"sysctls": Slice("runtime", (entry,), "")})
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(to_json(plan)), encoding="utf-8")
    return tree, path


def test_check_reads_every_setting_that_the_plan_makes(
    odd_sysctl: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tree, plan = odd_sysctl
    assert main(["check", str(plan), "--root", str(tree)]) == 1
    assert "is 7, planned 8" in capsys.readouterr().out
    (tree / "proc/sys/kernel/odd_one").write_text("8\n", encoding="utf-8")
    assert main(["check", str(plan), "--root", str(tree)]) == 0
    assert "as planned" in capsys.readouterr().out


def test_check_bears_what_the_policy_accepts(
    odd_sysctl: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, plan = odd_sysctl
    policy = tmp_path / "policy.yml"
    policy.write_text("accept: {sysctls.value: the vendor asks for it}\n", encoding="utf-8")
    assert main(["check", str(plan), "--root", str(tree), "--policy", str(policy)]) == 0
    assert "accepted: the vendor asks for it" in capsys.readouterr().out


def test_check_of_a_refused_plan_is_code_three_and_json_where_json_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = Finding("gpus.none", "error", "gpus", "no GPU is visible", "seat one")
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(to_json(Plan("railwright.plan/1", "refused", refusals=(refusal,)))), encoding="utf-8"
    )
    assert main(["check", str(path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "gpus.none"


def test_json_without_an_end_is_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 300_000, encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert "plan.json" in capsys.readouterr().err


def test_wrong_usage_is_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fly"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
