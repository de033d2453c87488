"""Processes that outlive the program that starts them, and the records by which they are found and ended.

A process writes its own record before it becomes the program that was asked for, so there is no moment at which it
runs and is not known. A record is the line of /proc/PID/stat: the number alone may belong to another process later,
the number and the start time do not.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError

# $0 is the record, the rest the program; exec keeps the number and the start time.
_RECORD = 'read -r line < /proc/$$/stat && printf "%s\\n" "$line" > "$0.new" && mv "$0.new" "$0" && exec "$@"'


@dataclass(frozen=True)
class Process:
    """pid: its number in the caller's namespace; started: clock ticks after the machine's boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie has ended."""
        try:
            pid, state, started = _fields(Path(f"/proc/{self.pid}/stat").read_text("ascii", "replace"))
        except (FileNotFoundError, ProcessLookupError):
            return False
        return (pid, started) == (self.pid, self.started) and state not in "ZX"

    def signal(self, number: int) -> None:
        """Sends a signal to this process and to no other that has its number by now."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if self.alive:
                select.select([handle], [], [], seconds)
            return not self.alive
        finally:
            os.close(handle)


def read(record: Path) -> Process:
    """The process of a record. Raises LabError where the record is none."""
    try:
        pid, _, started = _fields(record.read_text("ascii", "replace"))
    except (OSError, ValueError, IndexError) as error:
        raise LabError(
            str(record), f"is no record of a process: {error}", "expected a line of /proc/PID/stat"
        ) from error
    return Process(pid, started)


def this() -> str:
    """The record of this process in the namespace whose /proc is mounted."""
    return Path("/proc/self/stat").read_text("ascii", "replace")


def launch(record: Path, argv: Sequence[str], output: Path) -> Process:
    """Starts a program in a session of its own and returns when its record is written. Raises LabError."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as out:
        # The outer shell ends at once, so that the program is no child that somebody here would have to wait for.
        subprocess.run(
            ["sh", "-c", 'setsid sh -c "$@" &', "sh", _RECORD, str(record), *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            check=True,
        )
    deadline = time.monotonic() + 30
    while not record.exists():
        if time.monotonic() > deadline:
            raise LabError(
                argv[0], f"did not start: {output.read_text('utf-8', 'replace')[-500:]}", f"see {output}"
            )
        time.sleep(0.005)
    return read(record)


def end(process: Process, grace: float) -> None:
    """Asks it to end, and ends it when `grace` seconds are over. Raises LabError when even that does not help."""
    if grace > 0:
        process.signal(signal.SIGTERM)
        if process.wait(grace):
            return
    process.signal(signal.SIGKILL)
    if not process.wait(10):
        raise LabError(f"process {process.pid}", "does not end on SIGKILL", f"see /proc/{process.pid}/stack")


def _fields(line: str) -> tuple[int, str, int]:
    # The name stands in brackets and may hold blanks and brackets: proc_pid_stat(5).
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return int(pid), fields[0], int(fields[19])
