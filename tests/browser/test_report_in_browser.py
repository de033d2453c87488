"""The report as a browser shows it: nothing logged, nothing fetched, nothing wider than the screen, both schemes."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from railwright import report
from tests.browser import chromium
from tests.unit import report_samples as samples

if chromium.find() is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rack")
    samples.write_rack(directory)
    return report.write(directory)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    check = {"name": "<img src=x onerror=alert(4)>", "ok": False, "detail": "x" * 500, "skipped": False}
    for name in ("<i>node", "n" * 200, "a b c " * 30):
        samples.write_node(
            directory, name, *samples.hostile_files(), checks=[check], changes=samples.changes()
        )
    assert all(not node["reasons"] for node in report.build(directory)["nodes"].values())
    return report.write(directory)


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Colour of the pixel in the upper left corner of an RGB or RGBA image of 8 bits."""
    assert png.startswith(b"\x89PNG")
    data, position, channels = b"", 8, 0
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        kind, body = png[position + 4 : position + 8], png[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            channels = {2: 3, 6: 4}[body[9]]
        if kind == b"IDAT":
            data += body
        position += 12 + length
    # Behind the filter's byte the first pixel of the first row stands as it is, whatever the filter.
    return tuple(zlib.decompress(data)[1 : 1 + channels][:3])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_renders_quietly_and_fits_the_screen(
    browser: chromium.Page, rack: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.open(rack, width, scheme=scheme)
    assert browser.problems == []
    assert browser.requests == [rack.as_uri()]
    browser.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('article').length") == 7
    top = first_pixel(browser.screenshot(tmp_path / "page.png"))
    assert (sum(top) > 3 * 200) is (scheme == "light"), top


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_neither_run_nor_push_the_page_wide(
    browser: chromium.Page, hostile: Path, width: int
) -> None:
    browser.open(hostile, width)
    assert browser.problems == []
    assert browser.requests == [hostile.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.scripts.length") == 1


def test_one_picture_of_each_node_is_shown_at_each_width(browser: chromium.Page, rack: Path) -> None:
    shown = (
        "[...document.querySelectorAll('article svg.rw')]"
        ".map((picture) => picture.getBoundingClientRect().width).filter((width) => width > 0)"
    )
    browser.open(rack, 1280)
    browser.evaluate("document.getElementById('unfold').click()")
    wide = browser.evaluate(shown)
    assert len(wide) == 7
    assert min(wide) >= 640
    browser.open(rack, 390)
    browser.evaluate("document.getElementById('unfold').click()")
    narrow = browser.evaluate(shown)
    assert len(narrow) == 7
    assert max(narrow) <= 390


def test_the_text_of_the_pictures_stays_readable(browser: chromium.Page, rack: Path) -> None:
    smallest = (
        "Math.min(...[...document.querySelectorAll('article svg.rw text')]"
        ".filter((text) => text.getBoundingClientRect().width > 0)"
        ".map((text) => parseFloat(getComputedStyle(text).fontSize)"
        " * text.ownerSVGElement.getBoundingClientRect().width / text.ownerSVGElement.viewBox.baseVal.width))"
    )
    for width in WIDTHS:
        browser.open(rack, width)
        browser.evaluate("document.getElementById('unfold').click()")
        assert browser.evaluate(smallest) >= 9, width


def test_no_words_of_a_picture_lie_on_each_other(browser: chromium.Page, rack: Path) -> None:
    overlaps = """
    [...document.querySelectorAll('article svg.rw')].flatMap((picture) => {
      const texts = [...picture.querySelectorAll('text')]
        .filter((text) => !text.getAttribute('transform') && text.textContent !== '!')
        .map((text) => ({ words: text.textContent, box: text.getBoundingClientRect() }))
        .filter(({ box }) => box.width > 0);
      const found = [];
      texts.forEach((a, n) => texts.slice(n + 1).forEach((b) => {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (across > 1 && down > 4) { found.push(a.words + ' / ' + b.words); }
      }));
      return found;
    })
    """
    for width in WIDTHS:
        browser.open(rack, width)
        browser.evaluate("document.getElementById('unfold').click()")
        assert browser.evaluate(overlaps) == [], width


def test_the_filter_shows_what_is_asked_for(browser: chromium.Page, rack: Path) -> None:
    browser.open(rack, 1280)
    shown = "[...document.querySelectorAll('article:not([hidden]) h2')].map((name) => name.textContent)"
    browser.evaluate("document.getElementById('faulty').click()")
    assert browser.evaluate(shown) == ["gpu-a02", "gpu-a03", "paste", "vm-c3"]
    browser.evaluate(
        "(() => { const find = document.getElementById('find'); find.value = 'PCIE.degraded';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    assert browser.evaluate(shown) == ["gpu-a02"]
    assert browser.evaluate("document.querySelectorAll('.board tbody tr:not([hidden])').length") == 1
    assert browser.evaluate("document.getElementById('shown').textContent") == "1 of 7 shown"
    assert browser.problems == []


def test_a_node_that_is_followed_from_the_table_opens(browser: chromium.Page, rack: Path) -> None:
    browser.open(rack, 1280)
    is_open = "document.querySelector('#n1 > details').open"
    assert browser.evaluate(is_open) is False
    browser.evaluate("document.querySelector('.board a[href=\"#n1\"]').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert browser.evaluate(is_open) is True


def test_the_keyboard_reaches_every_scrolling_part(browser: chromium.Page, rack: Path) -> None:
    browser.open(rack, 390)
    unreachable = (
        "[...document.querySelectorAll('*')].filter((part) => part.scrollWidth > part.clientWidth + 1"
        " && ['auto', 'scroll'].includes(getComputedStyle(part).overflowX) && part.tabIndex < 0)"
        ".map((part) => part.className)"
    )
    assert browser.evaluate(unreachable) == []


def test_a_picture_stands_alone(browser: chromium.Page, tmp_path: Path) -> None:
    facts, plan = samples.uneven()
    picture = tmp_path / "node.svg"
    picture.write_text(report.node_svg(plan, facts), encoding="utf-8")
    grounds = {}
    for scheme in SCHEMES:
        browser.open(picture, 1280, scheme=scheme)
        assert browser.problems == []
        assert browser.requests == [picture.as_uri()]
        grounds[scheme] = browser.evaluate("getComputedStyle(document.querySelector('.ground')).fill")
    assert grounds["light"] != grounds["dark"]


def test_it_prints_in_dark_ink_on_white(browser: chromium.Page, rack: Path) -> None:
    browser.open(rack, 1280, scheme="dark")
    browser.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
    # Browsers leave grounds out on paper, and a white number on no ground is no number.
    assert browser.evaluate("getComputedStyle(document.querySelector('.dot')).printColorAdjust") == "exact"
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.pdf().startswith(b"%PDF")
