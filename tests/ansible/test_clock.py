"""A node whose clock jumps by two days between any two calls: it is tuned, held, verified and put back as any other.

Its Python is told a clock that is a day behind and a day ahead in turns, by a `sitecustomize`; files and systemctl keep
the machine's own. Only the wall clock jumps, as it does on a real machine: nobody sets the monotonic one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import build_rack, plain_python, scratch
from tests.fake_nodes import Entry, changes, snapshot

JUMPING = """\
import datetime, time

with open("/opt/clock/calls", "a+") as file:
    file.write(".")
    off = 86400 * (-1 if file.tell() % 2 else 1)
real, real_ns, zone = time.time, time.time_ns, datetime.timezone.utc


class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


time.time = lambda: real() + off
time.time_ns = lambda: real_ns() + off * 10**9
datetime.datetime = Jumping
"""


@dataclass(frozen=True)
class Story:
    runs: dict[str, Run]
    calls: int
    locks: list[str]
    before: dict[str, Entry]
    after: dict[str, Entry]


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        rack = build_rack(
            place, {"node1": ("2s_8xh100_10xcx7", {})}, plain_python("3.9", "3.10", "3.11", "3.12")
        )
        (node,) = rack.nodes
        clock = node.tree / "opt/clock"
        clock.mkdir(parents=True)
        (clock / "sitecustomize.py").write_text(JUMPING, encoding="utf-8")
        enter = node.python.read_text("utf-8")
        assert enter.count("LANG=C.UTF-8") == 1
        node.python.write_text(
            enter.replace("LANG=C.UTF-8", "LANG=C.UTF-8 PYTHONPATH=/opt/clock"), encoding="utf-8"
        )
        before = snapshot(node.tree)
        runs = {}
        for name, playbook in {
            "tune": "tune.yml",
            "retune": "retune.yml",
            "verify": "verify.yml",
            "revert": "revert.yml",
        }.items():
            runs[name] = rack.play(playbook)
        calls = len((clock / "calls").read_text("utf-8"))
        locks = sorted(path.name for path in (node.tree / "run").glob("railwright*"))
        yield Story(runs, calls, locks, before, snapshot(node.tree))


def test_every_call_of_a_run_is_let_in_whatever_the_clock_says_meanwhile(story: Story) -> None:
    assert [failure for run in story.runs.values() for failure in run.failures("node1")] == []
    # One that was a day late for its lease of a quarter of an hour would have been refused.
    assert story.calls > 10
    assert story.runs["tune"].changed["node1"] > 0


def test_a_clock_that_jumps_makes_no_change(story: Story) -> None:
    assert story.runs["retune"].changed == {"node1": 0}


def test_no_lock_and_no_ended_hold_stays_behind(story: Story) -> None:
    assert story.locks == []


def test_what_was_there_comes_back_with_its_times(story: Story) -> None:
    mine = ("var/lib/railwright", "opt/clock", "run")
    differing = {path for path in changes(story.before, story.after) if not path.startswith(mine)}
    assert differing == set()
