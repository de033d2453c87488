"""`railwright audit libraries`: which NCCL, CUDA runtime and libibverbs the runtimes of this machine really load."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.node.discover.tree import Tree
from railwright.node.libraries import LIBRARIES, PLACES, Audit, audit, meant
from railwright.node.model import InputError, Plan, to_json

from . import view
from .files import dump_json, read_json


def add_verbs(verbs: Any) -> None:
    """Register `audit`."""
    parser = verbs.add_parser(
        "audit",
        help="which copy of NCCL and its like each runtime and process loads",
        description="Look through this machine, or a directory that holds another's files; run and change nothing.",
        epilog="Exit status: 0 all load what is meant, 1 findings, 2 bad input or usage.",
    )
    parser.add_argument("what", choices=["libraries"], help="NCCL, CUDA runtime and libibverbs")
    parser.add_argument(
        "places", nargs="*", metavar="DIR", help=f"where to look (default: {', '.join(PLACES)})"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="a directory that holds another machine's tree"
    )
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="LIBRARY=VERSION",
        help="what is meant, as libnccl=2.28; for several libraries again",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="what is meant is what this plan installs; --expect goes over it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_audit)


def run_audit(arguments: argparse.Namespace, out: Console) -> int:
    """Look and print. 0 nothing found, 1 findings."""
    if not arguments.root.is_dir():
        raise InputError(str(arguments.root), "is no directory", "expected the root of a machine's files")
    tree = Tree(arguments.root)
    for place in arguments.places:
        # Nothing is found in a folder that is not there, which would read as a good answer.
        if "\0" in place or not tree.is_folder(place.strip("/")):
            raise InputError(
                place, "is no directory of this machine", "name one from its root, as opt or srv"
            )
    places = [place.strip("/") for place in arguments.places] or PLACES
    expect = dict(
        () if arguments.plan is None else meant(Plan.read(read_json(arguments.plan), str(arguments.plan)))
    )
    expect.update(_expected(text) for text in arguments.expect)
    found = audit(tree, expect=list(expect.items()), places=places)
    if arguments.json:
        out.file.write(dump_json(to_json(found)))
    else:
        _show(out, found)
    return 1 if any(finding.severity != "info" for finding in found.findings) else 0


def _expected(text: str) -> tuple[str, str]:
    library, mark, version = text.partition("=")
    if not mark or library not in LIBRARIES or not re.fullmatch(r"[0-9]+(?:\.[0-9]+)*", version):
        raise InputError(
            "--expect",
            f"found {text!r}",
            f"expected one of {', '.join(LIBRARIES)}, '=' and a version like 2.28.3",
        )
    return library, version


def _show(out: Console, found: Audit) -> None:
    for copy in found.copies:
        bare = "  (opened by name alone)" if copy in found.bare else ""
        view.say(out, f"{copy}{bare}")
    if not found.copies:
        view.say(out, f"No copy of {', '.join(LIBRARIES)} was found.")
    for runtime in found.runtimes:
        view.say(out, f"{runtime.where} loads")
        for copy, because in runtime.loads:
            view.say(out, f"{copy} ({because})", indent=4)
    for process in found.processes:
        view.say(out, f"{process.where} has {', '.join(map(str, process.copies)) or 'a copy that is gone'}")
    view.show_findings(out, found.findings, "Findings")
