"""Nodes with containers, policies that ask for a runtime, and what the slice makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from railwright.node.model import Containers, Facts, Finding, Policy, Slice
from railwright.plan import container_runtime
from tests.unit.stack_support import H100, machine

TOOLKIT = "1.18.1-1"
DAEMON = "/etc/docker/daemon.json"


def facts(**changes: Any) -> Facts:
    return replace(machine(H100), containers=Containers(**changes))


def asked(**more: Any) -> Policy:
    return Policy.read({"container_runtime": {"runtime": "docker", **more}})


def planned(node: Facts, policy: Policy, rails: int | None = None) -> Slice:
    made, findings = container_runtime.slice_of(node, policy, rails)
    assert made is not None, findings
    return made


def refusal(node: Facts, policy: Policy) -> Finding:
    made, findings = container_runtime.slice_of(node, policy)
    assert made is None
    return next(found for found in findings if found.severity == "error")


def codes(node: Facts, policy: Policy) -> list[str]:
    return [finding.code for finding in container_runtime.slice_of(node, policy)[1]]


def entry(made: Slice, kind: str, path: str | None = None) -> dict[str, Any]:
    (found,) = (row for row in made.entries if row["kind"] == kind and path in (None, row.get("path")))
    return found


def paths(made: Slice) -> set[str]:
    return {row["path"] for row in made.entries if "path" in row}
