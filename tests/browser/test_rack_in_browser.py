"""The rack as a browser shows it: quiet, within the screen, what is odd told by colour and by pattern."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railwright import report
from railwright.fleet.told import told
from tests.browser import chromium
from tests.unit import report_samples as samples
from tests.unit.test_report_rack import fleet

if chromium.find() is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five nodes on four rails, of which two are odd, beside a run's nodes."""
    folder = tmp_path_factory.mktemp("run")
    samples.write_rack(folder)
    (folder / "fleet.json").write_text(json.dumps(told(fleet(5))), encoding="utf-8")
    return report.write(folder)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_rack_is_shown_quietly_within_the_screen(
    browser: chromium.Page, page: Path, width: int, scheme: str
) -> None:
    browser.open(page, width, scheme=scheme)
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    shown = "[...document.querySelectorAll('svg.rack')].filter((one) => one.getBoundingClientRect().width > 0).length"
    assert browser.evaluate(shown) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_odd_has_a_pattern_and_a_colour_of_its_own(
    browser: chromium.Page, page: Path, scheme: str
) -> None:
    browser.open(page, 1280, scheme=scheme)
    for part, kind in (("odd-stop", "rect"), ("odd-lines", "path")):
        assert browser.evaluate(f"document.querySelectorAll('.picture {kind}.{part}').length") == 2
    stroke = "getComputedStyle(document.querySelector('.picture rect.odd-stop{}')).stroke"
    error, warning = browser.evaluate(stroke.format("")), browser.evaluate(stroke.format(".warning"))
    rail = browser.evaluate("getComputedStyle(document.querySelector('.picture svg.rack path.line')).stroke")
    assert len({error, warning, rail}) == 3


def test_the_keyboard_reaches_the_picture_and_it_says_what_it_shows(
    browser: chromium.Page, page: Path
) -> None:
    browser.open(page, 1280)
    assert (
        browser.evaluate("document.querySelector('[aria-label=\"Nodes, rails and leaves\"]').tabIndex") == 0
    )
    assert (
        browser.evaluate("document.querySelector('svg.rack title').textContent")
        == "5 nodes on 4 rails, 2 odd"
    )
