"""node_write: write a node's whole plan in one call of the writer, keep what it did and what differs then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, kept, record_folder, steps
from railwright.fleet.comparing import Comparison
from railwright.node.model import InputError


class ActionModule(answer.AnswerAction):
    """What was written is kept also where an item failed. The node is read again in the same call: to connect and to
    start Python for that would cost more than the reading."""

    module = "node_state"
    read = staticmethod(answer.state_and_facts)

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
            comparison = Comparison.of(folder, node)
            slices = steps.node_slices(comparison.plan, comparison.policy)
            blobs = steps.blobs_to_send(comparison.plan, kept.read(options["facts"]))
            look = comparison.asks()
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        result = self.asked({**answer.caller(), "slices": slices, "blobs": blobs, "look": look}, task_vars)
        facts = result.pop("facts", None)
        changes = steps.node_changes([result])
        if changes:
            record_folder.keep(folder, {"changes": changes})
        self.come_back(result, task_vars)
        if result.get("failed"):
            return result
        found = comparison.found(facts, None)
        return {**result, **found, **comparison.verdict(found["problems"], self._task.check_mode)}
