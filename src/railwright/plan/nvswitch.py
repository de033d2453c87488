"""NVSwitches: whether the node has some, of which NVLink, and which packages they need."""

from __future__ import annotations

from typing import Optional

from ..node.model import Facts, Policy
from ..node.model.image_policy import NVSWITCH
from .stack import archives, generations
from .stack.archives import Names

# NVSwitches up to the third generation are PCI functions of class "bridge, other" of NVIDIA's.
_BRIDGE, _NVIDIA = "0x0680", "0x10de"


def pci_switches(facts: Facts) -> tuple[str, ...]:
    """PCI addresses of the NVSwitches that are PCI functions (A100, H100, H200 boards)."""
    return tuple(
        device.address
        for device in facts.pci
        if device.vendor == _NVIDIA and (device.class_code or "").startswith(_BRIDGE)
    )


def management_ports(facts: Facts) -> tuple[str, ...]:
    """NICs that manage NVSwitches of NVLink 5 (VPD says SW_MNG): nobody but the fabric's own managers touches them."""
    return tuple(nic.name for nic in facts.nics if nic.management)


def has_switches(facts: Facts) -> bool:
    """Whether GPUs of this node are behind NVSwitches, by what PCI, VPD and driver say."""
    registered = any(gpu.fabric is not None and gpu.fabric.state != "" for gpu in facts.gpus)
    return bool(pci_switches(facts) or management_ports(facts) or registered)


def is_nvlink5(facts: Facts) -> bool:
    """Whether its switches are those of NVLink 5, which the fabric manager reaches over InfiniBand functions."""
    return bool(management_ports(facts)) or (has_switches(facts) and not pci_switches(facts))


def may_be_here(policy: Policy) -> bool:
    """Whether the policy is that of an image, and of one whose chassis may have NVSwitches."""
    return policy.image is not None and NVSWITCH in policy.image.may_have


def may_be_nvlink5(policy: Policy) -> bool:
    """Whether they may be those of NVLink 5 too: the image's policy names nvlsm, which they are nothing without."""
    return may_be_here(policy) and policy.fabric_manager.nvlsm is not None


def board_gpus(facts: Facts) -> tuple[str, ...]:
    """GPUs of chips that are sold on boards with NVSwitches only (GB100, GB110; their blocks hold nothing else)."""
    ids = {device.address: device for device in facts.pci}
    found = []
    for gpu in facts.gpus:
        device = ids.get(gpu.address or "")
        number = 0 if device is None or device.device is None else int(device.device, 16)
        if (
            device is not None
            and device.vendor == _NVIDIA
            and any(a <= number <= b for a, b in generations.ON_BOARDS)
        ):
            found.append(gpu.name)
    return tuple(found)


def over_nodes(facts: Facts) -> bool:
    """Whether the fabric reaches over nodes: the driver tells of a cluster."""
    return any(gpu.fabric is not None and gpu.fabric.cluster not in (None, "") for gpu in facts.gpus)


def packages(facts: Facts, policy: Policy, names: Names, branch: int, full: str) -> dict[str, Optional[str]]:
    """What the fabric needs, of the driver's version to the last digit; None for what this node must not have."""
    named = {
        "fabric_manager": names.fabric_manager,
        "nscq": names.nscq,
        "imex": names.imex,
    }
    filled = {part: archives.filled(name, branch) for part, name in named.items() if name is not None}
    switches = has_switches(facts) or may_be_here(policy)
    found: dict[str, Optional[str]] = {}
    for part, name in filled.items():
        wanted = over_nodes(facts) if part == "imex" else switches
        found[name] = full if wanted else None
    five = is_nvlink5(facts) or may_be_nvlink5(policy)
    for name in names.nvlink5:
        found[archives.filled(name, branch)] = full if five else None
    if five and policy.fabric_manager.nvlsm is not None:
        found["nvlsm"] = policy.fabric_manager.nvlsm
    return found
