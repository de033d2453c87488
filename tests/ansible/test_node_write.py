"""node_write: after a change of the rails' network it comes back to the node, which would undo the change otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from ansible.plugins.action import ActionBase
from ansible.plugins.connection import ConnectionBase

from tests.ansible.playing import PROJECT

ACTIONS = PROJECT / "roles/node/action_plugins"


def calls(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    answered: dict[str, Any],
    action: str = "node_write",
    check: bool = False,
) -> list[Any]:
    """What the module is asked, where it answers the first question so, and when the connection is made anew."""
    spec = importlib.util.spec_from_file_location(action, ACTIONS / f"{action}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked: list[Any] = []

    class Write(module.ActionModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            """Without Ansible around it."""
            self._task = SimpleNamespace(check_mode=check, args={"slice": "rail_network", "entries": []})
            self._connection = Connection()

        def validate_argument_spec(self, **spec: Any) -> tuple[None, dict[str, Any]]:
            return None, {
                "folder": str(folder),
                "node": {"refused": "", "plan": "plan", "policy": "policy"},
                "facts": {},
            }

        def asked(self, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
            asked.append(arguments.get("state", "applied"))
            return answered if len(asked) == 1 else {}

    class Connection(ConnectionBase):  # type: ignore[misc]
        transport = "of the test"

        def __init__(self) -> None:
            """To nowhere."""

        def reset(self) -> None:
            asked.append("anew")

        def _connect(self) -> Any:
            raise AssertionError

        exec_command = put_file = fetch_file = _connect

        def close(self) -> None:
            """It was never open."""

    class Compared:
        """Of a plan that fits."""

        plan: ClassVar[dict[str, Any]] = {}
        policy: ClassVar[dict[str, Any]] = {}

        def asks(self) -> dict[str, Any]:
            return {}

        def found(self, facts: Any, changes: Any) -> dict[str, Any]:
            return {"findings": [], "problems": ""}

        def verdict(self, problems: str, dry: bool) -> dict[str, Any]:
            return {}

    if action == "node_state":
        monkeypatch.setattr(ActionBase, "run", lambda *arguments: {})
        Write().run(None, {})
        return asked
    monkeypatch.setattr(module.kept, "read", lambda place: {})
    monkeypatch.setattr(module.Comparison, "of", lambda folder, node: Compared())
    monkeypatch.setattr(module.steps, "node_slices", lambda plan, policy: {"rail_network": []})
    monkeypatch.setattr(module.steps, "blobs_to_send", lambda plan, facts: {})
    monkeypatch.setattr(module.steps, "node_changes", lambda results: {})
    Write().run(None, {"inventory_hostname": "n1"})
    return asked


def written(changed: bool) -> dict[str, Any]:
    return {"slices": {"rail_network": {"changed": changed, "items": []}}}


@pytest.mark.parametrize("action", ["node_write", "node_state"])
def test_a_changed_network_is_confirmed_by_a_call_over_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str
) -> None:
    """At once, in the same task: between two tasks all other nodes of the play have their turn."""
    assert calls(monkeypatch, tmp_path, written(True), action) == ["applied", "anew", "confirmed"]


@pytest.mark.parametrize("action", ["node_write", "node_state"])
def test_a_check_comes_back_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, action: str) -> None:
    assert calls(monkeypatch, tmp_path, written(True), action, check=True) == ["applied"]


@pytest.mark.parametrize("answered", [written(False), {"slices": {}}, {"failed": True, "msg": "no"}])
def test_a_node_whose_network_stays_is_called_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answered: dict[str, Any]
) -> None:
    assert calls(monkeypatch, tmp_path, answered) == ["applied"]
