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

from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

# What the filters need is loaded here, before Ansible forks its workers: otherwise each task would load it anew.
import railwright.node.check
import railwright.plan  # noqa: F401
from railwright import report
from railwright.fleet import zipapp
from railwright.node.model import InputError

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
        self._folders: set[Path] = set()
        # Built once, so that all of a run speaks of one program, whoever edits the checkout meanwhile.
        zipapp.build()

    def v2_runner_on_ok(self, result: Any) -> None:
        if result.task.action == "node_record":
            self._folders.add(Path(result.result["folder"]))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        for folder in sorted(self._folders):
            try:
                page = report.write(folder, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
                document = json.loads((folder / "report.json").read_text("utf-8"))
            except (InputError, OSError) as error:
                self._without(folder, error)
                continue
            told = f"ok: {str(document['ok']).lower()}. {document['verdict']}\nReport: {page}"
            self._display.display(f"\n{told}", color="green" if document["ok"] else "red")

    def _without(self, folder: Path, error: Exception) -> None:
        """No report of this run: then none at all, for an older one would pass for it."""
        for name in ("report.json", "index.html"):
            with suppress(OSError):
                (folder / name).unlink()
        self._display.error(f"The report could not be written: {error}")
