"""The baked image's first boot on recorded machines: its own root file system and Python, no network, no controller.

Without an emulator, so in seconds; what only a boot shows (order of units, GRUB, the power) is `long_image.py`'s. The
folder of a baked image is named by RAILWRIGHT_IMAGE; without it the image is baked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import steps
from railwright.image import tarball
from railwright.image.inside import Room
from railwright.image.install import KEYS_UNIT
from railwright.image.seal import leftovers
from railwright.node.model import Policy
from railwright.plan.boot_unit import POLICY_FILE, ZIPAPP
from railwright.plan.policy_bytes import canonical
from tests.lab import hardware
from tests.lab.long_image import EPOCH, baked, files
from tests.lab.shell import ask

__all__ = ["baked", "files"]
POLICY = {"expect": {"gpus": 8, "rails": 8}}
MACHINES = Path(__file__).parents[1] / "machines"
# Of this machine's kernel only what a recorded one has not: both folders are copies, so nothing here is written.
_FOLDERS = ("sys", "proc/irq", "proc/sys")
_FILES = ("proc/interrupts", "proc/cpuinfo", "proc/modules", "proc/cmdline", "proc/version", "proc/meminfo")
MOST_CPU_SECONDS = 3.0


@dataclass
class Node:
    """The image's root file system, and the machine that it wakes up on."""

    room: Room
    machine: Path

    def run(self, verb: str, under: str = "") -> str:
        """What the node's own program says, with its exit status in the last line."""
        return self.room.run(
            "sh", "-c", f"{under}python3 {ZIPAPP} {verb}; echo status $?",
            folders=[(self.machine / name, f"/{name}", "rw") for name in _FOLDERS],
            binds={f"/{name}": self.machine / name for name in _FILES if (self.machine / name).is_file()},
        ).decode()  # fmt: skip

    def boot(self) -> tuple[int, dict[str, Any]]:
        """Exit status, and the page that the boot left."""
        said = self.run("boot")
        page = json.loads((self.room.tree / "var/lib/railwright/boot.json").read_text("utf-8"))
        return int(said.split()[-1]), page

    def put_into(self, name: str) -> None:
        """Another machine around the same disk."""
        shutil.rmtree(self.machine, ignore_errors=True)
        shutil.copytree(hardware.machine(name) / "tree", self.machine, symlinks=True)

    def read(self, path: str) -> str:
        return (self.room.tree / path.lstrip("/")).read_text("utf-8")

    def files(self) -> dict[str, bytes]:
        """What lies in /etc and the record: the state of a boot is none of it."""
        found = {}
        for top in ("etc", "usr/local", "var/lib/railwright"):
            for path in (self.room.tree / top).rglob("*"):
                if path.is_file() and not path.is_symlink() and path.name != "boot.json":
                    found[str(path.relative_to(self.room.tree))] = path.read_bytes()
        return found


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    named = os.environ.get("RAILWRIGHT_IMAGE")
    return Path(named) if named else request.getfixturevalue("baked").folder


@pytest.fixture
def node(folder: Path, tmp_path: Path) -> Node:
    tree = tmp_path / "tree"
    tarball.unpack(folder / "root.tar.gz", tree)
    assert leftovers(tree) == []
    policy = Policy.read(steps.node_policy(POLICY), "policy")
    # The image carries this very program; its policy is for the emulator's small machines.
    baked_policy = json.loads((tree / POLICY_FILE.lstrip("/")).read_text("utf-8"))
    page = json.loads(canonical(policy))
    page["boot"] = baked_policy["boot"]
    (tree / POLICY_FILE.lstrip("/")).write_text(canonical(Policy.read(page, "policy")), "utf-8")
    (tmp_path / "scratch").mkdir()
    made = Node(Room(tree, tmp_path / "scratch", EPOCH), tmp_path / "machine")
    made.put_into("2s_8xh100_10xcx7")
    return made


def agreed(name: str) -> list[str]:
    """The rails of a machine, as people have agreed on them."""
    plan = json.loads((MACHINES / name / "plan.json").read_text("utf-8"))
    (entry,) = [one for one in plan["slices"]["nccl_conf"]["entries"] if one["path"] == "/etc/nccl.conf"]
    return [line for line in entry["content"].splitlines() if line.startswith("NCCL_IB_HCA")]


def must_be_tuned_for(node: Node, name: str) -> None:
    lines = node.read("/etc/nccl.conf").splitlines()
    assert [line for line in lines if line.startswith("NCCL_IB_HCA")] == agreed(name)
    facts = json.loads(node.run("discover --json").rpartition("status")[0])
    policy = json.loads(node.read(POLICY_FILE))
    # What Ansible would write there, by the node's own facts and policy.
    for part in steps.node_slices(steps.node_plan(facts, policy)).values():
        for entry in part:
            if entry["kind"] == "file" and "content" in entry:
                assert node.read(entry["path"]) == entry["content"], entry["path"]


def test_the_image_tunes_itself_for_the_machine_that_it_wakes_up_on_and_a_second_boot_writes_nothing(
    node: Node,
) -> None:
    _, page = node.boot()
    assert (page["failures"], page["shape"]["gpus"], page["shape"]["rails"]) == (0, 8, 8)
    # No systemd runs in this room, so only that is not as planned.
    wrong = {row["code"] for row in page["findings"] if row["severity"] == "error"}
    assert {code.partition(".")[0] for code in wrong} <= {"boot_unit"}, wrong
    must_be_tuned_for(node, "2s_8xh100_10xcx7")
    print(f"\nfirst boot: {page['cpu_seconds']} s of CPU")
    assert page["cpu_seconds"] < MOST_CPU_SECONDS
    before = node.files()
    _, again = node.boot()
    assert sum(part["changed"] for part in again["slices"].values()) == 0
    assert node.files() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # The same slots, and the NICs numbered the other way round.
        ("2s_8xh100_10xcx7_backwards", []),
        # Another machine: other slots, and three NUMA nodes more.
        ("2s_8xh200_8xcx7_snc2", ["another machine than at the last boot"]),
    ],
)
def test_the_same_disk_in_another_chassis_plans_anew(node: Node, name: str, words: list[str]) -> None:
    node.boot()
    node.put_into(name)
    _, page = node.boot()
    assert (page["failures"], page["words"]) == (0, words)
    assert agreed("2s_8xh100_10xcx7") != agreed(name)
    must_be_tuned_for(node, name)


def test_in_a_chassis_without_one_of_its_gpus_it_refuses_and_puts_back_what_it_wrote(node: Node) -> None:
    untouched = {name: data for name, data in node.files().items() if name.startswith("etc/")}
    node.boot()
    assert node.files().keys() > untouched.keys()
    devices = node.machine / "sys/bus/pci/devices"
    gpus = [place for place in devices.iterdir() if (place / "class").read_text("ascii").startswith("0x0302")]
    shutil.rmtree(min(gpus).resolve())
    min(gpus).unlink()
    status, page = node.boot()
    assert (status, page["result"]) == (3, "refused")
    assert [row["code"] for row in page["refusals"]] == ["expect.gpus", "expect.rails"]
    assert {name: data for name, data in node.files().items() if name.startswith("etc/")} == untouched


def test_systemd_finds_no_fault_and_no_cycle_in_the_units_of_the_image(node: Node) -> None:
    units = ("railwright.service", "railwright-again.path", KEYS_UNIT, "ssh.service", "multi-user.target")
    said = node.room.run("sh", "-c", f"systemd-analyze verify --man=no {' '.join(units)} 2>&1").decode()
    assert [line for line in said.splitlines() if "railwright" in line or "cycle" in line] == []
    after = node.room.run("sh", "-c", "cat /etc/systemd/system/railwright.service").decode()
    assert "Before=slurmd.service kubelet.service docker.service containerd.service\n" in after
    assert not {"ssh", "sshd", "network-online"} & set(after.replace(".", " ").split())


def test_a_first_boot_that_is_killed_at_ten_moments_is_taken_up_by_the_next(
    node: Node, tmp_path: Path
) -> None:
    """SIGKILL of everything at once, /run and all that lies there with it; what the disk has is what it was given."""
    etc = node.room.tree / "etc"
    shutil.copytree(etc, tmp_path / "pristine", symlinks=True)
    said = node.run("boot; cat /proc/uptime", "cat /proc/uptime; ").split("\n")
    seconds = float(said[-3].split()[0]) - float(said[0].split()[0])
    whole = {name: data for name, data in node.files().items() if not name.startswith("var/")}
    seen = []
    for moment in range(1, 11):
        shutil.rmtree(etc)
        shutil.copytree(tmp_path / "pristine", etc, symlinks=True)
        shutil.rmtree(node.room.tree / "var/lib/railwright")
        node.put_into("2s_8xh100_10xcx7")
        # The first third is Python's own beginning.
        fatal = seconds * (0.3 + 0.065 * moment)
        node.run("boot", f"timeout -s KILL {fatal:.2f} ")
        kept = node.room.tree / "var/lib/railwright/boot.json"
        page = json.loads(kept.read_text("utf-8")) if kept.exists() else {"phase": "no word yet"}
        seen.append(f"{fatal:.2f} of {seconds:.2f} s: {page['phase']}")
        assert page["phase"] != "ended" or page["failures"] == 0, page
        _, page = node.boot()
        assert (page["phase"], page["failures"], page["shape"]["rails"]) == ("ended", 0, 8)
        assert {name: data for name, data in node.files().items() if not name.startswith("var/")} == whole
        assert list(etc.rglob(".*.railwright")) == []
    print("\n" + ", ".join(seen))
    assert any("begun" in one for one in seen)


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
