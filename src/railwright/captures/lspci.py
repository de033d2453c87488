"""`lspci`: a block a function (-v to -vvv, -nn, -D), a line a function (-mm), or the drawing of the tree (-t).

The tree comes from the bus numbers of bridges, which -v prints, or from the drawing; without either it is not known.
Links, ACS and request sizes need -vv and the right to read them (root).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from railwright.node.discover.pci import MELLANOX
from railwright.node.model import Acs, Facts, InputError, Link, Nic, PciDevice, normalise_address

from .fields import SPEEDS, WIDTHS, facts_of, lines_of, name, refuse_crowd, some_link
from .lspci_tree import is_drawing, read_drawing
from .pci_functions import INFINIBAND, gpus, host_bridge, is_nic, kept, matters, roots, short_class
from .source import Source
from .terminal import Line

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_HEADING = re.compile(rf"^({_ADDRESS}) (\S.*)$", re.ASCII)
# -nn puts the class's number behind its name, and both IDs behind the device's.
_CLASS = re.compile(r"^(.{1,60}?)(?: \[([0-9a-f]{4})\])?: (.*)$", re.ASCII)
_NUMBERS = re.compile(r"^[0-9a-f]{4}: ", re.ASCII)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.ASCII)
_PROGRAMMING = re.compile(r"\(prog-if ([0-9a-f]{2})", re.ASCII)
_MACHINE = re.compile(rf'^({_ADDRESS}) "([^"]*)" "([^"]*)" "([^"]*)"(.*)$', re.ASCII)
_BRACKETED = re.compile(r"\[([0-9a-f]{4})\]$", re.ASCII)
_BUS = re.compile(
    r"^\tBus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})\b", re.ASCII
)
_CAPABILITY = re.compile(r"^\tCapabilities: \[([0-9a-f]{2,3})(?: v\d+)?\] (.*)$", re.ASCII)
_LNKCAP = re.compile(
    r"^\t\tLnkCap:\s.{0,40}?Speed (?:([\d.]{1,4})GT/s|(unknown)), Width x(\d{1,3})\b", re.ASCII
)
_LNKSTA = re.compile(
    r"^\t\tLnkSta:\sSpeed (?:([\d.]{1,4})GT/s|(unknown))(?: \(\w+\))?, Width x(\d{1,3})\b", re.ASCII
)
_SIZES = re.compile(r"^\t\t\tMaxPayload (\d{3,4}) bytes, MaxReadReq (\d{3,4}) bytes$", re.ASCII)
_RELAXED = re.compile(r"^\t\t\tRlxdOrd([+-])", re.ASCII)
_ACS_LINE = re.compile(r"^\t\tACS(Cap|Ctl):\s((?:[A-Za-z]+[+-] ?){7})$", re.ASCII)
_SIMPLE = re.compile(
    r"^\t(NUMA node|IOMMU group|Physical Slot|Kernel driver in use|Subsystem): (.*)$", re.ASCII
)
# -v prints these two among the flags.
_FLAGGED = re.compile(r"\b(NUMA node|IOMMU group) (-?\d{1,4})\b", re.ASCII)
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_PORTS = {
    "Root Port": "root",
    "Upstream Port": "upstream",
    "Downstream Port": "downstream",
    "Endpoint": "endpoint",
    "Legacy Endpoint": "endpoint",
    "Root Complex Integrated Endpoint": "endpoint",
}
# Names of pci.ids, where the output has no numbers.
_CLASS_NAMES = {
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
_VENDOR_NAMES = {
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
_SWITCH_MANAGEMENT = "SW_MNG"


@dataclass
class _Block:
    """One function as it stands in the output, before the tree is known."""

    device: PciDevice
    line: int
    secondary: int | None = None
    subordinate: int | None = None
    capability: str = ""
    control: str = ""
    extended: bool = False
    acs_named: bool = False
    acs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vpd: bool = False
    managed: bool = False
    virtual: bool = False


def read_lspci(source: Source) -> Facts:
    """Facts of the PCI functions. Raises InputError with file and line."""
    lines = lines_of(source, tables=False)
    if is_drawing(lines):
        return read_drawing(source, lines)
    return _Reader(source).facts(lines)


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._blocks: dict[str, _Block] = {}
        self._notes: list[str] = []

    def facts(self, lines: list[Line]) -> Facts:
        block: _Block | None = None
        for line in lines:
            text = line.text
            if text[:1] in {"\t", ""} or (block is not None and text[:1] == " "):
                if block is not None and text:
                    self._detail(block, text.replace("        ", "\t"), self._source.at(line.number))
                elif not text:
                    block = None
                continue
            block = self._heading(line)
        if not self._blocks:
            raise InputError(self._source.name, "names no PCI function", "give the output of lspci -nnvvv")
        complete = self._hang()
        found = {address: self._finished(block) for address, block in self._blocks.items()}
        devices = kept(found, (device.address for device in found.values() if matters(device)))
        nics = tuple(self._nic(device) for device in devices if is_nic(device))
        if any(device.vendor and device.device is None for device in devices):
            self._notes.append(
                "lspci without -nn names devices only: which models they are is not known in full"
            )
        if not any(device.link.max_speed for device in devices):
            self._notes.append("lspci shows no links: give lspci -nnvvv, run as root")
        return facts_of(
            "lspci",
            self._source,
            roots=roots(found, devices),
            pci=devices,
            gpus=gpus(devices),
            nics=nics,
            complete=complete,
            notes=tuple(self._notes),
        )

    # -- lines --

    def _heading(self, line: Line) -> _Block | None:
        where = self._source.at(line.number)
        device: PciDevice
        if machine := _MACHINE.match(line.text):
            address = normalise_address(machine[1], where)
            vendor, number = (_bracketed(machine[n]) for n in (3, 4))
            class_code = _bracketed(machine[2]) or _named(_CLASS_NAMES, machine[2])
            device = PciDevice(
                address, None, vendor or _named(_VENDOR_NAMES, machine[3]), number, class_code=class_code
            )
            rest = re.findall(r'"([^"]*)"', machine[5])
            if len(rest) > 1:
                device = replace(
                    device, subsystem_vendor=_bracketed(rest[0]), subsystem_device=_bracketed(rest[1])
                )
            virtual = "Virtual Function" in machine[4]
        elif heading := _HEADING.match(line.text):
            address = normalise_address(heading[1], where)
            device, virtual = _described(address, heading[2], where), "Virtual Function" in heading[2]
        else:
            if re.match(r"^[0-9a-f:]{2,13}\.", line.text, re.ASCII):
                raise InputError(
                    where, f"found {line.text[:60]!r}", "expected a line like 18:00.0 3D controller: ..."
                )
            return None
        if address in self._blocks:
            raise InputError(
                where,
                f"{address} stands on line {self._blocks[address].line} too",
                "give one machine at a time",
            )
        refuse_crowd(len(self._blocks), "PCI functions", where)
        self._blocks[address] = _Block(device, line.number, virtual=virtual)
        return self._blocks[address]

    def _detail(self, block: _Block, text: str, where: str) -> None:
        if bus := _BUS.match(text):
            block.secondary, block.subordinate = int(bus[2], 16), int(bus[3], 16)
            if block.subordinate < block.secondary:
                raise InputError(where, f"found {text.strip()[:60]!r}", "expected secondary <= subordinate")
        elif text.startswith("\tBus:"):
            raise InputError(
                where, f"found {text.strip()[:60]!r}", "expected Bus: primary=00, secondary=01, ..."
            )
        elif capability := _CAPABILITY.match(text):
            self._capability(block, int(capability[1], 16), capability[2])
        elif text.startswith("\t\t"):
            self._inside(block, text, where)
        elif simple := _SIMPLE.match(text):
            block.capability = ""
            block.device = _simple(block.device, simple[1], simple[2].strip(), where)
        elif text.startswith("\tFlags: "):
            for what, value in _FLAGGED.findall(text):
                block.device = _simple(block.device, what, value, where)
        elif not text.startswith("\t "):
            block.capability = ""

    def _capability(self, block: _Block, offset: int, text: str) -> None:
        block.control = ""
        block.extended |= offset >= 0x100
        kind = text.split("(", 1)[0].strip()
        if kind == "Express":
            block.capability = "express"
            port = re.match(
                r"Express (?:\(v\d\) )?([A-Za-z /-]{4,40}?)(?: \(Slot[+-]\))?(?:, .*)?$", text, re.ASCII
            )
            block.device = replace(block.device, port=_PORTS.get(port[1]) if port else None)
        elif text.startswith("Access Control Services"):
            block.capability, block.acs_named = "acs", True
        elif text.startswith("Vital Product Data"):
            block.capability, block.vpd = "vpd", True
        else:
            block.capability = "other"
            ids = re.match(r"Subsystem: (.*)$", text)
            if ids:
                block.device = _subsystem(block.device, ids[1])

    def _inside(self, block: _Block, text: str, where: str) -> None:
        if not text.startswith("\t\t\t"):
            block.control = text.strip().split(":", 1)[0]
        if block.capability == "express":
            block.device = _express(block.device, block.control, text, where)
        elif block.capability == "acs" and text.startswith("\t\tACS"):
            match = _ACS_LINE.match(text)
            words = match[2].split() if match else []
            if match is None or tuple(word[:-1] for word in words) != _ACS_BITS:
                raise InputError(where, f"found {text.strip()[:60]!r}", "expected seven bits like SrcValid+")
            block.acs[match[1]] = tuple(word[:-1] for word in words if word.endswith("+"))
        elif block.capability == "vpd" and _SWITCH_MANAGEMENT in text:
            block.managed = True

    # -- the tree --

    def _hang(self) -> bool:
        """Parents from the bridges' bus numbers; whether no bridge is missing between what is here."""
        bridges: dict[tuple[str, int], _Block] = {}
        ranges: dict[str, list[_Block]] = {}
        bare = False
        for block in self._blocks.values():
            bus = _bus(block.device.address)
            if short_class(block.device) == "0x0604" and block.secondary is None:
                bare = True
            # A bridge that firmware has not numbered says 0.
            if not block.secondary:
                continue
            if block.secondary <= bus:
                raise InputError(
                    self._source.at(block.line),
                    f"bridge {block.device.address} leads to bus {block.secondary:02x}, which is not below its own",
                    "give the output as lspci printed it",
                )
            domain = _domain(block.device.address)
            other = bridges.setdefault((domain, block.secondary), block)
            if other is not block:
                raise InputError(
                    self._source.at(block.line),
                    f"bus {block.secondary:02x} lies behind {other.device.address} too",
                    "give one machine at a time",
                )
            ranges.setdefault(domain, []).append(block)
        if bare or not bridges:
            self._notes.append(
                "lspci without -v shows no bus numbers of bridges: where the functions hang is not known"
            )
            return True
        lost = []
        reached: dict[tuple[str, int], bool] = {}
        for address, block in self._blocks.items():
            key = _domain(address), _bus(address)
            above = bridges.get(key)
            if above is not None:
                parent: str | None = above.device.address
            else:
                if key not in reached:
                    reached[key] = any(
                        (near.secondary or 0) <= key[1] <= (near.subordinate or 0)
                        for near in ranges.get(key[0], ())
                    )
                parent = None if reached[key] else host_bridge(*key)
                lost += [address] if reached[key] else []
            block.device = replace(block.device, parent=parent)
        if lost:
            self._notes.append(
                f"the bridge above {', '.join(lost[:4])}{' and others' if len(lost) > 4 else ''} is not in the output"
            )
        return not lost

    def _finished(self, block: _Block) -> PciDevice:
        device = block.device
        detailed = device.mrrs is not None or device.link != Link()
        acs = None
        if "Cap" in block.acs and "Ctl" in block.acs:
            acs = Acs(block.acs["Cap"], block.acs["Ctl"])
        elif detailed and block.extended and not block.acs_named:
            acs = Acs((), ())
        return replace(device, acs=acs)

    def _nic(self, device: PciDevice) -> Nic:
        block = self._blocks[device.address]
        # NVSwitch management functions are ConnectX functions; no other vendor's device can be one.
        unseen = device.vendor in {MELLANOX, None} and not block.vpd
        return Nic(
            name=device.address,
            address=device.address,
            link_layer="InfiniBand" if short_class(device) == INFINIBAND else "Ethernet",
            numa=device.numa,
            management=None if unseen else block.managed,
        )


# -- values --


def _described(address: str, text: str, where: str) -> PciDevice:
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
    number = split[2] or _CLASS_NAMES.get(split[1])
    class_code = None if number is None else f"0x{number}{suffix}"
    pairs = _IDS.findall(split[3])
    if pairs:
        return PciDevice(address, None, f"0x{pairs[-1][0]}", f"0x{pairs[-1][1]}", class_code=class_code)
    vendor, device = _by_name(split[3])
    return PciDevice(address, None, vendor, device, class_code=class_code)


def _by_name(text: str) -> tuple[str | None, str | None]:
    for vendor, number in _VENDOR_NAMES.items():
        if text.startswith(f"{vendor} "):
            unnamed = _UNNAMED.match(text[len(vendor) + 1 :])
            return f"0x{number}", f"0x{unnamed[1]}" if unnamed else None
    return None, None


def _named(names: dict[str, str], text: str) -> str | None:
    number = names.get(re.sub(r" \[[0-9a-f]{4}\]$", "", text))
    return None if number is None else f"0x{number}"


def _bracketed(text: str) -> str | None:
    match = _BRACKETED.search(text)
    return f"0x{match[1]}" if match else None


def _subsystem(device: PciDevice, text: str) -> PciDevice:
    pairs = _IDS.findall(text)
    if pairs:
        return replace(device, subsystem_vendor=f"0x{pairs[-1][0]}", subsystem_device=f"0x{pairs[-1][1]}")
    vendor, number = _by_name(text)
    return replace(device, subsystem_vendor=vendor, subsystem_device=number)


def _simple(device: PciDevice, what: str, value: str, where: str) -> PciDevice:
    if what == "Subsystem":
        return _subsystem(device, value)
    if what == "Kernel driver in use":
        return replace(device, driver=name(value, where))
    if what == "Physical Slot":
        return replace(device, slot=value[:64] or None)
    if not re.fullmatch(r"-?\d{1,4}", value, re.ASCII) or int(value) < -1:
        raise InputError(where, f"{what} {value[:20]!r}", "expected a number")
    number = None if value == "-1" else int(value)
    return replace(device, numa=number) if what == "NUMA node" else replace(device, iommu_group=number)


def _express(device: PciDevice, control: str, text: str, where: str) -> PciDevice:
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


def _domain(address: str) -> str:
    return address.partition(":")[0]


def _bus(address: str) -> int:
    return int(address.split(":")[1], 16)
