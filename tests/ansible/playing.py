"""Run a playbook as a user does, and read what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
# Another controller row's programs; the same tests, another Ansible.
PROGRAMS = Path(os.environ.get("RAILWRIGHT_ANSIBLE", Path(sys.executable).parent))


# Runs a command and leaves in a file the largest resident set, in KiB, that one process of it had.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as out:
    out.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


@dataclass(frozen=True)
class Run:
    """A playbook run that ended with its statistics."""

    code: int
    output: str
    hosts: dict[str, dict[str, int]]
    events: tuple[dict[str, Any], ...]
    peak_mib: float

    @property
    def changed(self) -> dict[str, int]:
        return {host: counts["changed"] for host, counts in self.hosts.items()}

    @property
    def failed(self) -> set[str]:
        return {host for host, counts in self.hosts.items() if counts["failures"] or counts["unreachable"]}

    def results(self, action: str, host: str | None = None) -> list[dict[str, Any]]:
        """The results of one action, in order."""
        return [
            event["result"]
            for event in self.events
            if event["action"] == action and host in (None, event["host"]) and event["kind"] != "skipped"
        ]

    def failures(self, host: str) -> list[str]:
        """What the failed tasks of a host said."""
        return [
            str(event["result"].get("msg"))
            for event in self.events
            if event["host"] == host and event["kind"] in ("failed", "unreachable")
        ]


def play(
    playbook: str | Path,
    inventory: Path,
    output: Path,
    *arguments: str,
    variables: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    within: Callable[..., list[str]] = lambda *argv: list(argv),
    limit: int = 300,
) -> Run:
    """Run `playbooks/<playbook>` over the inventory. within: the command line that runs one where the nodes are."""
    with tempfile.TemporaryDirectory(prefix="railwright-play-") as scratch:
        events, peak = Path(scratch) / "events", Path(scratch) / "peak"
        done = subprocess.run(
            within(
                *(sys.executable, "-c", MEASURED, str(peak)),
                str(PROGRAMS / "ansible-playbook"),
                *("-i", str(inventory)),
                *("-e", json.dumps({"node_output": str(output), **(variables or {})})),
                *arguments,
                str(PROJECT / "playbooks" / playbook),
            ),
            cwd=PROJECT,
            env={
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": str(PROJECT / "tests/ansible/callbacks"),
                "ANSIBLE_CALLBACKS_ENABLED": "events",
                "ANSIBLE_LOCAL_TEMP": scratch,
                "ANSIBLE_NOCOLOR": "1",
                "EVENTS_FILE": str(events),
                "HOME": os.environ.get("HOME", scratch),
                "LANG": "C.UTF-8",
                "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
        lines = (
            [json.loads(line) for line in events.read_text("utf-8").splitlines()] if events.exists() else []
        )
        peak_mib = int(peak.read_text("utf-8")) / 1024
    stats = [line for line in lines if line["kind"] == "stats"]
    assert stats, f"{playbook} ended without statistics:\n{done.stdout}"
    return Run(
        done.returncode,
        done.stdout,
        stats[0]["hosts"],
        tuple(line for line in lines if line["kind"] != "stats"),
        peak_mib,
    )
