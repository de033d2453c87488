"""Where a capability lies in a PCI function's configuration space: by its list, never at a fixed place.

Layouts: PCI Express Base Specification 6.0, 7.5.1 (header), 7.6.3 (extended capability header).
"""

from __future__ import annotations

from typing import Optional

CONVENTIONAL_BYTES = 256
EXTENDED_BYTES = 4096
EXPRESS = 0x10
EXTENDED_ACS = 0x000D

_STATUS = 0x06
_STATUS_CAPABILITIES = 1 << 4
_POINTER = 0x34
_FIRST_CAPABILITY = 0x40
# The Express capability is the longest that is read here; its first version ends after Link Status.
_EXPRESS_BYTES = 0x14


def capabilities(data: bytes) -> Optional[dict[int, int]]:
    """Capability ID to the offset of its first instance; None where the list is damaged or was not readable."""
    if len(data) < CONVENTIONAL_BYTES:
        return None
    found: dict[int, int] = {}
    if not word(data, _STATUS) & _STATUS_CAPABILITIES:
        return found
    offset = data[_POINTER] & ~3
    seen: set[int] = set()
    while offset:
        end = offset + (_EXPRESS_BYTES if data[offset] == EXPRESS else 2)
        if offset < _FIRST_CAPABILITY or offset in seen or end > CONVENTIONAL_BYTES:
            return None
        seen.add(offset)
        # A function that fell off the bus answers each read with ones.
        if data[offset] == 0xFF:
            return None
        found.setdefault(data[offset], offset)
        offset = data[offset + 1] & ~3
    return found


def extended(data: bytes, wanted: int) -> Optional[int]:
    """The offset of an extended capability, 0 where the function has none, None where that cannot be told."""
    if len(data) < EXTENDED_BYTES:
        return None
    offset = CONVENTIONAL_BYTES
    seen: set[int] = set()
    while offset:
        if offset < CONVENTIONAL_BYTES or offset in seen or offset + 8 > EXTENDED_BYTES:
            return None
        seen.add(offset)
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header == 0xFFFFFFFF:
            return None
        if header & 0xFFFF == wanted:
            return offset
        offset = header >> 20 & ~3
    return 0


def word(data: bytes, offset: int) -> int:
    """The 16 bits there."""
    return int.from_bytes(data[offset : offset + 2], "little")
