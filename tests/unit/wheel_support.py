"""Small wheels of our own, a lock of them, and a node whose python3 is a real one."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import importlib.util
import json
import marshal
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railwright.node.state import Said
from tests.unit.crash_support import SOURCE
from tests.unit.state_support import make_node

HOUSE = "/srv/wheels"
# The interpreter that made this one's environment: a plain one, with venv and ensurepip.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
MINOR = f"3.{sys.version_info[1]}"


def wheel(
    folder: Path, name: str, version: str = "1.0", *, needs: Sequence[str] = (), text: str = ""
) -> Path:
    """A wheel with one module and one program, written as the format asks (no build back-end)."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f'VERSION = "{version}"\n{text}\ndef main() -> None:\n    print(VERSION)\n',
        f"{name}/data.txt": f"{name}\n" * 50,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-says = {name}:main\n",
    }
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(content.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), content)
    return place


def bundled_pip() -> Path:
    """The wheel of pip that comes with this Python."""
    (found,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    return found


def quick_pip(folder: Path) -> Path:
    """The same wheel with its modules compiled and without their sources: of an archive Python keeps no bytecode, so
    each run of pip would compile all of it, and each installation again. The installed one runs all the same."""
    place = folder / bundled_pip().name
    with zipfile.ZipFile(bundled_pip()) as old, zipfile.ZipFile(place, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".py"):
                code = compile(data, name, "exec", dont_inherit=True)
                # Unchecked: valid whatever the source's time is (PEP 552).
                data = (
                    importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
                )
                name += "c"
            new.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return place


def pin(path: Path) -> str:
    name, version = path.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def lock(*wheels: Path) -> str:
    return "".join(f"{pin(one)}\n" for one in wheels)


@dataclass
class PythonTools:
    """Runs the node's programs: its paths are those below its root. stops: the how manieth call is cut off, and how."""

    root: Path
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        words = [self._there(word) for word in argv]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=_plain()
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def _there(self, word: str) -> str:
        if word == "/usr/bin/python3":
            return PYTHON
        for place in ("/opt/railwright", HOUSE, "/etc/railwright"):
            for before in ("", "TMPDIR=", "NETRC="):
                if word.startswith(before + place):
                    return f"{before}{self.root}{word[len(before) :]}"
        return word


def _plain() -> dict[str, str]:
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "VIRTUAL"))
    }


@dataclass
class Bench:
    """A node with a wheelhouse: two packages of ours, of which one needs the other, and pip."""

    node: Path
    tools: PythonTools
    wheels: dict[str, Path]

    @property
    def house(self) -> Path:
        return self.node / HOUSE[1:]

    def entry(self, *names: str, **more: Any) -> dict[str, Any]:
        chosen = [self.wheels[name] for name in names or ("alpha", "beta", "pip")]
        entry: dict[str, Any] = {"kind": "python_environment", "name": "train", "lock": lock(*chosen)}
        source = {} if "indexes" in more else {"wheelhouse": HOUSE}
        return {**entry, **source, **more}

    @property
    def place(self) -> Path:
        return self.node / "opt/railwright/train"

    def says(self, name: str = "alpha") -> str:
        """What the environment that is meant runs."""
        return subprocess.run(
            [self.place / "current/bin" / f"{name}-says"], capture_output=True, text=True, check=True
        ).stdout.strip()


def bench(folder: Path) -> Bench:
    node = make_node(folder / "node")
    house = node / HOUSE[1:]
    wheels = {
        "alpha": wheel(house, "alpha", "1.0", needs=["beta"]),
        "alpha2": wheel(house, "alpha", "2.0", needs=["beta"]),
        "beta": wheel(house, "beta", "1.5"),
        "gamma": wheel(house, "gamma", "0.1", needs=["delta>=1"]),
    }
    wheels["pip"] = quick_pip(house)
    return Bench(node, PythonTools(node), wheels)


# Runs the writer, and is killed at the how manieth of these calls: before it, or behind it where the number is
# negative. With 0 it goes to its end and tells the calls.
_KILLED = f"""
import json, os, signal, sys
sys.path[:0] = [{str(SOURCE)!r}, {str(SOURCE.parent)!r}]
from railwright.node.state import apply
from tests.unit.wheel_support import PythonTools
from pathlib import Path

root, slices, which, only = json.loads(sys.stdin.read())
count = 0
def killing(name, call):
    def at(*words, **more):
        global count
        count += only in ("", name)
        now = count if only in ("", name) else 0
        if which == 0:
            print(name, file=sys.stderr)
        if now and now == which:
            os.kill(os.getpid(), signal.SIGKILL)
        done = call(*words, **more)
        if now and now == -which:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return at

for name in ("rename", "replace", "symlink", "unlink", "mkdir", "rmdir", "sync"):
    setattr(os, name, killing(name, getattr(os, name)))
tools = PythonTools(Path(root))
outcome = apply(slices, root=root, tools=killing("tools", tools))
sys.exit(3 if outcome.failures else 0)
"""


def child(at: Bench, entry: dict[str, Any], which: int, only: str = "") -> subprocess.CompletedProcess[str]:
    """A run in a process of its own. only: count these calls alone."""
    asked = json.dumps([str(at.node), {"dl_runtime": [entry]}, which, only])
    return subprocess.run(
        [sys.executable, "-c", _KILLED], input=asked, capture_output=True, text=True, check=False
    )
