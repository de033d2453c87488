"""`railwright plan`: any witness of a machine in, its plan out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright import captures
from railwright.node.model import to_json
from railwright.plan import LAUNCH_FORMS, explain, launch_text, plan
from railwright.report import node_svg
from railwright.report.visible import visible

from . import view
from .files import dump_json, read_policy, write_text


def add_verbs(verbs: Any) -> None:
    """Register `plan`."""
    parser = verbs.add_parser(
        "plan",
        help="plan a machine from a capture: a topology file, a pasted matrix, facts or a /sys tree",
        description="Plan one machine from what is at hand and print the plan with its proof.",
    )
    parser.add_argument(
        "capture",
        nargs="+",
        type=Path,
        help="a file of the machine, a directory with its /sys and /proc, or - for stdin",
    )
    parser.add_argument(
        "--format", default="auto", choices=captures.FORMATS, help="default: found out from the content"
    )
    parser.add_argument("--policy", type=Path, help="YAML or JSON: what the node is meant to be")
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print the plan as JSON")
    printed.add_argument(
        "--explain",
        metavar="DEVICE",
        help="tell why this GPU or NIC has its place; or `workload`: all that it asks for, a line each",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the node")
    printed.add_argument(
        "--launch",
        choices=LAUNCH_FORMS,
        help="print what a launcher wants: a table of ranks, Slurm's gres.conf lines, Open MPI's rank file, or a "
        "wrapper for torchrun",
    )
    parser.add_argument(
        "--host", help="the node's name for gres.conf and the rank file; default: as the capture has it"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: Console) -> int:
    """Plan and print. 0 planned, 3 refused."""
    policy = read_policy(arguments.policy)
    facts = captures.read(arguments.capture, arguments.format)
    result = plan(facts, policy)
    if arguments.svg is not None:
        write_text(arguments.svg, node_svg(result, facts))
    if arguments.launch is not None and result.status == "planned":
        host = arguments.host or facts.host.name
        out.file.write(launch_text(result, arguments.launch, host))
    elif arguments.json:
        out.file.write(dump_json(to_json(result)))
    elif arguments.explain is not None:
        out.print(visible(explain(result, arguments.explain)), soft_wrap=True)
    else:
        view.show_plan(out, result, facts)
    return 0 if result.status == "planned" else 3
