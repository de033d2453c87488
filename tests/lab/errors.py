"""What cannot be done in the lab."""

from __future__ import annotations


class LabError(Exception):
    """where: the thing at fault; why: what is wrong with it; remedy: what to do."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"{where}: {why}; {remedy}")
        self.where, self.why, self.remedy = where, why, remedy

    def __reduce__(self) -> tuple[type[LabError], tuple[str, str, str]]:
        """How it comes back from another process."""
        return type(self), (self.where, self.why, self.remedy)
