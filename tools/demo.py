"""The whole road over a simulated rack: two 8-GPU nodes of one chassis whose NICs are numbered differently.

The nodes are folders below .demo/ and keep what was done to them, as real nodes do: run it again, and nothing changes.
`--fresh` lays the rack out anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from railwright.cli import view
from railwright.fleet import play
from railwright.node.model import InputError
from railwright.report.visible import visible
from tests.fake_nodes import FakeNode, FakeNodeError, create

PROJECT = Path(__file__).resolve().parents[1]
RACK = {"node1": "2s_8xh100_10xcx7", "node2": "2s_8xh100_10xcx7_backwards"}
# What a node's folder is made of; another content is another rack.
SOURCES = ("tests/machines", "tests/machinery", "tests/fake_nodes")


def main(argv: list[str]) -> int:
    """0 all good, 1 something is not as it should be, 2 it cannot run here."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="lay the rack out anew first")
    parser.add_argument(
        "--folder", type=Path, default=PROJECT / ".demo", help="where the rack lies (default: .demo)"
    )
    arguments = parser.parse_args(argv)
    out = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 120)
    started = time.monotonic()
    try:
        folder = arguments.folder.resolve()
        known = lay_out(folder, arguments.fresh, out)
        outcome = run(folder, out)
    except (FakeNodeError, InputError) as error:
        print(f"make demo: {error}", file=sys.stderr)
        return 2
    return tell(folder / "out", outcome, known, time.monotonic() - started, out)


def lay_out(folder: Path, fresh: bool, out: Console) -> bool:
    """The rack's folders; True when they were there from an earlier run."""
    python = Path(os.path.realpath(sys.executable))
    stamp, key = folder / "rack.key", _key(python)
    if not fresh and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        FakeNode("node1", folder / "node1").must_enter()
        out.print(
            f"The rack of the last run is in {folder}: what was tuned then is still tuned.", soft_wrap=True
        )
        return True
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, machine in RACK.items():
        create(folder / name, machine, python).must_enter()
        out.print(f"Laid out {name}: {machine}", soft_wrap=True)
    stamp.write_text(key, encoding="utf-8")
    return False


def _key(python: Path) -> str:
    """Changes when anything changes that a node's folder is made of."""
    digest = hashlib.sha256(str(python).encode())
    for source in SOURCES:
        for path in sorted((PROJECT / source).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run(folder: Path, out: Console) -> play.Outcome:
    """site.yml over the rack."""
    progress = view.Progress(out)
    outcome = play.run(
        PROJECT,
        "site.yml",
        PROJECT / "inventories/demo",
        variables={"demo_folder": str(folder), "node_output": str(folder / "out")},
        tell=progress,
    )
    progress.close()
    if not outcome.finished:
        raise InputError("site.yml", f"ended before its time (code {outcome.code})", outcome.output[-2000:])
    return outcome


def tell(output: Path, outcome: play.Outcome, known: bool, seconds: float, out: Console) -> int:
    """What was found, decided, changed and proved, and where the report is."""
    verdict: dict[str, Any] = json.loads((output / "report.json").read_text(encoding="utf-8"))
    view.show_run(out, verdict, outcome)
    changed = [name for name, node in verdict["nodes"].items() if node["changed"]]
    out.print()
    if changed:
        out.print(f"Changed: {', '.join(changed)}. Run it again: nothing will change.")
    else:
        out.print("Nothing changed: the rack was as planned already." if known else "Nothing changed.")
    good = outcome.good and verdict["ok"]
    out.print(
        Text(
            f"{'Good' if good else 'Not good'}: {visible(verdict['verdict'])}",
            style="green" if good else "red",
        )
    )
    out.print(f"Report: {output / 'index.html'}", soft_wrap=True)
    out.print(f"Took {seconds:.0f} s.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
