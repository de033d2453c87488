"""The check: fresh facts against a plan. Pure; the difference is findings, and rows for the report.

A finding that nothing was looked at is "info", and its row is skipped: what was not seen is never good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ..model import Facts, Finding, Plan
from . import containers, devices, driver, infiniband, limits, login, rails, rdma, slices, witnesses
from .answer import Answer, is_open, rows, with_accepted

__all__ = ["check", "checks", "is_open"]


def check(
    plan: Plan, facts: Facts, accept: Optional[Mapping[str, str]] = None, earlier: Optional[Facts] = None
) -> tuple[Finding, ...]:
    """What differs between the plan and the node, in the order of the plan.

    accept: findings that the policy bears, code to reason. earlier: the facts as they were before, for what only a
    difference tells (counters of errors). A plan that was refused has nothing on the node to be
    compared. Raises InputError for an entry of the plan that lacks a key.
    """
    return tuple(
        answer.finding for answer in _answers(plan, facts, accept, earlier) if answer.finding is not None
    )


def checks(
    plan: Plan, facts: Facts, accept: Optional[Mapping[str, str]] = None, earlier: Optional[Facts] = None
) -> list[dict[str, Any]]:
    """Rows {"name", "ok", "detail", "skipped"}, one for each kind of question. Raises as `check` does."""
    if plan.status == "refused":
        return [
            {
                "name": "plan",
                "ok": False,
                "detail": "the plan was refused: nothing is written",
                "skipped": True,
            }
        ]
    return rows(_answers(plan, facts, accept, earlier))


def _answers(
    plan: Plan, facts: Facts, accept: Optional[Mapping[str, str]], earlier: Optional[Facts]
) -> tuple[Answer, ...]:
    if plan.status == "refused":
        return ()
    return with_accepted(
        (
            *slices.answers(plan, facts),
            *devices.answers(plan, facts),
            *(() if earlier is None else devices.grown(earlier, facts)),
            *rails.answers(plan, facts),
            *infiniband.answers(plan, facts),
            *driver.answers(plan, facts),
            *rdma.answers(plan, facts),
            *containers.answers(plan, facts),
            *limits.answers(plan, facts),
            *witnesses.answers(facts),
            *login.answers(facts),
        ),
        accept or {},
    )
