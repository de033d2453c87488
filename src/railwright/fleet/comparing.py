"""A node compared with its plan on the controller: what to ask it for, and what is kept of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railwright.node.model import Facts, Plan, Policy

from . import kept, record_folder, steps

Json = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """folder: the node's on the controller. odd: how it differs from its fleet."""

    folder: Path
    plan: Json
    policy: Json
    odd: list[Json]

    @classmethod
    def of(cls, folder: Path, node: Json) -> Comparison:
        """node: what node_fleet returned for it. Raises InputError where what was kept cannot be read."""
        return cls(folder, kept.read(node["plan"]), kept.read(node["policy"]), node["odd"])

    def asks(self) -> Json:
        """The options of node_facts. Raises InputError for a plan that is none."""
        watch = steps.node_watch(self.plan)
        return {
            "watch": watch["files"],
            "units": watch["units"],
            "sysctls": list(self.policy["sysctls"]),
            "packages": watch["packages"],
            "tools": True,
        }

    def found(self, facts: Facts, changes: Json | None) -> Json:
        """What differs, which is kept with the node's ports, and `problems`: why the node cannot be called good.

        changes: what the writer did, where that is to be kept too.
        """
        found = steps.compared(
            Plan.read(self.plan), facts, Policy.read(self.policy, "node_policy"), self.odd, self._before()
        )
        given = {"changes": changes} if changes else {}
        record_folder.keep(self.folder, {**given, "findings": found, "ports": steps.ports_of(facts)})
        return {"findings": found["findings"], "problems": steps.node_problems(found, self.plan)}

    def verdict(self, problems: str, dry: bool) -> Json:
        """What makes a task fail for these problems; nothing in a dry run that would have written."""
        return {"failed": True, "msg": problems} if problems and not (dry and self._would_change()) else {}

    def _would_change(self) -> bool:
        path = self.folder / "changes.json"
        return path.exists() and bool(json.loads(path.read_text("utf-8"))["changed"])

    def _before(self) -> Json | None:
        """The facts as this run read them first, where it did."""
        path = self.folder / "facts.json"
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None
