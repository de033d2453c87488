"""Bring lab nodes up, reach them, reboot them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import flavours, hardware, namespaces, processes
from .errors import LabError
from .fabric import Fabric, Port, ports
from .host import Host, ssh_options
from .run import Run
from .seed import sow
from .shell import call
from .spec import Spec

MOST_NODES = 16
# Each node's systemd takes about thirty; the kernel's 128 for root ends with the fourth node.
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_INSTANCES = 1024


@dataclass(frozen=True)
class Wanted:
    """A node to bring up. machine: below tests/machines; patch: goes over its description (RFC 7386)."""

    name: str
    suite: str
    machine: str
    patch: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Node(Host):
    """A node that is up, seen from the controller's side of the fabric."""

    run: Run
    spec: Spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def alive(self) -> bool:
        return self.spec.name in self.run.processes()

    @property
    def log(self) -> Path:
        """What systemd and the keeper said."""
        return self.spec.folder / "console.log"

    @property
    def keeper(self) -> processes.Process:
        """A process in the node's network namespace."""
        return self.run.process(self.spec.name)

    @property
    def ports(self) -> tuple[Port, ...]:
        return ports(self.spec.machine, self.spec.number)

    def entry(self, *options: str) -> list[str]:
        words = [item for option in (*ssh_options(self.run), *options) for item in ("-o", option)]
        command = ["ssh", "-F", "/dev/null", *words, f"root@{self.spec.address}"]
        return namespaces.within(Fabric(self.run).pid, *command)

    def end(self, netdev: str) -> str:
        """The fabric's end of the cable in that NIC."""
        return f"n{self.spec.number}p{[port.netdev for port in self.ports].index(netdev)}"


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
    roots = {suite: flavours.root(suite) for suite in sorted({one.suite for one in wanted})}
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
        hosts = {node.name: {"ansible_host": node.spec.address} for node in nodes}
        write_inventory(run, hosts)
        write_ssh_config(run, hosts)
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


def write_inventory(run: Run, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    """hosts.yml, as a site would write it: host keys are checked here too."""
    import yaml

    reach = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(run.key),
        "ansible_ssh_common_args": " ".join(f"-o {option}" for option in ssh_options(run)),
        # Ansible names a connection by address, port and user, and every lab has the same addresses.
        "ansible_control_path_dir": str(run.folder / "cp"),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    page = {"gpu_nodes": {"hosts": {name: dict(words) for name, words in hosts.items()}, "vars": reach}}
    (run.folder / "hosts.yml").write_text(f"---\n{yaml.safe_dump(page, sort_keys=False)}", encoding="utf-8")


def write_ssh_config(run: Run, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    """For ssh -F, and for what reads such a file. hosts: as in the inventory."""
    lines = []
    for name, words in hosts.items():
        lines += [f"Host {name}", f"  HostName {words['ansible_host']}"]
        lines += [f"  Port {words.get('ansible_port', 22)}", "  User root"]
    lines += ["Host *", *(f"  {option.replace('=', ' ', 1)}" for option in ssh_options(run))]
    (run.folder / "ssh_config").write_text("\n".join(lines) + "\n", encoding="ascii")


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
