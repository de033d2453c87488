"""The rule on skipped tests, seen from outside: a pytest of its own on a folder with the real conftest.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"

TESTS = """
import pytest

def test_that_runs():
    pass

@pytest.mark.skip(reason="no GPU")
def test_that_is_skipped():
    pass

@pytest.mark.xfail(reason="known")
def test_that_fails_as_expected():
    assert False
"""


def run_pytest(
    folder: Path, tests: str, allowed: str = "", *words: str, strict: str = "1"
) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder)
    (folder / "allowed_skips.txt").write_text(allowed, encoding="utf-8")
    (folder / "test_it.py").write_text(tests, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CONFTEST.parents[1]), "RAILWRIGHT_STRICT_SKIPS": strict},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_unlisted_skip_fails_the_run_and_is_named_with_its_reason(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_it.py::test_that_is_skipped: Skipped: no GPU" in run.stdout
    assert "test_that_fails_as_expected:" not in run.stdout


def test_a_listed_skip_passes(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS, "# why\n\ntest_it.py::test_that_is_skipped  # needs a GPU\n")
    assert run.returncode == pytest.ExitCode.OK, run.stdout
    assert "1 passed, 1 skipped, 1 xfailed" in run.stdout


def test_a_listed_test_that_runs_after_all_passes(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "def test_that_runs(): pass\n", "test_it.py::test_that_runs  # needs a GPU\n")
    assert run.returncode == pytest.ExitCode.OK, run.stdout


def test_a_listed_function_does_not_excuse_another_parameter(tmp_path: Path) -> None:
    tests = (
        "import pytest\n"
        "@pytest.mark.parametrize('tool', ['lspci', 'dcb'])\n"
        "def test_tool(tool): pytest.skip(tool)\n"
    )
    run = run_pytest(tmp_path, tests, "test_it.py::test_tool[dcb]  # not in this kernel\n")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_it.py::test_tool[lspci]: Skipped: lspci" in run.stdout
    assert "test_it.py::test_tool[dcb]:" not in run.stdout


def test_a_file_that_skips_itself_at_import_is_named(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "import pytest\npytest.skip('no captures', allow_module_level=True)\n")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_it.py: Skipped: no captures" in run.stdout


def test_without_the_strict_rule_a_skip_is_only_reported(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS, strict="")
    assert run.returncode == pytest.ExitCode.OK, run.stdout


def test_a_listed_skip_without_a_reason_is_refused_with_its_line(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TESTS, "# why\ntest_it.py::test_that_is_skipped\n")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "allowed_skips.txt, line 2: no reason after the node id" in run.stderr


def test_a_failure_stays_a_failure_when_all_skips_are_listed(tmp_path: Path) -> None:
    tests = TESTS + "\ndef test_that_fails():\n    assert False\n"
    run = run_pytest(tmp_path, tests, "test_it.py::test_that_is_skipped  # needs a GPU\n")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED


def test_what_workers_skipped_is_told_by_the_run_that_started_them(tmp_path: Path) -> None:
    other = "import pytest\npytest.skip('no captures', allow_module_level=True)\n"
    (tmp_path / "test_other.py").write_text(other, encoding="utf-8")
    allowed = "test_it.py::test_that_is_skipped  # needs a GPU\n"
    run = run_pytest(tmp_path, TESTS, allowed, "-n", "2", "--dist", "loadfile")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_other.py: Skipped: no captures" in run.stdout
    assert "test_it.py::test_that_is_skipped:" not in run.stdout
    (tmp_path / "test_other.py").unlink()
    assert run_pytest(tmp_path, TESTS, allowed, "-n", "2").returncode == pytest.ExitCode.OK
