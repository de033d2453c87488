"""Records of processes: the right one is ended, and no other that has its number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import LabError, processes
from tests.lab.processes import Process


def test_a_process_records_itself_before_it_becomes_the_program(tmp_path: Path) -> None:
    record = tmp_path / "records/one"
    process = processes.launch(record, ["sleep", "60"], tmp_path / "log")
    try:
        assert process == processes.read(record)
        assert process.alive
    finally:
        processes.end(process, 0)
    assert not process.alive


def test_a_number_that_another_process_has_by_now_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        stale = Process(other.pid, 12345)
        assert not stale.alive
        processes.end(stale, 0)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_does_not_end_when_asked_is_ended(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    process = processes.launch(tmp_path / "deaf", [sys.executable, "-c", deaf], tmp_path / "log")
    while "deaf" not in (tmp_path / "log").read_text():
        pass
    processes.end(process, 0.2)
    assert not process.alive


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    process = processes.launch(tmp_path / "none", ["/no/such/program"], tmp_path / "log")
    assert process.wait(5)
    assert "/no/such/program" in (tmp_path / "log").read_text()


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("12 ")
    with pytest.raises(LabError, match="is no record of a process"):
        processes.read(tmp_path / "x")
