"""Before a reboot: every kernel that may boot has the driver's modules, else the kernel that runs stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ..model import Facts, Plan
from ..model.driver_packages import is_driver, upstream
from ..model.software import Dkms

DRIVER_SLICE = "nvidia_driver"
_MODULE = "nvidia"
# Trees of DKMS that begin like the driver's and have versions of their own (GPUDirect Storage, nv_peer_mem).
_BESIDE = ("nvidia-fs", "nvidia-peermem", "nvidia_peermem")


def gate(facts: Facts, plan: Plan) -> tuple[str, ...]:
    """Sentences, each a reason to leave the node as it runs; () where nothing speaks against a reboot.

    A plan without a driver asks nothing. Nor does a node whose kernels cannot be read: then the reboot is refused by
    whoever asks about kernels themselves.
    """
    version = planned_version(plan)
    software = facts.software
    if version is None or software is None:
        return ()
    lacking = [kernel for kernel in _may_boot(facts) if not has_module(facts, kernel, version)]
    return tuple(_told(facts, kernel, version) for kernel in lacking)


def planned_version(plan: Plan) -> Optional[str]:
    """The driver that the plan installs ("580.173.02"), to the last digit; None where it installs none."""
    return _of_driver(driver_set(plan))


def driver_set(plan: Plan) -> Mapping[str, Any]:
    """Packages of the driver's set to their versions, as the plan has them; {} where it has none."""
    part = plan.slices.get(DRIVER_SLICE)
    entries = () if part is None else part.entries
    return next((entry["versions"] for entry in entries if entry.get("kind") == "packages"), {})


def _of_driver(versions: Mapping[str, Any]) -> Optional[str]:
    found = {
        upstream(version) for name, version in versions.items() if version is not None and is_driver(name)
    }
    return next(iter(sorted(filter(None, found))), None)


def _may_boot(facts: Facts) -> tuple[str, ...]:
    """Every kernel that is installed: a boot loader's menu, a fallback and a hand at a console choose among them."""
    software = facts.software
    if software is None:
        return ()
    # One that no boot loader starts, as in a container or where an image is made, has no initramfs and is not bootable.
    return tuple(kernel.release for kernel in software.kernels)


def has_module(facts: Facts, kernel: str, version: str) -> bool:
    """Whether the driver's module lies ready for this kernel: of DKMS in this version, or of the distribution.

    Where modinfo told what would be loaded, that decides: an older module may lie where it is found first.
    """
    software = facts.software
    if software is None:
        return False
    built = [row for row in software.dkms if _is_driver_of(row) and row.kernel == kernel]
    here = next((row for row in software.kernels if row.release == kernel), None)
    if here is not None and here.driver not in (None, version):
        return False
    if built:
        return any(row.version == version and row.state == "installed" for row in built)
    if here is not None and here.driver is not None:
        return True
    path = "" if here is None else here.modules.get(_MODULE, "")
    # Without DKMS the distribution built it: below kernel/ or extra/, of the version of its package. (Its own name, for
    # typec_nvidia.ko is a module of every kernel.)
    return path.rpartition("/")[2].startswith(f"{_MODULE}.ko") and not path.startswith("updates/dkms/")


def _is_driver_of(row: Dkms) -> bool:
    return row.module.startswith(_MODULE) and row.module not in _BESIDE


def _told(facts: Facts, kernel: str, version: str) -> str:
    words = [f"kernel {kernel} has no module of driver {version}"]
    platform = facts.platform
    for failed in () if platform is None else platform.failed_builds:
        if failed.kernel in (None, kernel):
            words.append(f"its build failed, {failed.log} says: {failed.error}")
    missing = _headers(facts, kernel)
    if missing:
        words.append(missing)
    good = tuple(_good(facts, version))
    running = facts.host.kernel
    if running in good:
        words.append(f"the running kernel {running} has it and stays: no reboot")
    elif good:
        words.append(f"what works: driver {version} with kernel {', '.join(good)}")
    else:
        words.append("no kernel of this node has it: no reboot, the node stays as it runs")
    words.append(
        f"build it (dkms autoinstall -k {kernel}), or remove that kernel, or hold a kernel that the driver builds on"
    )
    return "; ".join(words)


def _good(facts: Facts, version: str) -> Iterator[str]:
    for kernel in _may_boot(facts):
        if has_module(facts, kernel, version):
            yield kernel


def _headers(facts: Facts, kernel: str) -> str:
    software = facts.software
    rows = () if software is None else software.kernels
    if any(row.release == kernel and not row.headers for row in rows):
        return "its headers are not installed, without which nothing is built for it"
    return ""
