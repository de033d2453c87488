"""Bring lab nodes up, reach them, reboot them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import hardware, namespaces, processes, rootfs
from .errors import LabError
from .fabric import Fabric, Port, ports
from .run import Run
from .seed import sow
from .shell import ask, call
from .spec import Spec

MOST_NODES = 16
# Each node's systemd takes about thirty; the kernel's 128 for root ends with the fourth node.
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_INSTANCES = 1024
UP_SECONDS = 120.0


@dataclass(frozen=True)
class Wanted:
    """A node to bring up. machine: below tests/machines; patch: goes over its description (RFC 7386)."""

    name: str
    suite: str
    machine: str
    patch: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Node:
    """A node that is up, seen from the controller's side of the fabric."""

    run: Run
    spec: Spec

    @property
    def keeper(self) -> processes.Process:
        """A process in the node's network namespace."""
        return self.run.process(self.spec.name)

    @property
    def ports(self) -> tuple[Port, ...]:
        return ports(self.spec.machine, self.spec.number)

    @property
    def console(self) -> str:
        """What systemd and the keeper said."""
        return (self.spec.folder / "console.log").read_text("utf-8", "replace")

    def ssh(
        self, *argv: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of one shell on the node, as root."""
        master = (
            "ControlMaster=auto",
            f"ControlPath={self.run.master(self.spec.name)}",
            "ControlPersist=600",
        )
        options = [item for option in (*ssh_options(self.run), *master) for item in ("-o", option)]
        command = ["ssh", "-F", "/dev/null", *options, f"root@{self.spec.address}", "--", *argv]
        return ask(namespaces.within(Fabric(self.run).pid, *command), stdin=stdin, timeout=timeout)

    def must(self, *argv: str, timeout: float = 60) -> str:
        """What the command printed. Raises LabError when it fails."""
        done = self.ssh(*argv, timeout=timeout)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            command = f"{self.spec.name}: {' '.join(argv)[:200]}"
            raise LabError(
                command, f"ended with {done.returncode}: {said}", f"see {self.spec.folder}/console.log"
            )
        return done.stdout

    def read(self, path: str) -> str:
        return self.must("cat", path).strip()

    def end(self, netdev: str) -> str:
        """The fabric's end of the cable in that NIC."""
        return f"n{self.spec.number}p{[port.netdev for port in self.ports].index(netdev)}"

    def wait(self, seconds: float = UP_SECONDS, not_boot: str = "") -> str:
        """Waits until it has booted and answers. Returns its boot id, which is not `not_boot`. Raises LabError."""
        deadline = time.monotonic() + seconds
        said = ""
        while time.monotonic() < deadline and self.keeper.alive:
            done = self.ssh(
                "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait", timeout=60
            )
            boot, _, state = done.stdout.strip().partition("\n")
            said = state or done.stderr.strip()
            if state in ("running", "degraded") and boot != not_boot:
                return boot
            time.sleep(0.2)
        raise LabError(
            self.spec.name, f"is not up after {seconds:.0f} s: {said}", f"see {self.spec.folder}/console.log"
        )

    def reboot(self) -> None:
        """Reboots it and waits until it is up again."""
        before = self.read("/proc/sys/kernel/random/boot_id")
        self.ssh("systemctl reboot")
        self.wait(not_boot=before)


@dataclass(frozen=True)
class Lab:
    """A run whose nodes are up."""

    run: Run
    nodes: tuple[Node, ...]

    @property
    def fabric(self) -> Fabric:
        return Fabric(self.run)

    @property
    def inventory(self) -> Path:
        return self.run.folder / "hosts.yml"

    def controller(self, *argv: str) -> list[str]:
        """A command line that runs where the nodes can be reached; whatever it leaves behind ends with it."""
        return namespaces.bounded(self.fabric.pid, *argv)

    def down(self) -> list[str]:
        return self.run.down()


def up(name: str, wanted: Sequence[Wanted]) -> Lab:
    """Brings a run's nodes up. Raises LabError, and then leaves nothing behind."""
    must_be_root()
    if not 1 <= len(wanted) <= MOST_NODES:
        raise LabError("nodes", f"{len(wanted)} of them", f"ask for 1 to {MOST_NODES}")
    roots = {suite: rootfs.root(suite) for suite in sorted({one.suite for one in wanted})}
    machines = [hardware.machine(one.machine, one.patch) for one in wanted]
    allow_inotify()
    run = Run(name)
    run.begin()
    try:
        call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(run.key)])
        fabric = Fabric(run)
        fabric.start()
        nodes = []
        for number, (one, machine) in enumerate(zip(wanted, machines, strict=True), start=1):
            folder = run.node(one.name)
            spec = Spec(one.name, one.suite, number, folder, roots[one.suite], machine, run.cgroup(one.name))
            nodes.append(Node(run, spec))
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: sow(run, node.spec), nodes))
        write_known_hosts(run, nodes)
        write_inventory(run, nodes)
        write_ssh_config(run, nodes)
        for node in nodes:
            start(node)
        for node in nodes:
            node.wait()
    except BaseException:
        run.down(grace=0)
        raise
    return Lab(run, tuple(nodes))


def find(name: str) -> Lab:
    """A run that is up. Raises LabError."""
    run = Run(name)
    pages = sorted((run.folder / "nodes").glob("*/spec.json"))
    if not pages:
        raise LabError(name, "is not up", "python -m tests.lab list")
    specs = sorted((Spec.read(page) for page in pages), key=lambda spec: spec.number)
    return Lab(run, tuple(Node(run, spec) for spec in specs))


def start(node: Node) -> None:
    """Starts its keeper and plugs its NICs in."""
    spec = node.spec
    argv = namespaces.apart(sys.executable, "-P", "-m", "tests.lab.keeper", str(spec.page))
    environment = ["env", f"PYTHONPATH={hardware.TESTS.parent}", "PYTHONDONTWRITEBYTECODE=1"]
    process = processes.launch(node.run.record(spec.name), [*environment, *argv], spec.folder / "console.log")
    Fabric(node.run).attach(spec.number, process.pid, node.ports)
    (spec.folder / "wired").touch()


def write_known_hosts(run: Run, nodes: Sequence[Node]) -> None:
    lines = []
    for node in nodes:
        public = (node.spec.folder / "seed/etc/ssh/ssh_host_ed25519_key.pub").read_text("ascii").split()
        lines.append(f"{node.spec.address} {public[0]} {public[1]}\n")
    run.known_hosts.write_text("".join(lines), encoding="ascii")


def write_inventory(run: Run, nodes: Sequence[Node]) -> None:
    """hosts.yml, as a site would write it: host keys are checked here too."""
    import yaml

    hosts = {node.spec.name: {"ansible_host": node.spec.address} for node in nodes}
    reach = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(run.key),
        "ansible_ssh_common_args": " ".join(f"-o {option}" for option in ssh_options(run)),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    text = yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": reach}}, sort_keys=False)
    (run.folder / "hosts.yml").write_text(f"---\n{text}", encoding="utf-8")


def write_ssh_config(run: Run, nodes: Sequence[Node]) -> None:
    """For ssh -F, and for what reads such a file."""
    lines = [
        line
        for node in nodes
        for line in (f"Host {node.spec.name}", f"  HostName {node.spec.address}", "  User root")
    ]
    lines += ["Host *", *(f"  {option.replace('=', ' ', 1)}" for option in ssh_options(run))]
    (run.folder / "ssh_config").write_text("\n".join(lines) + "\n", encoding="ascii")


def ssh_options(run: Run) -> tuple[str, ...]:
    return (
        f"IdentityFile={run.key}",
        f"UserKnownHostsFile={run.known_hosts}",
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=10",
        "LogLevel=ERROR",
    )


def must_be_root() -> None:
    """Raises LabError."""
    if os.geteuid() != 0:
        raise LabError(
            "the lab",
            "needs root: it makes namespaces, mounts and cgroups",
            "run it as root, or without the lab",
        )


def allow_inotify() -> None:
    """Raises the one limit of this machine that more than three systemds meet; it stays until the next boot."""
    if int(INOTIFY.read_text("ascii")) < INOTIFY_INSTANCES:
        INOTIFY.write_text(f"{INOTIFY_INSTANCES}\n", "ascii")
