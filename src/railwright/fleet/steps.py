"""What the steps of a playbook come to, as functions of JSON: filters and actions share them."""

from __future__ import annotations

import dataclasses
from typing import Any

from railwright import border, fabric, presets
from railwright.node.check import check, checks, is_open
from railwright.node.model import BootPolicy, Facts, Finding, InputError, Plan, Policy, from_json, to_json
from railwright.plan import explain, launch_text
from railwright.plan import plan as make_plan
from railwright.plan.slices import INSTALL_SLICES, NCCL_CONF, SLICES
from railwright.report.visible import visible

from . import zipapp

Json = dict[str, Any]


def node_policy(policy: Json) -> Json:
    """The whole policy: with its presets' words, defaults for what is left out, and the digest of our boot program."""
    asked = Policy.read(presets.expanded(policy, "node_policy"), "node_policy")
    boot = asked.boot if asked.boot is not None else BootPolicy()
    boot = boot if boot.sha256 else dataclasses.replace(boot, sha256=zipapp.digest())
    return _json(dataclasses.replace(asked, boot=boot))


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
    """What a check of this plan has to look at: files, systemd units and packages."""
    planned = Plan.read(plan)
    return {
        "files": list(planned.files()),
        "units": list(planned.units()),
        "packages": list(planned.packages()),
    }


def compared(
    plan: Plan, facts: Facts, policy: Policy, fleet: list[Json] | None = None, earlier: Json | None = None
) -> Json:
    """What differs between plan and node, and each question with its answer; and how it differs from its fleet.

    earlier: the facts that the plan was made from, for counters that only count.
    """
    before = None if earlier is None else Facts.read(_counted(earlier), "the facts before")
    asked = (plan, facts, policy.accept, before)
    return {"findings": [*to_json(check(*asked)), *(fleet or [])], "checks": to_json(checks(*asked))}


def _counted(facts: Json) -> Json:
    """What is compared of facts that were read before: to read all of them again takes long in a large fleet."""
    boot_id = (facts.get("host") or {}).get("boot_id")
    return {
        "schema": facts.get("schema"),
        "witnesses": [],
        "host": {"boot_id": boot_id},
        "pcie_errors": facts.get("pcie_errors", []),
    }


def ports_of(facts: Facts) -> Json:
    """The part of a node's facts that a lint of the fabric reads: its ports, with what tools say of them."""
    ports = _json(fabric.ports_only(facts))
    return {key: ports[key] for key in ("schema", "witnesses", "nics", "tools")}


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


def node_changes_since(changes: Json, before: Json) -> Json:
    """What was written by this step and by those before it in one run. before: their changes, {} for none.

    What waits for a reboot is what the last one says. A slice that an earlier step changed was changed.
    """
    if not before or not changes:
        return changes or before
    first: Json = before["slices"]
    slices: Json = {
        name: part if part["changed"] or not first.get(name, part)["changed"] else first[name]
        for name, part in changes["slices"].items()
    }
    return {
        "changed": before["changed"] or changes["changed"],
        "slices": {**first, **slices},
        "failures": [
            *before["failures"],
            *(row for row in changes["failures"] if row not in before["failures"]),
        ],
        "reboot_needed": changes["reboot_needed"],
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


def blobs_to_send(plan: Json, facts: Json) -> dict[str, str]:
    """Of `node_blobs` those that the node does not have as planned: a program is a megabyte for each node."""
    there = {
        (file["path"], file["sha256"], file["mode"], file["uid"], file["gid"]) for file in facts["files"]
    }
    owed = {
        entry["sha256"]
        for part in Plan.read(plan).slices.values()
        for entry in part.entries
        if "sha256" in entry and (entry["path"], entry["sha256"], entry["mode"], 0, 0) not in there
    }
    return {sha256: text for sha256, text in node_blobs(plan).items() if sha256 in owed}


def node_slices(plan: Json, policy: Json | None = None) -> dict[str, list[Json]]:
    """The items of all slices. With a policy, those that tuning writes, also the ones that the plan has no use for,
    without an item: what an earlier plan wrote for them goes back. One that the policy leaves alone is not among them,
    nor are those that an installation writes."""
    planned = Plan.read(plan)
    if planned.status == "refused":
        raise InputError("plan", "was refused, so there is nothing to write", node_refusal(plan))
    slices = {name: to_json(part.entries) for name, part in planned.slices.items()}
    if policy is None:
        return slices
    manage = Policy.read(policy, "node_policy").manage
    tuned: dict[str, list[Json]] = {name: [] for name in SLICES if manage.get(name, True)}
    return {name: part for name, part in {**tuned, **slices}.items() if name not in INSTALL_SLICES}


def slice_entries(plan: Json, name: str) -> list[Json]:
    """The items of one slice; none when the policy leaves the slice alone."""
    return node_slices(plan).get(name, [])


def _told(finding: Finding) -> str:
    return border.line(f"{finding.code}: {finding.where}: {finding.why}. {finding.remedy}")


def _json(value: Any) -> Json:
    data: Json = to_json(value)
    return data
