"""A run's directory as data: one `Node` for each folder, whatever state its files are in.

`<dir>/<node>/facts.json, policy.json, plan.json, findings.json` are owed; `changes.json` is there when the node was
tuned in this run. A file that is missing or cannot be used makes the node one without a result: the reason is kept, and
what could be read is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from railwright.node.model import Facts, Finding, InputError, Plan, Policy, from_json
from railwright.node.state.outcome import Failure

from .order import natural

SEVERITIES = ("error", "warning", "info")
STATUSES = ("planned", "refused")

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One check. A skipped one is never ok, whatever the file says."""

    name: str
    ok: bool
    detail: str
    skipped: bool


@dataclass(frozen=True)
class Item:
    """One thing that the writer converged, as it reports it. before, after, note: any JSON value; None is absent."""

    id: str
    kind: str
    changed: bool
    action: str = ""
    before: Any = None
    after: Any = None
    note: Any = None


@dataclass(frozen=True)
class SliceChange:
    """What the writer did for one slice."""

    changed: bool
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Changes:
    """What the one write of a run did."""

    changed: bool
    slices: dict[str, SliceChange] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    reboot_needed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What was found on the node after it was tuned."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Node:
    """One node of the run. A value of None was missing or unusable; `reasons` says which and why."""

    name: str
    facts: Facts | None = None
    policy: Policy | None = None
    plan: Plan | None = None
    checked: Checked | None = None
    changes: Changes | None = None
    reasons: tuple[str, ...] = ()


def collect(directory: Path, of_run: Collection[str] | None = None) -> tuple[Node, ...]:
    """The nodes of a run, in natural order of their names. Raises InputError when `directory` is no folder.

    of_run: names of the run's nodes, where other runs have kept theirs in the same folder; None takes all.
    """
    try:
        folders = [
            entry
            for entry in directory.iterdir()
            if entry.is_dir() and not entry.name.startswith(".") and (of_run is None or entry.name in of_run)
        ]
    except OSError as error:
        raise InputError(
            str(directory), f"cannot be listed: {error.strerror}", "expected the output directory of a run"
        ) from error
    return tuple(_node(folder) for folder in sorted(folders, key=lambda folder: natural(folder.name)))


def _node(folder: Path) -> Node:
    reasons: list[str] = []
    missing: list[str] = []

    def read(name: str, use: Callable[[Any, str], T]) -> T | None:
        if not _is_there(folder / name):
            missing.append(name)
            return None
        try:
            return use(load(folder / name, name), name)
        except InputError as error:
            reasons.append(str(error))
            return None

    node = Node(
        folder.name,
        facts=read("facts.json", Facts.read),
        policy=read("policy.json", Policy.read),
        plan=read("plan.json", _plan),
        checked=read("findings.json", _checked),
    )
    # Its absence says that nothing was tuned in this run.
    changes = read("changes.json", _changes) if _is_there(folder / "changes.json") else None
    if missing:
        reasons.insert(0, f"{', '.join(missing)} missing")
    return replace(node, changes=changes, reasons=tuple(reasons))


def _is_there(path: Path) -> bool:
    # A link that leads nowhere is there, and cannot be read.
    return path.is_symlink() or path.exists()


def load(path: Path, where: str) -> Any:
    """The JSON value of a file of the run, as strict as JSON is. Raises InputError with the place."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(where, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8 text: byte {error.start}") from error
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"is not usable JSON: {error}") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _plan(data: Any, where: str) -> Plan:
    plan = Plan.read(data, where)
    if plan.status not in STATUSES:
        raise InputError(
            f"{where}.status", f"unknown status {plan.status!r}", f"one of {', '.join(STATUSES)}"
        )
    _with_known_severities(plan.refusals, f"{where}.refusals")
    _with_known_severities(plan.findings, f"{where}.findings")
    return plan


def _checked(data: Any, where: str) -> Checked:
    checked = from_json(Checked, data, where)
    _with_known_severities(checked.findings, f"{where}.findings")
    checks = tuple(
        Check(check.name, check.ok and not check.skipped, check.detail, check.skipped)
        for check in checked.checks
    )
    return Checked(checked.findings, checks)


def _changes(data: Any, where: str) -> Changes:
    return from_json(Changes, data, where)


def _with_known_severities(findings: tuple[Finding, ...], where: str) -> None:
    # An unknown word must not pass as "no error".
    for number, finding in enumerate(findings):
        if finding.severity not in SEVERITIES:
            raise InputError(
                f"{where}[{number}].severity",
                f"unknown severity {finding.severity!r}",
                f"one of {', '.join(SEVERITIES)}",
            )
