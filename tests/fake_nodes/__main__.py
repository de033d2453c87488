"""Fake nodes by hand: `python -m tests.fake_nodes VERB --help`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import yaml

from .errors import FakeNodeError
from .node import FakeNode, create, inventory
from .snapshot import Entry, changes, snapshot

NOTE = "before.json"


def main(argv: list[str]) -> int:
    """0 done, 1 something has changed, 2 it cannot be done; `run` ends as its command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fake_nodes", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser(
        "create", help="lay out DIR/node1, DIR/node2, ... and DIR/hosts.yml, an inventory"
    )
    making.add_argument("folder", type=Path)
    making.add_argument(
        "machines", nargs="+", metavar="machine", help="a name below tests/machines, or a folder"
    )
    making.add_argument("--python", type=Path, required=True, help="the nodes' Python: plain, 3.9 or later")
    making.add_argument("--trees", type=Path, help="an existing folder for the nodes' trees, on tmpfs say")
    running = verbs.add_parser("run", help="run a command on a node")
    running.add_argument("node", type=Path)
    running.add_argument("command", nargs="+")
    noting = verbs.add_parser("note", help="remember what a node's tree holds now")
    noting.add_argument("node", type=Path)
    telling = verbs.add_parser(
        "changed", help="print what has changed in a node's tree since `note`, one path a line"
    )
    telling.add_argument("node", type=Path)
    arguments = parser.parse_args(argv)
    try:
        return _do(arguments)
    except FakeNodeError as error:
        print(error, file=sys.stderr)
        return 2


def _do(arguments: argparse.Namespace) -> int:
    if arguments.verb == "create":
        nodes = create_all(arguments.folder, arguments.machines, arguments.python, arguments.trees)
        print(f"{len(nodes)} nodes; inventory: {arguments.folder / 'hosts.yml'}")
        return 0
    node = FakeNode(arguments.node.name, arguments.node.resolve())
    if arguments.verb == "run":
        done = node.run(*arguments.command)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    if arguments.verb == "note":
        noted = {path: dataclasses.asdict(entry) for path, entry in snapshot(node.tree).items()}
        (node.folder / NOTE).write_text(json.dumps(noted), encoding="utf-8")
        return 0
    return _changed(node)


def _changed(node: FakeNode) -> int:
    note = node.folder / NOTE
    if not note.exists():
        raise FakeNodeError(str(note), "is not there", "run `note` first")
    before = {path: Entry(**entry) for path, entry in json.loads(note.read_text("utf-8")).items()}
    found = sorted(changes(before, snapshot(node.tree)))
    for path in found:
        print(path)
    return 1 if found else 0


def create_all(folder: Path, machines: list[str], python: Path, trees: Path | None) -> list[FakeNode]:
    """DIR/node1, DIR/node2, ... and DIR/hosts.yml. Raises FakeNodeError."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = []
    for number, machine in enumerate(machines, start=1):
        where = Path(machine) if "/" in machine else machine
        nodes.append(create(folder.resolve() / f"node{number}", where, python, trees=trees))
    nodes[0].must_enter()
    text = yaml.safe_dump(inventory(nodes), sort_keys=False)
    (folder / "hosts.yml").write_text(f"---\n{text}", encoding="utf-8")
    return nodes


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
