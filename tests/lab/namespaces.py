"""Command lines that enter and make namespaces, and the few mounts that are made in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .shell import call

# A pid namespace ends with its first process, and with it everything that was started inside; its mounts and network
# devices go when the last process of theirs has gone. So one process is all that has to be ended.
_PIDS = ("--pid", "--fork", "--kill-child")


def apart(*argv: str) -> list[str]:
    """In network, mount and pid namespaces of its own; /proc is still the caller's."""
    return ["unshare", "--net", "--mount", "--propagation", "private", *_PIDS, "--", *argv]


def within(pid: int, *argv: str) -> list[str]:
    """In the network namespace of a process."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *argv]


def bounded(pid: int, *argv: str) -> list[str]:
    """In the network namespace of a process; whatever it leaves running ends with it (SSH's masters do stay)."""
    return within(pid, "unshare", "--mount", *_PIDS, "--mount-proc", "--", *argv)


def mount(kind: str, where: Path, options: str = "") -> None:
    """Mounts a file system; the folder is made."""
    where.mkdir(parents=True, exist_ok=True)
    call(["mount", "-t", kind, *(["-o", options] if options else []), kind, str(where)])


def overlay(lower: Path, place: Path) -> Path:
    """What is below `lower`, to be written to: the changes lie in `place`. Returns where it is to be seen."""
    for name in ("upper", "work", "merged"):
        (place / name).mkdir(parents=True, exist_ok=True)
    merged = place / "merged"
    mount("overlay", merged, f"lowerdir={lower},upperdir={place / 'upper'},workdir={place / 'work'}")
    return merged


def ip(commands: Sequence[str], pid: int | None = None) -> None:
    """ip(8) commands, all in one call. Raises LabError at the first that fails."""
    argv = ["ip", "-batch", "-"]
    call(argv if pid is None else within(pid, *argv), stdin="\n".join(commands) + "\n")
