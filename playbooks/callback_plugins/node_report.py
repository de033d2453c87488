"""node_report: when a run ends, write the report of what it saw, decided and did.

A play for this would never come when every node of an earlier play has failed or could not be reached, or when --limit
leaves the controller out: just the runs whose report is wanted most.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

# What the filters need is loaded here, before Ansible forks its workers: otherwise each task would load it anew.
import railwright.node.check
import railwright.plan  # noqa: F401
from railwright import report
from railwright.fleet import zipapp
from railwright.node.model import InputError
from railwright.report.visible import visible

DOCUMENTATION = """
name: node_report
type: notification
short_description: Write the report of a run
description:
  - Writes C(report.json) and C(index.html) into each folder in which the run kept something of a node.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # Ansible ships no types
    """Remembers where this run kept something; writes the report there at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "node_report"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[Path, set[str]] = {}
        self._playbook = ""
        # Built once, so that all of a run speaks of one program, whoever edits the checkout meanwhile.
        zipapp.build()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._playbook = Path(playbook._file_name).name

    def v2_runner_on_ok(self, result: Any) -> None:
        if result.task.action == "node_record":
            self._nodes.setdefault(Path(result.result["folder"]), set()).add(result.host.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        # Other runs keep their nodes in the same folder: a report is of the nodes of its own run.
        for folder, nodes in sorted(self._nodes.items()):
            when = " · ".join(filter(None, (f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", self._kind())))
            try:
                page = report.write(folder, when, nodes)
                document = json.loads((folder / "report.json").read_text("utf-8"))
            except (InputError, OSError) as error:
                self._without(folder, error)
                continue
            kind = self._kind()
            told = f"{kind}\n" if kind else ""
            told += f"ok: {str(document['ok']).lower()}. {visible(document['verdict'])}\nReport: {page}"
            self._display.display(f"\n{told}", color="green" if document["ok"] else "red")

    def _kind(self) -> str:
        """What a reader has to know of this run before its verdict."""
        if context.CLIARGS.get("check"):
            return "check mode, nothing was written: what differs is what a run would change"
        if self._playbook == "revert.yml":
            return "after a revert: what differs is what a new run would change"
        return ""

    def _without(self, folder: Path, error: Exception) -> None:
        """No report of this run: then none at all, for an older one would pass for it."""
        for name in ("report.json", "index.html"):
            with suppress(OSError):
                (folder / name).unlink()
        self._display.error(f"The report could not be written: {error}")
