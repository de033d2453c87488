"""The page on the planner shows what the planner does: its example, its picture, and its table of files."""

from __future__ import annotations

from pathlib import Path

from railwright import captures
from railwright.cli import main
from railwright.node.model import Policy
from railwright.plan import plan
from tests.unit.plan_machines import hgx

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "planner.md").read_text(encoding="utf-8")


def test_the_example_has_the_numbers_of_the_page() -> None:
    result = plan(captures.read([DOCS / "planner-example.xml"]), Policy())
    said = PAGE[PAGE.index("```\n8 GPUs, 3 rails") :].split("```")[1].strip().splitlines()
    assert list(result.summary[: len(said)]) == said
    bound = result.bound
    assert (bound.achieved_gbytes, bound.per_gpu_gbytes, bound.nccl_gbytes) == (8, 9, 6)
    assert f"{bound.index_pairing_gbytes:.2f} is what pairing GPU" in PAGE
    assert bound.certificate is not None
    assert (round(bound.certificate.rate_gbytes, 2), bound.certificate.admits, bound.certificate.gpus) == (
        8.33,
        6,
        8,
    )


def test_the_picture_is_the_one_that_is_drawn_today(tmp_path: Path) -> None:
    drawn = tmp_path / "example.svg"
    assert main(["plan", str(DOCS / "planner-example.xml"), "--svg", str(drawn)]) == 0
    current = (DOCS / "planner-example.svg").read_text(encoding="utf-8")
    assert drawn.read_text(encoding="utf-8") == current, (
        "draw it again: railwright plan docs/planner-example.xml --svg docs/planner-example.svg"
    )


def test_every_file_for_nccl_and_containers_is_on_the_page() -> None:
    entries = plan(hgx(2).facts(), Policy()).slices["nccl_conf"].entries
    names = [entry["path"] for entry in entries if not entry["path"].startswith("/etc/enroot/")]
    assert all(name in PAGE for name in [*names, "/etc/railwright/nccl-topology.xml"])
