"""On the command line: each thing that is refused or found is told with its place, why, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from defusedxml.ElementTree import parse

from railwright.cli import main
from railwright.node.model import Facts, NvLink, to_json
from tests.unit.plan_machines import Chassis, hgx

# GPU0's row says PIX of NIC1, NIC1's row says NODE of GPU0.
CONTRADICTION = """\tGPU0\tGPU1\tNIC0\tNIC1
GPU0\t X \tNV18\tPIX\tPIX
GPU1\tNV18\t X \tNODE\tPIX
NIC0\tPIX\tNODE\t X \tNODE
NIC1\tNODE\tPIX\tNODE\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def _flat(**host: Any) -> Facts:
    chassis = Chassis(**host)
    for index in range(2):
        chassis.gpu(0)
        chassis.nic(0, f"mlx5_{index}")
    return chassis.facts()


def _without_nvlinks() -> Facts:
    facts = hgx(4).facts()
    lame = replace(facts.gpus[3], nvlinks=(NvLink("0000:e0:00.0", 12),))
    return replace(facts, gpus=(*facts.gpus[:3], lame))


def _lacking(kind: str) -> Facts:
    chassis = hgx(4)
    chassis.parts.remove([part for part in chassis.parts if part.kind == kind][3])
    return chassis.facts()


def _down() -> Facts:
    facts = hgx(4).facts()
    return replace(
        facts,
        nics=tuple(replace(nic, state="down") if nic.name == "mlx5_3" else nic for nic in facts.nics),
    )


Story = tuple[Callable[[], Facts], dict[str, Any], int, str, str]
STORIES: dict[str, Story] = {
    "a hidden tree": (lambda: _flat(virtual="kvm"), {}, 3, "topology.hidden", "mlx5_0, mlx5_1"),
    "a GPU without the NVLinks of its peers": (_without_nvlinks, {}, 0, "gpu.nvlinks", "GPU3"),
    "fewer GPUs than expected": (
        lambda: _lacking("gpu"),
        {"expect": {"gpus": 4}},
        3,
        "expect.gpus",
        "beside mlx5_3",
    ),
    "fewer rails than expected": (_down, {"expect": {"rails": 4}}, 3, "expect.rails", "mlx5_3"),
    "a rail that is down": (_down, {}, 0, "nics.down", "mlx5_3"),
    "no GPU": (lambda: replace(hgx(1).facts(), gpus=()), {}, 3, "gpus.none", "gpus"),
}


@pytest.fixture
def files(tmp_path: Path) -> Callable[[Facts | str, dict[str, Any]], list[str]]:
    """Writes facts or a matrix, and a policy; gives the arguments that plan them."""

    def write(capture: Facts | str, policy: dict[str, Any]) -> list[str]:
        text = capture if isinstance(capture, str) else json.dumps(to_json(capture))
        (tmp_path / "capture").write_text(text)
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        return ["plan", str(tmp_path / "capture"), "--policy", str(tmp_path / "policy.json")]

    return write


@pytest.mark.parametrize("story", STORIES)
def test_it_is_told_with_code_place_reason_and_remedy(
    story: str, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make, policy, status, code, where = STORIES[story]
    arguments = files(make(), policy)
    picture = tmp_path / "node.svg"
    assert main([*arguments, "--json", "--svg", str(picture)]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == ("refused" if status else "planned")
    (found,) = [row for row in (*told["refusals"], *told["findings"]) if row["code"] == code]
    assert (found["where"], found["severity"]) == (where, "error")
    assert found["why"]
    assert found["remedy"]
    # A refused node is drawn too: the picture is where one looks for what is missing.
    drawn = parse(picture).getroot()
    assert drawn is not None
    assert drawn.tag.endswith("svg")
    assert main(arguments) == status
    shown = " ".join(capsys.readouterr().out.split())
    assert f"error {code} at {where}" in shown
    assert " ".join(found["remedy"].split()) in shown


def test_witnesses_that_contradict_each_other_are_refused_with_both_claims(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(files(CONTRADICTION, {})) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "error facts.conflict at GPU0-NIC1" in shown
    assert "row GPU0, line 2 says PIX; row NIC1, line 5 says NODE" in shown
    assert "leave out the witness that is stale" in shown


@pytest.mark.parametrize("story", [name for name, told in STORIES.items() if told[3] != "gpus.none"])
def test_explain_tells_why_a_gpu_has_its_place_or_none(
    story: str, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    make, policy, status, code, _ = STORIES[story]
    device = "GPU0" if code in {"topology.hidden", "expect.gpus"} else "GPU3"
    assert main([*files(make(), policy), "--explain", device]) == status
    said = capsys.readouterr().out
    assert said.startswith(f"{device} (CUDA index")
    assert "  because " in said
    if status:
        assert "  refused at " in said
    if code == "gpu.nvlinks":
        assert "error: GPU3 has 12 NVLinks where its peers have 16; see `nvidia-smi nvlink -s`" in said


@pytest.mark.parametrize("numa", ["one socket", "NUMA off"])
def test_a_machine_without_numa_nodes_to_tell_apart_is_planned_where_its_switches_are_visible(
    numa: str, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    chassis = Chassis()
    for index in range(4):
        switch = chassis.switch(0 if numa == "one socket" else None)
        chassis.gpu(switch)
        chassis.nic(switch, f"mlx5_{index}")
    facts = chassis.facts()
    if numa == "NUMA off":
        assert {gpu.numa for gpu in facts.gpus} == {None}
        assert facts.numa == ()
    assert main([*files(facts, {}), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [gpu["nics"] for gpu in told["gpus"]] == [[f"mlx5_{index}"] for index in range(4)]
    assert {gpu["path"] for gpu in told["gpus"]} == {"PIX"}
    # Gen5 x16 by NCCL's table.
    assert (told["bound"]["achieved_gbytes"], told["bound"]["optimal"]) == (48, True)


@pytest.mark.parametrize("form", ["table", "gres", "rankfile", "torchrun"])
def test_launch_prints_the_file_alone_or_the_refusal(
    form: str, files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = files(hgx(2).facts(), {})
    assert main([*planned, "--launch", form, "--host", "gpu-7"]) == 0
    said = capsys.readouterr().out
    assert "Plan from" not in said
    assert said.endswith("\n") or (form == "rankfile" and said == "")
    refused = files(hgx(2).facts(), {"expect": {"gpus": 4}})
    assert main([*refused, "--launch", form, "--host", "gpu-7"]) == 3
    assert "expect.gpus" in capsys.readouterr().out


def test_launch_without_the_nodes_name_says_what_to_give(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*files(hgx(2).facts(), {}), "--launch", "gres"]) == 2
    assert "host: the node's name is not known" in capsys.readouterr().err
