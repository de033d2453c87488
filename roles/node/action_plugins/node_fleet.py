"""node_fleet: plan the nodes of a run together, once, and keep each node's plan in its record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import record_folder, together
from railwright.node.model import InputError


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """For `run_once`: makes no connection, and plans every node of the play that `node_read` has read."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "record": {"type": "path", "required": True},
                "replan": {"type": "list", "elements": "str", "default": []},
                "cabling": {"type": "path"},
                "neighbours": {"type": "dict", "default": {}},
            }
        )
        files = together.Files(options["record"], options["cabling"] or "", options["neighbours"])
        try:
            handed, fleet = together.plan_run(_read(task_vars or {}), files, options["replan"])
            together.keep_fleet(
                Path(options["folder"]).resolve(), fleet, None if self._task.check_mode else options["record"]
            )
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        except OSError as error:
            raise record_folder.cannot_write(error) from error
        return {**result, "changed": False, "nodes": handed}


def _read(task_vars: dict[str, Any]) -> dict[str, together.Read]:
    """What node_read left of each node of the play that has come this far."""
    hostvars, found = task_vars["hostvars"], {}
    for host in task_vars["ansible_play_hosts"]:
        known = hostvars[host].get("ansible_facts", {})
        if "node_asked" in known:
            # JSON there and back renders what is lazy and drops Ansible's tags.
            facts, asked = json.loads(json.dumps([known["node"], known["node_asked"]]))
            found[str(host)] = together.Read(facts, **asked)
    return found
