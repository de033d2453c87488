"""`railwright inventory`: a rack sheet, a list of hosts or a NetBox export becomes an inventory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.fleet import addressing, inventory, rack_check
from railwright.node.model import Finding, to_json

from . import view
from .files import dump_json, read_text, write_text


def add_verbs(verbs: Any) -> None:
    """Register `inventory`."""
    parser = verbs.add_parser(
        "inventory",
        help="make an inventory with addresses per rail from a CSV rack sheet, a list of hosts or a NetBox export",
        description="Read a CSV rack sheet, lines of address and name, or what NetBox's API answers for devices (and"
        " interfaces); say what is wrong with it; write the inventory.",
        epilog="Exit status: 0 good, 1 warnings, 2 bad input or usage, 3 an inventory of it would be wrong.",
    )
    parser.add_argument("source", type=Path)
    parser.add_argument(
        "--role", action="append", default=[], help="only nodes of this role (may be repeated)"
    )
    parser.add_argument("--rails", type=int, default=8, help="rails of a node, for --network (default: 8)")
    parser.add_argument(
        "--network", metavar="NET", help="give each rail a subnet of it and each node an address there"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the inventory here (default: print it)"
    )
    parser.add_argument("--cabling", type=Path, metavar="FILE", help="write the table of the cables here")
    parser.add_argument("--json", action="store_true", help="print what is wrong as JSON instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: Console) -> int:
    """Convert. 0 good, 1 warnings, 3 wrong: nothing is written then."""
    machines = inventory.read_machines(read_text(arguments.source), str(arguments.source), arguments.role)
    if arguments.network is not None:
        machines = addressing.with_addresses(machines, arguments.network, arguments.rails)
    found = rack_check.problems(machines)
    wrong = any(finding.severity == "error" for finding in found)
    if arguments.json:
        out.file.write(dump_json({"ok": not wrong, "nodes": len(machines), "findings": to_json(found)}))
    elif arguments.output is not None or wrong:
        view.show_findings(out, found, f"{arguments.source}: {len(machines)} nodes")
    if wrong:
        return 3
    text = addressing.inventory_yaml(machines)
    if arguments.output is not None:
        write_text(arguments.output, text)
    elif not arguments.json:
        out.file.write(text)
    if arguments.cabling is not None:
        write_text(arguments.cabling, addressing.cabling_csv(machines))
    return 1 if any(map(_is_warning, found)) else 0


def _is_warning(finding: Finding) -> bool:
    return finding.severity == "warning"
