"""Images by digest: pulled once, taken away where they came by us, never by a tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.state import Outcome, Said, apply, revert
from tests.unit.state_support import item, make_node, plant

DIGEST = "sha256:" + "a" * 64
NAME = f"registry.example:5000/team/pytorch@{DIGEST}"

STORAGE = "var/lib/containers/storage"


@dataclass
class Engine:
    """podman, docker or ctr, as far as images go. fails: what pulling says instead of doing it."""

    images: set[str] = field(default_factory=set)
    fails: str = ""
    used: bool = False
    down: bool = False
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        image = argv[-1]
        if self.down:
            return Said(125 if argv[0] == "podman" else 1, err="Cannot connect to the daemon. Is it running?")
        if "pull" in argv:
            if self.fails:
                return Said(125, err=self.fails)
            self.images.add(image)
        elif "rmi" in argv or "rm" in argv:
            if self.used:
                return Said(2, err="Error: image used by 1 container")
            self.images.discard(image)
        elif "ls" in argv:
            return Said(0, "".join(f"{one}\n" for one in self.images if f"name=={one}" == image))
        elif image not in self.images:
            return Said(1, err="Error response from daemon: No such image: x" if argv[0] == "docker" else "")
        return Said(0)

    @property
    def pulls(self) -> int:
        return sum(" pull" in call for call in self.calls)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    root = make_node(tmp_path / "node")
    (root / STORAGE).mkdir(parents=True)
    return root


def run(node: Path, engine: Engine, tool: str = "podman", image: str = NAME, **more: Any) -> Outcome:
    entry = {"kind": "container_image", "image": image, "tool": tool}
    return apply({"dl_runtime": [entry]}, root=str(node), tools=engine, **more)


def test_podman_that_never_ran_is_not_asked_by_a_check_since_it_would_make_its_storage(node: Path) -> None:
    (node / STORAGE).rmdir()
    engine = Engine()
    assert run(node, engine, check=True).changed
    assert engine.calls == []
    assert run(node, engine).failures == ()
    assert engine.images == {NAME}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ('graphroot = "/data/images"\n', True),
        ('# graphroot = "/data/images"\n', False),
        ('graphroot = "/gone"\n', False),
        ('additionalimagestores = [\n  "/data/images",\n]\n', True),
    ],
)
def test_podman_with_another_storage_is_asked(node: Path, line: str, asked: bool) -> None:
    (node / STORAGE).rmdir()
    (node / "data/images").mkdir(parents=True)
    plant(node, "/etc/containers/storage.conf", f'[storage]\nrunroot = "/run/containers/storage"\n{line}')
    engine = Engine({NAME})
    assert run(node, engine, check=True).changed is not asked
    assert bool(engine.calls) is asked


@pytest.mark.parametrize("tool", ["podman", "docker", "ctr"])
def test_an_image_is_pulled_once_and_goes_with_a_revert(node: Path, tool: str) -> None:
    engine = Engine()
    assert run(node, engine, tool, check=True).changed
    assert engine.pulls == 0
    assert item(run(node, engine, tool))["action"] == "pull"
    assert engine.images == {NAME}
    assert not run(node, engine, tool).changed
    assert engine.pulls == 1
    assert revert(["dl_runtime"], root=str(node), tools=engine).failures == ()
    assert engine.images == set()


def test_an_image_that_was_there_before_is_not_pulled_and_stays(node: Path) -> None:
    engine = Engine({NAME})
    assert not run(node, engine).changed
    revert(["dl_runtime"], root=str(node), tools=engine)
    assert (engine.pulls, engine.images) == (0, {NAME})


def test_a_tag_beside_the_digest_is_for_people(node: Path) -> None:
    engine = Engine()
    run(node, engine, image=NAME.replace("@", ":25.10@"))
    assert engine.images == {NAME}
    assert not run(node, engine).changed


@pytest.mark.parametrize(
    "image", ["registry.example/x:latest", "x", f"x@{DIGEST}", f"registry.example/x@{DIGEST[:-1]}"]
)
def test_a_reference_without_registry_or_digest_is_refused(node: Path, image: str) -> None:
    with pytest.raises(InputError):
        run(node, Engine(), image=image)


def test_a_pull_that_fails_says_why_without_secrets_and_is_tried_again(node: Path) -> None:
    engine = Engine(fails='Error: GET "https://me:hunter2@registry.example/v2/?token=hunter2": unauthorized')
    (failure,) = run(node, engine).failures
    assert "unauthorized" in failure.why
    assert "hunter2" not in failure.why
    engine.fails = ""
    assert run(node, engine).failures == ()


def test_an_image_that_a_container_uses_is_not_taken_away(node: Path) -> None:
    engine = Engine()
    run(node, engine)
    engine.used = True
    (failure,) = revert(["dl_runtime"], root=str(node), tools=engine).failures
    assert "used by 1 container" in failure.why
    engine.used = False
    assert revert(["dl_runtime"], root=str(node), tools=engine).failures == ()
    assert engine.images == set()


@pytest.mark.parametrize("tool", ["podman", "docker", "ctr"])
def test_a_revert_does_not_take_a_tool_that_is_down_for_one_without_the_image(node: Path, tool: str) -> None:
    engine = Engine()
    run(node, engine, tool)
    engine.down = True
    (failure,) = revert(["dl_runtime"], root=str(node), tools=engine).failures
    assert failure.why == f"{tool} does not answer: Cannot connect to the daemon. Is it running?"
    engine.down = False
    assert revert(["dl_runtime"], root=str(node), tools=engine).failures == ()
    assert engine.images == set()


def test_a_tool_that_is_not_there_is_named(node: Path) -> None:
    (failure,) = apply(
        {"dl_runtime": [{"kind": "container_image", "image": NAME, "tool": "docker"}]},
        root=str(node),
        tools=lambda argv: Said(None),
    ).failures
    assert failure.why == "the node has no docker"
