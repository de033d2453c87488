"""Who builds, and where: an unprivileged user in a scratch folder of its own, whose programs end when we do."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Optional

from ..state.command import Said
from ..state.outcome import Refused
from ..state.program import last_words
from .model import Place

# prctl(2): PR_SET_PDEATHSIG.
_ON_PARENTS_DEATH = 1
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_LOG_TAIL = 64 * 1024


class Worker:
    """folder: the scratch folder of one build, empty and the builder's. log: what all its programs said."""

    def __init__(self, place: Place, folder: Path, lock: int) -> None:
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self.home = folder / "home"
        self._lock = lock
        self._owner: Optional[pwd.struct_passwd] = None
        if os.geteuid() == 0:
            self._owner = _user(place.user)
        self.jobs = place.jobs or os.cpu_count() or 1

    def begin(self, space: int) -> None:
        """Empties the folder of what an earlier run has left. space: MiB. Raises Refused."""
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o755)
        self.home.mkdir()
        # A source that another user owns is copied all the same; what is in it was named by digest or by a person.
        (self.home / ".gitconfig").write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")
        self.give(self.folder)
        room = os.statvfs(self.folder)
        free = room.f_bavail * room.f_frsize >> 20
        if free < space:
            raise Refused(
                f"{self.folder.parent} has {free} MiB free, and a build takes up to {space} MiB",
                "free space there, name another folder (nccl_build_scratch), or a smaller need (nccl_build_space)",
            )
        self.log.write_text("", encoding="utf-8")

    def give(self, top: Path) -> None:
        """Makes a tree the builder's own."""
        if self._owner is None:
            return
        for path in (top, *top.rglob("*")):
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid, follow_symlinks=False)

    def run(
        self, argv: Sequence[str], *, where: Optional[Path] = None, more: Optional[Mapping[str, str]] = None
    ) -> Said:
        """Runs a program to its end; what it says goes to the log too."""
        environment = {
            "PATH": _PATH, "HOME": str(self.home), "LC_ALL": "C", "TMPDIR": str(self.home),
            "DEB_BUILD_OPTIONS": f"parallel={self.jobs}", **(more or {}),
        }  # fmt: skip
        program = shutil.which(argv[0], path=environment["PATH"])
        if program is None:
            return Said(None)
        owner = self._owner
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(argv)}\n".encode())
            log.flush()
            begun = log.tell()
            child = subprocess.Popen(
                [program, *argv[1:]],
                cwd=where or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=(self._lock,),
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
                preexec_fn=_die_with_us,  # noqa: PLW1509 -- we have no threads
            )
            try:
                code = child.wait()
            except BaseException:
                self._end(child)
                child.wait()
                raise
            # What it has left behind must not go on in folders that root reads next.
            self._end(child)
        return Said(code, self._since(begun))

    @staticmethod
    def _end(child: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def must(
        self,
        argv: Sequence[str],
        *,
        where: Optional[Path] = None,
        more: Optional[Mapping[str, str]] = None,
        remedy: str = "",
    ) -> Said:
        """The same, and it has to come to a good end. Raises Refused with its last words and where the log lies."""
        said = self.run(argv, where=where, more=more)
        if said.code is None:
            raise Refused(f"the build node has no {argv[0]}", f"install it ({argv[0]}), then run again")
        if not said.ok:
            words = " ".join(argv[:3])
            raise Refused(
                f"{words} ended with {said.code}: {_cause(said)}", remedy or f"read its log: {self.log}"
            )
        return said

    def _since(self, begun: int) -> str:
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(begun, size - _LOG_TAIL))
            return log.read().decode("utf-8", "backslashreplace")


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A lock that our programs hold too, so that one which outlives us is seen. Raises Refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "this very build is running on the build node already",
                f"wait for it, or see who holds {path}",
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _user(name: str) -> pwd.struct_passwd:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(
            f"the build node has no user {name}", "make it, or name another one: nccl_build_user"
        ) from None
    if found.pw_uid == 0:
        raise Refused(f"{name} is root, and a build needs no such rights", "name another: nccl_build_user")
    return found


def _cause(said: Said) -> str:
    lines = [line for line in said.out.splitlines() if line.strip()]
    first = next((n for n, line in enumerate(lines) if "error" in line.lower() or "***" in line), None)
    told = lines[-6:] if first is None else [*lines[first : first + 3], *lines[-2:]]
    return last_words(Said(said.code, "\n".join(dict.fromkeys(told))), 5)


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_ON_PARENTS_DEATH, signal.SIGKILL)
