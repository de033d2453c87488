"""`report.json`: the run as data that other programs read.

{"schema": "railwright.report/1", "ok", "verdict": one sentence, "checks": [{"name", "ok", "detail", "skipped"}],
 "nodes": {name: {"status": "planned" | "refused" | "no result", "ok", "summary": one sentence,
   "reasons": what of its files is missing or unusable,
   "gpus": as in the plan, "rails": [{"rail", "nic", "pci", "more"}],
   "achieved_gbytes", "credible_gbytes": GB/s (10^9 bytes) or null, "certificate": as in the plan or null,
   "findings": of plan and check, "checks": of the node, "changed": null when the node was not tuned in this run,
   "failures": [{"where", "why", "remedy"}] of items that could not be set, "reboot_needed": items that the next boot
   puts in force, both null when the node was not tuned, "slices": {name: {"stage", "because", "changed", "items"}}}},
 "rails": {rail: {node: {"nic", "pci", "more": further ports, "odd", "renamed"}}}, "totals": counts,
 "fabric": {"ok", "reason", "open", "seen"}, absent when nobody linted the lossless contract}

`ok` is true exactly when every check of the report is ok or skipped; a skipped check has ok false.
"""

from __future__ import annotations

from typing import Any

from railwright.node.model import Plan, to_json

from .collect import SEVERITIES, Check, Node
from .fabric import FabricView, check, summary
from .numbers import count
from .rails import Stop, kind_of, rail_table
from .verdict import NO_RESULT, PLANNED, REFUSED, Verdict, failed, judge, overall, skipped

SCHEMA = "railwright.report/1"


def document(
    nodes: tuple[Node, ...], generated: str | None = None, fabric: FabricView | None = None
) -> dict[str, Any]:
    """The report as plain JSON data. The same files give the same bytes; `generated` is what the caller says."""
    verdicts = {node.name: judge(node) for node in nodes}
    table = rails_over_nodes(nodes, verdicts)
    checks = [Check("nodes", bool(nodes), count(len(nodes), "node") + " in this run", False)]
    checks += [
        Check(f"{node.name}: {check.name}", check.ok, check.detail, check.skipped)
        for node in nodes
        for check in (*verdicts[node.name].checks, *own_checks(node))
    ]
    checks += check(fabric)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": all(check.ok or check.skipped for check in checks),
        "verdict": overall(verdicts),
        "checks": to_json(checks),
        "nodes": {node.name: _node(node, verdicts[node.name]) for node in nodes},
        "rails": {
            str(rail): {name: _stop(stop) for name, stop in row.items()} for rail, row in table.items()
        },
        "totals": _totals(nodes, verdicts, table),
    }
    if fabric is not None:
        data["fabric"] = summary(fabric)
    if generated is not None:
        data["generated"] = generated
    return data


def own_checks(node: Node) -> tuple[Check, ...]:
    """The checks that the node's files bring."""
    return node.checked.checks if node.checked is not None else ()


def planned(nodes: tuple[Node, ...], verdicts: dict[str, Verdict]) -> dict[str, Plan]:
    """Plans of the nodes that have one to stand by."""
    return {
        node.name: node.plan
        for node in nodes
        if node.plan is not None and verdicts[node.name].status != REFUSED
    }


def rails_over_nodes(nodes: tuple[Node, ...], verdicts: dict[str, Verdict]) -> dict[int, dict[str, Stop]]:
    """Rail to node to stop; machines of one kind stand together."""
    facts = {node.name: node.facts for node in nodes}
    plans = planned(nodes, verdicts)
    kinds = {name: kind_of(facts[name]) for name in plans}
    order = list(dict.fromkeys(kinds.values()))
    names = sorted(plans, key=lambda name: order.index(kinds[name]))
    return rail_table({name: plans[name] for name in names}, kinds)


def _node(node: Node, verdict: Verdict) -> dict[str, Any]:
    plan = node.plan
    bound = plan.bound if plan is not None else None
    return {
        "status": verdict.status,
        "ok": verdict.ok,
        "summary": verdict.summary,
        "reasons": list(node.reasons),
        "gpus": to_json(plan.gpus) if plan is not None else [],
        "rails": _rails(plan) if plan is not None else [],
        "achieved_gbytes": bound.achieved_gbytes if bound is not None else None,
        "credible_gbytes": bound.credible_gbytes if bound is not None else None,
        "certificate": to_json(bound.certificate) if bound is not None else None,
        "findings": to_json(verdict.findings),
        "checks": to_json(own_checks(node)),
        "changed": node.changes.changed if node.changes is not None else None,
        "failures": to_json(node.changes.failures) if node.changes is not None else None,
        "reboot_needed": list(node.changes.reboot_needed) if node.changes is not None else None,
        "slices": _slices(node),
    }


def _rails(plan: Plan) -> list[dict[str, Any]]:
    row = rail_table({"": plan}, {"": ""})
    return [
        {"rail": rail, "nic": stops[""].nic, "pci": stops[""].pci, "more": list(stops[""].more)}
        for rail, stops in row.items()
    ]


def _slices(node: Node) -> dict[str, Any]:
    """What each slice is for and what became of it; changed and items are null where nothing was written."""
    planned_slices = node.plan.slices if node.plan is not None else {}
    written = node.changes.slices if node.changes is not None else {}
    return {
        name: {
            "stage": planned_slices[name].stage if name in planned_slices else None,
            "because": planned_slices[name].because if name in planned_slices else None,
            "changed": written[name].changed if name in written else None,
            "items": to_json(written[name].items) if name in written else None,
        }
        for name in sorted({*planned_slices, *written})
    }


def _stop(stop: Stop) -> dict[str, Any]:
    return {
        "nic": stop.nic,
        "pci": stop.pci,
        "more": list(stop.more),
        "odd": stop.odd,
        "renamed": stop.renamed,
    }


def _totals(
    nodes: tuple[Node, ...], verdicts: dict[str, Verdict], table: dict[int, dict[str, Stop]]
) -> dict[str, Any]:
    findings = [finding for verdict in verdicts.values() for finding in verdict.findings]
    checks = [check for node in nodes for check in own_checks(node)]
    is_open = [finding for finding in findings if finding.accepted is None]
    bad, unseen = len(failed(checks)), len(skipped(checks))
    return {
        "nodes": len(nodes),
        "good": sum(verdict.ok for verdict in verdicts.values()),
        PLANNED: sum(verdict.status == PLANNED for verdict in verdicts.values()),
        REFUSED: sum(verdict.status == REFUSED for verdict in verdicts.values()),
        NO_RESULT.replace(" ", "_"): sum(verdict.status == NO_RESULT for verdict in verdicts.values()),
        "gpus": sum(
            len(node.plan.gpus) for node in nodes if node.plan is not None and node.plan.status == PLANNED
        ),
        "rails": len(table),
        "odd_stops": sum(stop.odd for row in table.values() for stop in row.values()),
        "renamed_stops": sum(stop.renamed for row in table.values() for stop in row.values()),
        "changed": sum(node.changes is not None and node.changes.changed for node in nodes),
        "owing_a_reboot": sum(
            node.changes is not None and bool(node.changes.reboot_needed) for node in nodes
        ),
        "findings": {
            **{severity: sum(finding.severity == severity for finding in is_open) for severity in SEVERITIES},
            "accepted": len(findings) - len(is_open),
        },
        "checks": {"passed": len(checks) - bad - unseen, "failed": bad, "skipped": unseen},
    }
