"""PCI configuration space: what the capability lists say of ACS, link, request size and ordering.

Register layouts: PCI Express Base Specification 6.0, 7.5.1 (header), 7.5.3 (PCI Express capability), 7.6.3 (extended
capability header), 7.7.11 (Access Control Services).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from ..config_space import (
    CONVENTIONAL_BYTES,
    EXPRESS,
    EXTENDED_ACS,
    EXTENDED_BYTES,
    capabilities,
    extended,
    word,
)
from ..model import Acs, Link

# Without CAP_SYS_ADMIN the kernel shows the first 64 bytes, of a CardBus bridge 128 (drivers/pci/pci-sysfs.c,
# pci_read_config).
CONFIG_BYTES = frozenset({64, 128, CONVENTIONAL_BYTES, EXTENDED_BYTES})

_VPD = 0x03

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

    vpd: whether the function has vital product data. mrrs, mps: bytes. extended_tags, ten_bit_tags: whether it may have
    256 or 1024 requests under way; ten_bit_capable: whether it could have the latter.
    """

    port: Optional[str] = None
    link: Link = field(default_factory=Link)
    mrrs: Optional[int] = None
    mps: Optional[int] = None
    relaxed_ordering: Optional[bool] = None
    acs: Optional[Acs] = None
    vpd: Optional[bool] = None
    extended_tags: Optional[bool] = None
    ten_bit_tags: Optional[bool] = None
    ten_bit_capable: Optional[bool] = None


def read_config(data: Optional[bytes]) -> Config:
    """Config of one function from the bytes of its `config` file: None, 64, 256 or 4096 of them."""
    if data is None or len(data) < CONVENTIONAL_BYTES:
        return Config()
    listed = capabilities(data)
    vpd = None if listed is None else _VPD in listed
    express = None if listed is None else listed.get(EXPRESS)
    if express is None:
        # A conventional function has no extended capabilities at all, so it has no ACS.
        return Config(vpd=vpd, acs=None if listed is None else Acs((), ()))
    kind = (word(data, express + 0x02) >> 4) & 0xF
    # Device Capabilities 2 and Device Control 2 came with version 2 of the capability.
    second = word(data, express + 0x02) & 0xF >= 2 and express + 0x2C <= CONVENTIONAL_BYTES
    control = word(data, express + 0x08)
    return Config(
        port=_PORTS.get(kind),
        link=_link(data, express),
        mrrs=_bytes(control >> 12),
        mps=_bytes(control >> 5),
        relaxed_ordering=bool(control & 1 << 4),
        acs=_acs(data),
        vpd=vpd,
        extended_tags=bool(control & 1 << 8),
        ten_bit_tags=bool(word(data, express + 0x28) & 1 << 12) if second else None,
        ten_bit_capable=bool(_double(data, express + 0x24) & 1 << 17) if second else None,
    )


def _acs(data: bytes) -> Optional[Acs]:
    offset = extended(data, EXTENDED_ACS)
    if offset is None:
        return None
    if offset == 0:
        return Acs((), ())
    return Acs(_bits(word(data, offset + 4)), _bits(word(data, offset + 6)))


def _bits(value: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(_ACS_BITS) if value & 1 << bit)


def _link(data: bytes, express: int) -> Link:
    capable = _double(data, express + 0x0C)
    status = word(data, express + 0x12)
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


def _double(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")
