"""node_check: read a node again, compare it with its plan and keep what differs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, record_folder
from railwright.fleet.comparing import Comparison
from railwright.node.model import InputError


class ActionModule(answer.AnswerAction):
    """Reads with the other tools' answers, which only a comparison needs; hands on words, not the facts."""

    module = "node_facts"
    read = staticmethod(answer.facts_read)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "node": {"type": "dict", "required": True},
                "changes": {"type": "dict"},
                "judge": {"type": "bool", "default": False},
            }
        )
        node = options["node"]
        if "plan" not in node:
            raise AnsibleActionFail(node["refused"])
        try:
            folder = record_folder.of(options["folder"], (task_vars or {})["inventory_hostname"])
            comparison = Comparison.of(folder, node)
            asks = comparison.asks()
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        result = self.asked(asks, task_vars)
        if result.get("failed"):
            return result
        found = comparison.found(result["facts"], options["changes"])
        verdict = comparison.verdict(found["problems"], self._task.check_mode) if options["judge"] else {}
        return {"changed": False, **found, **verdict}
