"""The playbook that builds NCCL: for the GPUs that the nodes have, on one of them, and brought to each.

The compiler is the stand-in of tests/unit/test_build_nccl.py; `make lab-nccl` goes the same road with a real one.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.ansible.playing import PROJECT, Run
from tests.ansible.racks import Rack, build_rack, plain_python, scratch
from tests.unit.test_build_nccl import MISSING, Site

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here")


@dataclass
class Works:
    rack: Rack
    site: Site

    def build(self, *arguments: str, **more: Any) -> Run:
        variables = {
            "nccl_build_toolkit": "13.0", "nccl_build_cuda": str(self.site.folder / "cuda"),
            "nccl_build_source": {"folder": str(self.site.folder / "source")},
            "nccl_build_scratch": str(self.site.folder / "scratch"),
            "nccl_build_cache": str(self.site.folder / "cache"), "nccl_build_space": 10,
            "nccl_build_output": str(self.rack.output / "nccl"), **more,
        }  # fmt: skip
        return self.rack.play(
            "build_nccl.yml", "-i", str(self.site.folder / "builder.yml"), *arguments, variables=variables
        )


@pytest.fixture(scope="module")
def works() -> Iterator[Works]:
    with scratch() as place:
        rack = build_rack(place, {"node1": ("2s_8xh100_10xcx7", {})}, plain_python())
        (rack.nodes[0].tree / "var/lib/dpkg").mkdir(parents=True)
        (rack.nodes[0].tree / "var/lib/dpkg/status").write_text("", "utf-8")
        site = Site(place.nodes / "site")
        site.folder.mkdir(mode=0o755)
        shutil.copytree(PROJECT / "tests/collectives", site.folder / "source")
        site.toolkit()
        builder = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        text = yaml.safe_dump({"nccl_build": {"hosts": {"builder": builder}}})
        (site.folder / "builder.yml").write_text(text, "utf-8")
        yield Works(rack, site)


def said(run: Run) -> str:
    return "\n".join(str(result["msg"]) for result in run.results("ansible.builtin.debug"))


def test_it_is_built_for_the_gpus_of_the_nodes_once_and_brought_to_each(works: Works) -> None:
    checked = works.build("--check")
    assert (checked.failed, works.site.entries()) == (set(), [])
    first = works.build()
    assert first.failed == set(), first.output[-3000:]
    assert "nccl: built" in said(first)
    assert "Report:" not in first.output
    noted = json.loads((works.rack.output / "nccl/built.json").read_text("utf-8"))
    policy = noted["node_policy"]["nccl_library"]
    # The recorded machine has H100s.
    assert policy["built"]["architectures"] == ["9.0"]
    assert policy["packages"]["libnccl2"] == "2.0.1-1.sm90+cuda13.0"
    (node,) = works.rack.nodes
    (folder,) = (node.tree / "var/lib/railwright/archives").iterdir()
    assert folder.name == policy["built"]["sha256"]
    again = works.build()
    assert set(again.changed.values()) == {0}
    assert "nothing was built" in said(again)


def test_a_node_that_was_not_read_stops_the_build_and_is_named(works: Works) -> None:
    run = works.build("--limit", "builder")
    (why,) = run.failures("builder")
    assert "not read: node1" in why
    assert "nccl_build_architectures" in why


def test_what_the_build_node_lacks_is_named_and_nothing_is_brought(works: Works) -> None:
    run = works.build("--limit", "builder", nccl_build_architectures=["9.0"], nccl_build_cuda="/nowhere")
    (why,) = run.failures("builder")
    assert "/nowhere/bin/nvcc is not there" in why
    run = works.build("--limit", "builder", nccl_build_architectures=["7.0"])
    (why,) = run.failures("builder")
    assert "makes no code for compute capability 7.0" in why
