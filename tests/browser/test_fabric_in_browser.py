"""The lossless contract as a browser shows it: quiet, within the screen, what differs in another colour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railwright import report
from railwright.captures.source import Source
from railwright.fabric import Contract, Found, document, lint, read_hosts
from railwright.fabric.read import read_source
from tests.browser import chromium
from tests.unit import report_samples as samples
from tests.unit.fabric_samples import as_file, contract_data, stock_sonic
from tests.unit.test_fabric_hosts import HOSTS

if chromium.find() is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaf of 64 ports as SONiC ships it, another that nobody read, and one host that agrees."""
    folder = tmp_path_factory.mktemp("run")
    samples.write_rack(folder)
    ports = [f"Ethernet{number * 8}" for number in range(64)]
    data = contract_data("sonic", "eos")
    data["switches"]["sonic"]["ports"] = {
        port: {"host": f"gpu{number + 1:02}", "nic": "rail0"} for number, port in enumerate(ports)
    }
    data["switches"]["eos"]["ports"]["Ethernet1/1"]["nic"] = "rail1"
    of = Contract.read(data)
    states = {"sonic": read_source(Source("leaf.json", as_file(stock_sonic(*ports))), "sonic", ports)}
    found = lint(
        Found(of, "group_vars/all.yml: fabric", None, policy_seen=False), states, read_hosts(HOSTS, "x")
    )
    (folder / "fabric.json").write_text(json.dumps(document(found)), encoding="utf-8")
    return report.write(folder)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_fabric_is_shown_quietly_within_the_screen(
    browser: chromium.Page, page: Path, width: int, scheme: str
) -> None:
    browser.open(page, width, scheme=scheme)
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]
    browser.evaluate("document.querySelectorAll('.fabric details').forEach((fold) => { fold.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('.fabric table').length") == 2
    assert browser.evaluate("document.querySelectorAll('.fabric details table tbody tr').length") == 66


def test_what_differs_has_another_colour_than_what_agrees(browser: chromium.Page, page: Path) -> None:
    colour = "getComputedStyle(document.querySelector('.classes td.{}')).color"
    for scheme in ("light", "dark"):
        browser.open(page, 1280, scheme=scheme)
        shown = [browser.evaluate(colour.format(state)) for state in ("agrees", "differs", "unseen")]
        assert len(set(shown)) == 3


def test_the_keyboard_reaches_the_tables(browser: chromium.Page, page: Path) -> None:
    browser.open(page, 390)
    assert browser.evaluate(
        "[...document.querySelectorAll('.fabric .scroll')].every((part) => part.tabIndex === 0 && part.ariaLabel)"
    )
