"""node_record: begin a node's record on the controller, and keep there what several calls of the writer did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import record_folder
from railwright.node.model import InputError


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """What lies in FOLDER/HOST, in check mode too.

    No connection is made: the record of a node that cannot be reached can be begun.
    """

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "begin": {"type": "bool", "default": False},
                "changes": {"type": "dict"},
            }
        )
        try:
            folder = record_folder.of(options["folder"], (task_vars or {})["inventory_hostname"])
            folder.mkdir(parents=True, exist_ok=True)
            if options["begin"]:
                for noun in record_folder.NOUNS:
                    (folder / f"{noun}.json").unlink(missing_ok=True)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        except OSError as error:
            raise record_folder.cannot_write(error) from error
        if options["changes"]:
            record_folder.keep(folder, {"changes": options["changes"]})
        return {**result, "changed": False, "folder": str(folder.parent)}
