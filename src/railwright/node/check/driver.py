"""The second look at the driver: loaded module, module on disk, user space and fabric manager are one version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Optional

from ..discover.tools import silence
from ..model import Facts, Finding, Plan, Unit
from ..model.driver_packages import RIVALS, is_driver, is_fabric_manager, upstream
from .answer import Answer, listed
from .gate import has_module, planned_version

_PERSISTENCED = "nvidia-persistenced.service"
_FABRIC_MANAGER = "nvidia-fabricmanager.service"
_MISMATCH = re.compile(r"Driver/library version mismatch(?:.*?NVML library version: (\d[\d.]*))?", re.DOTALL)
_RELOAD = (
    "drain the node, then reboot it (playbooks/upgrade_driver.yml does both); until then running jobs go on and new "
    "ones fail"
)


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """Nothing for a node without a driver, and for a witness that tells of no packages."""
    installed = _installed(facts)
    if not installed and planned_version(plan) is None:
        return
    yield from _versions(facts, installed)
    yield from _module(facts, plan)
    yield from _rivals(facts)
    yield from _persistence(facts, plan)
    yield from _fabric(facts)


def _installed(facts: Facts) -> dict[str, str]:
    """The driver's packages that are there, with the driver's version in theirs."""
    if facts.software is None:
        return {}
    return {
        package.name: version
        for package in facts.software.packages
        if package.status == "installed" and is_driver(package.name)
        for version in [upstream(package.version)]
        if version is not None
    }


def _versions(facts: Facts, installed: Mapping[str, str]) -> Iterator[Answer]:
    check = "nvidia_driver.versions"
    loaded = facts.host.driver
    claims = {f"package {name}": version for name, version in installed.items()}
    if loaded is not None:
        claims["loaded module"] = loaded
    known = () if facts.software is None else facts.software.kernels
    disk = next((row.driver for row in known if row.release == facts.host.kernel), None)
    if disk is not None:
        claims["module on disk (modinfo)"] = disk
    library = _library(facts)
    if library is not None:
        claims["NVML"] = library
    by_version: dict[str, list[str]] = {}
    for who, version in claims.items():
        by_version.setdefault(version, []).append(who)
    if len(by_version) > 1:
        said = listed(
            [f"{version}: {', '.join(sorted(who)[:4])}" for version, who in sorted(by_version.items())]
        )
        why = f"parts of different versions: {said}{_mover(facts)}"
        yield Answer(check, Finding(check, "error", "driver", why, _RELOAD))
    elif loaded is None:
        yield Answer(check, seen=False, why="no module of the driver is loaded, so only the packages agree")
    else:
        yield Answer(check, why=f"loaded module and {len(installed)} packages are all {loaded}")
    different = {version for name, version in installed.items() if is_fabric_manager(name)} - {loaded}
    if loaded is not None and different:
        why = f"the fabric manager is {', '.join(sorted(different))}, the loaded driver {loaded}; it ends at once"
        code = "fabric_manager.version"
        yield Answer(code, Finding(code, "error", _FABRIC_MANAGER, why, _RELOAD))


def _mover(facts: Facts) -> str:
    moved = None if facts.software is None else facts.software.moved
    if moved is None:
        return ""
    when, who = moved.at or "at a time that is not told", moved.by or "no command that is told"
    return f"; last moved {when} by {who}: {moved.what}"


def _library(facts: Facts) -> Optional[str]:
    """What NVML says that it is, where nvidia-smi fails for that."""
    for tool in facts.tools:
        if tool.name.startswith("nvidia-smi") and silence(tool) is not None:
            match = _MISMATCH.search(tool.output)
            if match is not None and match[1]:
                return match[1].rstrip(".")
    return None


def _module(facts: Facts, plan: Plan) -> Iterator[Answer]:
    check, version, kernel = "nvidia_driver.module", planned_version(plan), facts.host.kernel
    if version is None or kernel is None or facts.software is None:
        return
    if not any(row.release == kernel for row in facts.software.kernels):
        yield Answer(check, seen=False, why=f"the running kernel {kernel} is not installed here")
    elif has_module(facts, kernel, version):
        yield Answer(check, why=f"kernel {kernel} has the module of {version}")
    else:
        why = f"kernel {kernel} has no module of the planned driver {version} on its disk"
        yield Answer(
            check, Finding(check, "error", kernel, why, "run playbooks/install.yml; see /var/lib/dkms")
        )


def _rivals(facts: Facts) -> Iterator[Answer]:
    check = "nvidia_driver.rival"
    if facts.host.modules is None:
        yield Answer(check, seen=False, why="which modules are loaded is not told")
        return
    found = [module.name for module in facts.host.modules if module.name in RIVALS]
    holders = [
        device.address
        for device in facts.pci
        if device.driver in ("nouveau", "nova", "nova-core", "nova_core")
    ]
    if found or holders:
        why = f"{', '.join(found) or 'another driver'} is loaded" + (
            f" and holds {', '.join(holders)}" if holders else ""
        )
        remedy = "run playbooks/install.yml, which keeps it out of the initramfs too, then reboot"
        yield Answer(check, Finding(check, "error", ", ".join(holders) or found[0], why, remedy))
    else:
        yield Answer(check, why="neither nouveau nor nova is loaded")


def _unit(facts: Facts, name: str) -> Optional[Unit]:
    return next((unit for unit in facts.units if unit.name == name), None)


def _persistence(facts: Facts, plan: Plan) -> Iterator[Answer]:
    check = "nvidia_driver.persistence"
    unit = _unit(facts, _PERSISTENCED)
    if unit is None or planned_version(plan) is None or facts.host.driver is None or not facts.gpus:
        return
    if unit.active == "active":
        yield Answer(check, why="nvidia-persistenced is active")
    else:
        why = f"is {unit.active or 'unknown'}: every first client of 8 GPUs waits half a minute, containers time out"
        yield Answer(check, Finding(check, "warning", _PERSISTENCED, why, f"systemctl start {_PERSISTENCED}"))


def fabric_states(facts: Facts) -> dict[str, str]:
    """The state of the NVLink fabric as the driver tells it, by GPU; {} where there is none."""
    return {gpu.name: gpu.fabric.state for gpu in facts.gpus if gpu.fabric is not None and gpu.fabric.state}


def fabric_waiting(facts: Facts) -> list[str]:
    """GPUs whose fabric is not complete, each with its state."""
    return [f"{name} {state}" for name, state in fabric_states(facts).items() if state != "Completed"]


def _fabric(facts: Facts) -> Iterator[Answer]:
    check = "fabric_manager.state"
    states, waiting = fabric_states(facts), fabric_waiting(facts)
    if not states:
        return
    if waiting:
        remedy = f"journalctl -u {_FABRIC_MANAGER} -u nvlsm; CUDA answers 802 until the state is Completed"
        yield Answer(
            check, Finding(check, "error", "NVLink fabric", f"not complete: {listed(waiting)}", remedy)
        )
    else:
        yield Answer(check, why=f"the fabric of {len(states)} GPUs is complete")
