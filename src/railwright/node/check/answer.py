"""One question put to the facts, and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ..model import Finding

# A row is read by people: more than this many cases are counted, not listed.
_LISTED = 4


@dataclass(frozen=True)
class Answer:
    """check: the row of the report that it counts for ("nccl_conf.content"). finding: what differs; None is nothing.

    seen: False where the facts hold nothing to answer with. A finding then says so, or `why` does.
    """

    check: str
    finding: Optional[Finding] = None
    seen: bool = True
    why: str = ""


def elsewhere(facts: Any, name: str, entry: Any) -> Iterator[Answer]:
    """For a kind whose entries are not answered one by one; where it is registered stands why."""
    return iter(())


def unseen(check: str, where: str, why: str, remedy: str) -> Answer:
    """The facts do not tell: never good, never bad."""
    return Answer(check, Finding(check, "info", where, f"not looked at: {why}", remedy), seen=False)


def with_accepted(answers: Iterable[Answer], accept: Mapping[str, str]) -> tuple[Answer, ...]:
    """Findings that the policy bears, with its reason."""
    return tuple(
        answer
        if answer.finding is None
        else replace(answer, finding=replace(answer.finding, accepted=accept.get(answer.finding.code)))
        for answer in answers
    )


def rows(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Rows of the report, one for each check in order: name, ok, detail, skipped. A skipped one is never ok."""
    by_check: dict[str, list[Answer]] = {}
    for answer in answers:
        by_check.setdefault(answer.check, []).append(answer)
    return [_row(name, group) for name, group in by_check.items()]


def _row(name: str, group: list[Answer]) -> dict[str, Any]:
    wrong = [answer.finding for answer in group if answer.seen and is_open(answer.finding)]
    dark = [answer for answer in group if not answer.seen]
    if wrong:
        detail = listed([f"{finding.where}: {finding.why}" for finding in wrong if finding is not None])
    elif dark:
        detail = listed([f"{a.finding.where}: {a.finding.why}" if a.finding else a.why for a in dark])
    else:
        detail = _good(group)
    return {"name": name, "ok": not wrong and not dark, "detail": detail, "skipped": not wrong and bool(dark)}


def is_open(finding: Optional[Finding]) -> bool:
    """Whether somebody has to do something about it."""
    return finding is not None and finding.severity != "info" and finding.accepted is None


def _good(group: list[Answer]) -> str:
    borne = [
        f"{answer.finding.where}: accepted, {answer.finding.accepted}"
        for answer in group
        if answer.finding is not None and answer.finding.accepted is not None
    ]
    told = [answer.why for answer in group if answer.why]
    as_planned = sum(answer.finding is None for answer in group)
    return listed([*told, *borne]) if told or borne else f"{as_planned} as planned"


def listed(parts: Sequence[str]) -> str:
    """The first few parts, and how many more there are."""
    distinct = list(dict.fromkeys(parts))
    more = len(distinct) - _LISTED
    return "; ".join(distinct[:_LISTED]) + (f"; and {more} more" if more > 0 else "")
