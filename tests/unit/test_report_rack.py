"""The rack on the page: rows, columns, marks, and files that nobody can use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from defusedxml import ElementTree as ET

from railwright import report
from railwright.fleet.members import Asked
from railwright.fleet.neighbours import Cable
from railwright.fleet.planning import FleetPlan, plan_fleet
from railwright.fleet.told import told
from railwright.node.model import Policy
from railwright.report.rack import MOST_ROWS, RackView, read_rack
from railwright.report.rack_picture import rack_svg
from tests.unit.fleet_support import node

_SVG = "{http://www.w3.org/2000/svg}"


def fleet(count: int) -> FleetPlan:
    """Nodes of four rails on four leaves; rail 2 of node1 is on the leaf of rail 3, and node2's NIC 1 is slower."""
    nodes = [Asked(f"node{n}", node("four", n), Policy()) for n in range(count)]
    nodes[2].facts["nics"][1]["rate"] = 200_000
    seen = [
        Cable(f"node{n}", f"mlx5_{r}", f"leaf{r}", str(n + 1), "lldp") for n in range(count) for r in range(4)
    ]
    seen[6] = Cable("node1", "mlx5_2", "leaf3", "40", "lldp")
    return plan_fleet(nodes, seen=seen)


def keep(folder: Path, data: Any) -> Path:
    (folder / "fleet.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def seen(folder: Path, count: int = 5) -> RackView:
    view = read_rack(keep(folder, told(fleet(count))))
    assert view is not None
    return view


def test_each_row_has_its_rails_with_their_leaf_ports_and_what_is_odd(tmp_path: Path) -> None:
    view = seen(tmp_path)
    assert view.rails == (0, 1, 2, 3)
    assert view.leaves == (("leaf0",), ("leaf1",), ("leaf2",), ("leaf3",))
    assert [row.names for row in view.rows] == [(f"node{n}",) for n in range(5)]
    assert [bool(stop.odd) for stop in view.rows[1].stops] == [False, False, True, False]
    assert view.rows[1].stops[2].odd == "rail2 of node1 is on leaf3/40, leaf3 carries rail 3"
    assert view.rows[1].stops[2].error
    assert [bool(stop.odd) for stop in view.rows[2].stops] == [False, True, False, False]
    assert not view.rows[2].stops[1].error
    assert view.odd == 2
    assert view.leaf_port("node1", 2) == "leaf3/40"
    assert view.leaf_port("node3", 0) == "leaf0/4"


def test_the_picture_marks_what_is_odd_by_colour_and_by_pattern(tmp_path: Path) -> None:
    tree = ET.fromstring(rack_svg(seen(tmp_path)))
    odd = [
        one.get("class")
        for one in tree.iter(f"{_SVG}rect")
        if (one.get("class") or "").startswith("odd-stop")
    ]
    lines = [
        one.get("class")
        for one in tree.iter(f"{_SVG}path")
        if (one.get("class") or "").startswith("odd-lines")
    ]
    assert odd == ["odd-stop", "odd-stop warning"]
    assert lines == ["odd-lines", "odd-lines warning"]
    # 20 places in 5 rows of 4 and the heads of the 4 lines, without the two that are squares.
    badges = [one for one in tree.iter(f"{_SVG}circle") if re.fullmatch(r"f\d", one.get("class") or "")]
    assert len(badges) == 20 + 4 - 2
    title, description = tree.find(f"{_SVG}title"), tree.find(f"{_SVG}desc")
    assert title is not None
    assert title.text == "5 nodes on 4 rails, 2 odd"
    assert description is not None
    assert "node1, rail 2: rail2 of node1 is on leaf3/40" in (description.text or "")


@pytest.mark.parametrize("narrow", [False, True])
def test_nothing_stands_outside_the_picture(tmp_path: Path, narrow: bool) -> None:
    tree = ET.fromstring(rack_svg(seen(tmp_path), narrow=narrow))
    width, height = float(tree.get("width") or 0), float(tree.get("height") or 0)
    for text in tree.iter(f"{_SVG}text"):
        assert 0 <= float(text.get("x") or 0) < width
        assert 0 < float(text.get("y") or 0) < height


def test_a_large_fleet_folds_good_nodes_and_shows_each_odd_one(tmp_path: Path) -> None:
    view = seen(tmp_path, 60)
    assert [row.names for row in view.rows[:2]] == [("node1",), ("node2",)]
    assert len(view.rows) == 3 <= MOST_ROWS
    assert len(view.rows[2].names) == 58
    assert "58 nodes" in rack_svg(view)


def test_the_page_shows_the_rack_and_the_leaf_port_of_each_gpu(tmp_path: Path) -> None:
    planned = fleet(3)
    keep(tmp_path, told(planned))
    for name, one in planned.nodes.items():
        (tmp_path / name).mkdir()
        files = {"facts": node("four", int(name[4:])), "plan": json.loads(planned.plan_json(name))}
        for noun, data in files.items():
            (tmp_path / name / f"{noun}.json").write_text(json.dumps(data), encoding="utf-8")
        assert one.status == "planned"
    page = report.write(tmp_path).read_text("utf-8")
    assert '<h2 id="rack">Rack</h2>' in page
    assert "2 nodes of 3 are odd" in page
    assert '<td class="mono">leaf3/40</td>' in page
    assert '<td class="mono">leaf0/1</td>' in page


def test_without_the_file_there_is_no_rack(tmp_path: Path) -> None:
    assert read_rack(tmp_path) is None
    assert 'id="rack"' not in report.write(tmp_path).read_text("utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema="x"), "fleet.json.schema"),
        (lambda data: data["nodes"]["node0"].pop("shape"), "fleet.json.nodes.node0.shape: missing"),
        (
            lambda data: data["nodes"]["node0"]["rails"].update(x=data["nodes"]["node0"]["rails"]["0"]),
            "a rail's number",
        ),
        (lambda data: data["nodes"]["node1"]["findings"][0].update(severity="grave"), "unknown severity"),
    ],
)
def test_a_file_of_no_use_is_a_reason_on_the_page(tmp_path: Path, change: Any, message: str) -> None:
    data = json.loads(json.dumps(told(fleet(3))))
    change(data)
    view = read_rack(keep(tmp_path, data))
    assert view is not None
    assert view.rack is None
    assert message in view.reason
    assert "Not read." in report.write(tmp_path).read_text("utf-8")


def test_what_nodes_and_leaves_are_called_cannot_become_markup(tmp_path: Path) -> None:
    text = json.dumps(told(fleet(3))).replace("leaf3", "<script>x</script>").replace("node1", "a\\u202eb&<b>")
    (tmp_path / "fleet.json").write_text(text, encoding="utf-8")
    view = read_rack(tmp_path)
    assert view is not None
    drawn = rack_svg(view)
    assert "<script" not in drawn
    assert "\u202e" not in drawn
    ET.fromstring(drawn)
