"""Packages, kernels, boot loader and power of a node, read from its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.discover.power import read_power
from railwright.node.discover.software import read_software
from railwright.node.discover.tree import Tree
from railwright.node.model import Dkms, Facts, IdleState, InputError, Package, Power, Software, to_json
from railwright.node.model.software import Moved
from tests.unit.state_support import plant
from tests.unit.test_packages_texts import MENU, STATUS

OLDER, NEWER = "6.1.0-9-amd64", "6.1.0-50-amd64"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A Debian node with two kernels, of which DKMS has built for one."""
    plant(tmp_path, "/var/lib/dpkg/status", STATUS)
    plant(tmp_path, "/boot/grub/grub.cfg", MENU)
    for kernel in (OLDER, NEWER):
        plant(tmp_path, f"/boot/vmlinuz-{kernel}", "")
        plant(tmp_path, f"/boot/initrd.img-{kernel}", "")
        plant(
            tmp_path,
            f"/boot/config-{kernel}",
            f'#\nCONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14) {kernel}"\n',
        )
    built = "updates/dkms/nvidia.ko.xz:\nupdates/dkms/nvidia-uvm.ko.xz:\n"
    modules = f"kernel/drivers/gpu/drm/nouveau/nouveau.ko: kernel/x.ko\n{built}"
    plant(tmp_path, f"/lib/modules/{NEWER}/modules.dep", modules)
    plant(tmp_path, "/usr/src/headers/Makefile", "")
    (tmp_path / f"lib/modules/{NEWER}/build").symlink_to("/usr/src/headers")
    (tmp_path / f"lib/modules/{OLDER}").mkdir()
    (tmp_path / f"lib/modules/{OLDER}/build").symlink_to("../../../usr/src/gone")
    plant(tmp_path, f"/lib/modules/{OLDER}/modules.dep", "kernel/drivers/net/mlx5_core.ko:\n")
    place = tmp_path / "var/lib/dkms/nvidia"
    (place / f"580.126.20/{NEWER}/x86_64/module").mkdir(parents=True)
    (place / f"580.126.20/{OLDER}/x86_64/module").mkdir(parents=True)
    (place / "580.126.20/source").symlink_to("/usr/src/nvidia-580.126.20")
    (place / f"kernel-{NEWER}-x86_64").symlink_to(f"580.126.20/{NEWER}/x86_64")
    (place / "550.1/source").mkdir(parents=True)
    return tmp_path


def read(root: Path) -> Software:
    return read_software(Tree(root))


def test_packages_that_matter_are_told_with_version_status_and_hold(node: Path) -> None:
    assert read(node).packages == (Package("nvidia-open", "580.126.20-1", "installed", True),)
    assert read(node).interrupted == ("rw-killed half-configured",)
    asked = read_software(Tree(node), ["rw-killed", "not-there"]).packages
    assert asked[1] == Package("rw-killed", "1:2.0~rc1+dfsg-3", "half-configured", False)
    assert (read(node).system, read(node).architecture) == ("dpkg", "amd64")


def test_each_kernel_is_told_with_what_it_has(node: Path) -> None:
    older, newer = read(node).kernels
    assert (older.release, older.headers, older.initramfs, older.modules) == (
        OLDER,
        False,
        True,
        {"mlx5_core": "kernel/drivers/net/mlx5_core.ko"},
    )
    assert (newer.release, newer.headers, newer.compiler) == (NEWER, True, "gcc-12")
    assert newer.modules == {
        "nouveau": "kernel/drivers/gpu/drm/nouveau/nouveau.ko",
        "nvidia": "updates/dkms/nvidia.ko.xz",
        "nvidia_uvm": "updates/dkms/nvidia-uvm.ko.xz",
    }


def test_debians_own_names_of_the_modules_are_known(node: Path) -> None:
    """As depmod of Debian 12 tells them after a build of nvidia-open-kernel-dkms 535.261.03."""
    listed = (
        "kernel/drivers/usb/typec/altmodes/typec_nvidia.ko:\n"
        "updates/dkms/nvidia-current-open-peermem.ko:\n"
        "updates/dkms/nvidia-current-open.ko: kernel/drivers/gpu/drm/drm.ko\n"
        "updates/dkms/nvidia-current-open-uvm.ko: updates/dkms/nvidia-current-open.ko\n"
        "updates/dkms/nvidia-tesla-470-drm.ko:\n"
    )
    plant(node, f"/lib/modules/{NEWER}/modules.dep", listed)
    (kernel,) = (row for row in read(node).kernels if row.release == NEWER)
    assert kernel.modules == {
        "nvidia": "updates/dkms/nvidia-current-open.ko",
        "nvidia_uvm": "updates/dkms/nvidia-current-open-uvm.ko",
        "nvidia_peermem": "updates/dkms/nvidia-current-open-peermem.ko",
        "nvidia_drm": "updates/dkms/nvidia-tesla-470-drm.ko",
    }


@pytest.mark.parametrize(
    "beside", ["updates/dkms", "extra", "weak-updates", "kernel/doca-ofed-26.01-7.0.0-1004"]
)
@pytest.mark.parametrize("first", [True, False])
def test_what_lies_beside_the_kernels_own_comes_before_it(node: Path, beside: str, first: bool) -> None:
    lines = [f"{beside}/mlx5_core.ko:\n", "kernel/drivers/net/mlx5_core.ko:\n"]
    plant(node, f"/lib/modules/{NEWER}/modules.dep", "".join(lines if first else reversed(lines)))
    (kernel,) = (row for row in read(node).kernels if row.release == NEWER)
    assert kernel.modules["mlx5_core"] == f"{beside}/mlx5_core.ko"


def test_a_rescue_image_is_no_kernel_that_needs_a_driver(node: Path) -> None:
    rescue = "0-rescue-4f5c1b1e8a7d4b0f9e2d3c4b5a697887"
    plant(node, f"/boot/vmlinuz-{rescue}", "")
    plant(node, f"/boot/initramfs-{rescue}.img", "")
    assert [kernel.release for kernel in read(node).kernels] == [OLDER, NEWER]


def test_what_dkms_built_and_installed_is_told_from_its_tree(node: Path) -> None:
    assert set(read(node).dkms) == {
        Dkms("nvidia", "550.1"),
        Dkms("nvidia", "580.126.20", NEWER, "x86_64", "installed"),
        Dkms("nvidia", "580.126.20", OLDER, "x86_64", "built"),
    }


@pytest.mark.parametrize(
    ("default", "saved", "kernel"),
    [
        ("0", "", NEWER),
        ("1>2", "", OLDER),
        ("gnulinux-advanced-1>gnulinux-6.1.0-9-amd64-advanced-1", "", OLDER),
        ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-9-amd64", "", OLDER),
        ("7", "", None),
        ("no such entry", "", None),
        ("0", "next_entry=1>2\n", OLDER),
        ("${saved_entry}", "saved_entry=gnulinux-simple-1\n", NEWER),
    ],
)
def test_the_kernel_that_boots_next_is_that_of_grubs_default(
    node: Path, default: str, saved: str, kernel: str | None
) -> None:
    plant(node, "/boot/grub/grub.cfg", MENU.replace('set default="0"', f'set default="{default}"'))
    plant(node, "/boot/grub/grubenv", f"# GRUB Environment Block\n{saved}")
    assert (read(node).boot_loader, read(node).next_kernel) == ("grub", kernel)


def test_entries_of_the_boot_loader_specification_are_seen(node: Path) -> None:
    plant(node, "/usr/sbin/grubby", "")
    plant(node, "/boot/loader/entries/m-5.14.conf", "title x\nversion 5.14.0-503.el9\noptions quiet\n")
    plant(node, "/boot/grub2/grubenv", "# GRUB Environment Block\nsaved_entry=m-5.14\n")
    assert (read(node).boot_loader, read(node).next_kernel) == ("bls", "5.14.0-503.el9")
    assert read(node).boot_lines == ("quiet",)


def test_the_words_of_every_entry_are_told_without_those_for_recovery(node: Path) -> None:
    assert read(node).boot_lines == ("root=UUID=1 ro quiet iommu=pt numa_balancing=disable",)


def test_a_record_that_cannot_be_read_is_said_and_the_rest_of_the_node_is_read(tmp_path: Path) -> None:
    plant(tmp_path, "/sys/devices/system/cpu/online", "0\n")
    plant(tmp_path, "/proc/cpuinfo", "processor\t: 0\n")
    plant(tmp_path, "/var/lib/dpkg/status", "Package: xy\nStatus: fine\n")
    facts = discover(tmp_path)
    assert facts.software is None
    assert any("the node's software is not known" in note and "Status" in note for note in facts.notes)


# As two Ubuntu nodes had it: the first is of the night, the second of the morning after.
HISTORY = """
Start-Date: 2021-04-24  06:50:54
Commandline: /usr/bin/unattended-upgrade
Upgrade: libnvidia-common-460:amd64 (460.56-0ubuntu0.20.04.1, 460.73.01-0ubuntu0.20.04.1)
End-Date: 2021-04-24  06:50:54

Start-Date: 2021-04-24  07:01:02
Commandline: apt-get install nvidia-container-toolkit less
Requested-By: operator (1000)
Install: nvidia-container-toolkit:amd64 (1.18.1-1), less:amd64 (590-2.1, automatic)
End-Date: 2021-04-24  07:01:09
"""


@pytest.mark.parametrize(
    ("log", "moved"),
    [
        (
            HISTORY,
            Moved(
                "2021-04-24 06:50:54", "/usr/bin/unattended-upgrade",
                "libnvidia-common-460 460.56-0ubuntu0.20.04.1 -> 460.73.01-0ubuntu0.20.04.1",
            ),
        ),
        (
            f"{HISTORY}\nStart-Date: 2021-04-25  08:00:00\nCommandline: apt purge nvidia-utils-460\n"
            "Purge: nvidia-utils-460:amd64 (460.73.01-0ubuntu0.20.04.1)\n",
            Moved("2021-04-25 08:00:00", "apt purge nvidia-utils-460",
                  "nvidia-utils-460 460.73.01-0ubuntu0.20.04.1 went"),
        ),
        ("Start-Date: 2021-04-24  07:01:02\nInstall: less:amd64 (590-2.1)\n", None),
        ("\0garbled (((\n", None),
        (None, None),
    ],
)  # fmt: skip
def test_who_last_moved_the_driver_is_told_by_apts_own_log(
    node: Path, log: str | None, moved: Moved | None
) -> None:
    if log is not None:
        plant(node, "/var/log/apt/history.log", log)
    assert read(node).moved == moved


def test_a_tree_without_a_package_system_tells_of_none(tmp_path: Path) -> None:
    assert read(tmp_path) == Software()


def test_what_is_read_goes_through_json_and_back(node: Path) -> None:
    plant(node, "/sys/devices/system/cpu/online", "0\n")
    plant(node, "/proc/cpuinfo", "processor\t: 0\n")
    facts = discover(node)
    assert facts.software is not None
    assert Facts.read(to_json(facts)) == facts


def test_power_is_that_of_the_first_cpu_that_tells(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu"
    plant(tmp_path, f"{cpu}/cpu0/topology/core_id", "0\n")
    plant(tmp_path, f"{cpu}/cpu1/cpufreq/scaling_driver", "intel_pstate\n")
    plant(tmp_path, f"{cpu}/cpu1/cpufreq/scaling_governor", "powersave\n")
    plant(tmp_path, f"{cpu}/cpu1/cpufreq/scaling_available_governors", "performance powersave\n")
    plant(tmp_path, f"{cpu}/cpu1/power/energy_perf_bias", "6\n")
    plant(tmp_path, f"{cpu}/intel_pstate/min_perf_pct", "20\n")
    for number, (name, latency) in enumerate([("POLL", 0), ("C1", 2), ("C6", 290)]):
        plant(tmp_path, f"{cpu}/cpu0/cpuidle/state{number}/name", f"{name}\n")
        plant(tmp_path, f"{cpu}/cpu0/cpuidle/state{number}/latency", f"{latency}\n")
        plant(tmp_path, f"{cpu}/cpu0/cpuidle/state{number}/disable", "0\n")
    plant(tmp_path, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    plant(tmp_path, "/run/tuned/tuned.pid", "7\n")
    plant(tmp_path, "/etc/tuned/active_profile", "throughput-performance\n")
    states = (IdleState(0, "POLL", 0), IdleState(1, "C1", 2), IdleState(2, "C6", 290))
    assert read_power(Tree(tmp_path)) == Power(
        "intel_pstate",
        "powersave",
        ("performance", "powersave"),
        True,
        20,
        states,
        "madvise",
        "throughput-performance",
    )


@pytest.mark.parametrize("text", ["deep", "-1", "99999999999"])
def test_a_latency_that_no_state_has_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    place = "/sys/devices/system/cpu/cpu0/cpuidle/state0"
    plant(tmp_path, f"{place}/name", "C1\n")
    plant(tmp_path, f"{place}/latency", f"{text}\n")
    with pytest.raises(InputError, match="cpuidle/state0/latency"):
        read_power(Tree(tmp_path))


def test_no_link_leads_out_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    os.symlink("/etc/passwd", tmp_path / "boot/vmlinuz-6.1.0")
    assert [kernel.release for kernel in read(tmp_path).kernels] == ["6.1.0"]
