"""`railwright collect`: the script for a machine that nobody may reach, or the same for this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.collect import command, script
from railwright.node.model import InputError


def add_verbs(verbs: Any) -> None:
    """Register `collect`."""
    parser = verbs.add_parser(
        "collect",
        help="print a script that writes a machine's facts, redacted, into one file; --run does so here",
        description="Print the collector, one script without dependencies: `railwright collect > collect.sh`."
        " With --run, do here what the script would do.",
        epilog="`railwright plan FILE` plans from the bundle. Exit status: 0 good, 2 bad input or usage.",
    )
    parser.add_argument(
        "--run", action="store_true", dest="here", help="collect here instead of printing the script"
    )
    command.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: Console) -> int:
    """Print the script, or run."""
    if arguments.here:
        command.run(arguments, out.file.write)
        return 0
    given = {"--output": arguments.output, "--dry-run": arguments.dry_run, "--key-file": arguments.key_file}
    alone = [name for name, value in given.items() if value] + ["--root"] * (arguments.root != Path("/"))
    if alone:
        raise InputError(
            alone[0], "is for a run", "add --run, or print the script: railwright collect > collect.sh"
        )
    out.file.write(script.build())
    return 0
