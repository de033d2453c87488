"""What the virtual machine looks like: sockets, NUMA nodes, PCIe switches, and where its GPUs and NICs stand.

A layout is data. What QEMU is told and what the tests expect in the guest are both derived from it, so the tests ask
tools in the guest (lspci, numactl, lstopo) whether QEMU and the guest's kernel came to the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LabError

# A root bus for each NUMA node, so far apart that the buses below one never reach the next.
_FIRST_BUS, _BUS_STEP = 0x20, 0x30
# A switch takes the bus of its upstream port, its inner bus, and one for each of its three downstream ports.
_BUSES_OF_A_SWITCH = 5
MANAGEMENT_MAC = "52:54:00:00:00:01"
FRONT_MAC = "52:54:00:00:00:02"
# ACPI SLIT: 10 is a node itself; 12 and 21 are what two-socket servers with several nodes a socket report.
_SELF, _SAME_SOCKET, _OTHER_SOCKET = 10, 12, 21


@dataclass(frozen=True)
class Slot:
    """A place in the PCIe tree. number: of its kind, from 0; switch: its upstream port's address, if any."""

    number: int
    node: int
    pci: str
    switch: str | None = None


@dataclass(frozen=True)
class Layout:
    """sockets, cores (of a socket), threads (of a core), nodes: how many; switches: of each node; memory: MiB in all.

    Each switch has a NIC of a rail, a GPU and an empty slot below it. The NIC of the front end is on a root port of the
    last node.
    """

    name: str
    sockets: int
    cores: int
    threads: int
    nodes: int
    switches: int
    memory: int = 2048

    @property
    def cpus(self) -> int:
        return self.sockets * self.cores * self.threads

    def cpus_of(self, node: int) -> range:
        each = self.cpus // self.nodes
        return range(node * each, (node + 1) * each)

    def distance(self, one: int, other: int) -> int:
        """Between two NUMA nodes, as ACPI's SLIT counts."""
        a_socket = self.nodes // self.sockets
        if one == other:
            return _SELF
        return _SAME_SOCKET if one // a_socket == other // a_socket else _OTHER_SOCKET

    @property
    def rails(self) -> tuple[Slot, ...]:
        """The NIC of each rail."""
        return self._slots(0)

    @property
    def front(self) -> Slot:
        """The NIC of the front end."""
        node = self.nodes - 1
        bus = self.root_bus(node) + 1 + self.switches * _BUSES_OF_A_SWITCH
        return Slot(0, node, f"0000:{bus:02x}:00.0")

    @property
    def gpus(self) -> tuple[Slot, ...]:
        return self._slots(1)

    @property
    def spare(self) -> tuple[Slot, ...]:
        """Empty slots, for what is plugged in while the machine runs."""
        return self._slots(2)

    def root_bus(self, node: int) -> int:
        return _FIRST_BUS + node * _BUS_STEP

    def _slots(self, port: int) -> tuple[Slot, ...]:
        slots: list[Slot] = []
        for node in range(self.nodes):
            for switch in range(self.switches):
                upstream = self.root_bus(node) + 1 + switch * _BUSES_OF_A_SWITCH
                here = f"0000:{upstream + 2 + port:02x}:00.0"
                slots.append(Slot(len(slots), node, here, f"0000:{upstream:02x}:00.0"))
        return tuple(slots)


def rail_mac(number: int) -> str:
    return f"52:54:00:10:00:{number:02x}"


LAYOUTS = {
    one.name: one
    for one in (
        Layout("two-nodes", sockets=2, cores=2, threads=2, nodes=2, switches=1),
        Layout("four-nodes", sockets=2, cores=2, threads=2, nodes=4, switches=1),
    )
}


def layout(name: str) -> Layout:
    """Raises LabError where there is none of that name."""
    if name not in LAYOUTS:
        raise LabError("layout", f"{name!r} is none of the lab's", f"expected {' or '.join(LAYOUTS)}")
    return LAYOUTS[name]
