"""What the sweeps over the writer's calls share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.crash_support import Service, Traced, served, tracing


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    with tracing(tmp_path) as runs:
        yield runs


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path) as service:
        yield service


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, "programs") as service:
        yield service
