"""The initramfs is rebuilt when what goes into it is newer, by whatever the node's distribution builds it with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import Said, apply, revert
from tests.unit.state_support import LONG_AGO, file_entry, fingerprint, item, items, make_node, plant

CONF = "/etc/modprobe.d/rail.conf"
KERNELS = ("6.1.0-50-amd64", "6.12.117-cloud")


@dataclass
class Builder:
    """update-initramfs or dracut: packs the file into each image. fails: how it ends; kills: it is stopped midway."""

    node: Path
    form: str = "initrd.img-{}"
    fails: str = ""
    kills: bool = False
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(" ".join(argv))
        if self.kills:
            raise KeyboardInterrupt
        if self.fails:
            return Said(1, err=self.fails)
        inside = self.node / CONF[1:]
        for kernel in KERNELS:
            image = self.node / "boot" / self.form.format(kernel)
            if image.exists():
                image.write_text(inside.read_text() if inside.exists() else "nothing of ours")
        return Said(0)


def node_with(folder: Path, program: str = "update-initramfs", form: str = "initrd.img-{}") -> Path:
    node = make_node(folder)
    plant(node, f"/usr/sbin/{program}", "", 0o755)
    for kernel in KERNELS:
        plant(node, f"/boot/vmlinuz-{kernel}", "")
        plant(node, f"/boot/{form.format(kernel)}", "nothing of ours")
    return node


def entries(text: str = "blacklist nouveau\n") -> dict[str, list[dict[str, Any]]]:
    rebuilt = {"kind": "initramfs", "name": "part", "inputs": [CONF], "reboot": True}
    return {"part": [file_entry(CONF, text), rebuilt]}


def images(node: Path, form: str = "initrd.img-{}") -> list[str]:
    return [(node / "boot" / form.format(kernel)).read_text() for kernel in KERNELS]


@pytest.mark.parametrize(
    ("program", "form", "call"),
    [
        ("update-initramfs", "initrd.img-{}", "update-initramfs -u -k all"),
        ("dracut", "initramfs-{}.img", "dracut --regenerate-all --force"),
    ],
)
def test_a_file_that_goes_into_it_rebuilds_it_once_for_all_kernels(
    tmp_path: Path, program: str, form: str, call: str
) -> None:
    node = node_with(tmp_path / "node", program, form)
    builder = Builder(node, form)
    first = apply(entries(), root=str(node), tools=builder)
    assert (first.failures, images(node, form)) == ((), ["blacklist nouveau\n"] * 2)
    assert first.reboot_needed == ("initramfs:part",)
    again = apply(entries(), root=str(node), tools=builder)
    assert (again.changed, builder.calls) == (False, [call])


def test_a_check_says_that_it_would_be_rebuilt_and_rebuilds_nothing(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    before = fingerprint(node)
    builder = Builder(node)
    outcome = apply(entries(), root=str(node), tools=builder, check=True)
    assert (items(outcome, "part")["initramfs:part"]["action"], builder.calls) == ("rebuild", [])
    assert fingerprint(node) == before


@pytest.mark.parametrize("way", ["revert", "drop"])
def test_what_goes_back_is_taken_out_of_it_again(tmp_path: Path, way: str) -> None:
    node = node_with(tmp_path / "node")
    builder = Builder(node)
    apply(entries(), root=str(node), tools=builder)
    if way == "revert":
        outcome = revert(root=str(node), tools=builder)
    else:
        outcome = apply({"part": []}, root=str(node), tools=builder)
    assert (outcome.failures, images(node), len(builder.calls)) == ((), ["nothing of ours"] * 2, 2)


def test_an_entry_that_is_left_out_while_another_stays_rebuilds_it_too(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    builder = Builder(node)
    apply(entries(), root=str(node), tools=builder)
    other = "/etc/modprobe.d/other.conf"
    less = {"kind": "initramfs", "name": "part", "inputs": [other], "reboot": True}
    apply({"part": [file_entry(other, "options x y=1\n"), less]}, root=str(node), tools=builder)
    assert images(node) == ["nothing of ours"] * 2


def test_a_run_that_was_stopped_before_the_rebuild_leaves_it_owed(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    builder = Builder(node, kills=True)
    with pytest.raises(KeyboardInterrupt):
        apply(entries(), root=str(node), tools=builder)
    # Dated back, as a restored backup would be: that it is owed is in the record as well.
    os.utime(node / CONF[1:], ns=(LONG_AGO, LONG_AGO))
    builder.kills = False
    apply(entries(), root=str(node), tools=builder)
    assert images(node) == ["blacklist nouveau\n"] * 2


def test_a_revert_that_was_stopped_before_the_rebuild_leaves_it_owed(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    builder = Builder(node)
    apply(entries(), root=str(node), tools=builder)
    builder.kills = True
    with pytest.raises(KeyboardInterrupt):
        revert(root=str(node), tools=builder)
    builder.kills = False
    revert(root=str(node), tools=builder)
    assert images(node) == ["nothing of ours"] * 2


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("mkinitramfs: failure: cp: No space left on device", "free space in /boot"),
        ("E: mkinitramfs: failed to determine device", "run it by hand"),
    ],
)
def test_a_build_that_fails_says_why_and_is_tried_again(tmp_path: Path, said: str, remedy: str) -> None:
    node = node_with(tmp_path / "node")
    builder = Builder(node, fails=said)
    (failure,) = apply(entries(), root=str(node), tools=builder).failures
    assert said in failure.why
    assert failure.remedy.startswith(remedy)
    builder.fails = ""
    assert apply(entries(), root=str(node), tools=builder).failures == ()
    assert images(node) == ["blacklist nouveau\n"] * 2


def test_a_rescue_image_is_not_waited_for(tmp_path: Path) -> None:
    """`dracut --regenerate-all` leaves the rescue image of RHEL as it is."""
    form = "initramfs-{}.img"
    node = node_with(tmp_path, "dracut", form)
    plant(node, "/boot/vmlinuz-0-rescue-4f5c1b1e", "")
    plant(node, "/boot/initramfs-0-rescue-4f5c1b1e.img", "nothing of ours")
    builder = Builder(node, form)
    assert apply(entries(), root=str(node), tools=builder).failures == ()
    again = apply(entries(), root=str(node), tools=builder)
    assert (again.changed, builder.calls) == (False, ["dracut --regenerate-all --force"])


def test_a_builder_that_leaves_an_image_as_it_was_is_no_success(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    (failure,) = apply(entries(), root=str(node), tools=lambda argv: Said(0)).failures
    assert "is still older than its inputs" in failure.why


def test_a_node_without_a_kernel_has_nothing_to_rebuild(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    outcome = apply(entries(), root=str(node), tools=Builder(node))
    assert "nothing to rebuild" in items(outcome, "part")["initramfs:part"]["note"]


def test_a_node_that_has_no_builder_is_named(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    (node / "usr/sbin/update-initramfs").unlink()
    (failure,) = apply(entries(), root=str(node), tools=Builder(node)).failures
    assert "none of update-initramfs, dracut" in failure.why


def test_an_input_that_could_not_be_written_keeps_it_as_it_is(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    (node / CONF[1:]).mkdir(parents=True)
    builder = Builder(node)
    outcome = apply(entries(), root=str(node), tools=builder)
    assert (len(outcome.failures), builder.calls) == (2, [])


def test_a_date_in_the_future_is_said_and_rebuilds_nothing(tmp_path: Path) -> None:
    node = node_with(tmp_path / "node")
    late = plant(node, CONF, "x")
    os.utime(late, (2**33, 2**33))
    rebuilt = {"kind": "initramfs", "inputs": [CONF]}
    builder = Builder(node)
    outcome = apply({"part": [rebuilt]}, root=str(node), tools=builder)
    assert ("dated in the future" in item(outcome)["note"], builder.calls) == (True, [])
