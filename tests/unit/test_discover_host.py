"""The operating system around the devices, and files that were asked for."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from railwright.node.discover import SYSCTLS, discover
from railwright.node.discover import tree as tree_module
from railwright.node.discover.host import sysctl_path
from railwright.node.model import Facts, FileFact, Host, InputError, Module
from railwright.plan.workloads import TABLE
from tests.unit.small_machine import LEAST, function, plant

Files = dict[str, "str | bytes | None"]
CPUINFO = str(LEAST["proc/cpuinfo"])
VM = {"proc/cpuinfo": CPUINFO.replace("fpu lm", "fpu lm hypervisor")}


def given(root: Path, files: Files) -> Host:
    return discover(plant(root, files)).host


def test_name_system_and_kernel_are_read(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        {
            "etc/hostname": "gpu-a\n",
            "etc/os-release": 'NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\n# a comment\nEMPTY=\n',
            "proc/sys/kernel/osrelease": "5.15.0-119-generic\n",
            "proc/version": "Linux version 6.8.0 (x)\n",
            "proc/cmdline": "ro iommu=pt\n",
            "proc/sys/kernel/random/boot_id": "0f6c1f6e-6c3f-4a57-9a3d-0d7b8a1c0001\n",
            "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
            "sys/class/dmi/id/product_name": "PowerEdge XE9680\n",
        },
    )
    assert (found.name, found.os_id, found.os_version) == ("gpu-a", "ubuntu", "22.04")
    assert (found.kernel, found.cmdline) == ("5.15.0-119-generic", "ro iommu=pt")
    assert (found.boot_id, found.product) == (
        "0f6c1f6e-6c3f-4a57-9a3d-0d7b8a1c0001",
        "Dell Inc. PowerEdge XE9680",
    )


def test_the_other_sources_serve_where_the_first_are_missing(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        {
            "proc/sys/kernel/hostname": "spark\n",
            "usr/lib/os-release": "ID=rocky\nVERSION_ID='9.4'\n",
            "proc/version": "Linux version 6.17.0-1014-nvidia (buildd@x) #14-Ubuntu SMP\n",
            "sys/firmware/devicetree/base/model": b"NVIDIA DGX Spark\0",
        },
    )
    assert (found.name, found.os_id, found.os_version) == ("spark", "rocky", "9.4")
    assert (found.kernel, found.product) == ("6.17.0-1014-nvidia", "NVIDIA DGX Spark")


def test_a_machine_that_tells_nothing_of_its_system_leaves_it_unknown(tmp_path: Path) -> None:
    # x86 without the hypervisor's bit is bare metal whatever else is missing.
    assert given(tmp_path, {}) == Host(virtual="")


def test_a_version_that_is_no_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected 'Linux version"):
        given(tmp_path, {"proc/version": "FreeBSD"})


ARM = {"proc/cpuinfo": "CPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xd4f\n"}
DMI = "sys/class/dmi/id/"


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({}, ""),
        (VM, "vm"),
        ({**VM, f"{DMI}sys_vendor": "QEMU"}, "kvm"),
        ({**VM, f"{DMI}sys_vendor": "VMware, Inc."}, "vmware"),
        ({**VM, f"{DMI}product_name": "Virtual Machine"}, "microsoft"),
        ({**VM, f"{DMI}sys_vendor": "Amazon EC2"}, "amazon"),
        ({f"{DMI}sys_vendor": "Amazon EC2"}, ""),  # a .metal instance: the bit decides
        ({**ARM, f"{DMI}sys_vendor": "QEMU"}, "kvm"),
        ({**ARM, f"{DMI}sys_vendor": "Amazon EC2", f"{DMI}product_name": "g5g.metal"}, ""),
        ({**ARM, f"{DMI}sys_vendor": "NVIDIA", f"{DMI}product_name": "GB200 NVL"}, ""),
        (ARM, None),
        ({"run/.containerenv": ""}, "container"),
        ({".dockerenv": ""}, "container"),
        ({**VM, "run/systemd/container": "podman"}, "container"),
        ({"proc/1/environ": b"PATH=/bin\0container=lxc\0"}, "container"),
        ({"proc/1/environ": b"PATH=/bin\0container=\0xcontainer=lxc\0"}, ""),
    ],
)
def test_what_it_runs_in(tmp_path: Path, files: Files, virtual: str | None) -> None:
    assert given(tmp_path, files).virtual == virtual


SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sys/firmware/acpi/pm_profile": "4"}, False),  # no UEFI, no Secure Boot
        ({"sys/firmware/efi/fw_platform_size": "64"}, None),  # its variables are not to be seen
        ({"sys/firmware/efi/efivars/BootOrder-8be4df61": "x"}, False),
        ({SECURE_BOOT: b"\x06\0\0\0\x01"}, True),
        ({SECURE_BOOT: b"\x06\0\0\0\x00"}, False),
    ],
)
def test_secure_boot(tmp_path: Path, files: Files, expected: bool | None) -> None:
    assert given(tmp_path, files).secure_boot is expected


@pytest.mark.parametrize("data", [b"\x06\0\0\0", b"\x06\0\0\0\x02", b""])
def test_a_secure_boot_variable_of_another_form_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="expected four bytes and then 00 or 01"):
        given(tmp_path, {SECURE_BOOT: data})


def test_an_iommu_is_on_when_the_kernel_has_units_of_it(tmp_path: Path) -> None:
    assert given(tmp_path / "a", {}).iommu is None
    (tmp_path / "b/sys/class/iommu").mkdir(parents=True)
    assert given(tmp_path / "b", {}).iommu is False
    assert given(tmp_path / "c", {"sys/class/iommu/dmar0/uevent": ""}).iommu is True


PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc 11\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder@U16)\n"
)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({}, None),
        ({"proc/driver/nvidia/version": PROPRIETARY}, "535.129.03"),
        ({"proc/driver/nvidia/version": OPEN}, "550.54.14"),
        ({"sys/module/nvidia/version": "580.65.06\n"}, "580.65.06"),
    ],
)
def test_the_loaded_driver(tmp_path: Path, files: Files, version: str | None) -> None:
    assert given(tmp_path, files).driver == version


def test_a_driver_of_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected 'NVRM version"):
        given(tmp_path, {"proc/driver/nvidia/version": "unknown"})


def test_modules_that_matter_are_listed_with_their_versions(tmp_path: Path) -> None:
    loaded = (
        "nvidia_peermem 16384 0 - Live 0x0\nnvidia 9000000 1 nvidia_peermem, Live 0x0\next4 1 0 - Live 0x0\n"
    )
    found = given(
        tmp_path,
        {"proc/modules": loaded, "sys/module/nvidia/version": "550.54.14", "sys/module/mlx5_core/uevent": ""},
    )
    assert found.modules == (Module("mlx5_core"), Module("nvidia", "550.54.14"), Module("nvidia_peermem"))


def test_without_a_list_modules_are_unknown(tmp_path: Path) -> None:
    assert given(tmp_path, {}).modules is None


def test_sysctls_are_those_of_the_list_of_the_ports_and_of_sysctl_d(tmp_path: Path) -> None:
    files, links = function("pci0000:00/0000:00:01.0", "0x020000")
    folder = "sys/devices/pci0000:00/0000:00:01.0/net/eth0.7"
    planted: Files = {
        **files,
        f"{folder}/mtu": "9000",
        "proc/sys/vm/swappiness": "60\n",
        "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "proc/sys/net/ipv4/conf/eth0.7/rp_filter": "2\n",
        "proc/sys/kernel/core_pattern": "core\n",
        "proc/sys/kernel/hostname": "not asked for\n",
        "etc/sysctl.d/99-site.conf": "# why\nkernel.core_pattern = core\n-net/ipv4/ip_forward=1\n",
        "etc/sysctl.d/98-glob.conf": "net.ipv4.conf.*.rp_filter = 1\n",
        "proc/sys/net/ipv4/ip_forward": "0\n",
        "etc/sysctl.conf": "kernel.../../../etc/shadow = 1\nkernel.core_uses_pid = 1\n",
        "etc/sysctl.d/README": "kernel.domainname = x\n",
        "proc/sys/kernel/domainname": "not asked for\n",
    }
    links["sys/class/net/eth0.7"] = "../../devices/pci0000:00/0000:00:01.0/net/eth0.7"
    assert discover(plant(tmp_path, planted, links)).host.sysctls == {
        "kernel.core_pattern": "core",
        "net.ipv4.conf.eth0/7.rp_filter": "2",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net/ipv4/ip_forward": "0",
        "vm.swappiness": "60",
    }


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("vm.swappiness", "proc/sys/vm/swappiness"),
        ("net.ipv4.conf.eth0/7.rp_filter", "proc/sys/net/ipv4/conf/eth0.7/rp_filter"),
        ("net/ipv4/conf/eth0.7/rp_filter", "proc/sys/net/ipv4/conf/eth0.7/rp_filter"),
        ("single", "proc/sys/single"),
    ],
)
def test_the_first_separator_of_a_sysctl_decides(key: str, path: str) -> None:
    assert sysctl_path(key) == path


def test_the_list_of_sysctls_names_keys_of_this_kernel_or_none() -> None:
    assert len(set(SYSCTLS)) == len(SYSCTLS)
    assert Path("/", sysctl_path("vm.swappiness")).exists()


def test_a_sysctl_that_was_asked_for_is_read_besides(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/sys/kernel/core_pattern": "core\n"})
    assert discover(root).host.sysctls == {}
    assert discover(root, sysctls=["kernel.core_pattern", "vm.gone"]).host.sysctls == {
        "kernel.core_pattern": "core"
    }


@pytest.mark.parametrize("key", ["kernel..x", "../../etc/shadow", "kernel.x\0", ""])
def test_what_is_no_sysctl_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=r"expected a name like vm\.swappiness"):
        discover(plant(tmp_path, {}), sysctls=[key])


def test_the_reader_looks_at_every_sysctl_that_the_planner_sets_by_itself() -> None:
    assert {effect.name for effect in TABLE if effect.kind == "sysctl"} <= set(SYSCTLS)


# Files that were asked for.


def watched(root: Path, *paths: str, files: Files | None = None) -> tuple[FileFact, ...]:
    return discover(plant(root, files or {}), watch=paths).files


def test_a_watched_file_has_digest_mode_and_owner(tmp_path: Path) -> None:
    plant(tmp_path, {"etc/nccl.conf": "NCCL_IB_HCA==mlx5_0\n"})
    (tmp_path / "etc/nccl.conf").chmod(0o640)
    assert watched(tmp_path, "/etc/nccl.conf", "/etc/nccl.conf", "/etc/missing") == (
        FileFact(
            "/etc/nccl.conf",
            hashlib.sha256(b"NCCL_IB_HCA==mlx5_0\n").hexdigest(),
            "0640",
            os.getuid(),
            os.getgid(),
        ),
        FileFact("/etc/missing"),
    )


def test_a_watched_link_is_not_followed(tmp_path: Path) -> None:
    plant(tmp_path, {"etc/real": "x"}, {"etc/nccl.conf": "real"})
    (found,) = watched(tmp_path, "/etc/nccl.conf")
    assert (found.mode, found.sha256) == ("link", hashlib.sha256(b"real").hexdigest())


def test_a_watched_folder_and_a_pipe_have_no_content(tmp_path: Path) -> None:
    (tmp_path / "etc/nccl.conf").mkdir(parents=True)
    os.mkfifo(tmp_path / "etc/pipe")
    assert [(fact.mode, fact.sha256) for fact in watched(tmp_path, "/etc/nccl.conf", "/etc/pipe")] == [
        ("folder", None),
        ("other", None),
    ]


def test_a_watched_file_of_the_kernels_is_kept_as_text(tmp_path: Path) -> None:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    (found,) = watched(tmp_path, path, files={path[1:]: "always [madvise] never\n"})
    assert (found.text, found.mode) == ("always [madvise] never", "0644")


@pytest.mark.parametrize("path", ["etc/nccl.conf", "/etc/../nccl.conf"])
def test_a_watched_path_must_be_plain(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match=r"expected a path like /etc/nccl\.conf"):
        watched(tmp_path, path)


def test_a_watched_file_that_cannot_be_read_is_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"etc/secret": "x"})
    reading = os.open

    def refuse(path: str, *rest: int) -> int:
        if str(path).endswith("etc/secret"):
            raise PermissionError(13, "Permission denied")
        return reading(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"etc/secret: cannot be read \(run as root"):
        watched(tmp_path, "/etc/secret")


# What no tree may do to its reader.


def test_a_link_that_leaves_the_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    root = plant(tmp_path / "tree", {}, {"etc/hostname": "../../outside"})
    with pytest.raises(InputError, match="a link leads out of the tree"):
        discover(root)


def test_a_link_to_an_absolute_path_is_refused(tmp_path: Path) -> None:
    root = plant(tmp_path, {}, {"sys/bus/pci/devices": "/sys/bus/pci/devices"})
    with pytest.raises(InputError, match="a link leads out of the tree"):
        discover(root)


def test_a_ring_of_links_is_a_missing_file(tmp_path: Path) -> None:
    root = plant(tmp_path, {}, {"etc/hostname": "hostname"})
    assert discover(root).host.name is None


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    plant(tmp_path, {"etc/x": ""})
    os.mkfifo(tmp_path / "etc/hostname")
    with pytest.raises(InputError, match="is no regular file"):
        discover(tmp_path)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is larger than 65536 bytes"):
        given(tmp_path, {"etc/hostname": "x" * (tree_module.ATTRIBUTE_BYTES + 1)})


def test_bytes_that_are_no_text_keep_their_value(tmp_path: Path) -> None:
    assert given(tmp_path, {"proc/cmdline": b"ro x=\xff\n"}).cmdline == "ro x=\\xff"


@pytest.mark.parametrize("call", ["open", "listdir", "readlink", "lstat"])
def test_trouble_of_the_process_itself_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files, links = function("pci0000:00/0000:00:01.0", "0x030200", "0x10de")
    root = plant(tmp_path, files, links)
    original = getattr(os, call)

    def exhausted(path: str, *rest: int, **options: object) -> object:
        if "0000:00:01.0" in str(path) or str(path).endswith(("cpuinfo", "devices", "nccl.conf")):
            raise OSError(24, "Too many open files")
        return original(path, *rest, **options)

    monkeypatch.setattr(os, call, exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        discover(root, watch=["/etc/nccl.conf"])


def test_an_attribute_that_runs_out_of_files_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path, {"etc/hostname": "x"})
    original = os.open

    def exhausted(path: str, *rest: int) -> int:
        if str(path).endswith("hostname"):
            raise OSError(24, "Too many open files")
        return original(path, *rest)

    monkeypatch.setattr(os, "open", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        discover(root)


def test_a_folder_that_goes_away_while_it_is_listed_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path, {"sys/class/iommu/dmar0/x": ""})
    original = os.listdir

    def gone(path: str) -> list[str]:
        if str(path).endswith("iommu"):
            raise FileNotFoundError(2, "gone")
        return original(path)

    monkeypatch.setattr(os, "listdir", gone)
    assert discover(root).host.iommu is False


def test_this_machine_is_read_whole() -> None:
    facts: Facts = discover(Path("/"), watch=["/etc/hostname"])
    assert facts.host.name == Path("/etc/hostname").read_text(encoding="utf-8").strip()
    assert facts.host.kernel == os.uname().release
    assert facts.files[0].sha256 == hashlib.sha256(Path("/etc/hostname").read_bytes()).hexdigest()


def test_a_folder_where_a_file_is_expected_is_named(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/sys/vm/zone_reclaim_mode/x": "0\n"})
    with pytest.raises(InputError, match=r"zone_reclaim_mode: is no regular file"):
        discover(root)
