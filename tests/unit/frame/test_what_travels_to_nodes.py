"""What `railwright.node` and `railwright.plan` may import, and who may import whom: read from the source itself."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "railwright"
# Clock, chance, environment and the outside world: a plan is the same for the same facts, wherever it is made.
IMPURE = {"datetime", "os", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "time", "uuid"}


@dataclass(frozen=True)
class Import:
    """One imported name, in full: `from ..node import state` in railwright/plan gives "railwright.node.state"."""

    place: str
    name: str
    relative: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def imports_in(source: str, place: str) -> list[Import]:
    """place: the file, relative to src/railwright."""
    package = ["railwright", *Path(place).parent.parts]
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(f"{place}:{node.lineno}", alias.name, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) + 1 - node.level] if node.level else []
            stem = [*stem, node.module] if node.module else stem
            found += [
                Import(f"{place}:{node.lineno}", ".".join([*stem, alias.name]), node.level > 0)
                for alias in node.names
            ]
    return found


def imports_below(*packages: str) -> list[Import]:
    found: list[Import] = []
    for package in packages:
        for path in sorted((SOURCE / package).rglob("*.py")):
            found += imports_in(path.read_text(encoding="utf-8"), str(path.relative_to(SOURCE)))
    assert found, f"no import below {packages}: has the source moved?"
    return found


def test_what_travels_imports_the_standard_library_or_relatively() -> None:
    foreign = [
        i for i in imports_below("node", "plan") if not i.relative and i.top not in sys.stdlib_module_names
    ]
    assert foreign == []


def test_what_travels_reaches_no_further_than_node_and_plan() -> None:
    ours = [i for i in imports_below("node", "plan") if i.relative]
    # The package's own __init__ is there wherever its parts are.
    travelling = ("railwright.node.", "railwright.plan.", "railwright.__version__")
    assert [i for i in ours if not i.name.startswith(travelling)] == []


def test_the_planner_asks_no_clock_no_chance_no_environment() -> None:
    assert [i for i in imports_below("plan") if i.top in IMPURE] == []


def test_the_planner_does_not_know_the_writer() -> None:
    assert [i for i in imports_below("plan") if f"{i.name}.".startswith("railwright.node.state.")] == []


def test_nothing_imports_the_command_line() -> None:
    assert [
        i
        for i in imports_below(".")
        if f"{i.name}.".startswith("railwright.cli.")
        and not i.place.startswith(("cli/", "cli.py", "__main__.py"))
    ] == []


def test_the_oracle_names_each_kind_of_import_in_full() -> None:
    source = (
        "import os.path\nfrom ..node import state\n"
        "from . import rails\nfrom .nics import roles\nfrom time import sleep"
    )
    assert [(i.name, i.relative) for i in imports_in(source, "plan/cores.py")] == [
        ("os.path", False),
        ("railwright.node.state", True),
        ("railwright.plan.rails", True),
        ("railwright.plan.nics.roles", True),
        ("time.sleep", False),
    ]
