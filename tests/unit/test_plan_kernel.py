"""The slices `package_sources` and `kernel`: what a policy asks for, as far as the node has it."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.check import check
from railwright.node.model import (
    Facts,
    Finding,
    Host,
    IdleState,
    InputError,
    Kernel,
    Package,
    PackageLock,
    Plan,
    Policy,
    Power,
    Software,
)
from railwright.node.model.pcie_facts import Bar, PcieFacts, PcieFunction
from railwright.node.model.policy import WORKLOADS
from railwright.node.state.kinds import read_slices
from railwright.plan import plan
from railwright.plan.slices import INSTALL_SLICES
from tests.unit.plan_machines import hgx

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n-----END PGP PUBLIC KEY BLOCK-----"
INTEL = Power(
    driver="intel_pstate",
    governor="powersave",
    governors=("performance", "powersave"),
    energy_bias=True,
    min_perf_pct=20,
    idle=(IdleState(0, "POLL", 0), IdleState(1, "C1", 2), IdleState(2, "C1E", 10), IdleState(3, "C6", 290)),
    transparent_hugepage="madvise",
)
BASE = hgx().facts()


def facts(power: Power | None = INTEL, software: Software | None = None, **host: Any) -> Facts:
    known = software or Software(system="dpkg", boot_loader="grub")
    cpus = replace(BASE.cpus, arch=host.pop("arch", "x86_64"))
    return replace(BASE, software=known, power=power, cpus=cpus, host=replace(BASE.host, **host))


def planned(policy: dict[str, Any], **more: Any) -> Plan:
    return plan(facts(**more), Policy.read(policy))


def entries(made: Plan, name: str, kind: str) -> list[dict[str, Any]]:
    return [dict(entry) for entry in made.slices[name].entries if entry["kind"] == kind]


def arguments(made: Plan) -> list[str]:
    (entry,) = entries(made, "kernel", "boot_arguments")
    return list(entry["arguments"])


def findings(made: Plan, *codes: str) -> list[Finding]:
    return [finding for finding in made.findings if finding.code in codes]


def test_a_policy_that_asks_for_nothing_plans_none_of_it() -> None:
    assert not set(INSTALL_SLICES) & set(planned({}).slices)


def test_every_planned_entry_is_one_that_the_writer_takes() -> None:
    policy = {
        "kernel": {"packages": {"linux-image-amd64": "6.1.176-1"}, "huge_pages": {"1G": 2}},
        "software": {"sources": [source()]},
    }
    made = planned(policy)
    read_slices({name: list(made.slices[name].entries) for name in ("package_sources", "kernel")}, None)


def source(**more: Any) -> dict[str, Any]:
    return {
        "name": "cuda",
        "uris": "https://mirror.example/cuda",
        "suites": "lab",
        "components": "main",
        "key": KEY,
        **more,
    }


@pytest.mark.parametrize(
    ("arch", "iommu", "word"),
    [
        ("x86_64", True, "iommu=pt"),
        ("x86_64", None, "iommu=pt"),
        ("x86_64", False, None),
        ("aarch64", True, "iommu.passthrough=1"),
    ],
)
def test_dma_passes_without_translation_where_there_is_an_iommu(
    arch: str, iommu: bool | None, word: str | None
) -> None:
    words = arguments(planned({"kernel": {}}, arch=arch, iommu=iommu))
    assert [one for one in words if "iommu" in one] == ([] if word is None else [word])


def test_an_old_arm_kernel_with_acs_keeps_translating() -> None:
    policy = {"kernel": {}, "pcie": {"acs": "direct-nic"}}
    assert "iommu.passthrough=1" not in arguments(
        planned(policy, arch="aarch64", kernel="6.8.0-1030-nvidia-64k")
    )
    assert "iommu.passthrough=1" in arguments(planned(policy, arch="aarch64", kernel="6.11.0"))


def test_the_workloads_arguments_are_there_and_the_policys_word_comes_before_them() -> None:
    assert arguments(planned({"kernel": {}})) == [
        "iommu=pt",
        "numa_balancing=disable",
        "skew_tick=1",
        "init_on_alloc=0",
    ]
    other = {"kernel": {"arguments": ["iommu=off", "quiet"], "without": ["init_on_alloc", "skew-tick"]}}
    assert arguments(planned(other)) == ["numa_balancing=disable", "iommu=off", "quiet"]
    assert "init_on_alloc=0" not in arguments(planned({"kernel": {}, "workload": "inference-latency"}))
    assert "skew_tick=1" not in arguments(planned({"kernel": {}, "effects": {"skew_tick": False}}))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_workload_takes_cores_from_the_scheduler(workload: str) -> None:
    """A profile with isolcpus made a request take 6 s in the place of 0.55 s; on one core ranks pile up."""
    words = arguments(planned({"kernel": {}, "workload": workload}))
    assert not {"isolcpus", "nohz_full", "rcu_nocbs"} & {word.partition("=")[0] for word in words}


def test_huge_pages_are_reserved_by_size_in_pairs() -> None:
    assert arguments(planned({"kernel": {"huge_pages": {"2M": 5128, "1G": 2}}}))[-4:] == [
        "hugepagesz=2M", "hugepages=5128", "hugepagesz=1G", "hugepages=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bars", "allowed"),
    [
        ((Bar(0, 2**24, True), Bar(1, 2**37, True)), True),
        ((Bar(0, 2**24, True), Bar(1, 2**37, False)), False),
        (None, False),
    ],
)
def test_windows_may_stay_where_they_are_only_when_all_have_a_place(bars: Any, allowed: bool) -> None:
    known = replace(facts(), pcie=PcieFacts((PcieFunction("0000:18:00.0", bars=bars),)))
    made = plan(known, Policy.read({"kernel": {"realloc_off": True}}))
    assert ("pci=realloc=off" in arguments(made)) is allowed
    told = findings(made, "kernel.realloc")
    assert bool(told) is not allowed
    assert all("0000:18:00.0" in finding.why and "Above 4G" in finding.remedy for finding in told)


def test_a_node_without_a_boot_loader_is_told_what_would_be_set() -> None:
    made = planned({"kernel": {"power": False}}, software=Software(system="dpkg"))
    assert "kernel" not in made.slices
    (told,) = findings(made, "kernel.boot_loader")
    assert "iommu=pt numa_balancing=disable" in told.why


def test_power_is_set_now_and_at_every_boot_as_far_as_this_machine_has_it() -> None:
    made = planned({"kernel": {}})
    files = {entry["path"]: entry["value"] for entry in made.slices["kernel"].entries if "value" in entry}
    assert files == {
        "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor": "performance",
        "/sys/devices/system/cpu/cpu*/power/energy_perf_bias": "0",
        "/sys/devices/system/cpu/intel_pstate/min_perf_pct": "100",
        "/sys/devices/system/cpu/cpu*/cpuidle/state3/disable": "1",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always",
    }
    (conf,) = (
        entry for entry in entries(made, "kernel", "file") if entry["path"].startswith("/etc/tmpfiles.d/")
    )
    lines = [line.split() for line in conf["content"].splitlines() if not line.startswith("#")]
    assert {line[1]: line[-1] for line in lines} == files
    assert {line[0] for line in lines} == {"w"}
    assert entries(planned({"kernel": {}}, power=Power()), "kernel", "file") == []
    assert entries(planned({"kernel": {"power": False}}), "kernel", "sysfs") == []


@pytest.mark.parametrize(
    ("workload", "too_deep"),
    [("train-large", [3]), ("inference-latency", [2, 3]), ("moe-alltoall", [2, 3])],
)
def test_a_workload_that_waits_keeps_out_of_states_that_take_long_to_leave(
    workload: str, too_deep: list[int]
) -> None:
    made = planned({"kernel": {}, "workload": workload})
    paths = [entry["path"] for entry in entries(made, "kernel", "sysfs_each") if "cpuidle" in entry["path"]]
    assert paths == [f"/sys/devices/system/cpu/cpu*/cpuidle/state{index}/disable" for index in too_deep]


def test_tuned_that_runs_keeps_what_it_sets_and_is_named() -> None:
    made = planned({"kernel": {}}, power=replace(INTEL, tuned="throughput-performance"))
    assert entries(made, "kernel", "sysfs_each") == []
    (told,) = findings(made, "kernel.tuned")
    assert "throughput-performance" in told.why


def test_a_profile_that_is_asked_for_is_given_to_tuned_and_nothing_is_set_beside_it() -> None:
    software = Software(system="dpkg", boot_loader="grub", packages=(Package("tuned", "2.20-1"),))
    made = planned({"kernel": {"profile": "accelerator-performance"}}, software=software)
    assert [entry["path"] for entry in entries(made, "kernel", "file")] == [
        "/etc/tuned/active_profile", "/etc/tuned/profile_mode",
    ]  # fmt: skip
    assert entries(made, "kernel", "sysfs_each") == []
    without = planned({"kernel": {"profile": "accelerator-performance"}})
    assert findings(without, "kernel.profile")[0].severity == "error"


def test_kernel_packages_are_held_by_name_and_kept_from_unattended_upgrades() -> None:
    held = {"linux-image-6.1.0-50-amd64": "6.1.176-1", "linux-headers-amd64": "6.1.176-1", "lib+x": "1"}
    made = planned({"kernel": {"packages": held}, "software": {"sources": [source()], "wait": 7}})
    (entry,) = entries(made, "kernel", "packages")
    assert (entry["versions"], entry["hold"], entry["wait"], entry["reboot"]) == (held, True, 7, True)
    assert entry["sources"] == ["/etc/apt/sources.list.d/railwright-cuda.sources"]
    (conf,) = (
        one for one in entries(made, "kernel", "file") if one["path"].startswith("/etc/apt/apt.conf.d/")
    )
    assert '"linux-image-6\\.1\\.0-50-amd64$";' in conf["content"]
    assert '"lib\\+x$";' in conf["content"]


def test_apt_itself_reads_what_is_written_for_unattended_upgrades(tmp_path: Any) -> None:
    made = planned({"kernel": {"packages": {"linux-image-6.1.0-50-amd64": "1", "lib+x": "1"}}})
    (conf,) = (
        one for one in entries(made, "kernel", "file") if one["path"].startswith("/etc/apt/apt.conf.d/")
    )
    assert conf["content"].splitlines()[1] == "Unattended-Upgrade::Package-Blacklist {"
    if shutil.which("apt-config") is None:
        return  # another distribution's machine has nothing to ask
    (tmp_path / "held.conf").write_text(conf["content"])
    said = subprocess.run(
        ["apt-config", "-c", str(tmp_path / "held.conf"), "dump", "Unattended-Upgrade"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'Package-Blacklist:: "linux-image-6\\.1\\.0-50-amd64$";' in said.stdout


def test_keys_and_preferences_stand_before_the_archive_and_the_index_comes_last() -> None:
    pins = [{"packages": ["nvidia-*"], "pin": "origin mirror.example"}]
    made = planned({"software": {"sources": [source(pins=pins, exclude=["mft*", "kernel-mft*"])]}})
    told = made.slices["package_sources"].entries
    assert [entry.get("path", entry["kind"]) for entry in told] == [
        "/etc/apt/keyrings/railwright-cuda.asc",
        "/etc/apt/preferences.d/railwright-cuda",
        "/etc/apt/sources.list.d/railwright-cuda.sources",
        "package_index",
    ]
    stanzas = told[1]["content"].split("\n", 1)[1].split("\n\n")
    assert [stanza.strip().splitlines() for stanza in stanzas] == [
        ["Package: mft*", "Pin: origin mirror.example", "Pin-Priority: -1"],
        ["Package: kernel-mft*", "Pin: origin mirror.example", "Pin-Priority: -1"],
        ["Package: nvidia-*", "Pin: origin mirror.example", "Pin-Priority: 1001"],
    ]
    assert "Signed-By: /etc/apt/keyrings/railwright-cuda.asc\n" in told[2]["content"]


def test_a_repository_for_dnf_names_its_key_and_what_it_must_not_supply() -> None:
    made = planned({"software": {"sources": [source(exclude=["mft*"])]}}, software=Software(system="rpm"))
    told = made.slices["package_sources"].entries
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(told[1]["content"])
    assert dict(read["railwright-cuda"]) == {
        "name": "cuda",
        "baseurl": "https://mirror.example/cuda",
        "enabled": "1",
        "gpgcheck": "1",
        "repo_gpgcheck": "0",
        "gpgkey": "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-railwright-cuda",
        "excludepkgs": "mft*",
    }


def test_an_archive_over_plain_http_is_told() -> None:
    assert findings(
        planned({"software": {"sources": [source(uris="http://mirror.example/x")]}}), "package_sources.http"
    )


def test_facts_without_a_package_system_are_told_and_nothing_is_planned() -> None:
    policy = {"software": {"sources": [source()]}, "kernel": {"packages": {"linux-image-amd64": "1"}}}
    made = planned(policy, software=Software(boot_loader="grub"))
    assert "package_sources" not in made.slices
    assert entries(made, "kernel", "packages") == []
    assert {finding.code for finding in made.findings} >= {"package_sources.system", "kernel.system"}


BAD = [
    ({"software": {"sources": [source(key=None)]}}, r"sources\[0\].key"),
    ({"software": {"sources": [source(key="mDMEZ")]}}, r"sources\[0\].key"),
    ({"software": {"sources": [source(key=None, trusted=True)]}}, r"sources\[0\].trusted"),
    ({"software": {"sources": [source(name="../x")]}}, r"sources\[0\].name"),
    ({"software": {"sources": [source(), source()]}}, r"sources\[1\].name"),
    ({"software": {"sources": [source(uris="ftp://x")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="https://me:hunter2@x/debian")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="https://x/a https://hunter2@y/b")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="https://me:hun/ter2@x/debian")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="http:/me:hunter2@x/debian")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="https://x/debian?token=hunter2")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="https:\\\\me:hunter2@x")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(uris="hunter2")]}}, r"sources\[0\].uris"),
    ({"software": {"sources": [source(suites="a\nb")]}}, r"sources\[0\].suites"),
    ({"software": {"sources": [source(pins=[{"packages": [], "pin": "origin x"}])]}}, r"pins\[0\].packages"),
    ({"software": {"pins": [{"packages": ["x"], "pin": "origin x\nPackage: *"}]}}, r"pins\[0\].pin"),
    ({"software": {"pins": [{"packages": ["x"], "pin": "origin x", "priority": 0}]}}, r"pins\[0\].priority"),
    ({"software": {"wait": -1}}, "software.wait"),
    ({"kernel": {"packages": {"linux-*": "1"}}}, "kernel.packages"),
    ({"kernel": {"packages": {"linux-image": "6.1*"}}}, "kernel.packages.linux-image"),
    ({"kernel": {"arguments": ["a b"]}}, r"kernel.arguments\[0\]"),
    ({"kernel": {"arguments": ['x="$(id)"']}}, r"kernel.arguments\[0\]"),
    ({"kernel": {"huge_pages": {"3M": 1}}}, "huge_pages.3M"),
    ({"kernel": {"huge_pages": {"1G": 0}}}, "huge_pages.1G"),
    ({"kernel": {"profile": "a;b"}}, "kernel.profile"),
]


@pytest.mark.parametrize(("policy", "where"), BAD, ids=[row[1] for row in BAD])
def test_what_no_package_system_and_no_kernel_takes_is_refused_with_its_place(
    policy: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError, match=where) as caught:
        Policy.read(policy)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uris", ["https://x/a@b/", "https://x:8080/@stable", "http://[::1]:80/a@b", "file:/srv/a@b"]
)
def test_an_at_sign_behind_the_host_is_no_user(uris: str) -> None:
    assert Policy.read({"software": {"sources": [source(uris=uris)]}}).software.sources[0].uris == uris


# -- the node against the plan --

KERNEL = {"kernel": {"packages": {"linux-image-amd64": "6.1.176-1"}, "power": False}}
GOOD = Package("linux-image-amd64", "6.1.176-1", "installed", True)


def differs(package: Package | None, cmdline: str, **more: Any) -> set[tuple[str, str]]:
    made = planned(KERNEL)
    software = Software(system="dpkg", packages=() if package is None else (package,), **more)
    now = replace(facts(software=software), host=Host(cmdline=cmdline))
    found = check(made, now)
    return {(finding.code, finding.severity) for finding in found if finding.code.startswith("kernel.")} - {
        ("kernel.content", "info")
    }


ALL = "iommu=pt numa_balancing=disable skew_tick=1 init_on_alloc=0"


@pytest.mark.parametrize(
    ("package", "cmdline", "codes"),
    [
        (GOOD, ALL, set()),
        (None, ALL, {("kernel.version", "error")}),
        (replace(GOOD, version="6.1.170-1"), ALL, {("kernel.version", "error")}),
        (replace(GOOD, status="half-configured"), ALL, {("kernel.version", "error")}),
        (replace(GOOD, held=False), ALL, {("kernel.hold", "error")}),
        (GOOD, ALL.replace("iommu=pt", "iommu=off"), {("kernel.cmdline", "error")}),
    ],
)
def test_a_node_that_is_not_as_planned_is_told(
    package: Any, cmdline: str, codes: set[tuple[str, str]]
) -> None:
    assert differs(package, cmdline) == codes


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ((f"root=x ro {ALL}",), {("kernel.cmdline", "info")}),
        ((f"root=x ro {ALL}", "root=x ro"), {("kernel.cmdline", "error")}),
    ],
)
def test_arguments_that_every_entry_has_wait_for_a_reboot_and_are_no_fault(
    lines: tuple[str, ...], codes: set[tuple[str, str]]
) -> None:
    assert differs(GOOD, "root=x ro", boot_lines=lines) == codes


def test_an_interrupted_dpkg_and_a_kernel_without_an_initramfs_are_told() -> None:
    assert differs(GOOD, ALL, interrupted=("x half-configured",)) == {("kernel.interrupted", "error")}


def test_facts_that_hold_no_package_are_never_good() -> None:
    made = planned(KERNEL)
    now = replace(facts(), software=None, host=Host(cmdline=ALL))
    assert ("kernel.version", "info") in {(finding.code, finding.severity) for finding in check(made, now)}


def test_a_node_is_not_rebooted_where_it_would_not_come_back() -> None:
    from railwright.fleet.installing import reboot_refusal, reboot_words
    from railwright.node.model import to_json

    made = to_json(planned(KERNEL))
    fine = Software(system="dpkg", kernels=(Kernel("6.1", True, True),), next_kernel="6.1")

    def refusal(software: Software | None, connection: str = "ssh", driver: Any = None) -> str:
        now = to_json(replace(facts(software=fine), software=software))
        return reboot_refusal(now, made, connection, driver)

    assert refusal(fine) == ""
    assert "is not known" in refusal(None)
    assert "this playbook runs on" in refusal(fine, "local")
    assert "dpkg --configure -a" in refusal(replace(fine, interrupted=("x half-configured",)))
    assert "apt-get (process 7) is at work" in refusal(
        replace(fine, locks=(PackageLock("/l", "apt-get (process 7)"),))
    )
    other = replace(fine, kernels=(*fine.kernels, Kernel("6.2", True, False)))
    assert "kernel 6.2 has no initramfs" in refusal(other)
    assert "6.9, which is not in /boot" in refusal(replace(fine, next_kernel="6.9"))
    used = {"refcount": 9, "dependents": 2, "daemon_files": 1, "users": ["python (41)"], "cuda": None}
    assert "python (41)" in refusal(fine, "ssh", used)
    assert reboot_words({"reboot_needed": []}) == reboot_words({}) == ""
    assert reboot_words({"reboot_needed": ["a", "b"]}) == "takes effect at the next boot: a, b"


@pytest.mark.parametrize(
    ("named", "severity"),
    [
        ({}, "info"),
        ({"linux-image-6.1.0-50-amd64": "6.1.176-1"}, "warning"),
        ({"linux-image-amd64": "6.1.176-1"}, None),
    ],
)
def test_a_meta_package_that_brings_the_next_kernel_is_told_where_nobody_holds_it(
    named: dict[str, str], severity: str | None
) -> None:
    software = Software(system="dpkg", architecture="amd64", boot_loader="grub", packages=(GOOD,))
    made = planned({"kernel": {"packages": named}}, software=software, os_id="debian", os_version="12")
    assert [finding.severity for finding in findings(made, "kernel.unnamed")] == (
        [severity] if severity else []
    )


@pytest.mark.parametrize(
    ("os_id", "version", "architecture", "meta"),
    [
        ("debian", "13", "arm64", "linux-image-arm64"),
        ("ubuntu", "24.04", "arm64", "linux-nvidia-64k"),
        ("ubuntu", "22.04", "amd64", "linux-image-generic-hwe-22.04"),
    ],
)
def test_each_architecture_and_flavour_has_meta_packages_of_its_own(
    os_id: str, version: str, architecture: str, meta: str
) -> None:
    software = Software(
        system="dpkg",
        architecture=architecture,
        boot_loader="grub",
        packages=(Package(meta, "1", held=True),),
    )
    made = planned({"kernel": {}}, software=software, os_id=os_id, os_version=version)
    (said,) = [finding.why for finding in findings(made, "kernel.unnamed")]
    assert said.startswith(f"{meta}: installed and not named")
