"""`railwright image`: the recipe of a file, the example of the documentation, and the audit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from railwright.cli import main
from railwright.cli.image import read_recipe
from railwright.image.bake import shape_unsaid
from railwright.image.install import warned
from railwright.node.model import InputError, Policy
from tests.unit.test_image_seal import USED, tree

DOCS = Path(__file__).parents[2] / "docs/image.md"
RECIPE = "name: h100\nepoch: 1790000000\ndebian: {mirror: 'http://archive.example/debian'}\n"


def test_the_recipe_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    (example,) = [
        block
        for block in re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
        if block.startswith("name: ")
    ]
    (tmp_path / "recipe.yml").write_text(example, "utf-8")
    (tmp_path / "policy.yml").write_text("node_policy: {expect: {gpus: 8, rails: 8}}\n", "utf-8")
    recipe, policy = read_recipe(tmp_path / "recipe.yml", None)
    assert (recipe.name, recipe.disk_gib, recipe.sbom) == ("h100-train", 8, ("spdx", "cyclonedx"))
    assert policy.expect.gpus == 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name: [", "is not YAML"),
        ("- name\n", "is no recipe"),
        (RECIPE, "policy: missing"),
        (RECIPE + "policy: {workload: golf}\n", "found 'golf'"),
        (RECIPE + "policy: {image: {may_have: [nvlink5]}}\n", "image.may_have[0]: found 'nvlink5'"),
        (RECIPE + "policy: {image: {}}\n", "image.may_have: names nothing"),
        (RECIPE + "policy: {}\nfiles: nowhere\n", "is no folder"),
        (RECIPE + "policy: [1]\n", "policy: found a list"),
        (RECIPE + "name: other\npolicy: {}\n", "the key 'name' stands twice"),
        (RECIPE + "policy: &a {x: *a}\n", "recipe.yml: policy"),
        (RECIPE + "policy: {rdma_stack: {firmware: {MT_0000000838: 2026-11-01}}}\n", "put it in quotes"),
        (RECIPE + "policy: {accept: {x: '{{ why }}'}}\n", "accept.x: is a template"),
        (RECIPE + 'policy: "a\\0b"\n', "policy: found"),
        (RECIPE + "policy: {}\nforbid: [2026-02-30]\n", "put it in quotes"),
        (RECIPE + "policy: {}\nsources: " + "[" * 5000 + "\n", "is nested too deeply"),
    ],
)
def test_a_recipe_that_cannot_be_read_says_where_it_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "recipe.yml").write_text(text, "utf-8")
    with pytest.raises(InputError, match=re.escape(why)) as caught:
        read_recipe(tmp_path / "recipe.yml", None)
    assert "recipe.yml" in str(caught.value)


def test_of_what_the_stack_says_a_person_is_told_warnings_and_what_was_not_seen_without_a_gpu() -> None:
    rows = [
        ("kernel.size", "info", None), ("nvidia_driver.no_gpu", "info", None), ("kernel.old", "warning", None),
        ("kernel.older", "warning", "known"), ("limits.none", "error", None),
    ]  # fmt: skip
    said = {
        "findings": [
            {
                "code": code,
                "severity": severity,
                "accepted": reason,
                "where": "here",
                "why": "so",
                "remedy": "do",
            }
            for code, severity, reason in rows
        ]
    }
    assert warned(said) == ["kernel.old: here: so. do", "nvidia_driver.no_gpu: here: so. do"]


def test_files_of_a_new_debian_lie_at_a_path_that_no_shell_takes_apart(tmp_path: Path) -> None:
    (tmp_path / "my files").mkdir()
    (tmp_path / "recipe.yml").write_text(RECIPE + "policy: {}\nfiles: my files\n", "utf-8")
    with pytest.raises(InputError, match="has blanks or quotes in it"):
        read_recipe(tmp_path / "recipe.yml", None)


def audit(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    code = main(["image", "audit", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_an_audit_lists_what_a_used_tree_holds_and_nothing_of_a_clean_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = audit(capsys, tree(tmp_path / "used", USED), "--forbid", "hunter2")
    assert code == 1
    assert "etc/ssh/ssh_host_ed25519_key: keys by which a host proves who it is" in said
    assert "root/.bash_history: a forbidden text" in said
    clean = tree(tmp_path / "clean", {"etc/machine-id": "", "etc/motd": "hello\n"})
    assert audit(capsys, clean) == (0, "nothing of one machine is in it\n")


def test_an_audit_of_a_disk_searches_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(bytes(4096) + b"planted-secret-4711" + bytes(4096))
    assert audit(capsys, disk, "--forbid", "planted-secret-4711")[0] == 1
    assert audit(capsys, disk, "--forbid", "another-secret")[0] == 0
    # Nothing was asked, so nothing was answered.
    assert audit(capsys, disk)[0] == 2
    assert main(["image", "audit", str(tmp_path / "nowhere")]) == 2


def test_a_bake_warns_of_what_its_image_could_not_refuse_or_hold_back() -> None:
    whole = {"expect": {"gpus": 8, "rails": 8}, "boot": {"gate": ["slurmd.service"]}}
    assert shape_unsaid(Policy.read(whole, "policy")) == []
    for left_out, named in (("expect", ["gpus", "rails"]), ("boot", ["gate"])):
        said = shape_unsaid(
            Policy.read({key: value for key, value in whole.items() if key != left_out}, "policy")
        )
        assert [line.split()[0].rpartition(".")[2] for line in said] == named
