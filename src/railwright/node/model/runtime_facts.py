"""Runtimes of a node: which version of each environment is meant, and what its self-test found last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class SelfTest:
    """A self-test since the last boot.

    code: its exit status. verdict: "good", "broken" or "no GPU". cuda: what torch is built for. problems: what is wrong
    and what to do, one sentence each. measured: what, with its value and unit. version: the environment's that was
    tested; None where the page does not tell.
    """

    code: int
    verdict: str
    torch: Optional[str] = None
    cuda: Optional[str] = None
    nccl: Optional[str] = None
    driver: Optional[str] = None
    problems: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    version: Optional[str] = None


@dataclass(frozen=True)
class Runtime:
    """One environment under /opt/railwright. version: where its link leads; None: there is no link."""

    name: str
    version: Optional[str] = None
    self_test: Optional[SelfTest] = None
