"""node_reboot: ask once more who uses the GPUs, at the moment of the reboot, and reboot the node where nobody does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from ansible.plugins.action import ActionBase

from railwright.fleet import installing


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible ships no types
    """Where nodes wait for their turn, what was asked before is old when a node has its own.

    Takes what ansible.builtin.reboot takes, and does nothing in check mode.
    """

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode or self._connection.transport in installing.LOCAL:
            return {**result, "changed": False, "skipped": True}
        use = self._do("node_driver", {}, task_vars)
        if use.get("failed"):
            return use
        if use["busy"]:
            msg = f"This node is not rebooted, and runs on as it is: its GPUs are in use: {use['busy']}"
            return {**result, "failed": True, "msg": msg}
        return self._do("ansible.builtin.reboot", self._task.args, task_vars)

    def _do(self, name: str, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        task = self._task.copy()
        task.action, task.args = name, dict(args)
        action = self._shared_loader_obj.action_loader.get(
            name,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        done: dict[str, Any] = action.run(task_vars=task_vars)
        return done
