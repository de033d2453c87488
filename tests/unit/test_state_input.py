"""What the writer refuses before it looks at the node: every entry, with the place and what was expected."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import InputError, StateError, apply, revert
from tests.unit.state_support import fingerprint, make_node, plant

FILE = {"kind": "file", "path": "/etc/a", "content": "x"}
DIGEST = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # printf x | sha256sum


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def changed(**values: Any) -> dict[str, Any]:
    """FILE with other values; ... takes a key out."""
    return {key: value for key, value in {**FILE, **values}.items() if value is not ...}


ENTRIES: list[tuple[Any, str, str]] = [
    ("file", "", "expected a mapping, found text"),
    (7, "", "expected a mapping, found a number"),
    ({}, ".kind", "missing"),
    (changed(kind="fle"), ".kind", "unknown kind 'fle'"),
    (changed(kind=True), ".kind", "expected text, found true or false"),
    (changed(mod="0644"), ".mod", "unknown key"),
    (changed(path=...), ".path", "missing"),
    (changed(path=7), ".path", "expected text, found a number"),
    (changed(path="etc/a"), ".path", "'etc/a' is not absolute"),
    (changed(path="/etc/../root/a"), ".path", "'/etc/../root/a' is not a plain path"),
    (changed(path="/etc//a"), ".path", "'/etc//a' is not a plain path"),
    (changed(path="/etc/a/"), ".path", "'/etc/a/' is not a plain path"),
    (changed(path="/etc/./a"), ".path", "'/etc/./a' is not a plain path"),
    (changed(path="/etc/a\0b"), ".path", "'/etc/a\\x00b' is not a plain path"),
    (changed(path="/etc"), ".path", "/etc is outside of what may be written"),
    (
        changed(path="/root/.ssh/authorized_keys"),
        ".path",
        "/root/.ssh/authorized_keys is outside of what may be written",
    ),
    (changed(path="/usr/bin/python3"), ".path", "/usr/bin/python3 is outside of what may be written"),
    (
        changed(path="/var/lib/railwright/state.json"),
        ".path",
        "/var/lib/railwright/state.json belongs to the writer itself",
    ),
    (changed(path="/run/railwright.lock"), ".path", "/run/railwright.lock belongs to the writer itself"),
    (
        changed(path="/run/railwright.write.lock"),
        ".path",
        "/run/railwright.write.lock belongs to the writer itself",
    ),
    (changed(path="/etc/.a.railwright"), ".path", "/etc/.a.railwright belongs to the writer itself"),
    (changed(path="/etc/" + "a" * 244), ".path", "the name has 244 bytes"),
    (changed(content=...), "", "expected either content or sha256"),
    (changed(sha256=DIGEST), "", "expected either content or sha256"),
    (changed(content="x\ud800"), ".content", "the text holds a lone surrogate"),
    (changed(content=None), ".content", "expected text, found nothing"),
    (changed(content=["x"]), ".content", "expected text, found a list"),
    (changed(content=..., sha256=DIGEST.upper()), ".sha256", f"{DIGEST.upper()!r} is no SHA-256 digest"),
    (changed(mode="644"), ".mode", "'644' is no file mode"),
    (changed(mode="4755"), ".mode", "'4755' is no file mode"),
    (changed(mode=0o644), ".mode", "expected text, found a number"),
    (changed(mode="0644\n"), ".mode", "'0644\\n' is no file mode"),
    (changed(content=..., sha256=DIGEST + "\n"), ".sha256", f"'{DIGEST}\\n' is no SHA-256 digest"),
    (changed(owner=0), ".owner", "expected text, found a number"),
    (changed(owner="99999999999"), ".owner", "'99999999999' is no number of a user"),
    (changed(owner="4294967295"), ".owner", "'4294967295' is no number of a user"),
    (changed(group="4294967295"), ".group", "'4294967295' is no number of a group"),
    (changed(group="٢"), ".group", "'٢' is no number of a group"),
    (changed(owner="0" * 5000), ".owner", f"'{'0' * 5000}' is no number of a user"),
    (changed(owner="a\0b"), ".owner", "'a\\x00b' is no name of a user"),
    (changed(owner=""), ".owner", "'' is no name of a user"),
    (changed(secret="yes"), ".secret", "expected true or false, found text"),
    (changed(reboot=1), ".reboot", "expected true or false, found a number"),
    (changed(because=["x"]), ".because", "expected text, found a list"),
    ({"kind": "json_keys", "path": "/etc/d.json"}, ".keys", "missing"),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": ["/a"]},
        ".keys",
        "expected a mapping, found a list",
    ),
    ({"kind": "json_keys", "path": "/etc/d.json", "keys": {}}, ".keys", "no key is named"),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"a": 1}},
        ".keys.a",
        "'a' is no JSON pointer to a key",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"": 1}},
        ".keys.",
        "'' is no JSON pointer to a key",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a~2": 1}},
        ".keys./a~2",
        "'/a~2' is no JSON pointer to a key",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a": [{"b": (1,)}]}},
        ".keys./a[0].b",
        "expected a JSON value, found tuple",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a": {1: 2}}},
        ".keys./a",
        "expected text as a key, found 1",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a": float("nan")}},
        ".keys./a",
        "nan is no JSON number",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a": float("inf")}},
        ".keys./a",
        "inf is no JSON number",
    ),
    (
        {"kind": "json_keys", "path": "/etc/d.json", "keys": {"/a": 1, "/a/b": 2}},
        "",
        "slice part and slice part both own file /etc/d.json a b (see slices.part[0])",
    ),
    ({"kind": "sysctl", "name": "vm.a"}, ".value", "missing"),
    ({"kind": "sysctl", "name": "vm.a", "value": 0}, ".value", "expected text, found a number"),
    ({"kind": "sysctl", "name": "vm.a", "value": " "}, ".value", "'' is no value"),
    ({"kind": "sysctl", "name": "vm.a", "value": "1\n2"}, ".value", "'1\\n2' is no value"),
    ({"kind": "sysctl", "name": "swappiness", "value": "1"}, ".name", "'swappiness' is no sysctl"),
    ({"kind": "sysctl", "name": "vm/../../sys/a", "value": "1"}, ".name", "'vm/../../sys/a' is no sysctl"),
    ({"kind": "sysctl", "name": "vm..a", "value": "1"}, ".name", "'vm//a' is no sysctl"),
    ({"kind": "sysctl", "name": "vm.a", "value": "1", "secret": True}, ".secret", "unknown key"),
    ({"kind": "sysfs", "path": "/etc/a", "value": "1"}, ".path", "/etc/a is no file of the kernel's"),
    (
        {"kind": "sysfs", "path": "/sys/../etc/a", "value": "1"},
        ".path",
        "'/sys/../etc/a' is not a plain path",
    ),
    (
        {"kind": "sysfs", "path": "/proc/sys/vm/a", "value": "1"},
        ".path",
        "/proc/sys/vm/a is no file of the kernel's",
    ),
    ({"kind": "irq_affinity", "device": "eth0", "cpus": "1"}, ".device", "'eth0' is no PCI address"),
    ({"kind": "irq_affinity", "device": "18:00.0", "cpus": ""}, ".cpus", "no CPU is named"),
    (
        {"kind": "irq_affinity", "device": "18:00.0", "cpus": "4-2"},
        ".cpus",
        "'4-2' is no CPU list: range 4-2",
    ),
    (
        {"kind": "irq_affinity", "device": "18:00.0", "cpus": "1", "control_cpus": "x"},
        ".control_cpus",
        "'x' is no CPU list",
    ),
    ({"kind": "systemd_unit", "name": "docker"}, ".name", "'docker' is no unit"),
    ({"kind": "systemd_unit", "name": "a.service\n"}, ".name", "'a.service\\n' is no unit"),
    ({"kind": "systemd_unit", "name": "-a.service"}, ".name", "'-a.service' is no unit"),
    ({"kind": "systemd_unit", "name": "../a.service"}, ".name", "'../a.service' is no unit"),
    ({"kind": "systemd_unit", "name": "a.service", "state": "restarted"}, ".state", "found 'restarted'"),
    ({"kind": "systemd_unit", "name": "a.service", "state": True}, ".state", "found True"),
    (
        {"kind": "systemd_unit", "name": "a.service", "enabled": "yes"},
        ".enabled",
        "expected true or false, found text",
    ),
    (
        {"kind": "systemd_unit", "name": "a.service", "restart_if_older_than": "/etc/a"},
        ".restart_if_older_than",
        "expected a list, found text",
    ),
    (
        {"kind": "systemd_unit", "name": "a.service", "restart_if_older_than": [7]},
        ".restart_if_older_than[0]",
        "expected text, found a number",
    ),
    (
        {"kind": "systemd_unit", "name": "a.service", "restart_if_older_than": ["/a", "b"]},
        ".restart_if_older_than[1]",
        "'b' is not absolute",
    ),
]


@pytest.mark.parametrize(("entry", "place", "why"), ENTRIES)
def test_a_wrong_entry_is_refused_with_its_place_before_anything_is_written(
    node: Path, entry: Any, place: str, why: str
) -> None:
    before = fingerprint(node)
    with pytest.raises(InputError) as caught:
        apply({"first": [changed(path="/etc/first")], "part": [entry]}, root=str(node))
    assert (caught.value.where, caught.value.why) == (f"slices.part[0]{place}", why)
    assert fingerprint(node) == before


@pytest.mark.parametrize(
    ("slices", "where", "why"),
    [
        (None, "slices", "expected a mapping, found nothing"),
        ([], "slices", "expected a mapping, found a list"),
        ({7: []}, "slices", "expected text as a key, found 7"),
        ({"a b": []}, "slices", "'a b' is no name of a slice"),
        ({"a\n": []}, "slices", "'a\\n' is no name of a slice"),
        ({"a": {}}, "slices.a", "expected a list, found a mapping"),
        ({"a": [FILE, FILE]}, "slices.a[1]", "file:/etc/a is named by slices.a[0] already"),
        (
            {"a": [FILE], "b": [FILE]},
            "slices.b[0]",
            "slice b and slice a both own file /etc/a (see slices.a[0])",
        ),
    ],
)
def test_slices_that_are_none_or_quarrel_are_refused(node: Path, slices: Any, where: str, why: str) -> None:
    for check in (True, False):
        with pytest.raises(InputError) as caught:
            apply(slices, root=str(node), check=check)
        assert (caught.value.where, caught.value.why) == (where, why)


@pytest.mark.parametrize(
    ("blobs", "where", "why"),
    [
        (["x"], "blobs", "expected a mapping, found a list"),
        ({"x": ""}, "blobs.x", "'x' is no SHA-256 digest"),
        ({DIGEST: "%%%"}, f"blobs.{DIGEST}", "this is not base64"),
        ({DIGEST: 7}, f"blobs.{DIGEST}", "this is not base64"),
        ({DIGEST: "é"}, f"blobs.{DIGEST}", "this is not base64"),
        (
            {DIGEST: base64.b64encode(b"y").decode()},
            f"blobs.{DIGEST}",
            "the bytes have another digest than their key",
        ),
    ],
)
def test_blobs_that_are_none_are_refused(node: Path, blobs: Any, where: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        apply({}, root=str(node), blobs=blobs)
    assert (caught.value.where, caught.value.why) == (where, why)


@pytest.mark.parametrize(
    ("names", "where"), [("part", "names"), (7, "names"), ([7], "names[0]"), (["a b"], "names[0]")]
)
def test_names_that_are_none_are_refused(node: Path, names: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        revert(names, root=str(node))
    assert caught.value.where == where


def test_a_root_that_is_no_folder_is_refused(node: Path) -> None:
    for root in ("etc", str(node / "nowhere")):
        with pytest.raises(InputError, match="is no folder"):
            apply({}, root=root)


def test_every_slice_of_the_input_is_in_the_outcome(node: Path) -> None:
    outcome = apply(
        {"empty": [], "part": [changed(owner="0", group="0")]}, root=str(node), check=True
    ).to_json()
    assert list(outcome["slices"]) == ["empty", "part"]
    assert outcome["slices"]["empty"] == {"changed": False, "items": []}
    assert list(outcome) == ["changed", "slices", "diff", "failures", "reboot_needed"]
    assert revert(["never"], root=str(node)).to_json()["slices"] == {"never": {"changed": False, "items": []}}


def test_what_takes_effect_at_the_next_boot_is_listed_until_the_boot(node: Path) -> None:
    entry = changed(path="/etc/default/grub.d/60-rail.cfg", reboot=True)
    owed = ("file:/etc/default/grub.d/60-rail.cfg",)
    for check in (True, False, True, False):
        assert apply({"part": [entry]}, root=str(node), check=check).reboot_needed == owed
    (node / "run/railwright.reboot").unlink()  # a boot empties /run
    assert apply({"part": [entry]}, root=str(node)).reboot_needed == ()
    assert revert(root=str(node), check=True).reboot_needed == owed
    assert revert(root=str(node)).reboot_needed == owed
    assert (node / "run/railwright.reboot").stat().st_mode & 0o777 == 0o600


def test_what_stands_again_as_it_stood_at_the_boot_needs_none(node: Path) -> None:
    entry = changed(path="/etc/default/grub.d/60-rail.cfg", reboot=True)
    assert apply({"part": [entry]}, root=str(node)).reboot_needed != ()
    assert revert(root=str(node), check=True).reboot_needed == ()
    assert revert(root=str(node)).reboot_needed == ()
    assert list((node / "run").iterdir()) == []
    apply({"part": [{**entry, "content": "one"}]}, root=str(node))
    (node / "run/railwright.reboot").unlink()
    assert apply({"part": [{**entry, "content": "two"}]}, root=str(node)).reboot_needed != ()
    # The kernel that runs has read "one": nothing at all is another state.
    assert revert(root=str(node)).reboot_needed != ()


def test_what_somebody_put_back_by_hand_before_the_plan_was_put_back_needs_no_boot(node: Path) -> None:
    entry = changed(path="/etc/default/grub.d/60-rail.cfg", reboot=True)
    apply({"part": [{**entry, "content": "one"}]}, root=str(node))
    (node / "run/railwright.reboot").unlink()  # the kernel that runs has read "one"
    assert apply({"part": [{**entry, "content": "two"}]}, root=str(node)).reboot_needed != ()
    (node / "etc/default/grub.d/60-rail.cfg").write_text("one")
    for check in (True, False, True):
        outcome = apply({"part": [{**entry, "content": "one"}]}, root=str(node), check=check)
        assert (outcome.changed, outcome.reboot_needed) == (False, ())
    assert list((node / "run").iterdir()) == []


def test_a_reboot_is_owed_after_a_revert_too_until_the_boot(node: Path) -> None:
    entry = changed(path="/etc/default/grub.d/60-rail.cfg", reboot=True)
    owed = ("file:/etc/default/grub.d/60-rail.cfg",)
    apply({"part": [entry]}, root=str(node))
    (node / "run/railwright.reboot").unlink()
    for check in (True, False, True, False):
        assert revert(root=str(node), check=check).reboot_needed == owed
    other = changed(path="/etc/sysctl.d/rail.conf")
    assert apply({"other": [other]}, root=str(node)).reboot_needed == owed
    (node / "run/railwright.reboot").unlink()
    assert revert(root=str(node)).reboot_needed == ()


def test_a_key_that_came_later_counts_from_when_it_came_and_one_that_left_is_forgotten(node: Path) -> None:
    path = "/etc/docker/daemon.json"

    def tune(*, check: bool = False, **keys: int) -> tuple[str, ...]:
        entry = {
            "kind": "json_keys",
            "path": path,
            "keys": {f"/{key}": value for key, value in keys.items()},
            "reboot": True,
        }
        return apply({"part": [entry]}, root=str(node), check=check).reboot_needed

    plant(node, path, '{"a": 0, "b": 0}')
    owed = (f"json_keys:{path}",)
    assert tune(a=1) == owed
    assert tune(a=1, b=1) == owed
    assert tune(a=0, b=1, check=True) == tune(a=0, b=1) == owed
    assert tune(a=0, b=0, check=True) == tune(a=0, b=0) == ()
    assert tune(a=1, b=1) == owed
    assert tune(a=1) == owed  # b goes back
    assert tune(a=0) == ()
    assert tune(a=1) == owed
    (node / path[1:]).unlink()
    (node / path[1:]).mkdir()  # what it holds cannot be told
    assert revert(root=str(node)).reboot_needed == owed


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("nonsense", 0o600, "none of ours"),
        ("[]", 0o600, "expected a mapping"),
        ("{}", 0o666, "others may have written it"),
    ],
)
def test_a_list_of_what_a_boot_owes_that_is_none_of_ours_stops_the_run(
    node: Path, text: str, mode: int, why: str
) -> None:
    (node / "run/railwright.reboot").write_text(text)
    (node / "run/railwright.reboot").chmod(mode)
    with pytest.raises(StateError, match=why) as caught:
        apply({"part": [changed()]}, root=str(node))
    assert caught.value.where == "/run/railwright.reboot"
    assert list((node / "etc").iterdir()) == []
