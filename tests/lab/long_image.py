"""The rental image, whole: baked from Debian's archive, booted on two chassis, refused on a third, without power at ten
moments of its first boot. In emulation a first boot takes two to four minutes; all of it an hour and a half.

`RAILWRIGHT_DEBSBOM` names the tool for bills of materials where it is not on the PATH, `RAILWRIGHT_IMAGE` the folder of
a baked image: then nothing is baked for the boots, and what is asked of a bake is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright import image
from railwright.fleet import steps
from railwright.image.disk import DISK
from railwright.node.model import Facts, Policy, to_json
from tests.lab import cache, debian, image_overlay, on_guest
from tests.lab.image_vm import ImageVm, boot, machine
from tests.lab.shell import ask, call
from tests.lab.vm.layout import layout

SECRET = "planted-secret-4711"
# Where a bake meets what must not get out; each holds the secret in the tree that is laid over the root file system.
PLANTED = (
    "etc/machine-id", "etc/nvme/hostid", "etc/ssh/ssh_host_rsa_key", "root/.bash_history", "root/.ssh/id_ed25519",
    "var/lib/cloud/instances/x/user-data.txt", "var/lib/dhcp/dhclient.leases", "var/lib/systemd/random-seed",
    "var/log/bake.log",
)  # fmt: skip
POLICY = {
    "expect": {"gpus": 2, "rails": 2},
    "cores": {"irq_per_nic": 1, "housekeeping": 0},
    "boot": {"gate": ["slurmd.service"]},
    "accept": {
        "pcie.bar": "emulated GPUs have no memory to show",
        "rails.mtu": "no rail network is set up here",
    },
}
EPOCH = 1790000000
AGREED = json.loads(Path(__file__).with_name("image_agreed.json").read_text("utf-8"))
# A quarter of an hour on two cores; the archive's packages lie in no cache of ours, so its own answer counts too.
MOST_BAKE_SECONDS = 900
MOMENTS = 10
# Seconds of an emulated boot from one moment to the next.
BETWEEN = 2.0
_ADDED = "/var/lib/railwright /etc /usr/local"
_LOOK = (
    f"find {_ADDED} -xdev -type f ! -path '*/boot.json' ! -name 'ssh_host_*' ! -path /etc/machine-id"
    " -exec sha256sum {} + | sort -k2"
)


def recipe(files: Path) -> image.Recipe:
    page = {
        "name": "lab-h100",
        "epoch": EPOCH,
        "debian": {"suite": "trixie", "mirror": debian.mirror()},
        "packages": ["ibverbs-providers"],
        "files": str(files),
        "disk_gib": 4,
        "sbom": ["spdx", "cyclonedx"],
        "forbid": [SECRET],
    }
    return image.Recipe.read(page, "recipe")


def whole_policy() -> Policy:
    return Policy.read(steps.node_policy(POLICY), "policy")


@pytest.fixture(scope="module")
def files() -> Path:
    """The overlay for tests, with secrets planted."""
    overlay = image_overlay.folder()

    def plant(place: Path) -> None:
        shutil.copytree(overlay, place, symlinks=True)
        for path in PLANTED:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(f"{SECRET} {path}\n", "utf-8")
        for path in ("root", "root/.ssh"):
            (place / path).chmod(0o700)

    return cache.kept("image-files", cache.key(overlay.name.encode(), repr(PLANTED).encode()), plant)


@dataclass(frozen=True)
class Bake:
    folder: Path
    work: Path
    seconds: float
    made: tuple[str, ...]


def bake(files: Path, work: Path) -> Bake:
    began = time.monotonic()
    tool = os.environ.get("RAILWRIGHT_DEBSBOM")
    baked = image.bake(recipe(files), whole_policy(), work, print, debsbom=tool)
    return Bake(baked.folder, work, time.monotonic() - began, baked.made)


@pytest.fixture(scope="module")
def baked(files: Path) -> Bake:
    """The image, as far as it is not there yet, or the one that is named."""
    named = os.environ.get("RAILWRIGHT_IMAGE")
    if named:
        return Bake(Path(named), Path(named).parent, 0.0, ())
    made = bake(files, cache.HOME / "image-work")
    print(f"\nbaked in {made.seconds:.0f} s: {', '.join(made.made) or 'nothing, all was there'}")
    return made


@contextmanager
def chassis(
    name: str,
    shape: str,
    disk: Path,
    *,
    form: str = "raw",
    without_gpu: bool = False,
    uefi: bool = False,
) -> Iterator[ImageVm]:
    run = f"{name}{os.getpid() % 10000}"
    with machine(run, layout(shape), disk, form=form, without_gpu=without_gpu, uefi=uefi) as vm:
        yield vm


def page(vm: ImageVm) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(vm.read("/run/railwright/boot.json"))
    return said


def planned_files(vm: ImageVm) -> dict[str, str]:
    """Digests of the files that a controller would write on this machine, by the facts that the node tells."""
    facts = on_guest.program(vm, "discover")
    plan = steps.node_plan(to_json(Facts.read(facts)), steps.node_policy(POLICY))
    return {
        entry["path"]: entry.get("sha256") or hashlib.sha256(entry["content"].encode()).hexdigest()
        for part in steps.node_slices(plan).values()
        for entry in part
        if entry["kind"] == "file"
    }


def digests(vm: ImageVm, paths: list[str]) -> dict[str, str]:
    out = vm.must(f"sha256sum {' '.join(paths)}")
    return {line.split("  ")[1]: line.split("  ")[0] for line in out.splitlines()}


def login(vm: ImageVm) -> str:
    """What a terminal shows to whoever logs in."""
    return ask(vm.entry("RequestTTY=force"), stdin="exit\n", timeout=vm.patience).stdout


def must_be_tuned(vm: ImageVm, shape: str) -> dict[str, Any]:
    """Everything that a first boot owes: the state, the bytes, the order of units, who is let in."""
    said = page(vm)
    assert (said["phase"], said["result"], said["failures"]) == ("ended", "good", 0), said
    wanted = planned_files(vm)
    assert digests(vm, list(wanted)) == wanted
    for path, rows in AGREED[shape].items():
        lines = vm.read(path).splitlines()
        # How each row ends: what a slot is called is the emulator's matter.
        assert [row for row in rows if not any(line.endswith(row) for line in lines)] == [], path
    assert vm.ssh("systemctl is-active railwright slurmd ssh").stdout.split() == ["active"] * 3
    times = vm.must("systemctl show -P ActiveEnterTimestampMonotonic ssh railwright slurmd").split()
    # In emulation tuning takes a minute: sshd has not waited for it, and what runs work has.
    assert int(times[0]) < int(times[1]) < int(times[2])
    assert "railwright.service" not in vm.must("systemctl show -P After ssh").split()
    assert vm.ssh("find / -xdev -name '.*.railwright'").stdout == ""
    assert len(vm.read("/etc/machine-id")) == 32
    assert said["shape"]["gpus"] == said["shape"]["rails"] == len(layout(shape).gpus)
    return said


bakes = pytest.mark.skipif("RAILWRIGHT_IMAGE" in os.environ, reason="RAILWRIGHT_IMAGE names an image")


@bakes
def test_a_bake_fits_into_a_quarter_of_an_hour_and_a_second_makes_nothing(baked: Bake, files: Path) -> None:
    assert baked.seconds < MOST_BAKE_SECONDS
    again = bake(files, baked.work)
    assert (again.folder, again.made) == (baked.folder, ())
    listed = dict(line.split("  ")[::-1] for line in (baked.folder / "SHA256SUMS").read_text().splitlines())
    told = json.loads((baked.folder / "manifest.json").read_text("utf-8"))
    assert {name: row["sha256"] for name, row in told["artefacts"].items()}.items() <= listed.items()
    # The tool of another kind says what packages there are.
    bill = json.loads((baked.folder / "sbom.spdx.json").read_text("utf-8"))
    binaries = {one["name"] for one in bill["packages"]}
    assert {row["name"].partition(":")[0] for row in told["packages"]} <= binaries
    assert f"{baked.work}" not in Path("/proc/self/mounts").read_text("utf-8")


def test_no_planted_secret_is_in_the_disk_or_the_tarball(baked: Bake) -> None:
    # By another tool than the bake's own search: grep over every byte, free blocks too.
    for name, how in ((DISK, 'grep -c -a "$2" "$1"'), ("root.tar.gz", 'gzip -dc "$1" | grep -c -a "$2"')):
        assert ask(["sh", "-c", how, "sh", str(baked.folder / name), SECRET]).stdout.strip() == "0", name


@bakes
def test_a_second_bake_from_nothing_is_the_same_to_the_last_byte(
    baked: Bake, files: Path, tmp_path: Path
) -> None:
    again = bake(files, tmp_path / "work")
    assert again.folder.name == baked.folder.name
    sums = [(place.folder / "SHA256SUMS").read_text("utf-8") for place in (baked, again)]
    assert sums[0] == sums[1]


def must_be_refused(vm: ImageVm) -> None:
    """Everything that a refusal owes: the page, the failed unit, the console, and the administrator is let in."""
    said = page(vm)
    assert (said["phase"], said["result"]) == ("ended", "refused"), said
    assert [row["code"] for row in said["refusals"]] == ["expect.gpus", "expect.rails"]
    assert vm.ssh("systemctl is-active railwright slurmd ssh").stdout.split() == [
        "failed",
        "inactive",
        "active",
    ]
    assert "railwright: NOT TUNED" in vm.console
    assert vm.ssh("ls /etc/nccl.conf /etc/railwright/gpus.tsv").stdout == ""
    assert "NOT TUNED" in vm.read("/etc/motd.d/60-railwright")


def tunes_itself(vm: ImageVm, shape: str) -> None:
    """A first boot and a second one, with all that is asked of them."""
    first = boot(vm)
    said = must_be_tuned(vm, shape)
    print(f"\n{shape}: tuned with {said['cpu_seconds']} s of CPU, in emulation")
    before = vm.must(_LOOK).splitlines()
    words = login(vm)
    print(words)
    assert f"{len(layout(shape).gpus)} GPUs" in words
    assert "made from image lab-h100" in words
    vm.reboot()
    assert vm.read("/proc/sys/kernel/random/boot_id") != first
    again = must_be_tuned(vm, shape)
    files = [part for name, part in again["slices"].items() if name in ("nccl_conf", "gpu_order")]
    assert [part["changed"] for part in files] == [0, 0]
    now = vm.must(_LOOK).splitlines()
    # The record tells what the kernel had before it was told, and a kernel that has just begun has other values.
    assert {line.split()[1] for line in {*before} ^ {*now}} <= {"/var/lib/railwright/state.json"}


@pytest.fixture(scope="module")
def tuned(baked: Bake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk of the image after two boots on the first chassis."""
    place = tmp_path_factory.mktemp("tuned") / "disk.qcow2"
    with chassis("im", "two-nodes", baked.folder / DISK) as vm:
        tunes_itself(vm, "two-nodes")
        vm.halt()
        shutil.copy(vm.disk, place)
    return place


def test_the_image_tunes_itself_on_a_chassis_and_a_second_boot_changes_nothing(tuned: Path) -> None:
    assert tuned.is_file()


def test_the_image_tunes_itself_on_another_chassis_too(baked: Bake) -> None:
    with chassis("in", "four-nodes", baked.folder / DISK) as vm:
        tunes_itself(vm, "four-nodes")


def test_a_chassis_with_a_missing_gpu_refuses_lets_the_administrator_in_and_leaves_nothing(
    baked: Bake,
) -> None:
    with chassis("ir", "two-nodes", baked.folder / DISK, without_gpu=True) as vm:
        boot(vm)
        must_be_refused(vm)


@pytest.mark.skipif(not Path("/usr/share/OVMF/OVMF_CODE_4M.fd").exists(), reason="no UEFI here (ovmf)")
def test_the_same_disk_boots_where_the_firmware_is_uefi(baked: Bake) -> None:
    with chassis("iu", "two-nodes", baked.folder / DISK, uefi=True) as vm:
        vm.start()
        until(vm, "lab: tuning begins")
        deadline = time.monotonic() + vm.patience
        while vm.ssh("true").returncode != 0:
            assert time.monotonic() < deadline, vm.console[-2000:]
        vm.must("test -d /sys/firmware/efi")
        # In emulation udev is slower than the time that the mount table gives to the partition.
        vm.must("udevadm settle; systemctl start boot-efi.mount")
        assert vm.must("findmnt -no FSTYPE /boot/efi").strip() == "vfat"
        assert vm.must("find /boot/efi -name 'BOOT*.EFI'").strip() == "/boot/efi/EFI/BOOT/BOOTX64.EFI"


def test_a_disk_that_was_tuned_elsewhere_plans_anew_and_puts_back_where_it_refuses(
    tuned: Path, tmp_path: Path
) -> None:
    with chassis("ib", "four-nodes", tuned, form="qcow2") as vm:
        boot(vm)
        must_be_tuned(vm, "four-nodes")
        assert "this is not the machine that was tuned last" in vm.must("journalctl -b -u railwright -o cat")
        vm.halt()
        shutil.copy(vm.disk, tmp_path / "moved.qcow2")
    with chassis("ic", "two-nodes", tmp_path / "moved.qcow2", form="qcow2", without_gpu=True) as vm:
        boot(vm)
        must_be_refused(vm)


@pytest.fixture(scope="module")
def cut(baked: Bake, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Disks of one first boot as they were at ten moments of its last half minute, in which it reads and writes.

    A machine that is stopped has nothing on its way to its disk, and a copy of that disk holds what a power cut at this
    moment would leave: what the guest's memory still had is lost.
    """
    place = tmp_path_factory.mktemp("cut")
    disks: list[Path] = []
    with chassis("is", "two-nodes", baked.folder / DISK) as vm:
        vm.start()
        until(vm, "lab: tuning begins")
        moment = 0
        while "lab: tuning stopped" not in vm.console and "lab: tuning ended" not in vm.console:
            vm.qmp("stop")
            shutil.copy(vm.disk, place / f"{moment}.qcow2")
            vm.qmp("cont")
            disks.append(place / f"{moment}.qcow2")
            if len(disks) > MOMENTS:
                disks.pop(0).unlink()
            moment += 1
            time.sleep(BETWEEN)
    assert len(disks) >= MOMENTS
    return disks[-MOMENTS:]


def until(vm: ImageVm, words: str, seconds: float = 900.0) -> None:
    deadline = time.monotonic() + seconds
    while not (vm.log.exists() and words in vm.console):
        assert vm.alive, vm.emulator_log.read_text("utf-8")
        assert time.monotonic() < deadline, vm.console[-2000:]
        time.sleep(0.05)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_first_boot_without_power_is_taken_up_by_the_next(cut: list[Path], moment: int) -> None:
    told = kept_page(cut[moment])
    print(f"\npower off at moment {moment + 1} of {MOMENTS}: the disk says {told}")
    assert told in ("nothing", "begun", "ended")
    with chassis(f"ip{moment}x", "two-nodes", cut[moment], form="qcow2") as vm:
        boot(vm)
        said = must_be_tuned(vm, "two-nodes")
    if told == "ended":
        # The last copy may lie between the page's end and the console's word of it. Half done is never called done:
        # then nothing was left to be written.
        assert [said["slices"][name]["changed"] for name in ("nccl_conf", "gpu_order")] == [0, 0]


def kept_page(disk: Path) -> str:
    """The phase that the boot's page on this disk is in, as debugfs reads it; "nothing" without one."""
    raw = disk.with_suffix(".raw")
    call(["qemu-img", "convert", "-q", "-O", "raw", str(disk), str(raw)])
    try:
        row = next(line for line in call(["sfdisk", "--dump", str(raw)]).splitlines() if "raw3 " in line)
        start = int(row.partition("start=")[2].partition(",")[0])
        root = raw.with_suffix(".root")
        call(
            ["dd", f"if={raw}", f"of={root}", "bs=1M", f"skip={start // 2048}", "conv=sparse", "status=none"]
        )
        # What the journal holds is replayed, as the next boot does; it may say that it has mended something.
        ask(["e2fsck", "-fy", str(root)])
        said = call(["debugfs", "-R", "cat /var/lib/railwright/boot.json", str(root)])
        root.unlink()
    finally:
        raw.unlink()
    return str(json.loads(said)["phase"]) if said.startswith("{") else "nothing"
