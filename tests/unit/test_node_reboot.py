"""A reboot asks who uses the GPUs at its own moment, and is left out where somebody does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "roles/node/action_plugins/node_reboot.py"


def run(busy: str, transport: str = "ssh", check: bool = False) -> tuple[dict[str, Any], list[str]]:
    spec = importlib.util.spec_from_file_location("node_reboot", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = SimpleNamespace(check_mode=check, async_val=0, args={"reboot_timeout": 30}, diff=False)
    connection = SimpleNamespace(transport=transport, _shell=SimpleNamespace(tmpdir="/nowhere"))
    action = module.ActionModule(task, connection, None, None, None, None)
    called: list[str] = []

    def do(name: str, args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        called.append(name)
        return {"busy": busy} if name == "node_driver" else {"rebooted": True, "changed": True, **args}

    action._do = do
    return action.run(task_vars={}), called


def test_a_node_that_nobody_uses_is_rebooted() -> None:
    result, called = run("")
    assert (result["rebooted"], result["reboot_timeout"]) == (True, 30)
    assert called == ["node_driver", "ansible.builtin.reboot"]


def test_a_job_that_began_while_others_were_rebooted_keeps_its_node() -> None:
    result, called = run("in use by python (process 7)")
    assert result["failed"]
    assert "in use by python (process 7)" in result["msg"]
    assert called == ["node_driver"]


@pytest.mark.parametrize("how", [{"transport": "local"}, {"check": True}])
def test_the_machine_of_the_playbook_and_a_check_are_never_rebooted(how: dict[str, Any]) -> None:
    result, called = run("", **how)
    assert (result["skipped"], called) == (True, [])
