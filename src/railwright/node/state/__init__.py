"""The one writer of a node: typed items, converged in one call, under one lock, with one record to put them back.

A slice is what one role owns: a name and its entries, JSON objects with a "kind". `apply` brings a node to its slices;
`revert` puts back what was there before. Either can be asked what it would do (`check`), and then makes no system call
that changes anything: no lock is taken either (whether somebody holds it is read from /proc/locks). A run of several
calls begins with `hold` and ends with `release`: between them other runs are refused.

Keys that every entry may have: "because" (why it is there, for people) and "reboot" (true: it takes effect at the next
boot, so a change of it is listed in `reboot_needed`). A file and JSON keys may be "secret": true, and are never shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

from ..model import InputError
from . import confirm, holder
from .command import Said, Tools
from .command import run as run_program
from .converge import converge, foretell
from .fields import expected
from .item import Item, Node, Runner
from .kinds import read_slices, slice_name
from .lock import Held, Lock
from .network_item import held_back, settled
from .outcome import Failure, ItemOutcome, Outcome, StateError
from .record import Record
from .unit_item import systemctl

__all__ = [
    "Failure",
    "Held",
    "InputError",
    "ItemOutcome",
    "Outcome",
    "Said",
    "StateError",
    "apply",
    "confirmed",
    "hold",
    "item_ids",
    "recorded",
    "release",
    "revert",
]


def apply(
    slices: Any,
    *,
    root: str = "/",
    blobs: Any = None,
    check: bool = False,
    owner: str = "",
    unit: str = "",
    wait: float = 0.0,
    run: str = "",
    link_seconds: Optional[float] = None,
    runner: Optional[Runner] = None,
    tools: Optional[Tools] = None,
) -> Outcome:
    """Brings the node to these slices: `{slice: [entry, ...]}`; slices that are not named are left alone.

    What an earlier run wrote for a named slice and is not in its entries any more is put back. root: a folder that
    holds a node's files. blobs: `{sha256: base64}`, bytes of files that are named by their digest. owner: a label of
    the caller, for whoever meets its lock. unit: the systemd unit in which the caller runs, so that it may write while
    the run that starts it waits for it. wait: seconds to wait for another run. run: the run that this call is a part
    of, when it holds the node (`hold`). link_seconds: how long to wait for all the links that writes take away; None
    waits for each a minute. runner: runs systemctl, tools: runs other programs; None is the node's own, and none for
    another root.

    An item that cannot be set is in `failures`, and the others are set all the same. Raises InputError for input that
    cannot be used and StateError (Held: another run is at work) before anything is written.
    """
    node = replace(_node(root, runner, tools), link_seconds=link_seconds, alone=bool(unit))
    items, undone = held_back(node, read_slices(slices, blobs))
    if not check and not unit:
        confirm.settle(node)
    outcome = (
        foretell(node, items, "release", holder.run_name(run))
        if check
        else converge(node, items, "release", Lock(node, owner, unit, wait, holder.run_name(run)))
    )
    outcome = replace(outcome, failures=(*outcome.failures, *undone))
    if not check and not unit:
        settled(node, items, outcome)
    return outcome


def revert(
    names: Optional[Sequence[str]] = None,
    *,
    but: Sequence[str] = (),
    root: str = "/",
    check: bool = False,
    owner: str = "",
    wait: float = 0.0,
    run: str = "",
    runner: Optional[Runner] = None,
    tools: Optional[Tools] = None,
) -> Outcome:
    """Puts back what was there before these slices (None: all of them), as far as nobody changed it since.

    but: slices that are left as they stand where no names are given.
    A slice that the record does not know is no error: nothing is to be put back. What this changes of the network has
    to be confirmed as any change of it. The rest as in `apply`.
    """
    node = _node(root, runner, tools)
    items = None if names is None else _named(names)
    left = _named(but, "but")
    if not check:
        confirm.settle(node)
    if items is None and left:
        items = {name: [] for name in Record.read(node).slices if name not in left}
    if check:
        return foretell(node, items, "revert", holder.run_name(run))
    outcome = converge(node, items, "revert", Lock(node, owner, "", wait, holder.run_name(run)))
    settled(node, {}, outcome)
    return outcome


def hold(
    run: str,
    *,
    seconds: int = holder.LEASE_SECONDS,
    owner: str = "",
    root: str = "/",
    check: bool = False,
) -> None:
    """Holds the node for a run of several calls, each of which names it, until `release`.

    seconds: so long after the run's last call (1 to 86400) the node is let go, whatever has become of the run. owner:
    as in `apply`. Holding it twice is holding it once. When the hold ends otherwise than by `release`, the later calls
    of this run are refused. Raises InputError, StateError and Held.
    """
    if not holder.run_name(run):
        raise InputError("run", "a run that holds a node needs a name", "give one that no other run has")
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise expected("seconds", "a whole number", seconds)
    if not 1 <= seconds <= holder.LONGEST_SECONDS:
        raise InputError("seconds", f"{seconds} is out of range", f"expected 1 to {holder.LONGEST_SECONDS}")
    node = _node(root, None)
    if not check:
        confirm.settle(node)
    holder.hold(node, owner, run, seconds, check)


def release(run: str, *, root: str = "/", check: bool = False) -> bool:
    """Lets the node go that `hold` holds for this run; whether it was held. Raises InputError and StateError."""
    node = _node(root, None)
    if not check:
        confirm.settle(node)
    return not check and bool(holder.run_name(run)) and holder.release(node, run)


def confirmed(*, root: str = "/", check: bool = False, runner: Optional[Runner] = None) -> None:
    """Somebody has reached the node after a change of its network, which stands from now on.

    Every other call that is no check and no boot says so too. Raises InputError.
    """
    if not check:
        confirm.settle(_node(root, runner))


def recorded(*, root: str = "/") -> dict[str, dict[str, Any]]:
    """The entries of what was written and can be put back: `{slice: {item id: entry}}`. Raises StateError."""
    found: dict[str, dict[str, Any]] = {}
    for name, item_id, kept in Record.read(_node(root, None)).items():
        found.setdefault(name, {})[item_id] = dict(kept.entry)
    return found


def item_ids(name: str, entries: Sequence[Any]) -> list[str]:
    """The id of each entry of a slice, as the record has it. Raises InputError."""
    return [item.id for item in read_slices({name: entries}, {})[name]]


def _named(names: Any, where: str = "names") -> dict[str, list[Item]]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise expected(where, "a list", names)
    return {slice_name(name, f"{where}[{n}]"): [] for n, name in enumerate(names)}


def _node(root: str, runner: Optional[Runner], tools: Optional[Tools] = None) -> Node:
    if not os.path.isabs(root) or not os.path.isdir(root):
        raise InputError(
            "root",
            f"{root!r} is no folder",
            "expected an absolute path to a folder that holds a node's files",
        )
    place = os.path.normpath(root)
    own = place == "/"
    return Node(
        place,
        systemctl if runner is None and own else runner,
        run_program if tools is None and own else tools,
    )
