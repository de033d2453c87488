"""A fleet's plan as JSON: what the filter gives, the report reads and `railwright fleet plan --json` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from railwright.node.model import Finding, to_json

from .planning import FleetPlan, Planned
from .rails import rail_ports

SCHEMA = "railwright.fleet-plan/1"
Json = dict[str, Any]


def told(plan: FleetPlan, *, policies: bool = True) -> Json:
    """The fleet: shapes, leaves, nodes with their rails and cables, and what is odd. policies: each node's, whole."""
    return {
        "schema": SCHEMA,
        "shapes": [{"key": shape.key, "name": shape.name, "nodes": shape.nodes} for shape in plan.shapes],
        "leaves": dict(sorted(plan.leaves.items())),
        "findings": to_json(plan.findings),
        "nodes": {name: _node(plan, node, policies) for name, node in plan.nodes.items()},
    }


def _node(plan: FleetPlan, node: Planned, policies: bool) -> Json:
    facts = plan.forms.forms[plan.members[node.name].form].facts
    rails = {}
    for rail, nic in sorted(rail_ports(facts, node.part).items()):
        end = plan.wiring.ends.get((node.name, nic.address or "")) or plan.wiring.rails.get((node.name, rail))
        rails[str(rail)] = {
            "nic": nic.name,
            "pci": nic.address,
            "leaf": None if end is None else end.leaf,
            "port": None if end is None else end.port,
        }
    data: Json = {
        "shape": node.shape,
        "status": node.status,
        "state": node.state,
        "left": node.left,
        "plan_sha256": node.plan_sha256,
        "rails": rails,
        "findings": [to_json(judged(finding, node)) for finding in node.findings],
    }
    if policies:
        data["policy"] = to_json(node.policy)
    return data


def judged(finding: Finding, node: Planned) -> Finding:
    """The finding, with the reason of the policy where it is accepted."""
    return replace(finding, accepted=node.policy.accept.get(finding.code))
