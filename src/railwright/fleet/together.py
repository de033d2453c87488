"""The nodes of one run of a playbook, planned together and each kept in its record. Needs ansible-core."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railwright import border, whole
from railwright.node.model import Facts, InputError, Policy, to_json
from railwright.plan import plan as make_plan

from . import kept, record_folder, steps
from .members import Asked
from .neighbours import read_cables
from .planning import FleetPlan, plan_fleet
from .record import Record
from .told import judged, told

Json = dict[str, Any]


@dataclass(frozen=True)
class Read:
    """One node as node_read left it: where its facts are kept, its policy, and why it is to be left alone."""

    facts: Json
    policy: Json
    left: str = ""

    @property
    def folder(self) -> Path:
        """The node's folder in the record."""
        return Path(self.facts["kept"]).parent


@dataclass(frozen=True)
class Files:
    """What is known of the fleet besides its nodes; a path of None or "" is not known. neighbours: paths by node."""

    record: str | None = None
    cabling: str = ""
    neighbours: Mapping[str, str] | None = None


def plan_run(nodes: Mapping[str, Read], files: Files, replan: Iterable[str] = ()) -> tuple[Json, FleetPlan]:
    """What each node is handed on, and the fleet. A node whose plan cannot be made says why in `refused`.

    Raises InputError for input that is no single node's.
    """
    fleet = plan_fleet(
        _asked(nodes),
        seen=[
            cable
            for name, path in (files.neighbours or {}).items()
            for cable in read_cables(_text(path), f"neighbours of {name}", name)
        ],
        wanted=read_cables(_text(files.cabling), "cabling") if files.cabling else (),
        record=_record(files.record),
        replan=replan,
    )
    plans = _Plans(fleet)
    handed = {}
    for name, read in nodes.items():
        try:
            handed[name] = _kept(name, read, fleet, plans)
        except InputError as error:
            handed[name] = {"refused": border.line(str(error))}
    return handed, fleet


def keep_fleet(output: Path, fleet: FleetPlan, record: str | None) -> None:
    """fleet.json below `output`, and the record that binds later plans, which None leaves alone. Raises OSError."""
    output.mkdir(parents=True, exist_ok=True)
    whole.replace({output / "fleet.json": kept.as_json(told(fleet))})
    if record is None:
        return
    path = Path(record).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = kept.as_json(fleet.record.json())
    if not path.exists() or path.read_bytes() != content:
        whole.replace({path: content})


def _asked(nodes: Mapping[str, Read]) -> Iterator[Asked]:
    """The nodes as the planner of fleets wants them, read one after the other."""
    policies: dict[str, Policy] = {}
    for name, read in nodes.items():
        facts: Any
        try:
            # Most nodes ask for the same.
            text = json.dumps(read.policy, sort_keys=True)
            if text not in policies:
                policies[text] = Policy.read(read.policy, f"{name}: node_policy")
            facts, policy = kept.read(read.facts), policies[text]
        except InputError as error:
            facts, policy = error, Policy()
        yield Asked(name, facts, policy, read.left or None)


class _Plans:
    """Plans of nodes, each made once for a form. Where a form's plan is not its first node's own, none is shared."""

    def __init__(self, fleet: FleetPlan) -> None:
        self._fleet = fleet
        self._texts: dict[tuple[str, str], str | None] = {}

    def of(self, name: str, read: Read) -> Json:
        """The plan of a node as JSON. Raises InputError."""
        policy, member = self._fleet.nodes[name].policy, self._fleet.members[name]
        key = (member.form, self._fleet.forms.policy_digest(policy))
        if key in self._texts:
            text = self._texts[key]
            return Json(json.loads(member.filled(text))) if text is not None else _own(read, policy)
        text = json.dumps(to_json(self._fleet.forms.plan(member.form, policy)))
        own = _own(read, policy)
        self._texts[key] = text if json.loads(member.filled(text)) == own else None
        return own


def _own(read: Read, policy: Policy) -> Json:
    return Json(to_json(make_plan(Facts.read(kept.read(read.facts)), policy)))


def _kept(name: str, read: Read, fleet: FleetPlan, plans: _Plans) -> Json:
    """Keep what was decided for a node, and give what is handed on."""
    node = fleet.nodes.get(name)
    if node is None:
        # Of no use to the fleet: planned alone, which says what is wrong with it.
        policy, odd = Policy.read(read.policy, "node_policy"), []
        plan = _own(read, policy)
    else:
        policy, odd = node.policy, [to_json(judged(finding, node)) for finding in node.findings]
        plan = plans.of(name, read)
    values = {"plan": plan, "policy": to_json(policy)}
    if read.left:
        values["findings"] = {"findings": odd, "checks": [_left(read.left)]}
    there = record_folder.keep(read.folder, values)
    return {
        "plan": there["plan"],
        "policy": there["policy"],
        "odd": odd,
        "refused": steps.node_refusal(plan),
    }


def _left(why: str) -> Json:
    """A skipped check: it never counts as a passed one."""
    return {"name": "fleet.left", "ok": False, "skipped": True, "detail": f"left alone: {why}"}


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"cannot be read: {error}", "give a text file of this controller") from error


def _record(path: str | None) -> Record | None:
    if path is None or not Path(path).is_file():
        return None
    text = _text(path)
    try:
        return Record.read(json.loads(text), path) if text.strip() else None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(path, f"is not JSON: {error}", "restore it from version control") from error
