"""`railwright lint-fabric`: the lossless contract of an inventory, and switches and hosts against it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright import fabric
from railwright.fabric.links import Link
from railwright.node.model import Facts, InputError

from . import view
from .files import dump_json, read_json, write_text


def add_verbs(verbs: Any) -> None:
    """Register `lint-fabric`."""
    parser = verbs.add_parser(
        "lint-fabric",
        help="check the lossless contract of an inventory, and switch files against it; reaches no host",
        description="Check the contract `fabric` of an inventory: headroom, ECN before PFC, MTU. With switch files, "
        "say where each differs, what that does and the line that mends it.",
    )
    parser.add_argument("inventory", type=Path, help="inventory folder or file, or a file with the contract")
    parser.add_argument(
        "--switch-config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="config_db.json, NVUE YAML or JSON, EOS or NX-OS text; SWITCH=FILE where it does not name its switch",
    )
    parser.add_argument(
        "--host-state",
        type=Path,
        metavar="PATH",
        help="the output folder of playbooks/verify.yml, or JSON of hosts with what dcb -j and lldpcli say",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="keep fabric.json in a run's directory, for its report"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: Console) -> int:
    """Lint and print. 0 nothing is open, 1 something is."""
    found = fabric.read_inventory(arguments.inventory)
    states = fabric.read_files(found.contract, arguments.switch_config)
    hosts: tuple[fabric.HostPort, ...] = ()
    if arguments.host_state is not None:
        hosts = _hosts(found.contract, arguments.host_state)
    result = fabric.lint(found, states, hosts)
    data = fabric.document(result)
    if arguments.output is not None:
        write_text(arguments.output / "fabric.json", dump_json(data))
    if arguments.json:
        out.file.write(dump_json(data))
    else:
        _show(out, result)
    return 1 if result.open else 0


def _hosts(contract: fabric.Contract, path: Path) -> tuple[fabric.HostPort, ...]:
    if not path.is_dir():
        return fabric.read_hosts(read_json(path), str(path))
    return fabric.read_hosts(fabric.host_states(contract, _nodes(path)), str(path))


def _nodes(folder: Path) -> Iterator[tuple[str, Facts]]:
    """What a run kept of each node; the check's word on its ports comes before the facts that a plan was made of."""
    nodes = 0
    for node in sorted(folder.iterdir()):
        kept = next((path for path in (node / "ports.json", node / "facts.json") if path.is_file()), None)
        if kept is not None:
            nodes += 1
            yield node.name, Facts.read(read_json(kept), str(kept))
    if not nodes:
        raise InputError(str(folder), "holds no record of a node", "run playbooks/verify.yml first")


def _show(out: Console, result: fabric.Lint) -> None:
    contract = result.found.contract
    view.show_table(
        out,
        f"The contract in {result.found.where}",
        ("class", "DSCP", "priority", "lossless", "strict", "share"),
        [
            (
                name,
                " ".join(map(str, one.dscp)),
                one.prio,
                "yes" if one.lossless else "no",
                "yes" if one.strict else "no",
                f"{one.bandwidth_percent} %" if one.bandwidth_percent is not None else None,
            )
            for name, one in contract.classes.items()
        ],
    )
    view.show_table(
        out,
        "Headroom for each lossless class, bytes",
        ("switch", "ports", "speed", "cable", "bound (F1)", "table", "formula (F2)", "host buffer (F3)"),
        [(*key, *row) for key, row in _headroom(result.links)],
    )
    _show_sources(out, result.links)
    view.show_table(
        out,
        "ECN of the lossless classes",
        ("speed", "from", "to", "at most", "source"),
        [
            (
                f"{one['speed_gbps']}G",
                one["min_bytes"],
                one["max_bytes"],
                f"{one['probability_percent']} %",
                one["source"] + (f" [{one['confidence']}]" if one["confidence"] else ""),
            )
            for one in fabric.ecn_rows(contract)
        ],
    )
    view.show_findings(
        out, list(result.findings), "What was found" if result.findings else "Nothing was found"
    )


def _show_sources(out: Console, links: tuple[Link, ...]) -> None:
    numbers = [
        number
        for link in links
        for number in (link.bound, link.table, link.formula, link.host_buffer)
        if number is not None
    ]
    for formula, source, confidence in sorted({(one.formula, one.source, one.confidence) for one in numbers}):
        out.print(f"  {formula} [{confidence}] {source}", style="dim", soft_wrap=True)


def _headroom(links: tuple[Link, ...]) -> list[tuple[tuple[object, ...], tuple[object, ...]]]:
    """Links that are alike, in one row."""
    groups: dict[tuple[str, int, int], list[Link]] = {}
    for link in links:
        groups.setdefault((link.switch, link.speed_gbps, link.cable_m), []).append(link)
    rows: list[tuple[tuple[object, ...], tuple[object, ...]]] = []
    for (switch, speed, cable), group in groups.items():
        one = group[0]
        ports = group[0].port if len(group) == 1 else f"{group[0].port} and {len(group) - 1} more"
        table = f"{one.table.bytes} ({one.table_m} m)" if one.table is not None else None
        formula = one.formula.bytes if one.formula is not None else None
        rows.append(
            (
                (switch, ports, f"{speed}G", f"{cable} m"),
                (one.bound.bytes, table, formula, one.host_buffer.bytes),
            )
        )
    return rows
