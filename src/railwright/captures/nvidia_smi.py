"""The matrix of `nvidia-smi topo -m` or `-mp`, as people paste it.

It tells distances in words and, for GPUs, CPU and NUMA affinity; it shows no PCI tree, no addresses and no speeds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from railwright.node.model import (
    Claim,
    Conflict,
    Facts,
    Gpu,
    InputError,
    Nic,
    NumaNode,
    NvLink,
    Path,
    Witness,
    format_cpulist,
    parse_cpulist,
)
from railwright.node.model.facts import SCHEMA

from .cpusets import disjoint
from .p2p import read_p2p
from .smi_table import Table, read_tables
from .source import Source

_GPU = re.compile(r"GPU(\d+)", re.ASCII)
# Words that mean "on the same NUMA node", by nvidia-smi's legend.
_ONE_NODE = ("PIX", "PXB", "PHB", "NODE")


def read_nvidia_smi(source: Source) -> Facts:
    """Facts of one machine from its matrix, and from tables of P2P states. GPU indices are nvidia-smi's.

    Raises InputError with file and line.
    """
    matrix, states = read_tables(source)
    p2p, notes = read_p2p(source, states)
    if matrix is not None:
        facts = _Matrix(source, matrix).facts()
    else:
        names = sorted(
            {name for table in states for name in table.columns if _GPU.fullmatch(name)}, key=_index
        )
        facts = Facts(
            schema=SCHEMA,
            witnesses=(Witness("nvidia-smi", source.name),),
            gpus=tuple(Gpu(name, _index(name)) for name in names),
        )
    whole = facts.complete and len(p2p) == sum(
        len(table.columns) * (len(table.columns) - 1) for table in states
    )
    return replace(facts, p2p=p2p, complete=whole, notes=(*facts.notes, *notes))


class _Matrix:
    def __init__(self, source: Source, table: Table) -> None:
        self._source = source
        self._table = table
        self._conflicts: list[Conflict] = []
        self._notes = table.remarks()
        self._several_nodes: dict[str, list[str]] = {}
        self._short_lists: dict[str, list[str]] = {}
        self._gpu_names = sorted((c for c in table.columns if _GPU.fullmatch(c)), key=_index)
        # The header's order: the driver's own, which follows PCI. Names are not to be sorted.
        self._nic_names = [c for c in table.columns if not _GPU.fullmatch(c)]

    def facts(self) -> Facts:
        levels = self._levels()
        numa = {name: self._numa(name) for name in self._gpu_names}
        cpus = {name: self._cpus(name) for name in self._gpu_names}
        linked = any(level.startswith("NV") for level in levels.values())
        nodes = self._numa_nodes(numa, cpus)
        gpus = tuple(
            Gpu(
                name=name,
                index=_index(name),
                numa=numa[name],
                cpus=cpus[name],
                # Without a single NV# this may be `topo -mp` or a container that hides them.
                nvlinks=self._nvlinks(name, levels) if linked else None,
                partial=self._partial(name, levels),
            )
            for name in self._gpu_names
        )
        self._say_what_is_missing(levels)
        return Facts(
            schema=SCHEMA,
            witnesses=(Witness("nvidia-smi", self._source.name),),
            numa=nodes,
            gpus=gpus,
            nics=tuple(
                Nic(name, rdma=self._rdma(name), numa=self._nic_numa(name, numa, levels))
                for name in self._nic_names
            ),
            paths=tuple(Path(a, b, level) for (a, b), level in levels.items() if not level.startswith("NV")),
            conflicts=tuple(self._conflicts),
            complete=not any(gpu.partial for gpu in gpus),
            notes=tuple(self._notes),
        )

    def _levels(self) -> dict[tuple[str, str], str]:
        """Level of each pair, GPUs first, as its rows have it; the second row confirms or contradicts the first."""
        levels: dict[tuple[str, str], str] = {}
        for a, b in combinations([*self._gpu_names, *self._nic_names], 2):
            claims = [
                Claim(f"row {row.name}, line {row.line}", row.levels[other])
                for row, other in ((self._table.rows.get(a), b), (self._table.rows.get(b), a))
                if row is not None and other in row.levels
            ]
            if claims:
                levels[a, b] = claims[0].value
            if len(claims) == 2 and claims[0].value != claims[1].value:
                self._conflicts.append(Conflict(f"{a}-{b}", tuple(claims)))
        return levels

    def _partial(self, name: str, levels: dict[tuple[str, str], str]) -> bool:
        row = self._table.rows.get(name)
        return (
            row is None
            or row.cut
            or any(_between(levels, name, o) is None for o in self._table.columns if o != name)
        )

    def _nvlinks(self, name: str, levels: dict[tuple[str, str], str]) -> tuple[NvLink, ...] | None:
        found = [(other, _between(levels, name, other)) for other in self._gpu_names if other != name]
        if any(level is None for _, level in found):
            return None
        return tuple(
            NvLink(other, int(level[2:])) for other, level in found if level and level.startswith("NV")
        )

    def _rdma(self, name: str) -> str | None:
        """The RDMA device: older drivers name the column after it, newer ones number NICs and print a legend."""
        return self._table.legend.get(name) if re.fullmatch(r"NIC[0-9]+", name) else name

    # -- affinity --

    def _tail(self, name: str, label: str) -> str | None:
        row = self._table.rows.get(name)
        return row.tail.get(label) if row else None

    def _where(self, name: str, label: str) -> str:
        return f"{self._source.at(self._table.rows[name].line)}: {label}"

    def _cpus(self, name: str) -> str | None:
        value = self._tail(name, "CPU Affinity")
        if value is None:
            return None
        if re.fullmatch(r"[0-9]+(?:,[0-9]+){5}", value):
            self._short_lists.setdefault(value, []).append(name)
        return format_cpulist(parse_cpulist(value, self._where(name, "CPU Affinity")))

    def _numa(self, name: str) -> int | None:
        """The node, or None: a list of nodes is what a VM says whose host hides them."""
        value = self._tail(name, "NUMA Affinity")
        if value is None:
            return None
        nodes = parse_cpulist(value, self._where(name, "NUMA Affinity"))
        if len(nodes) > 1:
            self._several_nodes.setdefault(value, []).append(name)
        return nodes[0] if len(nodes) == 1 else None

    def _numa_nodes(self, numa: dict[str, int | None], cpus: dict[str, str | None]) -> tuple[NumaNode, ...]:
        """Nodes with the CPUs that their GPUs' rows name; where rows disagree, the first row's."""
        rows: dict[int, dict[str, str]] = {}
        for name in self._gpu_names:
            node, listed = numa[name], cpus[name]
            if node is not None and listed is not None:
                rows.setdefault(node, {}).setdefault(listed, name)
        for node, lists in rows.items():
            if len(lists) > 1:
                claims = tuple(Claim(f"row {name}", listed) for listed, name in lists.items())
                self._conflicts.append(Conflict(f"CPUs of NUMA node {node}", claims))
        nodes, doubts = disjoint(
            (NumaNode(node, next(iter(lists))) for node, lists in rows.items()), self._source.name
        )
        self._notes.extend(doubts)
        return nodes

    def _nic_numa(
        self, nic: str, numa: dict[str, int | None], levels: dict[tuple[str, str], str]
    ) -> int | None:
        """The node of the GPUs that the NIC shares one with, when they agree."""
        near = {numa[gpu] for gpu in self._gpu_names if levels.get((gpu, nic)) in _ONE_NODE}
        return near.pop() if len(near) == 1 else None

    # -- what is missing --

    def _say_what_is_missing(self, levels: dict[tuple[str, str], str]) -> None:
        """Notes, one for each thing rather than one for each row."""
        for value, names in self._several_nodes.items():
            self._notes.append(
                f"{', '.join(names)}: NUMA Affinity {value} is several nodes, so which one is not known"
            )
        for value, names in self._short_lists.items():
            self._notes.append(
                f"{', '.join(names)}: CPU Affinity {value} may be cut short, as nvidia-smi does with single CPUs;"
                " compare with lscpu"
            )
        missing = [name for name in self._gpu_names if name not in self._table.rows]
        if missing:
            self._notes.append(f"the matrix is cut: no row for {', '.join(missing)}")
        if any(pair not in levels for pair in combinations(self._nic_names, 2)):
            self._notes.append("rows of NICs are missing: which NICs are ports of one card is not known")


def _index(name: str) -> int:
    match = _GPU.fullmatch(name)
    if match is None:
        raise InputError(name, "is no GPU")
    return int(match[1])


def _between(levels: dict[tuple[str, str], str], a: str, b: str) -> str | None:
    return levels.get((a, b)) or levels.get((b, a))
