"""node_build: build for the GPUs of the whole fleet on one node, and bring the packages to the controller."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, builds, kept, record_folder
from railwright.node.model import Facts, InputError
from railwright.report.visible import visible

OPTIONS: dict[str, dict[str, Any]] = {
    "folder": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "architectures": {"type": "list", "elements": "str", "default": []},
    "toolkit": {"type": "str", "required": True},
    "cuda": {"type": "str", "required": True},
    "source": {"type": "dict", "required": True},
    "tests_source": {"type": "dict", "default": {}},
    "mpi": {"type": "str", "default": ""},
    "revision": {"type": "str", "default": ""},
    "make": {"type": "dict", "default": {}},
    "place": {"type": "dict", "required": True},
}


class ActionModule(answer.AnswerAction):
    """For one node, the build node. In check mode nothing is built, and what would be is told."""

    read = staticmethod(answer.built)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(argument_spec=OPTIONS)
        folder = Path(options["folder"]).resolve()
        try:
            wanted = self._wanted(options, task_vars or {})
            requests = builds.requests(options, wanted)
            if self._task.check_mode:
                return {"changed": True, "page": f"would be built, or taken from the cache: {wanted.gencode}"}
            result = self.asked({"requests": requests, "place": dict(options["place"])}, task_vars)
            if result.get("failed"):
                return result
            built = builds.admitted(result["ansible_facts"]["built"])
            builds.clear(folder)
            fetched = builds.receive(folder, built.archive, self._fetch)
            policy = builds.note(folder, built, wanted)
        except InputError as error:
            raise AnsibleActionFail(visible(str(error))) from error
        except OSError as error:
            raise record_folder.cannot_write(error) from error
        return {
            "changed": bool(built.made) or fetched,
            "made": list(built.made),
            "policy": policy,
            "page": builds.page(built, policy, wanted.notes),
        }

    def _wanted(self, options: dict[str, Any], task_vars: dict[str, Any]) -> builds.Wanted:
        if options["architectures"]:
            named = {str(each): ["the fleet"] for each in options["architectures"]}
            return builds.for_capabilities(options["toolkit"], named)
        hostvars, facts = task_vars["hostvars"], {}
        for host in options["nodes"]:
            known = hostvars[host].get("ansible_facts", {}) if host in hostvars else {}
            # JSON there and back renders what is lazy and drops Ansible's tags.
            there = json.loads(json.dumps(known["node"])) if "node" in known else None
            facts[str(host)] = None if there is None else Facts.read(kept.read(there))
        return builds.for_fleet(options["toolkit"], facts)

    def _fetch(self, remote: str, local: Path) -> None:
        self._connection.fetch_file(remote, str(local))
