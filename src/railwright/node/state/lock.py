"""One run at a time on a node: flocks, which the kernel lets go when their holder dies.

There are two. A run holds both, and waits for neither unless told to. While it starts units it lends the second one:
the boot unit writes too, and its start must not wait for the run that waits for its start. The boot unit's run takes
only what it was lent; every other run still meets the first lock. Should the lender die meanwhile, the second lock
keeps a new run out until the boot unit has ended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Optional

from .item import Node
from .outcome import StateError
from .place import LOCK, WRITE_LOCK

# A unit that was started has ended its own writing before systemctl comes back; one that a device woke meanwhile is
# done in seconds.
_TAKE_BACK_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.1
_REMEDIES = {
    errno.ELOOP: "remove the link; a lock file belongs there",
    errno.EISDIR: "remove the folder; a lock file belongs there",
    errno.ENOENT: "the node must have a /run",
    errno.ENOSPC: "free space or inodes on /run: df, df -i",
    errno.EROFS: "make /run writable",
    errno.ENXIO: "remove what stands there; a lock file belongs there",
}


class Held(StateError):
    """Another run is at work on this node."""


class Lock:
    """The node's locks, held while the context lasts.

    owner: a label for whoever meets them. unit: the systemd unit in which this process runs, "" for none.
    wait: seconds to wait for another run. Entering raises Held, or StateError where no lock can be.
    """

    def __init__(self, node: Node, owner: str, unit: str = "", wait: float = 0.0) -> None:
        self._node = node
        self._owner = owner
        self._unit = unit
        self._wait = wait
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._run: Optional[int] = None
        self._write: Optional[int] = None

    def __enter__(self) -> Lock:
        deadline = time.monotonic() + self._wait
        self._run = self._take_run(deadline)
        try:
            self._write = _take(self._node, WRITE_LOCK, deadline)
            self._sign(())
        except BaseException:
            self._let_go_of_write()
            self._let_go_of_run()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._let_go_of_write()
        self._let_go_of_run()

    @contextmanager
    def lent(self, units: Sequence[str]) -> Iterator[None]:
        """While these units are started. Raises Held when the lock does not come back."""
        self._sign(units)
        self._let_go_of_write()
        yield
        self._write = _take(self._node, WRITE_LOCK, time.monotonic() + _TAKE_BACK_SECONDS)
        self._sign(())

    def _take_run(self, deadline: float) -> Optional[int]:
        while True:
            try:
                return _take(self._node, LOCK, time.monotonic())
            except Held:
                if self._unit in _note(self._node.at(LOCK)).get("starting", ()):
                    return None
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_AGAIN_SECONDS)

    def _sign(self, units: Sequence[str]) -> None:
        """Says in the lock files who holds them. Raises StateError."""
        note = {"pid": os.getpid(), "owner": self._owner, "since": self._since, "starting": list(units)}
        for name, fd in ((LOCK, self._run), (WRITE_LOCK, self._write)):
            if fd is not None:
                try:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, json.dumps(note).encode(), 0)
                except OSError as error:
                    raise _unusable(name, "written", error) from error

    def _let_go_of_run(self) -> None:
        _let_go(self._node.at(LOCK), self._run)
        self._run = None

    def _let_go_of_write(self) -> None:
        _let_go(self._node.at(WRITE_LOCK), self._write)
        self._write = None


def refuse_if_held(node: Node) -> None:
    """For a run that writes nothing, so no lock either: asks the kernel's own list. Raises Held."""
    path = node.at(LOCK)
    try:
        inode = os.lstat(path).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            locks = [line.split() for line in file]
    except OSError:
        return  # no lock file, no lock
    # "1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF": proc_locks(5). Not by device: an overlay shows another one.
    if any(lock[1] == "FLOCK" and lock[3] == "WRITE" and lock[5].endswith(f":{inode}") for lock in locks):
        raise _held(path, LOCK)


def _take(node: Node, name: str, deadline: float) -> int:
    path = node.at(name)
    while True:
        try:
            # O_NONBLOCK: a FIFO or a device in its place must not hold the run
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(name, "opened", error) from error
        try:
            _lock(fd, name)
            is_ours = _is_at(path, fd)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() >= deadline:
                raise _held(path, name) from None
            time.sleep(_LOOK_AGAIN_SECONDS)
            continue
        except BaseException:
            os.close(fd)
            raise
        if is_ours:
            return fd
        os.close(fd)  # its last holder has taken it away meanwhile


def _lock(fd: int, name: str) -> None:
    """Locks it. Raises BlockingIOError when another process has, StateError when it is nothing to lock."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise StateError(name, "this is no regular file", "remove it; a lock file belongs there")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise _unusable(name, "locked", error) from error


def _unusable(name: str, verb: str, error: OSError) -> StateError:
    remedy = _REMEDIES.get(error.errno or 0, "run as root (become: true)")
    return StateError(name, f"cannot be {verb}: {error.strerror}", remedy)


def _let_go(path: str, fd: Optional[int]) -> None:
    if fd is not None:
        # While it is still held, so nobody can hold the name that goes; who has it open looks again.
        with suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _note(path: str) -> dict[str, Any]:
    """What the holder wrote, empty when it has not yet."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        note = json.load(file)
        if isinstance(note, dict):
            return note
    return {}


def _held(path: str, name: str) -> Held:
    note = _note(path)
    who = "one that has not said who it is yet"
    if "pid" in note:
        owner = note.get("owner")
        who = f"process {note['pid']}" + (f" for {owner}" if owner else "") + f" since {note.get('since')}"
    return Held(name, f"another run is at work on this node: {who}", "let it end, then run again")
