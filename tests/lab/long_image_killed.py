"""The real bake of a small root file system, killed within every stage and right after each: it goes on from what is
whole, leaves nothing mounted, and ends with the bytes of a bake that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab import rootfs

STAGES = ("rootfs", "installed", "sealed", "manifest", "image")
# Seconds after a stage's beginning, at which it has begun to write and has not ended yet; None: when it says "done".
MOMENTS = (0.3, 4.0, None)
POLICY = {"expect": {"gpus": 8, "rails": 8}, "boot": {"gate": ["slurmd.service"]}}


def recipe(folder: Path) -> Path:
    """A lab node's root file system, with Python under its usual name (a node has a program of the lab's there)."""
    tree = rootfs.root("trixie")
    python = next(path for path in (tree / "usr/bin").glob("python3.*") if path.name != "python3.real")
    (folder / "files/usr/bin").mkdir(parents=True)
    (folder / "files/usr/bin/python3").symlink_to(python.name)
    page = {
        "name": "killed", "epoch": 1790000000, "tree": str(tree), "files": str(folder / "files"), "disk_gib": None,
        "sbom": [], "policy": POLICY,
    }  # fmt: skip
    (folder / "recipe.json").write_text(json.dumps(page), "utf-8")
    return folder / "recipe.json"


def begin(page: Path, work: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "railwright.cli", "image", "bake", str(page), "--work", str(work)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def whole(page: Path, work: Path) -> str:
    """Bakes to the end. What a killed bake has started may still be ending: it holds the folder meanwhile."""
    deadline = time.monotonic() + 60
    while True:
        out, error = (baking := begin(page, work)).communicate()
        if baking.returncode == 0:
            break
        assert "another bake is at work" in error, (out, error)
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (sums,) = work.glob("image-*/SHA256SUMS")
    return sums.read_text("utf-8")


def kill(page: Path, work: Path, stage: str, late: float | None) -> bool:
    """Whether the stage was reached, and the bake killed there."""
    baking = begin(page, work)
    assert baking.stdout is not None
    wanted = f"{stage}: {'done' if late is None else 'begins'}"
    for line in baking.stdout:
        if line.startswith(wanted):
            time.sleep(late or 0.0)
            baking.send_signal(signal.SIGKILL)
            break
    baking.communicate()
    return baking.returncode == -signal.SIGKILL


def test_a_bake_that_is_killed_at_every_stage_ends_with_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    page = recipe(tmp_path)
    calm = whole(page, tmp_path / "calm")
    work = tmp_path / "killed"
    killed = 0
    for stage in STAGES:
        for late in MOMENTS:
            killed += kill(page, work, stage, late)
            names = sorted(
                path.name.rsplit("-", 1)[0] for path in work.iterdir() if not path.name.startswith(".")
            )
            print(
                f"{stage}, {'done' if late is None else f'{late} s'}: whole are {', '.join(names) or 'none'}"
            )
            # In order, and none twice; what is not whole has no stage's name.
            assert sorted(names, key=STAGES.index) == list(STAGES[: len(names)])
            assert str(work) not in Path("/proc/self/mounts").read_text("utf-8")
            time.sleep(0.5)
    assert killed >= 2 * len(STAGES)
    assert whole(page, work) == calm
    assert [path.name for path in work.iterdir() if path.name.endswith(".part")] == []
