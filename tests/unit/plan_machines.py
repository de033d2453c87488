"""Machines for tests of the planner, built part by part, in both forms in which a witness can show a PCI tree.

A `Chassis` is also its own oracle: it knows the links between its parts as they were put together, and walks them
without any code of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from railwright.node.model import (
    Core,
    Cpus,
    Facts,
    Gpu,
    Host,
    Link,
    Nic,
    NumaNode,
    NvLink,
    PciDevice,
    Root,
    Witness,
    format_cpulist,
)
from railwright.node.model.facts import SCHEMA

# GB/s of one lane: NCCL's table, in 100 Mb/s, divided by 80.
LANE_GBYTES = {2.5: 15 / 80, 5.0: 30 / 80, 8.0: 60 / 80, 16.0: 120 / 80, 32.0: 240 / 80, 64.0: 480 / 80}


@dataclass
class Part:
    """A switch, GPU or NIC: what it hangs below (a part, or a NUMA node's number) and the link to it."""

    kind: str
    name: str
    below: Part | int | None
    speed: float | None
    width: int | None
    more: dict[str, Any] = field(default_factory=dict)
    address: str = ""

    @property
    def gbytes(self) -> float:
        return LANE_GBYTES[self.speed if self.speed is not None else 8.0] * (self.width or 16)


class Chassis:
    """A machine under construction. `below` is a switch, or the number of a NUMA node."""

    def __init__(self, cross: float = 22, cpus: Cpus | None = None, **host: Any) -> None:
        self.cross = cross
        self.cpus = cpus or Cpus(arch="x86_64", vendor="GenuineIntel", family=6, model=0x8F)
        self.host = host
        self.parts: list[Part] = []
        self.nodes: dict[int, str] = {}

    # -- putting it together --

    def switch(
        self, below: Part | int | None, speed: float | None = 32.0, width: int | None = 16, **ids: Any
    ) -> Part:
        return self._add("switch", f"sw{len(self.parts)}", below, speed, width, ids)

    def gpu(
        self, below: Part | int | None, speed: float | None = 32.0, width: int | None = 16, **more: Any
    ) -> Part:
        return self._add("gpu", f"gpu{len(self.parts)}", below, speed, width, more)

    def nic(
        self,
        below: Part | int | None,
        name: str,
        rate: int | None = 400_000,
        speed: float | None = 32.0,
        width: int | None = 16,
        **more: Any,
    ) -> Part:
        known = {"rdma": name, "port": 1, "state": "active", "link_layer": "InfiniBand", "rate": rate}
        return self._add("nic", name, below, speed, width, {**known, **more})

    def _add(
        self,
        kind: str,
        name: str,
        below: Part | int | None,
        speed: float | None,
        width: int | None,
        more: dict[str, Any],
    ) -> Part:
        part = Part(kind, name, below, speed, width, more)
        self.parts.append(part)
        return part

    # -- as witnesses show it --

    def facts(self, form: str = "sysfs", first_bus: int = 0x10, **more: Any) -> Facts:
        """form: "sysfs" shows every port of a switch, "merged" (a NCCL dump) only the switches."""
        devices = list(self._devices(form, first_bus))
        gpus = sorted(
            (part for part in self.parts if part.kind == "gpu"), key=lambda part: _order(part.address)
        )
        nics = [part for part in self.parts if part.kind == "nic"]
        numas = sorted(
            {numa for part in self.parts if (numa := self.numa(part)) is not None} | set(self.nodes)
        )
        return Facts(
            schema=SCHEMA,
            witnesses=(Witness("sysfs" if form == "sysfs" else "nccl-xml", "test"),),
            host=Host(**{"virtual": "", **self.host}),
            cpus=self.cpus,
            numa=tuple(NumaNode(numa, self.nodes.get(numa, "")) for numa in numas),
            roots=tuple(sorted({Root(f"pci{numa}", numa) for numa in numas}, key=lambda root: root.name)),
            pci=tuple(devices),
            gpus=tuple(
                Gpu(
                    f"GPU{index}",
                    index,
                    part.address,
                    **{
                        "numa": self.numa(part),
                        **{k: v for k, v in part.more.items() if k not in _PCI_FIELDS},
                    },
                )
                for index, part in enumerate(gpus)
            ),
            nics=tuple(
                Nic(
                    name=part.name,
                    address=part.address,
                    **{
                        "numa": self.numa(part),
                        **{k: v for k, v in part.more.items() if k not in _PCI_FIELDS},
                    },
                )
                for part in nics
            ),
            **more,
        )

    def numa(self, part: Part) -> int | None:
        below: Part | int | None = part
        while isinstance(below, Part):
            below = below.below
        return below

    def _devices(self, form: str, first_bus: int) -> Iterator[PciDevice]:
        self._bus = first_bus
        for part in self.parts:
            if not isinstance(part.below, Part):
                numa = part.below
                yield from self._branch(part, "pci-hidden" if numa is None else f"pci{numa}", form, numa)

    def _branch(self, part: Part, above: str, form: str, numa: int | None) -> Iterator[PciDevice]:
        """A part with the port above it (sysfs), and all below."""
        # The port has its number in both forms, so that devices have one address whatever shows them.
        port = f"0000:{self._next():02x}:01.0"
        if form == "sysfs":
            kind = "root" if above.startswith("pci") else "downstream"
            yield PciDevice(port, above, class_code="0x060400", port=kind, numa=numa, link=_link(part))
            above = port
        part.address = f"0000:{self._next():02x}:00.0"
        ids = {k: v for k, v in part.more.items() if k in _PCI_FIELDS}
        kind = {"switch": "0x060400", "gpu": "0x030200", "nic": "0x020700"}[part.kind]
        port_type = None if form != "sysfs" else "upstream" if part.kind == "switch" else "endpoint"
        known = {"class_code": kind, "numa": numa, "link": _link(part), "port": port_type}
        yield PciDevice(part.address, above, **{**known, **ids})
        for child in self.parts:
            if child.below is part:
                yield from self._branch(child, part.address, form, numa)

    def _next(self) -> int:
        self._bus += 1
        return self._bus - 1

    # -- the oracle --

    def gpus(self) -> list[Part]:
        return sorted(
            (part for part in self.parts if part.kind == "gpu"), key=lambda part: _order(part.address)
        )

    def nics(self) -> list[Part]:
        return sorted(
            (part for part in self.parts if part.kind == "nic"), key=lambda part: _order(part.address)
        )

    def route(self, gpu: Part, nic: Part) -> list[tuple[str, float]]:
        """Links from GPU to network, by the names that the planner gives them, with GB/s."""
        up, down = self._chain(gpu), self._chain(nic)
        common = [part for part in up if part in down]
        links: list[tuple[str, float]] = []
        turn = common[0] if common else None
        for part in up:
            if part is turn:
                break
            links.append((f"{part.address} -> {self._above(part)}", part.gbytes))
        here, there = self.numa(gpu), self.numa(nic)
        if turn is None and here != there:
            links.append((f"numa{here} -> numa{there}", self.cross))
        falling = []
        for part in down:
            if part is turn:
                break
            falling.append((f"{self._above(part)} -> {part.address}", part.gbytes))
        links += reversed(falling)
        links.append((f"{nic.address} -> port {nic.name}", (nic.more["rate"] or 10_000) / 8000))
        return links

    def _chain(self, part: Part) -> list[Part]:
        chain = [part]
        while isinstance(chain[-1].below, Part):
            chain.append(chain[-1].below)
        return chain

    def _above(self, part: Part) -> str:
        return part.below.address if isinstance(part.below, Part) else f"numa{part.below}"


_PCI_FIELDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "slot", "class_code", "acs")


def _link(part: Part) -> Link:
    # An idle link: the speed it runs at now says nothing.
    return Link(speed=2.5, width=part.width, max_speed=part.speed, max_width=part.width)


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(text, 16) for text in address.replace(".", ":").split(":"))


def hgx(rails: int = 8, storage: int = 1, sm: int | None = 90, **host: Any) -> Chassis:
    """A clean HGX: a switch for each GPU and its 400 Gb/s NIC, half of them on each of two nodes, storage on roots."""
    chassis = Chassis(**host)
    for index in range(rails):
        switch = chassis.switch(index * 2 // rails)
        chassis.gpu(switch, sm=sm, nvlinks=tuple(NvLink(f"0000:e{n}:00.0", 4) for n in range(4)))
        chassis.nic(switch, f"mlx5_{index}")
    for index in range(storage):
        chassis.nic(
            index % 2, f"mlx5_{rails + index}", rate=200_000, link_layer="Ethernet", netdev=f"ens{index}"
        )
    return chassis


def cores(
    sockets: int, nodes: int, each: int, threads: int = 2, numbering: str = "half", l3: int | None = None
) -> tuple[Cpus, tuple[NumaNode, ...]]:
    """Cores of a machine: nodes in all, cores of each. numbering: "half" (siblings in the upper half), "odd-even"
    (CPUs go round the nodes) or "pairs" (siblings side by side). l3: cores that share one L3."""
    total = nodes * each
    made: list[Core] = []
    members: dict[int, list[int]] = {}
    for core in range(total):
        node, place = divmod(core, each)
        if numbering == "odd-even":
            first = place * nodes + node
        elif numbering == "pairs":
            first = core * threads
        else:
            first = core
        step = 1 if numbering == "pairs" else total
        cpus = tuple(first + thread * step for thread in range(threads))
        group = None if l3 is None else core // l3
        made.append(Core(cpus, socket=node * sockets // nodes, numa=node, l3=group))
        members.setdefault(node, []).extend(cpus)
    every = [cpu for core in made for cpu in core.cpus]
    cpus_ = Cpus(
        arch="x86_64",
        vendor="GenuineIntel",
        family=6,
        model=0x8F,
        online=format_cpulist(every),
        allowed=format_cpulist(every),
        isolated="",
        offline="",
        cores=tuple(made),
    )
    return cpus_, tuple(NumaNode(node, format_cpulist(cpus)) for node, cpus in members.items())


def with_cores(facts: Facts, cpus: Cpus, numa: Sequence[NumaNode]) -> Facts:
    return replace(facts, cpus=cpus, numa=tuple(numa))
