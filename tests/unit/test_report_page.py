"""index.html: one file that asks for nothing, says what matters in plain words and lets no name become markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from railwright import report
from railwright.node.model import Bound, Certificate, Claim, Conflict, CutLink, Finding, Slice
from railwright.report import palette
from railwright.report.certificate import gauges, in_words, proof
from railwright.report.numbers import network_rate, rate
from railwright.report.order import natural
from railwright.report.visible import shorten, visible
from tests.unit import report_samples as samples


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser's tokeniser would see them."""

    VOID = ("meta", "link", "input", "br", "wbr", "path", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts.setdefault(tag, []).append(data)

    def text(self, tag: str = "body") -> str:
        return " ".join("".join(self.texts.get(tag, [])).split())


def page_of(directory: Path) -> tuple[str, Page]:
    text = report.write(directory).read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    directory = tmp_path_factory.mktemp("rack")
    samples.write_rack(directory)
    return page_of(directory)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    directory = tmp_path_factory.mktemp("hostile")
    changes = samples.changes()
    changes["slices"]["nccl_conf"]["items"][0]["before"] = "</pre><script>alert(3)</script>"
    changes["slices"]["</p><script>alert(5)</script>"] = changes["slices"].pop("sysctls")
    check = {"name": "<img src=x onerror=alert(4)>", "ok": False, "detail": "\u202e\x07", "skipped": False}
    skipped = {"name": "<b>", "ok": False, "detail": "<i>", "skipped": True}
    facts, plan = samples.hostile_files()
    facts = replace(facts, conflicts=(Conflict("<u>", (Claim("<s>", "<q>"),)),))
    samples.write_node(directory, "<i>\u202enode\"'", facts, plan, checks=[check, skipped], changes=changes)
    samples.write_node(directory, "{{ 7 * 7 }}", facts, plan, checks=[check])
    assert [node["reasons"] for node in report.build(directory)["nodes"].values()] == [[], []]
    return page_of(directory)


# One file.


def test_every_tag_is_closed_where_it_should_be(rack: tuple[str, Page], hostile: tuple[str, Page]) -> None:
    for text, page in (rack, hostile):
        assert text.startswith("<!DOCTYPE html>\n")
        assert page.open == []


def test_the_page_refers_to_nothing_outside_itself(rack: tuple[str, Page], hostile: tuple[str, Page]) -> None:
    for _, page in (rack, hostile):
        for tag, attributes in page.elements:
            for name, value in attributes.items():
                if name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href", "background"):
                    assert (value or "").startswith("#") or value == "data:,", (tag, name, value)
            assert tag not in ("iframe", "object", "embed", "base", "form", "img")
        css = page.text("style")
        assert "url(" not in css
        assert "@import" not in css


def test_ids_are_unique_and_every_anchor_leads_somewhere(rack: tuple[str, Page]) -> None:
    _, page = rack
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(attributes.get("href") or "")[1:] for tag, attributes in page.elements if tag == "a"}
    assert targets <= set(ids)
    for _, attributes in page.elements:
        for id_ in (attributes.get("aria-labelledby") or "").split():
            assert id_ in ids


def test_only_this_pages_own_style_and_script_are_let_in(rack: tuple[str, Page]) -> None:
    text, page = rack
    policy = next(
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # Such a policy forbids style attributes and event handlers, so there are none.
    assert not [
        a for _, attributes in page.elements for a in attributes if a == "style" or a.startswith("on")
    ]


def test_names_of_others_stay_names(hostile: tuple[str, Page]) -> None:
    text, page = hostile
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not [tag for tag, _ in page.elements if tag in ("img", "q", "s", "u", "i")]
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe]", text
    )
    shown = page.text()
    for name in (
        "<script>alert(1)</script>\\u202eevil\\u202c",
        "</pre><script>alert(3)</script>",
        "<img src=x onerror=alert(4)>",
        "</p><script>alert(5)</script>",
        "'\"><img src=http://example.invalid/x>",
        "\\u202e\\u0007",
        "\\ud800 \\ufffe",
        "<i>\\u202enode\"'",
        "{{ 7 * 7 }}",
        "<s> says <q>",
    ):
        assert name in shown, name


# What it says.


def test_the_verdict_is_the_first_thing_and_the_machine_word_stands_by_it(rack: tuple[str, Page]) -> None:
    _, page = rack
    assert (
        page.text("h1")
        == "4 of 7 nodes are not good: 1 refused, 1 without a result, 1 with faults, 1 not checked."
    )
    assert '"ok": false in report.json' in page.text()
    assert page.text("title").startswith("Not good: 7 nodes")


def test_a_good_run_says_so(tmp_path: Path) -> None:
    samples.write_node(tmp_path, "n1", *samples.hgx(), changes=samples.changes(False))
    _, page = page_of(tmp_path)
    assert page.text("h1") == "The node is good: planned, no open error, every check that ran passed."
    assert '"ok": true in report.json' in page.text()
    assert "Every check ran." in page.text()
    assert "Nothing: the node was as planned." in page.text()


def test_an_empty_run_says_that_there_is_nothing(tmp_path: Path) -> None:
    _, page = page_of(tmp_path)
    assert page.text("h1") == "Nothing to report: there is no node in this directory."


def test_every_node_has_its_own_picture_and_tables(rack: tuple[str, Page]) -> None:
    _, page = rack
    pictures = [
        attributes for tag, attributes in page.elements if tag == "svg" and attributes.get("class") == "rw"
    ]
    assert len(pictures) == 2 * 7  # wide and narrow
    text = page.text()
    for words in (
        "NUMA node 1",
        "mlx5_11 is on its PCIe switch and serves no other GPU",
        "39-47,135-143",  # cores of rank 3
        "37-38",  # cores of its NIC's interrupts
        "NCCL reads /etc/nccl.conf",
        "NCCL_IB_HCA==mlx5_0:1:0,mlx5_3:1:1",
        "The next rate up is 24 GB/s, and at that rate this link admits only 7 flows for 8 GPUs.",
        "irq.312 write 95 → 25-26",
        "managed by the kernel",
        "Not tuned in this run.",
        "Borne because the cloud needs ACS here, ticket 4711",
        "Refused: all 8 GPUs and 8 NICs hang off one bus",
        "What is missing or cannot be used: findings.json missing",
    ):
        assert words in text, words


def test_what_was_not_checked_is_told_before_the_nodes_with_its_reason(rack: tuple[str, Page]) -> None:
    text, page = rack
    assert "nvidia_smi.order nvidia-smi is not on the node on gpu-a01, gpu-a02, paste" in page.text()
    assert "gpu-a03 no check ran on this node: findings.json missing" in page.text()
    assert text.index('id="unseen"') < text.index("<article")


def test_commands_of_remedies_can_be_copied(rack: tuple[str, Page]) -> None:
    text, _ = rack
    command = "lspci -vv -s 0000:60:00.0 | grep LnkSta"
    assert f'<code>{command}</code><button type="button" class="copy" hidden>copy</button>' in text


def test_a_remedy_that_is_one_of_our_own_commands_can_be_copied_too(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    command = "ansible-playbook playbooks/retune.yml -l gpu-a01"
    finding = Finding("x.y", "error", "here", "why", command)
    samples.write_node(tmp_path, "n1", facts, replace(plan, findings=(finding,)))
    assert f"<code>{command}</code><button" in page_of(tmp_path)[0]


def test_a_check_skipped_on_many_nodes_names_a_few(tmp_path: Path) -> None:
    for number in range(1, 10):
        everywhere = {"name": "every", "ok": False, "detail": "no tool", "skipped": True}
        some = {**everywhere, "name": "some"}
        checks = [samples.GOOD_CHECKS[0], everywhere, *([some] if number < 9 else [])]
        samples.write_node(tmp_path, f"n{number}", *samples.matrix(), checks=checks)
    text = page_of(tmp_path)[1].text()
    assert "every no tool on every node" in text
    assert "some no tool on n1, n2, n3, n4, n5, n6 and 2 more" in text


def test_long_details_are_folded_and_whole(tmp_path: Path) -> None:
    detail = "; ".join(f"IRQ {number} is on CPU {number}" for number in range(60))
    check = {"name": "irq", "ok": False, "detail": detail, "skipped": False}
    samples.write_node(tmp_path, "n1", *samples.matrix(), checks=[check])
    text, page = page_of(tmp_path)
    assert detail in page.text()
    assert "…" in text


def test_notes_stand_behind_what_has_to_be_done(rack: tuple[str, Page]) -> None:
    text, page = rack
    assert "1 note" in page.text("summary")
    assert text.index("pcie.degraded") < text.index("facts.note")


def test_a_lone_backtick_leaves_the_remedy_as_it_stands(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    finding = Finding("x.y", "warning", "here", "why", "look at `this")
    samples.write_node(tmp_path, "n1", facts, replace(plan, findings=(finding,)))
    _, page = page_of(tmp_path)
    assert "Do look at `this" in page.text()


def test_a_slice_that_needs_a_reboot_says_so(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    slices = {**plan.slices, "kernel_cmdline": Slice("persistent", (), "iommu off")}
    samples.write_node(tmp_path, "n1", facts, replace(plan, slices=slices))
    assert "kernel_cmdline not written needs a reboot iommu off" in page_of(tmp_path)[1].text()


def test_it_can_be_read_without_javascript(rack: tuple[str, Page]) -> None:
    _, page = rack
    hidden = {tag for tag, attributes in page.elements if "hidden" in attributes}
    assert hidden == {"div", "button"}  # the tools and the copy buttons, which need it


def test_findings_of_one_kind_and_one_remedy_stand_together(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    alike = tuple(
        Finding("pcie.width", "warning", f"0000:0{n}:00.0", f"runs at x{n}", "reseat it") for n in range(1, 6)
    )
    other = replace(alike[0], remedy="leave it")
    samples.write_node(tmp_path, "n1", facts, replace(plan, findings=(*alike, other)))
    text, page = page_of(tmp_path)
    assert text.count('<li class="finding warning">') == 2
    shown = page.text()
    assert "and 4 more like it: 0000:02:00.0, 0000:03:00.0, 0000:04:00.0, 0000:05:00.0" in shown
    assert all(f"0000:0{n}:00.0 runs at x{n}" in shown for n in range(2, 6))
    assert "8 GPUs on 8 rails, 48 GB/s for each with all sending; 6 warnings." in shown


def test_the_ends_of_a_cut_have_their_names(tmp_path: Path) -> None:
    facts, plan = samples.hgx()
    cut = Certificate(
        50.0, 8, 7, (CutLink("0000:18:00.0 -> 0000:16:00.0", 48.0, 0), CutLink("numa0 -> numa1", 22.0, 0))
    )
    samples.write_node(tmp_path, "n1", facts, replace(plan, bound=replace(plan.bound, certificate=cut)))
    _, page = page_of(tmp_path)
    assert "GPU0 (0000:18:00.0) to 0000:16:00.0 48 GB/s, admits 0" in page.text()
    assert "NUMA node 0 to NUMA node 1 22 GB/s, admits 0" in page.text()


# Words and numbers.


def test_the_certificate_in_words() -> None:
    links = tuple(CutLink(f"mlx5_{n} port", 48.0, 0) for n in range(8))
    assert in_words(Certificate(96.0, 8, 0, links)).endswith(
        "at that rate these 8 links admit only 0 flows for 8 GPUs."
    )
    assert in_words(Certificate(96.0, 2, 1, links[:1])).endswith("this link admits only 1 flow for 2 GPUs.")
    assert proof(Bound(optimal=True)) == "No larger rate is possible: no link of this node lets one through."
    assert proof(Bound(optimal=False)) == "Not shown to be the best: the plan carries no proof."
    assert proof(Bound()).startswith("Unknown")
    assert proof(Bound(verdict="Nothing is known.")) == ""


def test_the_gauges_compare_with_the_largest_and_leave_the_unknown_unknown() -> None:
    rows = gauges(Bound(per_gpu_gbytes=50.0, achieved_gbytes=25.0, index_pairing_gbytes=0.0))
    assert [(row.gbytes, row.share) for row in rows] == [
        (25.0, 50.0),
        (None, None),
        (50.0, 100.0),
        (0.0, 0.0),
        (None, None),
        (None, None),
    ]
    assert gauges(Bound()) == ()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "unknown"),
        (48.0, "48"),
        (12.5, "12.5"),
        (0.19, "0.19"),
        (0.0, "0"),
        (22.504, "22.5"),
        (100.0, "100"),
    ],
)
def test_rates_are_short(value: float | None, shown: str) -> None:
    assert rate(value) == shown


def test_network_rates_are_as_printed_on_the_card() -> None:
    assert [network_rate(value) for value in (400000, 2500, 100, None)] == [
        "400 Gb/s",
        "2.5 Gb/s",
        "100 Mb/s",
        "rate unknown",
    ]
    assert network_rate(400000, short=True) == "400G"


def test_names_sort_as_people_count() -> None:
    assert sorted(["n10", "n9", "n1", "a2b10", "a2b9", "n01"], key=natural) == [
        "a2b9",
        "a2b10",
        "n01",
        "n1",
        "n9",
        "n10",
    ]


def test_hidden_characters_are_spelled_out_and_letters_of_any_script_stay() -> None:
    assert visible("a\u202eb\x1b[0m\u200b\ufeff\ue000") == "a\\u202eb\\u001b[0m\\u200b\\ufeff\\ue000"
    assert visible("узел 節点 עברית ä\n\t") == "узел 節点 עברית ä\n\t"
    assert visible("\U000e0041") == "\\ue0041"


def test_a_name_is_cut_in_the_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcdef…ijk"
    assert len(shorten("\u202e" * 50, 12)) == 12


# Colours.


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


SCHEMES = {"light": "", "dark": "prefers-color-scheme: dark", "print": "print"}
GROUNDS = ("paper", "sheet", "box", "code")
ON_GROUNDS = ("ink", "mute", "link", "good", "caution", "stop")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_has_a_contrast_of_4_5_and_lines_of_3(rack: tuple[str, Page], scheme: str) -> None:
    css = rack[1].text("style")
    blocks = re.findall(r"(?:@media ?\(?([a-z: -]+?)\)? ?\{)?:root\{([^}]*)\}", css)
    (block,) = (found for media, found in blocks if media == SCHEMES[scheme])
    colours = dict(re.findall(r"--([a-z0-9-]+): ?(#[0-9a-f]{6})", block))
    assert len(colours) == len(palette.LIGHT)
    for ground in GROUNDS:
        for name in ON_GROUNDS:
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for rail in range(8):
            assert contrast(colours[f"rail-{rail}"], colours[ground]) >= 3, (rail, ground)
    for name in ("good", "caution", "stop"):
        assert contrast(colours[name], colours[f"{name}-wash"]) >= 4.5, name
    for rail in range(8):
        assert contrast(colours["on-rail"], colours[f"rail-{rail}"]) >= 4.5, rail
    assert contrast(colours["sheet"], colours["ink"]) >= 4.5  # the index on a GPU
    for name in ("stop", "caution"):
        assert contrast(colours["sheet"], colours[name]) >= 4.5  # the mark in a triangle


def test_both_schemes_name_the_same_colours_and_no_style_names_another() -> None:
    assert set(palette.LIGHT) == set(palette.DARK) == set(palette.PAPER)
    for name in ("page.css", "picture.css"):
        css = (Path(report.__file__).parent / name).read_text(encoding="utf-8")
        used = set(re.findall(r"var\(--([a-z0-9-]+)\)", css))
        assert used <= {*palette.LIGHT, "line"}
        assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[^{]*;)", css)


def test_rails_differ_in_colour() -> None:
    for colours in (palette.LIGHT, palette.DARK):
        assert len({colours[f"rail-{rail}"] for rail in range(palette.RAILS)}) == palette.RAILS


def test_the_page_names_what_could_not_be_set_and_what_waits_for_a_boot(tmp_path: Path) -> None:
    failure = {"where": "slices.sysctls[0]", "why": "<b>Invalid</b> argument", "remedy": "give another value"}
    changes = {
        **samples.changes(False),
        "failures": [failure],
        "reboot_needed": ["file:/etc/modprobe.d/a.conf"],
    }
    samples.write_node(tmp_path, "n1", *samples.hgx(), changes=changes)
    text, page = page_of(tmp_path)
    shown = page.text()
    assert "Could not be set slices.sysctls[0] <b>Invalid</b> argument give another value" in shown
    assert "In force after the next boot file:/etc/modprobe.d/a.conf" in shown
    assert "Nothing: the node was as planned." not in shown
    assert "nodes, this run; 1 reboot owed" in shown
    assert "<b>Invalid" not in text


def test_the_page_of_a_run_without_failures_and_reboots_speaks_of_neither(rack: tuple[str, Page]) -> None:
    _, page = rack
    assert "Could not be set" not in page.text()
    assert "the next boot" not in page.text()
    assert "owed" not in page.text()
