"""NVIDIA's open modules from Debian's own archive, really built: what builds, what does not, and what the gate says.

Not among the lab's tests: each suite takes some ten minutes of both cores. `make lab-dkms` runs it. Debian 12 builds;
Debian 13's driver does not build with its newest kernel, which is just the case that the gate is for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from railwright.fleet import installing
from railwright.node.check.gate import gate
from railwright.node.discover import discover
from railwright.node.discover.software import release_key
from railwright.node.model import Facts, Plan, Slice, to_json
from railwright.node.model.software import Software
from railwright.plan.stack.pairs import bad_pair, version
from tests.lab import cache, debian
from tests.lab.shell import ask

DRIVER = "nvidia-open-kernel-dkms"
KERNEL = ("linux-image-amd64", "linux-headers-amd64", "dkms", "gcc", "make", "libc6-dev", "kmod")
COMPONENTS = "--components=main,contrib,non-free,non-free-firmware"
# What discover takes for a machine; a root file system has none of it.
LEAST = {
    "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu lm\n",
    "sys/devices/system/cpu/online": "0\n",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/node/node0/cpulist": "0\n",
    "sys/devices/system/node/node0/distance": "10\n",
}


@dataclass(frozen=True)
class System:
    """A root file system with a kernel and its headers; installed: how apt ended with the driver."""

    root: Path
    installed: subprocess.CompletedProcess[str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return within(self.root, *argv)

    def facts(self) -> Facts:
        """What our reader makes of it, as of a machine that runs its newest kernel."""
        for path, text in LEAST.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        return discover(self.root)

    def boot(self, release: str) -> None:
        """From now on this kernel is the one that runs, as far as its reader sees."""
        place = self.root / "proc/sys/kernel/osrelease"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{release}\n", encoding="utf-8")

    def older_kernel(self, before: str) -> str:
        """The release of the newest kernel of this series from before that one. Skips where none is served."""
        told = self.run(
            "apt-cache", "search", "--names-only", r"^linux-headers-6[.]12[.].*deb13-amd64$"
        ).stdout
        served = {line.split()[0].removeprefix("linux-headers-") for line in told.splitlines()}
        older = sorted((one for one in served if version(one) < version(before)), key=release_key)
        if not older:
            pytest.skip(f"the archive has no kernel of this series from before {before}")
        return older[-1]

    def add_kernel(self, release: str) -> subprocess.CompletedProcess[str]:
        """How apt ended with this kernel and its headers."""
        names = (f"linux-image-{release}", f"linux-headers-{release}")
        return self.run("apt-get", "-qq", "-y", "--no-install-recommends", "install", *names)

    @property
    def software(self) -> Software:
        found = self.facts().software
        assert found is not None
        return found

    @property
    def driver(self) -> str:
        """The driver's version, as dpkg has it."""
        return self.run("dpkg-query", "-W", "-f", "${Version}", DRIVER).stdout

    def plan(self) -> Plan:
        """One that installs the driver that lies there."""
        entry = {
            "kind": "packages",
            "name": "nvidia_driver",
            "system": "dpkg",
            "versions": {DRIVER: self.driver},
        }
        part = Slice("persistent", (entry,), "a test")
        return Plan(schema="railwright.plan/1", status="planned", slices={"nvidia_driver": part})


def within(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """In the root file system, with processes, a /proc and a /dev of its own; the last to get the processor.

    Of this machine's devices there are a few, each a mount that nobody can remove: root builds there.
    """
    script = """
        mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=755 dev "$0/dev" || exit
        mkdir "$0/dev/shm" "$0/dev/pts"
        for name in null zero full random urandom; do
            : > "$0/dev/$name" && mount --bind "/dev/$name" "$0/dev/$name" || exit
        done
        ln -s /proc/self/fd "$0/dev/fd" && exec chroot "$0" "$@"
    """
    spaces = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    argv = ("nice", "-n", "15", *spaces, "sh", "-c", script, str(root), *argv)
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=3600)


def grown(suite: str, more: Sequence[str]) -> System:
    """The suite with kernel and headers, kept; then a copy of it in which apt installs the driver."""
    name = cache.key(
        debian.recipe(__file__), debian.mirror().encode(), suite.encode(), *(one.encode() for one in more)
    )
    packages = [*debian.PACKAGES, *KERNEL, *more]
    base = cache.kept(
        "dkms", f"{suite}-{name}", lambda folder: debian.bootstrap(suite, packages, folder, COMPONENTS)
    )
    root = cache.HOME / f"dkms-{suite}-{os.getpid()}"
    cache.remove(root)
    subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    assert within(root, "apt-get", "-qq", "update").returncode == 0
    return System(root, within(root, "apt-get", "-qq", "-y", "--no-install-recommends", "install", DRIVER))


def system(suite: str, more: Sequence[str] = ()) -> Iterator[System]:
    if os.geteuid() != 0 or ask(["sh", "-c", "command -v mmdebstrap"]).returncode != 0:
        pytest.skip("the lab needs root and mmdebstrap")
    made = grown(suite, more)
    yield made
    cache.remove(made.root)


@pytest.fixture(scope="module")
def bookworm() -> Iterator[System]:
    yield from system("bookworm")


@pytest.fixture(scope="module")
def trixie() -> Iterator[System]:
    yield from system("trixie")


def test_debian_12_builds_its_driver_and_the_gate_lets_it_boot(bookworm: System) -> None:
    assert bookworm.installed.returncode == 0, bookworm.installed.stderr[-2000:]
    (kernel,) = bookworm.software.kernels
    built = [
        row for row in bookworm.software.dkms if row.kernel == kernel.release and row.state == "installed"
    ]
    assert built
    # Debian's own tool says the same.
    assert f"{kernel.release}, x86_64: installed" in bookworm.run("dkms", "status").stdout
    assert kernel.modules["nvidia"].startswith("updates/dkms/")
    assert gate(bookworm.facts(), bookworm.plan()) == ()
    print("\ndkms status:", bookworm.run("dkms", "status").stdout.strip())


def test_debian_13_does_not_build_its_driver_and_the_gate_keeps_the_kernel(trixie: System) -> None:
    assert trixie.installed.returncode != 0, "the pair of the day builds: take another one"
    (kernel,) = trixie.software.kernels
    assert [row for row in trixie.software.dkms if row.state == "installed"] == []
    facts = trixie.facts()
    assert facts.platform is not None
    (failed,) = facts.platform.failed_builds
    assert failed.kernel == kernel.release
    (said,) = gate(facts, trixie.plan())
    print("\napt ended with", trixie.installed.returncode, "\ngate:", said)
    assert said.startswith(f"kernel {kernel.release} has no module of driver ")
    assert f"{failed.log} says: {failed.error}" in said
    assert "no kernel of this node has it: no reboot, the node stays as it runs" in said
    # What the playbook says, with the pairs that are known.
    refusal = installing.reboot_refusal(to_json(facts), to_json(trixie.plan()))
    print("refusal:", refusal)
    assert "what works: 550.163.01 with a 6.12 kernel from before that change" in refusal
    # dpkg is left half-way, which speaks against a reboot too.
    assert facts.software is not None
    assert any(DRIVER in name for name in facts.software.interrupted)


def test_the_pair_that_is_named_works_and_the_kernel_of_it_stays_as_it_runs(trixie: System) -> None:
    """The way out that the refusal names: a kernel from before the change beside the one that lacks the module."""
    (without,) = trixie.software.kernels
    pair = bad_pair(trixie.driver, without.release)
    assert pair is not None
    older = trixie.older_kernel(pair.since)
    came = trixie.add_kernel(older)
    status = trixie.run("dkms", "status").stdout.strip()
    print("\napt ended with", came.returncode, "\ndkms status:", status)
    assert f"{older}, x86_64: installed" in status
    trixie.boot(older)
    (said,) = gate(trixie.facts(), trixie.plan())
    print("gate:", said)
    assert said.startswith(f"kernel {without.release} has no module of driver ")
    assert f"the running kernel {older} has it and stays: no reboot" in said
