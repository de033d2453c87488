"""A callback of the tests: each task result of a run as one line of JSON, in the file that EVENTS_FILE names."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: events
type: notification
short_description: Task results as lines of JSON
"""


class CallbackModule(CallbackBase):  # type: ignore[misc] # Ansible ships no types
    """Ansible looks for this name."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "events"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, kind: str, result: Any) -> None:
        line = {
            "kind": kind,
            "host": result.host.get_name(),
            "task": result.task.get_name(),
            "action": result.task.action,
            "result": result.result,
        }
        with open(os.environ["EVENTS_FILE"], "a", encoding="utf-8") as out:
            out.write(json.dumps(line, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write("failed", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._write("skipped", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write("unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = {host: stats.summarize(host) for host in stats.processed}
        with open(os.environ["EVENTS_FILE"], "a", encoding="utf-8") as out:
            out.write(json.dumps({"kind": "stats", "hosts": hosts}) + "\n")
