"""The kind "file": whole files, put there safely and put back exactly."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import StateError, accounts, apply, files, revert
from railwright.node.state.outcome import Refused
from tests.unit.state_support import LONG_AGO, file_entry, fingerprint, item, items, make_node, plant, stamps

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def put(node: Path, *entries: dict[str, Any], **more: Any) -> Any:
    return apply({"part": list(entries)}, root=str(node), **more)


def test_a_new_file_has_its_content_mode_and_folders_whatever_the_umask(node: Path) -> None:
    before = os.umask(0o077)
    try:
        outcome = put(node, file_entry("/etc/nccl/site/nccl.conf", "NCCL_DEBUG=WARN\n", mode="0640"))
    finally:
        os.umask(before)
    path = node / "etc/nccl/site/nccl.conf"
    assert path.read_text() == "NCCL_DEBUG=WARN\n"
    assert oct(path.stat().st_mode) == "0o100640"
    assert oct(path.parent.stat().st_mode) == oct(path.parent.parent.stat().st_mode) == "0o40755"
    assert item(outcome)["action"] == "create"
    assert outcome.failures == ()


def test_a_file_that_is_right_keeps_its_inode_and_times_and_nothing_else_appears(node: Path) -> None:
    put(node, file_entry("/etc/nccl.conf", "a\n"))
    before = stamps(node)
    outcome = put(node, file_entry("/etc/nccl.conf", "a\n"))
    assert not outcome.changed
    moved = {path for path, stamp in stamps(node).items() if before.get(path) != stamp}
    # The lock file comes and goes, so the folder that holds it moves.
    assert moved == {str(node / "run")}


def test_a_mode_alone_is_changed_in_place(node: Path) -> None:
    path = plant(node, "/etc/nccl.conf", "a\n", 0o600)
    inode = path.stat().st_ino
    outcome = put(node, file_entry("/etc/nccl.conf", "a\n"))
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode & 0o777) == (
        inode,
        LONG_AGO,
        0o644,
    )
    assert outcome.to_json()["diff"][0]["before_header"].startswith("/etc/nccl.conf (0600")
    revert(root=str(node))
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (inode, 0o600)


@ROOT_ONLY
def test_an_owner_is_set_by_name_from_the_nodes_own_list_or_by_number(node: Path) -> None:
    plant(node, "/etc/passwd", "root:x:0:0:::\nslurm:x:4711:4712:::\n")
    plant(node, "/etc/group", "gpu:x:815:\n")
    put(
        node,
        file_entry("/etc/a", "a", owner="slurm", group="gpu"),
        file_entry("/etc/b", "b", owner="12", group="34"),
    )
    assert [((node / "etc" / n).stat().st_uid, (node / "etc" / n).stat().st_gid) for n in "ab"] == [
        (4711, 815),
        (12, 34),
    ]


def test_an_owner_that_the_node_does_not_know_is_a_failure_before_any_write(node: Path) -> None:
    outcome = put(node, file_entry("/etc/a", "a", owner="slurm"), file_entry("/etc/b", "b", group="gpu"))
    assert [failure.why for failure in outcome.failures] == [
        "the node knows no user 'slurm'",
        "the node knows no group 'gpu'",
    ]
    assert not (node / "etc/a").exists()


def test_a_user_of_this_machine_is_looked_up_where_the_root_is_the_machine(tmp_path: Path) -> None:
    assert (accounts.user_id("/", "root"), accounts.group_id("/", "root")) == (0, 0)
    daemon = subprocess.run(["id", "-u", "daemon"], capture_output=True, text=True, check=True).stdout
    assert accounts.user_id("/", "daemon") == int(daemon)
    group = subprocess.run(["id", "-g", "daemon"], capture_output=True, text=True, check=True).stdout
    assert accounts.group_id("/", "daemon") == int(group)
    for look in (accounts.user_id, accounts.group_id):
        with pytest.raises(Refused, match="no-such-name"):
            look("/", "no-such-name")


def test_a_revert_puts_content_mode_time_and_attributes_back_and_leaves_no_trace(node: Path) -> None:
    path = plant(node, "/etc/nccl.conf", b"\xff\x00old\n", 0o600)
    attribute = b""
    try:
        os.setxattr(path, "user.note", b"ours")
        attribute = b"ours"
    except OSError:
        pass  # this file system has no user attributes: the rest is shown all the same
    plant(node, "/etc/kept", "kept\n")
    before = fingerprint(node)
    put(node, file_entry("/etc/nccl.conf", "new\n"), file_entry("/etc/new/deep/file", "x\n"))
    assert (os.getxattr(path, "user.note") if attribute else b"") == attribute
    assert fingerprint(node) != before
    outcome = revert(root=str(node))
    assert fingerprint(node) == before
    assert {entry["action"] for entry in items(outcome, "part").values()} == {"revert"}
    assert not revert(root=str(node)).changed


def test_the_first_prior_value_survives_later_runs(node: Path) -> None:
    plant(node, "/etc/nccl.conf", "first\n")
    before = fingerprint(node)
    for content in ("second\n", "third\n", "first\n", "fourth\n"):
        put(node, file_entry("/etc/nccl.conf", content))
    revert(["part"], root=str(node))
    assert fingerprint(node) == before


def test_our_own_content_that_equals_the_prior_one_gets_its_old_time_back(node: Path) -> None:
    path = plant(node, "/etc/nccl.conf", "first\n")
    put(node, file_entry("/etc/nccl.conf", "second\n"))
    put(node, file_entry("/etc/nccl.conf", "first\n"))
    assert path.stat().st_mtime_ns != LONG_AGO
    revert(root=str(node))
    assert path.stat().st_mtime_ns == LONG_AGO


def test_what_somebody_changed_since_is_left_and_said(node: Path) -> None:
    put(node, file_entry("/etc/a", "ours\n"), file_entry("/etc/b", "ours\n"))
    (node / "etc/a").write_text("theirs\n")
    (node / "etc/b").unlink()
    outcome = revert(root=str(node))
    assert not outcome.changed
    notes = {item_id: entry["note"] for item_id, entry in items(outcome, "part").items()}
    assert notes == {
        "file:/etc/a": "file:/etc/a was changed since by someone else: left",
        "file:/etc/b": "",
    }
    assert (node / "etc/a").read_text() == "theirs\n"
    assert not (node / "var/lib/railwright").exists()


def test_a_file_that_existed_and_that_somebody_removed_is_left_removed(node: Path) -> None:
    plant(node, "/etc/a", "before\n")
    put(node, file_entry("/etc/a", "ours\n"))
    (node / "etc/a").unlink()
    outcome = revert(root=str(node))
    assert "changed since by someone else: left" in item(outcome)["note"]
    assert not (node / "etc/a").exists()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_somebody_put_in_the_place_of_a_file_of_ours_is_left(node: Path, kind: str) -> None:
    plant(node, "/etc/a", "before\n")
    put(node, file_entry("/etc/a", "ours\n"))
    (node / "etc/a").unlink()
    (node / "etc/a").symlink_to("b") if kind == "link" else (node / "etc/a").mkdir()
    before = {path: state for path, state in fingerprint(node).items() if path.startswith("etc")}
    outcome = revert(root=str(node))
    assert (outcome.changed, outcome.failures) == (False, ())
    assert item(outcome)["note"].startswith("changed since by someone else: left (/etc/a is a ")
    assert {path: state for path, state in fingerprint(node).items() if path.startswith("etc")} == before
    assert not (node / "var/lib/railwright").exists()


def test_what_somebody_put_back_by_hand_needs_nothing(node: Path) -> None:
    path = plant(node, "/etc/a", "before\n")
    put(node, file_entry("/etc/a", "ours\n"))
    path.write_text("before\n")
    stamp = path.stat().st_mtime_ns
    outcome = revert(root=str(node))
    assert (outcome.changed, item(outcome)["note"]) == (False, "")
    assert path.stat().st_mtime_ns == stamp


def test_an_entry_that_left_its_slice_is_released_and_a_path_that_changed_moves(node: Path) -> None:
    old = plant(node, "/etc/old", "before\n")
    put(node, file_entry("/etc/old", "ours\n"), file_entry("/etc/gone/x", "x\n"))
    outcome = put(node, file_entry("/etc/new", "ours\n"))
    assert {k: v["action"] for k, v in items(outcome, "part").items()} == {
        "file:/etc/new": "create",
        "file:/etc/old": "release",
        "file:/etc/gone/x": "release",
    }
    assert (old.read_text(), old.stat().st_mtime_ns) == ("before\n", LONG_AGO)
    assert not (node / "etc/gone").exists()


def test_folders_of_ours_stay_while_somebody_uses_them(node: Path) -> None:
    put(node, file_entry("/etc/ours/a", "a\n"))
    plant(node, "/etc/ours/theirs", "x\n")
    revert(root=str(node))
    assert (node / "etc/ours/theirs").exists()
    assert not (node / "var/lib/railwright").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
def test_what_is_no_file_in_the_files_place_is_refused_by_name_and_left(node: Path, kind: str) -> None:
    path = node / "etc/nccl.conf"
    plant(node, "/etc/elsewhere", "theirs\n")
    if kind in ("link", "dangling"):
        path.symlink_to("elsewhere" if kind == "link" else "nowhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = fingerprint(node) if kind != "fifo" else {}
    outcome = put(node, file_entry("/etc/nccl.conf", "a\n"), file_entry("/etc/other", "b\n"))
    (failure,) = outcome.failures
    assert failure.where == "slices.part[0] (file:/etc/nccl.conf)"
    assert failure.why.startswith("/etc/nccl.conf is ")
    assert failure.remedy
    assert (node / "etc/other").read_text() == "b\n"  # the others go on
    assert (node / "etc/elsewhere").read_text() == "theirs\n"
    revert(root=str(node))
    if kind != "fifo":
        assert fingerprint(node) == before


def test_a_link_on_the_way_that_root_made_is_followed_inside_the_node(node: Path) -> None:
    (node / "srv/real/deep").mkdir(parents=True)
    (node / "etc/absolute").symlink_to("/srv/real")
    (node / "etc/relative").symlink_to("../../../srv/real")  # above the root is the root
    put(node, file_entry("/etc/absolute/deep/a", "a\n"), file_entry("/etc/relative/new/b", "b\n"))
    assert (node / "srv/real/deep/a").read_text() == "a\n"
    assert (node / "srv/real/new/b").read_text() == "b\n"
    revert(root=str(node))
    assert sorted(path.name for path in (node / "srv/real").rglob("*")) == ["deep"]


@ROOT_ONLY
def test_a_link_on_the_way_that_a_user_made_is_refused(node: Path) -> None:
    (node / "srv").mkdir()
    (node / "etc/theirs").symlink_to("/srv")
    os.lchown(node / "etc/theirs", 1000, 1000)
    (failure,) = put(node, file_entry("/etc/theirs/a", "a\n")).failures
    assert failure.why == "'theirs' on the way to /etc/theirs/a is a link to /srv that user 1000 made"
    assert list((node / "srv").iterdir()) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere/at/all", "a link on the way to /etc/way/a leads nowhere"),
        ("way", "'way' on the way to /etc/way/a is a link to itself"),
    ],
)
def test_a_link_on_the_way_that_leads_nowhere_is_refused(node: Path, target: str, why: str) -> None:
    (node / "etc/way").symlink_to(target)
    (failure,) = put(node, file_entry("/etc/way/a", "a\n")).failures
    assert failure.why == why


def test_a_file_where_a_folder_should_be_is_refused(node: Path) -> None:
    plant(node, "/etc/way", "x")
    (failure,) = put(node, file_entry("/etc/way/a", "a\n")).failures
    assert failure.why == "'way' on the way to /etc/way/a is no folder"


def test_a_file_too_large_to_keep_is_refused(node: Path) -> None:
    path = plant(node, "/etc/a", "")
    os.truncate(path, files.LARGEST + 1)
    (failure,) = put(node, file_entry("/etc/a", "a\n")).failures
    assert (
        failure.why
        == f"/etc/a has {16 * 1024 * 1024 + 1} bytes; at most 16777216 can be kept for putting back"
    )


def test_bytes_come_from_blobs_only_when_the_node_has_others(node: Path) -> None:
    data = bytes(range(256))
    digest = hashlib.sha256(data).hexdigest()
    entry = file_entry("/opt/railwright/railwright.pyz", "")
    del entry["content"]
    entry["sha256"] = digest
    (failure,) = put(node, entry).failures
    assert (
        failure.why
        == f"/opt/railwright/railwright.pyz should have the content with SHA-256 {digest}, which was not sent"
    )
    outcome = put(node, entry, blobs={digest: base64.b64encode(data).decode()})
    assert (node / "opt/railwright/railwright.pyz").read_bytes() == data
    assert outcome.to_json()["diff"][0]["after"] == f"(binary, 256 bytes, sha256 {digest})\n"
    again = put(node, entry)
    assert (again.changed, again.failures) == (False, ())
    (node / "opt/railwright/railwright.pyz").chmod(0o600)
    assert put(node, entry).failures == ()  # its mode can be set without the bytes


def test_a_diff_shows_text_and_hides_secrets(node: Path) -> None:
    plant(node, "/etc/open", "old\n")
    outcome = put(node, file_entry("/etc/open", "new\n"), file_entry("/etc/hidden", "hunter2\n", secret=True))
    shown, hidden = outcome.to_json()["diff"]
    assert (shown["before"], shown["after"]) == ("old\n", "new\n")
    assert (
        hidden["after"]
        == f"(secret, 8 bytes, sha256 {hashlib.sha256(b'hunter2' + bytes([10])).hexdigest()})\n"
    )
    assert "hunter2" not in str(outcome.to_json())
    assert "hunter2" not in str(revert(root=str(node)).to_json())


def test_what_a_killed_run_left_beside_a_file_is_swept(node: Path) -> None:
    put(node, file_entry("/etc/nccl.conf", "a\n"))
    plant(node, "/etc/.nccl.conf.railwright", "half")
    plant(node, "/var/lib/railwright/.state.json.railwright", "half")
    assert not put(node, file_entry("/etc/nccl.conf", "a\n")).changed
    assert [path.name for path in node.rglob(".*")] == []


def test_a_file_that_changes_between_look_and_write_is_not_overwritten(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(node, "/etc/nccl.conf", "before\n")
    real = files.replace

    def raced(root: str, name: str, content: files.Content, seen: files.Snapshot | None) -> None:
        if name == "/etc/nccl.conf":
            path.write_text("theirs, just now\n")
        real(root, name, content, seen)

    monkeypatch.setattr(files, "replace", raced)
    (failure,) = put(node, file_entry("/etc/nccl.conf", "ours\n")).failures
    assert failure.why == "/etc/nccl.conf changed while this run was at work"
    assert path.read_text() == "theirs, just now\n"
    assert [p.name for p in (node / "etc").iterdir()] == ["nccl.conf"]


def test_a_folder_that_cannot_be_removed_for_another_reason_is_no_secret(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, file_entry("/etc/ours/a", "a\n"))

    def refuse(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", name)

    monkeypatch.setattr(os, "rmdir", refuse)
    outcome = revert(root=str(node))
    (failure,) = outcome.failures
    assert failure.why == "a folder that we made cannot be removed: Read-only file system"


def test_an_item_that_fails_is_named_with_what_to_do(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(StateError, match="the record cannot be kept: Operation not permitted"):
        put(node, file_entry("/etc/a", "a\n"))
    assert not (node / "etc/a").exists()


@pytest.fixture
def full_disk(node: Path) -> Iterator[Path]:
    """A file system of 64 KiB at /etc/small, with room for one page or two."""
    place = node / "etc/small"
    place.mkdir()
    if (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False
        ).returncode
        != 0
    ):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        plant(node, "/etc/small/nccl.conf", "old\n")
        (place / "ballast").write_bytes(bytes(44 * 1024))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@ROOT_ONLY
def test_a_full_disk_leaves_the_old_file_whole_and_is_no_change(node: Path, full_disk: Path) -> None:
    before = fingerprint(node)
    outcome = put(node, file_entry("/etc/small/nccl.conf", "x" * 40000), file_entry("/etc/other", "b\n"))
    (failure,) = outcome.failures
    assert failure.why == "file:/etc/small/nccl.conf: No space left on device"
    assert failure.remedy == "free space or inodes on that file system: df, df -i"
    assert not items(outcome, "part")["file:/etc/small/nccl.conf"]["changed"]
    assert sorted(path.name for path in full_disk.iterdir()) == ["ballast", "nccl.conf"]
    revert(root=str(node))
    assert fingerprint(node) == before


@ROOT_ONLY
def test_a_disk_too_full_for_the_record_stops_the_run_before_any_write(node: Path, full_disk: Path) -> None:
    (node / "var/lib").rmdir()
    (node / "var/lib").symlink_to("/etc/small")
    plant(node, "/etc/other", "y" * 40000)  # the record keeps it, in base64
    before = fingerprint(node)
    with pytest.raises(StateError, match="the record cannot be kept: No space left on device"):
        put(node, file_entry("/etc/other", "short\n"))
    assert fingerprint(node) == before
