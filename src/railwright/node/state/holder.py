"""A process on the node that holds it for a run of several calls, between the calls and across their failures.

What it has is a lease, which each call of the run renews: so a run is held on to for as long as it goes on, and one
whose controller is gone, whatever became of its sessions, is not for long. Whatever ends the process, the kernel gives
the lock back; unless the run has let go itself, `runs` then keeps its later calls out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NoReturn, Optional

from ..model import InputError
from . import runs
from .fields import expected
from .item import Node
from .lock import Held, hold_of, is_locked, let_go, note_at, refuse_if_held, renew, sign, take, term
from .outcome import StateError
from .place import LOCK

# More than a task may take on the slowest node of a play (`task_timeout` in ansible.cfg, 600 s), for which the run's
# next call of the others waits.
LEASE_SECONDS = 900
LONGEST_SECONDS = 24 * 3600
_RUN = re.compile(r"[A-Za-z0-9_.@:-]{1,64}", re.ASCII)
_END_SECONDS = 10.0
# How often the holder looks whether its deadline was moved, and a release whether the holder has gone.
_LOOK_SECONDS = 0.2
_ENDS = (signal.SIGINT, signal.SIGTERM)


def run_name(run: Any) -> str:
    """`run`, when it can be the name of a run; "" is none. Raises InputError."""
    if not isinstance(run, str):
        raise expected("run", "text", run)
    if run and _RUN.fullmatch(run) is None:
        raise InputError("run", f"{run!r} is no name of a run", "expected up to 64 of A-Z a-z 0-9 _ . @ : -")
    return run


def hold(node: Node, owner: str, run: str, lease: int, check: bool) -> None:
    """Lets a process of its own hold the node for this run. Raises Held and StateError.

    lease: seconds after the run's last call when it lets go by itself. A run that holds the node already renews its
    lease. check: looks, and starts nothing.
    """
    if check:
        refuse_if_held(node, run)
        return
    if renew(node, run):
        return
    runs.refuse_if_over(node, run)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _begin(node, owner, run, lease, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if said != b"held":
        raise _refusal(said)


def release(node: Node, run: str) -> bool:
    """Ends the process that holds the node for this run; whether there was one. Raises StateError."""
    with hold_of(node, run) as found:
        if found is None:
            return False
        fd, note = found
        sign(fd, LOCK, {**note, "released": True})
        deadline = time.monotonic() + _END_SECONDS
        while is_locked(fd, note["pid"]):
            if time.monotonic() >= deadline:
                raise StateError(
                    LOCK, f"process {note['pid']} does not let go of it", f"kill -9 {note['pid']}"
                )
            time.sleep(_LOOK_SECONDS / 4)
    return True


def _begin(node: Node, owner: str, run: str, lease: int, answer: int) -> NoReturn:
    """In the child: leaves the caller behind, takes the lock, says so, holds."""
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        # Whoever waits for the end of our caller's output must not wait for ours.
        _keep_open(answer)
        os.chdir("/")
        _hold(node, owner, run, lease, answer)
    finally:
        os._exit(0)


def _hold(node: Node, owner: str, run: str, lease: int, answer: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fd: Optional[int] = None
    try:
        fd = take(node, LOCK, time.monotonic())
        note = {
            "pid": os.getpid(),
            "owner": owner,
            "run": run,
            "since": _now(),
            "lease": lease,
            **term(lease),
            "starting": [],
        }
        sign(fd, LOCK, note)
        runs.begin(node, run, note["since"])
    except StateError as error:
        os.write(answer, json.dumps([error.where, error.why, error.remedy, isinstance(error, Held)]).encode())
        let_go(node.at(LOCK), fd)
        return
    try:
        os.write(answer, b"held")
        os.close(answer)
        is_released = _wait(fd, note["deadline"])
        # Before the lock goes: nobody else changes that list, and nobody who takes the lock may miss it.
        with suppress(StateError):
            if is_released:
                runs.forget(node, run)
            else:
                runs.end(node, run, _now())
    finally:
        let_go(node.at(LOCK), fd)


def _wait(fd: int, deadline: float) -> bool:
    """Until the run lets go (true), or somebody ends this process or the lease is over (false)."""
    while signal.sigtimedwait(_ENDS, _LOOK_SECONDS) is None:
        note = note_at(fd)
        if note.get("released"):
            return True
        deadline = note.get("deadline", deadline)
        if time.monotonic() >= deadline:
            break
    return False


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _keep_open(kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):  # the one of the listing itself
                os.close(int(name))


def _refusal(said: bytes) -> StateError:
    if not said:
        return StateError(
            LOCK, "the process that should hold it ended at once", "see the kernel's log: dmesg"
        )
    where, why, remedy, is_other = json.loads(said)
    return (Held if is_other else StateError)(where, why, remedy)
