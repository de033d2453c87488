"""IOMMU groups: which functions the kernel cannot shield from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .functions import Function
from .model import Address

# What the kernel asks of a port before it calls the functions below it isolated: REQ_ACS_FLAGS of
# drivers/iommu/iommu.c.
_ISOLATION = frozenset(("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"))


def iommu_groups(found: Mapping[Address, Function]) -> dict[Address, int]:
    """The group of each function: pci_device_group of drivers/iommu/iommu.c, functions taken in PCI order."""
    groups: dict[Address, int] = {}
    for address in found:
        groups[address] = _group(address, found, groups)
    return groups


def _group(address: Address, found: Mapping[Address, Function], groups: Mapping[Address, int]) -> int:
    top = address
    for above in _above(address, found):
        if _isolated_path(above, found):
            break
        top = above
        if top in groups:
            return groups[top]
    device = found[top].device
    if found[top].multifunction and not _isolates(found[top]):
        for other, group in groups.items():
            if (other.domain, other.bus, other.device) == (
                top.domain,
                top.bus,
                top.device,
            ) and not _isolates(found[other]):
                return group
    if device.address != address and device.address in groups:
        return groups[device.address]
    return max(groups.values(), default=-1) + 1


def _above(address: Address, found: Mapping[Address, Function]) -> Iterator[Address]:
    parent = found[address].device.under
    while parent is not None:
        yield parent
        parent = found[parent].device.under


def _isolated_path(address: Address, found: Mapping[Address, Function]) -> bool:
    return all(_isolates(found[at]) for at in (address, *_above(address, found)))


def _isolates(function: Function) -> bool:
    """pci_acs_enabled: ports need their bits, a lone endpoint or upstream port has no peer to shield from."""
    part = function.device.part
    if part.port in ("to-pci", "conventional"):
        return False
    if part.port in ("root-port", "downstream") or function.multifunction:
        return part.acs is not None and (_ISOLATION & set(part.acs)) <= set(function.device.acs)
    return True
