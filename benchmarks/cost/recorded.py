"""Nodes that answer as one node was heard to answer: what a controller spends on many, without what the nodes spend.

A node is a port of sshd behind which a shell reads what Ansible sends and gives the recorded answer back.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .rack import MOST_PORTS, Node, Rack, make_keys, serve

FIRST_PORT = 31000
KINDS = ("state", "facts")
SHELL = """\
#!/bin/sh
sent=$(tr -d '\\0')
case "$sent" in
*node_state*) exec cat {folder}/state ;;
*) exec cat {folder}/facts ;;
esac
"""


def listen(node: Node) -> Path:
    """From now on the node's answers are heard in this folder."""
    heard = node.folder / "heard"
    heard.mkdir()
    shell = node.folder / "shell"
    entered = shell.rename(node.folder / "entered")
    shell.write_text(f'#!/bin/sh\n{entered} "$@" | tee {heard}/$$\n', encoding="utf-8")
    shell.chmod(0o755)
    return heard


def answers(heard: Path) -> dict[str, str]:
    """The last answer of each kind. Raises SystemExit where one is missing."""
    found = {}
    for path in sorted(heard.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        text = path.read_text("utf-8")
        answer = json.loads(text) if text.lstrip().startswith("{") else {}
        if "slices" in answer:
            found["state"] = text
        elif "node" in answer.get("ansible_facts", {}):
            found["facts"] = text
    if missing := set(KINDS) - found.keys():
        raise SystemExit(f"benchmarks/cost: no answer was heard of {', '.join(sorted(missing))}")
    return found


@contextmanager
def recorded(folder: Path, kept: dict[str, str], count: int) -> Iterator[Rack]:
    """`count` nodes that answer so, in a folder of their own."""
    folder.mkdir()
    for kind, text in kept.items():
        (folder / kind).write_text(text, encoding="utf-8")
    (folder / "answer").write_text(SHELL.format(folder=folder), encoding="utf-8")
    nodes = tuple(Node(f"n{n}", folder / f"n{n}", folder, FIRST_PORT + n) for n in range(count))
    for node in nodes:
        node.folder.mkdir()
        (node.folder / "shell").symlink_to(folder / "answer")
        (node.folder / "shell").chmod(0o755)
    make_keys(folder, nodes)
    sshds = []
    try:
        for begin in range(0, count, MOST_PORTS):
            sshds.append(serve(folder, nodes[begin : begin + MOST_PORTS]))
        yield Rack(folder, folder, Path("/usr/bin/python3"), nodes, tuple(sshds))
    finally:
        for sshd in sshds:
            sshd.send_signal(signal.SIGTERM)
            sshd.wait(10)
