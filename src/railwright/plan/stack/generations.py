"""GPU generations by PCI device id, and which kernel modules drive them.

A chip's ids lie in blocks that no two generations share, so the block tells the generation, never the product. Sources:
pci.ids 2023.04.10 up to Ada; the id table of NVIDIA's open kernel modules for Hopper and Blackwell (README.md of
open-gpu-kernel-modules 580, 2025-11). Which modules: NVIDIA's driver installation guide, "Kernel Modules" (r610,
2026-08): Maxwell, Pascal and Volta need the proprietary ones, later GPUs take the open ones; Blackwell has no other.
"""

from __future__ import annotations

from typing import Optional

OPEN, PROPRIETARY = "open", "proprietary"

_BLOCKS: tuple[tuple[int, int, str], ...] = (
    (0x1340, 0x143F, "Maxwell"),
    (0x15F0, 0x15FF, "Pascal"),
    (0x1617, 0x1667, "Maxwell"),
    (0x1725, 0x172F, "Pascal"),
    (0x174D, 0x17FF, "Maxwell"),
    (0x1B00, 0x1D7F, "Pascal"),
    (0x1D80, 0x1DFF, "Volta"),
    (0x1E00, 0x1FFF, "Turing"),
    (0x2080, 0x20FF, "Ampere"),
    (0x2180, 0x21FF, "Turing"),
    (0x2200, 0x22FF, "Ampere"),
    (0x2300, 0x237F, "Hopper"),
    (0x2400, 0x25FF, "Ampere"),
    (0x2680, 0x28FF, "Ada"),
    (0x2900, 0x29FF, "Blackwell"),
    (0x2B80, 0x2BFF, "Blackwell"),
    (0x2C00, 0x2C7F, "Blackwell"),
    (0x2D00, 0x2DFF, "Blackwell"),
    (0x2E00, 0x2E7F, "Blackwell"),
    (0x2F00, 0x2F7F, "Blackwell"),
    (0x3180, 0x31FF, "Blackwell Ultra"),
)
# What each generation's GPUs are driven by, the one that is taken unless the policy says otherwise first.
MODULES: dict[str, tuple[str, ...]] = {
    "Maxwell": (PROPRIETARY,),
    "Pascal": (PROPRIETARY,),
    "Volta": (PROPRIETARY,),
    "Turing": (OPEN, PROPRIETARY),
    "Ampere": (OPEN, PROPRIETARY),
    "Ada": (OPEN, PROPRIETARY),
    "Hopper": (OPEN, PROPRIETARY),
    "Blackwell": (OPEN,),
    "Blackwell Ultra": (OPEN,),
}
# The last branch that drives a generation: 580 is the last for Maxwell, Pascal and Volta (NVIDIA's deprecation note in
# the release notes of 580.65.06, 2025-08).
LAST_BRANCH: dict[str, int] = {"Maxwell": 580, "Pascal": 580, "Volta": 580}
# The first branch that drives a generation: H100 525, B200 570, B300 580 (release notes of the data center drivers).
FIRST_BRANCH: dict[str, int] = {"Hopper": 525, "Blackwell": 570, "Blackwell Ultra": 580}


def generation(vendor: Optional[str], device: Optional[str]) -> Optional[str]:
    """The generation of an NVIDIA GPU by its ids as sysfs prints them ("0x10de", "0x2330"); None: not known."""
    if vendor != "0x10de" or device is None:
        return None
    number = int(device, 16)
    return next((name for first, last, name in _BLOCKS if first <= number <= last), None)


# Blocks of chips that are sold on boards with NVSwitches only: GB100 (B200, GB200) and GB110 (B300, GB300).
ON_BOARDS: tuple[tuple[int, int], ...] = ((0x2900, 0x297F), (0x3180, 0x31FF))
