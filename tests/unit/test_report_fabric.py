"""The lossless contract on the page of a run: classes side by side, what differs marked, headroom of each link."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from railwright import report
from railwright.captures.source import Source
from railwright.fabric import Found, document, lint, read_hosts
from railwright.fabric.read import read_source
from tests.unit import report_samples as samples
from tests.unit.fabric_samples import PORTS, as_file, contract, right_sonic, stock_sonic
from tests.unit.test_fabric_hosts import HOSTS


def fabric(switch: dict[str, Any] | None = None, hosts: object = None, **more: Any) -> dict[str, Any]:
    of = contract("sonic", "eos", **more)
    states = {}
    if switch is not None:
        states["sonic"] = read_source(Source("sonic.json", as_file(switch)), "sonic", PORTS["sonic"])
    seen = read_hosts(hosts, "hosts.json") if hosts is not None else ()
    return document(lint(Found(of, "fabric", None, policy_seen=False), states, seen))


def run(folder: Path, data: object) -> Path:
    samples.write_rack(folder)
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / "fabric.json").write_text(text, encoding="utf-8")
    return folder


class Section(HTMLParser):
    """Rows of tables and texts below the heading of the fabric."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[tuple[str, str]]] = []
        self.words: list[str] = []
        self._inside = False
        self._cell: tuple[str, list[str]] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._inside = given.get("class") == "fabric"
        if self._inside and tag == "tr":
            self.rows.append([])
        if self._inside and tag in ("td", "th"):
            self._cell = (given.get("class") or "", [])

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._inside = False
        if self._cell is not None and tag in ("td", "th"):
            self.rows[-1].append((" ".join("".join(self._cell[1]).split()), self._cell[0]))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.words.append(data)
        if self._cell is not None:
            self._cell[1].append(data)


def section(folder: Path) -> Section:
    return Section(report.write(folder).read_text("utf-8"))


def test_a_run_without_a_lint_has_no_fabric(tmp_path: Path) -> None:
    samples.write_rack(tmp_path)
    assert section(tmp_path).words == []
    assert "fabric" not in report.build(tmp_path)


def test_classes_stand_side_by_side_and_what_differs_is_marked(tmp_path: Path) -> None:
    rows = section(run(tmp_path, fabric(stock_sonic(*PORTS["sonic"]), HOSTS))).rows
    assert rows[:5] == [
        [("where", ""), ("what", ""), ("roce", ""), ("cnp", "")],
        [
            ("contract", ""),
            ("contract", ""),
            ("DSCP 26 → 3 · PFC · ECN", "agrees"),
            ("DSCP 48 → 6 · strict", "agrees"),
        ],
        [
            ("sonic", ""),
            ("switch", ""),
            ("26 → 1 · no PFC · no ECN differs", "differs"),
            ("48 → 6 · no strict differs", "differs"),
        ],
        [("eos", ""), ("switch", ""), ("not seen", "unseen"), ("not seen", "unseen")],
        [("gpu01", ""), ("host", ""), ("26 → 3 · PFC", "agrees"), ("48 → 6 · strict", "agrees")],
    ]


def test_each_link_has_its_headroom_with_the_sources_of_its_numbers(tmp_path: Path) -> None:
    page = section(run(tmp_path, fabric()))
    cells = [[text for text, _ in row] for row in page.rows]
    assert [
        "sonic",
        "Ethernet0",
        "gpu01",
        "rail0",
        "400G",
        "3 m",
        "77932",
        "231424 to 5 m",
        "209920",
        "156624",
    ] in cells
    assert ["eos", "Ethernet2/1", "gpu02", "rail1", "400G", "30 m", "91568", "–", "–", "179824"] in cells
    words = " ".join(" ".join(page.words).split())
    assert "F3: (301 + 2.16 L) R + 2.72 MTU" in words
    assert (
        "ECN at 400G: 500000 to 3000000 bytes, at most 10 %; start values by speed, to be tuned (C)" in words
    )


def test_an_open_finding_makes_the_run_not_good_and_is_told_with_its_mend(tmp_path: Path) -> None:
    folder = run(tmp_path, fabric(stock_sonic(*PORTS["sonic"])))
    data = report.build(folder)
    (check,) = (one for one in data["checks"] if one["name"] == "fabric")
    assert (check["ok"], check["detail"]) == (False, "4 open findings")
    assert data["ok"] is False
    words = " ".join(" ".join(section(folder).words).split())
    assert '"DSCP_TO_TC_MAP": {"AZURE": {"26": "3"}}' in words


def test_a_right_fabric_passes_and_one_that_nobody_looked_at_is_skipped(tmp_path: Path) -> None:
    folder = run(tmp_path, fabric(right_sonic(*PORTS["sonic"]), HOSTS))
    (check,) = (one for one in report.build(folder)["checks"] if one["name"] == "fabric")
    assert check == {
        "name": "fabric",
        "ok": True,
        "detail": "hosts and switches agree where they were seen",
        "skipped": False,
    }
    assert report.build(folder)["fabric"]["ok"] is True
    assert fabric(right_sonic(*PORTS["sonic"]))["ok"] is True
    unseen = fabric()
    assert unseen["ok"] is False
    (folder / "fabric.json").write_text(json.dumps(unseen), encoding="utf-8")
    data = report.build(folder)
    (check,) = (one for one in data["checks"] if one["name"] == "fabric")
    assert check == {
        "name": "fabric",
        "ok": False,
        "detail": "no switch and no host was looked at",
        "skipped": True,
    }
    assert data["fabric"]["ok"] is False


def test_a_contract_that_contradicts_itself_is_no_skipped_check(tmp_path: Path) -> None:
    data = report.build(run(tmp_path, fabric(switch_mtu=9000)))
    (check,) = (one for one in data["checks"] if one["name"] == "fabric")
    assert (check["ok"], check["skipped"]) == (False, False)
    assert check["detail"] == "1 open finding; no switch and no host was looked at"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "fabric.json:1:2: is not JSON"),
        ([], "fabric.json: expected dict, found list"),
        (fabric() | {"schema": "x"}, "expected 'railwright.fabric/1'"),
        (fabric() | {"links": [{"switch": 3}]}, "fabric.json.links[0].switch: expected str, found int"),
        (
            fabric()
            | {"findings": [{"code": "a", "severity": "fine", "where": "", "why": "", "remedy": ""}]},
            "unknown severity 'fine'",
        ),
    ],
)
def test_a_document_that_cannot_be_used_is_a_failed_check_with_the_reason(
    tmp_path: Path, data: object, why: str
) -> None:
    folder = run(tmp_path, data)
    (check,) = (one for one in report.build(folder)["checks"] if one["name"] == "fabric")
    assert check["ok"] is False
    assert why in check["detail"]
    assert why in " ".join(section(folder).words)


def test_names_from_switches_cannot_become_markup(tmp_path: Path) -> None:
    data = fabric()
    data["classes"][0]["places"][0]["name"] = "<script>alert(1)</script>\u202e"
    text = report.write(run(tmp_path, data)).read_text("utf-8")
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in text
