"""Every public capture is read or refused with a reason, and what is read is what stands there.

The oracle is the raw text: counts of tags and columns, cells split at tabs, and the agreed answers that come with
the captures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from railwright.captures import read
from railwright.node.model import Facts, InputError, to_json
from tests.unit.captures_text import captures_folder

LEVELS = {"PIX", "PXB", "PHB", "NODE", "SYS"}


@pytest.fixture(scope="module")
def captures() -> Path:
    return captures_folder("RAILWRIGHT_CAPTURES")


@pytest.fixture(scope="module")
def cases() -> Path:
    return captures_folder("RAILWRIGHT_CASES")


def _index(captures: Path) -> dict[str, str]:
    """Kind of each file, from the list that comes with the captures."""
    rows = (line.split("\t") for line in (captures / "index.tsv").read_text().splitlines()[1:])
    return {row[0]: row[1] for row in rows}


def _expected(captures: Path) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = json.loads((captures / "expected.json").read_text())
    return {name: answer for name, answer in answers.items() if not name.startswith("_")}


def test_every_nccl_file_is_read_with_all_its_devices(captures: Path) -> None:
    files = sorted((captures / "nccl_xml").iterdir())
    totals = {"files": 0, "skeletons": 0, "GPUs": 0, "NICs": 0, "PCI functions": 0}
    for path in files:
        text = path.read_text()
        facts = read([path])
        skeleton = _index(captures)[f"nccl_xml/{path.name}"] == "nccl-topo-skeleton"
        assert len(facts.pci) == len(re.findall(r"<pci\s", text))
        assert len(facts.roots) == len(re.findall(r"<cpu\s", text))
        if skeleton:
            assert all(nic.rate is None for nic in facts.nics)
            assert any("skeleton" in note or "no class" in note for note in facts.notes)
        else:
            assert len(facts.gpus) == len(re.findall(r"<gpu\s", text))
            assert len(facts.nics) == len(re.findall(r"<net\s", text))
            assert sum(len(gpu.nvlinks or ()) for gpu in facts.gpus) == len(
                re.findall(r"<(?:nvlink|xgmi)\s", text)
            )
        assert Facts.read(to_json(facts)) == facts
        for key, value in zip(
            totals, (1, skeleton, len(facts.gpus), len(facts.nics), len(facts.pci)), strict=True
        ):
            totals[key] += value
    print(totals)
    assert totals["files"] == sum(1 for name in _index(captures) if name.startswith("nccl_xml/")) > 0


def test_every_matrix_is_read_as_its_cells_stand(captures: Path) -> None:
    totals = {"files": 0, "cut": 0, "GPUs": 0, "NICs": 0, "cells compared": 0}
    for path in sorted((captures / "smi_topo").iterdir()):
        facts = read([path])
        text = re.sub(r"\x1b\[\d*m", "", path.read_text())
        lines = text.splitlines()
        header = (
            lines[0].split("\t") if "\t" in lines[0] else ["", *lines[0].replace(" Affinity", "_A").split()]
        )
        assert len(facts.gpus) == sum(bool(re.fullmatch(r"GPU\d+", name)) for name in header)
        columns = [name for name in header[1:] if name and not re.search("Affinity|_A|NUMA", name)]
        rows = {line.split()[0]: line for line in lines[1:] if re.match(r"(GPU|NIC|mlx5_)\d", line)}
        missing = {gpu.name for gpu in facts.gpus} - set(rows)
        assert {gpu.name for gpu in facts.gpus if gpu.partial} == missing
        assert facts.complete == (not missing)
        assert not facts.conflicts
        totals["cells compared"] += _compare(facts, columns, rows)
        for key, value in zip(totals, (1, bool(missing), len(facts.gpus), len(facts.nics)), strict=False):
            totals[key] += value
        assert Facts.read(to_json(facts)) == facts
    print(totals)
    assert totals["files"] == sum(1 for name in _index(captures) if name.startswith("smi_topo/")) > 0


def _compare(facts: Facts, columns: list[str], rows: dict[str, str]) -> int:
    """Cells of rows that a plain split can read, against the facts."""
    known = {frozenset((path.a, path.b)): path.level for path in facts.paths}
    for gpu in facts.gpus:
        known.update({frozenset((gpu.name, link.target)): f"NV{link.count}" for link in gpu.nvlinks or ()})
    compared = 0
    for name, line in rows.items():
        cells = [cell.strip() for cell in line.split("\t")[1:]] if "\t" in line else line.split()[1:]
        levels = cells[: len(columns)]
        if any("-" in column for column in columns):
            continue
        if not all(re.fullmatch(r"X|PIX|PXB|PHB|NODE|SYS|NV\d+", cell) for cell in levels):
            continue
        for column, level in zip(columns, levels, strict=False):
            partial = any(gpu.partial for gpu in facts.gpus if gpu.name in (name, column))
            if column != name and not (level.startswith("NV") and partial):
                assert known.get(frozenset((name, column)), level) == level
                assert level.startswith("NV") or frozenset((name, column)) in known
                compared += 1
    return compared


def test_nodes_are_the_agreed_ones(captures: Path) -> None:
    told = 0
    for name, answer in _expected(captures).items():
        facts = read([captures / name])
        numa = {str(gpu.index): gpu.numa for gpu in facts.gpus}
        for index, node in answer.get("numa", {}).items():
            assert numa[index] == node, name
            told += 1
        if any("cut" in word for word in answer.get("says", ())):
            assert not facts.complete
        if any("nic" in word for word in answer.get("says", ())):
            assert facts.nics == ()
    assert told > 0


def test_each_agreed_rail_is_the_nearest_nic_in_the_facts(captures: Path) -> None:
    """What the reader alone decides of the agreed rails: the NICs named are among the nearest ones."""
    order = ["PIX", "PXB", "PHB", "NODE", "SYS"]
    told = 0
    for name, answer in _expected(captures).items():
        if "rails" not in answer or not name.startswith("smi_topo/"):
            continue
        facts = read([captures / name])
        level = {(path.a, path.b): order.index(path.level) for path in facts.paths}
        for index, right in answer["rails"].items():
            near = min(level[f"GPU{index}", nic.name] for nic in facts.nics)
            assert min(level[f"GPU{index}", nic] for nic in right) == near, (name, index)
            told += 1
    assert told > 0


def test_a_machine_that_hides_its_tree_says_so(captures: Path) -> None:
    facts = read([captures / "smi_topo/a100-vm-phb-8nic-glitch.txt"])
    assert {path.level for path in facts.paths} == {"PHB"}
    assert {gpu.numa for gpu in facts.gpus} == {None}
    assert facts.complete
    assert any("a tab" in note or "damaged" in note for note in facts.notes)


def test_a_lost_tab_is_repaired_and_told(captures: Path) -> None:
    facts = read([captures / "smi_topo/h100-1numa-12nic.txt"])
    level = {(path.a, path.b): path.level for path in facts.paths}
    assert (level["GPU5", "NIC7"], level["GPU5", "NIC8"]) == ("PIX", "NODE")
    assert "line 7: PIXNODE read as PIX NODE (a tab was lost)" in facts.notes


def test_two_published_versions_of_one_vm_differ_in_what_they_say_of_cpus(captures: Path) -> None:
    azure = read([captures / "nccl_xml/azure-ndv5-topo.xml"])
    other = read([captures / "nccl_xml/superbench-ndv5-topo.xml"])
    assert {(gpu.address, gpu.cpus) for gpu in azure.gpus} != {(gpu.address, gpu.cpus) for gpu in other.gpus}
    assert read([captures / "nccl_xml/superbench-ndv4-topo.xml"]).numa == ()


# Nearest NIC of each GPU whose row stands in the case, by the words of the case itself.
CASES = {
    "14-topo-a800-interleaved-nics.txt": ("PIX", {0: 2, 1: 4, 2: 6, 3: 8, 4: 1, 5: 3, 6: 5}),
    "64-topo-hgx-h100-10nics.txt": ("PIX", {0: 0, 1: 1, 2: 2, 3: 5, 4: 6, 5: 7, 6: 8, 7: 9}),
    "66-topo-h100-vllm-nccl1591.txt": ("PIX", {0: 0, 2: 1}),
    "71-roce-lag-qp-balance.txt": ("PXB", {n: n for n in range(6)}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_matrix_inside_a_report_is_found(cases: Path, name: str) -> None:
    nearest, pairs = CASES[name]
    facts = read([cases / name])
    found = {
        int(path.a.removeprefix("GPU")): int(path.b.removeprefix("NIC"))
        for path in facts.paths
        if path.level == nearest and path.a.startswith("GPU") and path.b.startswith("NIC")
    }
    assert found == pairs
    assert {path.level for path in facts.paths} <= LEVELS


def test_a_report_without_a_matrix_gives_no_distances(cases: Path) -> None:
    refused = 0
    for path in sorted(cases.glob("*.txt")):
        if path.name in CASES:
            continue
        try:
            facts = read([path])
        except InputError as error:
            told = error.where
            refused += 1
        else:
            # What another tool printed there is read by that tool's reader, which claims no distances.
            told = facts.witnesses[0].source
            assert facts.witnesses[0].kind != "nvidia-smi"
            assert facts.paths == ()
        assert told.startswith(str(path))
    assert refused > 0
