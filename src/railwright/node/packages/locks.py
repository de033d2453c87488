"""Who holds a package system's lock, asked of the kernel; nothing is locked by the asking."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Optional

# apt-pkg/deb/debsystem.cc and acquire.cc of apt 2.6; dpkg's lib/dpkg/dbmodify.c.
DPKG = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
RPM = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
# dnf/lock.py of dnf 4: files that hold the number of the process.
DNF = ("/var/cache/dnf/metadata_lock.pid", "/var/lib/dnf/rpmdb_lock.pid", "/var/cache/dnf/download_lock.pid")
# struct flock of Linux on 64 bits: type, whence, start, length, process.
_FLOCK = "hhqqi4x"


def holder(path: str) -> Optional[int]:
    """The process that holds the lock at `path` (-1: one of another process namespace); None: nobody does, or there is
    no such file. Raises OSError where it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    if answer[0] == fcntl.F_UNLCK:
        return None
    return int(answer[4]) or -1


def named_process(path: str, proc: str = "/proc") -> Optional[int]:
    """The living process whose number stands in the file; None: none does."""
    try:
        with open(path, encoding="ascii") as file:
            number = int(file.read(32))
    except (OSError, ValueError):
        return None
    return number if os.path.isdir(f"{proc}/{number}") else None


def holder_of(path: str, at: str, proc: str = "/proc") -> Optional[int]:
    """The process that holds the lock of this name, by the kernel or, for dnf's, by the number in the file.

    None: nobody does. at: where its file lies. Raises OSError where it cannot be opened.
    """
    return named_process(at, proc) if path.endswith(".pid") else holder(at)


def process_words(number: int, proc: str = "/proc") -> str:
    """A process for a sentence: "apt-get (process 4711)"."""
    if number < 0:
        return "a process of another container or of the host"
    try:
        with open(f"{proc}/{number}/cmdline", "rb") as file:
            words = file.read(4096).replace(b"\0", b" ").decode("utf-8", "backslashreplace").strip()
    except OSError:
        words = ""
    return f"{words[:120] or 'a process'} (process {number})"
