"""Which kernel modules a driver has for the GPUs and the kernels of a node, and what stands against them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from ..node.model import DriverPolicy, Facts, Finding
from .stack import generations, pairs

# Advice against Xid 119 that fits proprietary modules only (NVIDIA driver README 580, "GSP Firmware" and "Open Linux
# Kernel Modules").
_GSP = "NVreg_EnableGpuFirmware"


def refused(noun: str, where: str, why: str, remedy: str) -> Finding:
    """What stands against any driver on this node. noun: of its code."""
    return Finding(f"nvidia_driver.{noun}", "error", where, f"{why}; no driver is written", remedy)


# ----- which modules -------------------------------------------------------------------------------------------------


def gpu_generations(facts: Facts) -> dict[str, list[str]]:
    """Names of GPUs by generation; "" for those whose id is in no block that is known."""
    ids = {device.address: device for device in facts.pci}
    found: dict[str, list[str]] = {}
    for gpu in facts.gpus:
        device = ids.get(gpu.address or "")
        name = None if device is None else generations.generation(device.vendor, device.device)
        found.setdefault(name or "", []).append(gpu.name)
    return found


def flavour(facts: Facts, driver: DriverPolicy) -> tuple[str, str, list[Finding]]:
    """Open or proprietary, why, and what speaks against it."""
    found = gpu_generations(facts)
    known = {name: gpus for name, gpus in found.items() if name}
    possible = [generations.MODULES[name] for name in known]
    common = [
        word for word in (generations.OPEN, generations.PROPRIETARY) if all(word in row for row in possible)
    ]
    told = "; ".join(f"{name}: {', '.join(gpus)}" for name, gpus in known.items())
    against: list[Finding] = []
    if found.get("") and driver.flavour is None:
        against.append(
            Finding(
                "nvidia_driver.generation", "warning", ", ".join(found[""]),
                "the generation of this GPU is not known from its PCI id, so the open modules are taken, as for every "
                "GPU since 2018",
                "state policy.driver.flavour",
            )
        )  # fmt: skip
    if not common:
        against.append(
            refused(
                "modules", told, "no modules drive all of these GPUs: Blackwell has open ones only, Maxwell to Volta "
                "proprietary ones only", "put them into different nodes",
            )
        )  # fmt: skip
        return driver.flavour or generations.OPEN, "", against
    if driver.flavour is None:
        because = f"what drives {', '.join(known)}" if known else "no GPU says otherwise"
        return common[0], because, against
    if driver.flavour not in common:
        only = (
            f"{' and '.join(known)} {'is' if len(known) == 1 else 'are'} driven by {common[0]} modules only"
        )
        against.append(
            refused(
                "modules",
                f"policy.driver.flavour {driver.flavour}",
                f"{only} ({told})",
                f"take {common[0]} modules",
            )
        )
    return driver.flavour, "the policy asks for them", against


def options(driver: DriverPolicy, flavour: str) -> Iterator[Finding]:
    """Options that these modules cannot have."""
    if flavour == generations.OPEN and driver.options.get(_GSP) == "0":
        yield refused(
            "options", f"policy.driver.options.{_GSP}",
            "open modules do nothing without the firmware of the GPU's own processor (GSP), so they cannot be told to "
            "leave it out, whatever Xid 119 is blamed on",
            "leave the option out; or, where the GPUs have them, take proprietary modules",
        )  # fmt: skip


def branches(facts: Facts, driver: str) -> Iterator[Finding]:
    """GPUs that this driver is too new or too old for, and drivers that are known to be bad."""
    (branch, *_) = pairs.version(driver)
    for name, gpus in gpu_generations(facts).items():
        last, first = generations.LAST_BRANCH.get(name), generations.FIRST_BRANCH.get(name)
        if last is not None and branch > last:
            yield refused(
                "branch", f"driver {driver}", f"{name} ({', '.join(gpus)}) is driven up to branch {last}",
                f"take a {last} driver",
            )  # fmt: skip
        if first is not None and branch < first:
            yield refused(
                "branch", f"driver {driver}", f"{name} ({', '.join(gpus)}) needs branch {first} or later",
                f"take a driver of {first} or later",
            )  # fmt: skip
    if 525 <= branch < 535 and pairs.version(driver) < pairs.version(pairs.LEAST_WITH_GSP):
        yield Finding(
            "nvidia_driver.gsp", "warning", f"driver {driver}",
            "the GSP firmware of the first 525 drivers times out (Xid 119)",
            f"take {pairs.LEAST_WITH_GSP} or later",
        )  # fmt: skip


# ----- kernel --------------------------------------------------------------------------------------------------------


def bootable(facts: Facts) -> tuple[str, ...]:
    """Releases that may boot next: the one that the boot loader takes, else all that are installed; the running one
    where nothing else is known."""
    software = facts.software
    if software is not None and software.next_kernel is not None:
        return (software.next_kernel,)
    if software is not None and software.kernels:
        return tuple(kernel.release for kernel in software.kernels)
    return () if facts.host.kernel is None else (facts.host.kernel,)


def kernels(facts: Facts, driver: str, build: str) -> Iterator[Finding]:
    """Kernels that may boot and for which the driver is known not to build."""
    if build != "dkms":
        return
    installed = () if facts.software is None else tuple(kernel.release for kernel in facts.software.kernels)
    for kernel in bootable(facts):
        row = pairs.bad_pair(driver, kernel)
        if row is None:
            continue
        here = pairs.good_kernels(driver, installed)
        works = f"{row.works}" + (f"; on this node: kernel {', '.join(here)}" if here else "")
        yield refused(
            "kernel_pair",
            f"driver {driver} on kernel {kernel}",
            f"{row.why} ({row.known})",
            f"what works: {works}",
        )


def compiler_wanted(facts: Facts, kernel: str) -> Optional[str]:
    """The compiler that built this kernel ("gcc-12"), where its headers tell."""
    rows = () if facts.software is None else facts.software.kernels
    return next((row.compiler for row in rows if row.release == kernel), None)


def missing_compiler(facts: Facts, kernel: str) -> Optional[str]:
    """The compiler that a build for this kernel needs and the node lacks; None where it has it or nobody can tell."""
    wanted = compiler_wanted(facts, kernel)
    if wanted is None or facts.platform is None:
        return None
    name, _, major = wanted.partition("-")
    known = facts.platform.compilers
    has = wanted in known or (major.isdigit() and known.get(name) == int(major))
    return None if has else wanted


def compiler(facts: Facts, driver: DriverPolicy) -> Iterator[Finding]:
    """Kernels that may boot whose compiler the node lacks."""
    if driver.build != "dkms":
        return
    for kernel in bootable(facts):
        wanted = missing_compiler(facts, kernel)
        if wanted is not None:
            yield Finding(
                "nvidia_driver.compiler", "warning", f"kernel {kernel}",
                f"{wanted} built it and is not installed: an older compiler does not know its options "
                "(-ftrivial-auto-var-init, say), and the modules would not be built",
                f"install {wanted} before the driver",
            )  # fmt: skip
