"""The command on a node: verbs, exit statuses, JSON and text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railwright import __version__
from railwright.node.__main__ import archive, main
from railwright.node.discover import discover
from railwright.node.model import Facts, Plan, Policy, to_json
from railwright.plan import plan as make_plan
from tests.unit.small_machine import gpu_node

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpu_node(tmp_path_factory.mktemp("node"))


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(out(capsys))


def test_discover_prints_the_facts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--root", str(root), "--json"]) == 0
    assert Facts.read(data(capsys)) == discover(root)


def test_discover_prints_a_line_for_each_device(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--root", str(root)]) == 0
    lines = out(capsys).splitlines()
    facts = discover(root)
    assert [line.split()[0] for line in lines[:4]] == ["GPU0", "GPU1", "mlx5_0", "mlx5_1"]
    assert len(lines) == len(facts.gpus) + len(facts.nics)
    assert any("Gb/s" in line for line in lines)


def test_discover_says_what_it_did_not_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0", encoding="utf-8")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\n", encoding="utf-8")
    assert main(["discover", "--root", str(tmp_path)]) == 0
    assert out(capsys).startswith("note: ")


def test_this_machine_is_read_without_a_root(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--json"]) == 0
    facts = Facts.read(data(capsys))
    assert facts.host.kernel == os.uname().release
    assert [tool.name for tool in facts.tools][:1] == ["lspci"]


def test_plan_prints_what_the_planner_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = make_plan(discover(root), Policy())
    assert main(["plan", "--root", str(root), "--json"]) == 0
    assert Plan.read(data(capsys)) == expected
    assert main(["plan", "--root", str(root)]) == 0
    assert out(capsys).splitlines()[: len(expected.summary)] == list(expected.summary)


def test_a_refused_plan_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = gpu_node(tmp_path / "tree")
    for address in ("0000:17:00.0", "0000:27:00.0"):
        (tree / "sys/bus/pci/devices" / address).unlink()
    for verb in ("plan", "check"):
        assert main([verb, "--root", str(tmp_path / "tree")]) == 3
        assert "gpus.none" in out(capsys)
    assert main(["check", "--root", str(tmp_path / "tree"), "--json"]) == 3
    assert data(capsys)["findings"][0]["code"] == "gpus.none"


def test_a_policy_may_be_given_or_lie_on_the_node(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.json").write_text('{"expect": {"gpus": 8}}', encoding="utf-8")
    assert main(["plan", "--root", str(root), "--policy", str(tmp_path / "policy.json")]) == 3
    assert "2 of 8 GPUs" in out(capsys)
    gpu_node(tmp_path / "tree", expect={"gpus": 6})
    assert main(["plan", "--root", str(tmp_path / "tree")]) == 3
    assert "2 of 6 GPUs" in out(capsys)


def test_check_ends_with_1_where_the_node_differs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--root", str(root)]) == 1
    text = out(capsys)
    assert "error: nccl_conf.content: /etc/nccl.conf: is not there\n    run `ansible-playbook" in text
    assert main(["check", "--root", str(root), "--json"]) == 1
    assert "nccl_conf.content" in {finding["code"] for finding in data(capsys)["findings"]}


def test_check_takes_a_plan(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = Plan("railwright.plan/1", "planned")
    (tmp_path / "plan.json").write_text(json.dumps(to_json(empty)), encoding="utf-8")
    assert main(["check", "--root", str(root), "--plan", str(tmp_path / "plan.json")]) == 0
    assert out(capsys) == "good: the node is as planned\n"


def test_an_accepted_finding_is_printed_and_is_no_drift(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(discover(root), Policy())
    only = {
        "schema": "railwright.plan/1",
        "status": "planned",
        "slices": {"nccl_conf": to_json(plan.slices["nccl_conf"])},
    }
    (tmp_path / "plan.json").write_text(json.dumps(only), encoding="utf-8")
    (tmp_path / "policy.json").write_text('{"accept": {"nccl_conf.content": "by hand"}}', encoding="utf-8")
    arguments = ["--plan", str(tmp_path / "plan.json"), "--policy", str(tmp_path / "policy.json")]
    assert main(["check", "--root", str(root), *arguments]) == 0
    assert "[accepted: by hand]" in out(capsys)


def test_show_is_the_technicians_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--root", str(root)]) == 0
    lines = out(capsys).splitlines()
    assert lines[0] == f"railwright {__version__}"
    assert "2 GPUs" in lines[2]
    assert lines[3].startswith("no boot of Railwright has left a word here")
    assert lines[4].split() == ["slot", "GPU", "PCI", "rail", "NICs", "CPUs"]
    assert len(lines) == 5 + 2
    assert main(["show", "--root", str(root), "--json"]) == 0
    shown = data(capsys)
    assert (shown["sha256"], shown["status"], len(shown["gpus"])) == (None, "planned", 2)


def test_boot_says_what_it_does_and_ends_as_it_should(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gpu_node(tmp_path / "tree") / "etc/railwright/policy.json").unlink()
    assert main(["boot", "--root", str(tmp_path / "tree")]) == 2
    assert out(capsys).startswith("unreadable: ")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.json", None, "cannot be read"),
        ("bad.json", "{", "is no JSON"),
        ("odd.json", '{"x": 1}', "unknown key"),
    ],
)
def test_a_file_that_cannot_be_used_ends_with_2_and_its_name(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["plan", "--root", str(root), "--policy", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert name in error
    assert words in error


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["discover", "--root", "/no/such/folder"], ["boot", "--json"]]
)
def test_bad_usage_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_a_reader_that_goes_away_is_no_traceback(root: Path) -> None:
    command = f"{sys.executable} -m railwright.node discover --json --root {root} | head -c 10"
    run = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert run.stderr == b""


def test_from_a_folder_there_is_no_archive() -> None:
    assert archive() is None
