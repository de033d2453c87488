"""node_preflight: ask a node what only it can answer, and judge whether it can take what its policy asks for."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright import preflight
from railwright.fleet import answer, kept, record_folder
from railwright.node.model import Facts, InputError, Policy, Probe, from_json
from railwright.report.visible import visible


class ActionModule(answer.AnswerAction):
    """Hands on the page and what failed; findings and checks lie in the node's record."""

    read = staticmethod(answer.probe)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "facts": {"type": "dict", "required": True},
                "policy": {"type": "dict", "required": True},
                "more": {"type": "list", "elements": "str", "default": []},
            }
        )
        host = (task_vars or {})["inventory_hostname"]
        try:
            folder = record_folder.of(options["folder"], host)
            facts = Facts.read(kept.read(options["facts"]))
            policy = Policy.read(kept.read(options["policy"]), "node_policy")
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        system = None if facts.software is None else facts.software.system
        urls = [*preflight.addresses(policy, system), *options["more"]]
        result = self.asked({"urls": urls}, task_vars)
        if result.get("failed"):
            return result
        probe = from_json(Probe, result["ansible_facts"]["preflight"], "preflight")
        found = preflight.preflight(facts, policy, probe, time.time())
        rows = [{key: row[key] for key in ("name", "ok", "detail", "skipped")} for row in found["checks"]]
        record_folder.keep(
            folder, {"preflight": found, "findings": {"findings": found["findings"], "checks": rows}}
        )
        page = "\n".join(map(visible, preflight.page(host, found).splitlines()))
        failed = [row["name"] for row in found["checks"] if row["level"] == "fail"]
        return {"changed": False, "page": page, "ok": found["ok"], "failed_checks": failed}
