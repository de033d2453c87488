"""Many fake nodes behind real sshds, each on its own port of 127.0.0.1, sharing what they only read."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fake_nodes import create

FIRST_PORT = 21000
# MAX_LISTEN_SOCKS of OpenSSH's sshd.c.
MOST_PORTS = 16
MACHINE = "2s_8xh100_10xcx7"
SSHD_CONFIG = """\
Protocol 2
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 200
MaxSessions 100
LogLevel ERROR
Subsystem sftp /usr/lib/openssh/sftp-server
"""


@dataclass(frozen=True)
class Node:
    """folder: what it is made of. layers: where what it writes lies, in memory."""

    name: str
    folder: Path
    layers: Path
    port: int

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def mount(self, lower: Path) -> None:
        """As it was recorded."""
        for part in ("upper", "work"):
            (self.layers / part).mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={self.layers}/upper,workdir={self.layers}/work"
        run("mount", "-t", "overlay", "-o", options, "overlay", str(self.tree))

    def unmount(self) -> None:
        run("umount", "-l", str(self.tree))
        shutil.rmtree(self.layers)


@dataclass
class Rack:
    folder: Path
    layers: Path
    python: Path
    nodes: tuple[Node, ...]
    sshds: tuple[subprocess.Popen[bytes], ...]

    def renew(self, count: int) -> None:
        """The first `count` nodes are virgin again."""
        for node in self.nodes[:count]:
            node.unmount()
            node.mount(self.folder / "model/tree")

    def node_seconds(self) -> float:
        """CPU that everything behind sshd has taken and that has ended."""
        ticks = 0
        for sshd in self.sshds:
            fields = Path(f"/proc/{sshd.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def rack(folder: Path, layers: Path, python: Path, count: int) -> Iterator[Rack]:
    """`count` nodes; all is taken away at the end."""
    model = create(folder / "model", MACHINE, python)
    nodes = tuple(_lay_out(model.folder, folder, layers, python, number) for number in range(count))
    lower = model.tree.resolve()
    mounted: list[Node] = []
    sshds: list[subprocess.Popen[bytes]] = []
    try:
        for node in nodes:
            node.mount(lower)
            mounted.append(node)
        make_keys(folder, nodes)
        for begin in range(0, count, MOST_PORTS):
            sshds.append(serve(folder, nodes[begin : begin + MOST_PORTS]))
        yield Rack(folder, layers, python, nodes, tuple(sshds))
    finally:
        for sshd in sshds:
            sshd.send_signal(signal.SIGTERM)
            sshd.wait(10)
        for node in mounted:
            node.unmount()


def _lay_out(model: Path, folder: Path, layers: Path, python: Path, number: int) -> Node:
    node = Node(f"n{number}", folder / f"n{number}", layers / f"n{number}", FIRST_PORT + number)
    for made in ("tree", "scratch"):
        (node.folder / made).mkdir(parents=True)
    shutil.copytree(model / "bin", node.folder / "bin")
    enter = (model / "python").read_text("utf-8")
    (node.folder / "python").write_text(enter, encoding="utf-8")
    # The same way in for a command of sshd's: a shell there in place of the Python.
    last = f'{shlex.quote(str(python.resolve()))} "$@"\n'
    if not enter.endswith(last):
        raise SystemExit(
            "benchmarks/cost: tests/fake_nodes/enter.sh does not end with the node's Python any more"
        )
    (node.folder / "shell").write_text(enter.removesuffix(last) + '/bin/sh -c "$*"\n', encoding="utf-8")
    for program in ("python", "shell"):
        (node.folder / program).chmod(0o755)
    return node


def make_keys(folder: Path, nodes: Sequence[Node]) -> None:
    """The keys of both ends, and what is known of the hosts."""
    for name in ("key", "host_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    host = " ".join((folder / "host_key.pub").read_text("utf-8").split()[:2])
    known = "".join(f"[127.0.0.1]:{node.port} {host}\n" for node in nodes)
    (folder / "known_hosts").write_text(known, encoding="utf-8")


def serve(folder: Path, nodes: Sequence[Node]) -> subprocess.Popen[bytes]:
    """An sshd for these nodes, MOST_PORTS at most. Raises SystemExit where none answers."""
    config = SSHD_CONFIG.format(folder=folder)
    config += "".join(f"ListenAddress 127.0.0.1:{node.port}\n" for node in nodes)
    for node in nodes:
        config += f'Match LocalPort {node.port}\n  ForceCommand {node.folder}/shell "$SSH_ORIGINAL_COMMAND"\n'
    file = folder / f"sshd_config.{nodes[0].port}"
    file.write_text(config, encoding="utf-8")
    Path("/run/sshd").mkdir(exist_ok=True)
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("benchmarks/cost: sshd is missing; install openssh-server")
    sshd = subprocess.Popen([program, "-D", "-e", "-f", str(file)], stdin=subprocess.DEVNULL)
    ask = ["ssh-keyscan", "-p", str(nodes[-1].port), "127.0.0.1"]
    for _ in range(50):
        time.sleep(0.1)
        if subprocess.run(ask, capture_output=True, check=False).stdout:
            return sshd
    raise SystemExit(f"benchmarks/cost: sshd does not answer; see {file}")
