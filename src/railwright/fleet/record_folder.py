"""Each node's folder in a run's record on the controller. Needs ansible-core."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from railwright.node.model import InputError

from . import kept

NOUNS = ("facts", "policy", "plan", "changes", "findings", "ports", "preflight")


def of(output: str, host: str) -> Path:
    """The node's own folder. Raises InputError for a name that would lead elsewhere.

    Only the inventory's name for the node becomes a part of a path, never a value that the node gave.
    """
    if host in ("", ".", "..") or "/" in host or "\0" in host:
        raise InputError(
            "inventory", f"{host!r} cannot be the name of a folder", "give the host another name"
        )
    return Path(output).resolve() / str(host)


def keep(folder: Path, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """As `kept.keep`, in a folder that is made where it is missing. Raises AnsibleActionFail."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return kept.keep(folder, values)
    except OSError as error:
        raise cannot_write(error) from error


def cannot_write(error: OSError) -> AnsibleActionFail:
    """What a person is told of a folder that takes nothing."""
    return AnsibleActionFail(f"{error.filename}: {error.strerror}; set node_output to a folder to write in")
