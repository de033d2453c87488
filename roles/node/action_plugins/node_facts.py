"""node_facts: run the module on the node and take its answer at the border."""

from __future__ import annotations

import sys
from pathlib import Path

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer


class ActionModule(answer.AnswerAction):
    """The result holds what railwright.fleet.answer.facts reads, and nothing else of what the node sent."""

    read = staticmethod(answer.facts)
