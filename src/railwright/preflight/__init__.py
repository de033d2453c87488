"""Before anything changes: whether a node can take what its policy asks for. Pure; runs on the controller.

Every question has an answer: pass, warn, fail, or skipped where nothing tells. A skipped one is never a passed one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..node.check.answer import Answer, is_open, rows, with_accepted
from ..node.model import Facts, Policy, Probe, to_json
from . import firmware, software
from .addresses import addresses, reached

__all__ = ["addresses", "page", "preflight"]

Json = dict[str, Any]
_MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "skipped": "----"}


def preflight(facts: Facts, policy: Policy, probe: Probe, now: float) -> Json:
    """{"findings", "checks", "ok"}, as a node's record has them. now: the controller's clock, seconds since 1970.

    Each check is a row of the report (name, ok, detail, skipped) with its level ("pass", "warn", "fail" or "skipped")
    and the remedies. ok: nothing failed; a warning stops nothing.
    """
    answers = with_accepted(
        (
            *software.answers(facts, policy, probe, now),
            *firmware.answers(facts, policy),
            *reached(policy, probe),
        ),
        policy.accept,
    )
    checks = [_levelled(row, answers) for row in rows(answers)]
    return {
        "findings": [to_json(answer.finding) for answer in answers if answer.finding is not None],
        "checks": checks,
        "ok": all(row["level"] != "fail" for row in checks),
    }


def _levelled(row: Json, answers: Iterable[Answer]) -> Json:
    found = [
        answer.finding
        for answer in answers
        if answer.check == row["name"] and is_open(answer.finding) and answer.seen
    ]
    told = [finding for finding in found if finding is not None]
    if any(finding.severity == "error" for finding in told):
        level = "fail"
    elif told:
        level = "warn"
    else:
        level = "skipped" if row["skipped"] else "pass"
    return {**row, "level": level, "remedies": list(dict.fromkeys(finding.remedy for finding in told))}


def page(name: str, found: Json) -> str:
    """The answers as a page for a terminal: failures first, then warnings, what was not asked, and what is good."""
    order = ("fail", "warn", "skipped", "pass")
    ranked = sorted(found["checks"], key=lambda row: order.index(row["level"]))
    counts = ", ".join(f"{sum(row['level'] == word for row in ranked)} {word}" for word in order)
    lines = [f"{name}: {counts}"]
    for row in ranked:
        lines.append(f"  {_MARKS[row['level']]}  {row['name']}: {row['detail']}")
        lines += [f"          -> {remedy}" for remedy in row["remedies"] if remedy]
    return "\n".join(lines)
