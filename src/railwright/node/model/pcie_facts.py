"""What a witness tells of PCIe beside tree, link and ACS: tags, memory windows, address translation, lockdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

# Drivers by which a host gives a function to a guest; those of VFIO all have it in their names.
_GUEST_DRIVERS = ("pci-stub", "pciback")


def is_guests(driver: Optional[str]) -> bool:
    """Whether a function with this driver is a guest's, or waits for one."""
    return driver is not None and (driver in _GUEST_DRIVERS or "vfio" in driver)


@dataclass(frozen=True)
class Bar:
    """A memory window that a function asks for. size: bytes; placed: whether the firmware found an address for it."""

    number: int
    size: int
    placed: bool


@dataclass(frozen=True)
class PcieFunction:
    """One GPU or NIC.

    extended_tags, ten_bit_tags: what its Device Control registers allow; ten_bit_capable: it could have 1024 requests
    under way. bars: () where the witness shows that it has none. iommu: how its addresses are translated, in the
    kernel's words: "identity" (not at all), "DMA", "DMA-FQ", "blocked".
    """

    address: str
    extended_tags: Optional[bool] = None
    ten_bit_tags: Optional[bool] = None
    ten_bit_capable: Optional[bool] = None
    bars: Optional[tuple[Bar, ...]] = None
    iommu: Optional[str] = None


@dataclass(frozen=True)
class PcieFacts:
    """functions: GPUs and NICs in PCI order. lockdown: "none", "integrity" or "confidentiality", the kernel's word."""

    functions: tuple[PcieFunction, ...] = ()
    lockdown: Optional[str] = None


@dataclass(frozen=True)
class PcieErrors:
    """What a function or port has counted since boot (Advanced Error Reporting)."""

    address: str
    correctable: Optional[int] = None
    nonfatal: Optional[int] = None
    fatal: Optional[int] = None
