"""node_driver: run the module on the node, take its answer at the border, and say whether the node is busy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer
from railwright.node.model import DriverUse, from_json
from railwright.report.visible import visible


class ActionModule(answer.AnswerAction):
    """busy: why nothing may be replaced under the driver now, "" where nobody uses it. cuda: what CUDA said."""

    read = staticmethod(answer.driver)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        if result.get("failed"):
            return result
        use = from_json(DriverUse, result["ansible_facts"]["driver"], "driver")
        cuda = None if use.cuda is None else {"ok": use.cuda.ok, "why": visible(use.cuda.why)}
        return {**result, "busy": visible(use.busy or ""), "cuda": cuda}
