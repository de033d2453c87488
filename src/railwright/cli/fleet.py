"""`railwright fleet`: one plan for all nodes of a run, its launch files, and what growth would change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.fleet.launch import Host, launch_files
from railwright.fleet.members import Asked
from railwright.fleet.neighbours import Cable, read_cables
from railwright.fleet.planning import FleetPlan, Planned, plan_fleet
from railwright.fleet.record import Record, plan_changes
from railwright.fleet.told import judged, told
from railwright.node.check import is_open
from railwright.node.model import Finding, InputError, Plan, Policy, to_json

from . import view
from .files import dump_json, read_json, read_policy, read_text, write_text

_SHOWN = 40


def add_verbs(verbs: Any) -> None:
    """Register `fleet plan` and `fleet launch`."""
    parser = verbs.add_parser(
        "fleet",
        help="one plan for many nodes: equal rails, odd nodes, cables, growth, launch files",
        description="One plan for many nodes, from the folder in which a run has kept what it read of each.",
    )
    parts = parser.add_subparsers(required=True, metavar="PART")
    plan = parts.add_parser(
        "plan",
        help="plan all nodes of a folder together and say what is odd and what would change",
        description="Plan all nodes of DIR/<node>/facts.json together. Without --write nothing is written: what would"
        " change on which node is listed.",
        epilog="Exit status: 0 good, 1 something is odd, 2 bad input or usage, 3 every node is refused.",
    )
    _common(plan)
    plan.add_argument(
        "--replan",
        action="append",
        default=[],
        metavar="NODE",
        help="let go of the rails that the record has for it",
    )
    plan.add_argument(
        "--write",
        action="store_true",
        help="write the record, DIR/fleet.json and each node's policy.json and plan.json",
    )
    plan.add_argument("--json", action="store_true", help="print the fleet's plan as JSON")
    plan.set_defaults(run=run_plan)

    launch = parts.add_parser(
        "launch",
        help="write hostfile, rank file, gres.conf, topology.conf and notes for all nodes",
        description="Write the launchers' files for all nodes of DIR that can be planned.",
    )
    _common(launch)
    launch.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    launch.set_defaults(run=run_launch)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the output folder of a run: DIR/<node>/facts.json"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        help="what all nodes are meant to be (default: DIR/<node>/policy.json, else the defaults)",
    )
    parser.add_argument("--cabling", type=Path, metavar="FILE", help="CSV: the cables as they should be")
    parser.add_argument(
        "--neighbours",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="what is on the other ends: NODE=lldp.json, LEAF=table, or the output of ibnetdiscover",
    )
    parser.add_argument("--record", type=Path, help="the fleet's record (default: DIR/fleet-record.json)")
    parser.add_argument(
        "--leave",
        action="append",
        default=[],
        metavar="NODE=WHY",
        help="a job or a lease holds the node: leave it alone",
    )


def run_plan(arguments: argparse.Namespace, out: Console) -> int:
    """Plan and print. 0 good, 1 something is odd, 3 every node is refused."""
    fleet = _planned(arguments, arguments.replan)
    if arguments.write:
        _write(fleet, arguments)
    if arguments.json:
        out.file.write(dump_json(told(fleet)))
    else:
        _show(fleet, arguments, out)
    if fleet.nodes and all(node.status == "refused" for node in fleet.nodes.values()):
        return 3
    own = [finding for node in fleet.nodes.values() for finding in told_findings(node)]
    refused = any(node.status == "refused" for node in fleet.nodes.values())
    return 1 if refused or any(map(is_open, (*fleet.findings, *own))) else 0


def run_launch(arguments: argparse.Namespace, out: Console) -> int:
    """Write the files. 0 written, 3 no node can be planned."""
    fleet = _planned(arguments, ())
    hosts = []
    for name, node in fleet.nodes.items():
        plan = Plan.read(json.loads(fleet.plan_json(name)), f"{name}: plan")
        rails = (
            told(fleet, policies=False)["nodes"][name]["rails"]
            if fleet.wiring.ends or fleet.wiring.rails
            else {}
        )
        leaves = tuple(end["leaf"] for end in rails.values() if end["leaf"] is not None)
        hosts.append(Host(name, plan, leaves, node.shape))
    files = launch_files(hosts)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(arguments.output), f"cannot be made: {error.strerror}") from error
    for name, text in files.items():
        write_text(arguments.output / name, text)
        lines = text.count("\n")
        out.print(
            f"{arguments.output / name}: {lines} lines" + ("" if text else ": not everything needed is known")
        )
    return 0 if files["hostfile"] else 3


def told_findings(node: Planned) -> list[Finding]:
    """A node's findings, with those that its policy accepts marked."""
    return [judged(finding, node) for finding in node.findings]


def _planned(arguments: argparse.Namespace, replan: Any) -> FleetPlan:
    record = _record_path(arguments)
    fleet = plan_fleet(
        _nodes(arguments, _left(arguments.leave)),
        seen=[cable for text in arguments.neighbours for cable in _neighbours(text)],
        wanted=read_cables(read_text(arguments.cabling), str(arguments.cabling)) if arguments.cabling else (),
        record=Record.read(read_json(record), str(record)) if record.exists() else None,
        replan=replan,
    )
    if not fleet.nodes and fleet.findings:
        first = fleet.findings[0]
        raise InputError(
            str(arguments.directory), f"no node of it can be planned: {first.where} {first.why}", first.remedy
        )
    if not fleet.nodes:
        raise InputError(
            str(arguments.directory), "holds no <node>/facts.json", "run playbooks/discover.yml first"
        )
    return fleet


def _record_path(arguments: argparse.Namespace) -> Path:
    path: Path = (
        arguments.record if arguments.record is not None else arguments.directory / "fleet-record.json"
    )
    if arguments.record is not None and not path.exists() and not getattr(arguments, "write", False):
        raise InputError(str(path), "is not there", "leave --record out, or write it with --write")
    return path


def _left(words: list[str]) -> dict[str, str]:
    left = {}
    for word in words:
        name, equals, why = word.partition("=")
        if not equals or not why:
            raise InputError("--leave", f"found {word!r}", "expected NODE=WHY")
        left[name] = why
    return left


def _neighbours(word: str) -> tuple[Cable, ...]:
    name, equals, path = word.partition("=")
    if equals and not Path(word).exists():
        return read_cables(read_text(Path(path)), path, name)
    return read_cables(read_text(Path(word)), word)


def _nodes(arguments: argparse.Namespace, left: dict[str, str]) -> Iterator[Asked]:
    """One node after the other: the facts of ten thousand are not held at once."""
    if not arguments.directory.is_dir():
        raise InputError(
            str(arguments.directory), "is no directory", "expected the output directory of a run"
        )
    common = read_policy(arguments.policy) if arguments.policy is not None else None
    seen: dict[str, Policy] = {}
    unknown = set(left)
    for folder in sorted(arguments.directory.iterdir()):
        path = folder / "facts.json"
        if not path.is_file():
            continue
        unknown.discard(folder.name)
        facts, policy = _read(folder, common, seen)
        yield Asked(folder.name, facts, policy, left.get(folder.name))
    for name in sorted(unknown):
        raise InputError("--leave", f"{name} is no node of {arguments.directory}")


def _read(folder: Path, common: Policy | None, seen: dict[str, Policy]) -> tuple[Any, Policy]:
    """Facts and policy of a node; why they cannot be read stands in place of the facts, and the other nodes go on."""
    try:
        return read_json(folder / "facts.json"), common or _policy(folder, seen)
    except InputError as error:
        return error, common or Policy()


def _policy(folder: Path, seen: dict[str, Policy]) -> Policy:
    """What the last run asked of the node; equal texts are read once."""
    path = folder / "policy.json"
    text = read_text(path) if path.exists() else "{}"
    if text not in seen:
        seen[text] = Policy.read(read_json(path) if path.exists() else {}, str(path))
    return seen[text]


def _write(fleet: FleetPlan, arguments: argparse.Namespace) -> None:
    for name, node in fleet.nodes.items():
        if node.state != "left":
            write_text(arguments.directory / name / "policy.json", dump_json(to_json(node.policy)))
            write_text(arguments.directory / name / "plan.json", dump_json(_in_order(fleet, name)))
    write_text(arguments.directory / "fleet.json", dump_json(told(fleet)))
    write_text(_record_path(arguments), dump_json(fleet.record.json()))


def _in_order(fleet: FleetPlan, name: str) -> Any:
    """The plan with its keys in the order of the model, as every other plan is kept."""
    return to_json(Plan.read(json.loads(fleet.plan_json(name)), f"{name}: plan"))


def _show(fleet: FleetPlan, arguments: argparse.Namespace, out: Console) -> None:
    for shape in fleet.shapes:
        view.say(out, f"{shape.nodes} x {shape.name} (shape {shape.key[:8]})")
    if fleet.leaves:
        view.say(
            out,
            "leaves: " + ", ".join(f"{leaf} is rail {rail}" for leaf, rail in sorted(fleet.leaves.items())),
        )
    odd = [(name, finding) for name, node in fleet.nodes.items() for finding in told_findings(node)]
    view.show_findings(out, fleet.findings, "The fleet as a whole")
    for name, node in [(name, node) for name, node in fleet.nodes.items() if node.findings][:_SHOWN]:
        view.show_findings(out, told_findings(node), name)
    names = list(dict.fromkeys(name for name, _ in odd))
    if len(names) > _SHOWN:
        view.say(out, f"{len(names) - _SHOWN} more odd nodes: see --json")
    for state in ("new", "changed", "left", "same"):
        found = [node for node in fleet.nodes.values() if node.state == state]
        if not found:
            continue
        view.say(out, f"{state}: {len(found)} node{'s' if len(found) > 1 else ''}")
        for node in found[:_SHOWN] if state in ("changed", "left") else ():
            if state == "left":
                view.say(out, f"{node.name}: {node.left}", indent=4)
                continue
            old = arguments.directory / node.name / "plan.json"
            if not arguments.write and old.exists():
                for line in _changes(old, json.loads(fleet.plan_json(node.name))):
                    view.say(out, f"{node.name}: {line}", indent=4)
    if not odd and not fleet.findings:
        view.say(out, "Nothing is odd.")


def _changes(old: Path, new: Any) -> tuple[str, ...]:
    """What differs from the plan that is there. One that cannot be read is told, and the other nodes go on."""
    try:
        return plan_changes(read_json(old), new)
    except (AttributeError, KeyError, TypeError, InputError):
        return (f"{old} is no plan, so what differs from it is not known",)
