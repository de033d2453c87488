"""How an answer of the preflight is said: good, not seen, or a finding."""

from __future__ import annotations

from ..node.check.answer import Answer
from ..node.model import Finding


def good(check: str, why: str) -> Answer:
    return Answer(f"preflight.{check}", why=why)


def dark(check: str, why: str) -> Answer:
    """Nothing tells: skipped, and never passed."""
    return Answer(f"preflight.{check}", seen=False, why=why)


def bad(check: str, where: str, why: str, remedy: str, severity: str = "error") -> Answer:
    """An error fails the node; a warning stops nothing."""
    code = f"preflight.{check}"
    return Answer(code, Finding(code, severity, where, why, remedy))


def warned(check: str, where: str, why: str, remedy: str) -> Answer:
    return bad(check, where, why, remedy, "warning")
