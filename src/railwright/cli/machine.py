"""`railwright discover` and `railwright check`: this machine, or a directory that holds its /sys and /proc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.node.check import check
from railwright.node.discover import discover
from railwright.node.model import Plan, to_json

from . import view
from .files import dump_json, read_json


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
    plan = Plan.read(read_json(arguments.plan), str(arguments.plan))
    if plan.status == "refused":
        view.show_findings(out, plan.refusals, "Refused")
        return 3
    facts = discover(
        arguments.root, watch=plan.files(), units=plan.units(), tools=arguments.root == Path("/")
    )
    findings = check(plan, facts, {})
    if arguments.json:
        out.file.write(dump_json({"findings": to_json(findings)}))
    else:
        view.show_findings(out, findings, "Differences from the plan")
    return 1 if any(finding.severity != "info" for finding in findings) else 0
