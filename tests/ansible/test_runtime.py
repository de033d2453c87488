"""The runtime on a fake node: installed by the play with the real venv and pip, tested, and its findings judged."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.unit.wheel_support import lock, wheel

# As much of a CPU build as the self-test asks for.
TORCH = """
__version__ = VERSION
class version: cuda = None
class cuda:
    is_available = staticmethod(lambda: False)
    init = staticmethod(lambda: None)
class distributed: is_available = staticmethod(lambda: False)
"""


@dataclass
class Story:
    """One node with eight GPUs on its bus: set up and tested, then judged."""

    rack: Rack
    first: Run
    judged: Run
    tree: Path


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    python = plain_python().resolve()
    with scratch() as place:
        rack = build_rack(place, {"node1": ("2s_8xh100_10xcx7", {})}, python)
        tree = rack.nodes[0].tree
        house = tree / "srv/wheels"
        torch = wheel(house, "torch", "2.13.0+cpu", text=TORCH)
        (pip,) = _pip_of(python, house)
        environment = {"lock": lock(torch, pip), "wheelhouse": "/srv/wheels", "python": str(python)}
        rack.write_inventory({"node1": {"dl_runtime": {"environments": {"train": environment}}}})
        first = rack.play("install.yml", "-e", json.dumps({"install_self_test": True, "self_test_also": []}))
        judged = rack.play("verify.yml")
        yield Story(rack, first, judged, tree)


def _pip_of(python: Path, house: Path) -> list[Path]:
    """The wheel of pip that comes with the node's Python."""
    program = "import ensurepip, glob, os; print(*glob.glob(os.path.dirname(ensurepip.__file__) + '/_bundled/pip-*'))"
    found = subprocess.run(
        [python, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    made = [house / Path(one).name for one in found]
    for one, target in zip(found, made, strict=True):
        target.write_bytes(Path(one).read_bytes())
    return made


def test_the_play_builds_the_environment_and_lays_the_self_test_beside(story: Story) -> None:
    assert story.first.code == 0, story.first.output
    assert story.first.changed == {"node1": 1}
    place = story.tree / "opt/railwright/train"
    assert (place / os.readlink(place / "current") / "bin/python").is_symlink()
    assert (story.tree / "usr/local/lib/railwright/self_test.py").stat().st_mode & 0o777 == 0o755


def test_the_self_test_says_on_the_node_what_it_found(story: Story) -> None:
    assert "torch 2.13.0+cpu, a CPU build" in story.first.output
    assert "verdict: broken" in story.first.output
    page = json.loads((story.tree / "run/railwright-self-test/train.json").read_text())
    assert page["problems"][0]["why"] == "torch 2.13.0+cpu is a CPU build, and 8 GPUs are on the bus"


def test_what_it_found_wrong_fails_the_check_and_stands_in_the_report(story: Story) -> None:
    assert story.judged.code != 0
    assert "torch 2.13.0+cpu is a CPU build" in "".join(story.judged.failures("node1"))
    rows = {
        row["name"]: row
        for row in json.loads((story.rack.output / "node1/findings.json").read_text())["checks"]
    }
    assert rows["dl_runtime.environment"]["ok"]
    assert not rows["dl_runtime.self_test"]["ok"]
    assert "is a CPU build" in rows["dl_runtime.self_test"]["detail"]
