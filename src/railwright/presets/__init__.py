"""Presets: policy fragments for machines whose facts cannot tell what a NIC is for.

A front-end card on a GPU's switch looks like a rail. Where neither link, rate nor model shows the difference, somebody
who knows the machine has to say it once: each file here does so for one machine, with its source. A policy names
presets (`presets: [dell-xe9680-h200]`), and the user's own word on a NIC comes before theirs. A preset holds only what
facts cannot tell; it is no table of servers.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from railwright.node.model import InputError, NicPolicy, from_json

_KEYS = {"machine", "source", "because", "nics"}


def names() -> tuple[str, ...]:
    """All presets, in order."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def preset(name: str) -> dict[str, Any]:
    """One preset: {"machine", "source", "because": texts, "nics": as in policy.nics}. Raises InputError."""
    if name not in names():
        raise InputError("presets", f"there is no preset {name!r}", f"one of {', '.join(names())}")
    where = f"presets/{name}.json"
    data = json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text("utf-8"))
    if not isinstance(data, dict) or set(data) != _KEYS:
        raise InputError(where, f"has the keys {sorted(data)}", f"expected {sorted(_KEYS)}")
    for number, entry in enumerate(data["nics"]):
        from_json(NicPolicy, entry, f"{where}: nics[{number}]")
    return data


def expanded(policy: Any, where: str) -> Any:
    """A policy as JSON, with what its presets say of NICs after its own words. Once expanded it stays as it is.

    Raises InputError for a preset that there is none of. What is no policy at all is left to its reader.
    """
    if not isinstance(policy, dict) or not isinstance(policy.get("presets", []), list):
        return policy
    nics = policy.get("nics", [])
    if not policy.get("presets") or not isinstance(nics, list):
        return policy
    said = {entry.get("source") for entry in nics if isinstance(entry, dict)}
    added = []
    for number, name in enumerate(policy["presets"]):
        if name not in names():
            raise InputError(
                f"{where}.presets[{number}]", f"there is no preset {name!r}", f"one of {', '.join(names())}"
            )
        source = f"preset {name}"
        if source not in said:
            added += [{**entry, "source": source} for entry in preset(name)["nics"]]
    return {**policy, "nics": [*nics, *added]}
