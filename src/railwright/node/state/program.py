"""Programs of the node that an item needs in order to write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Optional

from ..words import without_users
from .command import Said, Tools
from .item import Node
from .outcome import Refused

_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LONGEST_LINE = 300


def tools_of(node: Node) -> Tools:
    """What runs this node's programs. Raises Refused for a folder that only holds a node's files."""
    if node.tools is None:
        raise Refused(
            "this root is no running node, so none of its programs can be run", "run this on the node itself"
        )
    return node.tools


def first_program(node: Node, names: Sequence[str]) -> Optional[str]:
    """The first of these programs that the node has."""
    return next((name for name in names if _has(node, name)), None)


def last_words(said: Said, lines: int = 6) -> str:
    """The end of what a program said, in one line, without a user and a password in an address."""
    text = without_users(f"{said.out}\n{said.err}")
    told = [line.strip()[:_LONGEST_LINE] for line in text.splitlines() if line.strip()]
    # apt marks what went wrong; what stands around it is progress.
    told = [line for line in told if line.startswith("E: ")] or told
    return "; ".join(told[-lines:]) or f"exit status {said.code}"


def _has(node: Node, name: str) -> bool:
    return any(os.access(node.at(f"{folder}/{name}"), os.X_OK) for folder in _FOLDERS)
