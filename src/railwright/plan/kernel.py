"""The slice `kernel`: packages that are held, boot arguments, power. Nothing of it without `policy.kernel`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ..node.model import Facts, Finding, Policy, Power, Setting, Slice
from ..node.model.software_policy import KernelPolicy
from ..node.packages.cmdline import key_of
from . import packages
from .effects import of_kind
from .entries import HEADER, Entry, file, unit
from .stack import systems

NAME = "kernel"
TMPFILES = "/etc/tmpfiles.d/90-railwright-power.conf"
_CPUS = "/sys/devices/system/cpu"
_ACTIVE_PROFILE = "/etc/tuned/active_profile"
_PROFILE_MODE = "/etc/tuned/profile_mode"
_KERNEL_NUMBERS = re.compile(r"(\d+)\.(\d+)")
# With ACS and DMA-BUF an ARM kernel before this one has to translate (NVIDIA's GB300 recipe).
_ARM_PASSES = (6, 11)
_EPB_PERFORMANCE = "0"  # include/asm/msr-index.h: ENERGY_PERF_BIAS_PERFORMANCE


def slice_of(
    facts: Facts, policy: Policy, settings: tuple[Setting, ...]
) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, None without a policy for the kernel or with nothing to be done; and findings."""
    if policy.kernel is None:
        return None, []
    findings: list[Finding] = []
    entries = [
        *_packages(facts, policy, policy.kernel, findings),
        *_power(facts, policy.kernel, settings, findings),
        *_arguments(facts, policy, policy.kernel, settings, findings),
    ]
    if not entries:
        return None, findings
    because = (
        f"the kernel for {policy.workload}: held packages, arguments of its command line, power; the command line "
        "takes effect at the next boot, which the play announces and the role never makes"
    )
    return Slice("persistent", tuple(entries), because), findings


def _packages(facts: Facts, policy: Policy, asked: KernelPolicy, findings: list[Finding]) -> list[Entry]:
    findings += _unnamed(facts, asked)
    if not asked.packages:
        return []
    system = packages.system_of(facts)
    if system is None:
        findings.append(packages.unknown_system(NAME))
        return []
    entries = [packages.packages_entry(NAME, asked.packages, facts, policy, reboot=True)]
    if system == "dpkg":
        entries.insert(0, packages.hold_file(NAME, asked.packages))
    return entries


def _unnamed(facts: Facts, asked: KernelPolicy) -> Iterator[Finding]:
    """Meta packages that bring the next kernel by themselves, for which nobody may have built the driver's modules."""
    row = systems.system_of(facts.host.os_id, facts.host.os_version)
    if row is None or facts.software is None or row.manager != "apt":
        return
    names = row.meta_packages(facts.software.architecture or "amd64")
    free = [name for name in names if name not in asked.packages and facts.software.package(name) is not None]
    if free:
        why = f"{', '.join(free)}: installed and not named, so an upgrade brings another kernel behind the plan's back"
        remedy = "name them with their versions in policy.kernel.packages, which are held"
        severity = "warning" if asked.packages else "info"
        yield Finding("kernel.unnamed", severity, "policy.kernel.packages", why, remedy)


# -- the command line --


def _arguments(
    facts: Facts, policy: Policy, asked: KernelPolicy, settings: tuple[Setting, ...], findings: list[Finding]
) -> list[Entry]:
    words = list(_words(facts, policy, asked, settings, findings))
    if not words:
        return []
    if facts.software is None or facts.software.boot_loader is None:
        findings.append(
            Finding(
                "kernel.boot_loader",
                "warning",
                "boot loader",
                f"no boot loader that we know is on this node, so these arguments are not set: {' '.join(words)}",
                "set them where its boot loader is configured, or in the image's",
            )
        )
        return []
    return [{"kind": "boot_arguments", "name": NAME, "arguments": words, "reboot": True}]


def _words(
    facts: Facts, policy: Policy, asked: KernelPolicy, settings: tuple[Setting, ...], findings: list[Finding]
) -> Iterator[str]:
    own = {key_of(word) for word in asked.arguments}
    left = {key.replace("-", "_") for key in asked.without}
    for word in _planned(facts, policy, asked, settings, findings):
        if key_of(word) not in own and key_of(word) not in left:
            yield word
    yield from asked.arguments
    for size, count in asked.huge_pages.items():
        yield f"hugepagesz={size}"
        yield f"hugepages={count}"


def _planned(
    facts: Facts, policy: Policy, asked: KernelPolicy, settings: tuple[Setting, ...], findings: list[Finding]
) -> Iterator[str]:
    yield from _iommu(facts, policy)
    if of_kind(settings, "sysctl").get("kernel.numa_balancing") == "0":
        yield "numa_balancing=disable"
    for name, value in of_kind(settings, "kernel_parameter").items():
        yield f"{name}={value}"
    if asked.realloc_off:
        homeless = list(_homeless(facts))
        if homeless:
            findings.append(_without_realloc(homeless))
        else:
            yield "pci=realloc=off"


def _iommu(facts: Facts, policy: Policy) -> Iterator[str]:
    """DMA without translation, where there is an IOMMU: peer traffic is not sent up for it.

    NVIDIA DGX OS nv-iommu-pt, skyhook-packages H100 and GB200 profiles, Oracle's kernel_parameters.yml.
    """
    if facts.host.iommu is False:
        return
    if facts.cpus.arch == "x86_64":
        yield "iommu=pt"
    elif facts.cpus.arch == "aarch64" and not (policy.pcie.acs is not None and _older(facts, _ARM_PASSES)):
        yield "iommu.passthrough=1"


def _older(facts: Facts, than: tuple[int, int]) -> bool:
    match = _KERNEL_NUMBERS.match(facts.host.kernel or "")
    return match is not None and (int(match[1]), int(match[2])) < than


def _homeless(facts: Facts) -> Iterator[str]:
    """Functions for whose memory windows the firmware found no place, or of which that is not known."""
    if not facts.pcie.functions:
        yield "no GPU and no NIC shows its memory windows"
    for function in facts.pcie.functions:
        if function.bars is None:
            yield f"{function.address} does not show its memory windows"
        elif not all(bar.placed for bar in function.bars):
            lost = [str(bar.number) for bar in function.bars if not bar.placed]
            yield f"{function.address} has no place for window {', '.join(lost)}"


def _without_realloc(homeless: Sequence[str]) -> Finding:
    return Finding(
        "kernel.realloc",
        "warning",
        "pci=realloc=off",
        f"the policy asks for it, and the kernel may have to move memory windows: {'; '.join(homeless[:4])}",
        "switch Above 4G Decoding and Resizable BAR on in the firmware's setup first; then plan again",
    )


# -- power --


def _power(
    facts: Facts, asked: KernelPolicy, settings: tuple[Setting, ...], findings: list[Finding]
) -> list[Entry]:
    if asked.profile is not None:
        return _tuned(facts, asked.profile, findings)
    if not asked.power or facts.power is None:
        return []
    if facts.power.tuned is not None:
        profile = facts.power.tuned or "no profile"
        why = (
            f"tuned runs here ({profile}) and sets governor, idle states and huge pages: they are left to it"
        )
        remedy = "name its profile in policy.kernel.profile, or stop tuned to have them set by the plan"
        findings.append(Finding("kernel.tuned", "info", "tuned", why, remedy))
        return []
    values = dict(_values(facts.power, settings))
    if not values:
        return []
    lines = "".join(f"w {path} - - - - {value}\n" for path, value in values.items())
    said = f"{HEADER}# systemd-tmpfiles writes these at every boot.\n{lines}"
    entries: list[Entry] = [file(TMPFILES, said)]
    for path, value in values.items():
        entries.append({"kind": "sysfs_each" if "*" in path else "sysfs", "path": path, "value": value})
    return entries


def _tuned(facts: Facts, profile: str, findings: list[Finding]) -> list[Entry]:
    if facts.software is not None and facts.software.system and facts.software.package("tuned") is None:
        findings.append(
            Finding(
                "kernel.profile",
                "error",
                "tuned",
                f"the policy asks for tuned's profile {profile}, and tuned is not installed",
                "name tuned with its version in policy.kernel.packages, or leave the profile out",
            )
        )
        return []
    return [
        file(_ACTIVE_PROFILE, f"{profile}\n"),
        file(_PROFILE_MODE, "manual\n"),
        unit("tuned.service", [_ACTIVE_PROFILE, _PROFILE_MODE]),
    ]


def _values(power: Power, settings: tuple[Setting, ...]) -> Iterator[tuple[str, str]]:
    """Files below /sys and what they should hold, as far as this kernel has them."""
    asked: Mapping[str, str] = {**of_kind(settings, "power"), **of_kind(settings, "memory")}
    governor = asked.get("cpu.governor")
    if governor is not None and governor in power.governors:
        yield f"{_CPUS}/cpu*/cpufreq/scaling_governor", governor
    if asked.get("cpu.energy_perf_bias") == "performance" and power.energy_bias:
        yield f"{_CPUS}/cpu*/power/energy_perf_bias", _EPB_PERFORMANCE
    if "cpu.min_perf_pct" in asked and power.min_perf_pct is not None:
        yield f"{_CPUS}/intel_pstate/min_perf_pct", asked["cpu.min_perf_pct"]
    for index in _too_deep(power, asked.get("cpu.force_latency")):
        yield f"{_CPUS}/cpu*/cpuidle/state{index}/disable", "1"
    if "memory.transparent_hugepage" in asked and power.transparent_hugepage is not None:
        yield "/sys/kernel/mm/transparent_hugepage/enabled", asked["memory.transparent_hugepage"]


def _too_deep(power: Power, latency: Optional[str]) -> Iterator[int]:
    """Idle states that take longer to leave than the workload bears. latency: microseconds, or tuned's words
    "cstate.id_no_zero:1|3", of which the first number is the deepest state that may be."""
    if latency is None:
        return
    if latency.isdigit():
        most = int(latency)
    else:
        match = re.search(r":(\d+)", latency)
        allowed = [
            state.latency for state in power.idle if match is not None and state.index == int(match[1])
        ]
        if not allowed:
            return
        most = allowed[0]
    for state in power.idle:
        if state.latency > most:
            yield state.index
