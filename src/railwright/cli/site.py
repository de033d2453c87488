"""`railwright look` and `railwright up`: the verbs that reach machines, through the playbooks."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.fleet import play
from railwright.node.check import is_open
from railwright.node.model import Facts, Finding, InputError, Plan, from_json, to_json

from . import view
from .files import read_json, read_policy


def add_verbs(verbs: Any) -> None:
    """Register `look` and `up`."""
    parser = verbs.add_parser(
        "look",
        help="read one real node over SSH: what it is, its plan, what is wrong; changes nothing",
        description="Read one node over SSH; install and change nothing; print what it is, its plan, what is wrong.",
    )
    parser.add_argument(
        "host", help="host or user@host as ssh takes it, or a host of the inventory given with -i"
    )
    parser.add_argument(
        "-i", "--inventory", type=Path, help="take the host and its variables from this inventory"
    )
    parser.add_argument("--python", help="the node's Python, 3.9 or later (default: found out)")
    parser.add_argument("--policy", type=Path, help="YAML or JSON: what the node is meant to be")
    parser.add_argument(
        "--become", action="store_true", help="read as root through sudo (config space needs root)"
    )
    parser.add_argument("--project", type=Path, help="the checkout with the playbooks")
    parser.set_defaults(run=run_look)

    parser = verbs.add_parser(
        "up",
        help="discover, plan, tune, verify and report all nodes of an inventory",
        description="Run playbooks/site.yml over an inventory and tell what was found, decided, changed and proved.",
    )
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--limit", help="only these hosts, as ansible-playbook --limit takes them")
    parser.add_argument("--check", action="store_true", help="say what would change, change nothing")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="where facts, plans and the report go"
    )
    parser.add_argument("--project", type=Path, help="the checkout with the playbooks")
    parser.set_defaults(run=run_up)


def run_look(arguments: argparse.Namespace, out: Console) -> int:
    """Look at one node. 0 nothing to say, 1 findings, 2 not reached, 3 it cannot be planned."""
    project = play.find_project(arguments.project, Path.cwd())
    policy = read_policy(arguments.policy)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="railwright-look-") as folder:
        output = Path(folder)
        inventory, host = _one_host(arguments, output)
        variables: dict[str, Any] = {"node_output": str(output / "out")}
        if arguments.policy is not None:
            variables["node_policy"] = to_json(policy)
        progress = view.Progress(out)
        outcome = play.run(
            project,
            "look.yml",
            inventory,
            variables=variables,
            arguments="--become" if arguments.become else "",
            limit=host,
            tell=progress,
        )
        progress.close()
        if not outcome.good:
            raise InputError(
                host,
                _why(outcome),
                f"try: ssh {host} true; the node needs Python 3.9 or later, which --python can name",
            )
        folder_of_node = output / "out" / host
        facts = Facts.read(read_json(folder_of_node / "facts.json"), f"{host}: facts")
        plan = Plan.read(read_json(folder_of_node / "plan.json"), f"{host}: plan")
        findings = [
            from_json(Finding, finding, f"{host}: findings")
            for finding in read_json(folder_of_node / "findings.json")["findings"]
        ]
    view.show_facts(out, facts)
    view.show_plan(out, plan, facts)
    view.show_findings(out, findings, "What differs from this plan today")
    out.print(f"\nRead in {time.monotonic() - started:.0f} s. Nothing was installed or changed on {host}.")
    if plan.status == "refused":
        return 3
    return 1 if any(map(is_open, (*plan.findings, *findings))) else 0


def _one_host(arguments: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    if arguments.inventory is not None:
        if not arguments.inventory.exists():
            raise InputError(str(arguments.inventory), "is not there")
        return arguments.inventory.resolve(), arguments.host
    user, _, host = arguments.host.rpartition("@")
    if not host or any(character in host for character in " \t\n,/'\"{}"):
        raise InputError("host", f"{arguments.host!r} is no host name", "expected HOST or USER@HOST")
    variables: dict[str, Any] = {}
    if host == "localhost":
        # The Python that runs this is there and works; what discovery finds on a PATH may not.
        variables |= {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    if user:
        variables["ansible_user"] = user
    if arguments.python:
        variables["ansible_python_interpreter"] = arguments.python
    inventory = folder / "look.json"
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {host: variables}}}), encoding="utf-8")
    return inventory, host


def run_up(arguments: argparse.Namespace, out: Console) -> int:
    """The whole road over an inventory. 0 good, 1 findings or failed hosts, 3 every host was refused."""
    project = play.find_project(arguments.project, Path.cwd())
    if not arguments.inventory.exists():
        raise InputError(str(arguments.inventory), "is not there", "expected an inventory file or folder")
    output = arguments.output.resolve()
    progress = view.Progress(out)
    outcome = play.run(
        project,
        "site.yml",
        arguments.inventory.resolve(),
        variables={"node_output": str(output)},
        arguments="--check --diff" if arguments.check else "",
        limit=arguments.limit,
        tell=progress,
    )
    progress.close()
    if not outcome.finished:
        raise InputError(
            str(arguments.inventory), _why(outcome), "run ansible-playbook playbooks/site.yml to see more"
        )
    if not outcome.hosts:
        raise InputError(
            str(arguments.inventory),
            "holds no host in the group gpu_nodes, so nothing was done",
            "put the nodes into the group gpu_nodes, as inventories/example does",
        )
    page = output / "index.html"
    verdict = read_json(output / "report.json")
    view.show_run(out, verdict, outcome, check=arguments.check)
    out.print(f"\nReport: {page}", soft_wrap=True)
    states = [node.get("status") for node in verdict["nodes"].values()]
    if states and all(state == "refused" for state in states):
        return 3
    return 0 if outcome.good and verdict["ok"] else 1


def _why(outcome: play.Outcome) -> str:
    if outcome.failures:
        return "; ".join(dict.fromkeys(f"{step.host}: {step.message}".strip() for step in outcome.failures))
    tail = " ".join(outcome.output.split())[-600:]
    return f"the run ended without its statistics (code {outcome.code}): {tail}"
