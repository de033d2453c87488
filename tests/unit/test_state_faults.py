"""A node that cannot: full, out of inodes, over quota, read-only, immutable. What stood there stays whole, the failure
is said with what to do, a check foretells what can be foretold, and the next run ends what was begun."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import StateError, apply, revert
from tests.rotation import share
from tests.unit.crash_support import FAILURES, GOOD, SOURCE, STOPPED, Service, Traced
from tests.unit.kind_nodes import KINDS, every_kind
from tests.unit.state_support import file_entry, fingerprint, item, make_node, plant
from tests.unit.test_state_crash import Stand, as_the_kernel, check_moment, end_after

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ERRORS = ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EPERM")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def put(node: Path, *entries: dict[str, Any], **more: Any) -> Any:
    return apply({"part": list(entries)}, root=str(node), **more)


def without_irqs(picture: dict[str, Any], placed: bool) -> dict[str, Any]:
    return {path: state for path, state in picture.items() if not placed or not path.startswith("proc/irq/")}


@pytest.mark.parametrize("verb", ["apply", "revert"])
@pytest.mark.parametrize("name", ["file", "json_keys", "systemd_unit", "every"])
def test_a_call_that_fails_anywhere_leaves_old_or_new_and_is_never_called_a_success(
    tmp_path: Path, traced: Traced, service: Service, name: str, verb: str
) -> None:
    kind = every_kind() if name == "every" else KINDS[name]
    first = Stand(*kind.node(tmp_path / "start"))
    start = first.exact()
    template = first
    if verb == "revert":
        template = first.copy(tmp_path / "applied")
        assert end_after("apply", template, kind).failures == ()
    good = template.copy(tmp_path / "good")
    service.systemd = good.systemd
    # systemctl is another program: what it says when it cannot is told elsewhere.
    points = [
        point
        for point in traced.points(verb, good.node, kind.slices, systemctl=service.address)
        if point[0] not in ("connect", "sendto")
    ]
    before, done = template.picture(), good.picture()
    # All kinds in one run are many calls: there each has one of the errors, in turn.
    cases = [
        (point, error)
        for n, point in enumerate(points)
        for m, error in enumerate(ERRORS)
        if name != "every" or n % len(ERRORS) == m
    ]
    tried = share(cases)
    ends = {GOOD: 0, FAILURES: 0, STOPPED: 0}
    for number, ((call, which), error) in enumerate(tried):
        stand = template.copy(tmp_path / str(number))
        service.systemd = stand.systemd
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={which}")
        status = traced.run(verb, stand.node, kind.slices, *inject, systemctl=service.address)
        place = f"{verb}: {call} number {which} fails with {error}"
        assert status in ends, f"{place}: a traceback"
        ends[status] += 1
        as_the_kernel(stand, template)
        check_moment(stand, before, done, place)
        # With these two the kernel says that it places an interrupt itself: that is noted, and no failure.
        placed = call == "write" and error in ("EIO", "EPERM")
        if status == GOOD:
            assert without_irqs(stand.picture(), placed) == without_irqs(done, placed), place
        again = end_after(verb, stand, kind)
        assert again.failures == (), place
        assert without_irqs(stand.picture(), placed) == without_irqs(done, placed), place
        if verb == "apply":
            assert end_after("revert", stand, kind).failures == ()
        assert without_irqs(stand.exact(), placed) == without_irqs(start, placed), place
        shutil.rmtree(stand.node)
    assert min(ends[FAILURES], ends[STOPPED]) > 0
    print(f"{name}, {verb}: {len(tried)} of {len(cases)}: {ends}")


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


@ROOT_ONLY
def test_a_file_system_without_a_free_inode_keeps_the_old_file_and_is_said(node: Path) -> None:
    with mounted(node / "etc", "nr_inodes=8"):
        plant(node, "/etc/old", "old\n")
        for number in range(100):
            try:
                (node / f"etc/fill{number}").touch()
            except OSError:
                break
        outcome = put(node, file_entry("/etc/old", "new\n"), file_entry("/etc/new", "new\n"))
        assert (outcome.changed, len(outcome.failures)) == (False, 2)
        assert {failure.remedy for failure in outcome.failures} == {
            "free space or inodes on that file system: df, df -i"
        }
        assert (node / "etc/old").read_text() == "old\n"
        assert not (node / "var/lib/railwright").exists()
        (node / "etc/fill0").unlink()
        assert put(node, file_entry("/etc/old", "new\n")).failures == ()


@ROOT_ONLY
def test_a_read_only_file_system_is_foretold_item_by_item(node: Path) -> None:
    with mounted(node / "etc/ro", "mode=0755") as place:
        plant(node, "/etc/ro/old", "old\n")
        plant(node, "/etc/ro/mode", "mode\n")
        remount(place, "ro")
        entries = [
            file_entry("/etc/ro/old", "new\n"),
            file_entry("/etc/ro/mode", "mode\n", mode="0600"),
            file_entry("/etc/ro/deep/new", "new\n"),
            {"kind": "json_keys", "path": "/etc/ro/new.json", "keys": {"/a": 1}},
            file_entry("/etc/rw", "new\n"),
        ]
        foretold = put(node, *entries, check=True)
        done = put(node, *entries)
        assert foretold.to_json() == done.to_json()
        assert [failure.why for failure in done.failures] == [
            f"{id_}: Read-only file system"
            for id_ in (
                "file:/etc/ro/old",
                "file:/etc/ro/mode",
                "file:/etc/ro/deep/new",
                "json_keys:/etc/ro/new.json",
            )
        ]
        assert [part["id"] for part in done.to_json()["slices"]["part"]["items"] if part["changed"]] == [
            "file:/etc/rw"
        ]


@ROOT_ONLY
@pytest.mark.parametrize(
    ("folder", "where", "why"),
    [
        ("var/lib", "/var/lib/railwright/state.json", "the record cannot be kept: Read-only file system"),
        ("run", "/run/railwright.lock", "cannot be opened: Read-only file system"),
    ],
)
def test_a_place_of_the_writers_own_that_is_read_only_is_foretold(
    node: Path, folder: str, where: str, why: str
) -> None:
    with mounted(node / folder, "mode=0755") as place:
        remount(place, "ro")
        for check in (True, False):
            with pytest.raises(StateError) as caught:
                put(node, file_entry("/etc/a", "a"), check=check)
            assert (caught.value.where, caught.value.why) == (where, why)
        assert not (node / "etc/a").exists()
        # Where nothing is to be written nothing is missing, but for the lock.
        plant(node, "/etc/a", "a")
        if folder == "var/lib":
            assert not put(node, file_entry("/etc/a", "a")).changed


@ROOT_ONLY
def test_a_user_who_may_not_write_is_told_so_by_a_check_too() -> None:
    """In a process of its own: who has given root away does not get it back."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # so that everybody gets there
        node = make_node(Path(folder) / "node")
        program = f"""
import os, sys
sys.path.insert(0, {str(SOURCE)!r})
from railwright.node.state import StateError, apply
os.setgid(65534), os.setuid(65534)
for check in (True, False):
    try:
        apply({{"part": [{{"kind": "file", "path": "/etc/a", "content": "a"}}]}}, root={str(node)!r}, check=check)
    except StateError as error:
        print(error)
"""
        done = subprocess.run(
            [sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False
        )
    why = "/run/railwright.lock: cannot be opened: Permission denied (run as root (become: true))"
    assert (done.stdout.splitlines(), done.stderr) == ([why, why], "")


@contextmanager
def fixed(path: Path, flag: str) -> Iterator[None]:
    """With chattr(1)."""
    done = subprocess.run(["chattr", f"+{flag}", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this file system knows no +{flag}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", str(path)], check=True)


@ROOT_ONLY
@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("target", ["file", "folder"])
def test_an_immutable_file_or_folder_is_foretold_and_stays(node: Path, flag: str, target: str) -> None:
    old = plant(node, "/etc/part/old", "old\n")
    plant(node, "/etc/part/mode", "mode\n")
    entries = [file_entry("/etc/part/old", "new\n")]
    if target == "file":
        entries.append(file_entry("/etc/part/mode", "mode\n", mode="0600"))
    with fixed(old if target == "file" else old.parent, flag):
        before = fingerprint(node)
        foretold = put(node, *entries, check=True)
        done = put(node, *entries)
        assert foretold.to_json() == done.to_json()
        (failure,) = done.failures
        assert (failure.why, "lsattr" in failure.remedy) == (
            "file:/etc/part/old: Operation not permitted",
            True,
        )
        assert old.read_text() == "old\n"
        if target == "folder":
            assert fingerprint(node) == before
            # A mode is set in place, for which the folder does not matter.
            assert put(node, file_entry("/etc/part/mode", "mode\n", mode="0600")).failures == ()
    assert put(node, *entries).failures == ()
    revert(root=str(node))
    assert old.read_text() == "old\n"


@ROOT_ONLY
def test_a_file_that_became_immutable_is_not_put_back_and_stays_in_the_record(node: Path) -> None:
    old = plant(node, "/etc/old", "old\n")
    put(node, file_entry("/etc/old", "new\n"))
    with fixed(old, "i"):
        foretold = revert(root=str(node), check=True)
        done = revert(root=str(node))
        assert foretold.to_json() == done.to_json()
        assert [failure.why for failure in done.failures] == ["file:/etc/old: Operation not permitted"]
    assert revert(root=str(node)).failures == ()
    assert old.read_text() == "old\n"


def acl(*entries: tuple[int, int, int]) -> bytes:
    """As the kernel keeps it: version 2, then tag, permissions and number each (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


OWNER, USER, GROUP, MASK, OTHER, NOBODY = 0x01, 0x02, 0x04, 0x10, 0x20, 0xFFFFFFFF
ACL = acl((OWNER, 6, NOBODY), (USER, 4, 1000), (GROUP, 4, NOBODY), (MASK, 4, NOBODY), (OTHER, 0, NOBODY))


@ROOT_ONLY
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("system.posix_acl_access", ACL),
        ("security.selinux", b"system_u:object_r:etc_t:s0\0"),
        ("user.note", b"by hand"),
        ("trusted.note", b"by root"),
    ],
)
def test_what_a_file_has_beside_its_bytes_is_kept_and_comes_back(node: Path, name: str, value: bytes) -> None:
    for path in ("/etc/whole", "/etc/keys.json"):
        os.setxattr(plant(node, path, "{}\n", 0o640), name, value)
    before = fingerprint(node)
    put(
        node,
        file_entry("/etc/whole", "new\n", mode="0640"),
        {"kind": "json_keys", "path": "/etc/keys.json", "keys": {"/a": 1}},
    )
    for path in ("etc/whole", "etc/keys.json"):
        assert os.getxattr(node / path, name) == value
        assert (node / path).stat().st_mode & 0o777 == 0o640
    revert(root=str(node))
    assert fingerprint(node) == before


@ROOT_ONLY
@pytest.mark.parametrize("name", ["system.posix_acl_access", "security.selinux"])
def test_a_file_whose_acl_or_label_cannot_be_kept_is_left(
    node: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = plant(node, "/etc/old", "old\n", 0o640)
    os.setxattr(old, name, ACL if "acl" in name else b"system_u:object_r:etc_t:s0\0")
    before = fingerprint(node)

    def refuse(*arguments: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    outcome = put(node, file_entry("/etc/old", "new\n"))
    assert (outcome.changed, len(outcome.failures)) == (False, 1)
    assert fingerprint(node) == before


@ROOT_ONLY
def test_a_file_of_another_owner_becomes_the_entrys_and_goes_back_to_them(node: Path) -> None:
    for path in ("/etc/whole", "/etc/same"):
        os.chown(plant(node, path, "same\n"), 1000, 1001)
    os.chown(plant(node, "/etc/keys.json", "{}\n"), 1000, 1001)
    before = fingerprint(node)
    put(
        node,
        file_entry("/etc/whole", "new\n", owner="0", group="0"),
        file_entry("/etc/same", "same\n", owner="0", group="0"),
        {"kind": "json_keys", "path": "/etc/keys.json", "keys": {"/a": 1}},
    )
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in (node / "etc").iterdir()}
    assert owners == {"whole": (0, 0), "same": (0, 0), "keys.json": (1000, 1001)}
    revert(root=str(node))
    assert fingerprint(node) == before


@ROOT_ONLY
def test_a_file_that_something_is_mounted_on_is_left_and_said(node: Path, tmp_path: Path) -> None:
    old = plant(node, "/etc/old", "old\n")
    other = plant(tmp_path, "/other", "mounted\n")
    subprocess.run(["mount", "--bind", str(other), str(old)], check=True)
    try:
        outcome = put(node, file_entry("/etc/old", "new\n"))
        assert (outcome.changed, outcome.failures[0].remedy) == (False, "something is mounted there: findmnt")
        assert other.read_text() == "mounted\n"
    finally:
        subprocess.run(["umount", str(old)], check=True)
    assert not (node / "etc/.old.railwright").exists()


def test_a_value_that_nobody_may_write_is_foretold(node: Path) -> None:
    path = plant(node, "/sys/class/net/eth0/speed", "100000\n", 0o444)
    entry = {"kind": "sysfs", "path": "/sys/class/net/eth0/speed", "value": "1"}
    foretold = put(node, entry, check=True)
    done = put(node, entry)
    assert foretold.to_json() == done.to_json()
    assert done.failures[0].why.endswith(
        "/sys/class/net/eth0/speed is read-only: the kernel takes no value there"
    )
    assert (path.read_text(), item(done)["changed"]) == ("100000\n", False)


@pytest.mark.parametrize(
    ("path", "link"),
    [("/etc/alias/state.json", "etc/alias"), ("/opt/a/b/state.json", "opt/a")],
)
def test_a_file_of_the_writers_own_is_refused_behind_a_link_too(node: Path, path: str, link: str) -> None:
    (node / "var/lib/railwright/b").mkdir(parents=True)
    (node / link).parent.mkdir(exist_ok=True)
    (node / link).symlink_to("/var/lib/railwright")
    for entry in (file_entry(path, "{}"), {"kind": "json_keys", "path": path, "keys": {"/a": 1}}):
        for check in (True, False):
            with pytest.raises(Exception, match=r"belongs to the writer itself"):
                put(node, entry, check=check)
    assert list((node / "var/lib/railwright").iterdir()) == [node / "var/lib/railwright/b"]


@pytest.mark.parametrize("later", [False, True])
def test_two_slices_that_meet_in_one_file_through_a_link_are_refused(node: Path, later: bool) -> None:
    (node / "etc/real").mkdir()
    (node / "etc/alias").symlink_to("real")
    one, other = file_entry("/etc/real/a", "one"), file_entry("/etc/alias/a", "other")
    if later:
        apply({"one": [one]}, root=str(node))
    slices = {"other": [other]} if later else {"one": [one], "other": [other]}
    with pytest.raises(Exception, match=r"both own file /etc/real/a"):
        apply(slices, root=str(node))
    assert (node / "etc/real/a").exists() == later


@ROOT_ONLY
@pytest.mark.parametrize(("owner", "mode"), [(1000, 0o755), (0, 0o777), (0, 0o775)])
def test_a_record_in_a_folder_of_others_is_not_believed(node: Path, owner: int, mode: int) -> None:
    put(node, file_entry("/etc/a", "a"))
    folder = node / "var/lib/railwright"
    folder.chmod(mode)
    os.chown(folder, owner, -1)
    for check in (True, False):
        with pytest.raises(StateError, match=f"user {owner} with mode {mode:04o}") as caught:
            revert(root=str(node), check=check)
        assert caught.value.where == "/var/lib/railwright"
    assert (node / "etc/a").exists()


def test_a_record_that_would_grow_too_large_is_foretold(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from railwright.node.state import files

    monkeypatch.setattr(files, "LARGEST", 20_000)
    plant(node, "/etc/large", os.urandom(19_000))
    for check in (True, False):
        with pytest.raises(StateError, match="the record would have"):
            put(node, file_entry("/etc/large", "new\n"), check=check)
