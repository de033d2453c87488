"""tools/find_python.sh on made-up machines: folders of little scripts that answer as some Python would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "find_python.sh"
# Where the tools of the script itself lie; every Python there is hidden by asking for versions that no one has.
SYSTEM = "/usr/bin:/bin"


def put(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def find(home: Path, *versions: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *versions],
        env={"PATH": f"{path}:{SYSTEM}" if path else SYSTEM, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    """A version manager's folder: the name is there, but it does not run."""
    put(tmp_path / "shims" / "python4.1", 'echo "python4.1: command not found" >&2; exit 127')
    return tmp_path / "shims"


def test_a_shim_that_does_not_run_is_passed_over_for_the_real_one_behind_it(
    tmp_path: Path, shims: Path
) -> None:
    put(tmp_path / "bin" / "python4.1", f"echo 4.1 {tmp_path}/bin/python4.1")
    found = find(tmp_path, "4.1", path=f"{shims}:{tmp_path}/bin")
    assert (found.returncode, found.stdout) == (0, f"{tmp_path}/bin/python4.1\n")


def test_a_python_that_only_pyenv_holds_is_found(tmp_path: Path, shims: Path) -> None:
    real = tmp_path / ".pyenv" / "versions" / "4.1.7" / "bin" / "python3"
    put(real, f"echo 4.1 {real}")
    found = find(tmp_path, "4.1", path=str(shims))
    assert (found.returncode, found.stdout) == (0, f"{real}\n")


def test_the_first_version_asked_for_wins(tmp_path: Path) -> None:
    for version in ("4.1", "4.2"):
        put(tmp_path / "bin" / f"python{version}", f"echo {version} /made/up/{version}")
    assert find(tmp_path, "4.2", "4.1", path=f"{tmp_path}/bin").stdout == "/made/up/4.2\n"
    assert find(tmp_path, "4.3", "4.1", path=f"{tmp_path}/bin").stdout == "/made/up/4.1\n"


def test_a_folder_with_a_space_in_its_name_is_searched(tmp_path: Path) -> None:
    put(tmp_path / "my tools" / "python4.1", "echo 4.1 '/made/my tools/python4.1'")
    assert find(tmp_path, "4.1", path=f"{tmp_path}/my tools").stdout == "/made/my tools/python4.1\n"


def test_a_python_without_venv_is_no_fit_and_the_sentence_says_so(tmp_path: Path) -> None:
    put(tmp_path / "bin" / "python4.1", "echo 4.1 incomplete")
    found = find(tmp_path, "4.1", "4.2", path=f"{tmp_path}/bin")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("Railwright needs Python 4.1 or 4.2 on this machine (found: ")
    assert "4.1 without venv, ensurepip or ssl" in found.stderr
    assert found.stderr.endswith("install one, for example `apt-get install python3.11 python3.11-venv`.\n")


def test_a_python_that_answers_another_version_than_its_name_is_no_fit(tmp_path: Path) -> None:
    put(tmp_path / "bin" / "python4.1", "echo 3.6 /made/up/python4.1")
    found = find(tmp_path, "4.1", path=f"{tmp_path}/bin")
    assert found.returncode == 2
    assert "3.6" in found.stderr
