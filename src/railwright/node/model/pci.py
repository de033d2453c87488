"""PCI addresses in one form: lower case, at least four digits of domain ("0000:18:00.0", "10000:01:00.0"); and what a
function is by its vendor and class."""

from __future__ import annotations

import re
from typing import Optional

from .codec import InputError

MELLANOX = "0x15b3"
# A DMA controller (PCI Code and ID Assignment 1.14, 1.9).
_DMA = "0x0801"

# Domains may have 32 bits (VMD, Hyper-V); nvidia-smi prints eight upper-case digits; some tools leave the domain out.
_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-fA-F]{1,8}):)?(?P<bus>[0-9a-fA-F]{1,2}):(?P<slot>[0-9a-fA-F]{1,2})\.(?P<function>[0-7])"
)


def normalise_address(text: str, where: str) -> str:
    """The address as sysfs prints it. Raises InputError at `where` when the text is no PCI address."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise InputError(where, f"{text!r} is no PCI address", "expected a form like 0000:18:00.0")
    domain = int(match["domain"] or "0", 16)
    bus, slot = int(match["bus"], 16), int(match["slot"], 16)
    if slot > 0x1F:
        raise InputError(where, f"{text!r} is no PCI address: device number above 1f")
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{match['function']}"


def sort_key(address: str) -> tuple[int, int, int, int]:
    """PCI order as numbers; never sort device names as text."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(slot, 16), int(function)


def is_data_direct(vendor: Optional[str], class_code: Optional[str]) -> bool:
    """Whether it is a ConnectX-8 function for direct data (NCCL 2.30.7 src/transport/net_ib/init.cc:375)."""
    return vendor == MELLANOX and (class_code or "").startswith(_DMA)
