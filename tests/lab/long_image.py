"""The rental image, whole: baked from Debian's archive, booted on two chassis, refused on a third, without power at ten
moments of its first boot. In emulation a boot takes one to two minutes; all of it three quarters of an hour.

`RAILWRIGHT_DEBSBOM` names the tool for bills of materials where it is not on the PATH, `RAILWRIGHT_IMAGE` the folder of a
baked image: then nothing is baked for the boots, and what is asked of a bake is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
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
from tests.lab.shell import ask
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
    name: str, shape: str, disk: Path, *, form: str = "raw", without_gpu: bool = False
) -> Iterator[ImageVm]:
    with machine(
        f"{name}{os.getpid() % 10000}", layout(shape), disk, form=form, without_gpu=without_gpu
    ) as vm:
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
    times = vm.must("systemctl show -P ActiveEnterTimestampMonotonic railwright slurmd").split()
    assert int(times[0]) < int(times[1])
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


@pytest.mark.parametrize("shape", ["two-nodes", "four-nodes"])
def test_the_image_tunes_itself_on_this_chassis_and_a_second_boot_changes_nothing(
    baked: Bake, shape: str
) -> None:
    with chassis("im", shape, baked.folder / DISK) as vm:
        first = boot(vm)
        said = must_be_tuned(vm, shape)
        print(
            f"\n{shape}: first boot took {said['cpu_seconds']} s of CPU in emulation, {said['began']}-{said['ended']}"
        )
        before = vm.must(_LOOK)
        motd = vm.read("/etc/motd.d/60-railwright")
        assert f"{len(layout(shape).gpus)} GPUs" in motd
        assert "made from image lab-h100" in motd
        vm.reboot()
        assert vm.read("/proc/sys/kernel/random/boot_id") != first
        again = must_be_tuned(vm, shape)
        assert (
            sum(
                part["changed"]
                for name, part in again["slices"].items()
                if name in ("nccl_conf", "gpu_order")
            )
            == 0
        )
        assert vm.must(_LOOK) == before


def test_a_chassis_with_a_missing_gpu_refuses_lets_the_administrator_in_and_leaves_nothing(
    baked: Bake,
) -> None:
    with chassis("ir", "two-nodes", baked.folder / DISK, without_gpu=True) as vm:
        boot(vm)
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


def test_a_disk_that_was_tuned_elsewhere_plans_anew_and_puts_back_where_it_refuses(
    baked: Bake, tmp_path: Path
) -> None:
    with chassis("ia", "two-nodes", baked.folder / DISK) as vm:
        boot(vm)
        must_be_tuned(vm, "two-nodes")
        vm.halt()
        shutil.copy(vm.disk, tmp_path / "moved.qcow2")
    with chassis("ib", "four-nodes", tmp_path / "moved.qcow2", form="qcow2") as vm:
        boot(vm)
        said = must_be_tuned(vm, "four-nodes")
        assert said["words"] == ["another machine than at the last boot"]
    with chassis("ic", "two-nodes", tmp_path / "moved.qcow2", form="qcow2", without_gpu=True) as vm:
        boot(vm)
        assert page(vm)["result"] == "refused"
        assert vm.ssh("ls /etc/nccl.conf /etc/railwright/gpus.tsv").stdout == ""


@dataclass(frozen=True)
class Begun:
    """A first boot, stopped at the moment when tuning begins. seconds: that it takes from there."""

    place: Path
    seconds: float


@pytest.fixture(scope="module")
def begun(baked: Bake, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    place = tmp_path_factory.mktemp("begun")
    with chassis("is", "two-nodes", baked.folder / DISK) as vm:
        vm.start()
        until(vm, "lab: tuning begins")
        vm.qmp("stop")
        vm.qmp("migrate", uri=f"file:{place / 'memory'}")
        deadline = time.monotonic() + 300
        while vm.qmp("query-migrate")["status"] != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        emulator = vm.emulator
        vm.qmp("quit")
        assert emulator.wait(60)
        shutil.move(vm.disk, place / "disk.qcow2")
    with chassis("it", "two-nodes", place / "disk.qcow2", form="qcow2") as vm:
        began = time.monotonic()
        vm.resume(place / "memory")
        until(vm, "lab: tuning ended")
        return Begun(place, time.monotonic() - began)


def until(vm: ImageVm, words: str, seconds: float = 900.0) -> None:
    deadline = time.monotonic() + seconds
    while not (vm.log.exists() and words in vm.console):
        assert vm.alive, vm.emulator_log.read_text("utf-8")
        assert time.monotonic() < deadline, vm.console[-2000:]
        time.sleep(0.05)


@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_a_first_boot_without_power_is_taken_up_by_the_next(begun: Begun, moment: int) -> None:
    with chassis(f"ip{moment}x", "two-nodes", begun.place / "disk.qcow2", form="qcow2") as vm:
        vm.resume(begun.place / "memory")
        time.sleep(begun.seconds * moment / (MOMENTS + 1))
        emulator = vm.emulator
        vm.qmp("quit")
        assert emulator.wait(60)
        ended = "lab: tuning ended" in vm.console
        vm.log.unlink()
        boot(vm)
        must_be_tuned(vm, "two-nodes")
        earlier = vm.ssh("journalctl -b -1 -u railwright -o cat --no-pager | tail -n 1").stdout.strip()
        print(
            f"\npower off at {moment}/{MOMENTS + 1}: {'after' if ended else 'before'} its end; last word: {earlier!r}"
        )


def examples(begins: str) -> list[str]:
    """Examples of docs/image.md whose first line is this."""
    text = (Path(__file__).parents[2] / "docs/image.md").read_text("utf-8")
    return [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith(begins)]


@pytest.mark.skipif("RAILWRIGHT_CLOUD_INIT" not in os.environ, reason="RAILWRIGHT_CLOUD_INIT is not set")
def test_cloud_init_takes_the_examples_of_its_seed(tmp_path: Path) -> None:
    tool = os.environ["RAILWRIGHT_CLOUD_INIT"]
    (user,), (network,) = examples("#cloud-config"), examples("# network-config")
    (tmp_path / "user-data").write_text(user, "utf-8")
    (tmp_path / "network-config").write_text(network, "utf-8")
    said = ask([tool, "schema", "-c", str(tmp_path / "user-data")])
    assert (said.returncode, "Valid" in said.stdout + said.stderr) == (0, True), said
    (tmp_path / "broken").write_text(user.replace("write_files:", "write_files: 7 #"), "utf-8")
    assert ask([tool, "schema", "-c", str(tmp_path / "broken")]).returncode != 0
    words = [
        "devel",
        "net-convert",
        "-p",
        str(tmp_path / "network-config"),
        "-k",
        "yaml",
        "-d",
        str(tmp_path / "net"),
    ]
    done = ask([tool, *words, "-D", "debian", "-O", "networkd", "-m", "eno1,52:54:00:00:00:01"])
    assert done.returncode == 0, done.stderr
    pages = [path.read_text("utf-8") for path in (tmp_path / "net").rglob("*.network")]
    # It matches the front end's MAC address and names no rail.
    assert [page for page in pages if "52:54:00:00:00:01" in page.lower() or "Name=" in page] == pages
    assert len(pages) == 1
