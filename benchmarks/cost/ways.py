"""Four ways to bring nodes to one state: Railwright, stock Ansible tasks, pyinfra, and a script over plain ssh.

The state is what Railwright's own first run wrote on one node, without what only it needs (its record and its program's
runtime files), so all four write the same bytes.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .rack import Node, Rack

PROJECT = Path(__file__).resolve().parents[2]
OWN = (
    "var/lib/railwright",
    "run",
    "root",
    "tmp",
    "proc/.kernel",
    "etc/systemd/system/multi-user.target.wants",
)
UNIT = "railwright.service"


@dataclass(frozen=True)
class Item:
    """A file's content and mode, or a value of the kernel."""

    path: str
    content: bytes
    mode: str

    @property
    def is_kernels(self) -> bool:
        return self.path.startswith(("/proc/", "/sys/"))


def items(node: Node) -> list[Item]:
    """What was written on a node that was virgin."""
    upper = node.layers / "upper"
    found = []
    for path in sorted(upper.rglob("*")):
        inside = path.relative_to(upper).as_posix()
        if (
            path.is_file()
            and not path.is_symlink()
            and not inside.startswith(OWN)
            and str(node.folder) not in f"/{inside}"
        ):
            found.append(Item(f"/{inside}", path.read_bytes(), f"{stat.S_IMODE(path.stat().st_mode):04o}"))
    return found


@dataclass(frozen=True)
class Way:
    """command: what brings the first N nodes to the state, and what it needs in its environment."""

    name: str
    command: Callable[[int], list[str]]
    environment: dict[str, str]


def ways(rack: Rack, state: Sequence[Item], pyinfra: Path | None) -> list[Way]:
    folder = rack.folder
    inventory(folder, rack.nodes)
    stock(folder, state)
    script(folder, state)
    found = [
        railwright(rack),
        Way("stock", lambda n: playbook(folder, n, folder / "stock.yml"), ansible(folder)),
    ]
    if pyinfra is not None:
        deploy(folder, rack.nodes, state)
        found.append(
            Way(
                "pyinfra",
                lambda n: [str(pyinfra), "-y", str(folder / f"pyinfra_{n}.py"), str(folder / "deploy.py")],
                {"PYTHONWARNINGS": "ignore"},
            )
        )
    found.append(Way("ssh", lambda n: ["sh", str(folder / "all.sh"), str(n)], {}))
    return found


def railwright(rack: Rack) -> Way:
    return Way(
        "railwright",
        lambda n: playbook(rack.folder, n, PROJECT / "playbooks/retune.yml"),
        ansible(rack.folder),
    )


def ansible(folder: Path) -> dict[str, str]:
    return {
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
    }


def playbook(folder: Path, count: int, path: Path) -> list[str]:
    return [
        str(Path(sys.executable).parent / "ansible-playbook"),
        *("-i", str(folder / "hosts.yml"), "--limit", ",".join(f"n{n}" for n in range(count))),
        *("-e", json.dumps({"node_output": str(folder / "out")})),
        str(path),
    ]


def inventory(folder: Path, nodes: Sequence[Node]) -> None:
    common = {
        "ansible_host": "127.0.0.1",
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(folder / "key"),
        "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={folder}/known_hosts",
        "ansible_python_interpreter": python_inside(folder),
    }
    hosts = {node.name: {"ansible_port": node.port} for node in nodes}
    (folder / "hosts.yml").write_text(
        yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": common}}), "utf-8"
    )


def python_inside(folder: Path) -> str:
    enter = folder / "model/python"
    if not enter.exists():  # nodes that are recorded ask for none
        return "/usr/bin/python3"
    return shlex.split(enter.read_text("utf-8").rstrip().rpartition("\n")[2])[-2]


def stock(folder: Path, state: Sequence[Item]) -> None:
    """One task an item, as one writes them by hand; a NIC's interrupts and the kernel's parameters by a shell each."""
    tasks: list[dict[str, Any]] = []
    (folder / "stock").mkdir()
    folders = sorted({str(Path(item.path).parent) for item in state if not item.is_kernels})
    tasks.append({"ansible.builtin.command": {"argv": ["mkdir", "-p", *folders]}, "changed_when": False})
    for number, item in enumerate(item for item in state if not item.is_kernels):
        source = folder / "stock" / str(number)
        source.write_bytes(item.content)
        tasks.append({"ansible.builtin.copy": {"src": str(source), "dest": item.path, "mode": item.mode}})
    for lines in by_device(state):
        tasks.append(
            {"ansible.builtin.shell": {"cmd": lines}, "register": "x", "changed_when": "x.stdout != ''"}
        )
    tasks.append(
        {"ansible.builtin.shell": {"cmd": unit_lines()}, "register": "x", "changed_when": "x.stdout != ''"}
    )
    play = [{"hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}]
    (folder / "stock.yml").write_text(yaml.safe_dump(play, sort_keys=False), "utf-8")


def by_device(state: Sequence[Item]) -> list[str]:
    """Shell lines: one for each kernel parameter, and the interrupts sixteen at a time, as many as a NIC has here."""
    interrupts = [item for item in state if item.path.startswith("/proc/irq/")]
    others = [item for item in state if item.is_kernels and item not in interrupts]
    groups = [[item] for item in others] + [interrupts[n : n + 16] for n in range(0, len(interrupts), 16)]
    return ["\n".join(kernel_line(item) for item in group) for group in groups]


def kernel_line(item: Item) -> str:
    value = shlex.quote(item.content.decode().strip())
    return f'[ "$(cat {item.path})" = {value} ] || {{ echo {value} > {item.path}; echo changed; }}'


def unit_lines() -> str:
    return f"systemctl is-enabled -q {UNIT} || {{ systemctl daemon-reload; systemctl enable {UNIT}; echo changed; }}"


def script(folder: Path, state: Sequence[Item]) -> None:
    """One script a node, sixteen at a time: the floor."""
    lines = ["set -eu", "new=$(mktemp); trap 'rm -f \"$new\"' EXIT"]
    for item in state:
        if item.is_kernels:
            lines.append(kernel_line(item))
            continue
        text = base64.b64encode(item.content).decode()
        lines += [
            f"base64 -d > $new <<'END'\n{text}\nEND",
            f"cmp -s $new {item.path} || {{ install -D -m {item.mode} $new {item.path}; echo changed; }}",
        ]
    (folder / "node.sh").write_text("\n".join([*lines, unit_lines(), ""]), "utf-8")
    ssh = (
        f"ssh -F /dev/null -i {folder}/key -o UserKnownHostsFile={folder}/known_hosts -o BatchMode=yes "
        f"-p {{}} root@127.0.0.1 sh -s < {folder}/node.sh"
    )
    first = int((folder / "known_hosts").read_text("utf-8").partition("]:")[2].split()[0])
    (folder / "all.sh").write_text(
        f"seq {first} $(({first} + $1 - 1)) | xargs -P 16 -I {{}} sh -c {shlex.quote(ssh)}\n", "utf-8"
    )


def deploy(folder: Path, nodes: Sequence[Node], state: Sequence[Item]) -> None:
    lines = ["from pyinfra.operations import files, server", ""]
    for number, item in enumerate(item for item in state if not item.is_kernels):
        source, mode = str(folder / "stock" / str(number)), item.mode.lstrip("0")
        lines.append(f"files.put(src={source!r}, dest={item.path!r}, mode={mode!r})")
    lines += [f"server.shell(commands=[{lines_!r}])" for lines_ in [*by_device(state), unit_lines()]]
    (folder / "deploy.py").write_text("\n".join(lines) + "\n", "utf-8")
    common = {
        "ssh_hostname": "127.0.0.1",
        "ssh_user": "root",
        "ssh_key": str(folder / "key"),
        "ssh_known_hosts_file": str(folder / "known_hosts"),
    }
    for count in {1, 8, 32, len(nodes)}:
        hosts = [(node.name, {**common, "ssh_port": node.port}) for node in nodes[:count]]
        (folder / f"pyinfra_{count}.py").write_text(f"hosts = {hosts!r}\n", "utf-8")


def environment(way: Way) -> dict[str, str]:
    kept = ("PATH", "HOME", "TMPDIR")
    return {
        "LANG": "C.UTF-8",
        **{name: os.environ[name] for name in kept if name in os.environ},
        **way.environment,
    }
