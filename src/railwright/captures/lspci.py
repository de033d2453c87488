"""`lspci`: a block a function (-v to -vvv, -nn, -D), a line a function (-mm), or the drawing of the tree (-t).

The tree comes from the bus numbers of bridges, which -v prints, or from the drawing; without either it is not known.
Links, ACS and request sizes need -vv and the right to read them (root).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from railwright.node.discover.pci import is_nic
from railwright.node.discover.questions import bluefield, questions
from railwright.node.model import Acs, Facts, InputError, Link, Nic, PciDevice, normalise_address
from railwright.node.model.pci import MELLANOX

from .fields import MAX_DEVICES, facts_of, lines_of, refuse_crowd
from .lspci_tree import is_drawing, read_drawing
from .lspci_values import (
    CLASS_NAMES,
    VENDOR_NAMES,
    bracketed,
    bus_of,
    described,
    domain_of,
    named,
    routing,
    with_detail,
    with_express,
    with_subsystem,
)
from .pci_functions import INFINIBAND, gpus, host_bridge, kept, matters, roots, short_class
from .source import Source
from .terminal import Line

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_HEADING = re.compile(rf"^({_ADDRESS}) (\S.*)$", re.ASCII)
_MACHINE = re.compile(rf'^({_ADDRESS}) "([^"]*)" "([^"]*)" "([^"]*)"(.*)$', re.ASCII)
_BUS = re.compile(
    r"^\tBus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})\b", re.ASCII
)
_CAPABILITY = re.compile(r"^\tCapabilities: \[([0-9a-f]{2,3})(?: v\d+)?\] (.*)$", re.ASCII)
_ACS_LINE = re.compile(r"^\t\tACS(Cap|Ctl):\s((?:[A-Za-z]+[+-] ?){7})$", re.ASCII)
_SIMPLE = re.compile(
    r"^\t(NUMA node|IOMMU group|Physical Slot|Kernel driver in use|Subsystem): (.*)$", re.ASCII
)
# -v prints these two among the flags.
_FLAGGED = re.compile(r"\b(NUMA node|IOMMU group) (-?\d{1,4})\b", re.ASCII)
_VFS = re.compile(r"\bNumber of VFs: (\d{1,5})\b", re.ASCII)
_VF_PLACE = re.compile(r"^\t\tVF offset: (\d{1,5}), stride: (\d{1,5})\b", re.ASCII)
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_PORTS = {
    "Root Port": "root",
    "Upstream Port": "upstream",
    "Downstream Port": "downstream",
    "Endpoint": "endpoint",
    "Legacy Endpoint": "endpoint",
    "Root Complex Integrated Endpoint": "endpoint",
}
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
    sriov: bool = False
    vfs: int | None = None
    vf_place: tuple[int, int] | None = None


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
        self._physical: dict[str, str] = {}

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
        self._place_vfs()
        nics = tuple(self._nic(device) for device in devices if is_nic(device))
        self._notes += questions(nics, devices)
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
            vendor, number = (bracketed(machine[n]) for n in (3, 4))
            class_code = bracketed(machine[2]) or named(CLASS_NAMES, machine[2])
            device = PciDevice(
                address, None, vendor or named(VENDOR_NAMES, machine[3]), number, class_code=class_code
            )
            rest = re.findall(r'"([^"]*)"', machine[5])
            if len(rest) > 1:
                device = replace(
                    device, subsystem_vendor=bracketed(rest[0]), subsystem_device=bracketed(rest[1])
                )
            virtual = "Virtual Function" in machine[4]
        elif heading := _HEADING.match(line.text):
            address = normalise_address(heading[1], where)
            device, virtual = described(address, heading[2], where), "Virtual Function" in heading[2]
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
            block.device = with_detail(block.device, simple[1], simple[2].strip(), where)
        elif text.startswith("\tFlags: "):
            for what, value in _FLAGGED.findall(text):
                block.device = with_detail(block.device, what, value, where)
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
        elif text.startswith("Single Root I/O Virtualization"):
            block.capability, block.sriov = "sriov", True
        elif text.startswith("Vital Product Data"):
            block.capability, block.vpd = "vpd", True
        else:
            block.capability = "other"
            ids = re.match(r"Subsystem: (.*)$", text)
            if ids:
                block.device = with_subsystem(block.device, ids[1])

    def _inside(self, block: _Block, text: str, where: str) -> None:
        if not text.startswith("\t\t\t"):
            block.control = text.strip().split(":", 1)[0]
        if block.capability == "express":
            block.device = with_express(block.device, block.control, text, where)
        elif block.capability == "acs" and text.startswith("\t\tACS"):
            match = _ACS_LINE.match(text)
            words = match[2].split() if match else []
            if match is None or tuple(word[:-1] for word in words) != _ACS_BITS:
                raise InputError(where, f"found {text.strip()[:60]!r}", "expected seven bits like SrcValid+")
            block.acs[match[1]] = tuple(word[:-1] for word in words if word.endswith("+"))
        elif block.capability == "sriov":
            if count := _VFS.search(text):
                block.vfs = int(count[1])
            elif place := _VF_PLACE.match(text):
                block.vf_place = int(place[1]), int(place[2])
        elif block.capability == "vpd" and _SWITCH_MANAGEMENT in text:
            block.managed = True

    # -- the tree --

    def _hang(self) -> bool:
        """Parents from the bridges' bus numbers; whether no bridge is missing between what is here."""
        bridges: dict[tuple[str, int], _Block] = {}
        ranges: dict[str, list[_Block]] = {}
        bare = False
        for block in self._blocks.values():
            bus = bus_of(block.device.address)
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
            domain = domain_of(block.device.address)
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
            key = domain_of(address), bus_of(address)
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

    def _place_vfs(self) -> None:
        """Virtual functions to the physical one that says where it has them (PCI Express Base 6.0, 9.2.1.2).

        A function that has the capability itself is none.
        """
        by_number = {routing(address): address for address in self._blocks}
        for address, block in self._blocks.items():
            if block.vfs is None or block.vf_place is None or not block.vfs:
                continue
            domain, number = routing(address)
            offset, stride = block.vf_place
            for n in range(min(block.vfs, MAX_DEVICES)):
                virtual = by_number.get((domain, number + offset + n * stride))
                if virtual is not None and not self._blocks[virtual].sriov:
                    self._physical[virtual] = address
        lost = [
            address
            for address, block in self._blocks.items()
            if block.virtual and is_nic(block.device) and address not in self._physical
        ]
        if lost:
            self._notes.append(
                f"{', '.join(lost[:4])}{' and others' if len(lost) > 4 else ''}: virtual by name; of which function"
                " is not shown (lspci -nnvvv of root tells it, and a guest never does)"
            )

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
            physical_function=self._physical.get(device.address, "" if block.sriov else None),
            bluefield=bluefield(device),
        )
