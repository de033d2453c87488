"""Stages: published whole or not at all, whenever the bake is killed; and the recipe that they come from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from railwright.image.recipe import Recipe
from railwright.image.stages import bench
from railwright.node.model import InputError

# Three stages, each of two files; the process kills itself at the step that it is told: before, within and after each.
BAKE = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from railwright.image import stages
    work, fatal = Path(sys.argv[1]), int(sys.argv[2])
    step = 0
    def moment():
        global step
        step += 1
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    rename = os.rename
    def slow_rename(*names):
        moment()
        rename(*names)
        moment()
    os.rename = slow_rename
    def make(before):
        def fill(place):
            moment()
            (place / "first").write_text(before)
            moment()
            (place / "second").write_text(before + "!")
            moment()
        return fill
    with stages.bench(work, print) as here:
        key = "inputs"
        for name in ("one", "two", "three"):
            key = here.stage(name, key, make(name)).key
    print(step)
    """
)
WHOLE = {f"{name}/{file}" for name in ("one", "two", "three") for file in ("first", "second")}


def bake(work: Path, fatal: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BAKE, str(work), str(fatal)], capture_output=True, text=True, check=False
    )


def published(work: Path) -> set[str]:
    return {
        f"{place.name.rsplit('-', 1)[0]}/{file.name}"
        for place in work.iterdir()
        if place.is_dir() and not place.name.startswith(".")
        for file in place.iterdir()
    }


def test_a_bake_that_is_killed_at_any_step_leaves_whole_stages_and_goes_on_from_them(tmp_path: Path) -> None:
    steps = int(bake(tmp_path / "calm", 0).stdout.splitlines()[-1])
    assert steps == 15
    for fatal in range(1, steps + 1):
        work = tmp_path / f"at{fatal}"
        assert bake(work, fatal).returncode == -signal.SIGKILL
        before = published(work)
        for name in ("one", "two", "three"):
            # Both files of a stage, or none.
            assert len({path for path in before if path.startswith(f"{name}/")}) in (0, 2), (fatal, before)
        again = bake(work, 0)
        assert again.returncode == 0, again.stderr
        assert published(work) == WHOLE
        assert again.stdout.count("is there") == len(before) // 2
        assert not list(work.glob(".*.part"))


def test_a_stage_with_other_inputs_is_another_stage_and_the_same_is_kept(tmp_path: Path) -> None:
    made: list[str] = []

    def fill(place: Path) -> None:
        made.append(place.name)
        (place / "file").write_text("x", "ascii")

    with bench(tmp_path, lambda line: None) as here:
        first = here.stage("one", ["trixie", 1], fill)
        assert here.stage("one", ["trixie", 1], fill).place == first.place
        assert here.stage("one", ["trixie", 2], fill).place != first.place
    assert len(made) == 2


def test_two_bakes_do_not_share_a_folder(tmp_path: Path) -> None:
    with bench(tmp_path, lambda line: None), pytest.raises(InputError, match="another bake is at work"):
        bench(tmp_path, lambda line: None).__enter__()


def test_a_program_that_a_killed_bake_has_left_still_holds_the_folder(tmp_path: Path) -> None:
    left = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys; from pathlib import Path; from railwright.image.stages import bench\n"
            f"with bench(Path({str(tmp_path)!r}), print) as here:\n"
            "    child = os.fork()\n"
            "    if child:\n"
            "        print(child, flush=True); os._exit(1)\n"
            "    os.set_inheritable(here.lock, True); os.execvp('sleep', ['sleep', '60'])\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert left.stdout is not None
    child = int(left.stdout.readline())
    left.wait()
    try:
        with pytest.raises(InputError, match="another bake is at work"), bench(tmp_path, lambda line: None):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        left.stdout.close()


GOOD: dict[str, Any] = {
    "name": "h100",
    "epoch": 1790000000,
    "debian": {"suite": "trixie", "mirror": "http://archive.example/debian"},
}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": "H100 image"}, "name"),
        ({"tree": "/"}, "both debian and tree"),
        ({"debian": None}, "or neither"),
        ({"debian": {"suite": "trixie"}}, "debian.mirror"),
        ({"debian": {"suite": "--help", "mirror": "/srv"}}, "debian.suite"),
        ({"debian": {"mirror": "--help"}}, "debian.mirror"),
        ({"debian": {"mirror": "http://x/debian\ndeb http://y z main"}}, "debian.mirror"),
        ({"debian": {"mirror": "/srv", "components": []}}, "debian.components"),
        ({"debian": {"mirror": "/srv", "components": ["main,x y"]}}, "debian.components"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": 2**63}, "epoch"),
        ({"sources": "deb x\0"}, "sources"),
        ({"packages": ["a b"]}, r"packages\[0\]"),
        ({"command_line": "a 'b'"}, "command_line"),
        ({"disk_gib": 1}, "disk_gib"),
        ({"sbom": ["swid"]}, "sbom"),
        ({"forbid": ["short"]}, "forbid"),
        ({"files": "/no/such/folder"}, "files"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_recipe_that_cannot_be_baked_is_refused_with_its_place(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError, match=where):
        Recipe.read({**GOOD, **change}, "recipe.yml")


def test_the_manifest_tells_no_secret_of_the_recipe_and_nothing_that_it_could_be_guessed_from() -> None:
    page = {
        **GOOD,
        "debian": {"suite": "trixie", "mirror": "https://bake:hunter2@archive.example/debian"},
        "forbid": ["planted-secret-4711"],
        "sources": "deb https://node:hunter3@archive.example/debian trixie main",
    }
    told = Recipe.read(page, "recipe.yml").told()
    # printf planted-secret-4711 | sha256sum
    secrets = ("planted", "000d2bc626104e90", "hunter")
    assert [text for text in secrets if text in str(told)] == []
    assert told["debian"]["mirror"] == "https://***@archive.example/debian"
    assert told["forbid"] == 1
