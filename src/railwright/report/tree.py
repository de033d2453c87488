"""What the picture of a node shows: CPUs, host bridges, PCIe switches, GPUs and NICs as one tree.

From a PCI tree it keeps NCCL's level of detail: a switch is one station, its upstream and downstream ports and the root
ports above it are not drawn (NCCL 2.30.7 src/graph/xml.cc walks up two levels at a time for the same reason). From a
matrix it draws what the matrix says: who shares what with whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from railwright.node.model import (
    Facts,
    Gpu,
    InputError,
    Nic,
    PciDevice,
    Plan,
    PlannedGpu,
    PlannedNic,
    normalise_address,
    sort_key,
)

from .order import natural

MACHINE = "machine"
# nvidia-smi's words for what two devices share, nearest first, with what stands for it in the picture.
_LEVELS = (("PIX", "switch"), ("PXB", "switch"), ("PHB", "host-bridge"), ("NODE", "numa"))
_LAST = (1 << 32, 0, 0, 0)
_LEVEL_NAMES = {"PIX": "one switch", "PXB": "switches", "PHB": "host bridge"}


@dataclass(frozen=True)
class Station:
    """One thing of the picture. kind: machine, numa, host-bridge, switch, gpu or nic. names: every address it has.

    sure: False for a bridge whose port type the witness does not tell: a switch only if something branches there.
    """

    key: str
    kind: str
    label: str
    detail: str = ""
    names: tuple[str, ...] = ()
    children: tuple[Station, ...] = ()
    gpu: Gpu | None = None
    nic: Nic | None = None
    planned_gpu: PlannedGpu | None = None
    planned_nic: PlannedNic | None = None
    numa: int | None = None
    sure: bool = True

    def walk(self) -> Iterator[Station]:
        """This station and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class _Draft:
    """A station while its children are still being found."""

    station: Station
    children: dict[str, _Draft] = field(default_factory=dict)

    def child(self, station: Station) -> _Draft:
        """The child of this key, made where it is new; a known one learns further names."""
        known = self.children.get(station.key)
        if known is None:
            known = self.children[station.key] = _Draft(station)
        names = tuple(dict.fromkeys(known.station.names + station.names))
        known.station = replace(known.station, names=names)
        return known


def node_tree(plan: Plan, facts: Facts) -> Station:
    """The node as a tree. Every GPU and NIC that facts or plan know is in it exactly once."""
    leaves = _leaves(plan, facts)
    return _finish(_from_pci(leaves, facts) if facts.pci else _from_matrix(leaves, facts))


def _leaves(plan: Plan, facts: Facts) -> list[Station]:
    planned_gpus = {gpu.name: gpu for gpu in plan.gpus}
    planned_nics = {nic.name: nic for nic in plan.nics}
    gpus: list[tuple[Gpu | None, PlannedGpu | None]] = []
    for gpu in facts.gpus:
        planned_gpu = planned_gpus.pop(gpu.name, None)
        # A refused plan lists its GPUs without having decided anything for them.
        decided = planned_gpu is not None and (plan.status == "planned" or bool(planned_gpu.nics))
        gpus.append((gpu, planned_gpu if decided else None))
    gpus += [(None, planned) for planned in planned_gpus.values()]
    nics: list[tuple[Nic | None, PlannedNic | None]] = [
        (nic, planned_nics.pop(nic.name, None)) for nic in facts.nics
    ]
    nics += [(None, planned) for planned in planned_nics.values()]
    return [
        *(_gpu_leaf(number, gpu, planned) for number, (gpu, planned) in enumerate(gpus)),
        *(_nic_leaf(number, nic, planned) for number, (nic, planned) in enumerate(nics)),
    ]


def _gpu_leaf(number: int, gpu: Gpu | None, planned: PlannedGpu | None) -> Station:
    name = gpu.name if gpu is not None else planned.name if planned is not None else ""
    leaf = Station(f"gpu:{number}", "gpu", name, gpu=gpu, planned_gpu=planned)
    return replace(leaf, names=_unique(name, address_of(leaf)))


def _nic_leaf(number: int, nic: Nic | None, planned: PlannedNic | None) -> Station:
    name = nic.name if nic is not None else planned.name if planned is not None else ""
    rdma = (nic.rdma if nic is not None else None) or (planned.rdma if planned is not None else None)
    leaf = Station(f"nic:{number}", "nic", name, nic=nic, planned_nic=planned)
    return replace(leaf, names=_unique(name, address_of(leaf), rdma))


def _unique(*names: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _numa_of(leaf: Station) -> int | None:
    for source in (leaf.gpu, leaf.nic, leaf.planned_gpu, leaf.planned_nic):
        if source is not None and source.numa is not None:
            return source.numa
    return None


def address_of(leaf: Station) -> str | None:
    """PCI address of a GPU or NIC, from the facts, else from the plan."""
    for source in (leaf.gpu, leaf.nic):
        if source is not None and source.address:
            return source.address
    for planned in (leaf.planned_gpu, leaf.planned_nic):
        if planned is not None and planned.pci:
            return planned.pci
    return None


def _numa_station(facts: Facts, numa: int | None) -> Station:
    if numa is None:
        return Station(
            "numa:unknown",
            "numa",
            "NUMA node unknown",
            "the witness does not say where these hang",
            ("numa-unknown",),
        )
    cpus = next((node.cpus for node in facts.numa if node.id == numa), None)
    sockets = sorted(
        {core.socket for core in facts.cpus.cores if core.numa == numa and core.socket is not None}
    )
    words = [f"socket {', '.join(map(str, sockets))}"] if sockets else []
    if cpus is not None:
        words.append(f"CPUs {cpus}" if cpus else "no CPUs")
    return Station(
        f"numa:{numa}", "numa", f"NUMA node {numa}", " · ".join(words), (f"numa{numa}",), numa=numa
    )


# From a PCI tree.


def _from_pci(leaves: list[Station], facts: Facts) -> _Draft:
    devices = {device.address: device for device in facts.pci}
    roots = {root.name: root.numa for root in facts.roots}
    # A NCCL dump shows switches only, without the ports that sysfs shows.
    merged = [witness.kind for witness in facts.witnesses[:1]] == ["nccl-xml"] and not any(
        device.port in ("root", "downstream") for device in facts.pci
    )
    machine = _Draft(Station(MACHINE, MACHINE, "machine"))
    for leaf in leaves:
        address = address_of(leaf)
        device = devices.get(address) if address else None
        bridges, root = _chain(device, devices) if device else ((), None)
        numas = (roots.get(root) if root else None, device.numa if device else None, _numa_of(leaf))
        here = machine.child(_numa_station(facts, next((numa for numa in numas if numa is not None), None)))
        if root is not None and root.startswith("pci"):
            ports = tuple(bridge.address for bridge in bridges if bridge.port == "root")
            here = here.child(Station(f"root:{root}", "host-bridge", root, names=(root, *ports)))
        for switch in _switches(bridges, merged):
            here = here.child(switch)
        here.child(leaf)
    return machine


def _chain(device: PciDevice, devices: dict[str, PciDevice]) -> tuple[tuple[PciDevice, ...], str | None]:
    """The bridges above a device, topmost first, and the host bridge; a circle in the facts ends the walk."""
    bridges: list[PciDevice] = []
    seen = {device.address}
    parent = device.parent
    while parent in devices and parent not in seen:
        seen.add(parent)
        bridges.append(devices[parent])
        parent = devices[parent].parent
    return tuple(reversed(bridges)), None if parent in seen else parent


def _switches(bridges: tuple[PciDevice, ...], merged: bool) -> Iterator[Station]:
    """One station for each switch. A downstream port belongs to the switch above it."""
    current: Station | None = None
    for bridge in bridges:
        if bridge.port == "root":
            continue
        if bridge.port == "downstream" and current is not None:
            current = replace(current, names=(*current.names, bridge.address))
            continue
        if current is not None:
            yield current
        current = Station(
            f"switch:{bridge.address}",
            "switch",
            bridge.address,
            names=(bridge.address,),
            sure=merged or bridge.port == "upstream",
        )
    if current is not None:
        yield current


# From a matrix.


def _from_matrix(leaves: list[Station], facts: Facts) -> _Draft:
    machine = _Draft(Station(MACHINE, MACHINE, "machine"))
    groups = {level: _components(leaves, facts, depth) for depth, (level, _) in enumerate(_LEVELS)}
    for leaf in leaves:
        numa = _numa_of(leaf)
        here = machine.child(_matrix_numa(facts, groups["NODE"][leaf.label], leaves, numa))
        nearer = ("", *(groups[level][leaf.label] for level, _ in _LEVELS))
        for depth in (2, 1, 0):
            level, kind = _LEVELS[depth]
            members = groups[level][leaf.label]
            # A group of one says nothing, and of two equal groups the nearer one says more.
            if len(members) > 1 and members != nearer[depth]:
                here = here.child(Station(f"{level}:{members[0]}", kind, _LEVEL_NAMES[level]))
        here.child(leaf)
    return machine


def _components(leaves: list[Station], facts: Facts, depth: int) -> dict[str, tuple[str, ...]]:
    """Name to the names that it is at least this near to, directly or over others, in the order of `leaves`."""
    near = {level for level, _ in _LEVELS[: depth + 1]}
    names = [leaf.label for leaf in leaves]
    group_of = {name: {name} for name in names}
    for path in facts.paths:
        if path.level in near and path.a in group_of and path.b in group_of:
            joined = group_of[path.a] | group_of[path.b]
            for name in joined:
                group_of[name] = joined
    return {name: tuple(other for other in names if other in group) for name, group in group_of.items()}


def _matrix_numa(facts: Facts, group: tuple[str, ...], leaves: list[Station], numa: int | None) -> Station:
    """The NUMA node of a group; a NIC's column has none in a matrix, so its neighbours tell."""
    if numa is None:
        known = {_numa_of(leaf) for leaf in leaves if leaf.label in group} - {None}
        numa = known.pop() if len(known) == 1 else None
    if numa is None and len(group) > 1:
        return Station(f"numa:{group[0]}", "numa", "one NUMA node", "its number is not told")
    return _numa_station(facts, numa)


# Both.


def _finish(draft: _Draft, above: str = "") -> Station:
    # The whole way is the key: firmware that names two NUMA nodes below one bridge must not tie two places together.
    key = f"{above}/{draft.station.key}" if above else draft.station.key
    children = [_without_mere_port(_finish(child, key)) for child in draft.children.values()]
    return replace(draft.station, key=key, children=_in_order(children))


def _without_mere_port(station: Station) -> Station:
    if not station.sure and len(station.children) == 1:
        only = station.children[0]
        return replace(only, names=(*only.names, *station.names))
    return station


def _in_order(children: Iterable[Station]) -> tuple[Station, ...]:
    """PCI order, each rail NIC right after its GPU where both hang at the same place."""
    ordered = sorted(children, key=_order)
    nics_of = {leaf.label: leaf.planned_gpu.nics for leaf in ordered if leaf.planned_gpu is not None}
    beside = {
        name: gpu
        for gpu, names in nics_of.items()
        for name in names
        if any(leaf.label == name for leaf in ordered)
    }
    placed: list[Station] = []
    for station in ordered:
        if station.kind == "nic" and station.label in beside:
            continue
        placed.append(station)
        if station.kind == "gpu":
            placed.extend(
                leaf for leaf in ordered if leaf.kind == "nic" and beside.get(leaf.label) == station.label
            )
    return tuple(placed)


def _order(station: Station) -> tuple[object, ...]:
    leaves = [leaf for leaf in station.walk() if leaf.kind in ("gpu", "nic")]
    addresses = [_pci_order(address) for leaf in leaves if (address := address_of(leaf)) is not None]
    numa = station.numa if station.numa is not None else 1 << 20
    gpus = [leaf.gpu.index for leaf in leaves if leaf.gpu is not None]
    return (numa, min(addresses, default=_LAST), min(gpus, default=1 << 20), natural(station.label))


def _pci_order(address: str) -> tuple[int, int, int, int]:
    try:
        return sort_key(normalise_address(address, "address"))
    except InputError:
        return _LAST
