"""What a boot leaves for machines and people, and what it does on a machine that is not the one it tuned last."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node import boot as booting
from railwright.node import boot_note, readiness, state
from railwright.node.__main__ import main
from railwright.node.boot_note import IMAGE, KEPT, MOTD, RUN
from railwright.node.discover import discover
from railwright.node.model import Policy
from railwright.node.state.outcome import Failure, Outcome
from railwright.node.state.place import RECORD
from railwright.plan import plan
from tests.unit.small_machine import gpu_node

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="files on a node belong to root, so writing them needs root"
)
WRITTEN = ("etc/nccl.conf", "etc/railwright/gpus.tsv")


def image_node(root: Path, **policy: object) -> Path:
    """A node that was made from an image."""
    gpu_node(root, **policy)
    (root / IMAGE.lstrip("/")).write_text('{"name": "h100-train", "key": "0123456789abcdef"}', "utf-8")
    return root


def page(root: Path, path: str = RUN) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((root / path.lstrip("/")).read_text("utf-8"))
    return said


def boot(root: Path) -> int:
    return main(["boot", "--root", str(root)])


def lose_a_gpu(root: Path) -> None:
    """Takes the first GPU out of the tree, as a card that fell off the bus."""
    devices = root / "sys/bus/pci/devices"
    first = min(
        place.name for place in devices.iterdir() if (place / "vendor").read_text("ascii").strip() == "0x10de"
    )
    shutil.rmtree((devices / first).resolve())
    (devices / first).unlink()


def test_a_boot_leaves_a_page_for_machines_and_words_for_whoever_logs_in(tmp_path: Path) -> None:
    root = image_node(tmp_path)
    assert boot(root) == 0
    said = page(root)
    assert (said["schema"], said["phase"], said["result"]) == ("railwright.boot/1", "ended", "good")
    assert (said["shape"]["gpus"], said["shape"]["rails"], said["shape"]["numa"]) == (2, 2, 1)
    assert said["began"] <= said["ended"]
    assert page(root, KEPT) == said
    told = (root / MOTD.lstrip("/")).read_text("utf-8")
    assert "2 GPUs" in told
    assert "made from image h100-train (0123456789ab)" in told
    assert "tuned for train-large, as planned" in told
    assert "no measurement lies on this node, so none is claimed" in told


def test_a_node_that_is_of_no_image_is_left_no_page_which_no_revert_would_take_away(tmp_path: Path) -> None:
    root = gpu_node(tmp_path)
    assert boot(root) == 0
    assert not any((root / path.lstrip("/")).exists() for path in (RUN, KEPT, MOTD))


def test_a_boot_whose_power_goes_says_begun_until_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_node(tmp_path)

    def die(*given: object, **more: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("railwright.node.boot.boot", die)
        with pytest.raises(KeyboardInterrupt):
            boot(root)
    assert (page(root)["phase"], page(root)["result"]) == ("begun", None)
    assert "being tuned since" in (root / MOTD.lstrip("/")).read_text("utf-8")
    assert boot(root) == 0
    assert page(root)["phase"] == "ended"


def test_a_missing_gpu_refuses_and_what_was_tuned_with_it_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_node(tmp_path, expect={"gpus": 2})
    assert boot(root) == 0
    before = {path: (root / path).read_bytes() for path in WRITTEN}
    gone = tmp_path.parent / "gone"
    shutil.copytree(root, gone, symlinks=True)
    lose_a_gpu(gone)
    _without_waiting(monkeypatch)
    assert boot(gone) == 3
    said = page(gone)
    assert (said["result"], [row["code"] for row in said["refusals"]]) == ("refused", ["expect.gpus"])
    assert said["words"] == ["another machine than at the last boot"]
    assert [path for path in WRITTEN if (gone / path).exists()] == []
    assert "NOT TUNED" in (gone / MOTD.lstrip("/")).read_text("utf-8")
    # The GPU comes back: the same machine gets the same bytes again.
    shutil.rmtree(gone / "sys")
    shutil.copytree(root / "sys", gone / "sys", symlinks=True)
    assert boot(gone) == 0
    assert {path: (gone / path).read_bytes() for path in WRITTEN} == before


def test_a_node_of_no_image_keeps_its_files_when_a_gpu_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = gpu_node(tmp_path, expect={"gpus": 2})
    assert boot(root) == 0
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert boot(root) == 3
    assert [path for path in WRITTEN if (root / path).exists()] == list(WRITTEN)


def test_show_tells_of_the_last_boot_and_claims_no_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = image_node(tmp_path)
    assert main(["show", "--root", str(root)]) == 0
    assert "no boot of Railwright has left a word here" in capsys.readouterr().out
    boot(root)
    capsys.readouterr()
    assert main(["show", "--root", str(root)]) == 0
    out = capsys.readouterr().out
    assert "tuned for train-large, as planned" in out
    assert "questions answered well" in out
    report = {
        "ok": True,
        "when": "2026-11-30T12:00:00Z",
        "checks": [{"name": "busbw", "ok": True, "skipped": False}],
    }
    place = root / boot_note.ACCEPTANCE.lstrip("/")
    place.write_text(json.dumps(report), "utf-8")
    assert main(["show", "--root", str(root)]) == 0
    assert "rates, measured at 2026-11-30T12:00:00Z: passed, 1 of 1 good" in capsys.readouterr().out


def test_what_a_device_calls_itself_cannot_move_the_reader_s_cursor(tmp_path: Path) -> None:
    said = boot_note.Note(0.0).to_json()
    said["shape"] = {"product": "\x1b[2J", "numa": 1, "gpus": 1, "models": [], "rails": None}
    assert all(line.isprintable() for line in boot_note.lines(said, None))
    seen = discover(gpu_node(tmp_path))
    named = replace(seen, host=replace(seen.host, product="\x1b[2J"))
    shown = boot_note.told(None, None, named, plan(named, Policy()))
    assert all(line.isprintable() for line in shown)


def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = readiness.Waiting(longest=0.0)
    monkeypatch.setattr(booting, "Waiting", lambda: at_once)


POWER: dict[str, Any] = {"kernel": {"arguments": []}}
GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
TMPFILES = "etc/tmpfiles.d/90-railwright-power.conf"


def with_governor(root: Path) -> Path:
    """A node whose kernel scales its clock, as no root file system at a bake does."""
    place = root / GOVERNOR
    place.parent.mkdir(parents=True)
    place.write_text("powersave\n", "ascii")
    (place.parent / "scaling_available_governors").write_text("performance powersave\n", "ascii")
    return root


def test_a_node_of_an_image_sets_the_power_of_processors_that_no_bake_has_seen(tmp_path: Path) -> None:
    root = with_governor(image_node(tmp_path, **POWER))
    boot(root)
    assert (root / GOVERNOR).read_text("ascii").strip() == "performance"
    assert "scaling_governor - - - - performance" in (root / TMPFILES).read_text("utf-8")
    assert "kernel.content" not in [row["code"] for row in page(root)["findings"]]
    boot(root)
    assert page(root)["slices"]["kernel"]["changed"] == 0


def test_a_node_of_no_image_leaves_the_kernel_s_slice_to_whoever_installs(tmp_path: Path) -> None:
    root = with_governor(gpu_node(tmp_path, **POWER))
    boot(root)
    assert not (root / TMPFILES).exists()
    assert "kernel" not in json.loads((root / RECORD.lstrip("/")).read_text("utf-8"))["slices"]


def test_a_slice_that_was_installed_whole_is_not_cut_down_by_a_boot(tmp_path: Path) -> None:
    root = with_governor(image_node(tmp_path, **POWER))
    boot(root)
    assert booting._power(root, None) == {"kernel": []}
    arguments = {"kind": "boot_arguments", "name": "kernel", "arguments": ["iommu=pt"], "reboot": True}
    record = root / RECORD.lstrip("/")
    said = json.loads(record.read_text("utf-8"))
    said["slices"]["kernel"]["boot_arguments:kernel"] = {"entry": arguments, "cells": {}}
    record.write_text(json.dumps(said), "utf-8")
    assert booting._power(root, None) == {}


def test_what_the_power_of_another_machine_was_set_to_goes_back_where_a_boot_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = with_governor(image_node(tmp_path, expect={"gpus": 2}, **POWER))
    boot(root)
    assert (root / TMPFILES).exists()
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert boot(root) == 3
    assert not (root / TMPFILES).exists()
    assert (root / GOVERNOR).read_text("ascii").strip() == "powersave"


def test_a_boot_that_was_cut_off_while_it_wrote_goes_back_where_the_next_one_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_node(tmp_path, expect={"gpus": 2})
    apply = state.apply

    def die_at_the_end(*given: Any, **more: Any) -> None:
        apply(*given, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "apply", die_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            boot(root)
    assert (root / WRITTEN[0]).exists()
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert boot(root) == 3
    assert [path for path in WRITTEN if (root / path).exists()] == []
    # It is not said to be another machine, for nobody knows that.
    assert page(root)["words"] == []


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"schema": "railwright.boot/1", "tuned": "x"}', '{"tuned": []}']
)
def test_a_page_that_is_damaged_or_gone_hides_no_tuning_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    root = image_node(tmp_path, expect={"gpus": 2})
    boot(root)
    for path in (KEPT, RUN):
        place = root / path.lstrip("/")
        place.unlink() if text is None else place.write_text(text, "utf-8")
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert main(["show", "--root", str(root)]) in (0, 3)
    assert boot(root) == 3
    assert [path for path in WRITTEN if (root / path).exists()] == []


def test_a_damaged_card_of_the_image_does_not_make_a_node_that_is_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_node(tmp_path, expect={"gpus": 2})
    (root / IMAGE.lstrip("/")).write_text('{"name": "h1', "utf-8")
    boot(root)
    assert page(root, KEPT)["result"] == "good"
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert boot(root) == 3
    assert [path for path in WRITTEN if (root / path).exists()] == []


@pytest.mark.parametrize(
    ("before", "failed", "other"),
    [
        ({"sha256": "a"}, True, True),
        ({"sha256": "a"}, False, False),
        ({"sha256": "between"}, True, True),
        # Nothing of another machine was there: what failed is no stranger's.
        ({"sha256": "b"}, True, False),
        ({}, True, False),
    ],
)
def test_what_could_not_be_put_back_is_tried_again_by_the_next_boot(
    before: dict[str, Any], failed: bool, other: bool
) -> None:
    note = boot_note.Note(0.0, shape={"sha256": "b"}, tuned=before)
    note.writing()
    failures = (Failure("file:/etc/x", "why", "remedy"),) if failed else ()
    note.wrote(Outcome(slices={}, diff=(), failures=failures, reboot_needed=()))
    assert boot_note.is_other(note.tuned, {"sha256": "b"}) is other


def test_a_slice_that_the_policy_leaves_alone_is_not_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_node(tmp_path, expect={"gpus": 2})
    boot(root)
    policy = page(root, "/etc/railwright/policy.json")
    policy["manage"] = {"nccl_conf": False}
    (root / "etc/railwright/policy.json").write_text(json.dumps(policy), "utf-8")
    lose_a_gpu(root)
    _without_waiting(monkeypatch)
    assert boot(root) == 3
    assert [path for path in WRITTEN if (root / path).exists()] == ["etc/nccl.conf"]
