"""Nodes that are odd as real ones are: each is read and tuned all the same, or fails with a sentence, soon.

What a login shell does at its start is put into root's ~/.bashrc, which sshd's shell reads for every command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run, play
from tests.lab.lab import Lab, Node

# A named failure comes within five seconds on an idle machine; the tests share two cores with others.
FAILS_WITHIN = 5.0
BUSY = 4
FILES = ("/etc/nccl.conf", "/etc/sysctl.d/90-railwright.conf")


@contextmanager
def bashrc(node: Node, lines: str) -> Iterator[None]:
    """These lines at the top of root's ~/.bashrc, before it looks whether the shell is interactive."""
    node.must("cp -p /root/.bashrc /root/.bashrc.kept 2>/dev/null || touch /root/.bashrc.kept")
    node.must("cat - /root/.bashrc.kept > /root/.bashrc", stdin=lines + "\n")
    try:
        yield
    finally:
        node.must("mv /root/.bashrc.kept /root/.bashrc")


def run(rack: Lab, node: Node, playbook: str, output: Path, **variables: Any) -> Run:
    return play(
        playbook, rack.inventory, output, "--limit", node.name, variables=variables, within=rack.controller
    )


def read(rack: Lab, node: Node, output: Path, **variables: Any) -> dict[str, Any]:
    """The node's facts, or what it failed with."""
    return facts_or_failure(node, run(rack, node, "discover.yml", output, **variables), output)


def read_all(rack: Lab, output: Path) -> dict[str, dict[str, Any]]:
    """The same of each node, in one run, without how long the login took and what is free on its disk."""
    done = play("discover.yml", rack.inventory, output, within=rack.controller)
    facts = {node.name: facts_or_failure(node, done, output) for node in rack.nodes}
    for page in facts.values():
        page.get("host", {}).pop("login_ms", None)
        for free in ("boot_free", "var_free"):
            (page.get("software") or {}).pop(free, None)
    return facts


def facts_or_failure(node: Node, done: Run, output: Path) -> dict[str, Any]:
    if node.name in done.failed:
        return {"failed": " ".join(done.failures(node.name))}
    facts: dict[str, Any] = json.loads((output / node.name / "facts.json").read_text("utf-8"))
    return facts


@pytest.fixture(scope="module")
def plain(rack: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The facts of nodes that are not odd."""
    facts = read_all(rack, tmp_path_factory.mktemp("plain"))
    assert all(page["gpus"] for page in facts.values())
    return facts


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ("echo 'Welcome to {our} cluster!'; echo '{ maintenance: tonight }'; printf '{\\n'", "a banner"),
        (r"printf '\033[2J\033[1;31mWARNING\033[0m\n' >&2; echo '[1, 2'", "a colourful one"),
        ("export LANG=tr_TR.UTF-8 LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8", "other locales"),
        (
            "export PYTHONPATH=/nonexistent PYTHONWARNINGS=error PYTHONIOENCODING=ascii TMPDIR=/nonexistent",
            "Python's own",
        ),
        ("umask 077; cd /tmp; set -u; alias ls='ls --color=always'", "a strict shell"),
    ],
)
def test_a_login_with_something_to_say_changes_nothing(
    rack: Lab, bookworm: Node, trixie: Node, tmp_path: Path, plain: dict[str, Any], lines: str, shown: str
) -> None:
    with bashrc(bookworm, lines), bashrc(trixie, lines):
        assert read_all(rack, tmp_path) == plain, shown


def test_a_heavy_login_is_measured_and_said(rack: Lab, bookworm: Node, tmp_path: Path) -> None:
    light = read(rack, bookworm, tmp_path)["host"]["login_ms"]
    with bashrc(
        bookworm,
        "python3 -c 'import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass'",
    ):
        assert read(rack, bookworm, tmp_path)["host"]["login_ms"] >= light + 400
        run(rack, bookworm, "look.yml", tmp_path)
    (told,) = [
        finding
        for finding in json.loads((tmp_path / bookworm.name / "findings.json").read_text("utf-8"))["findings"]
        if finding["code"] == "host.slow_login"
    ]
    assert "interactive" in told["remedy"]


def test_files_have_their_mode_whatever_the_logins_umask(
    rack: Lab, bookworm: Node, trixie: Node, tmp_path: Path
) -> None:
    with bashrc(bookworm, "umask 000"), bashrc(trixie, "umask 077"):
        done = play("retune.yml", rack.inventory, tmp_path, within=rack.controller)
        files = f"stat -c %a {' '.join(FILES)} /var/lib/railwright /var/lib/railwright/state.json"
        modes = {node.name: node.must(files).split() for node in rack.nodes}
        reverted = play("revert.yml", rack.inventory, tmp_path, within=rack.controller)
    for node in rack.nodes:
        assert done.failures(node.name) == []
        assert reverted.hosts[node.name]["changed"] > 0
        assert modes[node.name] == ["644", "644", "755", "600"]


@pytest.mark.parametrize(
    "mounts",
    [
        # One for each node: a run over two costs little more than one.
        ("mount -t tmpfs -o noexec,size=1m tmpfs /tmp", "mount -t tmpfs -o ro tmpfs /tmp"),
        ("mount -t tmpfs -o size=64k tmpfs /tmp; cat /dev/zero > /tmp/full || true",) * 2,
    ],
    ids=["noexec and read-only", "full"],
)
def test_nodes_are_read_and_tuned_without_a_tmp(rack: Lab, tmp_path: Path, mounts: tuple[str, str]) -> None:
    for node, mount in zip(rack.nodes, mounts, strict=True):
        node.must(f"{mount} 2>/dev/null")
    try:
        done = play("retune.yml", rack.inventory, tmp_path, within=rack.controller)
        assert {node.name: done.failures(node.name) for node in rack.nodes} == {
            node.name: [] for node in rack.nodes
        }
        assert all(done.hosts[node.name]["changed"] > 0 for node in rack.nodes)
        reverted = play("revert.yml", rack.inventory, tmp_path, within=rack.controller)
        assert not reverted.failed
    finally:
        for node in rack.nodes:
            node.must("umount /tmp")


def test_a_node_without_python_says_what_to_install(rack: Lab, bookworm: Node, tmp_path: Path) -> None:
    began = time.monotonic()
    said = read(rack, bookworm, tmp_path, ansible_python_interpreter="/usr/bin/python3.9")["failed"]
    assert time.monotonic() - began < FAILS_WITHIN * BUSY
    assert "'/usr/bin/python3.9' was not found" in said
    assert "Install Python 3.9 or later" in said


def test_a_python_that_is_too_old_is_told_which_one_is_wanted(
    rack: Lab, bookworm: Node, tmp_path: Path
) -> None:
    # The node's own Python, which takes itself for an older one: that is what Ansible asks it.
    bookworm.must(
        "mkdir -p /opt/old; cat > /opt/old/sitecustomize.py",
        stdin="import sys\nsys.version_info = (3, 8, 20)\n",
    )
    bookworm.must(
        "cat > /opt/old/python3.8; chmod 755 /opt/old/python3.8",
        stdin='#!/bin/sh\nPYTHONPATH=/opt/old exec /usr/bin/python3 "$@"\n',
    )
    began = time.monotonic()
    said = read(rack, bookworm, tmp_path, ansible_python_interpreter="/opt/old/python3.8")["failed"]
    assert time.monotonic() - began < FAILS_WITHIN * BUSY
    assert "requires Python 3.9 or newer" in said


def test_sudo_with_a_password_works_and_a_wrong_one_is_named(rack: Lab, trixie: Node, tmp_path: Path) -> None:
    trixie.must(
        "id builder >/dev/null 2>&1 || useradd -m -s /bin/bash builder; install -d -o builder -m 700 /home/builder/.ssh"
    )
    trixie.must("install -o builder -m 600 /root/.ssh/authorized_keys /home/builder/.ssh/authorized_keys")
    trixie.must(
        "echo builder:correct-horse-battery | chpasswd; echo 'builder ALL=(ALL) ALL' > /etc/sudoers.d/builder"
    )
    who = {"ansible_user": "builder", "ansible_become": True}
    good = run(rack, trixie, "retune.yml", tmp_path, **who, ansible_become_password="correct-horse-battery")
    assert good.failures(trixie.name) == []
    assert good.hosts[trixie.name]["changed"] > 0
    assert "correct-horse-battery" not in good.output
    run(rack, trixie, "revert.yml", tmp_path, **who, ansible_become_password="correct-horse-battery")
    began = time.monotonic()
    wrong = run(rack, trixie, "retune.yml", tmp_path, **who, ansible_become_password="wrong")
    assert "password" in " ".join(wrong.failures(trixie.name)).lower()
    assert time.monotonic() - began < 60
    without = run(rack, trixie, "retune.yml", tmp_path, **who)
    assert "password" in " ".join(without.failures(trixie.name)).lower()


def test_a_user_who_is_not_root_is_told_so(rack: Lab, trixie: Node, tmp_path: Path) -> None:
    trixie.must(
        "id plain >/dev/null 2>&1 || useradd -m -s /bin/bash plain; install -d -o plain -m 700 /home/plain/.ssh"
    )
    trixie.must("install -o plain -m 600 /root/.ssh/authorized_keys /home/plain/.ssh/authorized_keys")
    done = run(rack, trixie, "retune.yml", tmp_path, ansible_user="plain")
    said = " ".join(done.failures(trixie.name))
    assert "root" in said
    assert done.hosts[trixie.name]["changed"] == 0
