"""The page of a run: what was found, decided, changed and proved on each node, and what nobody looked at.

Input is the directory that a run leaves: `<dir>/<node>/{facts,policy,plan,findings,changes}.json`, and
`<dir>/fabric.json` where the lossless contract was linted into it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .collect import collect
from .document import document
from .fabric import read_fabric
from .files import write_all
from .page import render
from .rack import read_rack
from .svg import node_svg

__all__ = ["build", "node_svg", "write"]


def build(directory: Path, generated: str | None = None) -> dict[str, Any]:
    """The report of a run, from its files alone: schema railwright.report/1, see `document`.

    A node whose files are missing or cannot be used is in it with status "no result" and the reasons, and is not ok.
    generated: a time to be shown, if the caller wants one. Raises InputError when `directory` cannot be listed.
    """
    return document(collect(directory), generated, read_fabric(directory))


def write(directory: Path, generated: str | None = None, of_run: Collection[str] | None = None) -> Path:
    """Write report.json and index.html into the directory of a run and return the page's path.

    of_run: names of the run's nodes; what other runs kept beside them is no part of this report. None takes all.
    Raises InputError when the directory cannot be listed or written; then what was there before is still there.
    """
    nodes = collect(directory, of_run)
    fabric = read_fabric(directory)
    # ASCII only: names that are not text (a lone surrogate) have no UTF-8.
    data = json.dumps(document(nodes, generated, fabric), indent=2, allow_nan=False) + "\n"
    page = directory / "index.html"
    write_all(
        {
            directory / "report.json": data.encode("ascii"),
            page: render(nodes, generated, fabric, read_rack(directory, of_run)).encode("utf-8"),
        }
    )
    return page
