"""node_check: read a node again, compare it with its plan and keep what differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, kept, record_folder, steps
from railwright.node.model import InputError, Plan, Policy


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
            plan, policy = kept.read(node["plan"]), kept.read(node["policy"])
            watch = steps.node_watch(plan)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        result = self.asked(
            {
                "watch": watch["files"],
                "units": watch["units"],
                "sysctls": list(policy["sysctls"]),
                "packages": watch["packages"],
                "tools": True,
            },
            task_vars,
        )
        if result.get("failed"):
            return result
        facts = result["facts"]
        found = steps.compared(
            Plan.read(plan), facts, Policy.read(policy, "node_policy"), node["odd"], self._before(folder)
        )
        given = {"changes": options["changes"]} if options["changes"] else {}
        record_folder.keep(folder, {**given, "findings": found, "ports": steps.ports_of(facts)})
        problems = steps.node_problems(found, plan)
        if options["judge"] and problems and not self._would_change(folder):
            raise AnsibleActionFail(problems)
        return {"changed": False, "findings": found["findings"], "problems": problems}

    def _before(self, folder: Path) -> dict[str, Any] | None:
        """The facts as this run read them first, where it did."""
        path = folder / "facts.json"
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None

    def _would_change(self, folder: Path) -> bool:
        """In check mode nothing was written: what would have been is no fault of the node."""
        path = folder / "changes.json"
        return bool(
            self._task.check_mode and path.exists() and json.loads(path.read_text("utf-8"))["changed"]
        )
