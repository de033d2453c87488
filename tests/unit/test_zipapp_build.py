"""The boot program: the same bytes everywhere, and it runs on the oldest Python of a node."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import zipapp
from railwright.node.discover import discover
from railwright.node.model import Policy, to_json
from railwright.plan import plan as make_plan
from tests.unit.small_machine import gpu_node

PROJECT = Path(__file__).resolve().parents[2]


def python(version: str) -> str:
    """A Python of this version that really runs."""
    run = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), version],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if run.returncode != 0:
        pytest.skip(f"Python {version} is not on this machine")
    return run.stdout.strip()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "railwright.pyz"
    path.write_bytes(zipapp.build())
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpu_node(tmp_path_factory.mktemp("node"))


def run(interpreter: str, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -I and -S: no site-packages, no PYTHONPATH. What runs is in the file and in the standard library.
    return subprocess.run(
        [interpreter, "-I", "-S", str(program), *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )


def copy_of_the_sources(folder: Path) -> Path:
    """Another checkout: other times, other modes, other order, and leftovers of a Python."""
    target = folder / "src/railwright"
    shutil.copytree(PROJECT / "src/railwright", target, copy_function=shutil.copyfile)
    for path in sorted(target.rglob("*.py"), reverse=True):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    (target / "node/__pycache__").mkdir(exist_ok=True)
    (target / "node/__pycache__/leftover.cpython-312.pyc").write_bytes(b"x")
    return folder / "src"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_another_checkout_under_another_python_builds_the_same_bytes(version: str, tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    code = "from railwright.fleet import zipapp; print(zipapp.digest())"
    answer = subprocess.run(
        [python(version), "-c", code],
        env={"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "TZ": "Pacific/Kiritimati"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert answer.stdout.strip() == zipapp.digest()


def test_a_changed_source_changes_the_digest(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    with open(source / "railwright/node/model/pci.py", "a", encoding="utf-8") as file:
        file.write("# one more line\n")
    code = "from railwright.fleet import zipapp; print(zipapp.digest())"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert answer.stdout.strip() != zipapp.digest()


def test_the_digest_is_that_of_the_bytes() -> None:
    assert zipapp.digest() == hashlib.sha256(zipapp.build()).hexdigest()


def test_only_what_a_node_needs_travels() -> None:
    data = zipapp.build()
    assert data.startswith(b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(io.BytesIO(data)) as members:
        assert members.testzip() is None
        names = members.namelist()
        assert {info.date_time for info in members.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.compress_type for info in members.infolist()} == {zipfile.ZIP_STORED}
        assert {info.external_attr >> 16 for info in members.infolist()} == {0o100644}
    assert names == sorted(names)
    packages = {"/".join(name.split("/")[:2]) for name in names}
    assert packages == {"__main__.py", "railwright/__init__.py", "railwright/node", "railwright/plan"}
    travelling = [
        *(PROJECT / "src/railwright/node").rglob("*.py"),
        *(PROJECT / "src/railwright/plan").rglob("*.py"),
    ]
    assert len(names) == len(travelling) + 2


def test_it_plans_under_the_oldest_python_what_the_controller_plans(program: Path, root: Path) -> None:
    oldest = python("3.9")
    answer = run(oldest, program, "plan", "--root", str(root), "--json")
    assert answer.stderr == ""
    assert json.loads(answer.stdout) == _json(make_plan(discover(root), Policy()))


def test_it_reads_under_the_oldest_python_what_the_controller_reads(program: Path, root: Path) -> None:
    answer = run(python("3.9"), program, "discover", "--root", str(root), "--json")
    assert json.loads(answer.stdout) == _json(discover(root))


def _json(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


@pytest.mark.skipif(os.geteuid() != 0, reason="files on a node belong to root, so writing them needs root")
def test_it_boots_a_node_under_the_oldest_python_and_finds_itself(program: Path, tmp_path: Path) -> None:
    oldest = python("3.9")
    node = gpu_node(tmp_path / "node", manage={"boot_unit": False}, boot={"sha256": zipapp.digest()})
    first = run(oldest, program, "boot", "--root", str(node))
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[-1] == "good: the node is as planned"
    other = {"schema": "railwright.policy/1", "manage": {"boot_unit": False}, "boot": {"sha256": "ab" * 32}}
    (node / "etc/railwright/policy.json").write_text(json.dumps(other), encoding="utf-8")
    second = run(oldest, program, "boot", "--root", str(node))
    assert second.returncode == 1
    assert f"error: boot_unit.zipapp: {program}: this program is another one" in second.stdout


def test_it_shows_its_own_digest(program: Path, root: Path) -> None:
    answer = run(sys.executable, program, "show", "--root", str(root))
    assert f"sha256 {zipapp.digest()}" in answer.stdout.splitlines()[0]


def test_it_imports_nothing_but_the_standard_library(program: Path, root: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = [sys.argv[1], 'plan', '--root', sys.argv[2], '--json']\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit:\n    pass\n"
        "known = set(sys.stdlib_module_names) | {'railwright', '__main__'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - known), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(program), str(root)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert answer.stderr.strip() == "[]"


def test_a_python_that_is_too_old_is_told_so(program: Path) -> None:
    with zipfile.ZipFile(program) as members:
        entry = members.read("__main__.py").decode()
    pretend = "import sys\nsys.version_info = (3, 6, 8)\nsys.version = '3.6.8 (default)'\n"
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", pretend + entry],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (1, "railwright needs Python 3.9 or later; this is 3.6.8\n")
