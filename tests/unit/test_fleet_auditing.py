"""What is told of a node's libraries, and what fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railwright.fleet import auditing, kept
from railwright.node.discover.tree import Tree
from railwright.node.libraries import audit
from railwright.node.model import InputError, to_json
from tests.unit.test_libraries import library

PLAN = {
    "schema": "railwright.plan/1",
    "status": "planned",
    "slices": {
        "nccl": {
            "stage": "persistent",
            "entries": [
                {"kind": "packages", "name": "nccl", "versions": {"libnccl2": "2.30.4-1+cuda13.0", "x": None}}
            ],
            "because": "x",
        }
    },
}


def test_a_kept_plan_says_what_is_meant_and_a_wheels_own_library_is_an_error(tmp_path: Path) -> None:
    expect = auditing.meant_of(kept.keep(tmp_path, {"plan": PLAN})["plan"])
    assert expect == {"libnccl": "2.30.4"}
    site = "opt/env/lib/python3.12/site-packages"
    library(
        tmp_path, f"{site}/torch/_C.cpython-312-x86_64-linux-gnu.so", "libnccl.so.2", rpath="$ORIGIN/../lib"
    )
    library(
        tmp_path, f"{site}/lib/libnccl.so.2", soname="libnccl.so.2", text=b"\0NCCL version 2.28.9+cuda13.0\0"
    )
    answer = json.loads(json.dumps(to_json(audit(Tree(tmp_path), expect=list(expect.items())))))
    found = auditing.read(answer)
    assert "loads libnccl 2.28.9" in auditing.wrong(found)
    page = auditing.page(found, expect)
    assert page.startswith("meant: libnccl 2.30.4\n")
    assert f"PyTorch at /{site}/torch/_C" in page
    assert auditing.wrong(auditing.read(to_json(audit(Tree(tmp_path))))) == ""


def test_a_nodes_words_cannot_steer_a_terminal_and_a_long_page_ends() -> None:
    copies = [
        {"library": "libnccl", "path": f"opt/\u001b[2J{number}", "version": None} for number in range(100)
    ]
    page = auditing.page(auditing.read({"copies": copies}), {})
    assert "\u001b" not in page
    assert page.splitlines()[0] == "meant: nothing, the plan installs none of them"
    assert page.splitlines()[-1] == "and 61 more"


def test_an_answer_that_is_no_audit_is_refused() -> None:
    with pytest.raises(InputError, match=r"libraries\.copies"):
        auditing.read({"copies": "many"})
