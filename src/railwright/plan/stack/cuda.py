"""CUDA: which toolkit knows which GPU, which driver it wants, and how its packages are called.

Sources: the release notes' tables of drivers, "CUDA Toolkit and Corresponding Driver Versions" (11.8 to 13.3 Update 1,
read 2026-11) and "Minimum Required Driver Version for CUDA Minor Version Compatibility" (`pairs.CUDA`); the lists of
`nvcc --list-gpu-code` of 13.0.88 and 13.5.37 (run 2026-11) and, for toolkits before 13, nvcc's manual, "GPU Feature
List", of 11.8, 12.0, 12.8 and 12.9; NVIDIA's table of compute capabilities (2026-11) with pci.ids 2023.04.10 for chips.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from . import pairs
from .pairs import Version, version

_DEVICE = re.compile(r"0x[0-9a-fA-F]{4}", re.ASCII)
# Compute capability by blocks of PCI device ids: a block is one chip's or one family's.
_BLOCKS: tuple[tuple[int, int, str], ...] = (
    (0x1340, 0x13BF, "5.0"),
    (0x13C0, 0x143F, "5.2"),
    (0x15F0, 0x15FF, "6.0"),
    (0x1617, 0x1667, "5.2"),
    (0x1725, 0x172F, "6.0"),
    (0x174D, 0x179F, "5.0"),
    (0x17C0, 0x17FF, "5.2"),
    (0x1B00, 0x1D7F, "6.1"),
    (0x1D80, 0x1DFF, "7.0"),
    (0x1E00, 0x1FFF, "7.5"),
    (0x2080, 0x20FF, "8.0"),
    (0x2180, 0x21FF, "7.5"),
    (0x2200, 0x22FF, "8.6"),
    (0x2300, 0x237F, "9.0"),
    (0x2400, 0x25FF, "8.6"),
    (0x2680, 0x28FF, "8.9"),
    (0x2900, 0x297F, "10.0"),
    (0x2B80, 0x2BFF, "12.0"),
    (0x2C00, 0x2C7F, "12.0"),
    (0x2D00, 0x2DFF, "12.0"),
    (0x2E00, 0x2E7F, "12.1"),
    (0x2F00, 0x2F7F, "12.0"),
    (0x3180, 0x31FF, "10.3"),
)


@dataclass(frozen=True)
class Known:
    """since, until: toolkits that have an architecture, from the first on and before the second (None: all since)."""

    since: str
    until: Optional[str] = None


# By compute capability, in order. 13.0 dropped what is older than Turing (its release notes, "Deprecated or dropped").
ARCHITECTURES: dict[str, Known] = {
    "5.0": Known("6.5", "13.0"),
    "5.2": Known("7.0", "13.0"),
    "6.0": Known("8.0", "13.0"),
    "6.1": Known("8.0", "13.0"),
    "7.0": Known("9.0", "13.0"),
    "7.5": Known("10.0"),
    "8.0": Known("11.0"),
    "8.6": Known("11.1"),
    "8.9": Known("11.8"),
    "9.0": Known("11.8"),
    "10.0": Known("12.8"),
    "10.3": Known("12.9"),
    "12.0": Known("12.8"),
    "12.1": Known("12.9"),
}
# The last toolkit whose list of architectures was looked at. A later one may have dropped some.
LAST_READ = "13.5"

# The driver that comes with a toolkit, by release: what it was tested with, and what knows all that it brings anew.
DRIVERS: tuple[tuple[str, str], ...] = (
    ("11.8.0", "520.61.05"),
    ("12.0.0", "525.60.13"),
    ("12.0.1", "525.85.12"),
    ("12.1.0", "530.30.02"),
    ("12.2.0", "535.54.03"),
    ("12.2.1", "535.86.10"),
    ("12.2.2", "535.104.05"),
    ("12.3.0", "545.23.06"),
    ("12.3.1", "545.23.08"),
    ("12.4.0", "550.54.14"),
    ("12.4.1", "550.54.15"),
    ("12.5.0", "555.42.02"),
    ("12.5.1", "555.42.06"),
    ("12.6.0", "560.28.03"),
    ("12.6.1", "560.35.03"),
    ("12.6.3", "560.35.05"),
    ("12.8.0", "570.26"),
    ("12.8.1", "570.124.06"),
    ("12.9.0", "575.51.03"),
    ("12.9.1", "575.57.08"),
    ("13.0.0", "580.65.06"),
    ("13.0.1", "580.82.07"),
    ("13.0.2", "580.95.05"),
    ("13.1.0", "590.44.01"),
    ("13.1.1", "590.48.01"),
    ("13.2.0", "595.45.04"),
    ("13.2.1", "595.58.03"),
    ("13.3.0", "610.43.02"),
)

# Meta packages of NVIDIA's archives, deb and rpm alike ("Meta Packages", CUDA installation guide 13.0, 2025-08). Those
# named cuda, cuda-13-0 and cuda-runtime-13-0 bring a driver besides, so none of ours is one of them.
BRING_A_DRIVER = ("cuda", "cuda-[0-9]*", "cuda-runtime-*", "cuda-demo-suite-*")
# What a toolkit consists of: its parts want each other by "at least", so a night's upgrade would move them.
PART_PATTERNS = (
    "cuda-*", "libcublas*", "libcufft*", "libcufile*", "libcurand*", "libcusolver*", "libcusparse*", "libnpp*",
    "libnvfatbin*", "libnvjitlink*", "libnvjpeg*", "libnvptxcompiler*", "libnvvm*",
)  # fmt: skip


def architecture(vendor: Optional[str], device: Optional[str]) -> Optional[str]:
    """The compute capability of an NVIDIA GPU by its ids as sysfs prints them; None: not known."""
    if vendor != "0x10de" or device is None or not _DEVICE.fullmatch(device):
        return None
    number = int(device, 16)
    return next((name for first, last, name in _BLOCKS if first <= number <= last), None)


def package(part: str, toolkit: str) -> str:
    """The name of NVIDIA's meta package: toolkit and "13.0" is cuda-toolkit-13-0."""
    return f"cuda-{part}-{toolkit.replace('.', '-')}"


def knows(toolkit: str, capability: str) -> Optional[bool]:
    """Whether this toolkit makes code for a capability; None where the table does not reach."""
    row = ARCHITECTURES.get(capability)
    if row is None:
        return None
    mine = version(toolkit)[:2]
    if mine > version(LAST_READ):
        return None
    return version(row.since) <= mine and (row.until is None or mine < version(row.until))


def code_for(toolkit: str, capability: str) -> Optional[str]:
    """The capability whose code runs on such a GPU and that this toolkit makes: its own, or the nearest older one of
    the same major number ("Application compatibility", CUDA programming guide 13.0); None where there is none."""
    if knows(toolkit, capability) is not False:
        return capability
    major = version(capability)[:1]
    older = [
        each
        for each in ARCHITECTURES
        if version(each)[:1] == major and version(each) < version(capability) and knows(toolkit, each)
    ]
    return max(older, key=version, default=None)


def least_driver(toolkit: str) -> Optional[str]:
    """The driver from which on programs of this toolkit run at all, by minor version compatibility; None: not known."""
    major = version(toolkit)[:1]
    return next((least for cuda, least in pairs.CUDA if version(cuda)[:1] == major), None)


def own_driver(toolkit: str) -> Optional[str]:
    """The driver that came with this release ("13.0.2-1"); None where the table does not have it."""
    mine = version(toolkit)
    rows = [driver for release, driver in DRIVERS if _same_minor(release, mine) and version(release) <= mine]
    return rows[-1] if rows else None


def gencode(toolkit: str, capabilities: Iterable[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """NVCC_GENCODE for these GPUs, the capabilities that code is made for, in order, and those without any.

    No PTX: the fleet's GPUs are known, and each further target takes the time of one more build.
    """
    chosen: dict[str, None] = {}
    without = []
    for capability in sorted(set(capabilities), key=version):
        code = code_for(toolkit, capability)
        if code is None:
            without.append(capability)
        else:
            chosen[code] = None
    made = sorted(chosen, key=version)
    numbers = [each.replace(".", "") for each in made]
    words = " ".join(f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers)
    return words, tuple(made), tuple(without)


def _same_minor(release: str, mine: Version) -> bool:
    return version(release)[:2] == mine[:2] and len(mine) >= 2
