"""check_nodes.yml on fake nodes: a page of answers, nothing written, and a run that fails before anything would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run
from tests.ansible.racks import Rack, build_rack, scratch
from tests.fake_nodes import changes, snapshot

DRIVER = {"driver": {"version": "580.173.02"}}
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nx\n-----END PGP PUBLIC KEY BLOCK-----\n"
GONE = "http://127.0.0.1:1/archive"
ARCHIVE = {"name": "site", "uris": GONE, "suites": "lab", "components": "main", "key": KEY}


@dataclass
class Story:
    """Two nodes: the policy of one asks for no driver, that of the other for one from an archive that is not there."""

    rack: Rack
    run: Run
    written: dict[str, set[str]]

    def page(self, host: str) -> list[str]:
        (shown,) = (
            result["msg"]
            for result in self.run.results("ansible.builtin.debug", host)
            if isinstance(result["msg"], list)
        )
        return [str(line) for line in shown]

    def checks(self, host: str) -> dict[str, Any]:
        found = json.loads((self.rack.output / host / "preflight.json").read_text("utf-8"))
        return {row["name"]: row for row in found["checks"]}


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with scratch() as place:
        machine: tuple[str, dict[str, Any]] = ("2s_8xh100_10xcx7", {})
        rack = build_rack(place, {"plain": machine, "asking": machine}, Path("/usr/bin/python3"))
        rack.write_inventory({"plain": {}, "asking": {**DRIVER, "software": {"sources": [ARCHIVE]}}})
        before = {node.name: snapshot(node.tree) for node in rack.nodes}
        run = rack.play("check_nodes.yml")
        written = {node.name: set(changes(before[node.name], snapshot(node.tree))) for node in rack.nodes}
        yield Story(rack, run, written)


def test_nothing_is_written_on_any_node(story: Story) -> None:
    assert story.written == {"plain": set(), "asking": set()}
    assert set(story.run.changed.values()) == {0}


def test_a_node_that_cannot_take_its_policy_fails_with_the_names_of_the_checks(story: Story) -> None:
    assert "asking" in story.run.failed
    (message,) = story.run.failures("asking")
    assert "preflight.addresses" in message
    assert message.endswith("Nothing was changed.")


def test_the_page_names_the_address_and_what_to_do(story: Story) -> None:
    lines = story.page("asking")
    (failed,) = (number for number, line in enumerate(lines) if "FAIL  preflight.addresses" in line)
    assert f"{GONE}/dists/lab/InRelease: cannot be reached: Network is unreachable" in lines[failed]
    assert "curl -I" in lines[failed + 1]


def test_what_was_not_seen_is_not_called_good(story: Story) -> None:
    row = story.checks("plain")["preflight.kernel"]
    assert (row["ok"], row["skipped"], row["level"]) == (False, True, "skipped")


def test_the_answers_are_in_the_report_too(story: Story) -> None:
    report = json.loads((story.rack.output / "report.json").read_text("utf-8"))
    assert report["ok"] is False
    assert "preflight.addresses" in json.dumps(report)
    assert "preflight.addresses" in (story.rack.output / "index.html").read_text("utf-8")
