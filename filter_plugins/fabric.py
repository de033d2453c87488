"""The lossless contract as Jinja filters. All thinking is in src/railwright; here is the border to Ansible's types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout is what gets run: no package needs to be installed for a playbook.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from railwright import border, fabric
from railwright.node.model import InputError

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


def lossless_policy(contract: Json, host: str) -> Json:
    """A lossless contract as `policy.lossless` of one host: its classes, and the cables of the host's ports."""
    return fabric.host_policy(fabric.Contract.read(contract), host)


class FilterModule:
    """Ansible looks for this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return border.filters((fabric_fragments, lossless_policy))
