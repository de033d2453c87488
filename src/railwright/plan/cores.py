"""Cores: whole physical cores for the system, for each NIC's interrupts and for each GPU's rank.

On every NUMA node the lowest cores stay with the system, the highest serve the interrupts of the node's rail NICs, and
what lies between goes to ranks. Ranks take cores of their own node; where GPUs are spread unevenly over the nodes of a
socket, its nodes are pooled, so that the rank with the fewest cores has as many as can be. Siblings come from the
topology: numbering differs (0-55,112-167 here, even and odd there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ..node.model import Core, CorePolicy, Facts, Finding, Gpu, Nic, format_cpulist
from .cards import Card
from .usable_cores import left_out, usable


@dataclass(frozen=True)
class Cores:
    """Cpulists: rank by GPU name; by port name irq (whole cores), vectors (one thread of each, where its data vectors
    go) and control (where its other vectors go). None where unknown. house: what stays with the system, by NUMA node.
    """

    rank: Mapping[str, Optional[str]]
    irq: Mapping[str, Optional[str]]
    vectors: Mapping[str, Optional[str]]
    control: Mapping[str, Optional[str]]
    housekeeping: Optional[str]
    because: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    house: Mapping[int, str] = field(default_factory=dict)

    def of_function(
        self, nic: Nic, address: Optional[str], facts: Facts
    ) -> tuple[Optional[str], Optional[str]]:
        """CPUs for the data and the other vectors of one PCI function of a port.

        A port that two functions serve has one on each socket: the second one's vectors go to the system's cores of its
        own node, since the port's cores are the first one's.
        """
        if address == nic.address or address is None:
            return self.vectors.get(nic.name), self.control.get(nic.name)
        numa = next((device.numa for device in facts.pci if device.address == address), None)
        own = None if numa is None else self.house.get(numa)
        return (own, own) if own else (self.vectors.get(nic.name), self.control.get(nic.name))


# A NUMA node by number; None is the only group of a machine without NUMA nodes.
_Node = Optional[int]
# The home of a device whose NUMA node is not known on a machine that has several: never node 0 by default.
_NOWHERE = -2


@dataclass
class _Pool:
    """Cores of one NUMA node that nobody has taken, lowest first."""

    cores: list[Core]
    house: list[Core] = field(default_factory=list)

    def take(self, count: int) -> list[Core]:
        """`count` cores, in whole L3 groups as far as that goes, and no group broken that need not be."""
        taken: list[Core] = []
        while len(taken) < count and self.cores:
            wanted = count - len(taken)
            groups = self._groups()
            fitting = [group for group in groups if len(group) <= wanted]
            # max and min keep the first of equals, and groups come lowest first.
            group = max(fitting, key=len) if fitting else min(groups, key=len)
            chosen = group[:wanted]
            taken += chosen
            gone = {core.cpus for core in chosen}
            self.cores = [core for core in self.cores if core.cpus not in gone]
        return taken

    def take_last(self, count: int) -> list[Core]:
        taken = self.cores[len(self.cores) - count :]
        self.cores = self.cores[: len(self.cores) - count]
        return taken

    def _groups(self) -> list[list[Core]]:
        groups: dict[Optional[int], list[Core]] = {}
        for core in self.cores:
            groups.setdefault(core.l3, []).append(core)
        return list(groups.values())


def allot(facts: Facts, policy: CorePolicy, gpus: Sequence[Gpu], rails: Mapping[str, Card]) -> Cores:
    """Cores for these GPUs (in index order) and rail cards (by name, in PCI order)."""
    cores = usable(facts)
    if not cores:
        why = "no core is left for it" if facts.cpus.cores else "the witness does not show the cores"
        return _without(gpus, rails, why, left_out(facts) if facts.cpus.cores else [])
    return _Allotment(facts, policy, cores, left_out(facts)).run(gpus, rails)


def _without(gpus: Sequence[Gpu], rails: Mapping[str, Card], why: str, said: Sequence[Finding]) -> Cores:
    ports = [port.name for card in rails.values() for port in card.ports]
    return Cores(
        rank={gpu.name: None for gpu in gpus},
        irq=dict.fromkeys(ports),
        vectors=dict.fromkeys(ports),
        control=dict.fromkeys(ports),
        housekeeping=None,
        because={gpu.name: why for gpu in gpus},
        findings=tuple(said),
    )


def _cpulist(cores: Sequence[Core]) -> str:
    return format_cpulist(cpu for core in cores for cpu in core.cpus)


class _Allotment:
    def __init__(
        self, facts: Facts, policy: CorePolicy, cores: Sequence[Core], said: Sequence[Finding]
    ) -> None:
        self._policy = policy
        self._distances = {node.id: node.distances for node in facts.numa}
        self._pools: dict[_Node, _Pool] = {}
        for core in cores:
            self._pools.setdefault(core.numa, _Pool([])).cores.append(core)
        self._socket = {
            node: frozenset(core.socket for core in pool.cores) for node, pool in self._pools.items()
        }
        self._rank: dict[str, Optional[str]] = {}
        self._irq: dict[str, Optional[str]] = {}
        self._vectors: dict[str, Optional[str]] = {}
        self._control: dict[str, Optional[str]] = {}
        self._because: dict[str, str] = {}
        self._findings = list(said)

    def run(self, gpus: Sequence[Gpu], rails: Mapping[str, Card]) -> Cores:
        homes = {gpu.name: self._home(gpu.numa) for gpu in gpus}
        groups = self._groups()
        if _NOWHERE in homes.values():
            groups = [[node for group in groups for node in group]]
        for group in groups:
            self._serve(
                group,
                [gpu for gpu in gpus if homes[gpu.name] in (*group, _NOWHERE)],
                [card for card in rails.values() if self._home(card.numa) in group],
            )
        for card in rails.values():
            for port in card.ports:
                for kind in (self._irq, self._vectors, self._control):
                    kind.setdefault(port.name, None)
        house = [core for pool in self._pools.values() for core in (*pool.house, *pool.cores)]
        return Cores(
            self._rank,
            self._irq,
            self._vectors,
            self._control,
            _cpulist(house),
            self._because,
            tuple(self._findings),
            {
                node: _cpulist(pool.house)
                for node, pool in self._pools.items()
                if node is not None and pool.house
            },
        )

    def _home(self, numa: Optional[int]) -> _Node:
        """The node whose cores serve a device: its own, or the nearest that has cores; else nowhere."""
        if len(self._pools) == 1:
            return next(iter(self._pools))
        if numa is None or numa in self._pools:
            return _NOWHERE if numa is None else numa
        far = self._distances.get(numa, ())
        known = [node for node in self._pools if node is not None and node < len(far)]
        return min(known, key=lambda node: (far[node], node), default=_NOWHERE)

    def _groups(self) -> list[list[_Node]]:
        """Nodes that share a socket, in order."""
        groups: list[list[_Node]] = []
        for node in sorted(self._pools, key=_number):
            together = [
                group for group in groups if any(self._socket[node] & self._socket[other] for other in group)
            ]
            if together and self._socket[node] != frozenset([None]):
                together[0].append(node)
            else:
                groups.append([node])
        return groups

    # -- one socket --

    def _serve(self, nodes: Sequence[_Node], gpus: Sequence[Gpu], cards: Sequence[Card]) -> None:
        house, each_nic = self._reserve(nodes, gpus, cards)
        for node in nodes:
            pool = self._pools[node]
            count = min(house, len(pool.cores))
            pool.house, pool.cores = pool.cores[:count], pool.cores[count:]
        for card in cards:
            self._serve_card(card, each_nic)
        if gpus:
            self._serve_ranks(nodes, gpus)

    def _reserve(self, nodes: Sequence[_Node], gpus: Sequence[Gpu], cards: Sequence[Card]) -> tuple[int, int]:
        """(cores of each node for the system, cores for each NIC), less than asked for where ranks would starve.

        A rank must not have fewer cores than one NIC's interrupts, nor none at all.
        """
        # More than there are is never given, however many a policy asks for.
        most = max((len(self._pools[node].cores) for node in nodes), default=0)
        asked = min(self._policy.irq_per_nic, most)
        for house in range(min(self._policy.housekeeping, most), -1, -1):
            for each_nic in range(asked, -1, -1):
                if self._fits(nodes, gpus, cards, house, each_nic):
                    self._tell_reduced(nodes, cards, house, each_nic)
                    return house, each_nic
        self._tell_reduced(nodes, cards, 0, 0)
        return 0, 0

    def _fits(
        self, nodes: Sequence[_Node], gpus: Sequence[Gpu], cards: Sequence[Card], house: int, each_nic: int
    ) -> bool:
        left = 0
        for node in nodes:
            nics = sum(1 for card in cards if self._home(card.numa) == node)
            rest = len(self._pools[node].cores) - house - each_nic * nics
            if rest < 0 and (house or each_nic):
                return False
            left += max(rest, 0)
        return left >= len(gpus) * max(1, each_nic)

    def _tell_reduced(self, nodes: Sequence[_Node], cards: Sequence[Card], house: int, each_nic: int) -> None:
        where = ", ".join("the machine" if node is None else f"numa{node}" for node in nodes)
        if cards and each_nic < self._policy.irq_per_nic:
            self._findings.append(
                Finding(
                    "cores.few",
                    "warning",
                    where,
                    f"too few cores for {self._policy.irq_per_nic} to each of {len(cards)} NICs: interrupts get "
                    + (f"{each_nic} each" if each_nic else "the system's cores"),
                    "lower policy.cores.irq_per_nic, or accept this finding",
                )
            )
        if house < self._policy.housekeeping:
            self._findings.append(
                Finding(
                    "cores.few",
                    "warning",
                    where,
                    f"too few cores to keep {self._policy.housekeeping} for the system: {house or 'none'} stay",
                    "lower policy.cores.housekeeping, or accept this finding",
                )
            )

    def _serve_card(self, card: Card, count: int) -> None:
        pool = self._pools[self._home(card.numa)]
        own = pool.take_last(count) if count else (pool.house or pool.cores[:1])
        for port in card.ports:
            self._irq[port.name] = _cpulist(own)
            # Two vectors on the threads of one core would only wait for each other.
            self._vectors[port.name] = format_cpulist(core.cpus[0] for core in own)
            self._control[port.name] = _cpulist(pool.house or own)

    def _serve_ranks(self, nodes: Sequence[_Node], gpus: Sequence[Gpu]) -> None:
        total = sum(len(self._pools[node].cores) for node in nodes)
        share = total // len(gpus)
        if share == 0:
            self._share_all(nodes, gpus)
            return
        taken: dict[str, list[Core]] = {gpu.name: [] for gpu in gpus}
        for node in nodes:
            locals_ = [gpu for gpu in gpus if self._home(gpu.numa) == node]
            for place, gpu in enumerate(locals_):
                fair = len(self._pools[node].cores) // (len(locals_) - place)
                taken[gpu.name] += self._pools[node].take(min(share, fair))
        for gpu in gpus:
            for node in self._nearest_first(gpu, nodes):
                taken[gpu.name] += self._pools[node].take(share - len(taken[gpu.name]))
        left = total - share * len(gpus)
        for gpu in gpus:
            own = taken[gpu.name]
            self._rank[gpu.name] = _cpulist(own)
            self._because[gpu.name] = self._explain(gpu, own, left)

    def _share_all(self, nodes: Sequence[_Node], gpus: Sequence[Gpu]) -> None:
        """Fewer cores than GPUs: all ranks share what there is."""
        cores = [core for node in nodes for core in (*self._pools[node].cores, *self._pools[node].house)]
        names = ", ".join(gpu.name for gpu in gpus)
        self._findings.append(
            Finding(
                "cores.few",
                "warning",
                names,
                f"{len(cores)} cores for {len(gpus)} GPUs: their ranks share them",
                "give the node more cores (a VM, a cgroup or isolcpus may hold them back), or accept this finding",
            )
        )
        for gpu in gpus:
            self._rank[gpu.name] = _cpulist(cores)
            self._because[gpu.name] = f"{len(cores)} cores for {len(gpus)} GPUs: all ranks share them"

    def _nearest_first(self, gpu: Gpu, nodes: Sequence[_Node]) -> list[_Node]:
        """Where to look for more cores: at home, then by distance; without a home where most are left."""
        home = self._home(gpu.numa)
        if home == _NOWHERE:
            return sorted(nodes, key=lambda node: (-len(self._pools[node].cores), _number(node)))
        far = self._distances.get(_number(home), ())

        def key(node: _Node) -> tuple[bool, int, int]:
            number = _number(node)
            return (node != home, far[number] if 0 <= number < len(far) else 255, number)

        return sorted(nodes, key=key)

    def _explain(self, gpu: Gpu, own: Sequence[Core], left: int) -> str:
        home = self._home(gpu.numa)
        places = sorted({core.numa for core in own if core.numa is not None})
        away = [place for place in places if place != home]
        if home == _NOWHERE:
            words = f"{_count(own)} of numa{', numa'.join(map(str, places))}, since its own node is not known"
        else:
            words = f"{_count(own)} {'of the machine' if home is None else f'of numa{home}'}"
            if gpu.numa is not None and gpu.numa != home:
                words += f", the nearest node with cores (numa{gpu.numa} has none)"
            if away:
                borrowed = sum(1 for core in own if core.numa in away)
                words += f", {borrowed} of them borrowed from numa{', numa'.join(map(str, away))}"
        if left:
            words += f"; {left} left over by the even division stay with the system"
        return words


def _count(cores: Sequence[Core]) -> str:
    return "1 core" if len(cores) == 1 else f"{len(cores)} cores"


def _number(node: _Node) -> int:
    return -1 if node is None else node
