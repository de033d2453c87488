"""tools/system_packages.sh on a made-up machine: a PATH with only the tools that the script itself uses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ITS_TOOLS = ("cat", "date", "mktemp", "rm", "sh")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for tool in ITS_TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def put(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def run(machine: Path) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh")
    assert shell is not None
    return subprocess.run(
        [shell, "tools/system_packages.sh"],
        cwd=ROOT,
        env={"PATH": str(machine)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_root_with_apt_gets_what_is_missing_and_nothing_else(machine: Path) -> None:
    put(machine / "id", "echo 0")
    put(machine / "apt-get", f'echo "$@" >> {machine}/asked')
    put(machine / "strace", "")
    put(machine / "google-chrome", "")
    ran = run(machine)
    assert ran.returncode == 0
    assert (machine / "asked").read_text(encoding="utf-8").splitlines() == [
        "update",
        "install --yes --no-install-recommends pciutils hwloc-nox build-essential",
    ]


def test_nothing_is_asked_when_all_are_there(machine: Path) -> None:
    put(machine / "id", "echo 0")
    put(machine / "apt-get", f'echo "$@" >> {machine}/asked')
    for tool in ("lspci", "lstopo", "strace", "dpkg-shlibdeps", "chromium"):
        put(machine / tool, "")
    ran = run(machine)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert not (machine / "asked").exists()


def test_an_ordinary_user_is_told_in_one_sentence_what_stays_skipped(machine: Path) -> None:
    put(machine / "id", "echo 1000")
    put(machine / "apt-get", f'echo "$@" >> {machine}/asked')
    put(machine / "lspci", "")
    ran = run(machine)
    assert ran.returncode == 0
    assert ran.stdout == (
        "Not installed here, so their tests are skipped: what hwloc says of a machine (hwloc-nox), what a run writes "
        "(strace), how NCCL and its packages are made (build-essential), how the report page shows in a browser "
        "(chromium).\n"
    )
    assert not (machine / "asked").exists()


def test_a_failing_apt_shows_its_words_and_names_what_stays_skipped(machine: Path) -> None:
    put(machine / "id", "echo 0")
    put(machine / "apt-get", 'echo "no network" >&2; exit 100')
    for tool in ("lspci", "lstopo", "dpkg-shlibdeps", "chromium"):
        put(machine / tool, "")
    ran = run(machine)
    assert ran.returncode == 0
    assert "no network" in ran.stderr
    assert ran.stdout.endswith(
        "apt-get could not install them, so their tests are skipped: what a run writes (strace).\n"
    )
