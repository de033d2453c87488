"""The report at the end of a run, where it cannot be written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ansible.playing import PROJECT


@pytest.fixture
def callback() -> Any:
    path = PROJECT / "playbooks/callback_plugins/node_report.py"
    spec = importlib.util.spec_from_file_location("node_report", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CallbackModule()


def test_a_report_that_cannot_be_written_is_said_and_no_older_one_passes_for_it(
    callback: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text('{"ok": true}', encoding="utf-8")
    (tmp_path / "index.html").mkdir()
    kept = SimpleNamespace(
        task=SimpleNamespace(action="node_record"),
        host=SimpleNamespace(get_name=lambda: "node1"),
        result={"folder": str(tmp_path)},
    )
    callback.v2_runner_on_ok(kept)
    callback.v2_playbook_on_stats(None)
    assert not (tmp_path / "report.json").exists()
    assert "The report could not be written" in capsys.readouterr().err


def test_a_run_that_kept_nothing_writes_no_report(callback: Any, tmp_path: Path) -> None:
    callback.v2_playbook_on_stats(None)
    assert list(tmp_path.iterdir()) == []
