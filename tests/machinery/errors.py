"""What is wrong with a machine's description."""

from __future__ import annotations


class MachineError(ValueError):
    """A description that cannot become a tree: where it is, why it cannot, and what to do."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"{where}: {why}; {remedy}")
        self.where = where
        self.why = why
        self.remedy = remedy
