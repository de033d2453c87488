"""The configuration space of one PCI function, as `config` of sysfs serves it.

Offsets and bits: PCI Express Base Specification 6.0, chapter 7; the names are those of the kernel's
include/uapi/linux/pci_regs.h. A PCIe function has 4096 bytes, a conventional one 256.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from .model import ACS_BITS, SPEEDS, Device, Link

CAP_PM, CAP_VPD, CAP_MSI, CAP_SSVID, CAP_EXPRESS, CAP_MSIX = 0x01, 0x03, 0x05, 0x0D, 0x10, 0x11
ECAP_AER, ECAP_SERIAL, ECAP_ACS, ECAP_ARI, ECAP_ATS, ECAP_SRIOV, ECAP_SECONDARY = (
    0x0001, 0x0003, 0x000D, 0x000E, 0x000F, 0x0010, 0x0019,
)  # fmt: skip
_PORT_TYPES = {"endpoint": 0, "root-port": 4, "upstream": 5, "downstream": 6, "to-pci": 7, "integrated": 9}
_SPEED_CODES = {speed: index + 1 for index, speed in enumerate(SPEEDS)}


class ConfigSpace:
    """Bytes with little-endian fields and two lists of capabilities."""

    def __init__(self, express: bool) -> None:
        self.data = bytearray(4096 if express else 256)
        self._free, self._last = 0x40, 0x34
        self._ext_free, self._ext_last = 0x100, 0

    def put(self, offset: int, layout: str, value: int) -> None:
        """Writes a field: `B`, `H`, `I` or `Q`."""
        struct.pack_into("<" + layout, self.data, offset, value)

    def capability(self, number: int, length: int) -> int:
        """Appends a capability of the first list and returns its offset."""
        at = self._free
        self.put(self._last, "B", at)
        self.put(at, "B", number)
        self._free, self._last = (at + length + 3) & ~3, at + 1
        return at

    def extended(self, number: int, version: int, length: int) -> int:
        """Appends an extended capability and returns its offset."""
        at = self._ext_free
        self.put(at, "I", number | version << 16)
        if self._ext_last:
            header: int = struct.unpack_from("<I", self.data, self._ext_last)[0]
            self.put(self._ext_last, "I", header & 0xFFFFF | at << 20)
        self._ext_free, self._ext_last = (at + length + 3) & ~3, at
        return at


def config_space(
    device: Device,
    *,
    now: Link,
    multifunction: bool,
    buses: tuple[int, int, int] | None,
    bars: Mapping[int, int],
    windows: Mapping[str, tuple[int, int]],
    interrupts: int,
    occupied: bool,
) -> bytes:
    """The bytes of `device`.

    now: the negotiated link; buses: primary, secondary, subordinate of a bridge; bars and windows: the assigned
    addresses; interrupts: MSI or MSI-X vectors in use; occupied: something is plugged in below this port.
    """
    part = device.part
    space = ConfigSpace(part.port != "conventional")
    _header(space, device, multifunction, bool(interrupts))
    if buses is not None:
        _bridge(space, buses, windows)
    for index, base in bars.items():
        bar = part.bars[index]
        flags = (8 if bar.prefetchable else 0) | (4 if bar.wide else 0)
        space.put(0x10 + 4 * index, "I", base & 0xFFFFFFF0 | flags)
        if bar.wide:
            space.put(0x14 + 4 * index, "I", base >> 32)
    space.put(space.capability(CAP_PM, 8) + 2, "H", 0x0003)
    if part.msi:
        at = space.capability(CAP_MSI, 24)
        log2 = part.msi.bit_length() - 1
        space.put(at + 2, "H", 0x0180 | log2 << 1 | (1 if interrupts else 0))
        space.put(at + 4, "Q", 0xFEE00000 if interrupts else 0)
    if part.port != "conventional":
        _express(space, device, now, occupied)
    if buses is not None and part.subvendor:
        at = space.capability(CAP_SSVID, 8)
        space.put(at + 4, "H", part.subvendor)
        space.put(at + 6, "H", part.subdevice)
    if part.vpd_name is not None:
        space.capability(CAP_VPD, 8)
    if part.msix:
        at = space.capability(CAP_MSIX, 12)
        space.put(at + 2, "H", part.msix - 1 | (0x8000 if interrupts else 0))
        space.put(at + 4, "I", 0x2000)
        space.put(at + 8, "I", 0x3000)
    if part.port not in ("conventional", "to-pci"):
        _extended(space, device, now)
    return bytes(space.data)


def _header(space: ConfigSpace, device: Device, multifunction: bool, interrupts: bool) -> None:
    part = device.part
    bridge = device.part.port in ("root-port", "upstream", "downstream", "to-pci")
    space.put(0x00, "H", part.vendor)
    space.put(0x02, "H", part.device)
    # Memory and bus master on; INTx off once message interrupts are on.
    space.put(0x04, "H", 0x0146 if not interrupts else 0x0546)
    space.put(0x06, "H", 0x0010)
    space.put(0x08, "I", part.class_code << 8 | part.revision)
    space.put(0x0C, "B", 0x10)
    space.put(0x0E, "B", (1 if bridge else 0) | (0x80 if multifunction else 0))
    if not bridge:
        space.put(0x2C, "H", part.subvendor)
        space.put(0x2E, "H", part.subdevice)
    space.put(0x3C, "B", 0xFF)
    space.put(0x3D, "B", 1 if part.msi or part.msix else 0)


def _bridge(space: ConfigSpace, buses: tuple[int, int, int], windows: Mapping[str, tuple[int, int]]) -> None:
    for offset, bus in zip((0x18, 0x19, 0x1A), buses, strict=True):
        space.put(offset, "B", bus)
    space.put(0x1C, "H", 0x00F0)  # base above limit: no I/O behind it
    start, end = windows.get("narrow", (0xFFF00000, 0x000FFFFF))
    space.put(0x20, "H", start >> 16 & 0xFFF0)
    space.put(0x22, "H", end >> 16 & 0xFFF0)
    start, end = windows.get("prefetchable", (0xFFF00000, 0x000FFFFF))
    space.put(0x24, "H", start >> 16 & 0xFFF0 | 1)
    space.put(0x26, "H", end >> 16 & 0xFFF0 | 1)
    space.put(0x28, "I", start >> 32)
    space.put(0x2C, "I", end >> 32)
    space.put(0x3E, "H", 0x0003)


def _express(space: ConfigSpace, device: Device, now: Link, occupied: bool) -> None:
    part = device.part
    port = part.port
    downwards = port in ("root-port", "downstream")
    slot = downwards and device.slot is not None
    at = space.capability(CAP_EXPRESS, 60)
    space.put(at + 0x02, "H", 2 | _PORT_TYPES[port] << 4 | (0x100 if slot else 0))
    endpoint = port in ("endpoint", "integrated")
    space.put(
        at + 0x04,
        "I",
        _payload(part.payload_supported)
        | (0x20 if part.extended_tags else 0)
        | 0x8000
        | (0x10000000 if endpoint else 0),
    )
    space.put(
        at + 0x08,
        "H",
        0x000F
        | (0x10 if device.relaxed_ordering else 0)
        | _payload(part.payload) << 5
        | (0x100 if part.extended_tags else 0)
        | _payload(device.read_request) << 12,
    )
    if port != "integrated":
        _link(space, at, device, now, downwards and occupied, downwards)
    if slot and device.slot is not None:
        space.put(at + 0x14, "I", 0x40 | device.slot << 19)
        space.put(at + 0x1A, "H", 0x40 if occupied else 0)
    if port == "root-port":
        space.put(at + 0x1C, "H", 0x0007)
    space.put(
        at + 0x24,
        "I",
        0x0000001F | (0x10000 if part.ten_bit_completer else 0) | (0x20000 if part.ten_bit_requester else 0),
    )
    space.put(at + 0x28, "H", 0x1000 if part.ten_bit_enabled else 0)


def _payload(size: int) -> int:
    """128 -> 0, 256 -> 1, ... 4096 -> 5."""
    return size.bit_length() - 8


def _link(space: ConfigSpace, at: int, device: Device, now: Link, active: bool, downwards: bool) -> None:
    most = _SPEED_CODES.get(device.link.speed or "", 0)
    space.put(
        at + 0x0C,
        "I",
        most | (device.link.width or 0) << 4 | 0x400000 | (0x180000 if downwards else 0),
    )
    space.put(
        at + 0x12,
        "H",
        _SPEED_CODES.get(now.speed or "", 0) | (now.width or 0) << 4 | 0x1000 | (0x2000 if active else 0),
    )
    space.put(at + 0x2C, "I", sum(1 << speed for speed in range(1, most + 1)))
    space.put(at + 0x30, "H", most)


def _extended(space: ConfigSpace, device: Device, now: Link) -> None:
    part = device.part
    if part.aer:
        at = space.extended(ECAP_AER, 2, 0x48)
        space.put(
            at + 0x08, "I", 0x00110000
        )  # uncorrectable mask: unexpected completion, unsupported request
        space.put(at + 0x0C, "I", 0x00462030)
        space.put(at + 0x14, "I", 0x00002000)
        space.put(at + 0x18, "I", 0x000000A0)
    if device.serial is not None:
        at = space.extended(ECAP_SERIAL, 1, 12)
        space.put(at + 4, "Q", int(device.serial.replace("-", ""), 16))
    if part.acs is not None:
        at = space.extended(ECAP_ACS, 1, 8)
        space.put(at + 4, "H", _bits(part.acs))
        space.put(at + 6, "H", _bits(device.acs))
    if part.ari:
        space.extended(ECAP_ARI, 1, 8)
    if part.functions_max:
        at = space.extended(ECAP_SRIOV, 1, 64)
        space.put(at + 0x0C, "H", part.functions_max)
        space.put(at + 0x0E, "H", part.functions_max)
        space.put(at + 0x14, "H", 1)
        space.put(at + 0x16, "H", 1)
        space.put(at + 0x1A, "H", part.device)
        space.put(at + 0x1C, "I", 0x7FF)
        space.put(at + 0x20, "I", 1)
    if part.ats is not None:
        at = space.extended(ECAP_ATS, 1, 8)
        space.put(at + 6, "H", 0x8000 if part.ats else 0)
    if now.speed is not None and part.link.speed not in (None, "2.5", "5.0"):
        space.extended(ECAP_SECONDARY, 1, 12 + 2 * (part.link.width or 0))


def _bits(words: tuple[str, ...]) -> int:
    return sum(1 << ACS_BITS.index(word) for word in words)
