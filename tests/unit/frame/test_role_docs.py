"""tools/role_docs.py: the generated part of a role's README."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import role_docs

SPEC = """---
argument_specs:
  main:
    short_description: Write NCCL's system-wide configuration
    options:
      nccl_conf_entries:
        type: list
        elements: dict
        required: true
        description: The slice of the plan.
      nccl_conf_path:
        type: path
        default: /etc/nccl.conf
        description: Where NCCL reads it.
"""
META = """---
galaxy_info:
  author: Railwright
  description: Write NCCL's configuration
  license: Apache-2.0
  min_ansible_version: "2.19"
  platforms: [{name: Debian, versions: [bookworm]}]
"""
README = "# nccl_conf\n\nBefore.\n\n<!-- BEGIN_ANSIBLE_DOCS -->\n<!-- END_ANSIBLE_DOCS -->\n\nAfter.\n"


@pytest.fixture
def role(tmp_path: Path) -> Path:
    role = tmp_path / "nccl_conf"
    (role / "meta").mkdir(parents=True)
    (role / "meta" / "argument_specs.yml").write_text(SPEC, encoding="utf-8")
    (role / "meta" / "main.yml").write_text(META, encoding="utf-8")
    (role / "README.md").write_text(README, encoding="utf-8")
    return role


def test_the_table_is_written_between_the_marks_and_the_rest_is_left(role: Path) -> None:
    assert role_docs.main(["--roles", str(role.parent)]) == 0
    text = (role / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# nccl_conf\n\nBefore.\n\n<!-- BEGIN_ANSIBLE_DOCS -->\n")
    assert text.endswith("\n<!-- END_ANSIBLE_DOCS -->\n\nAfter.\n")
    assert (
        "| Variable | Type | Default | Meaning |\n"
        "| --- | --- | --- | --- |\n"
        "| `nccl_conf_entries` | list of dict | required | The slice of the plan. |\n"
        "| `nccl_conf_path` | path | `/etc/nccl.conf` | Where NCCL reads it. |\n"
    ) in text


def test_a_readme_behind_its_spec_is_named_and_left_as_it_is(
    role: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role_docs.main(["--roles", str(role.parent)])
    assert role_docs.main(["--check", "--roles", str(role.parent)]) == 0
    spec = role / "meta" / "argument_specs.yml"
    spec.write_text(SPEC.replace("/etc/nccl.conf", "/opt/nccl.conf"), encoding="utf-8")
    before = (role / "README.md").read_bytes()
    assert role_docs.main(["--check", "--roles", str(role.parent)]) == 1
    assert f"{role}/README.md: does not say what meta/argument_specs.yml says" in capsys.readouterr().err
    assert (role / "README.md").read_bytes() == before


def test_a_readme_without_its_marks_is_refused(role: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (role / "README.md").write_text("# nccl_conf\n", encoding="utf-8")
    assert role_docs.main(["--roles", str(role.parent)]) == 1
    assert "expected each of these lines once" in capsys.readouterr().err


def test_a_role_without_the_metadata_says_what_is_needed(
    role: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (role / "meta" / "main.yml").write_text("---\ngalaxy_info:\n  author: Railwright\n", encoding="utf-8")
    assert role_docs.main(["--roles", str(role.parent)]) == 1
    assert (
        "meta/main.yml needs galaxy_info with author, description, license and platforms"
        in capsys.readouterr().err
    )
