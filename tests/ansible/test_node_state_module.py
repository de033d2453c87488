"""The module node_state, run by Ansible as a task runs it, on a node that is a few folders of this machine."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
MODULE = PROJECT / "roles/node/library/node_state.py"
# Another controller row's programs; the same tests, another Ansible.
PROGRAMS = Path(os.environ.get("RAILWRIGHT_ANSIBLE", Path(sys.executable).parent))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")


def find_python(version: str) -> str:
    found = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), version], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(f"no Python {version} on this machine")
    return found.stdout.strip()


Task = dict[str, Any]


class Node:
    """A node whose /srv, /var/lib and /run are folders of its own; the rest is this machine's, and stays as it is."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        for name in ("srv", "lib", "run"):
            (folder / name).mkdir(parents=True)
        binds = " && ".join(
            f"mount --bind {folder}/{name} {place}"
            for name, place in (("srv", "/srv"), ("lib", "/var/lib"), ("run", "/run"))
        )
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nexec unshare --mount --propagation private sh -c \'{binds} && exec {python} "$@"\' sh "$@"\n'
        )
        self.python.chmod(0o755)

    def play(self, *tasks: Task) -> list[dict[str, Any]]:
        """The results of these tasks, in one play; "failed" says whether a task failed."""
        events = self.folder / "events"
        events.unlink(missing_ok=True)
        playbook = self.folder / "play.json"
        playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}]))
        done = subprocess.run(
            [
                str(PROGRAMS / "ansible-playbook"),
                *(
                    "-i",
                    "node,",
                    "-c",
                    "local",
                    "-e",
                    f"ansible_python_interpreter={self.python}",
                    str(playbook),
                ),
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": str(PROJECT / "tests/ansible/callbacks"),
                "ANSIBLE_CALLBACKS_ENABLED": "events",
                "ANSIBLE_INJECT_INVOCATION": "True",
                "EVENTS_FILE": str(events),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
        results = [
            {**line["result"], "failed": line["kind"] == "failed"}
            for line in lines
            if line["kind"] != "stats"
        ]
        assert len(results) == len(tasks)
        return results

    def is_bare(self) -> bool:
        return all(list((self.folder / name).iterdir()) == [] for name in ("srv", "lib", "run"))


def task(arguments: dict[str, Any], check: bool = False) -> Task:
    return {"node_state": arguments, "diff": True, "check_mode": check, "ignore_errors": True}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", find_python(f"{sys.version_info[0]}.{sys.version_info[1]}"))


@pytest.mark.parametrize("check", [False, True])
def test_what_was_done_is_told_also_where_the_node_cannot_be_read_afterwards(node: Node, check: bool) -> None:
    wish = {"slice": "part", "entries": [entry("/srv/a", "x\n")], "look": {"watch": ["not/from/the/root"]}}
    (result,) = node.play(task(wish, check))
    assert result["failed"]
    assert "not/from/the/root" in result["msg"]
    assert result["slices"]["part"]["changed"]
    assert (node.folder / "srv/a").exists() is not check


def entry(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {"kind": "file", "path": path, "content": content, **more}


@pytest.mark.parametrize("version", ["3.9", "3.12"])
def test_a_check_a_run_a_second_run_and_a_revert(tmp_path: Path, version: str) -> None:
    node = Node(tmp_path / "node", find_python(version))
    wish = {
        "slice": "part",
        "entries": [
            entry("/srv/rail/nccl.conf", "NCCL_DEBUG=WARN\n", mode="0640"),
            {"kind": "json_keys", "path": "/srv/daemon.json", "keys": {"/default-runtime": "nvidia"}},
        ],
    }
    (foretold,) = node.play(task(wish, check=True))
    assert foretold["changed"]
    assert node.is_bare()
    done, again = node.play(task(wish), {**task(wish), "diff": False})
    assert (done["slices"], done["diff"]) == (foretold["slices"], foretold["diff"])
    assert done["diff"][0]["after"] == "NCCL_DEBUG=WARN\n"
    assert (again["changed"], "diff" in again) == (False, False)
    assert (node.folder / "srv/rail/nccl.conf").read_text() == "NCCL_DEBUG=WARN\n"
    assert json.loads((node.folder / "srv/daemon.json").read_text()) == {"default-runtime": "nvidia"}
    back, twice = node.play(task({"state": "reverted", "names": ["part"]}), task({"state": "reverted"}))
    assert [item["action"] for item in back["slices"]["part"]["items"]] == ["revert", "revert"]
    assert not twice["changed"]
    assert node.is_bare()


def test_a_task_that_fails_names_every_item_and_is_honest_about_the_rest(node: Node) -> None:
    (node.folder / "srv/link").symlink_to("elsewhere")
    slices = {
        "one": [entry("/srv/link", "x")],
        "two": [entry("/srv/good", "x"), entry("/srv/bad", "x", owner="no-such-user")],
    }
    (result,) = node.play(task({"slices": slices}))
    assert (result["failed"], result["changed"]) == (True, True)
    assert [failure["where"] for failure in result["failures"]] == [
        "slices.one[0] (file:/srv/link)",
        "slices.two[1] (file:/srv/bad)",
    ]
    assert result["msg"].startswith(
        "2 of 3 items failed: slices.one[0] (file:/srv/link): /srv/link is a symbolic link"
    )
    assert "the node knows no user 'no-such-user'" in result["msg"]
    assert (node.folder / "srv/good").read_text() == "x"


def test_a_wrong_task_fails_with_the_place_and_changes_nothing(node: Node) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"slice": "a", "entries": [{"kind": "fle"}]},
            "slices.a[0].kind: unknown kind 'fle' (known kinds: file, ",
        ),
        ({"slice": "a"}, "parameters are required together: slice, entries"),
        ({"slices": {}, "slice": "a", "entries": []}, "mutually exclusive"),
        ({"state": "applied"}, "state=applied needs slices, or slice and entries"),
        ({"slices": {}, "names": ["a"]}, "names and but go with state=reverted"),
        ({"state": "reverted", "slices": {}}, "state=reverted takes names, not slices"),
        ({"slices": {}, "blobs": {"00": "x"}}, "blobs.00: '00' is no SHA-256 digest"),
    ]
    results = node.play(*(task(arguments) for arguments, _ in wrong))
    for result, (_, message) in zip(results, wrong, strict=True):
        assert (result["failed"], result["changed"]) == (True, False)
        assert message in result["msg"]
    assert results[0]["where"] == "slices.a[0].kind"
    assert node.is_bare()


def test_neither_secrets_nor_bytes_are_ever_shown(node: Node) -> None:
    data = b"xxx-blob\0content-xxx"
    digest, sent = hashlib.sha256(data).hexdigest(), base64.b64encode(data).decode()
    slices = {
        "part": [
            entry("/srv/token", "canary-in-a-file", secret=True),
            {"kind": "json_keys", "path": "/srv/a.json", "keys": {"/t": ["canary-in-keys"]}, "secret": True},
            {"kind": "file", "path": "/srv/blob", "sha256": digest},
        ]
    }
    wish = {"slices": slices, "blobs": {digest: sent}}
    refused, *others = node.play(
        task({**wish, "slice": "both", "entries": []}),  # Ansible's own check of the options
        task({**wish, "blobs": {digest: sent[4:]}}),
        task(wish, check=True),
        task(wish),
        task(wish),
        task({"state": "reverted"}, check=True),
    )
    assert "mutually exclusive" in refused["msg"]
    assert [other["failed"] for other in others] == [True, False, False, False, False]
    for result in (refused, *others):
        assert "invocation" not in result  # the border lets none through
        for hidden in ("canary-in", sent, sent[4:], "xxx-blob"):
            assert hidden not in json.dumps(result)
    assert (node.folder / "srv/token").read_text() == "canary-in-a-file"
    assert (node.folder / "srv/blob").read_bytes() == data


def test_the_nodes_log_names_slices_and_not_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    logged: list[str] = []
    quiet = module.QuietModule.__new__(module.QuietModule)
    quiet.params = {
        "slices": {"b": [{"content": "canary"}], "a": []},
        "slice": None,
        "names": None,
        "state": "applied",
    }
    monkeypatch.setattr(module.QuietModule, "log", lambda self, text: logged.append(text))
    quiet._log_invocation()
    quiet.params = {"slices": None, "slice": None, "names": None, "state": "reverted"}
    quiet._log_invocation()
    assert quiet._invocation() == {"module_args": {"state": "reverted", "owner": None, "slices": []}}
    assert logged == ["Invoked for slices a, b: applied", "Invoked for slices (all): reverted"]


def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as Python imports it on a node, where railwright lies in ansible.module_utils."""
    importlib.import_module("railwright.node.state")
    for name in ("railwright", "railwright.node", "railwright.node.state"):
        monkeypatch.setitem(sys.modules, f"ansible.module_utils.{name}", sys.modules[name])
    spec = importlib.util.spec_from_file_location("node_state", MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documentation_says_what_the_module_takes_and_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    told = spelt(yaml.safe_load(module.DOCUMENTATION)["options"], "suboptions", "description")
    assert told == spelt(module.OPTIONS, "options", "no_log")
    from railwright.node.state import Outcome

    returned = set(yaml.safe_load(module.RETURN))
    assert returned == set(Outcome({}, (), (), ()).to_json()) - {"changed", "diff"} | {
        "where",
        "why",
        "remedy",
        "ansible_facts",
    }


def spelt(options: dict[str, Any], within: str, without: str) -> dict[str, Any]:
    """Options as documentation and module both have them; within: the key of an option's own options."""
    return {
        name: {
            "within" if key == within else key: spelt(value, within, without) if key == within else value
            for key, value in option.items()
            if key != without
        }
        for name, option in options.items()
    }


def test_the_examples_are_tasks_that_the_writer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from railwright.node.state.kinds import read_slices

    module = load(monkeypatch)
    tasks = yaml.safe_load(module.EXAMPLES)
    assert len(tasks) >= 3
    for task in tasks:
        arguments = task["node_state"]
        assert set(arguments) <= set(module.OPTIONS)
        slices = arguments.get("slices") or {arguments.get("slice"): arguments.get("entries")}
        if arguments.get("state", "applied") == "applied":
            read_slices(slices, None)


def test_ansible_reads_the_documentation() -> None:
    done = subprocess.run(
        [str(PROGRAMS / "ansible-doc"), "-t", "module", "--json", "node_state"],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["node_state"]["doc"]["attributes"]["check_mode"]["support"] == "full"
