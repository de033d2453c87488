"""How a test holds a node as a run of several calls does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from railwright.node.state import apply, lock
from railwright.node.state.item import Node
from tests.unit.state_support import file_entry

SOURCE = Path(__file__).resolve().parents[2] / "src"


def hold(node: Path, run: str = "run-1", seconds: int = 60, **more: Any) -> str:
    """Holds the node as a module does it, in a process that ends at once; what went wrong, "" for nothing."""
    text = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node import state
try:
    state.hold({run!r}, seconds={seconds}, owner="ops@rack-7", root={str(node)!r}, **{more!r})
except state.StateError as error:
    print(error)
"""
    # Its output is read to the end: a holder that kept it open would hold this test up for as long.
    done = subprocess.run(
        [sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def put(node: Path, content: str = "a", **more: Any) -> Any:
    return apply({"part": [file_entry("/etc/a", content)]}, root=str(node), **more)


def holding(node: Path) -> dict[str, Any]:
    note = lock.holding(Node(str(node)))
    assert note
    return note


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(300):
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("waited 30 s in vain")


def is_free(node: Path) -> bool:
    return not lock.holding(Node(str(node)))


def lasting(note: Mapping[str, Any]) -> dict[str, Any]:
    """What a call of the run does not change."""
    return {key: value for key, value in note.items() if key not in ("until", "deadline")}


def end_holder(node: Path) -> None:
    """Whatever a test has left."""
    note = lock.holding(Node(str(node)))
    if note:
        os.kill(note["pid"], signal.SIGKILL)
