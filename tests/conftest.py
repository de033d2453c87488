"""The rule on skipped tests, one Hypothesis profile without clocks, and what a run with several workers needs.

A skipped test is never a passed one. With RAILWRIGHT_STRICT_SKIPS=1 a run in which a test was skipped fails, unless
tests/allowed_skips.txt names the test and the reason. A listed test that runs after all is fine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import rotation

# Set by pytest-xdist where this process runs tests for another one.
if "PYTEST_XDIST_WORKER" in os.environ:
    # Coverage has begun in this worker. What its tests start is measured by nobody, as without workers.
    os.environ.pop("COVERAGE_PROCESS_START", None)
    # The worker's own width; what is tested has the width of a pipe.
    os.environ.pop("COLUMNS", None)

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")

# A busy machine is no reason to fail: nothing here is measured against a clock.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def allowed_skips(text: str) -> dict[str, str]:
    """Node id to reason. A line is `NODE ID  # REASON`; empty lines and lines that begin with # are left out."""
    allowed: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        node_id, _, reason = line.partition("  # ")
        if not reason.strip():
            raise pytest.UsageError(
                f"{ALLOWED_SKIPS.name}, line {number}: no reason after the node id; write `{node_id.strip()}  # why`"
            )
        allowed[node_id.strip()] = reason.strip()
    return allowed


class SkipRule:
    """Gathers what was skipped and judges it when the session ends."""

    def __init__(self, allowed: dict[str, str]) -> None:
        self.allowed = allowed
        self.skipped: dict[str, str] = {}

    @property
    def unlisted(self) -> dict[str, str]:
        """Node id to pytest's reason, of the skips that nobody answered for."""
        return {node_id: why for node_id, why in self.skipped.items() if node_id not in self.allowed}

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure is reported as skipped too, but it ran.
        if report.skipped and not hasattr(report, "wasxfail"):
            place = report.longrepr
            self.skipped[report.nodeid] = str(place[2] if isinstance(place, tuple) else place)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended: it tells of a file that skipped itself, the reports here do not."""
        self.skipped.update(getattr(node, "workeroutput", {}).get("skipped", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["skipped"] = self.skipped
        elif self.unlisted and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.unlisted:
            return
        terminalreporter.section("skipped, and not listed in tests/allowed_skips.txt", red=True)
        for node_id, why in sorted(self.unlisted.items()):
            terminalreporter.write_line(f"{node_id}: {why}")


def pytest_report_header() -> str:
    return rotation.told()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The second row takes unit tests in turns: they meet no Ansible, and the main row runs them all."""
    if os.environ.get("RAILWRIGHT_ROW") != "second":
        return
    files = rotation.second_row({item.path for item in items}, Path(__file__).with_name("unit"))
    left = [item for item in items if item.path not in files]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.path in files]


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("RAILWRIGHT_STRICT_SKIPS") == "1":
        config.pluginmanager.register(SkipRule(allowed_skips(ALLOWED_SKIPS.read_text(encoding="utf-8"))))
