"""Fake nodes for the tests, in a folder that is made of memory where there is one."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_nodes import FakeNode, FakeNodeError, create, inventory

from .playing import PROJECT, Run, play


@dataclass(frozen=True)
class Scratch:
    """Where nodes and their trees may lie."""

    nodes: Path
    trees: Path


@dataclass(frozen=True)
class Rack:
    """Nodes, their inventory and the folder that a run writes."""

    folder: Path
    nodes: tuple[FakeNode, ...]

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def play(self, playbook: str, *arguments: str, **options: Any) -> Run:
        return play(playbook, self.inventory, self.output, *arguments, **options)

    def write_inventory(self, policies: Mapping[str, Any] | None = None) -> None:
        text = yaml.safe_dump(inventory(self.nodes, policies))
        self.inventory.write_text(text, encoding="utf-8")


@contextmanager
def scratch() -> Iterator[Scratch]:
    """Two folders that everybody may enter: one for nodes, and one in memory, where there is one, for their trees."""
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="railwright-") as nodes,
        tempfile.TemporaryDirectory(prefix="railwright-", dir=memory) as trees,
    ):
        found = Scratch(Path(nodes), Path(trees))
        for folder in (found.nodes, found.trees):
            folder.chmod(0o755)
        yield found


@functools.cache
def plain_python(*versions: str) -> Path:
    """A Python for a node: the first of these versions that this machine has. Skips the test where there is none."""
    done = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), *versions], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no Python {' or '.join(versions)} on this machine")
    return Path(done.stdout.strip())


def build_rack(
    place: Scratch, machines: Mapping[str, tuple[Path | str, Mapping[str, Any]]], python: Path
) -> Rack:
    """A rack of these nodes: name to machine and patch. Skips where this machine does not let a node be entered."""
    try:
        nodes = tuple(
            create(place.nodes / name, machine, python, patch, trees=place.trees)
            for name, (machine, patch) in machines.items()
        )
        nodes[0].must_enter()
    except FakeNodeError as error:
        if "cannot be entered" not in error.why:
            raise
        pytest.skip(str(error))
    rack = Rack(place.nodes, nodes)
    rack.write_inventory()
    return rack


def give_to_a_plain_user(node: FakeNode, user: int = 65534) -> None:
    """The node belongs to this user from now on, and is entered as them. Needs root."""
    for folder in (node.folder, node.tree.resolve()):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
    enter = node.folder / "enter"
    node.python.rename(enter)
    drop = f"setpriv --reuid={user} --regid={user} --clear-groups --"
    node.python.write_text(f'#!/bin/sh\nexec {drop} {enter} "$@"\n', encoding="utf-8")
    node.python.chmod(0o755)
