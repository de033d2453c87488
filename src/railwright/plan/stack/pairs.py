"""Which versions go together: driver and kernel, driver and CUDA, driver and firmware; who saw it, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

Version = tuple[int, ...]
_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)


def version(text: str) -> Version:
    """The numbers that a version begins with, so that 1.39 is later than 1.4: "580.173.02-1" is (580, 173, 2)."""
    match = _NUMBERS.match(text)
    return () if match is None else tuple(int(part) for part in match[0].split("."))


@dataclass(frozen=True)
class BadPair:
    """A driver that does not build on, or does not run with, a kernel.

    driver: its branch, or a whole version. before: drivers of the branch from this version on are good; None: none is
    known. since, until: kernels from this one on, and before that one (None: no end is known). works: a pair that does.
    """

    driver: str
    since: str
    before: Optional[str]
    until: Optional[str]
    why: str
    works: str
    known: str


BAD_PAIRS: tuple[BadPair, ...] = (
    BadPair(
        "550",
        "6.12.107",
        None,
        "6.13",
        "nv-pci.c: too few arguments to function pci_resize_resource (the stable series took a change of it)",
        "550.163.01 with a 6.12 kernel from before that change, 535.261.03 with 6.1 or 6.12.95, or 580 and later",
        "built on Debian 13, from main and from backports: fails with 6.12.117, and 6.12.107 declares it alike; "
        "535.261.03 built on Debian 12, 2026-11",
    ),
)

# The least driver of each CUDA toolkit (CUDA release notes, table "CUDA Toolkit and Minimum Required Driver Version",
# 13.0 and earlier read 2026-08). Within a major version minor version compatibility holds from its first row on.
CUDA: tuple[tuple[str, str], ...] = (
    ("11.0", "450.80.02"),
    ("12.0", "525.60.13"),
    ("13.0", "580.65.06"),
)
# With open modules the GSP firmware of the first 525 drivers timed out (Xid 119, open-gpu-kernel-modules#446).
LEAST_WITH_GSP = "525.105.17"


def bad_pair(driver: str, kernel: str) -> Optional[BadPair]:
    """The row that speaks against this driver on this kernel; None where none does, which proves nothing."""
    mine, theirs = version(driver), version(kernel)
    for row in BAD_PAIRS:
        named = version(row.driver)
        if mine[: len(named)] != named or theirs < version(row.since):
            continue
        if row.until is not None and theirs >= version(row.until):
            continue
        if row.before is None or mine < version(row.before):
            return row
    return None


def newest_cuda(driver: str) -> Optional[str]:
    """The major CUDA whose programs this driver runs ("13"); None where it is older than the table."""
    good = [cuda for cuda, least in CUDA if version(driver) >= version(least)]
    return good[-1].split(".")[0] if good else None


def good_kernels(driver: str, kernels: Sequence[str]) -> tuple[str, ...]:
    """Of these kernels those that no row speaks against."""
    return tuple(kernel for kernel in kernels if bad_pair(driver, kernel) is None)
