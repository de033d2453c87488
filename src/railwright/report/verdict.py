"""Is it good? For one node and for the run, with the sentence that says so.

A run is good when every node is planned, no error finding is open, no check failed, and on every node at least one
check ran: what nobody looked at is not good. A play that ended without a failed task says nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from railwright.node.model import Finding, Plan

from .collect import Check, Node
from .numbers import count, rate
from .rails import rails_of

PLANNED, REFUSED, NO_RESULT = "planned", "refused", "no result"


@dataclass(frozen=True)
class Verdict:
    """One node's state. checks: the conditions of a good node; its own checks follow them in the report.

    faultless: nothing bad was seen, be it that nobody looked.
    """

    status: str
    ok: bool
    summary: str
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    faultless: bool


def judge(node: Node) -> Verdict:
    """The verdict on one node."""
    status = _status(node)
    findings = _findings(node)
    own = node.checked.checks if node.checked is not None else ()
    conditions = _conditions(node, status, findings, own)
    ok = all(check.ok or check.skipped for check in (*conditions, *own))
    faultless = status == PLANNED and not open_errors(findings) and not failed((*own, *_unset(node)))
    return Verdict(status, ok, _summary(node, status, findings, own), findings, conditions, faultless)


def open_errors(findings: Iterable[Finding]) -> list[Finding]:
    """Error findings that nobody accepted."""
    return [finding for finding in findings if finding.severity == "error" and finding.accepted is None]


def failed(checks: Iterable[Check]) -> list[Check]:
    """Checks that ran and failed."""
    return [check for check in checks if not check.ok and not check.skipped]


def skipped(checks: Iterable[Check]) -> list[Check]:
    """Checks that did not run."""
    return [check for check in checks if check.skipped]


def _status(node: Node) -> str:
    if node.plan is not None and node.plan.status == REFUSED:
        return REFUSED
    return NO_RESULT if node.reasons else PLANNED


def _findings(node: Node) -> tuple[Finding, ...]:
    """Of the plan and of the check after it, each once, errors first."""
    plan = (*node.plan.refusals, *node.plan.findings) if node.plan is not None else ()
    after = node.checked.findings if node.checked is not None else ()
    severities = ["error", "warning", "info"]
    return tuple(
        sorted(
            dict.fromkeys((*plan, *after)),
            key=lambda finding: (finding.accepted is not None, severities.index(finding.severity)),
        )
    )


def _conditions(
    node: Node, status: str, findings: tuple[Finding, ...], own: tuple[Check, ...]
) -> tuple[Check, ...]:
    errors = open_errors(findings)
    ran = len(own) - len(skipped(own))
    refusals = node.plan.refusals if node.plan is not None else ()
    return (
        Check(
            "result", not node.reasons, "; ".join(node.reasons) or "every file of the node is there", False
        ),
        Check(
            "planned",
            status == PLANNED,
            "; ".join(f"{refusal.where}: {refusal.why}" for refusal in refusals)
            or ("the node has a plan" if node.plan is not None else "there is no plan"),
            False,
        ),
        Check(
            "no open error",
            not errors,
            "; ".join(f"{error.code} at {error.where}" for error in errors) or "no error finding is open",
            False,
        ),
        Check("checked", ran > 0, f"{count(ran, 'check')} ran", False),
        *_unset(node),
    )


def _unset(node: Node) -> Iterator[Check]:
    """Items that the writer could not set, each as a failed check; nothing for a node that was not tuned."""
    for failure in node.changes.failures if node.changes is not None else ():
        yield Check("written", False, f"{failure.where}: {failure.why}", False)


def _summary(node: Node, status: str, findings: tuple[Finding, ...], own: tuple[Check, ...]) -> str:
    """One sentence on the node."""
    if status == REFUSED and node.plan is not None:
        first = node.plan.refusals[0].why if node.plan.refusals else "the plan names no reason"
        return f"Refused: {first}."
    if status == NO_RESULT:
        return f"No result: {'; '.join(node.reasons)}."
    if node.plan is None:
        return "No result: there is no plan."
    trouble = []
    if errors := open_errors(findings):
        trouble.append(count(len(errors), "open error"))
    if bad := failed(own):
        trouble.append(count(len(bad), "failed check"))
    if unset := list(_unset(node)):
        trouble.append(f"{count(len(unset), 'item')} that could not be set")
    if len(skipped(own)) == len(own):
        trouble.append("nothing was checked")
    if warnings := sum(finding.severity == "warning" and finding.accepted is None for finding in findings):
        trouble.append(count(warnings, "warning"))
    if waiting := len(node.changes.reboot_needed if node.changes is not None else ()):
        trouble.append(f"{count(waiting, 'item')} in force after the next boot")
    return f"{_shape(node.plan)}; {', '.join(trouble) or 'nothing is wrong'}."


def _shape(plan: Plan) -> str:
    words = f"{count(len(plan.gpus), 'GPU')} on {count(len(rails_of(plan)), 'rail')}"
    achieved = plan.bound.of_plan
    return words if achieved is None else f"{words}, {rate(achieved)} GB/s for each with all sending"


def overall(verdicts: dict[str, Verdict]) -> str:
    """The verdict on the run, in one sentence."""
    total = len(verdicts)
    if not total:
        return "Nothing to report: there is no node in this directory."
    good = sum(verdict.ok for verdict in verdicts.values())
    if good == total:
        return (
            "The node is good: planned, no open error, every check that ran passed."
            if total == 1
            else f"All {total} nodes are good: planned, no open error, every check that ran passed."
        )
    parts = []
    for status, word in ((REFUSED, "refused"), (NO_RESULT, "without a result")):
        number = sum(verdict.status == status for verdict in verdicts.values())
        if number:
            parts.append(f"{number} {word}")
    planned = [verdict for verdict in verdicts.values() if verdict.status == PLANNED and not verdict.ok]
    unchecked = sum(verdict.faultless for verdict in planned)
    for number, word in ((len(planned) - unchecked, "with faults"), (unchecked, "not checked")):
        if number:
            parts.append(f"{number} {word}")
    if total == 1:
        return f"The node is not good: {next(iter(verdicts.values())).summary}"
    are = "is" if total - good == 1 else "are"
    return f"{total - good} of {total} nodes {are} not good: {', '.join(parts)}."
