"""The planner as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright import border, presets
from railwright.fleet import zipapp
from railwright.fleet.members import Asked
from railwright.fleet.neighbours import read_cables
from railwright.fleet.planning import plan_fleet
from railwright.fleet.record import Record
from railwright.fleet.told import told as fleet_told
from railwright.node.check import check, checks, is_open
from railwright.node.model import BootPolicy, Facts, Finding, InputError, Plan, Policy, from_json, to_json
from railwright.plan import explain, launch_text
from railwright.plan import plan as make_plan
from railwright.plan.slices import NCCL_CONF, SLICES
from railwright.report.visible import visible

Json = dict[str, Any]


def node_policy(policy: Json) -> Json:
    """The whole policy: with its presets' words, defaults for what is left out, and the digest of our boot program."""
    asked = Policy.read(presets.expanded(policy, "node_policy"), "node_policy")
    boot = asked.boot if asked.boot is not None else BootPolicy(zipapp.digest())
    return _json(dataclasses.replace(asked, boot=boot))


def fleet_plan(
    facts: Json,
    policies: Json,
    record: Json | None = None,
    cabling: str = "",
    neighbours: Json | None = None,
    left: Json | None = None,
    replan: list[str] | None = None,
) -> Json:
    """The plan of all nodes of a run together: each node's whole policy, what is odd, and the record to keep."""
    whole: dict[str, Policy] = {}
    asked = []
    for name, policy in policies.items():
        # Most nodes ask for the same.
        text = json.dumps(policy, sort_keys=True)
        if text not in whole:
            whole[text] = Policy.read(node_policy(policy), f"{name}: node_policy")
        if facts.get(name):
            asked.append(Asked(name, facts[name], whole[text], (left or {}).get(name) or None))
    plan = plan_fleet(
        asked,
        seen=[
            cable
            for name, text in (neighbours or {}).items()
            for cable in read_cables(text, f"neighbours of {name}", name)
        ],
        wanted=read_cables(cabling, "cabling") if cabling else (),
        record=Record.read(record) if record else None,
        replan=replan or (),
    )
    data = fleet_told(plan)
    for node in asked:
        if node.name in data["nodes"]:
            data["nodes"][node.name]["asked"] = _json(node.policy)
    return {**data, "record": plan.record.json()}


def node_plan(facts: Json, policy: Json) -> Json:
    """The plan of one node."""
    return _json(make_plan(Facts.read(facts), Policy.read(policy, "node_policy")))


def node_explain(plan: Json, device: str) -> str:
    """Why a GPU or NIC has its place, in lines for a person."""
    return "\n".join(map(visible, explain(Plan.read(plan), device).splitlines()))


def node_launch(plan: Json, form: str, host: str | None = None) -> str:
    """What a launcher wants: the ranks as a table, gres.conf lines, a rank file or a wrapper for torchrun."""
    return launch_text(Plan.read(plan), form, host)


def nccl_conf(plan: Json) -> str:
    """The text of /etc/nccl.conf; "" where the plan writes none."""
    for entry in node_slices(plan).get("nccl_conf", []):
        if entry["kind"] == "file" and entry["path"] == NCCL_CONF:
            return str(entry["content"])
    return ""


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


def node_check(plan: Json, facts: Json, policy: Json, fleet: list[Json] | None = None) -> Json:
    """What differs between plan and node, and each question with its answer; and how it differs from its fleet."""
    asked = (Plan.read(plan), Facts.read(facts), Policy.read(policy, "node_policy").accept)
    return {"findings": [*to_json(check(*asked)), *(fleet or [])], "checks": to_json(checks(*asked))}


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
    lines = [*map(_told, told), *(border.line(f"{row['name']}: {row['detail']}") for row in bad)]
    return "\n".join(["This node is not as it should be.", *lines]) if lines else ""


def node_changes(results: list[Json]) -> Json:
    """What the writer did, or would do, in all its calls; empty when it was not called."""
    slices = {name: part for result in results for name, part in result.get("slices", {}).items()}
    if not slices:
        return {}
    return {
        "changed": any(part["changed"] for part in slices.values()),
        "slices": slices,
        "failures": [failure for result in results for failure in result.get("failures", [])],
        # Each call names all that the node owes.
        "reboot_needed": list(
            dict.fromkeys(item for result in results for item in result.get("reboot_needed", []))
        ),
    }


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


def node_slices(plan: Json, policy: Json | None = None) -> dict[str, list[Json]]:
    """The items of all slices; with a policy, also the slices that the plan has no use for, without an item: what an
    earlier plan wrote for them goes back. A slice that the policy leaves alone is not among them."""
    planned = Plan.read(plan)
    if planned.status == "refused":
        raise InputError("plan", "was refused, so there is nothing to write", node_refusal(plan))
    slices = {name: to_json(part.entries) for name, part in planned.slices.items()}
    if policy is None:
        return slices
    manage = Policy.read(policy, "node_policy").manage
    return {**{name: [] for name in SLICES if manage.get(name, True)}, **slices}


def slice_entries(plan: Json, name: str) -> list[Json]:
    """The items of one slice; none when the policy leaves the slice alone."""
    return node_slices(plan).get(name, [])


def _told(finding: Finding) -> str:
    return border.line(f"{finding.code}: {finding.where}: {finding.why}. {finding.remedy}")


def _json(value: Any) -> Json:
    data: Json = to_json(value)
    return data


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return border.filters(FILTERS)


FILTERS = (
    nccl_conf,
    fleet_plan,
    node_blobs,
    node_changes,
    node_check,
    node_explain,
    node_launch,
    node_plan,
    node_policy,
    node_problems,
    node_refusal,
    node_slices,
    node_watch,
    slice_entries,
)
