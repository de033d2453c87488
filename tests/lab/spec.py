"""What a lab node is made of, as a page that its keeper reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spec:
    """folder: the node's; root: its suite's root file system; machine: its recorded machine; number: from 1."""

    name: str
    suite: str
    number: int
    folder: Path
    root: Path
    machine: Path
    cgroup: str

    @property
    def address(self) -> str:
        """On the management network."""
        return f"10.77.0.{self.number + 1}"

    @property
    def page(self) -> Path:
        return self.folder / "spec.json"

    def write(self) -> None:
        self.page.write_text(json.dumps(asdict(self), default=str, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, page: Path) -> Spec:
        values: dict[str, Any] = json.loads(page.read_text("utf-8"))
        paths: dict[str, Any] = {name: Path(values[name]) for name in ("folder", "root", "machine")}
        return cls(**{**values, **paths})
