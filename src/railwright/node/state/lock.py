"""One run at a time on a node: flocks, which the kernel lets go when their holder dies.

There are two. A run holds both, and waits for neither unless told to. While it starts units it lends the second one:
the boot unit writes too, and its start must not wait for the run that waits for its start. The boot unit's run takes
only what it was lent; every other run still meets the first lock. Should the lender die meanwhile, the second lock
keeps a new run out until the boot unit has ended.

A run of several calls has a process on the node that holds the first lock between them (`holder`). Its calls say which
run they are of, take the second lock only, and set the process's deadline anew.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Optional

from .item import Node
from .outcome import StateError
from .place import LOCK, WRITE_LOCK
from .runs import refuse_if_over

# A unit that was started has ended its own writing before systemctl comes back; one that a device woke meanwhile is
# done in seconds.
_TAKE_BACK_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.1
_LONGEST_WORD = 200
_LONGEST_NOTE = 64 << 10
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
    wait: seconds to wait for another run. run: the run that this call is a part of, "" for one of its own.
    Entering raises Held, or StateError where no lock can be and where the hold of this run is over.
    """

    def __init__(self, node: Node, owner: str, unit: str = "", wait: float = 0.0, run: str = "") -> None:
        self._node = node
        self._owner = owner
        self._unit = unit
        self._wait = wait
        self._name = run
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._run: Optional[int] = None
        self._write: Optional[int] = None

    def __enter__(self) -> Lock:
        deadline = time.monotonic() + self._wait
        self._run = self._take_run(deadline)
        try:
            self._write = take(self._node, WRITE_LOCK, deadline)
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
        """While these units are started. Raises Held when the lock does not come back, StateError when the hold of
        this run is over."""
        self._sign(units)
        self._let_go_of_write()
        yield
        self._write = take(self._node, WRITE_LOCK, time.monotonic() + _TAKE_BACK_SECONDS)
        self._sign(())

    def _take_run(self, deadline: float) -> Optional[int]:
        while True:
            try:
                fd = take(self._node, LOCK, time.monotonic())
            except Held:
                note = read_note(self._node)
                if self._unit in note.get("starting", ()) or is_of(note, self._name):
                    return None  # the latter is looked at once more, under the second lock: `_sign`
                refuse_if_over(self._node, self._name)
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_AGAIN_SECONDS)
                continue
            try:
                # Asked under the lock: whoever else held the node has ended.
                refuse_if_over(self._node, self._name)
            except BaseException:
                let_go(self._node.at(LOCK), fd)
                raise
            return fd

    def _sign(self, units: Sequence[str]) -> None:
        """Says in the lock files who holds them. Raises StateError."""
        note = {"pid": os.getpid(), "owner": self._owner, "since": self._since, "starting": list(units)}
        for name, fd in ((LOCK, self._run), (WRITE_LOCK, self._write)):
            if fd is not None:
                sign(fd, name, note)
        # Asked again under the second lock: until then others could take the first one, write, and be gone.
        if self._run is None and self._name and not renew(self._node, self._name, units):
            refuse_if_over(self._node, self._name)
            raise held(self._node, LOCK)

    def _let_go_of_run(self) -> None:
        let_go(self._node.at(LOCK), self._run)
        self._run = None

    def _let_go_of_write(self) -> None:
        let_go(self._node.at(WRITE_LOCK), self._write)
        self._write = None


def refuse_if_held(node: Node, run: str = "") -> None:
    """For a call that writes nothing, so no lock either. run: whose own lock is none to it. Raises Held, and
    StateError where the hold of this run is over and where the node has no place for a lock."""
    note = holding(node)
    if not is_of(note, run):
        refuse_if_over(node, run)
        if note:
            raise held(node, LOCK)
    folder = os.path.dirname(node.at(LOCK))
    try:
        number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    except OSError as error:
        raise _unusable(LOCK, "opened", error) from error
    if not os.access(folder, os.W_OK):
        raise _unusable(LOCK, "opened", OSError(number, os.strerror(number)))


def holding(node: Node) -> dict[str, Any]:
    """The note of the process that holds the first lock, by the kernel's own list: asking takes none. Empty when nobody
    does, or has not said so yet."""
    with _open(node, os.O_RDONLY) as fd:
        return {} if fd is None else _note_of_holder(fd)


@contextmanager
def hold_of(node: Node, run: str) -> Iterator[Optional[tuple[int, dict[str, Any]]]]:
    """The file of the first lock and the note in it, when a process holds the node for this run. Raises StateError."""
    with _open(node, os.O_RDWR) as fd:
        note = {} if fd is None else _note_of_holder(fd)
        # What was opened is what is looked at and written: another file may have its name by now.
        yield (fd, note) if fd is not None and is_of(note, run) else None


def renew(node: Node, run: str, units: Sequence[str] = ()) -> bool:
    """Sets the deadline of the process that holds the node for this run anew; whether there is one. units: those that
    the run is about to start. Raises StateError."""
    with hold_of(node, run) as found:
        if found is None or found[1].get("released"):
            return False
        fd, note = found
        sign(fd, LOCK, {**note, **term(note["lease"]), "starting": list(units)})
        return True


def term(lease: int) -> dict[str, Any]:
    """The end of a lease of so many seconds: for people, and by the clock that nobody sets."""
    until = datetime.now(timezone.utc) + timedelta(seconds=lease)
    return {"until": until.isoformat(timespec="seconds"), "deadline": time.monotonic() + lease}


def is_locked(fd: int, pid: Any) -> bool:
    """Whether this process has locked this file, by the kernel's own list. Both: a file of another file system may
    have the same number."""
    inode = os.fstat(fd).st_ino
    try:
        with open("/proc/locks", encoding="ascii") as file:
            locks = [line.split() for line in file]
    except OSError:
        return False
    # "1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF": proc_locks(5). Not by device: an overlay shows another one.
    return any(
        lock[1] == "FLOCK" and lock[3] == "WRITE" and lock[4] == str(pid) and lock[5].endswith(f":{inode}")
        for lock in locks
    )


def is_of(note: Mapping[str, Any], run: str) -> bool:
    """Whether this note is that of the process that holds the node for this run."""
    return bool(run) and note.get("run") == run


def sign(fd: int, name: str, note: Mapping[str, Any]) -> None:
    """Says in a lock file who holds it. Raises StateError."""
    data = json.dumps(note).encode()
    try:
        # In one write over what stands there: who reads it meanwhile finds the old note or the new one, never half.
        data = data.ljust(min(os.fstat(fd).st_size, _LONGEST_NOTE))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise _unusable(name, "written", error) from error


def note_at(fd: int) -> dict[str, Any]:
    """The note in an open lock file, empty when there is none."""
    with suppress(OSError, ValueError):
        note = json.loads(os.pread(fd, _LONGEST_NOTE, 0))
        if isinstance(note, dict):
            return note
    return {}


@contextmanager
def _open(node: Node, how: int) -> Iterator[Optional[int]]:
    """The file of the first lock, None when there is none. Raises StateError."""
    try:
        fd = os.open(node.at(LOCK), how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise _unusable(LOCK, "opened", error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _note_of_holder(fd: int) -> dict[str, Any]:
    note = note_at(fd)
    return note if "pid" in note and is_locked(fd, note["pid"]) else {}


def take(node: Node, name: str, deadline: float) -> int:
    """Takes one lock, until this time of the monotonic clock. Raises Held or StateError."""
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
                raise held(node, name) from None
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


def let_go(path: str, fd: Optional[int]) -> None:
    """Gives a lock back and takes its file away."""
    if fd is not None:
        # While it is still held, so nobody can hold the name that goes; who has it open looks again.
        with suppress(OSError):
            if _is_at(path, fd):
                os.unlink(path)
        os.close(fd)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def read_note(node: Node, name: str = LOCK) -> dict[str, Any]:
    """What the holder wrote, empty when it has not yet."""
    with suppress(OSError, ValueError), open(node.at(name), encoding="utf-8") as file:
        note = json.load(file)
        if isinstance(note, dict):
            return note
    return {}


def held(node: Node, name: str) -> Held:
    """The error that says who holds a lock, since when, and until when."""
    note = read_note(node, name)
    who, remedy = "one that has not said who it is yet", "let it end, then run again"
    if "pid" in note:
        who = f"process {_word(note['pid'])}"
        who += f" for {_word(note['owner'])}" if note.get("owner") else ""
        who += f", run {_word(note['run'])}," if note.get("run") else ""
        who += f" since {_word(note.get('since'))}"
        if note.get("until"):
            who += f", until {_word(note['until'])} unless it goes on"
            remedy += f"; when its controller is known to be dead: kill {_word(note['pid'])} on the node"
    return Held(name, f"another run is at work on this node: {who}", remedy)


def _word(value: Any) -> str:
    """What another run wrote, fit for one line of an error."""
    return "".join(mark if mark.isprintable() else "?" for mark in str(value))[:_LONGEST_WORD]
