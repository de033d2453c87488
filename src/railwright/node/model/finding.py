"""Finding: a difference between what is and what should be, with the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Finding:
    """One thing that a person should know.

    code: stable, `<subject>.<noun>`, the same in plan, check, report and `accept`.
    severity: "error" (a run must not be called good), "warning" or "info".
    where: the device, file or setting. why: what was seen and expected. remedy: what to do, a command if there is one.
    accepted: the reason given in the policy's `accept`, else None.
    """

    code: str
    severity: str
    where: str
    why: str
    remedy: str
    accepted: Optional[str] = None
