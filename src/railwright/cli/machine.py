"""`railwright discover` and `railwright check`: this machine, or a directory that holds its /sys and /proc."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.node.check import check, is_open
from railwright.node.discover import discover
from railwright.node.model import Finding, Plan, to_json

from . import view
from .files import dump_json, read_json, read_policy


def add_verbs(verbs: Any) -> None:
    """Register `discover` and `check`."""
    parser = verbs.add_parser(
        "discover", help="read this machine's facts", description="Read this machine; change nothing."
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="a directory that holds another machine's tree"
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.set_defaults(run=run_discover)

    parser = verbs.add_parser(
        "check",
        help="compare this machine with its plan",
        description="Compare this machine with its plan; change nothing.",
    )
    parser.add_argument("plan", type=Path, help="plan.json")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="a directory that holds another machine's tree"
    )
    parser.add_argument("--policy", type=Path, help="YAML or JSON: which findings are accepted")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run_check)


def run_discover(arguments: argparse.Namespace, out: Console) -> int:
    """Read and print facts."""
    facts = discover(arguments.root, tools=arguments.root == Path("/"))
    if arguments.json:
        out.file.write(dump_json(to_json(facts)))
    else:
        view.show_facts(out, facts)
    return 0


def run_check(arguments: argparse.Namespace, out: Console) -> int:
    """Compare and print. 0 as planned, 1 it differs, 3 the plan was refused."""
    accept = read_policy(arguments.policy).accept
    plan = Plan.read(read_json(arguments.plan), str(arguments.plan))
    if plan.status == "refused":
        _tell(arguments, out, plan.refusals, "Refused")
        return 3
    facts = discover(
        arguments.root,
        watch=plan.files(),
        units=plan.units(),
        sysctls=_sysctls(plan),
        tools=arguments.root == Path("/"),
    )
    findings = check(plan, facts, accept)
    _tell(arguments, out, findings, "Differences from the plan")
    return 1 if any(map(is_open, findings)) else 0


def _sysctls(plan: Plan) -> tuple[str, ...]:
    """What the plan sets: a name that is not among the usual ones is read only when it is asked for."""
    entries = (entry for part in plan.slices.values() for entry in part.entries)
    return tuple(entry["name"] for entry in entries if entry.get("kind") == "sysctl" and "name" in entry)


def _tell(arguments: argparse.Namespace, out: Console, findings: Sequence[Finding], title: str) -> None:
    if arguments.json:
        out.file.write(dump_json({"findings": to_json(findings)}))
        return
    view.show_findings(out, findings, title)
    if not any(map(is_open, findings)):
        out.print("Good: whatever was looked at is as planned.")
