"""One line of `lspci` as values: class and IDs of a heading, and what single lines of details say."""

from __future__ import annotations

import re
from dataclasses import replace

from railwright.node.model import InputError, PciDevice

from .fields import SPEEDS, WIDTHS, name, some_link

# -nn puts the class's number behind its name, and both IDs behind the device's.
_CLASS = re.compile(r"^(.{1,60}?)(?: \[([0-9a-f]{4})\])?: (.*)$", re.ASCII)
_NUMBERS = re.compile(r"^[0-9a-f]{4}: ", re.ASCII)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.ASCII)
_PROGRAMMING = re.compile(r"\(prog-if ([0-9a-f]{2})", re.ASCII)
_BRACKETED = re.compile(r"\[([0-9a-f]{4})\]$", re.ASCII)
_LNKCAP = re.compile(
    r"^\t\tLnkCap:\s.{0,40}?Speed (?:([\d.]{1,4})GT/s|(unknown)), Width x(\d{1,3})\b", re.ASCII
)
_LNKSTA = re.compile(
    r"^\t\tLnkSta:\sSpeed (?:([\d.]{1,4})GT/s|(unknown))(?: \(\w+\))?, Width x(\d{1,3})\b", re.ASCII
)
_SIZES = re.compile(r"^\t\t\tMaxPayload (\d{3,4}) bytes, MaxReadReq (\d{3,4}) bytes$", re.ASCII)
_RELAXED = re.compile(r"^\t\t\tRlxdOrd([+-])", re.ASCII)
# Names of pci.ids, where the output has no numbers.
CLASS_NAMES = {
    "Non-Volatile memory controller": "0108",
    "Ethernet controller": "0200",
    "Infiniband controller": "0207",
    "VGA compatible controller": "0300",
    "3D controller": "0302",
    "Display controller": "0380",
    "Host bridge": "0600",
    "PCI bridge": "0604",
    "Bridge": "0680",
    "DMA controller": "0801",
    "Processing accelerators": "1200",
}
VENDOR_NAMES = {
    "NVIDIA Corporation": "10de",
    "Mellanox Technologies": "15b3",
    "Advanced Micro Devices, Inc. [AMD/ATI]": "1002",
    "Advanced Micro Devices, Inc. [AMD]": "1022",
    "Intel Corporation": "8086",
    "Broadcom / LSI": "1000",
    "PLX Technology, Inc.": "10b5",
    "Red Hat, Inc.": "1b36",
}
_UNNAMED = re.compile(r"^Device ([0-9a-f]{4})\b", re.ASCII)


def described(address: str, text: str, where: str) -> PciDevice:
    """Class, vendor and device of "3D controller [0302]: NVIDIA ... [10de:2330] (rev a1)", with or without numbers."""
    programming = _PROGRAMMING.search(text)
    suffix = programming[1] if programming else ""
    if _NUMBERS.match(text):
        # lspci -n: numbers only.
        match = re.match(r"([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})\b", text, re.ASCII)
        if match is None:
            raise InputError(where, f"found {text[:60]!r}", "expected numbers like 0302: 10de:2330")
        return PciDevice(address, None, f"0x{match[2]}", f"0x{match[3]}", class_code=f"0x{match[1]}{suffix}")
    split = _CLASS.match(text)
    if split is None:
        raise InputError(
            where, f"found {text[:60]!r}", "expected a class and a name, like 3D controller: NVIDIA ..."
        )
    number = split[2] or CLASS_NAMES.get(split[1])
    class_code = None if number is None else f"0x{number}{suffix}"
    pairs = _IDS.findall(split[3])
    if pairs:
        return PciDevice(address, None, f"0x{pairs[-1][0]}", f"0x{pairs[-1][1]}", class_code=class_code)
    vendor, device = _by_name(split[3])
    return PciDevice(address, None, vendor, device, class_code=class_code)


def _by_name(text: str) -> tuple[str | None, str | None]:
    for vendor, number in VENDOR_NAMES.items():
        if text.startswith(f"{vendor} "):
            unnamed = _UNNAMED.match(text[len(vendor) + 1 :])
            return f"0x{number}", f"0x{unnamed[1]}" if unnamed else None
    return None, None


def named(names: dict[str, str], text: str) -> str | None:
    """The number ("0x0302") that a name of pci.ids has in this table; None where it is not in it."""
    number = names.get(re.sub(r" \[[0-9a-f]{4}\]$", "", text))
    return None if number is None else f"0x{number}"


def bracketed(text: str) -> str | None:
    """The number at the end of "GH100 [2330]" ("0x2330"); None where there is none."""
    match = _BRACKETED.search(text)
    return f"0x{match[1]}" if match else None


def with_subsystem(device: PciDevice, text: str) -> PciDevice:
    """The device with its subsystem's vendor and device, by numbers or by name."""
    pairs = _IDS.findall(text)
    if pairs:
        return replace(device, subsystem_vendor=f"0x{pairs[-1][0]}", subsystem_device=f"0x{pairs[-1][1]}")
    vendor, number = _by_name(text)
    return replace(device, subsystem_vendor=vendor, subsystem_device=number)


def with_detail(device: PciDevice, what: str, value: str, where: str) -> PciDevice:
    """What a line like "NUMA node: 1" adds. Raises InputError at `where`."""
    if what == "Subsystem":
        return with_subsystem(device, value)
    if what == "Kernel driver in use":
        return replace(device, driver=name(value, where))
    if what == "Physical Slot":
        return replace(device, slot=value[:64] or None)
    if not re.fullmatch(r"-?\d{1,4}", value, re.ASCII) or int(value) < -1:
        raise InputError(where, f"{what} {value[:20]!r}", "expected a number")
    number = None if value == "-1" else int(value)
    return replace(device, numa=number) if what == "NUMA node" else replace(device, iommu_group=number)


def with_express(device: PciDevice, control: str, text: str, where: str) -> PciDevice:
    """What one line of the Express capability adds. LnkCap2, LnkSta2 and DevCap are other registers."""
    link = device.link
    if control == "LnkCap" and text.startswith("\t\tLnkCap:"):
        speed, width = _speed_and_width(_LNKCAP.match(text), text, where)
        return replace(device, link=some_link(link.speed, link.width, speed, width))
    if control == "LnkSta" and text.startswith("\t\tLnkSta:"):
        speed, width = _speed_and_width(_LNKSTA.match(text), text, where)
        return replace(device, link=some_link(speed, width, link.max_speed, link.max_width))
    if control == "DevCtl":
        if sizes := _SIZES.match(text):
            payload, request = int(sizes[1]), int(sizes[2])
            if not {payload, request} <= {128, 256, 512, 1024, 2048, 4096}:
                raise InputError(where, f"found {text.strip()!r}", "expected sizes of 128 to 4096 bytes")
            return replace(device, mps=payload, mrrs=request)
        if relaxed := _RELAXED.match(text):
            return replace(device, relaxed_ordering=relaxed[1] == "+")
    return device


def _speed_and_width(match: re.Match[str] | None, text: str, where: str) -> tuple[float | None, int | None]:
    if match is None:
        raise InputError(where, f"found {text.strip()[:80]!r}", "expected Speed 32GT/s, Width x16")
    width = int(match[3])
    # 0 and 63: no link, and all ones from a function that fell off the bus.
    if width not in {0, 63, *WIDTHS} or (
        match[1] and (match[1].count(".") > 1 or float(match[1]) not in SPEEDS)
    ):
        raise InputError(
            where, f"found {text.strip()[:80]!r}", "expected a PCIe speed and a width of 1 to 32 lanes"
        )
    return float(match[1]) if match[1] else None, width if width in WIDTHS else None


def routing(address: str) -> tuple[str, int]:
    """Domain, and bus, device and function as one number: what virtual functions are counted in."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return domain, int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)


def domain_of(address: str) -> str:
    """The domain's digits."""
    return address.partition(":")[0]


def bus_of(address: str) -> int:
    """The bus as a number."""
    return int(address.split(":")[1], 16)
