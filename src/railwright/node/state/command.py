"""Programs of the node that an item asks or tells: never a shell, a fixed language, no input, a time that ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
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


def run(argv: Sequence[str]) -> Said:
    """Runs a program of this node and waits for it."""
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), *_PLACES)))
    program = shutil.which(argv[0], path=path)
    if program is None:
        return Said(None)
    longest = _longest(argv)
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_UNATTENDED, "LC_ALL": "C", "PATH": path},
            timeout=longest,
        )
    except subprocess.TimeoutExpired:
        return Said(STOPPED, err=f"{argv[0]} did not come back in {longest:.0f} s")
    except OSError as error:
        return Said(NOT_RUNNABLE, err=f"{argv[0]} cannot be started: {error.strerror}")
    return Said(done.returncode, done.stdout, done.stderr)
