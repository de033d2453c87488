"""node_write: write a node's whole plan in one call of the writer, and keep what it did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, kept, record_folder, steps
from railwright.node.model import InputError


class ActionModule(answer.AnswerAction):
    """What was written is kept also where an item failed."""

    module = "node_state"
    read = staticmethod(answer.state)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "node": {"type": "dict", "required": True},
                "facts": {"type": "dict", "required": True},
            }
        )
        node = options["node"]
        if node["refused"]:
            raise AnsibleActionFail(node["refused"])
        try:
            folder = record_folder.of(options["folder"], (task_vars or {})["inventory_hostname"])
            plan = kept.read(node["plan"])
            slices = steps.node_slices(plan, kept.read(node["policy"]))
            blobs = steps.blobs_to_send(plan, kept.read(options["facts"]))
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        result = self.asked({**answer.caller(), "slices": slices, "blobs": blobs}, task_vars)
        changes = steps.node_changes([result])
        if changes:
            record_folder.keep(folder, {"changes": changes})
        self.come_back(result, task_vars)
        return result
