"""`railwright report`: the page of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright import report
from railwright.node.model import InputError

from .files import read_json


def add_verbs(verbs: Any) -> None:
    """Register `report`."""
    parser = verbs.add_parser(
        "report",
        help="write report.json and index.html for a run's directory",
        description="Write report.json and index.html from <dir>/<node>/{facts,policy,plan,findings,changes}.json.",
    )
    parser.add_argument("directory", type=Path)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: Console) -> int:
    """Write the page. 0 everything good, 1 something is not."""
    if not arguments.directory.is_dir():
        raise InputError(
            str(arguments.directory), "is no directory", "expected the output directory of a run"
        )
    page = report.write(arguments.directory)
    verdict = read_json(page.parent / "report.json")
    out.print(f"{page}: {'ok' if verdict['ok'] else 'not ok'}", soft_wrap=True)
    return 0 if verdict["ok"] else 1
