"""How a hold ends otherwise than by its run's own word, and that the run is then kept out."""

from __future__ import annotations

import inspect
import json
import os
import signal
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from railwright.node.state import Held, StateError, apply, holder, lock, release, revert, runs
from railwright.node.state import hold as real_hold
from railwright.node.state.item import Node
from railwright.node.state.place import WRITE_LOCK
from tests.unit.hold_support import end_holder, hold, holding, is_free, lasting, put, wait_for
from tests.unit.state_support import Systemd, fingerprint, make_node, plant

PROJECT = Path(__file__).resolve().parents[2]
LOCK = "run/railwright.lock"
RUNS = "run/railwright.runs"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    node = make_node(tmp_path / "node")
    yield node
    end_holder(node)


def move_deadline(node: Path, seconds: float) -> None:
    """As a call of the run does, but to a time that a test can wait for."""
    with lock.hold_of(Node(str(node)), "run-1") as found:
        assert found is not None
        lock.sign(found[0], LOCK, {**found[1], "deadline": time.monotonic() + seconds})


def refused(node: Path, when: str) -> None:
    """All calls of run-1, also those that only look."""
    at = Node(str(node))
    if is_free(node):
        (node / LOCK).unlink(missing_ok=True)  # what a killed holder left goes with the first call
    before = lasting(lock.holding(at)), fingerprint(node)
    for call in (
        lambda: put(node, "late", run="run-1"),
        lambda: put(node, "late", run="run-1", check=True),
        lambda: revert(root=str(node), run="run-1"),
        lambda: real_hold("run-1", root=str(node)),
        lambda: real_hold("run-1", root=str(node), check=True),
    ):
        with pytest.raises(StateError) as caught:
            call()
        assert not isinstance(caught.value, Held)
        assert caught.value.where == f"/{RUNS}"
        assert f"the hold of run run-1 on this node {when}" in caught.value.why
        assert caught.value.remedy.startswith("run it again")
    assert not release("run-1", root=str(node))
    assert (lasting(lock.holding(at)), fingerprint(node)) == before


def test_the_node_is_free_when_its_holder_is_killed_but_not_for_its_run(node: Path) -> None:
    hold(node)
    os.kill(holding(node)["pid"], signal.SIGKILL)
    wait_for(lambda: is_free(node))
    assert (node / LOCK).exists()  # a file, and no lock
    refused(node, "has ended (its process was killed)")
    assert put(node).changed
    assert [path.name for path in (node / "run").iterdir()] == ["railwright.runs"]


def test_who_frees_the_node_by_hand_ends_the_run_with_it(node: Path) -> None:
    """What the error of another run says: kill PID on the node."""
    hold(node)
    os.kill(holding(node)["pid"], signal.SIGTERM)
    wait_for(lambda: is_free(node))
    assert not (node / LOCK).exists()
    assert put(node, "by hand").changed
    refused(node, "ended at 20")
    assert (node / "etc/a").read_text() == "by hand"


def test_the_call_of_a_run_whose_lease_is_over_does_not_undo_what_another_run_wrote(node: Path) -> None:
    hold(node, seconds=1)
    wait_for(lambda: is_free(node))
    assert [path.name for path in (node / "run").iterdir()] == ["railwright.runs"]
    hold(node, "run-2")
    assert put(node, "the other's", run="run-2").changed
    refused(node, "ended at 20")
    assert release("run-2", root=str(node))
    refused(node, "ended at 20")
    assert (node / "etc/a").read_text() == "the other's"
    assert (node / RUNS).stat().st_mode & 0o777 == 0o600
    (node / RUNS).unlink()  # a boot empties /run
    assert put(node, run="run-1").changed


def test_each_call_of_the_run_renews_its_lease(node: Path) -> None:
    hold(node)
    for call in (
        lambda: put(node, "a", run="run-1"),
        lambda: put(node, "a", run="run-1"),  # which changes nothing
        lambda: revert(root=str(node), run="run-1"),
        lambda: real_hold("run-1", root=str(node)),
    ):
        move_deadline(node, 20)
        call()
        assert holding(node)["deadline"] - time.monotonic() > 30
    for call in (
        lambda: put(node, "a", run="run-1", check=True),
        lambda: real_hold("run-1", root=str(node), check=True),
    ):
        before = holding(node)
        call()
        assert holding(node) == before


def test_the_holder_minds_a_deadline_that_was_moved(node: Path) -> None:
    hold(node, seconds=3)
    first = holding(node)["deadline"]
    move_deadline(node, 60)
    wait_for(lambda: time.monotonic() > first + 1)
    holding(node)
    move_deadline(node, 0)
    wait_for(lambda: is_free(node))


def test_the_lease_is_longer_than_the_slowest_task_of_a_play() -> None:
    config = ConfigParser()
    config.read(PROJECT / "ansible.cfg")
    assert config.getint("defaults", "task_timeout") + 300 <= holder.LEASE_SECONDS
    assert inspect.signature(real_hold).parameters["seconds"].default == holder.LEASE_SECONDS


def test_a_hold_that_ends_between_the_two_locks_of_a_call_ends_the_call(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run holds, writes and lets go there."""
    hold(node)
    real = lock.take

    def late(at: Node, name: str, deadline: float) -> int:
        if name == WRITE_LOCK:
            monkeypatch.setattr(lock, "take", real)
            os.kill(holding(node)["pid"], signal.SIGTERM)
            wait_for(lambda: is_free(node))
            hold(node, "run-2")
            put(node, "the other's", run="run-2")
            release("run-2", root=str(node))
        return real(at, name, deadline)

    monkeypatch.setattr(lock, "take", late)
    with pytest.raises(StateError, match="ended at 20"):
        put(node, "late", run="run-1")
    assert (node / "etc/a").read_text() == "the other's"
    assert [path.name for path in (node / "run").iterdir()] == ["railwright.runs"]


def test_a_hold_that_ends_while_units_are_started_is_a_failure(node: Path) -> None:
    systemd = Systemd(node)
    name = "railwright.service"
    plant(node, f"/etc/systemd/system/{name}", "[Install]\n")
    hold(node)
    start = systemd._start

    def ends(unit: str) -> tuple[int, str, str]:
        os.kill(holding(node)["pid"], signal.SIGTERM)
        wait_for(lambda: is_free(node))
        return start(unit)

    systemd._start = ends  # type: ignore[assignment,method-assign]
    entry = {"kind": "systemd_unit", "name": name, "state": "started"}
    outcome = apply({"boot_unit": [entry]}, root=str(node), runner=systemd, run="run-1")
    assert [(failure.where, "ended at 20" in failure.why) for failure in outcome.failures] == [
        (f"/{RUNS}", True)
    ]


def test_what_a_killed_holder_left_does_not_let_its_run_in_beside_another_one(node: Path) -> None:
    """The other one has the lock and has not said so yet."""
    hold(node)
    os.kill(holding(node)["pid"], signal.SIGKILL)
    wait_for(lambda: is_free(node))
    fd = lock.take(Node(str(node)), "/run/railwright.lock", 0)
    assert lock.read_note(Node(str(node)))["run"] == "run-1"
    with pytest.raises(StateError, match="has ended"):
        put(node, run="run-1")
    os.close(fd)
    assert not (node / "etc/a").exists()


def test_of_the_runs_that_came_to_no_end_the_latest_are_known(node: Path) -> None:
    at = Node(str(node))
    for n in range(50):
        runs.begin(at, f"run-{n}", "2026-11-30T08:00:00+00:00")
    known = json.loads((node / RUNS).read_text())
    assert list(known) == [f"run-{n}" for n in range(18, 50)]
    runs.refuse_if_over(at, "run-17")
    runs.refuse_if_over(at, "")
    with pytest.raises(StateError, match="run-49"):
        runs.refuse_if_over(at, "run-49")


@pytest.mark.parametrize("text", ["{", "[]", '{"run-1": 7}'])
def test_a_list_of_runs_that_is_none_of_ours_keeps_runs_out_and_says_so(node: Path, text: str) -> None:
    (node / RUNS).write_text(text)
    for check in (True, False):
        with pytest.raises(StateError) as caught:
            put(node, run="run-1", check=check)
        assert (caught.value.where, caught.value.remedy) == (
            f"/{RUNS}",
            "reboot, or look at it and remove it",
        )
    assert hold(node).startswith(f"/{RUNS}: this is none of ours")
    assert is_free(node)
    assert put(node).changed  # a run of one call is not looked up
