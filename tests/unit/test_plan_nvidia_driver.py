"""Which driver a node gets, with which modules, and what stands against it."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import Facts, Finding, InputError, Nic, Policy, Slice
from railwright.node.model.driver_packages import APART, DRIVER_PATTERNS, is_driver, upstream
from railwright.plan import driver_modules, nvidia_driver, nvswitch
from railwright.plan.stack import archives, generations, images, pairs, systems
from tests.unit.stack_support import B200, H100, NEW, OLD, V100, machine, policy, software

PCI_IDS = Path("/usr/share/misc/pci.ids")
# Chips of pci.ids by the letters of their names.
CHIPS = {
    "GM": "Maxwell",
    "GP": "Pascal",
    "GV": "Volta",
    "TU": "Turing",
    "GA": "Ampere",
    "GH": "Hopper",
    "AD": "Ada",
}


def planned(facts: Facts, asked: Policy) -> Slice:
    made, findings = nvidia_driver.slice_of(facts, asked)
    assert made is not None, findings
    return made


def refusal(facts: Facts, asked: Policy) -> Finding:
    made, findings = nvidia_driver.slice_of(facts, asked)
    assert made is None
    (error,) = (finding for finding in findings if finding.severity == "error")
    return error


def entry(made: Slice, kind: str, path: str | None = None) -> dict[str, Any]:
    (found,) = (row for row in made.entries if row["kind"] == kind and path in (None, row.get("path")))
    return found


# ----- generations ---------------------------------------------------------------------------------------------------


# NVIDIA's table of GPUs that its open kernel modules drive, and pci.ids for those before them.
@pytest.mark.parametrize(
    ("device", "generation"),
    [
        ("0x13f2", "Maxwell"), ("0x15f8", "Pascal"), ("0x1b38", "Pascal"), ("0x1db4", "Volta"), ("0x1eb8", "Turing"),
        ("0x20b0", "Ampere"), ("0x25b6", "Ampere"), ("0x2235", "Ampere"), ("0x2330", "Hopper"), ("0x2331", "Hopper"),
        ("0x2335", "Hopper"), ("0x2342", "Hopper"), ("0x26b9", "Ada"), ("0x27b8", "Ada"), ("0x2901", "Blackwell"),
        ("0x2941", "Blackwell"), ("0x3182", "Blackwell Ultra"), ("0x31c2", "Blackwell Ultra"), ("0x2bb5", "Blackwell"),
    ],
)  # fmt: skip
def test_the_generation_is_told_by_the_block_of_the_device_id(device: str, generation: str) -> None:
    assert generations.generation("0x10de", device) == generation
    assert generations.generation("0x1002", device) is None


def test_pci_ids_agrees_on_every_chip_that_it_names() -> None:
    if not PCI_IDS.exists():
        pytest.skip("pci.ids is not installed")
    ours = False
    seen = 0
    for line in PCI_IDS.read_text("utf-8", "replace").splitlines():
        if re.match(r"[0-9a-f]{4}  ", line):
            ours = line.startswith("10de")
        match = (
            re.match(r"\t([0-9a-f]{4})  (GM|GP|GV|TU|GA|GH|AD)\d{3}(?:GL|M|GLM)? ?\[", line) if ours else None
        )
        if match and "NVSwitch" not in line:
            seen += 1
            assert generations.generation("0x10de", f"0x{match[1]}") == CHIPS[match[2]], line
    assert seen > 300


def test_an_id_in_no_block_takes_open_modules_and_says_that_it_guesses() -> None:
    made, findings = nvidia_driver.slice_of(machine("0x4000"), policy())
    assert made is not None
    (told,) = (finding for finding in findings if finding.code == "nvidia_driver.generation")
    assert "not known" in told.why


# ----- modules -------------------------------------------------------------------------------------------------------


def test_open_modules_are_taken_for_what_they_drive() -> None:
    versions = entry(planned(machine(H100, H100), policy()), "packages")["versions"]
    assert versions["nvidia-kernel-open-dkms"] == versions["nvidia-open"] == "580.173.02-1"
    assert versions["nvidia-kernel-dkms"] is None


def test_proprietary_modules_are_taken_for_volta() -> None:
    versions = entry(planned(machine(V100), policy()), "packages")["versions"]
    assert versions["nvidia-kernel-dkms"] == "580.173.02-1"
    assert versions["nvidia-kernel-open-dkms"] is versions["nvidia-open"] is None


def test_blackwell_refuses_proprietary_modules_with_the_reason() -> None:
    found = refusal(machine(B200), policy(driver={"flavour": "proprietary"}))
    assert found.code == "nvidia_driver.modules"
    assert "Blackwell is driven by open modules only" in found.why
    assert found.remedy == "take open modules"


def test_volta_refuses_open_modules_with_the_reason() -> None:
    assert (
        "Volta is driven by proprietary modules only"
        in refusal(machine(V100), policy(driver={"flavour": "open"})).why
    )


def test_volta_and_blackwell_in_one_node_have_no_modules_in_common() -> None:
    assert "no modules drive all of these GPUs" in refusal(machine(V100, B200), policy()).why


def test_a_branch_after_the_last_one_for_volta_is_refused() -> None:
    assert "driven up to branch 580" in refusal(machine(V100), policy("590.48.01")).why


def test_a_branch_before_the_first_one_for_blackwell_is_refused() -> None:
    assert "needs branch 570 or later" in refusal(machine(B200), policy("565.57.01")).why
    assert "needs branch 580 or later" in refusal(machine("0x3182"), policy("570.211.01")).why


def test_without_a_gpu_the_driver_is_planned_and_that_nothing_is_shown_is_said() -> None:
    made, findings = nvidia_driver.slice_of(machine(), policy())
    assert made is not None
    (told,) = (finding for finding in findings if finding.code == "nvidia_driver.no_gpu")
    assert told.severity == "info"


def test_an_image_is_planned_where_the_policy_expects_no_gpu() -> None:
    from railwright.plan import plan

    made = plan(machine(), policy(expect={"gpus": 0}))
    assert made.status == "planned"
    assert "nvidia_driver" in made.slices
    assert plan(machine(), policy()).status == "refused"


# ----- archives ------------------------------------------------------------------------------------------------------


def ubuntu(facts: Facts, release: str = "24.04") -> Facts:
    return replace(facts, host=replace(facts.host, os_id="ubuntu", os_version=release))


def test_the_fabric_managers_name_depends_on_the_archive_and_the_branch() -> None:
    facts = ubuntu(machine(H100, switches=4))
    names = {
        ("nvidia", "580.173.02"): "nvidia-fabricmanager",
        ("nvidia", "570.211.01"): "nvidia-fabricmanager-570",
        ("nvidia", "590.48.01"): "nvidia-fabricmanager",
        ("ubuntu", "580.159.03"): "nvidia-fabricmanager-580",
    }
    for (archive, version), name in names.items():
        versions = entry(planned(facts, policy(version, driver={"archive": archive})), "packages")["versions"]
        managers = {
            key: value for key, value in versions.items() if "fabricmanager" in key and value is not None
        }
        assert list(managers) == [name]
        assert managers[name].startswith(f"{version}-")


def test_old_branches_and_the_other_archives_names_must_go_in_the_same_transaction() -> None:
    versions = entry(planned(ubuntu(machine(H100)), policy()), "packages")["versions"]
    assert versions["nvidia-dkms-580-open"] == "580.173.02-0ubuntu1"
    for gone in ("nvidia-dkms-570-open", "nvidia-utils-570", "nvidia-utils-535-server", "nvidia-dkms-580"):
        assert versions[gone] is None


def test_the_set_is_the_same_whatever_stands_on_the_node() -> None:
    """Else what was purged would come back when the next plan does not name it any more."""
    from tests.unit.stack_support import with_driver

    before = entry(planned(machine(H100), policy()), "packages")
    after = entry(planned(with_driver(machine(H100), "580.173.02", "580.173.02"), policy()), "packages")
    assert before == after


def test_what_comes_beside_the_set_may_change_with_it_and_is_not_purged() -> None:
    made = entry(planned(machine(H100), policy()), "packages")
    assert "nvidia-utils" in made["may_change"]
    assert not set(made["may_change"]) & set(made["versions"])


def test_red_hat_has_a_numbered_stream_that_no_second_run_moves() -> None:
    facts = machine(H100, software=software(system="rpm"))
    facts = replace(
        facts, host=replace(facts.host, os_id="rocky", os_version="9.4", kernel="5.14.0-427.el9.x86_64")
    )
    made = planned(facts, policy())
    stream = entry(made, "file", nvidia_driver.STREAM)["content"]
    assert "stream=580-open\n" in stream
    assert "latest" not in stream
    assert entry(made, "packages")["versions"]["kmod-nvidia-open-dkms"] == "3:580.173.02-1.el9"


def test_a_system_that_nobody_knows_is_refused_by_name() -> None:
    facts = machine(H100)
    facts = replace(facts, host=replace(facts.host, os_id="pop", os_version="22.04"))
    found = refusal(facts, policy())
    assert found.code == "nvidia_driver.system"
    assert found.why.startswith("pop 22.04 is none of Ubuntu 22.04")


def test_prebuilt_modules_are_of_the_kernels_version() -> None:
    asked = {"archive": "ubuntu", "build": "prebuilt"}
    facts = ubuntu(machine(H100))
    assert "modules_version" in refusal(facts, policy(driver=asked)).where
    made = planned(facts, policy(driver={**asked, "modules_version": "6.8.0-90.91"}))
    versions = entry(made, "packages")["versions"]
    assert versions["linux-modules-nvidia-580-server-open-generic"] == "6.8.0-90.91"
    assert versions["nvidia-utils-580-server"] == "580.173.02-0ubuntu0.24.04.1"


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.name)
def test_every_system_has_a_driver_of_each_branch_that_is_kept(system: systems.System) -> None:
    for driver in ("570.211.01", "580.173.02", "590.48.01"):
        row = archives.names_of("nvidia", system.id, driver)
        assert row is not None
        assert row.modules["open/dkms"]
        assert all(is_driver(archives.filled(name, 580)) for name in (*row.user, *row.meta.values()))


# ----- pin, blacklist, modprobe --------------------------------------------------------------------------------------


def test_every_package_of_a_set_is_pinned_and_the_container_toolkit_is_not() -> None:
    for row in archives.NAMES:
        for name in row.all:
            full = archives.filled(name, 580)
            if not full.startswith(
                ("firmware-", "linux-modules-", "nvidia-modprobe", "nvidia-settings", "nvidia-xconfig")
            ):
                assert is_driver(full) or any(fnmatchcase(full, pattern) for pattern in APART), full
    for other in (
        "nvidia-container-toolkit",
        "libnvidia-container1",
        "nvidia-ctk",
        "cuda-toolkit-13-0",
        "libnccl2",
    ):
        assert not is_driver(other)
        assert not any(fnmatchcase(other, pattern) for pattern in DRIVER_PATTERNS)


def test_the_pin_knows_one_version_and_forbids_all_others() -> None:
    text = entry(planned(machine(H100), policy()), "file", nvidia_driver.PIN)["content"]
    stanzas = [
        dict(line.split(": ", 1) for line in part.splitlines() if ": " in line) for part in text.split("\n\n")
    ]
    assert [(row["Pin"], row["Pin-Priority"]) for row in stanzas] == [
        ("release *", "500"), ("version 580.173.02-1", "1001"), ("release *", "-1"),
    ]  # fmt: skip
    assert "nvidia-fabricmanager*" in stanzas[1]["Package"].split()
    assert stanzas[1]["Package"] == stanzas[2]["Package"]


HELD = "/etc/apt/apt.conf.d/90-railwright-nvidia-driver-held"


def test_a_further_package_is_held_by_its_own_name_and_no_other() -> None:
    made = planned(machine(H100), policy(driver={"packages": ["libgl++1.2"]}))
    patterns = re.findall(r'"(.+)";', entry(made, "file", HELD)["content"])
    assert any(re.match(pattern, "libgl++1.2") for pattern in patterns)
    assert not any(re.match(pattern, "libgl++1x2") for pattern in patterns)


def test_unattended_upgrades_leaves_every_part_alone() -> None:
    text = entry(planned(machine(H100), policy()), "file", HELD)["content"]
    patterns = re.findall(r'"(.+)";', text)
    for name in (
        "nvidia-utils",
        "libnvidia-common-460",
        "libnvidia-compute-580",
        "cuda-drivers",
        "nvidia-open",
    ):
        assert any(re.match(pattern, name) for pattern in patterns), name
    assert not any(re.match(pattern, "nvidia-container-toolkit") for pattern in patterns)


def test_nouveau_and_nova_are_kept_out_of_system_and_initramfs() -> None:
    made = planned(machine(H100), policy(driver={"options": {"NVreg_RestrictProfilingToAdminUsers": "0"}}))
    text = entry(made, "file", nvidia_driver.MODPROBE)["content"]
    for name in ("nouveau", "nova_core", "nova_drm"):
        assert f"blacklist {name}\n" in text
        assert f"install {name} /bin/false\n" in text
    assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n" in text
    assert entry(made, "initramfs")["inputs"] == [nvidia_driver.MODPROBE]


def test_persistence_is_switched_on_by_a_drop_in_and_not_in_the_packages_unit() -> None:
    made = planned(machine(H100), policy())
    dropin = entry(made, "file", nvidia_driver.PERSISTENCED_DROPIN)["content"]
    assert "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --persistence-mode" in dropin
    wanted = entry(made, "file", nvidia_driver.PERSISTENCED_WANTED)["content"]
    assert wanted.endswith("[Unit]\nWants=nvidia-persistenced.service\n")
    assert [row for row in planned(machine(H100), policy(driver={"persistence": False})).entries
            if row["kind"] == "systemd_unit"] == []  # fmt: skip


def test_dma_buf_goes_with_open_modules_and_peermem_with_proprietary_ones() -> None:
    paths = [row.get("path") for row in planned(machine(H100), policy()).entries]
    assert nvidia_driver.LOADED not in paths
    text = entry(planned(machine(V100), policy()), "file", nvidia_driver.LOADED)["content"]
    assert "\nnvidia_peermem\n" in text
    # Before the RDMA stack's own modules are in place it does not load: it is tried again behind them, and never when
    # an image is made.
    dropin = entry(
        planned(machine(V100), policy()),
        "file",
        "/etc/systemd/system/openibd.service.d/60-railwright-peermem.conf",
    )
    assert dropin["content"].endswith("[Service]\nExecStartPost=-/sbin/modprobe nvidia_peermem\n")


def test_dma_buf_on_an_old_kernel_is_not_what_is_written() -> None:
    facts = machine(H100)
    facts = replace(facts, host=replace(facts.host, kernel="5.4.0-100-generic"))
    made, findings = nvidia_driver.slice_of(facts, policy(driver={"rdma": "dma-buf"}))
    assert made is not None
    assert nvidia_driver.LOADED in [row.get("path") for row in made.entries]
    assert [finding.code for finding in findings] == ["nvidia_driver.rdma"]


# ----- kernel --------------------------------------------------------------------------------------------------------


def test_a_pair_that_is_known_not_to_build_is_refused_with_one_that_works() -> None:
    from railwright.node.model.software import Kernel

    kernels = tuple(
        Kernel(release, headers=True) for release in ("6.12.100+deb13-amd64", "6.12.117+deb13-amd64")
    )
    facts = machine(H100, software=software(kernels=kernels, next_kernel="6.12.117+deb13-amd64"))
    facts = replace(facts, host=replace(facts.host, os_version="13", kernel="6.12.100+deb13-amd64"))
    found = refusal(facts, policy("550.163.01", driver={"archive": "debian", "revision": "2"}))
    assert found.code == "nvidia_driver.kernel_pair"
    assert "pci_resize_resource" in found.why
    assert "on this node: kernel 6.12.100+deb13-amd64" in found.remedy
    assert pairs.bad_pair("580.173.02", "6.12.117") is None
    assert pairs.bad_pair("550.163.01", "6.12.106") is None
    assert pairs.bad_pair("550.163.01", "6.12.107") is not None


def test_the_compiler_that_built_the_kernel_is_asked_for_by_name() -> None:
    from railwright.node.model import Platform

    facts = machine(H100, platform=Platform(compilers={"gcc": 11, "gcc-11": 11}))
    made, findings = nvidia_driver.slice_of(facts, policy())
    (told,) = (finding for finding in findings if finding.code == "nvidia_driver.compiler")
    assert made is not None
    assert told.remedy == "install gcc-12 before the driver"
    assert driver_modules.missing_compiler(machine(H100), NEW) is None
    assert driver_modules.missing_compiler(machine(H100), "never heard of") is None


def test_the_first_525_drivers_are_warned_about() -> None:
    asked = policy("525.60.13", driver={"archive": "ubuntu", "revision": "0ubuntu1"})
    assert refusal(ubuntu(machine(H100)), asked).code == "nvidia_driver.archive"
    assert pairs.version("525.60.13") < pairs.version(pairs.LEAST_WITH_GSP)


# ----- versions ------------------------------------------------------------------------------------------------------


def test_advice_against_xid_119_that_open_modules_cannot_take_is_refused() -> None:
    asked = {"options": {"NVreg_EnableGpuFirmware": "0"}}
    found = refusal(machine(H100), policy(driver=asked))
    assert found.where == "policy.driver.options.NVreg_EnableGpuFirmware"
    assert "open modules do nothing without the firmware" in found.why
    made = planned(machine(V100), policy(driver=asked))
    assert (
        "options nvidia NVreg_EnableGpuFirmware=0\n" in entry(made, "file", nvidia_driver.MODPROBE)["content"]
    )


def test_versions_are_compared_as_numbers() -> None:
    assert pairs.version("1.39.0") > pairs.version("1.4.0")
    assert pairs.version("580.126.09") < pairs.version("580.126.20-1")
    assert upstream("3:580.173.02-1.el9") == upstream("580.173.02-0ubuntu0.24.04.1") == "580.173.02"
    assert upstream("20220217+3") is None


@pytest.mark.parametrize(
    ("driver", "cuda"), [("580.65.06", "13"), ("575.57.08", "12"), ("470.82.01", "11"), ("390.1", None)]
)
def test_a_driver_runs_programs_of_a_cuda_up_to_its_own(driver: str, cuda: str | None) -> None:
    assert pairs.newest_cuda(driver) == cuda


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"driver": {"version": "580"}}, "policy.driver.version"),
        ({"driver": {"version": "580.173.02", "archive": "somewhere"}}, "policy.driver.archive"),
        ({"driver": {"options": {"a b": "1"}}}, "policy.driver.options"),
        ({"driver": {"options": {"NVreg_x": "1\noptions nvidia b=2"}}}, "policy.driver.options.NVreg_x"),
        ({"driver": {"packages": ["nvidia-*"]}}, "policy.driver.packages"),
        ({"fabric_manager": {"wait": 0}}, "policy.fabric_manager.wait"),
        ({"fabric_manager": {"partition_mode": "half"}}, "policy.fabric_manager.partition_mode"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_named(asked: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as raised:
        Policy.read(asked)
    assert raised.value.where == place


def test_every_vendors_image_is_one_that_is_looked_for() -> None:
    from railwright.node.discover.platform import IMAGE_FILES

    assert {image.path for image in images.IMAGES} == set(IMAGE_FILES)


def test_no_host_is_named_in_the_tables() -> None:
    folder = Path(archives.__file__).parent
    for path in folder.glob("*.py"):
        assert not re.search(r"https?://", path.read_text("utf-8"))


def test_bootable_kernels_are_the_next_one_or_all() -> None:
    assert driver_modules.bootable(machine()) == (NEW,)
    assert driver_modules.bootable(machine(software=software(next_kernel=None))) == (OLD, NEW)
    assert driver_modules.bootable(machine(software=None)) == (NEW,)


def test_management_ports_make_it_nvlink_5() -> None:
    port = Nic("mlx5_8", rdma="mlx5_8", link_layer="InfiniBand", management=True)
    facts = machine(B200, nics=(port,))
    assert nvswitch.is_nvlink5(facts)
    assert not nvswitch.is_nvlink5(machine(H100, switches=4))


def test_no_task_names_an_address() -> None:
    """An offline site has to be able to give each of them (policy.software.sources)."""
    project = Path(__file__).resolve().parents[2]
    tasks = [*project.glob("roles/*/tasks/*.yml"), *project.glob("playbooks/**/*.yml")]
    assert len(tasks) > 20
    assert [path.name for path in tasks if re.search(r"(?:https?|ftp)://", path.read_text("utf-8"))] == []


def test_headers_of_a_kernel_with_large_pages_are_in_a_package_of_their_own() -> None:
    rocky, debian = systems.system_of("rocky", "9.5"), systems.system_of("debian", "12")
    assert rocky is not None
    assert debian is not None
    plain = "5.14.0-503.11.1.el9_5.aarch64"
    assert rocky.headers_of(plain) == f"kernel-devel-{plain}"
    assert rocky.headers_of(f"{plain}+64k") == f"kernel-64k-devel-{plain}"
    assert debian.headers_of("6.1.0-50-arm64") == "linux-headers-6.1.0-50-arm64"
