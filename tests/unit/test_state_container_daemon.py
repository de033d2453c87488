"""A runtime's daemon: started again for its configuration, once, and never while a container runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.state import Outcome, Said, apply, container_gpus, revert
from railwright.node.state.item import Done
from railwright.node.state.json_item import JsonKeysItem
from railwright.node.state.kinds import read_slices
from tests.unit.state_support import Systemd, make_node, plant

UNIT = "docker.service"
DAEMON = "/etc/docker/daemon.json"
ENTRIES = [
    {"kind": "json_keys", "path": DAEMON, "keys": {"/features/cdi": True}},
    {"kind": "container_daemon", "name": UNIT, "restart_if_older_than": [DAEMON]},
]
HOUR = 3600 * 10**9


class Programs:
    """dockerd as it looks at a file, or one that is too old to."""

    def __init__(self, code: int | None = 0, error: str = "") -> None:
        self.said, self.asked = Said(code, "", error), list[list[str]]()

    def __call__(self, argv: Sequence[str]) -> Said:
        self.asked.append(list(argv))
        return self.said


def node(tmp_path: Path, *, runs: bool = True, containers: int = 0) -> tuple[Path, Systemd]:
    """A node with Docker, for an hour, and so many containers."""
    root = make_node(tmp_path)
    systemd = Systemd(root)
    plant(root, f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/usr/bin/dockerd\n")
    systemd.properties[UNIT] = {"Type": "notify"}
    if runs:
        systemd.run_since(UNIT, time.time_ns() - HOUR)
    for number in range(1, containers + 1):
        start_container(root, number)
    return root, systemd


def start_container(root: Path, number: int) -> None:
    place = root / f"proc/{1000 + number}"
    place.mkdir(parents=True)
    (place / "comm").write_text("containerd-shim\n")  # of containerd-shim-runc-v2, as the kernel cuts it


def write(root: Path, systemd: Systemd, programs: Programs | None = None, **more: Any) -> Outcome:
    tools = programs or Programs()
    return apply({"container_runtime": ENTRIES}, root=str(root), runner=systemd, tools=tools, **more)


def restarts(systemd: Systemd) -> int:
    return systemd.calls.count(f"restart {UNIT}")


def test_it_is_started_again_once_for_a_newer_configuration(tmp_path: Path) -> None:
    root, systemd = node(tmp_path)
    programs = Programs()
    foretold = write(root, systemd, check=True)
    assert (foretold.changed, restarts(systemd)) == (True, 0)
    assert write(root, systemd, programs).failures == ()
    assert restarts(systemd) == 1
    assert programs.asked == [["dockerd", "--validate", "--config-file", DAEMON]]
    again = write(root, systemd)
    assert (again.changed, again.failures, restarts(systemd)) == (False, (), 1)


def test_while_a_container_runs_it_is_refused_and_the_restart_stays_owed(tmp_path: Path) -> None:
    root, systemd = node(tmp_path, containers=2)
    (failure,) = write(root, systemd).failures
    assert "2 containers run (containerd-shim)" in failure.why
    assert "drain the node" in failure.remedy
    assert restarts(systemd) == 0
    # The file is there, which runs nothing; only the daemon waits.
    assert (root / DAEMON[1:]).exists()
    assert write(root, systemd).failures != ()
    for number in (1, 2):
        (root / f"proc/{1000 + number}/comm").unlink()
    assert write(root, systemd).failures == ()
    assert restarts(systemd) == 1


def test_a_container_that_begins_while_the_run_is_at_work_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, systemd = node(tmp_path)
    write_keys = JsonKeysItem.write

    def write_slowly(*arguments: Any) -> Done:
        start_container(root, 1)
        return write_keys(*arguments)

    monkeypatch.setattr(JsonKeysItem, "write", write_slowly)
    (failure,) = write(root, systemd).failures
    assert "1 container runs" in failure.why
    assert restarts(systemd) == 0


def test_a_daemon_that_does_not_take_its_configuration_keeps_running_with_the_old_one(tmp_path: Path) -> None:
    root, systemd = node(tmp_path)
    (failure,) = write(
        root, systemd, Programs(1, "unable to configure the Docker daemon: unknown option")
    ).failures
    assert "unknown option" in failure.why
    assert restarts(systemd) == 0
    assert write(root, systemd).failures == ()
    assert restarts(systemd) == 1


@pytest.mark.parametrize("said", [Programs(125, "unknown flag: --validate"), Programs(None)])
def test_a_dockerd_that_cannot_look_is_started_all_the_same(tmp_path: Path, said: Programs) -> None:
    root, systemd = node(tmp_path)
    assert write(root, systemd, said).failures == ()
    assert restarts(systemd) == 1


def test_no_slice_has_systemd_read_its_units_again_while_a_container_would_lose_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, systemd = node(tmp_path, containers=1)
    drop_in = {"kind": "file", "path": f"/etc/systemd/system/{UNIT}.d/60-x.conf", "content": "[Service]\n"}

    def run() -> Outcome:
        return apply({"part": [drop_in]}, root=str(root), runner=systemd)

    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ("/dev/nvidia0",)))
    (failure,) = run().failures
    assert "1 container runs" in failure.why
    assert "create-dev-char-symlinks" in failure.remedy
    assert not [words for words in systemd.calls if "daemon-reload" in words]
    # It stays owed, and is made up for as soon as the links are there.
    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ()))
    assert run().failures == ()
    assert len([words for words in systemd.calls if "daemon-reload" in words]) == 1
    assert not run().changed


def test_no_unit_is_enabled_or_disabled_while_a_container_would_lose_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemctl(1): both are "equivalent to daemon-reload"."""
    root, systemd = node(tmp_path)
    plant(root, "/etc/systemd/system/own.service", "[Service]\n[Install]\nWantedBy=multi-user.target\n")
    wish = {"part": [{"kind": "systemd_unit", "name": "own.service", "enabled": True}]}
    assert apply(wish, root=str(root), runner=systemd).failures == ()
    start_container(root, 1)
    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ("/dev/nvidia0",)))
    for check in (True, False):
        (failure,) = revert(root=str(root), runner=systemd, check=check).failures
        assert "create-dev-char-symlinks" in failure.remedy
    assert "disable own.service" not in systemd.calls
    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ()))
    assert revert(root=str(root), runner=systemd).failures == ()
    assert "disable own.service" in systemd.calls


def test_a_unit_that_stays_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its file systemd could not disable it any more, and without its program its next start would fail."""
    root, systemd = node(tmp_path)
    unit, program = "/etc/systemd/system/own.service", "/usr/local/lib/own"
    wish = [
        {"kind": "file", "path": unit, "content": "[Service]\n[Install]\nWantedBy=multi-user.target\n"},
        {"kind": "file", "path": program, "content": "x\n"},
        {"kind": "file", "path": "/etc/other.conf", "content": "x\n"},
        {
            "kind": "systemd_unit",
            "name": "own.service",
            "enabled": True,
            "restart_if_older_than": [program],
            "state": "started",
        },
    ]
    assert apply({"part": wish}, root=str(root), runner=systemd).failures == ()
    start_container(root, 1)
    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ("/dev/nvidia0",)))
    for check in (True, False):
        told = revert(root=str(root), runner=systemd, check=check)
        assert len(told.failures) == 3
        assert [item.id for item in told.slices["part"] if item.changed] == ["file:/etc/other.conf"]
    assert [(root / path.lstrip("/")).exists() for path in (unit, program, "/etc/other.conf")] == [
        True,
        True,
        False,
    ]
    monkeypatch.setattr(container_gpus, "gpu_files", lambda tree: (1, ()))
    assert revert(root=str(root), runner=systemd).failures == ()
    assert [(root / path.lstrip("/")).exists() for path in (unit, program)] == [False, False]
    assert "disable own.service" in systemd.calls


def test_one_that_is_not_there_or_does_not_run_is_left_alone(tmp_path: Path) -> None:
    root, systemd = node(tmp_path / "idle", runs=False)
    assert write(root, systemd).failures == ()
    bare = make_node(tmp_path / "bare")
    absent = Systemd(bare)
    assert write(bare, absent).failures == ()
    image = make_node(tmp_path / "image")
    done = apply({"container_runtime": ENTRIES}, root=str(image), tools=Programs())
    assert done.failures == ()
    assert "when it starts" in done.slices["container_runtime"][1].note
    assert restarts(systemd) == restarts(absent) == 0


def test_putting_back_starts_it_again_for_its_own_file(tmp_path: Path) -> None:
    root, systemd = node(tmp_path)
    write(root, systemd)
    assert revert(["container_runtime"], root=str(root), runner=systemd, tools=Programs()).failures == ()
    assert not (root / DAEMON[1:]).exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "container_daemon", "name": "nginx.service"},
        {"kind": "container_daemon", "name": UNIT, "state": "started"},
        {"kind": "container_daemon", "name": UNIT, "enabled": True},
    ],
)
def test_no_other_daemon_and_no_other_wish_is_taken(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_slices({"part": [entry]}, None)
