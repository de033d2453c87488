"""node_archive: bring built packages to a node, unless they lie there whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from railwright.fleet import answer, builds
from railwright.node.model import InputError


class ActionModule(answer.AnswerAction):
    """In check mode the node is asked, and nothing is brought."""

    read = staticmethod(answer.archive)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _, options = self.validate_argument_spec(argument_spec={"folder": {"type": "path", "required": True}})
        folder = Path(options["folder"]).resolve()
        if self._task.check_mode and not (folder / builds.NOTE).exists():
            # A dry run of the build has made none.
            return {"changed": True, "sha256": ""}
        try:
            archive, place = builds.noted(folder)
        except InputError as error:
            raise AnsibleActionFail(str(error)) from error
        said = {"sha256": archive.sha256, "system": archive.system}
        result = self.asked(said, task_vars)
        if result.get("failed"):
            return result
        if result["ansible_facts"]["archive"]["whole"] or self._task.check_mode:
            return {"changed": not result["ansible_facts"]["archive"]["whole"], "sha256": archive.sha256}
        scratch = self._make_tmp_path()
        try:
            files = {}
            for number, name in enumerate(sorted(archive.files)):
                files[name] = f"{scratch}/{number}"
                self._transfer_file(str(place / name), files[name])
            self._fixup_perms2((scratch, *files.values()), execute=False)
            result = self.asked({**said, "files": files}, task_vars)
        finally:
            self._remove_tmp_path(scratch)
        if result.get("failed"):
            return result
        return {"changed": True, "sha256": archive.sha256}
