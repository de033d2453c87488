"""Run one playbook with ansible-runner and say truthfully how it ended.

An exit status alone is not success: a cut event stream can end with 0. A run is good when the final statistics were
seen and every host of the run is accounted for in them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railwright.node.model import InputError


@dataclass(frozen=True)
class Step:
    """One thing that happened. kind: play, task, ok, changed, skipped, failed, unreachable, rescued, warning."""

    kind: str
    name: str
    host: str = ""
    message: str = ""
    seconds: float = 0.0


@dataclass
class Outcome:
    """How a run ended. hosts: name to "ok", "changed", "failed" or "unreachable"; finished: statistics were seen."""

    code: int = 1
    finished: bool = False
    hosts: dict[str, str] = field(default_factory=dict)
    failures: list[Step] = field(default_factory=list)
    output: str = ""

    @property
    def good(self) -> bool:
        """Every host came through."""
        ended_well = self.finished and self.code == 0 and bool(self.hosts)
        return ended_well and all(state in ("ok", "changed") for state in self.hosts.values())


def find_project(given: Path | None, start: Path) -> Path:
    """The checkout with the playbooks: `given`, else the nearest parent of `start` that has playbooks/site.yml."""
    candidates = (given,) if given is not None else (start, *start.parents)
    for folder in candidates:
        if (folder / "playbooks/site.yml").is_file():
            return folder.resolve()
    raise InputError(
        str(given or start),
        "has no playbooks/site.yml, and neither has a folder above it",
        "this verb runs playbooks: run it inside a checkout of Railwright, or give --project CHECKOUT",
    )


def run(
    project: Path,
    playbook: str,
    inventory: Path | str,
    *,
    variables: Mapping[str, Any],
    arguments: str = "",
    limit: str | None = None,
    tell: Callable[[Step], None],
) -> Outcome:
    """Run `playbooks/<playbook>` of the checkout over the inventory; `tell` gets each step as it happens.

    inventory: a path, or host names with a comma as Ansible takes them. Raises InputError when Ansible is not there.
    """
    try:
        import ansible_runner
    except ImportError as error:
        raise InputError(
            "ansible-runner",
            "is not installed",
            "pip install 'railwright[ansible]', or run `make setup` in the checkout",
        ) from error
    binary = Path(sys.executable).parent / "ansible-playbook"
    if not binary.exists():
        raise InputError(
            str(binary), "is not there", "pip install 'railwright[ansible]' into this Python's environment"
        )

    outcome = Outcome()

    def on_event(event: dict[str, Any]) -> bool:
        for step in _steps(event, outcome):
            if step.kind in ("failed", "unreachable"):
                outcome.failures.append(step)
            tell(step)
        return True

    # A fresh directory for each run: an old one carries artifacts and variables of other runs in clear text.
    with tempfile.TemporaryDirectory(prefix="railwright-") as private:
        runner = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(project),
            playbook=str(project / "playbooks" / playbook),
            inventory=str(inventory),
            extravars=dict(variables),
            cmdline=arguments or None,
            limit=limit,
            envvars={
                "ANSIBLE_CONFIG": str(project / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                # The runner takes the first ansible-playbook of PATH: it must be the one of this Python.
                "PATH": f"{binary.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            },
            event_handler=on_event,
            quiet=True,
        )
        outcome.code = 1 if runner.rc is None else int(runner.rc)
        if not outcome.finished:
            with runner.stdout as stdout:
                outcome.output = stdout.read()
    return outcome


def _steps(event: dict[str, Any], outcome: Outcome) -> Iterator[Step]:
    kind, data = event.get("event", ""), event.get("event_data", {})
    if kind == "playbook_on_play_start":
        yield Step("play", str(data.get("name", "")))
    elif kind == "playbook_on_task_start":
        yield Step("task", str(data.get("task", "")))
    elif kind == "playbook_on_stats":
        outcome.finished = True
        outcome.hosts = _hosts(data)
    elif kind == "warning":
        yield Step("warning", "", message=str(event.get("stdout", "")))
    elif kind.startswith("runner_on_") and kind != "runner_on_start":
        yield _host_step(kind.removeprefix("runner_on_"), data)


def _host_step(kind: str, data: dict[str, Any]) -> Step:
    result = data.get("res") or {}
    if kind == "ok" and result.get("changed"):
        kind = "changed"
    if kind == "failed" and data.get("ignore_errors"):
        kind = "rescued"
    message = str(result.get("msg", "")) if kind in ("failed", "unreachable") else ""
    return Step(
        kind, str(data.get("task", "")), str(data.get("host", "")), message, float(data.get("duration") or 0)
    )


def _hosts(stats: dict[str, Any]) -> dict[str, str]:
    """Each host's worst word; a host in none of the lists did not run."""
    states: dict[str, str] = {}
    for state, key in (("ok", "ok"), ("changed", "changed"), ("failed", "failures"), ("unreachable", "dark")):
        for host, count in (stats.get(key) or {}).items():
            if count:
                states[host] = state
    return states
