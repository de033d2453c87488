"""An NCCL topology file as a machine.

NCCL writes what it needs of a machine and leaves out the rest. Of what is missing, this module makes what a kernel
must show for a tree to be read at all, and nothing that would change what the file says:

* Of a PCIe switch NCCL keeps the upstream port only: it climbs two levels a time (src/graph/xml.cc:
  ncclTopoGetXmlFromSys). So each child of a switch gets a downstream port, and each device under a CPU a host bridge
  with a root port of its own.
* A link counts as the minimum of a device and the port above it; both ends get the value of the file.
* Two `<net>` in one `<pci>` are two functions of one card, which NCCL merges: port 2 becomes function 1.
* The file knows no sockets, cores or siblings. Each NUMA node becomes a socket. CPUs pair up as siblings where the
  mask of every node is two runs of one length at one distance, as x86 numbers them; else each CPU is a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .cpusets import format_list, parse_mask
from .description import parse
from .errors import MachineError
from .model import SPEEDS, Address, Machine

_PCI_BRIDGE = 0x0604
_ETHERNET, _INFINIBAND = 0x0200, 0x0207
_LOCAL_DISTANCE, _REMOTE_DISTANCE = 10, 21


def build_from_nccl_xml(path: Path, dest: Path) -> Machine:
    """Lays out the machine of the NCCL topology file `path` as a file tree at `dest`.

    Raises MachineError where the file describes no machine that a kernel could show (a skeleton without devices,
    a device under a bridge in another PCI domain).
    """
    from .build import tree_of

    machine = machine_of_nccl_xml(path)
    tree_of(machine).write(dest)
    return machine


def machine_of_nccl_xml(path: Path) -> Machine:
    """The machine of an NCCL topology file."""
    try:
        # S314: the file is the test's own input, and the tree is all we take of it.
        system = ElementTree.parse(path).getroot()  # noqa: S314
    except ElementTree.ParseError as error:
        raise MachineError(
            str(path), f"is no XML: {error}", "name a file that NCCL_TOPO_DUMP_FILE wrote"
        ) from error
    if system.tag != "system":
        raise MachineError(
            str(path), f"starts with <{system.tag}>", "name a file that NCCL_TOPO_DUMP_FILE wrote"
        )
    description = _Reader(path.name, system).description()
    return parse(description, {}, path.stem)


class _Reader:
    """One file on its way to a description."""

    def __init__(self, name: str, system: ElementTree.Element) -> None:
        self._name = name
        self._cpus = system.findall("cpu")
        self._used = {
            (address.domain, address.bus)
            for element in system.iter("pci")
            for address in [Address.parse(element.get("busid", ""), name)]
        }
        self._hosts: dict[str, dict[str, int]] = {}
        self._devices: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._nics: dict[str, dict[str, Any]] = {}

    def description(self) -> dict[str, Any]:
        if not self._cpus:
            raise MachineError(self._name, "holds no <cpu>", "name a whole topology file")
        nodes = {}
        width = 0
        for cpu in self._cpus:
            node = int(cpu.get("numaid", "-1"))
            mask = cpu.get("affinity", "")
            nodes[node] = parse_mask(mask, f"{self._name}: <cpu numaid={node}>")
            width = max(width, 4 * len(mask.replace(",", "")))
            for item in cpu.findall("pci"):
                self._top(item, node)
        known = {node: cpus for node, cpus in nodes.items() if node >= 0}
        if not any(known.values()):
            raise MachineError(self._name, "names no CPU of any NUMA node", "name a file with CPU masks")
        first = self._cpus[0]
        return {
            "about": f"The machine of the NCCL topology file {self._name}.",
            "source": self._name,
            "architecture": first.get("arch", "x86_64"),
            "kernel": {
                "release": "5.15.0-119-generic",
                "build": "(builder@build) #129-Ubuntu SMP Fri Aug 2 19:25:20 UTC 2024",
                "cmdline": "BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro",
                "boot_id": "5d7ba2a0-2c7f-4f0e-9d53-6f4b8a8f0001",
            },
            "cpus": {
                "vendor": first.get("vendor", "GenuineIntel"),
                "family": int(first.get("familyid", "6")),
                "model": int(first.get("modelid", "143")),
                "name": "CPU",
                "nodes": {node: format_list(cpus) for node, cpus in known.items()},
                "possible": max(width, 1 + max(cpu for cpus in known.values() for cpu in cpus)),
                **_siblings(list(known.values())),
            },
            "memory_gib": dict.fromkeys(known, 64),
            "numa_distance": {
                node: " ".join(
                    str(_LOCAL_DISTANCE if node == other else _REMOTE_DISTANCE) for other in sorted(known)
                )
                for node in known
            },
            "hosts": self._hosts,
            "parts": self._parts,
            "devices": self._devices,
            "nics": self._nics,
        }

    def _top(self, element: ElementTree.Element, node: int) -> None:
        """A device right under a CPU: behind a root port, or on the root bus itself where there is no bus below."""
        address = self._address(element)
        bus = self._free_below(address)
        if bus is None:
            host = address.bus_name
            self._hosts.setdefault(host, {"numa": node})
            self._device(element, address, host)
            return
        host = f"{address.domain:04x}:{bus:02x}"
        self._hosts[host] = {"numa": node}
        port = Address(address.domain, bus, 1, 0)
        self._port(port, "root-port", host, element)
        self._device(element, address, str(port))

    def _free_below(self, address: Address) -> int | None:
        for bus in range(address.bus - 1, -1, -1):
            if (address.domain, bus) not in self._used:
                self._used.add((address.domain, bus))
                return bus
        return None

    def _free_above(self, address: Address) -> int:
        for bus in chain(range(address.bus + 1, 256), range(address.bus)):
            if (address.domain, bus) not in self._used:
                self._used.add((address.domain, bus))
                return bus
        raise MachineError(
            f"{self._name}: {address}", "leaves no bus number free", "split the file's PCI domain"
        )

    def _device(self, element: ElementTree.Element, address: Address, under: str) -> None:
        bridge = int(element.get("class", "0"), 16) >> 8 == _PCI_BRIDGE
        children = element.findall("pci")
        if children and not bridge:
            raise MachineError(
                f"{self._name}: {address}", "holds devices but is no bridge", "correct its class"
            )
        part = self._part(element, "upstream" if bridge else "endpoint")
        entry = {"part": part, "under": under, "link": _link(element, f"{self._name}: {address}")}
        self._devices[str(address)] = entry
        if bridge:
            bus = self._free_above(address)
            if not children:
                entry["secondary"] = f"{bus:02x}"
            for number, child in enumerate(children):
                self._below(child, Address(address.domain, bus, number, 0), str(address), element)
            return
        for net in element.iter("net"):
            self._net(net, element, address, entry)

    def _below(
        self, child: ElementTree.Element, port: Address, above: str, switch: ElementTree.Element
    ) -> None:
        address = self._address(child)
        if address.domain != port.domain:
            raise MachineError(
                f"{self._name}: {address}",
                f"lies below {above}, in another PCI domain",
                "name a file of bare metal",
            )
        self._port(port, "downstream", above, child, switch)
        self._device(child, address, str(port))

    def _port(
        self,
        port: Address,
        kind: str,
        under: str,
        child: ElementTree.Element,
        switch: ElementTree.Element | None = None,
    ) -> None:
        if switch is None:
            self._parts.setdefault("root-port", {"id": "8086:352a", "class": "060400", "port": "root-port"})
            part = "root-port"
        else:
            part = self._part(switch, kind)
        self._devices[str(port)] = {
            "part": part,
            "under": under,
            "link": _link(child, f"{self._name}: {port}"),
        }

    def _part(self, element: ElementTree.Element, port: str) -> str:
        fields = {key: element.get(key, "0x0").removeprefix("0x") for key in _IDENTITY}
        name = "-".join((port, *fields.values()))
        part: dict[str, Any] = {
            "id": f"{fields['vendor']}:{fields['device']}",
            "subsystem": f"{fields['subsystem_vendor']}:{fields['subsystem_device']}",
            "class": fields["class"],
            "port": port,
        }
        if int(fields["class"], 16) >> 8 in (_ETHERNET, _INFINIBAND):
            part["rdma"] = {"hca_type": "MT0", "board_id": "NCCL0000000000", "firmware": "0.0.0"}
        self._parts.setdefault(name, part)
        return name

    def _net(
        self, net: ElementTree.Element, element: ElementTree.Element, first: Address, entry: dict[str, Any]
    ) -> None:
        name = net.get("name", "")
        port = int(net.get("port", "1"))
        speed = int(net.get("speed", "0"))
        if not name or not 0 <= port <= 8 or speed % 1000:
            raise MachineError(
                f"{self._name}: {first}",
                f"<net> '{name}' has port {port} and speed {speed}",
                "name a whole file",
            )
        # Port 0 is a socket: a network device of which NCCL used no RDMA.
        address = Address(first.domain, first.bus, first.device, max(port - 1, 0))
        self._devices.setdefault(str(address), dict(entry))
        number = len(self._nics)
        guid = f"{int(net.get('guid', '0x0'), 16):016x}"
        self._nics[name] = {
            "at": str(address),
            "netdev": f"if{number}" if port else name,
            "mac": f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}",
            "gbps": speed // 1000,
            "layer": "InfiniBand" if int(element.get("class", "0"), 16) >> 8 == _INFINIBAND else "Ethernet",
            "image_guid": ":".join(guid[index : index + 4] for index in range(0, 16, 4)),
            **({"rdma": name} if port else {}),
        }

    def _address(self, element: ElementTree.Element) -> Address:
        return Address.parse(element.get("busid", ""), f"{self._name}: busid")


_IDENTITY = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")


def _link(element: ElementTree.Element, where: str) -> str:
    speed = element.get("link_speed", "").split()[:1]
    width = element.get("link_width", "")
    if not speed or width in ("", "0"):
        return "unknown"
    text = speed[0] if "." in speed[0] else f"{speed[0]}.0"
    if text not in SPEEDS or not width.isdigit():
        raise MachineError(where, f"link '{speed[0]}' x '{width}'", "correct link_speed and link_width")
    return f"{text}x{width}"


def _siblings(nodes: list[tuple[int, ...]]) -> dict[str, int]:
    """The distance of siblings, where the masks show one."""
    distances = set()
    for cpus in nodes:
        runs = list(_runs(cpus))
        if len(runs) != 2 or runs[0][1] != runs[1][1]:
            return {}
        distances.add(runs[1][0] - runs[0][0])
    return {"sibling_distance": distances.pop()} if len(distances) == 1 else {}


def _runs(cpus: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(first, length) of each run of neighbouring numbers."""
    start = None
    for position, cpu in enumerate(cpus):
        if start is None:
            start = cpu
        if position + 1 == len(cpus) or cpus[position + 1] != cpu + 1:
            yield start, cpu - start + 1
            start = None
