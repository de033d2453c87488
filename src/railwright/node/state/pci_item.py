"""Bits of a register in a PCI function's configuration space, found by its capability. A boot forgets them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ..config_space import EXPRESS, EXTENDED_ACS, EXTENDED_BYTES, capabilities, extended
from ..model import InputError
from ..model.pcie_facts import is_guests
from .fields import Fields, expected, only_cell
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .kernel_items import inside, read_value
from .outcome import Refused
from .port import device_of, folder
from .switch_function import must_be_no_switch

_LOCKDOWN = "/sys/kernel/security/lockdown"
_HEX = re.compile(r"[0-9a-f]{1,8}", re.ASCII)
# A register by setpci's names, and the bits of it that may be set: of Device Control the request size and relaxed
# ordering (PCIe 6.0, 7.5.3.4; tags must not change while requests are under way), of ACS Control those that every
# version has (7.7.11.3). Interrupts, error reporting and whatever else the kernel's drivers own is nobody's to write
# here.
_REGISTERS = {
    ("CAP_EXP", 0x08, 2): 0x7010,
    ("ECAP_ACS", 0x06, 2): 0x007F,
}
_READ_REQUEST, _LARGEST_REQUEST = 0x7000, 0x5000
# By the class of a function (PCI Code and ID Assignment): what each register is written of.
_OWNERS = {"CAP_EXP": ("0x02", "network controller"), "ECAP_ACS": ("0x0604", "PCI bridge")}
# SrcValid, ReqRedir, CmpltRedir and UpstreamFwd keep the functions below a bridge apart.
_ISOLATING = 0x001D
# Where the ACS capability says which bits there are.
_ACS_CAPABLE = 0x04


@dataclass(frozen=True)
class _Register:
    """Where it lies and what stands in it; path: the function's configuration space. capable: bits that can be set."""

    path: str
    offset: int
    value: int
    capable: int


class PciRegisterItem(Item):
    """`{"kind": "pci_register", "device": "0000:18:00.0", "capability": "CAP_EXP", "offset": 8, "width": 2,
    "mask": "7000", "value": "5000"}`: what `setpci -s 0000:18:00.0 CAP_EXP+8.w=5000:7000` sets.

    offset: from the start of the capability. width: bytes. mask, value: hexadecimal. The cell is the masked bits.
    """

    kind = "pci_register"
    turn = 20

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.device = device_of(fields)
        self.capability = fields.text("capability")
        self.offset = fields.number("offset", 0, EXTENDED_BYTES - 1)
        self.width = fields.number("width", 1, 4)
        allowed = _REGISTERS.get((self.capability, self.offset, self.width))
        if allowed is None:
            raise InputError(
                fields.where,
                f"{self._register} is no register that is written",
                "one of CAP_EXP+8.w, ECAP_ACS+6.w",
            )
        self.mask = _bits(fields, "mask", allowed)
        self.value = _bits(fields, "value", self.mask)
        if not self.mask:
            raise InputError(
                f"{fields.where}.mask", "names no bit", "expected the bits to be set, in hexadecimal"
            )
        size = self.mask & _READ_REQUEST if self.capability == "CAP_EXP" else 0
        if size and (size != _READ_REQUEST or self.value & _READ_REQUEST > _LARGEST_REQUEST):
            raise InputError(
                f"{fields.where}.value",
                f"{self.value:04x} under {self.mask:04x} is no read request size",
                "expected 0000 (128 bytes) to 5000 (4096) under 7000",
            )

    @property
    def _register(self) -> str:
        size = {1: "b", 2: "w", 4: "l"}.get(self.width, str(self.width))
        return f"{self.capability}+{self.offset:x}.{size}"

    @property
    def id(self) -> str:
        return f"pci_register:{self.device}:{self._register}:{self._shown(self.mask)}"

    def claims(self, node: Node) -> Iterable[Claim]:
        place = f"{self.device} {self.capability}"
        numbers = [bit for bit in range(8 * self.width) if self.mask >> bit & 1]
        return [("pci_register", place, f"bit {8 * self.offset + bit}") for bit in numbers]

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        found = self._look(node)
        if found is None:
            return Reading({})
        return Reading({"": self._shown(found.value & self.mask)}, detail=found)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        found = reading.detail
        if isinstance(found, _Register) and self.value & ~found.capable:
            lacking = self._shown(self.value & ~found.capable)
            raise Refused(
                f"{self.device} is not capable of {self._register}={lacking}", "leave these bits out for it"
            )
        return {"": self._shown(self.value)}

    def same(self, now: Value, value: Value) -> bool:
        return int(now, 16) == int(value, 16)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        only_cell(cell, where)
        if not isinstance(value, str):
            raise expected(where, "text", value)
        if _HEX.fullmatch(value) is None or int(value, 16) & ~self.mask:
            raise InputError(where, f"{value!r} is no value of {self._register}", "expected hexadecimal bits")

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        self._must_be_ours(node)
        if self.capability == "ECAP_ACS":
            self._must_keep_guests_apart(node, int(reading.cells[""], 16) & ~int(goal[""], 16))
        _must_not_be_locked(node)
        if os.statvfs(reading.detail.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), reading.detail.path)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        found = self._look(node)
        if found is None:
            raise Refused(self.absent(""), "see what has become of the card: lspci -D")
        bits = int(goal[""], 16)
        self._put(found, bits, node)
        after = self._look(node)
        if after is None or after.value & self.mask != bits:
            now = "nothing" if after is None else self._shown(after.value & self.mask)
            raise Refused(
                f"{self.device} {self._register}: {self._shown(bits)} was written and reads back as {now}",
                "the function does not implement these bits: leave them out for it",
                changed=after is not None and after.value & self.mask != found.value & self.mask,
            )
        return Done()

    def absent(self, cell: str) -> str:
        return f"the node has no {self.device} with {self.capability}: not there, without it, or not readable"

    def name(self, cell: str) -> str:
        return f"{self.device} {self._register}"

    def _look(self, node: Node) -> Optional[_Register]:
        """None where there is no such function or capability. Raises Refused for one that does not answer."""
        if not os.path.isdir(node.at(f"/sys/bus/pci/devices/{self.device}")):
            return None
        path = inside(node, f"/sys/bus/pci/devices/{self.device}/config", ("/sys",))
        try:
            with open(path, "rb") as file:
                data = file.read(EXTENDED_BYTES)
        except FileNotFoundError:
            return None  # it was taken out just now
        if data[:4] == b"\xff\xff\xff\xff":
            raise Refused(
                f"{self.device} does not answer: it fell off the bus", "see dmesg; reset or reseat the card"
            )
        start = self._start(data)
        if not start:
            return None
        offset = start + self.offset
        capable = (1 << 8 * self.width) - 1
        if self.capability == "ECAP_ACS":
            capable = int.from_bytes(data[start + _ACS_CAPABLE : start + _ACS_CAPABLE + 2], "little")
        return _Register(path, offset, int.from_bytes(data[offset : offset + self.width], "little"), capable)

    def _must_be_ours(self, node: Node) -> None:
        """Raises Refused for a function that this register is never written of: a GPU, a virtual function, ..."""
        place = folder(node, self.device)
        begins, noun = _OWNERS[self.capability]
        told = read_value(f"{place}/class") or "unknown"
        if not told.startswith(begins):
            raise Refused(f"{self.device} is no {noun} (class {told}): not written", "leave it out")
        if os.path.lexists(f"{place}/physfn"):
            raise Refused(
                f"{self.device} is a virtual function: it has no such bits", "name its physical function"
            )
        must_be_no_switch(node, self.device)

    def _must_keep_guests_apart(self, node: Node, cleared: int) -> None:
        """Raises Refused where bits that isolate go from a bridge below which a function was given to a guest."""
        if not cleared & _ISOLATING:
            return
        top = os.path.realpath(folder(node, self.device))
        for name in sorted(os.listdir(node.at("/sys/bus/pci/devices"))):
            try:
                driver = os.path.basename(os.readlink(f"{folder(node, name)}/driver"))
            except OSError:  # nothing drives it
                continue
            if is_guests(driver) and os.path.realpath(folder(node, name)).startswith(f"{top}/"):
                raise Refused(
                    f"{self.device}: {name} below it is a guest's ({driver}), and without these bits the guest reaches "
                    "other devices",
                    "set policy.pcie.acs to virtual, or stop the guest and give the device back first",
                )

    def _put(self, found: _Register, bits: int, node: Node) -> None:
        """Reads the register right before it is written: the bits beside ours are those of this moment."""
        fd = os.open(found.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            now = os.pread(fd, self.width, found.offset)
            # No register here is ever all ones. Written back to Device Control these would reset the function (bit 15).
            if len(now) != self.width or now == b"\xff" * self.width:
                raise Refused(
                    f"{self.device} does not answer: it is gone or being reset", "see dmesg; run again"
                )
            value = int.from_bytes(now, "little") & ~self.mask | bits
            written = os.pwrite(fd, value.to_bytes(self.width, "little"), found.offset)
        except OSError as error:
            if error.errno == errno.EPERM:
                _must_not_be_locked(node)
            raise
        finally:
            os.close(fd)
        if written != self.width:
            raise OSError(errno.EIO, "the kernel took a part of the value only", found.path)

    def _start(self, data: bytes) -> Optional[int]:
        if self.capability == "ECAP_ACS":
            if len(data) < EXTENDED_BYTES:
                raise Refused(
                    f"{self.device}: only {len(data)} bytes of its configuration space can be read",
                    "run as root, on a kernel with memory-mapped configuration (MMCONFIG)",
                )
            return extended(data, EXTENDED_ACS)
        return (capabilities(data) or {}).get(EXPRESS)

    def _shown(self, value: int) -> str:
        return f"{value:0{2 * self.width}x}"


def _must_not_be_locked(node: Node) -> None:
    """Raises Refused where the kernel lets nobody write configuration space (LOCKDOWN_PCI_ACCESS)."""
    text = read_value(node.at(_LOCKDOWN)) or ""
    for level in ("integrity", "confidentiality"):
        if f"[{level}]" in text:
            raise Refused(
                f"the kernel is locked down ({level}): it takes no write to PCI configuration space",
                "have the firmware set it (BIOS), or the kernel at boot (pci=config_acs=); Secure Boot locks it down",
            )


def _bits(fields: Fields, key: str, allowed: int) -> int:
    text = fields.text(key)
    where = f"{fields.where}.{key}"
    if _HEX.fullmatch(text) is None:
        raise InputError(where, f"{text!r} is no hexadecimal number", 'expected a form like "7000"')
    value = int(text, 16)
    if value & ~allowed:
        raise InputError(
            where, f"{text!r} has bits outside of {allowed:04x}", "name only bits of what is written"
        )
    return value
