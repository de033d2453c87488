"""The picture of a node: everything once, on the right links, safe whatever the names are."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from railwright.node.model import (
    Acs,
    Facts,
    Finding,
    Gpu,
    Link,
    LoadedLink,
    Nic,
    NumaNode,
    PciDevice,
    Plan,
    PlannedGpu,
    PlannedNic,
    Root,
    Witness,
)
from railwright.node.model import Path as Distance
from railwright.report import node_svg
from railwright.report.layout import NARROW, WIDE, lay_out
from railwright.report.markup import element, words
from railwright.report.svg import draw
from railwright.report.tree import Station, node_tree
from tests.unit import report_samples as samples

SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = {
    name: getattr(samples, name)
    for name in ("hgx", "backwards", "pcie_box", "refused_vm", "matrix", "uneven", "hostile")
}


def parsed(plan: Plan, facts: Facts) -> ElementTree.Element:
    # Our own bytes, and the point is that they are XML: the parser of the standard library is strict about it.
    return ElementTree.fromstring(node_svg(plan, facts))  # noqa: S314


def rows(svg: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [group for group in svg.iter(f"{SVG}g") if group.get("class") == f"{kind}-row"]


def names(svg: ElementTree.Element, kind: str) -> list[str]:
    """First word of each row's title: the whole name, whatever the picture had to shorten."""
    return [(row.findtext(f"{SVG}title") or "").split(",")[0].split(":")[0] for row in rows(svg, kind)]


@pytest.mark.parametrize("sample", ["hgx", "backwards", "pcie_box", "refused_vm", "matrix", "uneven"])
def test_every_gpu_and_every_nic_is_in_the_picture_once(sample: str) -> None:
    facts, plan = SAMPLES[sample]()
    svg = parsed(plan, facts)
    assert sorted(names(svg, "gpu")) == sorted(gpu.name for gpu in facts.gpus)
    assert sorted(names(svg, "nic")) == sorted(nic.name for nic in facts.nics)


def test_eight_gpus_and_twelve_nics_are_all_there() -> None:
    facts, plan = samples.hgx()
    svg = parsed(plan, facts)
    assert (len(rows(svg, "gpu")), len(rows(svg, "nic"))) == (8, 12)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("narrow", [False, True])
def test_nothing_stands_outside_the_picture(sample: str, narrow: bool) -> None:
    facts, plan = SAMPLES[sample]()
    svg = ElementTree.fromstring(draw(plan, facts, narrow=narrow))  # noqa: S314
    width, height = (float(svg.get(side, "")) for side in ("width", "height"))
    # A telephone is 374 wide between its margins; a picture that is scaled down by a tenth is still readable.
    assert width <= (410 if narrow else 900)
    for part in svg.iter():
        for attribute, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            value = part.get(attribute)
            assert value is None or -12 <= float(value) <= limit, (part.tag, attribute, value)


def test_rows_do_not_overlap() -> None:
    facts, plan = samples.hgx()
    layout = lay_out(node_tree(plan, facts), WIDE)
    heights = sorted(place.y for place in layout.places.values() if place.station.kind in ("gpu", "nic"))
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 38


@pytest.mark.parametrize("sample", SAMPLES)
def test_ids_are_unique_and_the_picture_is_named_by_them(sample: str) -> None:
    facts, plan = SAMPLES[sample]()
    svg = parsed(plan, facts)
    ids = [element.get("id") for element in svg.iter() if element.get("id")]
    assert len(ids) == len(set(ids)) == 2
    assert svg.get("role") == "img"
    assert (svg.get("aria-labelledby") or "").split() == ids
    assert svg.findtext(f"{SVG}desc")


def test_the_description_says_who_uses_what() -> None:
    facts, plan = samples.pcie_box()
    text = parsed(plan, facts).findtext(f"{SVG}desc") or ""
    assert "GPU2 uses rocep97s0 (rail 1) over PHB." in text
    assert "NUMA node 0 holds GPU0, GPU1, rocep33s0." in text


def test_the_document_asks_for_nothing_outside_itself() -> None:
    for make in SAMPLES.values():
        facts, plan = make()
        text = node_svg(plan, facts)
        assert "url(" not in text
        assert "@import" not in text
        assert re.findall(r"https?://[^\"<& ]*", text.replace("http://example.invalid/x", "")) == [
            "http://www.w3.org/2000/svg"
        ]
        assert "var(" not in text  # programs other than browsers draw it too
        style = ElementTree.fromstring(text).findtext(f"{SVG}style") or ""  # noqa: S314
        assert style.count(".rw .ground") == 2  # light, and dark where that is preferred
        assert style.count("@media (prefers-color-scheme: dark)") == 1


def test_the_same_plan_gives_the_same_bytes_in_any_order_of_facts() -> None:
    facts, plan = samples.uneven()
    expected = node_svg(plan, facts)
    shuffled = random.Random(7)  # noqa: S311
    for _ in range(5):
        mixed = replace(
            facts,
            pci=tuple(shuffled.sample(facts.pci, len(facts.pci))),
            gpus=tuple(shuffled.sample(facts.gpus, len(facts.gpus))),
            nics=tuple(shuffled.sample(facts.nics, len(facts.nics))),
            roots=tuple(shuffled.sample(facts.roots, len(facts.roots))),
        )
        assert node_svg(plan, mixed) == expected


# Where things hang.


def outline(station: Station, depth: int = 0) -> list[str]:
    lines = [f"{'  ' * depth}{station.kind} {station.label}"]
    for child in station.children:
        lines += outline(child, depth + 1)
    return lines


def test_a_switch_is_one_station_and_its_ports_are_not_drawn() -> None:
    facts, plan = samples.hgx()
    lines = outline(node_tree(plan, facts))
    first = lines.index("    host-bridge pci0000:15")
    assert lines[first : first + 5] == [
        "    host-bridge pci0000:15",
        "      switch 0000:16:00.0",
        "        gpu GPU0",
        "        nic mlx5_0",  # its rail NIC comes first, though mlx5_1 might be sorted between
        "        nic mlx5_1",
    ]
    # Two functions of one card behind a root port are no switch.
    card = lines.index("    host-bridge pci0000:00")
    assert lines[card + 1 : card + 3] == ["      nic mlx5_2", "      nic mlx5_8"]
    assert not any("0000:17:00" in line or "0000:15:01" in line for line in lines)


def small(
    pci: list[PciDevice], roots: tuple[Root, ...] = (Root("pci0000:00", 0),), kind: str = "sysfs"
) -> Facts:
    return Facts(
        "railwright.facts/1",
        (Witness(kind, "x"),),
        roots=roots,
        pci=tuple(pci),
        gpus=(Gpu("GPU0", 0, "0000:05:00.0"),),
        nics=(Nic("mlx5_0", "0000:06:00.0"),),
    )


NO_PLAN = Plan("railwright.plan/1", "refused")


def test_bridges_of_unknown_type_are_switches_only_where_something_branches() -> None:
    chain = [
        PciDevice("0000:00:01.0", "pci0000:00"),
        PciDevice("0000:03:00.0", "0000:00:01.0"),
        PciDevice("0000:04:00.0", "0000:03:00.0"),
        PciDevice("0000:04:01.0", "0000:03:00.0"),
        PciDevice("0000:05:00.0", "0000:04:00.0"),
        PciDevice("0000:06:00.0", "0000:04:01.0"),
    ]
    assert outline(node_tree(NO_PLAN, small(chain))) == [
        "machine machine",
        "  numa NUMA node 0",
        "    host-bridge pci0000:00",
        "      switch 0000:03:00.0",
        "        gpu GPU0",
        "        nic mlx5_0",
    ]


def test_every_bridge_of_a_nccl_dump_is_a_switch() -> None:
    chain = [
        PciDevice("0000:03:00.0", "numa0"),
        PciDevice("0000:05:00.0", "0000:03:00.0"),
        PciDevice("0000:06:00.0", "numa0"),
    ]
    assert outline(node_tree(NO_PLAN, small(chain, (Root("numa0", 0),), "nccl-xml"))) == [
        "machine machine",
        "  numa NUMA node 0",
        "    switch 0000:03:00.0",
        "      gpu GPU0",
        "    nic mlx5_0",
    ]


def test_devices_that_no_tree_shows_hang_below_a_node_that_says_so() -> None:
    facts = replace(small([PciDevice("0000:05:00.0", None)]), roots=())
    assert outline(node_tree(NO_PLAN, facts)) == [
        "machine machine",
        "  numa NUMA node unknown",
        "    gpu GPU0",
        "    nic mlx5_0",
    ]


def test_a_circle_of_bridges_ends() -> None:
    ring = [
        PciDevice("0000:03:00.0", "0000:04:00.0"),
        PciDevice("0000:04:00.0", "0000:03:00.0"),
        PciDevice("0000:05:00.0", "0000:04:00.0"),
        PciDevice("0000:06:00.0", "0000:06:00.0"),
    ]
    svg = parsed(NO_PLAN, small(ring))
    assert (len(rows(svg, "gpu")), len(rows(svg, "nic"))) == (1, 1)


def test_two_numa_nodes_below_one_bridge_are_two_places() -> None:
    pci = [
        PciDevice("0000:03:00.0", "pci0000:00", port="upstream", acs=Acs((), ())),
        PciDevice("0000:05:00.0", "0000:03:00.0", numa=0, link=Link()),
        PciDevice("0000:06:00.0", "0000:03:00.0", numa=1, link=Link()),
    ]
    lines = outline(node_tree(NO_PLAN, small(pci, (Root("pci0000:00", None),))))
    assert [line for line in lines if "numa" in line] == ["  numa NUMA node 0", "  numa NUMA node 1"]
    svg = parsed(NO_PLAN, small(pci, (Root("pci0000:00", None),)))
    bars = [
        bar.get("y") for bar in svg.iter(f"{SVG}rect") if bar.get("class") == "bar" and bar.get("x") != "-5"
    ]
    assert len(set(bars)) == 2


def test_a_matrix_is_drawn_by_what_is_shared() -> None:
    facts, plan = samples.matrix()
    assert outline(node_tree(plan, facts)) == [
        "machine machine",
        "  numa NUMA node 0",
        "    switch switches",
        "      switch one switch",
        "        gpu GPU0",
        "        nic NIC0",
        "      gpu GPU1",
        "  numa NUMA node 1",
        "    host-bridge host bridge",
        "      switch one switch",
        "        gpu GPU2",
        "        nic NIC1",
        "      gpu GPU3",
        "    nic NIC2",
    ]


def test_a_matrix_without_a_near_pair_has_no_invented_switch() -> None:
    gpus = tuple(Gpu(f"GPU{n}", n) for n in range(2))
    nics = (Nic("NIC0"),)
    facts = Facts(
        "railwright.facts/1",
        (Witness("nvidia-smi", "-"),),
        gpus=gpus,
        nics=nics,
        paths=(Distance("GPU0", "NIC0", "SYS"), Distance("GPU1", "NIC0", "SYS")),
    )
    assert outline(node_tree(NO_PLAN, facts)) == [
        "machine machine",
        "  numa NUMA node unknown",
        "    gpu GPU0",
        "    gpu GPU1",
        "    nic NIC0",
    ]


def test_devices_that_only_the_plan_knows_are_drawn_too() -> None:
    facts, plan = samples.hgx()
    svg = parsed(plan, replace(facts, gpus=facts.gpus[1:], nics=facts.nics[:-1]))
    assert sorted(names(svg, "gpu")) == [f"GPU{n}" for n in range(8)]
    assert len(rows(svg, "nic")) == 12


# Lines.


def stations_on(plan: Plan, facts: Facts, gpu: str) -> list[str]:
    """Labels of the bars that the line of this GPU runs through, found by geometry."""
    layout = lay_out(node_tree(plan, facts), WIDE)
    (line,) = (line for line in layout.lines if line.gpu == gpu)
    found = []
    for (x0, y0), (x1, y1) in zip(line.points, line.points[1:], strict=False):
        if abs(x0 - x1) > 0.01:
            continue
        for place in layout.places.values():
            if place.station.children and abs(place.x - x0) <= layout.halves[place.station.key]:
                heights = [child.y for child in layout.children(place.station.key)]
                low, high = min([*heights, place.y]) - 10, max([*heights, place.y]) + 10
                if low <= min(y0, y1) and max(y0, y1) <= high:
                    found.append(place.station.label)
    return found


def test_a_line_runs_through_what_lies_between_gpu_and_nic() -> None:
    facts, plan = samples.hgx()
    assert stations_on(plan, facts, "GPU6") == ["0000:a6:00.0"]
    facts, plan = samples.uneven()
    assert stations_on(plan, facts, "GPU3") == ["pci0000:40", "NUMA node 1", "pci0000:30"]
    assert stations_on(plan, facts, "GPU6") == [
        "pci0000:70",
        "NUMA node 3",
        "machine",
        "NUMA node 2",
        "pci0000:50",
    ]


def test_a_line_begins_at_its_gpu_and_ends_at_its_nic() -> None:
    for make in (samples.hgx, samples.uneven, samples.pcie_box, samples.matrix):
        facts, plan = make()
        for measures in (WIDE, NARROW):
            layout = lay_out(node_tree(plan, facts), measures)
            places = {place.station.label: place for place in layout.places.values()}
            expected = {(gpu.name, nic) for gpu in plan.gpus for nic in gpu.nics}
            assert {(line.gpu, line.nic) for line in layout.lines} == expected
            for line in layout.lines:
                gpu, nic = places[line.gpu], places[line.nic]
                assert line.points[0][0] == gpu.x
                assert line.points[-1][0] == nic.x
                assert abs(line.points[0][1] - gpu.y) <= 19
                assert abs(line.points[-1][1] - nic.y) <= 19
                corners = zip(line.points, line.points[1:], strict=False)
                assert all(abs(a[0] - b[0]) < 0.01 or abs(a[1] - b[1]) < 0.01 for a, b in corners)


def test_lines_that_share_a_link_run_beside_each_other() -> None:
    facts, plan = samples.uneven()
    layout = lay_out(node_tree(plan, facts), WIDE)
    ends = sorted(line.points[-1][1] for line in layout.lines if line.nic == "mlx5_3")
    assert len(ends) == 2
    assert ends[1] - ends[0] == WIDE.step


def test_a_rail_has_its_colour_and_number_and_the_ninth_a_light_core() -> None:
    facts, plan = samples.uneven()
    svg = parsed(plan, facts)
    lines = [
        path.get("class") for path in svg.iter(f"{SVG}path") if (path.get("class") or "").startswith("line r")
    ]
    # 8 flows on rails 0, 1, 2 (twice), 11 and 12 (twice each), and the legend's sample.
    assert sorted(shape or "" for shape in lines) == sorted(
        ["line r0", "line r0", "line r1", "line r2", "line r2", "line r3", "line r3", "line r4", "line r4"]
    )
    cores = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "core"]
    assert len(cores) == 4 + 2  # four flows, two ways out
    badges = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "on-rail"]
    assert badges.count("11") == 1 + 2  # the NIC and its two GPUs


def test_a_refused_plan_has_no_lines_and_marks_no_gpu_as_served() -> None:
    facts, plan = samples.refused_vm()
    svg = parsed(plan, facts)
    assert not [
        path for path in svg.iter(f"{SVG}path") if (path.get("class") or "").startswith(("line", "exit"))
    ]
    assert "not planned" in ElementTree.tostring(svg, encoding="unicode")


def test_the_gpus_that_a_refused_plan_lists_are_not_said_to_lack_a_nic() -> None:
    facts, plan = samples.refused_vm()
    listed = tuple(
        PlannedGpu(gpu.index, gpu.name, gpu.address, None, None, (), None, None, "") for gpu in facts.gpus
    )
    text = node_svg(replace(plan, gpus=listed), facts)
    assert (text.count(">not planned<"), text.count(">no NIC<")) == (8 + 8 + 1, 0)  # GPUs, NICs, legend
    assert node_svg(replace(plan, status="planned", gpus=listed), facts).count(">no NIC<") == 8


# Links and findings.


def with_link(**changes: object) -> ElementTree.Element:
    """The HGX with one change to the link of GPU3."""
    facts, plan = samples.hgx()
    links = tuple(
        replace(link, **changes) if link.a == plan.gpus[3].pci else link  # type: ignore[arg-type]
        for link in plan.links
    )
    return parsed(replace(plan, links=links), facts)


def shapes(svg: ElementTree.Element) -> list[str]:
    """Classes of all paths outside the legend."""
    legend = next(group for group in svg.iter(f"{SVG}g") if group.get("class") == "legend")
    inside = set(legend.iter())
    return [path.get("class") or "" for path in svg.iter(f"{SVG}path") if path not in inside]


def test_a_full_link_is_hatched_and_a_shared_one_is_a_shared_bottleneck() -> None:
    assert not [shape for shape in shapes(with_link()) if shape.startswith("neck")]
    assert shapes(with_link(bottleneck=True)).count("neck") == 1
    assert shapes(with_link(bottleneck=True, flows=("GPU3", "GPU4"))).count("neck hot") == 1


def test_a_link_that_is_not_believed_is_dashed_and_no_bottleneck() -> None:
    found = shapes(with_link(believed=False, bottleneck=True))
    assert found.count("bed unbelieved") == 1
    assert not [shape for shape in found if shape.startswith("neck")]
    assert "48/48 ?" in [text.text for text in with_link(believed=False).iter(f"{SVG}text")]


def test_unknown_loads_and_capacities_are_said_to_be_unknown() -> None:
    texts = [text.text for text in with_link(capacity_gbytes=None, load_gbytes=12.0).iter(f"{SVG}text")]
    assert "12/unknown" in texts


def test_the_fuller_direction_of_a_link_speaks_for_it() -> None:
    facts, plan = samples.hgx()
    back = LoadedLink("0000:16:00.0", "0000:18:00.0", "PCIe", 48.0, 3.0, ("GPU0",))
    texts = [text.text for text in parsed(replace(plan, links=(back, *plan.links)), facts).iter(f"{SVG}text")]
    assert "3/48" not in texts


def test_a_port_that_two_flows_fill_is_hatched_on_the_way_out() -> None:
    facts, plan = samples.pcie_box()
    port = LoadedLink("rocep33s0", "network", "port", 25.0, 25.0, ("GPU0", "GPU1"), bottleneck=True)
    before = shapes(parsed(replace(plan, links=()), facts))
    after = shapes(parsed(replace(plan, links=(port,)), facts))
    assert (before.count("neck hot"), after.count("neck hot")) == (0, 1)


@pytest.mark.parametrize(
    ("where", "severity", "accepted", "marked"),
    [
        ("mlx5_1", "warning", None, ["mlx5_1"]),
        ("mlx5_10, mlx5_11", "error", None, ["mlx5_10", "mlx5_11"]),
        ("0000:60:00.0", "error", None, ["GPU3"]),
        ("GPU3 (0000:60:00.0)", "error", None, ["GPU3"]),
        ("gpus[0000:60:00.0].link", "error", None, ["GPU3"]),
        ("mlx5_1", "info", None, []),
        ("mlx5_1", "error", "ticket", []),
        ("kernel", "error", None, []),
    ],
)
def test_a_device_that_an_open_finding_names_is_marked(
    where: str, severity: str, accepted: str | None, marked: list[str]
) -> None:
    facts, plan = samples.hgx()
    svg = parsed(replace(plan, findings=(Finding("x.y", severity, where, "", "", accepted),)), facts)
    found = []
    for kind in ("gpu", "nic"):
        for row, name in zip(rows(svg, kind), names(svg, kind), strict=True):
            if any((path.get("class") or "").startswith("alarm") for path in row.iter(f"{SVG}path")):
                found.append(name)
    assert sorted(found) == sorted(marked)


def test_an_error_outranks_a_warning_on_the_same_device() -> None:
    facts, plan = samples.hgx()
    for order in (("error", "warning"), ("warning", "error")):
        found = tuple(Finding("x.y", severity, "GPU3", "", "") for severity in order)
        found_shapes = shapes(parsed(replace(plan, findings=found), facts))
        assert (found_shapes.count("alarm"), found_shapes.count("alarm warning")) == (1, 0)


def test_each_role_has_a_shape_of_its_own() -> None:
    roles = ("rail", "storage", "management", "spare", "down", "vf", "second-port", "nvlink-mgmt", "unknown")
    seen = set()
    for role in roles:
        facts = Facts("railwright.facts/1", (), nics=(Nic("n", "0000:01:00.0"),), numa=(NumaNode(0, "0"),))
        plan = replace(NO_PLAN, nics=(PlannedNic("n", "0000:01:00.0", role, 3, None, ""),))
        (row,) = rows(parsed(plan, facts), "nic")
        seen.add(
            tuple(
                (element.tag, element.get("class"), element.get("d"), element.get("stroke-dasharray"))
                for element in row
                if not element.tag.endswith(("text", "title"))
            )
        )
    assert len(seen) == len(roles)


# Hostile names.


def test_every_value_of_an_element_is_escaped_and_made_visible() -> None:
    drawn = element("a", words("<b>&\u202e"), title="\"><script>\u202e\n\t'", width=1.25, absent=None)
    assert drawn == (
        '<a title="&quot;&gt;&lt;script&gt;\\u202e&#10;&#9;&#x27;" width="1.2">&lt;b&gt;&amp;\\u202e</a>'
    )
    assert ElementTree.fromstring(drawn).get("title") == "\"><script>\\u202e\n\t'"  # noqa: S314


def test_names_of_others_stay_names() -> None:
    facts, plan = samples.hostile()
    text = node_svg(plan, facts)
    svg = ElementTree.fromstring(text)  # noqa: S314
    assert not [element for element in svg.iter() if element.tag.endswith(("script", "img", "image", "a"))]
    assert not [name for element in svg.iter() for name in element.attrib if name.startswith("on")]
    assert "<script>alert(1)</script>\\u202eevil\\u202c" in "".join(svg.itertext())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\ufffe]", text)
    text.encode("utf-8")


def test_a_very_long_name_is_cut_in_the_picture_and_whole_in_its_title() -> None:
    facts, plan = samples.hostile()
    svg = parsed(plan, facts)
    assert any(len(name) >= 300 for name in names(svg, "nic"))
    shown = [element.text or "" for element in svg.iter(f"{SVG}tspan")]
    assert max(map(len, shown)) <= 40
    assert any(text.startswith("nnn") and "…" in text for text in shown)


def test_a_gpu_without_anything_known_is_still_drawn() -> None:
    facts = Facts("railwright.facts/1", (), gpus=(Gpu("", 0),))
    plan = replace(NO_PLAN, gpus=(PlannedGpu(0, "", None, None, None, (), None, None, ""),))
    assert len(rows(parsed(plan, facts), "gpu")) == 1
    assert len(rows(parsed(NO_PLAN, Facts("railwright.facts/1", ())), "gpu")) == 0
