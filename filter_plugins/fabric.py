"""The lossless contract as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright import border, fabric
from railwright.node.model import Facts, InputError, to_json

Json = dict[str, Any]


def fabric_fragments(contract: Json) -> Json:
    """Files for the leaf switches of a lossless contract, and the switches that are refused, with the reason."""
    asked = fabric.Contract.read(contract)
    files: list[Json] = []
    refused: list[str] = []
    for name in asked.switches:
        try:
            fragment = fabric.render(asked, name)
        except InputError as error:
            refused.append(border.line(str(error)))
            continue
        files.append({"file": fragment.file, "content": fragment.content})
        files.append({"file": f"{name}.commands.txt", "content": fragment.commands})
    return {"files": files, "refused": refused}


def fabric_ports(facts: Json) -> Json:
    """The part of a node's facts that a lint of the fabric reads: its ports, with what tools say of them."""
    ports: Json = to_json(fabric.ports_only(Facts.read(facts)))
    return {key: ports[key] for key in ("schema", "witnesses", "nics", "tools")}


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return border.filters((fabric_fragments, fabric_ports))
