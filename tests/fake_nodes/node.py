"""Lay a fake node out and work with it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machinery import MachineError, build

from .errors import FakeNodeError

HERE = Path(__file__).resolve().parent
MACHINES = HERE.parent / "machines"
# Programs of this machine that a node sees, read only. /usr/local is the node's own.
PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
PROGRAMS_OF_USR = (*PROGRAMS, "libexec", "share")
# A system that boots has these, whatever the machine.
BASE: Mapping[str, str] = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
FOLDERS = (
    "dev",
    "etc/systemd/system",
    "proc/.kernel",
    "root",
    "run/lock",
    "run/systemd/system",
    "tmp",
    "usr/local/lib",
    "usr/local/sbin",
    "var/lib",
)
LINKS: Mapping[str, str] = {
    "proc/locks": ".kernel/locks",
    "proc/mounts": ".kernel/self/mounts",
    "proc/thread-self": ".kernel/thread-self",
}
_PROBE = """
import glob, json, os, sys, sysconfig
try:
    import railwright
    found = railwright.__file__
except ImportError:
    found = None
shared = sysconfig.get_config_var("Py_ENABLE_SHARED")
print(json.dumps({
    "version": sys.version_info[:2],
    "prefix": os.path.realpath(sys.base_prefix),
    "program": os.path.realpath(sys.executable),
    "stdlib": os.path.realpath(sysconfig.get_path("stdlib")),
    "shared": glob.glob(sysconfig.get_config_var("LIBDIR") + "/libpython*.so*") if shared else [],
    "railwright": found,
}))
"""


@dataclass(frozen=True)
class FakeNode:
    """A node. tree: its root; python: its interpreter, which is how it is entered."""

    name: str
    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def python(self) -> Path:
        return self.folder / "python"

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the node."""
        code = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        return subprocess.run(
            [str(self.python), "-I", "-c", code, *argv],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def must_enter(self) -> None:
        """Raises FakeNodeError where this machine does not let the node be entered."""
        done = self.run("true")
        if done.returncode != 0:
            raise FakeNodeError(
                str(self.python),
                f"the node cannot be entered: {' '.join(done.stderr.split()) or f'exit {done.returncode}'}",
                "run as root, or allow user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
            )

    def variables(self) -> dict[str, str]:
        """What an inventory has to say of the node."""
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(self.python),
            "ansible_remote_tmp": str(self.folder / "scratch"),
        }

    def systemctl_calls(self) -> list[list[str]]:
        """The calls of systemctl that may change something, oldest first."""
        return [entry["argv"] for entry in self._log("calls")]

    def journal(self) -> list[dict[str, Any]]:
        """What units ran: argv, code, output."""
        return self._log("journal")

    def _log(self, name: str) -> list[dict[str, Any]]:
        path = self.tree / "run/systemd/stand-in" / name
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def create(
    folder: Path,
    machine: Path | str,
    python: Path,
    *patches: Mapping[str, Any],
    trees: Path | None = None,
) -> FakeNode:
    """A node named as its folder, which must not exist yet.

    machine: a folder with a machine.yml, or the name of one below tests/machines. python: a plain Python 3.9 or later
    that does not have Railwright. patches: go over the machine's description (RFC 7386). trees: a folder for the node's
    tree, which is 20000 small files, on tmpfs say; the node then has a link to it. Raises FakeNodeError.
    """
    where = MACHINES / machine if isinstance(machine, str) else machine
    # Not by a link: a virtual environment's python is one, and so is most of what a PATH finds.
    python = python.resolve()
    visible = _visible(python)
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise FakeNodeError(str(folder), "is there already", "name a new folder") from error
    folder = folder.resolve()
    tree = folder / "tree"
    if trees is not None:
        tree.symlink_to(trees.resolve() / folder.name)
    try:
        build(where, tree.resolve(), identity(folder.name), *patches)
    except (MachineError, OSError) as error:
        raise FakeNodeError(str(where), str(error), "name a folder with a good machine.yml") from error
    # A plain file does not follow a write: better a kernel that does not tell where a vector is served.
    for told in tree.glob("proc/irq/*/effective_affinity*"):
        told.unlink()
    for path, text in BASE.items():
        if not os.path.lexists(tree / path):
            (tree / path).write_text(text, encoding="utf-8")
    for path in FOLDERS:
        (tree / path).mkdir(parents=True, exist_ok=True)
    for path, target in LINKS.items():
        if not os.path.lexists(tree / path):
            (tree / path).symlink_to(target)
    _self(tree)
    (tree / "tmp").chmod(0o1777)
    _mount_points(tree, [*visible, str(folder / "scratch")])
    for made in ("bin", "scratch"):
        (folder / made).mkdir()
    _write(folder / "python", _enter(python, visible))
    standin = (HERE / "systemctl.py").read_text("utf-8")
    _write(folder / "bin/systemctl", f"#!{python} -I\n{standin}")
    return FakeNode(folder.name, folder)


def identity(name: str) -> dict[str, Any]:
    """What tells two machines of one kind apart: host name and boot id."""
    return {"kernel": {"hostname": name, "boot_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, name))}}


def inventory(nodes: Sequence[FakeNode], policies: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An inventory over the nodes, in the form of Ansible's YAML. policies: `node_policy` by node."""
    hosts: dict[str, dict[str, Any]] = {node.name: dict(node.variables()) for node in nodes}
    for name, policy in (policies or {}).items():
        hosts[name]["node_policy"] = policy
    return {"gpu_nodes": {"hosts": hosts}}


def _visible(python: Path) -> list[str]:
    """The places of this machine that a node with this Python sees. Raises FakeNodeError."""
    places = [f"/{name}" for name in PROGRAMS] + [f"/usr/{name}" for name in PROGRAMS_OF_USR]
    found = [place for place in places if os.path.isdir(place) and not os.path.islink(place)]
    answer = _ask(python)
    if answer["prefix"] == "/usr/local":
        found += [answer["program"], answer["stdlib"], *answer["shared"]]
    elif answer["prefix"] != "/usr":
        found.append(answer["prefix"])
    if os.path.realpath(python) != os.path.realpath(answer["program"]) or not _below(str(python), found):
        raise FakeNodeError(
            str(python), f"lies outside {answer['prefix']}, where its library is", f"name {answer['program']}"
        )
    return found


def _below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def _ask(python: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _PROBE], capture_output=True, text=True, check=True, cwd="/"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise FakeNodeError(str(python), f"is no Python that runs: {error}", "name another Python") from error
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer["version"] < [3, 9]:
        version = ".".join(map(str, answer["version"]))
        raise FakeNodeError(str(python), f"is Python {version}", "a node needs Python 3.9 or later")
    if answer["railwright"] is not None:
        raise FakeNodeError(
            str(python),
            f"finds Railwright in {answer['railwright']}",
            "name a Python without it: a node has none",
        )
    return answer


def _self(tree: Path) -> None:
    """/proc/self is the kernel's, but for the CPUs that a process may use: those of the recorded machine."""
    folder = tree / "proc/self"
    folder.mkdir()
    for name in os.listdir("/proc/self"):
        if name != "status":
            (folder / name).symlink_to(f"../.kernel/self/{name}")
    online = (tree / "sys/devices/system/cpu/online").read_text("utf-8").strip()
    (folder / "status").write_text(f"Name:\tpython3\nCpus_allowed_list:\t{online}\n", encoding="utf-8")


def _mount_points(tree: Path, places: Sequence[str]) -> None:
    """Something in the tree to mount each place on, and the links that this machine has beside them."""
    for place in places:
        point = tree / place.lstrip("/")
        if os.path.isfile(place):
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()
        else:
            point.mkdir(parents=True, exist_ok=True)
    for name in (*PROGRAMS, *(f"usr/{name}" for name in PROGRAMS_OF_USR)):
        if os.path.islink(f"/{name}"):
            (tree / name).symlink_to(os.readlink(f"/{name}"))
    cache = Path("/etc/ld.so.cache")
    if cache.exists():
        (tree / "etc/ld.so.cache").write_bytes(cache.read_bytes())


def _enter(python: Path, visible: Sequence[str]) -> str:
    text = (HERE / "enter.sh").read_text("utf-8")
    text = text.replace("@VISIBLE@", " ".join(shlex.quote(place) for place in visible))
    return text.replace("@PYTHON@", shlex.quote(str(python)))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
