"""The module node_facts, run by Ansible as a task runs it, on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.node.discover import discover
from railwright.node.model import Facts

PROJECT = Path(__file__).resolve().parents[2]
MODULE = PROJECT / "roles/node/library/node_facts.py"
# Another controller row's programs; the same tests, another Ansible.
PROGRAMS = Path(os.environ.get("RAILWRIGHT_ANSIBLE", Path(sys.executable).parent))

pytest.importorskip("ansible")


def node_facts(folder: Path, version: str, *options: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """Exit status of `ansible` and what the module said."""
    found = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), version],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if found.returncode != 0:
        pytest.skip(f"Python {version} is not on this machine")
    (folder / "none.cfg").touch()
    done = subprocess.run(
        [
            str(PROGRAMS / "ansible"),
            *("localhost", "-m", "node_facts", "-a", json.dumps(arguments), "-c", "local"),
            *("-e", f"ansible_python_interpreter={found.stdout.strip()}", "-t", str(folder), *options),
        ],
        cwd=folder,
        # Not the whole of ansible.cfg: the module must need nothing but its own two paths.
        env={
            "ANSIBLE_LIBRARY": str(MODULE.parent),
            "ANSIBLE_MODULE_UTILS": str(PROJECT / "src"),
            "ANSIBLE_CONFIG": str(folder / "none.cfg"),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert (folder / "localhost").exists(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / "localhost").read_text(encoding="utf-8"))
    return done.returncode, result


@pytest.mark.parametrize("version", ["3.9", "3.12"])
def test_the_node_is_read_as_the_reader_reads_it(tmp_path: Path, version: str) -> None:
    code, result = node_facts(
        tmp_path, version, watch=["/etc/hostname", "/etc/no-such-file"], sysctls=["kernel.ostype"]
    )
    assert (code, result["changed"]) == (0, False)
    facts = Facts.read(result["ansible_facts"]["node"])
    here = discover(Path("/"))
    assert (facts.cpus, facts.numa, facts.pci, facts.gpus) == (here.cpus, here.numa, here.pci, here.gpus)
    assert facts.host.sysctls["kernel.ostype"] == "Linux"
    assert [file.path for file in facts.files] == ["/etc/hostname", "/etc/no-such-file"]
    assert facts.files[0].sha256 == hashlib.sha256(Path("/etc/hostname").read_bytes()).hexdigest()
    assert facts.files[1].mode is None
    assert facts.tools == ()


def test_check_mode_reads_too_and_tools_are_kept(tmp_path: Path) -> None:
    code, result = node_facts(tmp_path, "3.12", "--check", tools=True)
    assert code == 0
    assert {tool.name for tool in Facts.read(result["ansible_facts"]["node"]).tools} >= {
        "lspci",
        "nvidia-smi-query",
    }


@pytest.mark.parametrize(
    ("arguments", "where"),
    [({"units": ["no unit"]}, "units.no unit"), ({"sysctls": ["kernel..x"]}, "sysctls.kernel..x")],
)
def test_a_wish_that_makes_no_sense_fails_with_its_place(
    tmp_path: Path, arguments: dict[str, Any], where: str
) -> None:
    code, result = node_facts(tmp_path, "3.12", **arguments)
    assert (code, result["where"]) == (2, where)
    assert result["remedy"] in result["msg"]


def test_the_documentation_names_each_option_with_its_default() -> None:
    text = MODULE.read_text(encoding="utf-8")
    documented = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])["options"]
    spec = text.split("argument_spec={")[1].split("supports_check_mode")[0]
    assert [
        name for name in documented if f'"{name}": {{"type": "{documented[name]["type"]}"' not in spec
    ] == []
    assert spec.count('"type"') == len(documented)
