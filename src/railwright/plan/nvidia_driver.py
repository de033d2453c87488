"""The slice `nvidia_driver`: which driver, from where, with which modules, and why; or why none can be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from ..node.model import DriverPolicy, Facts, Finding, Policy, Slice
from ..node.model.driver_packages import APART, DRIVER_PATTERNS, RIVALS
from . import driver_modules, nvswitch, packages
from .entries import HEADER, Entry, file
from .stack import archives, generations, pairs, systems
from .stack.archives import Names

PIN = "/etc/apt/preferences.d/60-railwright-nvidia-driver"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"
MODPROBE = "/etc/modprobe.d/60-railwright-nvidia.conf"
LOADED = "/etc/modules-load.d/60-railwright-nvidia.conf"
PERSISTENCED = "nvidia-persistenced.service"
PERSISTENCED_DROPIN = f"/etc/systemd/system/{PERSISTENCED}.d/60-railwright.conf"
PERSISTENCED_WANTED = "/etc/systemd/system/multi-user.target.d/60-railwright-persistenced.conf"
SET = "nvidia_driver"
_WHY_HELD = "// A driver changes as a whole, when nobody uses it: never by night and part by part.\n"
# DMA-BUF needs the open modules and a kernel of at least 5.12 (GPU Operator documentation, "GPUDirect RDMA", 2026).
_DMABUF_KERNEL = (5, 12)
# Its loading before the RDMA stack's own modules are in place fails, and is tried again when openibd has them.
_AFTER_OFED = "/etc/systemd/system/openibd.service.d/60-railwright-peermem.conf"


@dataclass(frozen=True)
class Chosen:
    """What is installed. versions: exact ones by package, None for what must not be there."""

    flavour: str
    because: str
    names: Names
    full: str
    versions: dict[str, Optional[str]]
    may_change: tuple[str, ...]
    rdma: str


def slice_of(facts: Facts, policy: Policy) -> tuple[Optional[Slice], list[Finding]]:
    """The slice, and what there is to know. None: no driver is named, or it cannot be; then findings say why."""
    driver = policy.driver
    if driver.version is None:
        return None, []
    chosen, findings = choose(facts, policy)
    if chosen is None:
        return None, findings
    entries = list(_entries(facts, policy, chosen))
    because = (
        f"driver {driver.version} with {chosen.flavour} modules: {chosen.because}; modules, user space and fabric "
        "manager are one set of one version from one archive, which changes in one transaction and is held"
    )
    return Slice("persistent", tuple(entries), because), findings


def choose(facts: Facts, policy: Policy) -> tuple[Optional[Chosen], list[Finding]]:
    """The driver's set for this node, or None with the findings that say what stands against it."""
    driver = policy.driver
    if driver.version is None:
        return None, []
    os_id, os_version = facts.host.os_id, facts.host.os_version
    system = systems.system_of(os_id, os_version)
    if system is None:
        return None, [
            driver_modules.refused(
                "system", "os-release", f"{_spoken_system(facts)} is none of {systems.names()}", ""
            )
        ]
    names = archives.names_of(driver.archive, system.id, driver.version)
    if names is None:
        return None, [
            driver_modules.refused(
                "archive", f"policy.driver.archive {driver.archive}",
                f"it has no driver {driver.version} for {system.name}", "choose another archive or branch",
            )
        ]  # fmt: skip
    flavour, because, against = driver_modules.flavour(facts, driver)
    against += [*driver_modules.branches(facts, driver.version), *driver_modules.options(driver, flavour)]
    modules = names.modules.get(f"{flavour}/{driver.build}")
    if modules is None:
        offers = ", ".join(names.modules) or "none"
        against.append(
            driver_modules.refused(
                "modules", f"policy.driver.build {driver.build}",
                f"{driver.archive} has no {flavour} modules of that kind for {system.name}: it has {offers}",
                "choose one of these",
            )
        )  # fmt: skip
    if driver.build == "prebuilt" and driver.modules_version is None:
        against.append(
            driver_modules.refused(
                "modules", "policy.driver.modules_version",
                "modules that the distribution has built are of its kernel's version, and the policy names none",
                f"state it, as `apt-cache policy {(modules or ('linux-modules-nvidia',))[0]}` shows it",
            )
        )  # fmt: skip
    against += list(driver_modules.kernels(facts, driver.version, driver.build))
    if any(finding.severity == "error" for finding in against) or modules is None:
        return None, against
    full, versions, may_change = _versions(facts, policy, names, flavour, modules, system.version)
    rdma, said = _rdma(facts, driver, flavour)
    findings = [*against, *said, *_without_gpu(facts), *driver_modules.compiler(facts, driver)]
    return Chosen(flavour, because, names, full, versions, may_change, rdma), findings


# ----- packages ------------------------------------------------------------------------------------------------------


def _versions(
    facts: Facts, policy: Policy, names: Names, flavour: str, modules: Sequence[str], release: str
) -> tuple[str, dict[str, Optional[str]], tuple[str, ...]]:
    driver = policy.driver
    wanted_version = driver.version or ""
    (branch, *_) = pairs.version(wanted_version)
    revision = driver.revision or names.revision.format(system=release)
    full = f"{wanted_version}-{revision}"
    if "rhel" in names.systems:
        full = archives.RPM_EPOCH + full
    wanted = [*([names.meta[flavour]] if flavour in names.meta else []), *names.user, *driver.packages]
    versions: dict[str, Optional[str]] = {archives.filled(name, branch): full for name in wanted}
    # Modules that the distribution has built are of the kernel's version.
    of_modules = driver.modules_version if driver.build == "prebuilt" else full
    versions.update({archives.filled(name, branch): of_modules for name in modules})
    if policy.manage.get("fabric_manager", True):
        versions.update(nvswitch.packages(facts, policy, names, branch, full))
    versions.update(dict.fromkeys(archives.unwanted(names.systems[0], tuple(versions))))
    beside = tuple(archives.filled(name, branch) for name in names.beside)
    return full, versions, tuple(name for name in beside if name not in versions)


def pin(full: str, more: Sequence[str] = ()) -> str:
    """The text of apt's preferences: of the driver's packages this one version, and no other from any archive."""
    patterns = " ".join((*DRIVER_PATTERNS, *more))
    apart = " ".join(APART)
    return (
        f"{HEADER}"
        "# The first stanza that fits decides. A version that is none of this set has no way onto the node.\n"
        f"Package: {apart}\nPin: release *\nPin-Priority: 500\n\n"
        f"Package: {patterns}\nPin: version {full}\nPin-Priority: 1001\n\n"
        f"Package: {patterns}\nPin: release *\nPin-Priority: -1\n"
    )


def _entries(facts: Facts, policy: Policy, chosen: Chosen) -> Iterator[Entry]:
    driver = policy.driver
    apt = "rhel" not in chosen.names.systems
    if chosen.names.archive == "debian":
        pass  # its parts are of different versions by themselves, from one archive
    elif apt:
        yield file(PIN, pin(chosen.full, driver.packages))
    elif chosen.names.module_stream is not None and driver.version is not None:
        stream = chosen.names.module_stream.format(branch=pairs.version(driver.version)[0])
        yield file(
            STREAM, f"[nvidia-driver]\nname=nvidia-driver\nstream={stream}\nprofiles=\nstate=enabled\n"
        )
    yield packages.packages_entry(
        SET, chosen.versions, facts, policy, reboot=True, may_change=chosen.may_change
    )
    if apt:
        yield packages.hold_file(SET, (*DRIVER_PATTERNS, *driver.packages), _WHY_HELD)
    yield file(MODPROBE, _modprobe(driver))
    yield {"kind": "initramfs", "name": SET, "inputs": [MODPROBE], "reboot": True}
    if chosen.rdma == "nvidia_peermem":
        yield file(LOADED, f"{HEADER}# GPUDirect RDMA without DMA-BUF.\nnvidia_peermem\n")
        yield file(_AFTER_OFED, f"{HEADER}[Service]\nExecStartPost=-/sbin/modprobe nvidia_peermem\n")
    if driver.persistence and chosen.names.archive != "debian":
        yield file(PERSISTENCED_DROPIN, _PERSISTENCE)
        yield file(PERSISTENCED_WANTED, wants(PERSISTENCED))


# The distributions' own unit files start it without persistence mode; the daemon gives up root by itself where a user
# of its own is told, which differs from one archive to the next.
_PERSISTENCE = f"""{HEADER}[Unit]
ConditionPathExists=/proc/driver/nvidia/version
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
ExecStart=
ExecStart=/usr/bin/nvidia-persistenced --persistence-mode --verbose
Restart=on-failure
RestartSec=5
"""


def wants(unit: str) -> str:
    """A drop-in of multi-user.target: it can be written before the package that brings the unit is there, and starts
    nothing on a node that runs."""
    return f"{HEADER}[Unit]\nWants={unit}\n"


def _modprobe(driver: DriverPolicy) -> str:
    lines = [HEADER.rstrip("\n"), "# None of these may have the GPU, also not from the initramfs."]
    for name in RIVALS:
        lines += [f"blacklist {name}", f"install {name} /bin/false"]
    if driver.options:
        words = " ".join(f"{name}={value}" for name, value in sorted(driver.options.items()))
        lines.append(f"options nvidia {words}")
    return "\n".join(lines) + "\n"


# ----- GPUDirect RDMA ------------------------------------------------------------------------------------------------


def _rdma(facts: Facts, driver: DriverPolicy, flavour: str) -> tuple[str, list[Finding]]:
    kernel = facts.host.kernel
    capable = flavour == generations.OPEN and (kernel is None or pairs.version(kernel) >= _DMABUF_KERNEL)
    if driver.rdma == "dma-buf" and not capable:
        why = f"DMA-BUF needs open modules and a kernel of 5.12 or later; here: {flavour} modules, kernel {kernel}"
        finding = Finding(
            "nvidia_driver.rdma", "warning", "policy.driver.rdma", f"{why}: nvidia_peermem is loaded instead",
            "leave policy.driver.rdma out",
        )  # fmt: skip
        return "nvidia_peermem", [finding]
    return driver.rdma or ("dma-buf" if capable else "nvidia_peermem"), []


def _without_gpu(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        yield Finding(
            "nvidia_driver.no_gpu", "info", "gpus",
            "no GPU is here, as where an image is made: the driver is installed, and that it drives a GPU is not shown",
            "verify on the first node that boots the image",
        )  # fmt: skip


def _spoken_system(facts: Facts) -> str:
    return " ".join(filter(None, (facts.host.os_id, facts.host.os_version))) or "an unknown system"
