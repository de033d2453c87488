"""What keeps a fake node from being made or entered."""

from __future__ import annotations


class FakeNodeError(RuntimeError):
    """Where, why and what to do."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"{where}: {why}; {remedy}")
        self.where = where
        self.why = why
        self.remedy = remedy
