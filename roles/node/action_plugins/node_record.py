"""node_record: keep on the controller what a run saw, decided and did on one node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright import whole

NOUNS = ("facts", "policy", "plan", "changes", "findings", "ports")


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """One JSON file a noun below FOLDER/HOST, each written whole or not at all, in check mode too.

    A noun without a value is left as it is. No connection is made: the record of a node that cannot be reached can be
    begun. Only the inventory's name for the node becomes a part of a path, never a value that the node gave.
    """

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "begin": {"type": "bool", "default": False},
                "fleet": {"type": "dict"},
                "record": {"type": "path"},
                **{noun: {"type": "dict"} for noun in NOUNS},
            }
        )
        folder = Path(options["folder"]).resolve() / host_folder((task_vars or {})["inventory_hostname"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if options["begin"]:
                for noun in NOUNS:
                    (folder / f"{noun}.json").unlink(missing_ok=True)
            given = {noun: options[noun] for noun in NOUNS if options[noun]}
            whole.replace({folder / f"{noun}.json": as_json(value) for noun, value in given.items()})
            if options["fleet"]:
                self._keep_fleet(folder.parent, options["fleet"], options["record"])
        except OSError as error:
            raise AnsibleActionFail(
                f"{error.filename}: {error.strerror}; set node_output to a folder to write in"
            ) from error
        return {**result, "changed": False, "folder": str(folder.parent), "plan": options["plan"]}

    def _keep_fleet(self, folder: Path, fleet: dict[str, Any], record: str | None) -> None:
        """What the nodes are together; and the record that binds later plans, which a dry run does not touch."""
        shown = {key: value for key, value in fleet.items() if key != "record"}
        whole.replace({folder / "fleet.json": as_json(shown)})
        if record is not None and not self._task.check_mode:
            path = Path(record).resolve()
            path.parent.mkdir(parents=True, exist_ok=True)
            content = as_json(fleet["record"])
            if not path.exists() or path.read_bytes() != content:
                whole.replace({path: content})


def host_folder(host: str) -> str:
    """The node's own folder. Raises AnsibleActionFail for a name that would lead elsewhere."""
    if host in ("", ".", "..") or "/" in host or "\0" in host:
        raise AnsibleActionFail(
            f"inventory: {host!r} cannot be the name of a folder; give the host another name"
        )
    return str(host)


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
