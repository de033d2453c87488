"""The runs that hold this node, and those whose hold has ended without their word.

/run/railwright.runs, `{run: {"since": time, "ended": time, "" for unknown}}`. It is changed by the process that holds
the first lock only. A run that is in it and does not hold the node is let in no more: another one may have written
since, and the plan that the first was made with would undo that.
"""

from __future__ import annotations

from . import run_file
from .item import Node
from .outcome import StateError
from .place import RUNS

# Only runs that came to no good end stay here; of these the latest.
_MOST = 32


def begin(node: Node, run: str, since: str) -> None:
    """This run holds the node from now on. Raises StateError."""
    known = run_file.read(node, RUNS)
    known[run] = {"since": since, "ended": ""}
    run_file.save(node, RUNS, dict(list(known.items())[-_MOST:]))


def end(node: Node, run: str, ended: str) -> None:
    """The hold of this run has ended without its word. Raises StateError."""
    known = run_file.read(node, RUNS)
    known[run] = {**known.get(run, {"since": ""}), "ended": ended}
    run_file.save(node, RUNS, known)


def forget(node: Node, run: str) -> None:
    """This run has let the node go. Raises StateError."""
    known = run_file.read(node, RUNS)
    known.pop(run, None)
    run_file.save(node, RUNS, known)


def refuse_if_over(node: Node, run: str) -> None:
    """For a run that does not hold the node. Raises StateError when it did, and never let it go."""
    known = run_file.read(node, RUNS).get(run) if run else None
    if known is not None:
        when = f"ended at {known['ended']}" if known.get("ended") else "has ended (its process was killed)"
        raise StateError(
            RUNS,
            f"the hold of run {run} on this node {when}, and another run may have written since",
            "run it again, so that it begins with the node as it is now",
        )
