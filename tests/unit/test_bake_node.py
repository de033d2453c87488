"""What an installation writes into a root file system that becomes an image, where no GPU is."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import steps, zipapp
from railwright.node import bake
from railwright.node.model import Policy
from railwright.plan import boot_unit
from tests.unit.small_machine import plant

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="files on a node belong to root, so writing them needs root"
)
# A policy of a real rack: it speaks of devices, and an image has none.
ASKED = {
    "expect": {"gpus": 8, "rails": 8},
    "nics": [{"match": "0000:18:00.0", "role": "rail", "rail": 0}],
    "boot": {"gate": ["slurmd.service"]},
}


def image(root: Path) -> Path:
    return plant(root, {"etc/os-release": 'ID=debian\nVERSION_ID="13"\n', "run/utmp": ""})


def policy(**more: Any) -> Policy:
    return Policy.read(steps.node_policy({**ASKED, **more}), "policy")


@needs_root
def test_no_gpu_is_no_refusal_and_the_policy_lies_there_as_it_was_asked_for(tmp_path: Path) -> None:
    root = image(tmp_path)
    said = bake.install(policy(), {zipapp.digest(): zipapp.blob()}, root)
    assert (said["status"], said["refusals"]) == ("planned", [])
    assert (root / boot_unit.ZIPAPP.lstrip("/")).read_bytes() == zipapp.build()
    lies = json.loads((root / boot_unit.POLICY_FILE.lstrip("/")).read_text("utf-8"))
    assert lies["expect"] == {"gpus": 8, "rails": 8}
    assert [nic["match"] for nic in lies["nics"]] == ["0000:18:00.0"]
    # What depends on the machine is left to the first boot.
    assert not (root / "etc/nccl.conf").exists()
    # A folder has no systemctl: the units are what could not be set, and it is said.
    assert {row["where"].partition("(")[2] for row in said["failures"]} == {
        "systemd_unit:railwright.service)",
        "systemd_unit:railwright-again.path)",
    }


@needs_root
def test_a_policy_that_leaves_the_boot_unit_alone_gets_none(tmp_path: Path) -> None:
    said = bake.install(policy(manage={"boot_unit": False}), {}, image(tmp_path))
    assert (said["slices"], said["failures"]) == ({}, [])


def test_what_the_policy_says_of_the_stack_is_kept_where_devices_are_left_out() -> None:
    asked = policy(driver={"version": "580.126.09"}, workload="moe-alltoall")
    left = bake.without_devices(asked)
    assert (left.driver, left.workload, left.boot) == (asked.driver, asked.workload, asked.boot)
    assert (left.expect.gpus, left.expect.rails, left.nics) == (0, None, ())
    same = dataclasses.replace(left, expect=asked.expect, nics=asked.nics)
    assert same == asked


def test_an_answer_is_json_and_a_bad_request_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(page: Any) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(page).encode())))
        return bake.main()

    monkeypatch.setattr(bake, "install", lambda policy, blobs: {"status": "planned", "failures": []})
    assert ask({"policy": {}, "blobs": {}}) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "planned"
    assert ask({"policy": {"workload": "golf"}, "blobs": {}}) == 2
    assert "golf" in capsys.readouterr().err
