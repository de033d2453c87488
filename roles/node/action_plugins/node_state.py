"""node_state: say to the node whose run this is, run the module there and take its answer at the border."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer

# Ansible loads an action once, before it forks the processes that run it: so all calls of one run bear one name.
RUN = uuid.uuid4().hex[:12]


class ActionModule(answer.AnswerAction):
    """The result holds what railwright.fleet.answer.state reads, and nothing else of what the node sent."""

    read = staticmethod(answer.state)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        self._task.args = {"owner": owner(), "run": RUN, **self._task.args}
        return super().run(tmp, task_vars)


def owner() -> str:
    """Who runs this, as another run is told that finds the node held."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"  # a container's user that no list knows
    return f"{user}@{socket.gethostname()}"
