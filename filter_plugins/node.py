"""The planner as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleTemplatePluginError

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright.fleet import zipapp
from railwright.node.check import check, checks, is_open
from railwright.node.model import BootPolicy, Facts, Finding, InputError, Plan, Policy, from_json, to_json
from railwright.plan import plan as make_plan
from railwright.report.visible import visible

Json = dict[str, Any]


def _border(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ansible's lazy, tagged containers in, plain ones out; bad input is told with the place it came from."""

    @functools.wraps(function)
    def border(*values: Any, **options: Any) -> Any:
        # JSON there and back renders what is lazy and drops the tags.
        values_, options_ = json.loads(json.dumps([values, options]))
        try:
            return function(*values_, **options_)
        except InputError as error:
            raise AnsibleTemplatePluginError(str(error), obj=values[0]) from error

    return border


def node_policy(policy: Json) -> Json:
    """The whole policy: defaults for what is left out, and the digest of this checkout's boot program."""
    asked = Policy.read(policy, "node_policy")
    boot = asked.boot if asked.boot is not None else BootPolicy(zipapp.digest())
    return _json(dataclasses.replace(asked, boot=boot))


def node_plan(facts: Json, policy: Json) -> Json:
    """The plan of one node."""
    return _json(make_plan(Facts.read(facts), Policy.read(policy, "node_policy")))


def node_refusal(plan: Json) -> str:
    """Why the node cannot be planned, in full; "" for a plan that stands."""
    planned = Plan.read(plan)
    if planned.status != "refused":
        return ""
    return "\n".join(
        ["This node cannot be planned, and nothing is written on it.", *map(_told, planned.refusals)]
    )


def node_watch(plan: Json) -> Json:
    """What a check of this plan has to look at: files and systemd units."""
    planned = Plan.read(plan)
    return {"files": list(planned.files()), "units": list(planned.units())}


def node_check(plan: Json, facts: Json, policy: Json) -> Json:
    """What differs between plan and node, and each question with its answer."""
    asked = (Plan.read(plan), Facts.read(facts), Policy.read(policy, "node_policy").accept)
    return {"findings": to_json(check(*asked)), "checks": to_json(checks(*asked))}


def node_problems(found: Json, plan: Json) -> str:
    """Why the node cannot be called good, in full; "" for a good one.

    Errors of the plan that nobody accepted, what differs on the node, and questions with a bad answer.
    """
    errors = [finding for finding in Plan.read(plan).findings if finding.severity == "error"]
    drift = [from_json(Finding, finding, "findings") for finding in found["findings"]]
    told = dict.fromkeys(finding for finding in (*errors, *drift) if is_open(finding))
    codes = {finding.code for finding in told}
    bad = [
        row for row in found["checks"] if not row["ok"] and not row["skipped"] and row["name"] not in codes
    ]
    lines = [*map(_told, told), *(_line(f"{row['name']}: {row['detail']}") for row in bad)]
    return "\n".join(["This node is not as it should be.", *lines]) if lines else ""


def node_changes(results: list[Json]) -> Json:
    """What the writer did, or would do, in all its calls; empty when it was not called."""
    slices = {name: part for result in results for name, part in result.get("slices", {}).items()}
    return {"changed": any(part["changed"] for part in slices.values()), "slices": slices} if slices else {}


def node_blobs(plan: Json) -> dict[str, str]:
    """The programs that the plan asks for, by SHA-256, in base64."""
    wanted = {
        entry["sha256"]
        for part in Plan.read(plan).slices.values()
        for entry in part.entries
        if "sha256" in entry
    }
    if not wanted:
        return {}
    for sha256 in sorted(wanted - {zipapp.digest()}):
        raise InputError(
            "plan.slices",
            f"the plan asks for the program {sha256}, and this checkout builds {zipapp.digest()}",
            "plan again with this checkout, or leave node_policy.boot out",
        )
    return {zipapp.digest(): zipapp.blob()}


def node_slices(plan: Json) -> dict[str, list[Json]]:
    """The items of all slices."""
    planned = Plan.read(plan)
    if planned.status == "refused":
        raise InputError("plan", "was refused, so there is nothing to write", node_refusal(plan))
    return {name: to_json(part.entries) for name, part in planned.slices.items()}


def slice_entries(plan: Json, name: str) -> list[Json]:
    """The items of one slice; none when the policy leaves the slice alone."""
    return node_slices(plan).get(name, [])


def _told(finding: Finding) -> str:
    return _line(f"{finding.code}: {finding.where}: {finding.why}. {finding.remedy}")


def _line(text: str) -> str:
    """One line that can go to a terminal, whatever a node has put into it."""
    return visible(" ".join(text.split()))


def _json(value: Any) -> Json:
    data: Json = to_json(value)
    return data


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {function.__name__: _border(function) for function in FILTERS}


FILTERS = (
    node_blobs,
    node_changes,
    node_check,
    node_plan,
    node_policy,
    node_problems,
    node_refusal,
    node_slices,
    node_watch,
    slice_entries,
)
