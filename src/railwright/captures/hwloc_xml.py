"""hwloc's XML (`lstopo --of xml`), versions 1, 2 and 3: processors, NUMA nodes, PCI functions and what they carry.

hwloc states a link by its bandwidth, from which speed and width cannot be told, so links stay unknown. Version 2 does
not tell offline CPUs from disallowed ones. The format: hwloc's include/hwloc.h and hwloc/hwloc2.dtd.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from railwright.node.discover.pci import is_nic
from railwright.node.discover.questions import bluefield, questions
from railwright.node.model import (
    Core,
    Cpus,
    Facts,
    Gpu,
    Host,
    InputError,
    Nic,
    NumaNode,
    PciDevice,
    Root,
    format_cpulist,
    parse_cpulist,
    sort_key,
)
from railwright.node.model.pci import MELLANOX

from .attributes import Attributes
from .cpusets import disjoint
from .fields import facts_of, guid, name, port_state, refuse_crowd, uuid, whole
from .hwloc_kinds import core_kinds
from .pci_functions import INFINIBAND, gpus, kept, matters, short_class
from .source import Source
from .xml_tree import Element, Form, parse

_FORM = Form(root="topology", named_dtd=True, text=True, elements=100_000)
_MASK_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}", re.ASCII)
# 8192 CPUs: the largest CONFIG_NR_CPUS of a distribution kernel.
_MASK_WORDS = 256
_PCI_TYPE = re.compile(
    r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[([0-9a-f]{4}):([0-9a-f]{4})\])?(?: [0-9a-f]{2})?"
    r"(?: ([0-9a-f]{2}))?",
    re.ASCII,
)
_BRIDGE_PCI = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]", re.ASCII)
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_STATE = re.compile(r"Port(\d{1,3})State", re.ASCII)
_PORT_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active", "5": "active"}
_ARCHITECTURES = {"arm64": "aarch64"}


@dataclass
class _Carried:
    """OS devices on one PCI function."""

    networks: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    fabrics: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    model: str | None = None
    uuid: str | None = None


@dataclass
class _Place:
    """Where an object hangs: the PCI parent, the CPUs and the NUMA nodes of the nearest object that has some."""

    parent: str | None = None
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    socket: int | None = None
    l3: int | None = None
    function: str | None = None
    depth: int = 0


@dataclass
class _Found:
    nodes: list[NumaNode] = field(default_factory=list)
    cores: list[Core] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    carried: dict[str, _Carried] = field(default_factory=dict)
    packages: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_hwloc_xml(source: Source) -> Facts:
    """Facts of one machine from hwloc's XML. Raises InputError with file and line."""
    topology = parse(source, _FORM)
    if topology.tag != "topology":
        raise InputError(
            source.at(topology.line), f"the outermost element is <{topology.tag}>", "expected <topology>"
        )
    return _Reader(source, topology).facts()


class _Reader:
    def __init__(self, source: Source, topology: Element) -> None:
        self._source = source
        self._topology = topology
        version = topology.attributes.get("version", "1.0").split(".")[0]
        if version not in {"1", "2", "3"}:
            raise InputError(
                source.at(topology.line), f"version {version[:20]!r}", "expected hwloc's XML 1, 2 or 3"
            )
        self._version = int(version)
        self._found = _Found()
        self._memory_only: set[int] = set()

    def facts(self) -> Facts:
        machines = [child for child in self._topology.children if child.tag == "object"]
        if len(machines) != 1 or machines[0].attributes.get("type") not in {"Machine", "System"}:
            raise InputError(
                self._source.at(self._topology.line), "holds no single Machine", "give the XML of one machine"
            )
        machine = machines[0]
        self._memory_only = self._nodes_without_cpus(machine)
        self._object(machine, _Place())
        found = self._found
        online = tuple(sorted(found.threads))
        if not online:
            raise InputError(
                self._source.at(machine.line), "holds no PU", "expected the processors, as lstopo writes them"
            )
        numa, doubts = disjoint(self._nodes(online), self._source.name)
        found.notes.extend(doubts)
        node_of = {cpu: node.id for node in self._found.nodes for cpu in _cpus_of(node.cpus)}
        self._refuse_shared_cores(machine)
        # A function's CPUs are its node's, however deep in the processors a file hangs it.
        cpus_of = {node.id: node.cpus for node in numa}
        found.pci = {
            address: device if device.numa is None else replace(device, local_cpus=cpus_of.get(device.numa))
            for address, device in found.pci.items()
        }
        lost = {device.numa for device in found.pci.values() if device.numa is not None} - set(cpus_of)
        if lost:
            names = ", ".join(f"numa{node}" for node in sorted(lost))
            found.notes.append(f"PCI devices stand on {names}, of which the file shows nothing: is it whole?")
        host, infos = self._host(machine)
        devices = kept(found.pci, (address for address, device in found.pci.items() if self._matters(device)))
        tops = {device.parent for device in devices}
        nics = self._nics(devices)
        found.notes += questions(nics, devices)
        return facts_of(
            "hwloc",
            self._source,
            host=host,
            cpus=self._cpus(machine, online, infos, node_of),
            numa=numa,
            roots=tuple(root for root in found.roots if root.name in tops),
            pci=devices,
            gpus=self._gpus(devices),
            nics=nics,
            notes=tuple(found.notes),
        )

    def _nodes_without_cpus(self, machine: Element) -> set[int]:
        """Nodes that only hold memory.

        hwloc puts HBM and CXL nodes beside the nearest CPUs; the kernel gives a CPU to one node, and numbers nodes with
        CPUs first.
        """
        owners: dict[str, list[int]] = {}
        waiting = [machine]
        while waiting:
            element = waiting.pop()
            waiting += element.children
            number = element.attributes.get("os_index", "")
            if element.attributes.get("type") == "NUMANode" and re.fullmatch(r"[0-9]{1,4}", number):
                owners.setdefault(element.attributes.get("cpuset", ""), []).append(int(number))
        doubles = {node for nodes in owners.values() for node in sorted(nodes)[1:]}
        if doubles:
            named = ", ".join(map(str, sorted(doubles)))
            self._found.notes.append(
                f"NUMA nodes {named} lie beside CPUs of a node with a lower number: taken for memory without CPUs"
            )
        return doubles

    # -- objects --

    def _object(self, element: Element, place: _Place) -> None:
        attributes = Attributes(self._source, element)
        kind = attributes.text("type") or ""
        here = replace(place, depth=place.depth + 1)
        cpus, nodes = self._mask(attributes, "cpuset"), self._mask(attributes, "nodeset")
        if cpus is not None:
            here.cpus = cpus
            here.nodes = tuple(node for node in nodes or () if node not in self._memory_only)
        if kind in {"Package", "Socket"}:
            here.socket = attributes.integer("os_index", -1, 2**20)
            self._found.packages.append(_infos(element))
        elif kind == "L3Cache" or (kind == "Cache" and attributes.text("depth") == "3"):
            here.l3 = min(cpus) if cpus else None
        elif kind == "NUMANode":
            self._node(element, attributes, cpus)
        elif kind == "Core":
            self._core(attributes, here)
        elif kind == "PU":
            self._thread(attributes)
        elif kind == "Bridge":
            self._bridge(element, attributes, here)
        elif kind == "PCIDev":
            here.parent = here.function = self._function(element, attributes, here).address
        elif kind == "OSDev" and here.function is not None:
            self._os_device(element, attributes, self._found.carried.setdefault(here.function, _Carried()))
        for child in element.children:
            if child.tag == "object":
                self._object(child, here)

    def _mask(self, attributes: Attributes, what: str) -> tuple[int, ...] | None:
        text = attributes.text(what)
        if text is None:
            return None
        words = text.split(",")
        # "0xf...f" is an infinite set, which no machine's part has; words of zeros may be left empty.
        if len(words) > _MASK_WORDS or not all(_MASK_WORD.fullmatch(word) for word in words if word):
            raise attributes.wrong(what, "a mask like 0x000000ff,0xffffffff")
        mask = 0
        for word in words:
            mask = mask << 32 | int(word or "0", 16)
        return tuple(n for n, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")

    def _node(self, element: Element, attributes: Attributes, cpus: tuple[int, ...] | None) -> None:
        number = attributes.integer("os_index", 0, 1023)
        if number is None:
            raise InputError(attributes.where, "<object type=NUMANode> without os_index")
        if cpus is None:
            raise InputError(
                attributes.where, "<object type=NUMANode> without cpuset", "expected one, 0x0 for no CPU"
            )
        if any(node.id == number for node in self._found.nodes):
            raise InputError(attributes.where, f"NUMA node {number} stands twice", "each node has one place")
        told = attributes.text("local_memory")
        memory = None if told is None else whole(told, 0, 2**48, f"{attributes.where}: local_memory")
        own = () if number in self._memory_only else cpus
        self._found.nodes.append(NumaNode(number, format_cpulist(own), (), memory or None))

    def _core(self, attributes: Attributes, place: _Place) -> None:
        if place.cpus:
            self._found.cores.append(Core(place.cpus, place.socket, None, place.l3))

    def _thread(self, attributes: Attributes) -> None:
        cpu = attributes.integer("os_index", 0, 8191)
        if cpu is None:
            raise InputError(attributes.where, "<object type=PU> without os_index")
        if cpu in self._found.threads:
            raise InputError(attributes.where, f"PU {cpu} stands twice", "each CPU has one place")
        running = self._mask(attributes, "online_cpuset" if self._version == 1 else "cpuset")
        # Version 1 keeps PUs that are off, with an empty set.
        if running is None or cpu in running:
            self._found.threads.add(cpu)

    def _bridge(self, element: Element, attributes: Attributes, here: _Place) -> None:
        if attributes.text("pci_busid") is not None:
            here.parent = self._function(element, attributes, here).address
            return
        match = _BRIDGE_PCI.fullmatch(attributes.text("bridge_pci") or "")
        if match is None:
            raise attributes.wrong("bridge_pci", "the buses of a host bridge, like 0000:[2b-3b]")
        here.parent = f"pci{int(match[1], 16):04x}:{match[2]}"
        if any(root.name == here.parent for root in self._found.roots):
            raise InputError(
                attributes.where, f"host bridge {here.parent} stands twice", "each has one place"
            )
        self._found.roots.append(Root(here.parent, _single(here.nodes)))

    def _function(self, element: Element, attributes: Attributes, place: _Place) -> PciDevice:
        address = attributes.address("pci_busid")
        if address in self._found.pci:
            raise InputError(
                attributes.where,
                f"{address} stands on line {self._found.lines[address]} too",
                "each function has one place",
            )
        match = _PCI_TYPE.fullmatch(attributes.text("pci_type") or "")
        if match is None:
            raise attributes.wrong("pci_type", "a form like 0302 [10de:2330] [10de:16c1] a1 00")
        known = match[2] not in {"0000", "ffff"}
        subsystem = known and match[4] not in {None, "0000", "ffff"}
        numa = _single(place.nodes)
        device = PciDevice(
            address=address,
            parent=place.parent,
            vendor=f"0x{match[2]}" if known else None,
            device=f"0x{match[3]}" if known else None,
            subsystem_vendor=f"0x{match[4]}" if subsystem else None,
            subsystem_device=f"0x{match[5]}" if subsystem else None,
            class_code=None if match[1] == "0000" else f"0x{match[1]}{match[6] or ''}",
            numa=numa,
            slot=_infos(element).get("PCISlot"),
        )
        self._found.pci[address] = device
        self._found.lines[address] = element.line
        refuse_crowd(len(self._found.pci), "PCI functions", attributes.where)
        return device

    def _os_device(self, element: Element, attributes: Attributes, carried: _Carried) -> None:
        kinds = attributes.integer("osdev_type", 0, 255) or 0
        infos = _infos(element)
        # Version 3 made the kinds bits (include/hwloc.h, hwloc_obj_osdev_type_e).
        if self._version == 3:
            network, fabric, gpu = bool(kinds & 16), bool(kinds & 32), bool(kinds & 12)
        else:
            network, fabric, gpu = kinds == 2, kinds == 3, kinds in {1, 5}
        device = attributes.text("name") or ""
        if fabric:
            carried.fabrics.append((name(device, attributes.where), infos))
        elif network:
            carried.networks.append((name(device, attributes.where), infos))
        elif gpu:
            carried.model = infos.get("GPUModel") or carried.model
            carried.uuid = uuid(infos.get("NVIDIAUUID", "")) or carried.uuid

    # -- the whole --

    def _matters(self, device: PciDevice) -> bool:
        carried = self._found.carried.get(device.address, _Carried())
        return matters(device) or bool(
            carried.fabrics or (carried.networks and short_class(device).startswith("0x02"))
        )

    def _nodes(self, online: tuple[int, ...]) -> list[NumaNode]:
        running = set(online)
        distances = self._distances()
        ordered = sorted(self._found.nodes, key=lambda node: node.id)
        result = []
        for position, node in enumerate(ordered):
            cpus = format_cpulist(set(_cpus_of(node.cpus)) & running)
            row = distances[position] if len(distances) == len(ordered) else ()
            result.append(replace(node, cpus=cpus, distances=row))
        self._found.nodes = result
        return result

    def _distances(self) -> list[tuple[int, ...]]:
        """NUMA distances, a row a node in ascending order of nodes; [] where they are not there."""
        for element in self._topology.children:
            if element.tag == "distances2" and element.attributes.get("name", "NUMALatency") == "NUMALatency":
                return self._matrix2(element)
        for machine in self._topology.children:
            for element in machine.children:
                if element.tag == "distances" and self._of_nodes(element):
                    return self._matrix1(element)
        return []

    def _matrix2(self, element: Element) -> list[tuple[int, ...]]:
        if element.attributes.get("type") != "NUMANode" or element.attributes.get("indexing", "os") != "os":
            return []
        where = self._source.at(element.line)
        indexes = self._numbers(element, "indexes")
        values = self._numbers(element, "u64values")
        if sorted(indexes) != sorted(node.id for node in self._found.nodes):
            return []
        if len(values) != len(indexes) ** 2:
            raise InputError(where, f"{len(values)} distances of {len(indexes)} nodes", "expected a square")
        return _ordered(indexes, values)

    def _numbers(self, element: Element, tag: str) -> list[int]:
        words = " ".join(child.text for child in element.children if child.tag == tag).split()
        return [whole(word, 0, 10**9, self._source.at(element.line)) for word in words]

    def _of_nodes(self, element: Element) -> bool:
        return element.attributes.get("nbobjs") == str(len(self._found.nodes))

    def _matrix1(self, element: Element) -> list[tuple[int, ...]]:
        """Version 1 states them relative to a base, nodes in logical order, which is that of the file."""
        where = self._source.at(element.line)
        try:
            base = _decimal(element.attributes.get("latency_base", ""))
            values = [
                round(_decimal(child.attributes.get("value", "")) * base)
                for child in element.children
                if child.tag == "latency"
            ]
        except ValueError as error:
            raise InputError(
                where, "a distance is no number", "expected latency_base and latency values"
            ) from error
        count = len(self._found.nodes)
        if len(values) != count**2 or not all(0 < value < 1000 for value in values):
            raise InputError(
                where, f"{len(values)} distances of {count} nodes", "expected a square of small numbers"
            )
        return _ordered([node.id for node in self._found.nodes], values)

    def _refuse_shared_cores(self, machine: Element) -> None:
        placed: set[int] = set()
        for core in self._found.cores:
            if placed & set(core.cpus):
                raise InputError(
                    self._source.at(machine.line),
                    f"cores share CPU {min(placed & set(core.cpus))}",
                    "each CPU has one core",
                )
            placed |= set(core.cpus)

    def _cpus(
        self, machine: Element, online: tuple[int, ...], infos: dict[str, str], node_of: dict[int, int]
    ) -> Cpus:
        attributes = Attributes(self._source, machine)
        package = self._found.packages[0] if self._found.packages else {}
        package = {**infos, **package}
        running = set(online)
        kinds = core_kinds(
            [
                (self._mask(Attributes(self._source, kind), "cpuset") or (), _infos(kind), kind.attributes)
                for kind in self._topology.children
                if kind.tag == "cpukind"
            ]
        )
        cores = []
        for core in self._found.cores:
            members = tuple(cpu for cpu in core.cpus if cpu in running)
            if members:
                kind = kinds.get(members[0])
                cores.append(replace(core, cpus=members, numa=node_of.get(members[0]), kind=kind))
        if running - {cpu for core in cores for cpu in core.cpus}:
            # A virtual machine may hide its cores: then nothing tells which CPUs share one.
            cores = []
        complete = set(self._mask(attributes, "complete_cpuset") or ())
        allowed = self._mask(attributes, "allowed_cpuset")
        offline = None
        if self._version == 1 and (on := self._mask(attributes, "online_cpuset")) is not None:
            offline = format_cpulist(complete - set(on))
        elif complete - running:
            self._found.notes.append(
                f"CPUs {format_cpulist(complete - running)} are offline or not allowed: the file does not tell which"
            )
        return Cpus(
            arch=_ARCHITECTURES.get(infos.get("Architecture", ""), infos.get("Architecture") or None),
            vendor=package.get("CPUVendor") or package.get("CPUImplementer") or None,
            family=self._number(package, "CPUFamilyNumber"),
            model=self._number(package, "CPUModelNumber"),
            model_name=package.get("CPUModel") or None,
            online=format_cpulist(online),
            offline=offline,
            allowed=None
            if allowed is None or set(allowed) >= running
            else format_cpulist(set(allowed) & running),
            cores=tuple(sorted(cores, key=lambda core: core.cpus[0])),
        )

    def _number(self, infos: dict[str, str], what: str) -> int | None:
        text = infos.get(what)
        return None if not text else whole(text, 0, 0xFFFF, f"{self._source.name}: {what}")

    def _host(self, machine: Element) -> tuple[Host, dict[str, str]]:
        """Version 3 keeps what concerns the whole beside the machine, older ones in it."""
        infos = {**_infos(self._topology), **_infos(machine)}
        words = [infos[key] for key in ("DMISysVendor", "DMIProductName") if infos.get(key)]
        return (
            Host(
                name=infos.get("HostName") or None,
                kernel=infos.get("OSRelease") or None,
                product=" ".join(words) or infos.get("PlatformModel") or None,
            ),
            infos,
        )

    def _gpus(self, devices: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
        carried = self._found.carried
        return tuple(
            replace(gpu, model=(found := carried.get(gpu.address or "", _Carried())).model, uuid=found.uuid)
            for gpu in gpus(devices)
        )

    def _nics(self, devices: tuple[PciDevice, ...]) -> tuple[Nic, ...]:
        nics: list[Nic] = []
        for device in devices:
            carried = self._found.carried.get(device.address, _Carried())
            base = Nic(
                device.address,
                device.address,
                numa=device.numa,
                link_layer="InfiniBand" if short_class(device) == INFINIBAND else None,
                management=None if device.vendor in {MELLANOX, None} else False,
                bluefield=bluefield(device),
            )
            ports = [port for entry in carried.fabrics for port in self._ports(base, *entry)]
            networks = list(carried.networks)
            for number, port in enumerate(ports):
                near = [entry for entry in networks if _port_of(entry[1]) in {None, port.port}]
                if len(near) == 1:
                    networks.remove(near[0])
                    ports[number] = _with_network(port, *near[0])
            nics += ports
            nics += [_with_network(replace(base, name=netdev), netdev, infos) for netdev, infos in networks]
            if not ports and not carried.networks and is_nic(device):
                nics.append(base)
        shared: dict[str, int] = {}
        for nic in nics:
            shared[nic.name] = shared.get(nic.name, 0) + 1
        if any(
            count > 1 and not any(nic.name == key and nic.port for nic in nics)
            for key, count in shared.items()
        ):
            raise InputError(
                self._source.name, "two network devices have one name", "give the XML of one machine"
            )
        named = [replace(nic, name=f"{nic.name}:{nic.port}") if shared[nic.name] > 1 else nic for nic in nics]
        return tuple(sorted(named, key=lambda nic: (sort_key(nic.address or ""), nic.port or 0, nic.name)))

    def _ports(self, base: Nic, device: str, infos: dict[str, str]) -> list[Nic]:
        where = f"{self._source.name}: {device}"
        states = {int(match[1]): value for key, value in infos.items() if (match := _STATE.fullmatch(key))}
        common = replace(
            base,
            name=device,
            rdma=device,
            guid=guid(infos["NodeGUID"], where) if infos.get("NodeGUID") else None,
            sys_image_guid=guid(infos["SysImageGUID"], where) if infos.get("SysImageGUID") else None,
        )
        ports = [
            replace(common, port=number, state=_PORT_STATES.get(value) or port_state(value, where))
            for number, value in sorted(states.items())
        ]
        return ports or [common]


def _with_network(nic: Nic, netdev: str, infos: dict[str, str]) -> Nic:
    address = infos.get("Address", "").lower()
    return replace(nic, netdev=netdev, mac=address if _MAC.fullmatch(address) else None)


def _port_of(infos: dict[str, str]) -> int | None:
    text = infos.get("Port", "")
    return int(text) if re.fullmatch(r"[0-9]{1,3}", text) else None


def _infos(element: Element) -> dict[str, str]:
    return {
        child.attributes.get("name", ""): child.attributes.get("value", "").strip()
        for child in element.children
        if child.tag == "info"
    }


def _single(nodes: tuple[int, ...] | None) -> int | None:
    return nodes[0] if nodes is not None and len(nodes) == 1 else None


def _cpus_of(text: str) -> tuple[int, ...]:
    return parse_cpulist(text, "cpuset")


def _decimal(text: str) -> float:
    """Raises ValueError for what is no plain decimal number: float() takes "nan", "1_0" and digits of every script."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text):
        raise ValueError(text)
    return float(text)


def _ordered(indexes: list[int], values: list[int]) -> list[tuple[int, ...]]:
    count = len(indexes)
    order = sorted(range(count), key=indexes.__getitem__)
    return [tuple(values[row * count + column] for column in order) for row in order]
