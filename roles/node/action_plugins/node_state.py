"""node_state: say to the node whose run this is, run the module there and take its answer at the border."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer


class ActionModule(answer.AnswerAction):
    """The result holds what railwright.fleet.answer.state reads, and nothing else of what the node sent."""

    read = staticmethod(answer.state)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        self._task.args = {**answer.caller(), **self._task.args}
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.come_back(result, task_vars)
        return result
