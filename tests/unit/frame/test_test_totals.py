"""tools/test_totals.py: the closing line of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import test_totals

MAIN = """<testsuites><testsuite tests="5" errors="1" failures="1" skipped="2">
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="no"/></testcase>
<testcase classname="a" name="breaks"><error message="no"/></testcase>
<testcase classname="a" name="skips"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="a" name="fails as expected"><skipped type="pytest.xfail" message="known"/></testcase>
</testsuite></testsuites>"""
SECOND = '<testsuites><testsuite><testcase name="b"/><testcase name="c"/></testsuite></testsuites>'


def test_the_runs_are_added_up_by_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "main.xml").write_text(MAIN, encoding="utf-8")
    (tmp_path / "second.xml").write_text(SECOND, encoding="utf-8")
    assert test_totals.main([str(tmp_path / "main.xml"), str(tmp_path / "second.xml")]) == 1
    assert capsys.readouterr().out == "4 passed, 2 failed, 1 skipped\n"


def test_all_passed_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "second.xml").write_text(SECOND, encoding="utf-8")
    assert test_totals.main([str(tmp_path / "second.xml")]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed, 0 skipped\n"


def test_a_run_of_no_test_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.xml").write_text("<testsuites/>", encoding="utf-8")
    assert test_totals.main([str(tmp_path / "empty.xml")]) == 1
    assert capsys.readouterr().out == "0 passed, 0 failed, 0 skipped\n"
