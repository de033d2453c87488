"""The two READMEs tell the same story, and what they say of the project is so."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def _outside_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def test_both_readmes_have_the_same_headings_in_the_same_order() -> None:
    headings = re.findall(r"^#+ .*$", _outside_code(ENGLISH), flags=re.MULTILINE)
    assert len(headings) > 5
    assert re.findall(r"^#+ .*$", _outside_code(CHINESE), flags=re.MULTILINE) == headings


def test_both_readmes_show_the_same_commands() -> None:
    def commands(text: str) -> list[str]:
        blocks = re.findall(r"```(?:sh|yaml)\n(.*?)```", text, flags=re.DOTALL)
        return [line.split("#")[0].rstrip() for block in blocks for line in block.splitlines()]

    assert commands(ENGLISH)
    assert commands(CHINESE) == commands(ENGLISH)


def test_every_playbook_and_every_slice_is_in_both_tables() -> None:
    playbooks = {path.name for path in (ROOT / "playbooks").glob("*.yml")} - {"site.yml"}
    roles = {path.name for path in (ROOT / "roles").iterdir() if path.is_dir()} - {"node"}
    for text in (ENGLISH, CHINESE):
        rows = set(re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE))
        assert rows == playbooks | roles


def test_every_path_that_the_readme_names_is_there() -> None:
    named = set(re.findall(r"`((?:tests|docs|inventories|playbooks)/[\w./-]*)`", ENGLISH))
    assert named
    for path in named - {"inventories/acme/hosts.yml"}:
        assert (ROOT / path).exists(), path
