"""NCCL's and RCCL's topology XML: a dump (NCCL_TOPO_DUMP_FILE) or a file that a vendor ships for NCCL_TOPO_FILE.

The format is defined by its reader and writer, NCCL 2.30.7 src/graph/xml.cc: system > cpu > pci (nested) > gpu or
nic > net, and nvlink, xgmi (RCCL) and c2c under gpu. A vendor's file may be a skeleton: PCI functions only, which NCCL
completes on the machine. Unknown is an empty text, -1, a width of 0 or a missing attribute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from railwright.node.discover.questions import bluefield, questions
from railwright.node.model import (
    C2c,
    Cpus,
    Facts,
    Gpu,
    InputError,
    Link,
    Nic,
    NumaNode,
    NvLink,
    PciDevice,
    Root,
    Witness,
    format_cpulist,
    sort_key,
)
from railwright.node.model.facts import SCHEMA

from .attributes import Attributes
from .cpusets import disjoint
from .pci_functions import short_class
from .source import Source
from .xml_tree import Element, parse

# 1 is NCCL's (src/graph/xml.h NCCL_TOPO_XML_VERSION), 2 is RCCL's.
_VERSIONS = (1, 2)
_KNOWN = {
    "system": {"cpu"},
    "cpu": {"pci", "nic"},
    "pci": {"pci", "gpu", "nic", "pcilink"},
    "gpu": {"nvlink", "xgmi", "c2c"},
    "nic": {"net"},
}
# PCIe generations 1 to 6. The kernel writes "8.0 GT/s PCIe", older ones and people "8 GT/s" or "8GT/s".
_SPEED = re.compile(r"^(2\.5|5(?:\.0)?|8(?:\.0)?|16(?:\.0)?|32(?:\.0)?|64(?:\.0)?) ?GT/s(?: PCIe)?$")
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# The kernel's max_link_width of a function that cannot tell.
_WIDTH_UNREADABLE = 255
# 800 Gb/s is the fastest port sold; ten times that is a slip of units, not a NIC.
_RATE_INCREDIBLE = 8_000_000
_NVIDIA, _AMD = "0x10de", "0x1002"
# Which PCI class is a GPU, by vendor (None: the file leaves the vendor out). A VGA controller without a vendor may be
# the board management controller's, and other vendors sell processing accelerators (0x1200) that are no GPUs.
_GPU_CLASSES: dict[str, tuple[str | None, ...]] = {
    "0x0300": (_NVIDIA, _AMD),
    "0x0302": (_NVIDIA, _AMD, None),
    "0x0380": (_NVIDIA, _AMD, None),
    "0x1200": (_AMD,),
}
_NIC_CLASSES = ("0x0200", "0x0207")
# NCCL's own word where `uname -m` has another.
_ARCHITECTURES = {"arm64": "aarch64"}
# The far end in a VM that does not see the NVSwitch (xml.cc, ncclTopoGetXmlFromGpu); NCCL takes it for one.
_HIDDEN_NVSWITCH = "fffffff:ffff:ff"
# Names that the kernel and rdma-core give to RDMA devices, for files whose net has no port.
_RDMA_NAME = re.compile(r"^(mlx[45]_|roce|ib[ps]|rdmap|bnxt_re|irdma|efa_|erdma_|hns_|cxgb|qedr|hfi1_|i40iw)")


def read_nccl_xml(source: Source) -> Facts:
    """Facts of one machine from the XML. GPU indices follow PCI order. Raises InputError with file and line."""
    system = parse(source)
    if system.tag != "system":
        raise InputError(
            source.at(system.line),
            f"the outermost element is <{system.tag}>",
            "a NCCL topology file begins with <system>",
        )
    return _Reader(source).facts(system)


@dataclass(frozen=True)
class _Place:
    """Where an element hangs: the PCI function or host bridge above it, and the NUMA node."""

    parent: str
    numa: int | None
    cpus: str | None
    pci: PciDevice | None = None


@dataclass
class _FoundGpu:
    gpu: Gpu
    dev: int | None


@dataclass
class _Found:
    roots: list[Root] = field(default_factory=list)
    numa: list[NumaNode] = field(default_factory=list)
    cpus: list[Cpus] = field(default_factory=list)
    pci: list[PciDevice] = field(default_factory=list)
    leaves: list[PciDevice] = field(default_factory=list)
    gpus: list[_FoundGpu] = field(default_factory=list)
    nics: list[tuple[int, Nic]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._found = _Found()
        self._several_cpus = False
        self._gpu_places: set[str] = set()

    def facts(self, system: Element) -> Facts:
        attributes = self._attributes(system)
        version = attributes.integer("version", 0, 2**31)
        if version is not None and version not in _VERSIONS:
            raise attributes.wrong("version", "1 (NCCL) or 2 (RCCL)")
        cpus = list(self._children(system, "cpu"))
        if not cpus:
            raise InputError(attributes.where, "<system> holds no <cpu>", "is the file whole? copy it again")
        self._refuse_several_hosts(cpus)
        self._several_cpus = len(cpus) > 1
        for cpu in cpus:
            self._read_cpu(cpu)
        return self._assembled()

    def _attributes(self, element: Element) -> Attributes:
        return Attributes(self._source, element)

    def _children(self, element: Element, *tags: str) -> Iterator[Element]:
        for child in element.children:
            if child.tag in tags:
                yield child
            elif child.tag not in _KNOWN.get(element.tag, ()):
                self._found.ignored[child.tag] += 1

    def _refuse_several_hosts(self, cpus: list[Element]) -> None:
        # NCCL fuses the trees of all hosts of an NVLink domain into one dump and tells them apart by host_hash.
        hosts = {cpu.attributes.get("host_hash", "").strip() for cpu in cpus} - {""}
        if len(hosts) > 1:
            raise InputError(
                self._source.at(cpus[0].line),
                f"holds {len(hosts)} machines (host_hash {', '.join(sorted(hosts)[:4])})",
                "keep the <cpu> elements of one host_hash",
            )

    # -- cpu, pci --

    def _read_cpu(self, cpu: Element) -> None:
        attributes = self._attributes(cpu)
        if "numaid" not in cpu.attributes:
            raise InputError(attributes.where, "<cpu> without numaid", "NCCL needs it too; -1 where unknown")
        # 1023: the kernel's largest CONFIG_NODES_SHIFT is 10.
        number = attributes.integer("numaid", -1, 1023)
        numa = None if number == -1 else number
        name = "numa-unknown" if numa is None else f"numa{numa}"
        if any(root.name == name for root in self._found.roots):
            raise InputError(
                f"{attributes.where}: numaid",
                f"{number} stands on a <cpu> above too",
                "one <cpu> for each node",
            )
        cpus = self._affinity(attributes)
        if numa is not None and cpus is not None:
            self._found.numa.append(NumaNode(numa, cpus))
        elif numa is not None:
            self._found.notes.append(f"NUMA node {numa}: the file does not name its CPUs (no affinity)")
        self._found.roots.append(Root(name, numa))
        self._found.cpus.append(
            Cpus(
                arch=_ARCHITECTURES.get(attributes.word("arch") or "", attributes.word("arch")),
                vendor=attributes.word("vendor"),
                family=_family(attributes.integer("familyid", 0, 0xFFF)),
                model=attributes.integer("modelid", 0, 0xFFF),
            )
        )
        place = _Place(name, numa, cpus)
        for child in self._children(cpu, "pci", "nic"):
            if child.tag == "pci":
                self._read_pci(child, place)
            else:
                self._read_nic(child, place)

    def _affinity(self, attributes: Attributes) -> str | None:
        """The kernel's mask, most significant word first ("00000000,000fffff"), as a cpulist."""
        value = attributes.text("affinity")
        if value is None:
            return None
        words = value.split(",")
        # 8192 CPUs: the largest CONFIG_NR_CPUS of a distribution kernel.
        if len(words) > 256 or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
            raise attributes.wrong("affinity", "a CPU mask like 00000000,000fffff")
        mask = 0
        for word in words:
            mask = mask << 32 | int(word, 16)
        return format_cpulist(cpu for cpu, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")

    def _read_pci(self, pci: Element, place: _Place) -> None:
        attributes = self._attributes(pci)
        vendor = attributes.identifier("vendor")
        # A made-up bridge has vendor 0x0000; 0xffff is what a read of an absent function returns.
        known = vendor not in {"0x0000", "0xffff"}
        device = PciDevice(
            address=self._unique_address(pci, attributes),
            parent=place.parent,
            vendor=vendor if known else None,
            device=attributes.identifier("device") if known else None,
            subsystem_vendor=attributes.identifier("subsystem_vendor") if known else None,
            subsystem_device=attributes.identifier("subsystem_device") if known else None,
            class_code=attributes.class_code(),
            numa=place.numa,
            local_cpus=place.cpus,
            # NCCL writes the largest speed and width that function and port above it have in common (xml.cc:681-716);
            # since 2.30.7 a GPU's own link is the current one, which the file does not tell.
            link=Link(max_speed=_speed(attributes), max_width=_width(attributes)),
        )
        self._found.pci.append(device)
        here = replace(place, parent=device.address, pci=device)
        children = list(self._children(pci, "pci", "gpu", "nic"))
        if not any(child.tag == "pci" for child in children):
            self._found.leaves.append(device)
        for child in children:
            if child.tag == "pci":
                self._read_pci(child, here)
            elif child.tag == "gpu":
                self._read_gpu(child, here)
            else:
                self._read_nic(child, here)

    def _unique_address(self, pci: Element, attributes: Attributes) -> str:
        address = attributes.address("busid")
        first = self._found.lines.get(address)
        if first is None:
            self._found.lines[address] = pci.line
            return address
        if not any(child.tag == "pci" for child in pci.children):
            raise InputError(
                f"{attributes.where}: busid",
                f"{address} stands on line {first} too",
                "each device has one place",
            )
        # People who write a file for a VM invent bridges, and NCCL does not mind the same bus id twice.
        invented = next(name for name in _spare_addresses() if name not in self._found.lines)
        self._found.lines[invented] = pci.line
        self._found.notes.append(
            f"bridge {address} stands on lines {first} and {pci.line}: the second is called {invented} here"
        )
        return invented

    # -- devices --

    def _read_gpu(self, gpu: Element, place: _Place) -> None:
        attributes = self._attributes(gpu)
        if place.parent in self._gpu_places:
            raise InputError(
                attributes.where, f"a second <gpu> at {place.parent}", "one <gpu> for each PCI function"
            )
        self._gpu_places.add(place.parent)
        links = tuple(self._nvlink(child) for child in self._children(gpu, "nvlink", "xgmi"))
        sm = attributes.integer("sm", 0, 9999)
        gcn = attributes.word("gcn")
        found = Gpu(
            name="",
            index=0,
            address=place.parent,
            model=None if gcn is None else f"gfx{gcn.removeprefix('gfx')}",
            # RCCL writes the number of compute units there.
            sm=sm if gcn is None else None,
            numa=place.numa,
            cpus=place.cpus,
            gdr=attributes.flag("gdr"),
            # NCCL asks the driver for links before it writes sm, so a <gpu> with sm and without links has none.
            nvlinks=links if links or sm is not None else None,
            c2c=self._c2c(gpu),
        )
        self._found.gpus.append(_FoundGpu(found, attributes.integer("dev", 0, 4095)))

    def _nvlink(self, link: Element) -> NvLink:
        attributes = self._attributes(link)
        attributes.required("count")
        hidden = attributes.text("target") == _HIDDEN_NVSWITCH
        target = _HIDDEN_NVSWITCH if hidden else attributes.address("target")
        return NvLink(target, attributes.integer("count", 1, 1024) or 1)

    def _c2c(self, gpu: Element) -> C2c | None:
        for element in self._children(gpu, "c2c"):
            attributes = self._attributes(element)
            count, mbytes = attributes.integer("count", 0, 1024), attributes.integer("bw", 0, 10**9)
            if count and mbytes:
                return C2c(count, mbytes)
        return None

    def _read_nic(self, nic: Element, place: _Place) -> None:
        for net in self._children(nic, "net"):
            attributes = self._attributes(net)
            attributes.required("name")
            name = attributes.word("name") or ""
            port = attributes.integer("port", 0, 255)
            rdma = port > 0 if port is not None else bool(_RDMA_NAME.match(name))
            merged = "+" in name
            if merged:
                self._found.notes.append(
                    f"{name}: NCCL merged several NICs into one here; "
                    "a dump with NCCL_NET_MERGE_LEVEL=LOC shows each"
                )
            found = Nic(
                name=name,
                address=place.pci.address if place.pci else None,
                rdma=name if rdma and not merged else None,
                # NCCL's socket transport writes port 0 (src/transport/net_socket.cc).
                netdev=name if port == 0 else None,
                port=port if port else None,
                rate=self._rate(attributes),
                numa=place.numa if place.pci or not self._first_cpu_of_several(place) else None,
                # The IB transport writes the system image GUID (src/transport/net_ib/init.cc): equal on all ports.
                # The socket transport writes its own index there.
                sys_image_guid=attributes.guid("guid") if port != 0 else None,
                gdr=attributes.flag("gdr"),
                bluefield=bluefield(place.pci),
            )
            self._found.nics.append((net.line, found))

    def _first_cpu_of_several(self, place: _Place) -> bool:
        """NCCL hangs a NIC without a PCI function on the first <cpu>, wherever it is (xml.cc, ncclTopoFillNet)."""
        return self._several_cpus and place.parent == self._found.roots[0].name

    def _rate(self, attributes: Attributes) -> int | None:
        rate = attributes.integer("speed", -(10**9), 10**9)
        if rate is None or rate <= 0:
            return None
        if rate > _RATE_INCREDIBLE:
            self._found.notes.append(
                f"line {attributes.element.line}: speed {rate} Mb/s of {attributes.text('name')} is not credible;"
                " taken as stated"
            )
        return rate

    # -- the whole --

    def _assembled(self) -> Facts:
        found = self._found
        numa, doubts = disjoint(found.numa, self._source.name)
        found.notes.extend(doubts)
        doubted = {node.id for node in found.numa} - {node.id for node in numa}
        gpus = tuple(replace(gpu, cpus=None) if gpu.numa in doubted else gpu for gpu in self._gpus())
        nics = self._nics()
        found.notes += questions(nics, found.pci)
        if not gpus and not nics and not any(device.class_code for device in found.pci):
            found.notes.append("the file names neither GPUs nor NICs: its PCI functions have no class")
        for tag, count in sorted(found.ignored.items()):
            found.notes.append(
                f"ignored {count} unknown element{'s' if count > 1 else ''} <{tag}>, as NCCL does"
            )
        return Facts(
            schema=SCHEMA,
            witnesses=(Witness("nccl-xml", self._source.name),),
            cpus=self._cpus(),
            numa=numa,
            roots=tuple(found.roots),
            pci=tuple(replace(pci, local_cpus=None) if pci.numa in doubted else pci for pci in found.pci),
            gpus=gpus,
            nics=nics,
            notes=tuple(found.notes),
        )

    def _cpus(self) -> Cpus:
        kinds = list(dict.fromkeys(self._found.cpus))
        if len(kinds) > 1:
            self._found.notes.append("the <cpu> elements name different processors; the first is taken")
        return kinds[0]

    def _gpus(self) -> tuple[Gpu, ...]:
        if not self._found.gpus:
            return self._gpus_by_class()
        ordered = sorted(self._found.gpus, key=lambda found: sort_key(found.gpu.address or ""))
        devs = [found.dev for found in ordered]
        if None not in devs and devs != sorted(devs, key=lambda dev: dev or 0):
            said = ", ".join(f"{found.dev} is GPU{index}" for index, found in enumerate(ordered))
            self._found.notes.append(f"the file numbers GPUs in another order than PCI (its dev {said})")
        return tuple(_numbered(index, found.gpu) for index, found in enumerate(ordered))

    def _gpus_by_class(self) -> tuple[Gpu, ...]:
        leaves = [
            leaf for leaf in self._found.leaves if leaf.vendor in _GPU_CLASSES.get(short_class(leaf), ())
        ]
        if leaves:
            self._found.notes.append(
                "skeleton: GPUs told by PCI class; their NVLinks and kind are not in the file"
            )
        leaves.sort(key=lambda leaf: sort_key(leaf.address))
        return tuple(
            _numbered(index, Gpu("", 0, leaf.address, numa=leaf.numa, cpus=leaf.local_cpus))
            for index, leaf in enumerate(leaves)
        )

    def _nics(self) -> tuple[Nic, ...]:
        if not self._found.nics:
            return self._nics_by_class()
        shared = Counter(nic.name for _, nic in self._found.nics)
        named: list[Nic] = []
        seen: dict[str, int] = {}
        for line, nic in self._found.nics:
            # Ports of one RDMA device share its name; NCCL_IB_HCA tells them apart as device:port.
            if shared[nic.name] > 1 and nic.port is not None:
                nic = replace(nic, name=f"{nic.name}:{nic.port}")
            if nic.name in seen:
                raise InputError(
                    f"{self._source.at(line)}: name",
                    f"{nic.name!r} stands on line {seen[nic.name]} too",
                    "names are unique",
                )
            seen[nic.name] = line
            named.append(nic)
        # Nets that hang off a <cpu> without a PCI function come last.
        return tuple(
            sorted(
                named,
                key=lambda nic: (nic.address is None, sort_key(nic.address or "0:0:0.0"), nic.port or 0),
            )
        )

    def _nics_by_class(self) -> tuple[Nic, ...]:
        leaves = [leaf for leaf in self._found.leaves if short_class(leaf) in _NIC_CLASSES]
        if leaves:
            self._found.notes.append(
                "skeleton: NIC speeds are not in the file; NICs told by PCI class and called by their address"
            )
        leaves.sort(key=lambda leaf: sort_key(leaf.address))
        return tuple(
            Nic(leaf.address, leaf.address, numa=leaf.numa, bluefield=bluefield(leaf)) for leaf in leaves
        )


def _spare_addresses() -> Iterator[str]:
    """Addresses in the last PCI domains, where no machine has devices; below the ones that people make up."""
    return (f"{domain:04x}:fe:{slot:02x}.0" for domain in range(0xFFFF, 0, -1) for slot in range(32))


def _numbered(index: int, gpu: Gpu) -> Gpu:
    return replace(gpu, name=f"GPU{index}", index=index)


def _family(number: int | None) -> int | None:
    """The family as /proc/cpuinfo has it.

    NCCL writes base + extended * 16 (xml.cc, ncclTopoGetXmlFromCpu), so AMD's 15 + 8 = 23 is 143 there. Files that
    people write have 23.
    """
    if number is None or number & 0xF != 0xF:
        return number
    return 0xF + (number >> 4)


def _speed(attributes: Attributes) -> float | None:
    value = attributes.text("link_speed")
    if value is None or value.lower().startswith("unknown"):
        return None
    match = _SPEED.match(value)
    if match is None:
        raise attributes.wrong("link_speed", 'a PCIe speed like "16.0 GT/s PCIe", or "" where unknown')
    return float(match[1])


def _width(attributes: Attributes) -> int | None:
    width = attributes.integer("link_width", 0, _WIDTH_UNREADABLE)
    if not width or width == _WIDTH_UNREADABLE:
        return None
    if width not in _WIDTHS:
        raise attributes.wrong("link_width", f"one of {', '.join(map(str, _WIDTHS))}, or 0 where unknown")
    return width
