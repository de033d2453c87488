"""What every task pays on this node before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Facts, Finding
from .answer import Answer

# A shell without start-up files takes some 30 ms of CPU, one that starts an environment manager more than a second.
MOST_MS = 100


def answers(facts: Facts) -> Iterator[Answer]:
    """Nothing where the node was not read over SSH."""
    cost = facts.host.login_ms
    if cost is not None:
        slow = Finding(
            "host.slow_login",
            "info",
            "the login shell",
            f"its start-up files take {cost} ms of CPU before a command over SSH begins; {MOST_MS} are plenty",
            "let ~/.bashrc return at once where the shell is not interactive: case $- in *i*) ;; *) return;; esac",
        )
        yield Answer("host.login", slow if cost > MOST_MS else None, why=f"{cost} ms of CPU")
