"""Two controllers at one node: one proceeds, and the other is told who holds it and writes nothing."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ansible.playing import PROGRAMS, PROJECT, Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.fake_nodes import FakeNode, changes, snapshot

HELD = re.compile(
    rf"another run is at work on this node: process \d+ for {re.escape(getpass.getuser())}@{socket.gethostname()}, "
    r"run [0-9a-f]{12}, since 20\S+, until 20\S+ unless it goes on \(let it end, then run again; when its controller "
    r"is known to be dead: kill \d+ on the node\)"
)
ENTRY = {"kind": "sysctl", "name": "vm.zone_reclaim_mode", "value": "0"}


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    with scratch() as place:
        machine = "2s_8xh100_10xcx7_backwards"
        rack = build_rack(place, {"node1": (machine, {})}, plain_python("3.9", "3.10", "3.11", "3.12"))
        rack.write_inventory({"node1": {"expect": {"gpus": 8, "rails": 8}}})
        yield rack


@contextmanager
def first_controller(rack: Rack, folder: Path, *, fail: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A run that holds the node, calls the writer twice, and lets go when `go` is there, also when it fails."""
    go = folder / "go"
    held = {"node_state": {"state": "held", "seconds": 600}}
    writes = {"node_state": {"slice": "extra", "entries": [ENTRY]}}
    wait = {
        "ansible.builtin.wait_for": {"path": str(go), "sleep": 1, "timeout": 240},
        "delegate_to": "localhost",
        "vars": {"ansible_python_interpreter": "{{ ansible_playbook_python }}"},
    }
    last = {"ansible.builtin.fail": {"msg": "in the middle"}} if fail else writes
    block = {"block": [held, writes, wait, last], "always": [{"node_state": {"state": "released"}}]}
    playbook = folder / "first.json"
    playbook.write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": [block]}]))
    with subprocess.Popen(
        [str(PROGRAMS / "ansible-playbook"), "-i", str(rack.inventory), str(playbook)],
        cwd=PROJECT,
        env={
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "HOME": str(folder),
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            record = rack.nodes[0].tree / "var/lib/railwright/state.json"
            for _ in range(600):
                if record.exists() and '"extra"' in record.read_text():
                    break
                assert run.poll() is None, run.communicate()[0]
                time.sleep(0.1)
            yield run
        finally:
            go.touch()


def locks(node: FakeNode) -> list[str]:
    """What of ours is in /run, but for code that is kept there till the next boot."""
    names = (path.name for path in (node.tree / "run").glob("railwright*"))
    return sorted(name for name in names if not name.startswith("railwright.code."))


def told(run: Run) -> str:
    """What the failed task said, as one line."""
    return " ".join(" ".join(run.failures("node1")).split())


def test_one_of_two_controllers_proceeds_and_the_other_is_told_who_holds_the_node(
    rack: Rack, tmp_path: Path
) -> None:
    (node,) = rack.nodes
    with first_controller(rack, tmp_path) as first:
        assert locks(node) == ["railwright.lock", "railwright.runs"]
        before = snapshot(node.tree)
        for playbook in ("tune.yml", "retune.yml", "revert.yml"):
            second = rack.play(playbook)
            assert second.failed == {"node1"}, second.output
            assert HELD.search(told(second)), told(second)
        # Also a run that comes to its end does not let go of what it never held.
        assert locks(node) == ["railwright.lock", "railwright.runs"]
        assert changes(before, snapshot(node.tree)) == set()
        (tmp_path / "go").touch()
        said = first.communicate()[0]
    assert first.returncode == 0, said
    assert locks(node) == []
    # The first run has let go, so that the second may do it all.
    tuned = rack.play("tune.yml")
    assert tuned.failed == set(), tuned.output
    assert locks(node) == []


def test_a_run_that_fails_lets_the_node_go(rack: Rack, tmp_path: Path) -> None:
    (node,) = rack.nodes
    with first_controller(rack, tmp_path, fail=True) as first:
        assert locks(node) == ["railwright.lock", "railwright.runs"]
        (tmp_path / "go").touch()
        said = first.communicate()[0]
    assert (first.returncode, "in the middle" in said) == (2, True), said
    assert locks(node) == []


def test_a_slice_that_the_plan_has_no_use_for_is_taken_back_by_a_retune_and_no_other(
    rack: Rack, tmp_path: Path
) -> None:
    """What an elder plan left (here for IMEX, on a node without an NVLink fabric), and a slice that is nobody's."""
    (node,) = rack.nodes
    entry = {"kind": "file", "path": "/etc/left-over", "content": "elder\n"}
    own = {"kind": "file", "path": "/etc/by-hand", "content": "own\n"}
    playbook = tmp_path / "elder.json"
    task = {"node_state": {"slices": {"imex": [entry], "by_hand": [own]}}}
    playbook.write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": [task]}]))
    assert rack.play(str(playbook)).failed == set()
    run = rack.play("retune.yml")
    assert run.failed == set(), run.output
    (result,) = run.results("node_write")
    assert [item["action"] for item in result["slices"]["imex"]["items"]] == ["release"]
    assert not (node.tree / "etc/left-over").exists()
    assert (node.tree / "etc/by-hand").read_text() == "own\n"
