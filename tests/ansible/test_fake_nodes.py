"""The fake nodes themselves: what can be seen and written there, and the stand-in for systemd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.racks import give_to_a_plain_user, plain_python, scratch
from tests.fake_nodes import FakeNode, FakeNodeError, changes, create, snapshot

MACHINE = "2s_8xh100_10xcx7"
VERSIONS = ("3.9", "3.10", "3.11", "3.12")


# A user who is not root has the second way only.
USERS = ("root", "a plain user") if os.geteuid() == 0 else ("a plain user",)


@pytest.fixture(scope="module", params=USERS)
def node(request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """A node, entered by root and by a user who becomes root of a user namespace."""
    with scratch() as place:
        # Where another user than root can reach it.
        python = Path("/usr/bin/python3") if request.param != "root" else plain_python(*VERSIONS)
        node = create(place.nodes / "node1", MACHINE, python, trees=place.trees)
        if request.param != "root" and os.geteuid() == 0:
            give_to_a_plain_user(node)
        try:
            node.must_enter()
        except FakeNodeError as error:
            pytest.skip(str(error))
        yield node


def ask(node: FakeNode, code: str) -> object:
    """What a line of Python says on the node."""
    done = subprocess.run(
        [str(node.python), "-I", "-c", f"import json, os\nprint(json.dumps({code}))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def unit(node: FakeNode) -> Iterator[Path]:
    path = node.tree / "etc/systemd/system/once.service"
    path.write_text(
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'echo ran >> /etc/ran'\n"
        "[Install]\nWantedBy=multi-user.target\n",
        encoding="utf-8",
    )
    yield path
    for name in ("run/systemd/stand-in", "etc/systemd/system/multi-user.target.wants"):
        shutil.rmtree(node.tree / name, ignore_errors=True)
    path.unlink(missing_ok=True)
    (node.tree / "etc/ran").unlink(missing_ok=True)


def test_a_node_sees_the_recorded_machine_and_not_this_one(node: FakeNode) -> None:
    devices = "/sys/bus/pci/devices"
    ids = ask(node, f"[open(f'{devices}/{{d}}/device').read().strip() for d in os.listdir('{devices}')]")
    assert isinstance(ids, list)
    assert ids.count("0x2330") == 8
    assert ask(node, "open('/proc/sys/kernel/hostname').read()") == "node1\n"
    seen = ask(node, "sorted(os.listdir('/'))")
    assert isinstance(seen, list)
    assert {"home", "opt", "srv", ".dockerenv"}.isdisjoint(seen)


def test_a_node_writes_into_its_own_folder_and_nowhere_else(node: FakeNode) -> None:
    real = [
        Path(f"/{name}/railwright-was-here")
        for name in ("etc", "run", "var/lib", "usr/local/lib", "tmp", "root")
    ]
    before = snapshot(node.tree)
    for path in real:
        ask(node, f"open({str(path)!r}, 'w').write('x')")
    written = changes(before, snapshot(node.tree))
    assert written == {str(path).lstrip("/") for path in real if path.parts[1] != "tmp"}
    assert [path for path in real if path.exists()] == []
    for path in real:
        (node.tree / str(path).lstrip("/")).unlink()


@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/lib", "/usr/local/sbin", "/proc/.kernel/sys/vm"])
def test_what_a_node_sees_of_this_machine_it_cannot_write(node: FakeNode, folder: str) -> None:
    done = node.run("sh", "-c", f"echo 1 > {folder}/swappiness")
    assert "Read-only file system" in done.stderr or "Permission denied" in done.stderr


def test_what_a_node_writes_to_its_kernel_lands_in_its_folder(node: FakeNode) -> None:
    path = "proc/sys/kernel/numa_balancing"
    real = Path("/", path)
    before = real.read_text("utf-8") if real.exists() else None
    was = (node.tree / path).read_text("utf-8")
    node.run("sh", "-c", f"echo 7 > /{path}")
    assert (node.tree / path).read_text("utf-8") == "7\n"
    assert (real.read_text("utf-8") if real.exists() else None) == before
    (node.tree / path).write_text(was, encoding="utf-8")


def test_a_node_has_no_network_device_of_this_machine(node: FakeNode) -> None:
    assert node.run("ip", "-o", "link").stdout.count("\n") == 1


def test_a_node_does_not_see_the_environment_of_its_controller(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    done = subprocess.run(
        [str(node.python), "-c", "import railwright"], capture_output=True, text=True, check=False
    )
    assert "No module named 'railwright'" in done.stderr


def test_a_snapshot_sees_content_mode_owner_time_and_inode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a", encoding="utf-8")
    first = snapshot(tmp_path)
    file.chmod(0o600)
    assert changes(first, snapshot(tmp_path)) == {"file"}
    file.chmod(int(first["file"].mode, 8))
    os.utime(file, ns=(0, 0))
    assert changes(first, snapshot(tmp_path)) == set()
    assert first["file"] != snapshot(tmp_path)["file"]
    file.write_text("b", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert changes(first, snapshot(tmp_path)) == {"file", "link"}


def test_a_python_with_railwright_is_no_python_of_a_node(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"version": [3, 9], "railwright": "/x/railwright/__init__.py"}\'\n')
    python.chmod(0o755)
    with pytest.raises(FakeNodeError, match="finds Railwright in /x/railwright"):
        create(tmp_path / "node", MACHINE, python)


def test_a_folder_that_is_there_is_not_made_a_node(tmp_path: Path) -> None:
    with pytest.raises(FakeNodeError, match="is there already; name a new folder"):
        create(tmp_path, MACHINE, plain_python(*VERSIONS))


def test_systemctl_enables_by_links_and_runs_a_oneshot(node: FakeNode, unit: Path) -> None:
    link = node.tree / "etc/systemd/system/multi-user.target.wants/once.service"
    assert node.run("systemctl", "is-enabled", "once.service").stdout == "disabled\n"
    assert node.run("systemctl", "enable", "--now", "once.service").returncode == 0
    assert os.readlink(link) == "/etc/systemd/system/once.service"
    assert (node.tree / "etc/ran").read_text("utf-8") == "ran\n"
    shown = node.run(
        "systemctl", "show", "-p", "LoadState,ActiveState,SubState,UnitFileState", "once.service"
    ).stdout
    assert shown == "LoadState=loaded\nActiveState=active\nSubState=exited\nUnitFileState=enabled\n"
    assert node.run("systemctl", "disable", "once.service").returncode == 0
    assert not link.parent.exists()
    assert node.systemctl_calls() == [["enable", "--now", "once.service"], ["disable", "once.service"]]


def test_systemctl_needs_a_reload_before_it_takes_a_changed_unit(node: FakeNode, unit: Path) -> None:
    def needs_reload() -> str:
        return node.run(
            "systemctl", "show", "-p", "NeedDaemonReload", "--value", "once.service"
        ).stdout.strip()

    node.run("systemctl", "start", "once.service")
    unit.write_text(unit.read_text("utf-8").replace("echo ran", "echo again"), encoding="utf-8")
    assert needs_reload() == "yes"
    assert "changed on disk" in node.run("systemctl", "restart", "once.service").stderr
    assert (node.tree / "etc/ran").read_text("utf-8") == "ran\nran\n"
    node.run("systemctl", "daemon-reload")
    assert needs_reload() == "no"
    node.run("systemctl", "restart", "once.service")
    assert (node.tree / "etc/ran").read_text("utf-8") == "ran\nran\nagain\n"


def test_systemctl_says_what_it_does_not_have(node: FakeNode) -> None:
    shown = node.run("systemctl", "show", "-p", "LoadState,ActiveState,UnitFileState", "no.service")
    assert (shown.returncode, shown.stdout) == (
        0,
        "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n",
    )
    for verb, code, message in (
        ("start", 5, "Failed to start no.service: Unit no.service not found."),
        ("stop", 5, "Failed to stop no.service: Unit no.service not loaded."),
        ("enable", 1, "Failed to enable unit: Unit file no.service does not exist."),
    ):
        done = node.run("systemctl", verb, "no.service")
        assert (done.returncode, done.stderr.strip()) == (code, message)


def test_systemctl_tells_a_unit_that_fails(node: FakeNode, unit: Path) -> None:
    unit.write_text("[Service]\nType=oneshot\nExecStart=/bin/sh -c 'exit 3'\n", encoding="utf-8")
    done = node.run("systemctl", "start", "once.service")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "Job for once.service failed because the control process exited with error code."
    )
    shown = node.run("systemctl", "show", "-p", "ActiveState,Result,ExecMainStatus", "once.service").stdout
    assert shown == "ActiveState=failed\nResult=exit-code\nExecMainStatus=3\n"


SEQUENCE = (
    "is-enabled once.service",
    "enable once.service",
    "enable once.service",
    "is-enabled once.service",
    "disable once.service",
    "is-enabled plain.service",
    "enable plain.service",
    "enable no.service",
    "mask no.service",
    "is-enabled no.service",
    "unmask no.service",
    "mask once.service",
)


def test_systemctl_keeps_links_and_answers_as_the_real_one_does(
    node: FakeNode, unit: Path, tmp_path: Path
) -> None:
    real = shutil.which("systemctl")
    if real is None:
        pytest.skip("this machine has no systemctl to compare with")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    plain = node.tree / "etc/systemd/system/plain.service"
    plain.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    for file in (unit, plain):
        shutil.copy(file, units)

    def step(argv: list[str], tree: Path) -> tuple[str, int, str, list[tuple[str, str]]]:
        done = (
            subprocess.run(argv, capture_output=True, text=True, check=False)
            if tree == units
            else node.run(*argv)
        )
        links = [(str(p.relative_to(tree)), os.readlink(p)) for p in tree.rglob("*") if p.is_symlink()]
        folders = [(str(p.relative_to(tree)), "") for p in tree.rglob("*") if p.is_dir()]
        return (argv[-2], done.returncode, done.stdout, sorted(links + folders))

    for line in SEQUENCE:
        expected = step([real, f"--root={tmp_path}", *line.split()], units)
        assert step(["systemctl", *line.split()], plain.parent) == expected
    plain.unlink()
