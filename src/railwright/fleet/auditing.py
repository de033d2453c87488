"""Audits of a fleet's libraries: what a node's plan means, and what is told of the node's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railwright.node.libraries import Audit, meant
from railwright.node.model import Plan, from_json
from railwright.report.visible import visible

from . import kept

Json = dict[str, Any]
_MOST_TOLD = 40


def meant_of(plan: Any) -> dict[str, str]:
    """Version by library, of a plan or of where one is kept. Raises InputError."""
    return dict(meant(Plan.read(kept.read(plan))))


def read(answer: Any) -> Audit:
    """Raises InputError for what is no audit."""
    return from_json(Audit, answer, "libraries")


def page(found: Audit, expect: Mapping[str, str]) -> str:
    """What a person is told."""
    wanted = ", ".join(f"{name} {version}" for name, version in expect.items())
    lines = [f"meant: {wanted or 'nothing, the plan installs none of them'}"]
    lines += [f"{copy}{' (opened by name alone)' if copy in found.bare else ''}" for copy in found.copies]
    for runtime in found.runtimes:
        lines += [f"{runtime.where} loads {copy} ({because})" for copy, because in runtime.loads]
    lines += [
        f"{process.where} has {', '.join(map(str, process.copies)) or 'a copy that is gone'}"
        for process in found.processes
    ]
    lines += [
        f"{finding.severity}: {finding.where}: {finding.why}; {finding.remedy}" for finding in found.findings
    ]
    more = len(lines) - _MOST_TOLD
    return "\n".join([*map(visible, lines[:_MOST_TOLD]), *([f"and {more} more"] if more > 0 else [])])


def wrong(found: Audit) -> str:
    """The errors, one a line; "" where there is none."""
    errors = [finding for finding in found.findings if finding.severity == "error"]
    return "\n".join(visible(f"{finding.where}: {finding.why}; {finding.remedy}") for finding in errors)
