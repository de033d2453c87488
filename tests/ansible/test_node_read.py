"""node_read: the inventory's rails reach the node's policy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import PROJECT

ACTION = PROJECT / "roles/node/action_plugins/node_read.py"


def policy_of(monkeypatch: pytest.MonkeyPatch, folder: Path, policy: Any, rails: Any) -> Any:
    """The policy that is handed on for a node of this inventory."""
    spec = importlib.util.spec_from_file_location("node_read", ACTION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Read(module.ActionModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            """Without Ansible around it."""

        def validate_argument_spec(self, argument_spec: Any) -> tuple[None, dict[str, Any]]:
            assert argument_spec["rails"] == {"type": "list", "elements": "dict", "default": []}
            asked = {"folder": str(folder), "policy": policy, "left": "", "rails": rails}
            return None, {**asked, "tools": False, "units": []}

        def asked(self, arguments: Any, task_vars: Any) -> dict[str, Any]:
            return {"ansible_facts": {"node": {}}}

    monkeypatch.setattr(module.record_folder, "keep", lambda place, parts: dict.fromkeys(parts, ""))
    answered = Read().run(None, {"inventory_hostname": "n1"})
    return answered["ansible_facts"]["node_asked"]["policy"]


def test_the_inventorys_rails_are_the_policys_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rails = [
        {"rail": 0, "address": "10.1.0.2/24", "leaf": "leaf1", "port": "1"},
        {"rail": 1, "leaf": "leaf2"},
    ]
    made = policy_of(monkeypatch, tmp_path, {"rails": {"prefix": "rail"}}, rails)
    assert made["rails"]["prefix"] == "rail"
    assert made["rails"]["addresses"] == [{"rail": 0, "address": "10.1.0.2/24", "gateway": None, "port": 1}]


def test_without_rails_the_policy_is_what_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert policy_of(monkeypatch, tmp_path, {}, [])["rails"]["addresses"] == []
