"""PCI configuration space: what the capability lists say of ACS, link, request size and ordering.

Register layouts: PCI Express Base Specification 6.0, 7.5.1 (header), 7.5.3 (PCI Express capability), 7.6.3 (extended
capability header), 7.7.11 (Access Control Services).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from ..model import Acs, Link

CONVENTIONAL_BYTES = 256
EXTENDED_BYTES = 4096
# Without CAP_SYS_ADMIN the kernel shows the first 64 bytes, of a CardBus bridge 128 (drivers/pci/pci-sysfs.c,
# pci_read_config).
CONFIG_BYTES = frozenset({64, 128, CONVENTIONAL_BYTES, EXTENDED_BYTES})

_STATUS = 0x06
_STATUS_CAPABILITIES = 1 << 4
_POINTER = 0x34
_FIRST_CAPABILITY = 0x40
_VPD = 0x03
_EXPRESS = 0x10
_EXPRESS_BYTES = 0x14
_EXTENDED_ACS = 0x000D

_PORTS = {0: "endpoint", 1: "endpoint", 4: "root", 5: "upstream", 6: "downstream", 9: "endpoint"}
_SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
_ACS_BITS = (
    "SrcValid",
    "TransBlk",
    "ReqRedir",
    "CmpltRedir",
    "UpstreamFwd",
    "EgressCtrl",
    "DirectTrans",
)


@dataclass(frozen=True)
class Config:
    """What config space says; None where it was not readable or the function has no such register.

    vpd: whether the function has vital product data. mrrs, mps: bytes.
    """

    port: Optional[str] = None
    link: Link = field(default_factory=Link)
    mrrs: Optional[int] = None
    mps: Optional[int] = None
    relaxed_ordering: Optional[bool] = None
    acs: Optional[Acs] = None
    vpd: Optional[bool] = None


def read_config(data: Optional[bytes]) -> Config:
    """Config of one function from the bytes of its `config` file: None, 64, 256 or 4096 of them."""
    if data is None or len(data) < CONVENTIONAL_BYTES:
        return Config()
    capabilities = _capabilities(data)
    vpd = None if capabilities is None else _VPD in capabilities
    express = None if capabilities is None else capabilities.get(_EXPRESS)
    if express is None:
        # A conventional function has no extended capabilities at all, so it has no ACS.
        return Config(vpd=vpd, acs=None if capabilities is None else Acs((), ()))
    kind = (_word(data, express + 0x02) >> 4) & 0xF
    control = _word(data, express + 0x08)
    return Config(
        port=_PORTS.get(kind),
        link=_link(data, express),
        mrrs=_bytes(control >> 12),
        mps=_bytes(control >> 5),
        relaxed_ordering=bool(control & 1 << 4),
        acs=_acs(data),
        vpd=vpd,
    )


def _capabilities(data: bytes) -> Optional[dict[int, int]]:
    """Capability ID to the offset of its first instance; None where the list is damaged."""
    found: dict[int, int] = {}
    if not _word(data, _STATUS) & _STATUS_CAPABILITIES:
        return found
    offset = data[_POINTER] & ~3
    seen: set[int] = set()
    while offset:
        # The Express capability is the longest that is read here.
        end = offset + (_EXPRESS_BYTES if data[offset] == _EXPRESS else 2)
        if offset < _FIRST_CAPABILITY or offset in seen or end > CONVENTIONAL_BYTES:
            return None
        seen.add(offset)
        # A function that fell off the bus answers each read with ones.
        if data[offset] == 0xFF:
            return None
        found.setdefault(data[offset], offset)
        offset = data[offset + 1] & ~3
    return found


def _acs(data: bytes) -> Optional[Acs]:
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
        if header & 0xFFFF == _EXTENDED_ACS:
            return Acs(_bits(_word(data, offset + 4)), _bits(_word(data, offset + 6)))
        offset = header >> 20 & ~3
    return Acs((), ())


def _bits(value: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(_ACS_BITS) if value & 1 << bit)


def _link(data: bytes, express: int) -> Link:
    capable = int.from_bytes(data[express + 0x0C : express + 0x10], "little")
    status = _word(data, express + 0x12)
    return Link(
        speed=_SPEEDS.get(status & 0xF),
        width=_width(status >> 4 & 0x3F),
        max_speed=_SPEEDS.get(capable & 0xF),
        max_width=_width(capable >> 4 & 0x3F),
    )


def _width(lanes: int) -> Optional[int]:
    return lanes if lanes in _WIDTHS else None


def _bytes(code: int) -> Optional[int]:
    # 110b and 111b are reserved.
    return 128 << (code & 7) if code & 7 <= 5 else None


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "little")
