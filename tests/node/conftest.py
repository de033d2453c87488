"""What a run of `railwright up` planned for the node that testinfra is looking at.

Without --hosts nothing here is collected: these tests ask real nodes, and no machine that was not named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("node", "real nodes")
    output = "the output folder of `railwright up` (default: out)"
    keys = "the nodes' host keys, for paramiko:// (default: ~/.ssh/known_hosts)"
    group.addoption("--node-output", type=Path, default=Path("out"), help=output)
    group.addoption("--known-hosts", type=Path, default=Path("~/.ssh/known_hosts"), help=keys)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name.startswith("test_") and not config.getoption("--hosts", None):
        return True
    return None


class KnownHosts(paramiko.MissingHostKeyPolicy):
    """testinfra loads no host keys and only warns of unknown ones; a node that is not known is not asked here."""

    def __init__(self, known: Path) -> None:
        self.known = known.expanduser()

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if not self.known.is_file() or not paramiko.HostKeys(str(self.known)).check(hostname, key):
            raise paramiko.SSHException(
                f"{hostname} has a host key that {self.known} does not hold: ssh to it once"
            )


@pytest.fixture(scope="session", autouse=True)
def check_host_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    policy = KnownHosts(request.config.getoption("--known-hosts"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paramiko, "WarningPolicy", lambda: policy)
        yield


@pytest.fixture(scope="module")
def plan(host: Any, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The node's plan, by the name under which the inventory has it."""
    name = host.backend.hostname
    page = request.config.getoption("--node-output") / name / "plan.json"
    if not page.is_file():
        raise pytest.UsageError(
            f"{page} is not there: run `railwright up`, or name its folder with --node-output"
        )
    planned: dict[str, Any] = json.loads(page.read_text("utf-8"))
    return planned


@pytest.fixture(scope="module")
def entries(plan: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """All planned items by their kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in plan["slices"].values():
        for entry in part["entries"]:
            found.setdefault(entry["kind"], []).append(entry)
    return found
