"""node_read: read a node and keep what it is in the run's record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import addressing, answer, record_folder, steps
from railwright.node.model import InputError
from railwright.plan.boot_unit import ZIPAPP


class ActionModule(answer.AnswerAction):
    """Hands on where the facts lie, and never the facts themselves: see railwright.fleet.kept."""

    module = "node_facts"
    read = staticmethod(answer.facts)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "policy": {"type": "dict", "default": {}},
                "left": {"type": "str", "default": ""},
                "rails": {"type": "list", "elements": "dict", "default": []},
                "tools": {"type": "bool", "default": False},
                "units": {"type": "list", "elements": "str", "default": []},
            }
        )
        try:
            folder = record_folder.of(options["folder"], (task_vars or {})["inventory_hostname"])
            asked = addressing.policy_with_rails(options["policy"], options["rails"], "node_rails")
            policy = steps.node_policy(asked)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        more = {"tools": options["tools"], "units": options["units"]}
        result = self.asked({"sysctls": list(policy["sysctls"]), "watch": [ZIPAPP], **more}, task_vars)
        if result.get("failed"):
            return result
        there = record_folder.keep(folder, {"facts": result["ansible_facts"]["node"]})
        return {
            "changed": False,
            "ansible_facts": {
                "node": there["facts"],
                "node_asked": {"policy": policy, "left": options["left"]},
            },
        }
