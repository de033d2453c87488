"""The driver on real systemd hosts with the real apt: installed, held, upgraded, rolled back; each play twice.

Not among the lab's tests, for its length: `make lab-driver` runs it. Modules are stand-ins whose "loading" a boot does.
One node has the whole story; three show batches.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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
_BY_ITSELF = re.compile(
    r"session-|user@|user-runtime-dir@|apt-daily|systemd-tmpfiles-clean|dpkg-db-backup|e2scrub"
)


# What grub-mkconfig makes of the files, as far as a test needs it: no lab node boots through GRUB.
MENU = "/boot/grub/grub.cfg"
UPDATE_GRUB = f"""#!/bin/sh
for file in /etc/default/grub.d/*.cfg; do [ -e "$file" ] && . "$file"; done
printf "menuentry 'x' {{\\n\\tlinux /boot/vmlinuz-6.1 ro %s\\n}}\\n" "$GRUB_CMDLINE_LINUX_DEFAULT" > {MENU}
"""


@dataclass
class Bench:
    """Nodes and an archive that they can reach."""

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
        return versions(self.node)

    def loaded(self) -> str:
        return loaded(self.node)

    def boot(self) -> str:
        return boot(self.node)


def versions(node: Node) -> dict[str, str]:
    shown = node.ssh(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n' 'nvidia-*' 'libnvidia-*'"
    )
    rows = [line.split() for line in shown.stdout.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def loaded(node: Node) -> str:
    return node.ssh(f"cat {LOADED}").stdout.strip()


def boot(node: Node) -> str:
    return node.read("/proc/sys/kernel/random/boot_id")


def leased(node: Node) -> bool:
    return node.ssh(f"test -e {LEASE}").returncode == 0


def started(node: Node) -> dict[str, str]:
    """Services that run or have run, each with the id of its last start; those of logins and timers say nothing."""
    found = {}
    for block in node.must("systemctl show -p Id,InvocationID '*.service'").strip().split("\n\n"):
        words = dict(line.split("=", 1) for line in block.splitlines())
        if words.get("InvocationID") and not _BY_ITSELF.match(words["Id"]):
            found[words["Id"]] = words["InvocationID"]
    return found


def written(node: Node) -> str:
    """Files of the system with the times at which they were written."""
    return node.must("find /etc /usr/local /lib/systemd -xdev -type f -printf '%p %T@\\n' | sort")


def said(run: Run, host: str | None = None) -> str:
    return "\n".join(str(result["msg"]) for result in run.results("ansible.builtin.debug", host))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> packages.Archive:
    if why := unready():
        pytest.skip(why)
    folder = Path(tmp_path_factory.mktemp("archive"))
    return packages.make(folder / "made", [*packages.standins(), *packages.driver_set(BROKEN, loads=False)])


@contextmanager
def raised(name: str, nodes: int, archive: packages.Archive, output: Path) -> Iterator[Bench]:
    wanted = tuple(Wanted(f"n{number}", "bookworm", MACHINES[0]) for number in range(1, nodes + 1))
    lab = up(f"{name}{os.getpid()}", wanted)
    try:
        yield Bench(lab, archive, packages.serve(lab.run, archive), output)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def bench(archive: packages.Archive, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with raised("d", 1, archive, Path(tmp_path_factory.mktemp("driver")) / "out") as made:
        yield made


@pytest.fixture(scope="module")
def three(archive: packages.Archive, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with raised("e", 3, archive, Path(tmp_path_factory.mktemp("batches")) / "out") as made:
        yield made


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
    before = started(bench.node), written(bench.node)
    again = bench.play("install.yml", OLD)
    assert again.code == 0, again.output
    assert again.changed == {"n1": 0}
    assert (started(bench.node), written(bench.node)) == before


def test_a_reboot_is_made_only_where_it_is_asked_for_and_brings_module_and_fabric_manager(
    bench: Bench,
) -> None:
    before = bench.boot()
    told = bench.play("install.yml", OLD)
    assert "takes effect at the next boot: packages:nvidia_driver" in said(told)
    assert "Nothing reboots it" in said(told)
    assert (told.code, bench.boot(), bench.loaded()) == (0, before, "")
    done = bench.play("install.yml", OLD, install_reboot=True)
    assert done.code == 0, done.output
    assert "It is rebooted now, for the first time." in said(done)
    assert [result["rebooted"] for result in done.results("node_reboot")] == [True]
    assert bench.boot() != before
    assert bench.loaded() == OLD
    settled, still = bench.boot(), bench.play("install.yml", OLD, install_reboot=True)
    assert (still.code, still.changed, bench.boot()) == (0, {"n1": 0}, settled), still.output
    unit = bench.node.must("systemctl show -p ActiveState nvidia-fabricmanager.service")
    assert "failed" not in unit


def test_what_two_reboots_do_not_bring_into_force_fails_and_is_not_tried_a_third_time(bench: Bench) -> None:
    """A lab node's command line is that of the machine below it, so no boot of it ever has the planned words."""
    bench.node.must("mkdir -p /boot/grub && cat > /usr/sbin/update-grub && chmod 755 /usr/sbin/update-grub && "
                    "update-grub", stdin=UPDATE_GRUB)  # fmt: skip
    policy = {**bench.policy(OLD), "kernel": {"power": False}}
    done = bench.play("install.yml", OLD, node_policy=policy, install_reboot=True)
    assert [result["rebooted"] for result in done.results("node_reboot")] == [True, True]
    assert "It is rebooted now, for the second and last time." in said(done)
    (failure,) = done.failures("n1")
    assert failure.startswith(
        "This node was rebooted twice, and something still takes effect at the next boot: boot_"
    )
    back = bench.play("revert.yml", OLD, revert_slices=["kernel"])
    assert back.code == 0, back.output
    bench.node.must("rm -r /boot/grub /usr/sbin/update-grub")


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
    for arguments in ((), ("--check",)):
        busy = bench.play("upgrade_driver.yml", NEW, *arguments)
        assert busy.code != 0
        assert "somebody uses the GPUs: the module nvidia is held 1 times" in busy.failures("n1")[-1]
        assert busy.failures("n1")[-1].endswith("by somebody who does not show. Nothing was changed.")
    assert bench.versions() == before
    bench.node.must("echo 0 > /sys/module/nvidia/refcnt")


def test_an_upgrade_is_one_transaction_one_reboot_and_a_verdict(bench: Bench) -> None:
    boot, log = bench.boot(), len(bench.node.read("/var/log/apt/history.log").split("Start-Date"))
    done = bench.play("upgrade_driver.yml", NEW, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert done.code == 0, done.output
    assert f"driver {OLD} -> {NEW} in one transaction" in said(done)
    assert "CUDA was not used" in said(done)
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
    told = "".join(failed.failures("n1"))
    assert f"wanted {BROKEN}" in told
    assert "The set that was there before is back." in told
    whole(bench, version)
    assert bench.loaded() == version
    # Nobody runs work there until a person has looked.
    assert bench.node.read(LEASE) == "railwright: driver upgrade"


def test_a_revert_takes_the_driver_away_again(bench: Bench) -> None:
    done = bench.play("revert.yml", NEW, revert_slices=["fabric_manager", "nvidia_driver"])
    assert done.code == 0, done.output
    assert bench.versions() == {}


# Batches: another story, of three nodes.


def state(node: Node) -> tuple[str, dict[str, str], bool]:
    return boot(node), versions(node), leased(node)


def test_three_nodes_are_installed_together_and_rebooted_one_after_the_other(three: Bench) -> None:
    before = {node.name: boot(node) for node in three.lab.nodes}
    done = three.play("install.yml", OLD, install_reboot=True)
    assert done.code == 0, done.output
    assert {node.name: loaded(node) for node in three.lab.nodes} == dict.fromkeys(before, OLD)
    assert all(boot(node) != before[node.name] for node in three.lab.nodes)


def test_the_first_node_goes_alone_and_its_failure_spares_the_others(three: Bench) -> None:
    first, *others = three.lab.nodes
    before = {node.name: state(node) for node in others}
    failed = three.play("upgrade_driver.yml", BROKEN, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert failed.code != 0
    # Not one task was played on them, not even one that reads.
    assert set(failed.hosts) == {"n1"}
    assert "The set that was there before is back." in failed.failures("n1")[-1]
    assert {node.name: state(node) for node in others} == before
    assert (loaded(first), leased(first)) == (OLD, True)
    first.must(f"rm {LEASE}")


def test_a_failure_in_a_later_batch_ends_the_run_there(three: Bench) -> None:
    first, second, third = three.lab.nodes
    second.must("echo 1 > /sys/module/nvidia/refcnt")
    before = state(third)
    failed = three.play("upgrade_driver.yml", NEW, upgrade_drain="lease", upgrade_lease_file=LEASE)
    assert (failed.failed, set(failed.hosts)) == ({"n2"}, {"n1", "n2"})
    assert "somebody uses the GPUs" in failed.failures("n2")[-1]
    assert (loaded(first), leased(first)) == (NEW, False)
    assert (loaded(second), leased(second)) == (OLD, True)
    assert state(third) == before


def test_a_neighbour_in_the_batch_of_a_node_that_fails_is_upgraded_and_given_back(three: Bench) -> None:
    first, second, third = three.lab.nodes
    settled, held = boot(first), boot(second)
    failed = three.play(
        "upgrade_driver.yml", NEW, upgrade_drain="lease", upgrade_lease_file=LEASE, upgrade_batches=[1, 2]
    )
    assert failed.failed == {"n2"}, failed.failures("n3")
    assert (loaded(third), leased(third)) == (NEW, False)
    assert (boot(first), boot(second), loaded(second), leased(second)) == (settled, held, OLD, True)
