"""The driver on a real systemd host with the real apt: installed, held, upgraded, rolled back; each play twice.

Not among the lab's tests, for its length: `make lab-driver` runs it. Modules are stand-ins whose "loading" a boot does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playing import Run, play
from tests.lab import packages
from tests.lab.lab import Lab, Node, Wanted, up
from tests.lab.racks import MACHINES
from tests.lab.setup import unready

OLD, NEW, BROKEN = packages.OLDER_DRIVER, packages.DRIVER, "590.48.01"
# A boot empties /run, and a node whose upgrade failed stays leased.
LEASE = "/var/lib/lease"
LOADED = "/sys/module/nvidia/version"


@dataclass
class Bench:
    """One node and an archive that it can reach."""

    lab: Lab
    archive: packages.Archive
    address: str
    output: Path

    @property
    def node(self) -> Node:
        return self.lab.nodes[0]

    def policy(self, version: str) -> dict[str, Any]:
        key = subprocess.run(
            ["gpg", "--batch", "--no-default-keyring", "--keyring", str(self.archive.keyring), "--armor", "--export"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        source = {
            "name": "lab", "uris": self.address, "suites": packages.SUITE, "components": packages.COMPONENT, "key": key,
        }  # fmt: skip
        driver = {"version": version, "packages": ["nvidia-utils"]}
        return {"software": {"sources": [source]}, "driver": driver, "fabric_manager": {"wait": 30}}

    def play(self, playbook: str, version: str, *arguments: str, **more: Any) -> Run:
        variables = {"node_policy": self.policy(version), "upgrade_verify": "agreement", **more}
        return play(
            playbook, self.lab.inventory, self.output, *arguments, variables=variables, within=self.lab.controller,
            limit=600,
        )  # fmt: skip

    def versions(self) -> dict[str, str]:
        shown = self.node.ssh(
            "dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n' 'nvidia-*' 'libnvidia-*'"
        )
        rows = [line.split() for line in shown.stdout.splitlines()]
        return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}

    def loaded(self) -> str:
        return self.node.ssh(f"cat {LOADED}").stdout.strip()

    def boot(self) -> str:
        return self.node.read("/proc/sys/kernel/random/boot_id")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if why := unready():
        pytest.skip(why)
    lab = up(f"d{os.getpid()}", (Wanted("n1", "bookworm", MACHINES[0]),))
    try:
        folder = Path(tmp_path_factory.mktemp("driver"))
        made = packages.make(
            folder / "made", [*packages.standins(), *packages.driver_set(BROKEN, loads=False)]
        )
        yield Bench(lab, made, packages.serve(lab.run, made), folder / "out")
    finally:
        lab.down()


def whole(bench: Bench, version: str) -> None:
    """Every package of the set is of one version, held, and no simulated upgrade moves one."""
    found = bench.versions()
    names = ("nvidia-open", "nvidia-kernel-open-dkms", "nvidia-utils", "nvidia-persistenced", "nvidia-fabricmanager",
             "libnvidia-nscq")  # fmt: skip
    assert {name: found.get(name) for name in names} == dict.fromkeys(names, f"{version}-1")
    assert "nvidia-imex" not in found
    held = bench.node.must("apt-mark showhold").split()
    assert set(names) <= set(held)
    moved = [
        line
        for line in bench.node.must("apt-get -s dist-upgrade").splitlines()
        if line.startswith(("Inst", "Remv"))
    ]
    assert [line for line in moved if "nvidia" in line] == []


# One story: the tests stand in its order.


def test_the_driver_is_installed_as_one_set_of_one_version(bench: Bench) -> None:
    checked = bench.play("install.yml", OLD, "--check")
    assert checked.code == 0, checked.output
    assert bench.versions() == {}
    done = bench.play("install.yml", OLD)
    assert done.code == 0, done.output
    whole(bench, OLD)
    # With holds taken away the pin alone keeps every other version and every other archive out.
    bench.node.must("apt-mark unhold 'nvidia-*' 'libnvidia-*' >/dev/null")
    moved = bench.node.must("apt-get -s dist-upgrade; apt-get -s install nvidia-fabricmanager 2>&1")
    assert NEW not in moved
    glob = bench.node.ssh("apt-get -s install nvidia-fabricmanager-570 2>&1")
    assert "nvidia-fabricmanager-580" not in "".join(
        line for line in glob.stdout.splitlines() if line.startswith("Inst")
    )


def test_a_second_run_puts_the_holds_back_and_a_third_changes_nothing(bench: Bench) -> None:
    assert bench.play("install.yml", OLD).code == 0
    whole(bench, OLD)
    before = bench.node.must(
        "systemctl show -p InvocationID '*.service'; find /etc -newer /etc/hostname -type f | sort"
    )
    again = bench.play("install.yml", OLD)
    assert again.code == 0, again.output
    assert again.changed == {"n1": 0}
    after = bench.node.must(
        "systemctl show -p InvocationID '*.service'; find /etc -newer /etc/hostname -type f | sort"
    )
    assert {line for line in after.splitlines() if line.startswith("/")} == {
        line for line in before.splitlines() if line.startswith("/")
    }


def test_the_boot_brings_module_and_fabric_manager(bench: Bench) -> None:
    bench.node.reboot()
    assert bench.loaded() == OLD
    unit = bench.node.must("systemctl show -p ActiveState nvidia-fabricmanager.service")
    assert "failed" not in unit


def test_a_node_that_somebody_leases_is_not_touched(bench: Bench) -> None:
    bench.node.must(f"echo tenant > {LEASE}")
    before = bench.versions()
    held = bench.play("upgrade_driver.yml", NEW, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert held.code != 0
    assert bench.versions() == before
    bench.node.must(f"rm {LEASE}")


def test_a_node_whose_module_somebody_holds_is_not_touched(bench: Bench) -> None:
    bench.node.must("echo 1 > /sys/module/nvidia/refcnt")
    before = bench.versions()
    busy = bench.play("upgrade_driver.yml", NEW)
    assert busy.code != 0
    assert "Nothing was changed." in "".join(busy.failures("n1"))
    assert bench.versions() == before
    bench.node.must("echo 0 > /sys/module/nvidia/refcnt")


def test_an_upgrade_is_one_transaction_one_reboot_and_a_verdict(bench: Bench) -> None:
    boot, log = bench.boot(), len(bench.node.read("/var/log/apt/history.log").split("Start-Date"))
    done = bench.play("upgrade_driver.yml", NEW, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert done.code == 0, done.output
    said = [str(result["msg"]) for result in done.results("ansible.builtin.debug")]
    assert any(line.startswith(f"driver {OLD} -> {NEW} in one transaction") for line in said)
    assert any("CUDA was not used" in line for line in said)
    whole(bench, NEW)
    assert bench.loaded() == NEW
    assert bench.boot() != boot
    assert len(bench.node.read("/var/log/apt/history.log").split("Start-Date")) == log + 1
    assert bench.node.ssh(f"test -e {LEASE}").returncode == 1


def test_the_same_upgrade_again_does_nothing(bench: Bench) -> None:
    boot = bench.boot()
    again = bench.play("upgrade_driver.yml", NEW)
    assert (again.code, again.changed) == (0, {"n1": 0}), again.output
    assert bench.boot() == boot


def test_a_driver_that_does_not_load_goes_back_to_the_set_that_was_there(bench: Bench) -> None:
    version = bench.loaded()
    failed = bench.play("upgrade_driver.yml", BROKEN, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert failed.code != 0
    said = "".join(failed.failures("n1"))
    assert f"wanted {BROKEN}" in said
    assert "The set that was there before is back." in said
    whole(bench, version)
    assert bench.loaded() == version
    # Nobody runs work there until a person has looked.
    assert bench.node.read(LEASE) == "railwright: driver upgrade"


def test_a_revert_takes_the_driver_away_again(bench: Bench) -> None:
    done = bench.play("revert.yml", NEW, revert_slices=["fabric_manager", "nvidia_driver"])
    assert done.code == 0, done.output
    assert bench.versions() == {}
