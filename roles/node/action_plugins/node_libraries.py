"""node_libraries: ask a node which libraries are loaded there, and compare them with what its plan installs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, auditing
from railwright.node.model import InputError


class ActionModule(answer.AnswerAction):
    """Fails where a runtime loads another library than the plan installs."""

    read = staticmethod(answer.libraries)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(
            argument_spec={
                "node": {"type": "dict", "required": True},
                "places": {"type": "list", "elements": "str", "default": []},
            }
        )
        if "plan" not in options["node"]:
            raise AnsibleActionFail(options["node"]["refused"])
        try:
            expect = auditing.meant_of(options["node"]["plan"])
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        result = self.asked({"expect": expect, "places": options["places"]}, task_vars)
        if result.get("failed"):
            return result
        found = auditing.read(result["ansible_facts"]["libraries"])
        wrong = auditing.wrong(found)
        verdict = {"failed": True, "msg": wrong} if wrong and not self._task.check_mode else {}
        return {"changed": False, "page": auditing.page(found, expect), **verdict}
