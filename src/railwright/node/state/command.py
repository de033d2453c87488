"""Programs of the node that an item asks or tells: never a shell, a fixed language, no input, a time that ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Callable, Optional

# An answer takes milliseconds. A write that flaps a link waits for firmware, and firmware tools take longest.
_LONGEST_SECONDS = 120.0
# A package may build a kernel module when it is installed; an image of each kernel takes up to a minute; wheels and
# images of containers are gigabytes.
_LONGER_SECONDS = {
    "apt-get": 7200.0,
    "ctr": 7200.0,
    "dkms": 7200.0,
    "dnf": 7200.0,
    "docker": 7200.0,
    "dpkg": 7200.0,
    "dracut": 1800.0,
    "grub-mkconfig": 900.0,
    "grubby": 900.0,
    "podman": 7200.0,
    "python": 7200.0,
    "update-grub": 900.0,
    "update-initramfs": 1800.0,
}
# No question, and nobody restarts a service behind our back (needrestart(1): "l" lists only).
_UNATTENDED = {
    "APT_LISTCHANGES_FRONTEND": "none",
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}
# The tools of an administrator are often missing from the PATH of a service.
_PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
NOT_RUNNABLE, STOPPED = 126, 124
_ENDING = (signal.SIGHUP, signal.SIGTERM)


@dataclass(frozen=True)
class Said:
    """What a program said. code None: it is not installed; 126: it cannot be started; 124: stopped for its time."""

    code: Optional[int]
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def word(self) -> str:
        """Its last line, which is where a traceback says what was wrong; short enough for a sentence."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit status {self.code}, without a word"


# Runs a program with its arguments.
Tools = Callable[[Sequence[str]], Said]


def _longest(argv: Sequence[str]) -> float:
    """Seconds for the program that is meant: env(1) only starts it. "python" is an environment's, with pip in it."""
    meant = next((word for word in argv if word != "env" and "=" not in word), "")
    return _LONGER_SECONDS.get(os.path.basename(meant), _LONGEST_SECONDS)


def wait_for(
    argv: Sequence[str], environment: Mapping[str, str], seconds: float, errors: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, and ends all that it started when it takes longer or this run is ended.

    Many are shell scripts, and what they started would go on writing while the next run starts another. Raises
    subprocess.TimeoutExpired and OSError.
    """
    with _ended_by_signals() as started:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors=errors,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            _end(process)
            process.wait()
            raise
        finally:
            # Not read to their end: what has left the session may hold them open for ever.
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    # One that was waited for may have left its number to another.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _ended_by_signals() -> Iterator[list[subprocess.Popen[str]]]:
    """A signal that ends this run no longer reaches a session of its own (a lost terminal, timeout(1))."""
    started: list[subprocess.Popen[str]] = []

    def end(number: int, frame: Optional[FrameType]) -> None:
        for process in started:
            _end(process)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _ENDING if main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield started
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def run(argv: Sequence[str]) -> Said:
    """Runs a program of this node and waits for it."""
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), *_PLACES)))
    program = shutil.which(argv[0], path=path)
    if program is None:
        return Said(None)
    longest = _longest(argv)
    environment = {**os.environ, **_UNATTENDED, "LC_ALL": "C", "PATH": path}
    try:
        done = wait_for([program, *argv[1:]], environment, longest, "backslashreplace")
    except subprocess.TimeoutExpired:
        return Said(STOPPED, err=f"{argv[0]} did not come back in {longest:.0f} s")
    except OSError as error:
        return Said(NOT_RUNNABLE, err=f"{argv[0]} cannot be started: {error.strerror}")
    return Said(done.returncode, done.stdout, done.stderr)
