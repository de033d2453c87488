"""Runs of the writer in processes of their own under strace: killed at a system call, or lied to by it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Said
from tests.unit.state_support import Systemd

SOURCE = Path(__file__).resolve().parents[2] / "src"
# Every system call by which a file system, an owner, a mode or a time can change.
MUTATING = (
    "mkdir,mkdirat,rmdir,rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,"
    "fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,fallocate,utime,utimes,utimensat,futimesat,"
    "setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,fremovexattr,write,pwrite64,writev,pwritev,pwritev2,"
    "sendfile,copy_file_range,splice,mount,umount2,fsync,fdatasync,sync,flock"
)
# By which systemctl is called: a kill before it and one after it are two points.
CALLS = f"openat,connect,sendto,{MUTATING}"
GOOD, FAILURES, STOPPED = 0, 3, 4
# Waits for requests; for each it forks a child, which waits for one more line and then runs.
PROGRAM = f"""
import json, os, socket, sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state import Said, StateError, apply, revert

def runner(address, kind=tuple):
    def call(arguments):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(address)
            line.sendall((json.dumps(arguments) + chr(10)).encode())
            said = b""
            while not said.endswith(b"\\n"):
                said += line.recv(65536)
        return kind(json.loads(said))
    return call if address else None

def act(verb, root, slices, address, umask, programs):
    os.umask(umask)
    more = {{"root": root, "runner": runner(address), "tools": runner(programs, lambda said: Said(*said))}}
    try:
        if verb == "check":
            apply(slices, check=True, **more)
            return bool(revert(check=True, **more).failures)
        outcome = apply(slices, **more) if verb == "apply" else revert(**more)
        return {FAILURES} if outcome.failures else {GOOD}
    except StateError:
        return {STOPPED}

say = lambda text: os.write(1, (text + chr(10)).encode())
for line in iter(sys.stdin.readline, ""):
    begin, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin, 1)
        os._exit(act(*json.loads(line)))
    say(str(child))
    sys.stdin.readline()
    os.write(go, b"!")
    os.close(begin)
    os.close(go)
    say(str(os.waitpid(child, 0)[1]))
"""


class Traced:
    """Runs of the writer in fresh processes, each under strace from its first own system call on."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "trace"
        self.server = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        verb: str,
        node: Path,
        slices: Any,
        *options: str,
        systemctl: str = "",
        umask: int = 0o022,
        programs: str = "",
    ) -> int:
        """How the run ended: its exit status (GOOD, ...), or minus the number of the signal that ended it.

        systemctl, programs: the sockets behind which one answers (`served`), and other programs do; "" for none.
        """
        child = self._ask(json.dumps([verb, str(node), slices, systemctl, umask, programs]))
        tracer = subprocess.Popen(
            ["strace", "-o", str(self.log), *options, "-p", str(child)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        status = self._ask("go")
        tracer.communicate()
        return os.waitstatus_to_exitcode(status)

    def points(self, verb: str, node: Path, slices: Any, **more: Any) -> list[tuple[str, int]]:
        """Each call of a good run that changes something, as the how manieth of its name it is."""
        assert self.run(verb, node, slices, "-e", f"trace={CALLS}", **more) == GOOD
        counts: dict[str, int] = {}
        found = []
        changing = mutations(self.log)
        for line in self.log.read_text().splitlines():
            name = line.split("(", 1)[0]
            counts[name] = counts.get(name, 0) + 1
            if line in changing:
                found.append((name, counts[name]))
        return found

    def kill(self, point: tuple[str, int], verb: str, node: Path, slices: Any, **more: Any) -> None:
        """A run that is killed at the entry of this call."""
        name, which = point
        inject = f"inject={name}:signal=KILL:when={which}"
        assert self.run(verb, node, slices, "-e", f"trace={name}", "-e", inject, **more) == -signal.SIGKILL

    def end(self) -> None:
        self.server.communicate("")

    def _ask(self, line: str) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(line, file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())


@contextmanager
def tracing(folder: Path) -> Iterator[Traced]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    runs = Traced(folder)
    yield runs
    runs.end()


def mutations(log: Path) -> list[str]:
    """The calls of a trace that may change something; opens only where they may create or write."""
    return [
        line
        for line in log.read_text().splitlines()
        if re.search(r"^creat|O_(CREAT|WRONLY|RDWR|TRUNC|TMPFILE)", line)
        or not re.match(r"open|\+\+\+|---", line)
    ]


@dataclass
class Service:
    """A systemd, or other programs, that processes call over a socket. It goes on whatever becomes of who called."""

    address: str
    systemd: Systemd | None = None
    programs: Callable[[Sequence[str]], Said] | None = None

    def answer(self, asked: Any) -> Any:
        if self.programs is not None:
            said = self.programs(asked)
            return [said.code, said.out, said.err]
        assert self.systemd is not None
        return self.systemd(asked)


@contextmanager
def served(folder: Path, name: str = "systemctl") -> Iterator[Service]:
    service = Service(str(folder / name))

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line.endswith(b"\n"):
                self.wfile.write((json.dumps(service.answer(json.loads(line))) + "\n").encode())

    with socketserver.UnixStreamServer(service.address, Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield service
        server.shutdown()
        thread.join()
