"""PCI addresses in one form: lower case, at least four digits of domain ("0000:18:00.0", "10000:01:00.0")."""

from __future__ import annotations

import re

from .codec import InputError

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
