"""Several witnesses of one machine as one set of facts, each fact with its witness, each contradiction on record.

The witness that shows most of the PCI tree comes first and its tree is taken; the others fill what it does not know and
are compared where both speak. Devices are one by PCI address, RDMA name and port, network interface or UUID; GPUs of a
matrix, which has no addresses, by PCI order where the numbers agree. What cannot be told to be one machine is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from railwright.node.discover.questions import questions
from railwright.node.model import (
    Claim,
    Conflict,
    Facts,
    Gid,
    Gpu,
    InputError,
    Nic,
    NumaNode,
    PciDevice,
    parse_cpulist,
)
from railwright.plan.distance import BESIDE, path_word, turning_point
from railwright.plan.tree import Tree

from .identity import bonds, paired, plain_guid, strangers

# Whose word comes first: who reads the kernel, then who reads config space, then who reads the kernel for others.
_RANK = (
    "sysfs",
    "lspci",
    "hwloc",
    "nccl-xml",
    "ibdev2netdev",
    "nvidia-smi-q",
    "nvidia-smi",
    "ibstat",
    "ibstatus",
    "show_gids",
    "lscpu",
    "interrupts",
    "nvlink",
    "dmidecode",
    "mlnx_qos",
    "mlxconfig",
)
# What NCCL and nvidia-smi call the maximum is what both ends of a link have in common.
_COMMON_MAXIMUM = ("nccl-xml", "nvidia-smi-q")

_NIC_PLACE = re.compile(r"nics\[([^\]]*)\]")
# Two captures of one machine differ in a few places; a thousand are two machines.
MAX_CONFLICTS = 1000


@dataclass(frozen=True)
class Witnessed:
    """One capture's facts, and by GPU name how many NVLinks are up where it counts them without their targets."""

    facts: Facts
    nvlinks: dict[str, int] = field(default_factory=dict)


def merge(witnessed: Sequence[Witnessed]) -> Facts:
    """One machine's facts from several captures. Raises InputError that says why two are not one machine."""
    waiting = sorted(witnessed, key=lambda entry: _rank(entry.facts))
    first = waiting.pop(0)
    merged = _Merged(first)
    while waiting:
        # One that joins nothing yet may join what others bring: `ibdev2netdev -v` ties names to addresses.
        tied = [entry for entry in waiting if any(bonds(merged.facts, entry.facts))]
        if not tied:
            _refuse(merged.facts, waiting[0].facts)
        entry = tied[0]
        waiting.remove(entry)
        against = strangers(merged.facts, entry.facts)
        if against is not None:
            raise InputError(
                f"{_named(merged.facts)}, {_named(entry.facts)}",
                f"these are not of one machine: {against}",
                "give the captures of one machine, taken at one time",
            )
        merged.add(entry)
    return _asked_again(merged.facts, witnessed)


def _asked_again(merged: Facts, witnessed: Sequence[Witnessed]) -> Facts:
    """The facts with the questions that are open now: one witness may have answered those of another."""
    asked = {text for entry in witnessed for text in questions(entry.facts.nics, entry.facts.pci)}
    kept = [note for note in merged.notes if not any(note.endswith(text) for text in asked)]
    return replace(merged, notes=(*kept, *questions(merged.nics, merged.pci)))


def _refuse(merged: Facts, other: Facts) -> NoReturn:
    raise InputError(
        f"{_named(merged)}, {_named(other)}",
        "nothing shows that these are of one machine: they share no PCI address, RDMA device, network interface, "
        "GPU UUID, number of GPUs or CPUs",
        "give with them one that ties them together, such as `ibdev2netdev -v` or `nvidia-smi -q`, or leave one out",
    )


def _named(facts: Facts) -> str:
    return ", ".join(witness.source for witness in facts.witnesses)


def _rank(facts: Facts) -> tuple[bool, bool, bool, bool, int]:
    """First who shows a tree with devices in it, then any tree, then distances, then addresses."""
    kind = facts.witnesses[0].kind if facts.witnesses else ""
    tree = any(device.parent is not None for device in facts.pci)
    classes = any(device.class_code not in {None, "0x0604"} for device in facts.pci)
    addresses = bool(facts.pci) or any(nic.address for nic in facts.nics)
    rank = _RANK.index(kind) if kind in _RANK else len(_RANK)
    return not (tree and classes), not tree, not facts.paths, not addresses, rank


class _Merged:
    """The facts so far. `_witness` is who speaks now, as conflicts and sources name it."""

    def __init__(self, first: Witnessed) -> None:
        self.facts = first.facts
        self._first = _speaker(first.facts)
        self._counted = dict(first.nvlinks)
        self._sources = dict(first.facts.sources)
        self._conflicts = list(first.facts.conflicts)
        self._notes = list(first.facts.notes)
        self._renamed: dict[str, str] = {}
        self._witness = self._kind = ""

    def add(self, entry: Witnessed) -> None:
        other = entry.facts
        self._witness, self._kind = _speaker(other), other.witnesses[0].kind if other.witnesses else ""
        strong, weak = bonds(self.facts, other)
        if not strong:
            self._notes.append(
                f"{self._witness} is taken for the same machine by its {', '.join(weak)}, which others like it share"
            )
        self._notes += [f"{self._witness}: {note}" for note in other.notes]
        self._conflicts += other.conflicts
        gpus = {b.name: a.name for a, b in paired(self.facts.gpus, other.gpus)}
        nics = self._matched_nics(other)
        self._compare_trees(other)
        self._compare_paths(other, {**gpus, **nics})
        facts = self.facts
        self.facts = replace(
            facts,
            witnesses=(*facts.witnesses, *other.witnesses),
            host=self._filled(
                facts.host, other.host, "host", skip=("name", "product", "modules", "sysctls", "boot_id")
            ),
            cpus=self._cpus(facts, other),
            numa=self._numa(facts, other),
            roots=self._roots(facts, other),
            pci=self._pci(facts, other),
            gpus=self._gpus(facts, other, gpus, entry.nvlinks),
            nics=self._nics(facts, other, nics),
            paths=self._paths(facts, other, {**gpus, **nics}),
            p2p=self._p2p(facts, other, gpus),
            irqs=self._irqs(facts, other),
            files=facts.files or other.files,
            units=facts.units or other.units,
            tools=facts.tools or other.tools,
        )
        self._rename_places()
        self.facts = replace(
            self.facts,
            conflicts=tuple(self._conflicts),
            notes=tuple(dict.fromkeys(self._notes)),
            sources=dict(self._sources),
        )

    # -- values --

    def _filled(self, ours: Any, theirs: Any, place: str, skip: tuple[str, ...] = ()) -> Any:
        """Ours with what only they know; where both speak and differ, a conflict. skip: filled, not compared."""
        changes: dict[str, Any] = {}
        for entry in dataclasses.fields(ours):
            mine, yours = getattr(ours, entry.name), getattr(theirs, entry.name)
            where = f"{place}.{entry.name}"
            if yours is None or yours in ((), "", {}):
                continue
            if mine is None or mine in ((), {}):
                changes[entry.name] = yours
                self._sources[where] = self._witness
            elif entry.name not in skip:
                self._compare(where, mine, yours)
        return replace(ours, **changes) if changes else ours

    def _compare(
        self, where: str, mine: Any, yours: Any, alike: Callable[[Any, Any], bool] | None = None
    ) -> None:
        alike = alike or _ALIKE.get(where.rpartition(".")[2], _equal)
        if alike(mine, yours):
            return
        claim = Claim(self._witness, _text(yours))
        if len(self._conflicts) >= MAX_CONFLICTS:
            raise InputError(
                self._witness,
                f"contradicts {self._first} in more than {MAX_CONFLICTS} places",
                "these are hardly of one machine: give the captures of one, taken at one time",
            )
        for number, conflict in enumerate(self._conflicts):
            if conflict.where == where:
                self._conflicts[number] = replace(conflict, claims=(*conflict.claims, claim))
                return
        said_by = self._sources.get(where, self._first)
        self._conflicts.append(Conflict(where, (Claim(said_by, _text(mine)), claim)))

    # -- processors --

    def _cpus(self, facts: Facts, other: Facts) -> Any:
        return self._filled(facts.cpus, other.cpus, "cpus", skip=("vendor", "allowed", "isolated"))

    def _numa(self, facts: Facts, other: Facts) -> tuple[NumaNode, ...]:
        nodes = {node.id: node for node in facts.numa}
        for node in other.numa:
            mine = nodes.get(node.id)
            if mine is None:
                nodes[node.id] = node
                self._sources[f"numa[{node.id}]"] = self._witness
            else:
                nodes[node.id] = self._filled(mine, node, f"numa[{node.id}]", skip=("memory",))
        return tuple(nodes[number] for number in sorted(nodes))

    # -- the PCI tree --

    def _roots(self, facts: Facts, other: Facts) -> Any:
        if not _has_tree(facts) and _has_tree(other):
            self._sources["roots"] = self._witness
            return other.roots
        theirs = {root.name: root for root in other.roots}
        return tuple(
            self._filled(root, theirs[root.name], f"roots[{root.name}]") if root.name in theirs else root
            for root in facts.roots
        )

    def _pci(self, facts: Facts, other: Facts) -> tuple[PciDevice, ...]:
        # A matrix is planned by its words, and functions without a tree would only hide that there is none.
        if not facts.pci and other.pci and (_has_tree(other) or not (facts.paths or other.paths)):
            self._sources["pci"] = self._witness
            return other.pci
        theirs = {device.address: device for device in other.pci}
        return tuple(
            self._with_device(device, theirs[device.address]) if device.address in theirs else device
            for device in facts.pci
        )

    def _with_device(self, mine: PciDevice, yours: PciDevice) -> PciDevice:
        place = f"pci[{mine.address}]"
        link = self._with_link(mine, yours, f"{place}.link")
        filled = self._filled(
            replace(mine, link=link),
            replace(yours, link=link, parent=None),
            place,
            skip=("slot", "local_cpus"),
        )
        result: PciDevice = filled
        # Where a function hangs is one witness's: two halves of two trees make no tree.
        return replace(result, parent=mine.parent)

    def _with_link(self, mine: PciDevice, yours: PciDevice, place: str) -> Any:
        # The speed now is a matter of the moment: an idle GPU's link goes down to 2.5 GT/s.
        filled = self._filled(mine.link, yours.link, place, skip=("speed", "max_speed", "max_width"))
        for name in ("max_speed", "max_width"):
            own, told = getattr(mine.link, name), getattr(yours.link, name)
            if own is None or told is None:
                continue
            source = self._sources.get(f"{place}.{name}", self._first)
            common = self._kind in _COMMON_MAXIMUM
            ours = source.split(" ")[0] in _COMMON_MAXIMUM
            agrees = own == told or (common and told < own) or (ours and own < told) or (common and ours)
            if not agrees:
                self._compare(f"{place}.{name}", own, told, _equal)
        return filled

    def _compare_trees(self, other: Facts) -> None:
        """Each function's bridges, from nearest to root, as far as both show them."""
        if not (_has_tree(self.facts) and _has_tree(other)):
            return
        mine, yours = ({device.address: device for device in facts.pci} for facts in (self.facts, other))
        coarse = "nccl-xml"
        ours_coarse, theirs_coarse = self._first.startswith(coarse), self._kind == coarse
        for address, device in yours.items():
            if address not in mine or device.parent is None or mine[address].parent is None:
                continue
            above, told = _above(mine, address), _above(yours, address)
            if theirs_coarse and not ours_coarse:
                # NCCL shows one function of each switch and no port; bridges that people invent are nobody's.
                known = [name for name in told if name in mine or not name.startswith("f")]
                agrees = _in_order(known, above) and not (not told and len(above) > 2)
            elif ours_coarse and not theirs_coarse:
                agrees = _in_order([name for name in above if name in yours], told)
            else:
                agrees = above == told
            if not agrees:
                self._compare(
                    f"pci[{address}].parent",
                    " < ".join(above) or "the CPU",
                    " < ".join(told) or "the CPU",
                    _equal,
                )

    # -- distances --

    def _compare_paths(self, other: Facts, names: dict[str, str]) -> None:
        """A matrix's words against the tree; two matrices are compared when their paths are merged."""
        matrix, tree = (other, self.facts) if other.paths else (self.facts, other)
        if not matrix.paths or not _has_tree(tree):
            return
        back = {value: key for key, value in names.items()}
        climb = Tree(tree)
        place = {gpu.name: gpu.address for gpu in tree.gpus} | {nic.name: nic.address for nic in tree.nics}
        # Without NODE and PHB a container hides which node is which, and says SYS of all.
        sees_nodes = any(path.level in {"NODE", "PHB"} for path in matrix.paths) or any(
            gpu.numa is not None for gpu in matrix.gpus
        )
        for path in matrix.paths:
            pair = [(names if matrix is other else back).get(name) for name in (path.a, path.b)]
            ends = [place.get(name or "") for name in pair]
            ascents = [climb.ascent(end) for end in ends if end is not None]
            if (
                len(ascents) < 2
                or ascents[0] is None
                or ascents[1] is None
                or None in (ascents[0].numa, ascents[1].numa)
            ):
                continue
            if ends[0] == ends[1]:
                continue
            word = path_word(*turning_point(ascents[0], ascents[1]), c2c=False)
            if _reach(word) == _reach(path.level) or (
                not sees_nodes and {_reach(word), _reach(path.level)} == {1, 2}
            ):
                continue
            speakers = (self._first, self._witness) if tree is self.facts else (self._witness, self._first)
            claims = (Claim(speakers[0], word), Claim(speakers[1], path.level))
            self._conflicts.append(Conflict(f"{pair[0]}-{pair[1]}", claims))

    def _paths(self, facts: Facts, other: Facts, names: dict[str, str]) -> Any:
        if _has_tree(facts) or _has_tree(other):
            return ()
        if not facts.paths and other.paths:
            self._sources["paths"] = self._witness
            return tuple(
                replace(path, a=names.get(path.a, path.a), b=names.get(path.b, path.b))
                for path in other.paths
            )
        mine = {frozenset((path.a, path.b)): path for path in facts.paths}
        for path in other.paths:
            a, b = names.get(path.a, path.a), names.get(path.b, path.b)
            known = mine.get(frozenset((a, b)))
            if known is not None:
                self._compare(f"{known.a}-{known.b}", known.level, path.level, _equal)
        return facts.paths

    def _p2p(self, facts: Facts, other: Facts, names: dict[str, str]) -> Any:
        table = {(pair.a, pair.b, pair.capability): pair for pair in facts.p2p}
        for pair in other.p2p:
            a, b = names.get(pair.a, pair.a), names.get(pair.b, pair.b)
            known = table.setdefault((a, b, pair.capability), replace(pair, a=a, b=b))
            if known.status != pair.status:
                self._compare(f"p2p[{a}-{b}]", known.status, pair.status, _equal)
        if other.p2p and not facts.p2p:
            self._sources["p2p"] = self._witness
        return tuple(table.values())

    # -- GPUs --

    def _gpus(
        self, facts: Facts, other: Facts, names: dict[str, str], counted: dict[str, int]
    ) -> tuple[Gpu, ...]:
        if not facts.gpus and other.gpus:
            self._sources["gpus"] = self._witness
            return other.gpus
        theirs = {names[gpu.name]: gpu for gpu in other.gpus if gpu.name in names}
        result = [self._with_gpu(gpu, theirs[gpu.name]) if gpu.name in theirs else gpu for gpu in facts.gpus]
        addressed = other.gpus and all(gpu.address for gpu in other.gpus)
        for gpu in facts.gpus:
            if addressed and gpu.address and gpu.name not in theirs:
                self._compare(f"gpus[{gpu.name}].address", gpu.address, "no GPU there", _equal)
        for gpu in other.gpus:
            if gpu.name not in names:
                self._compare(
                    f"gpus[{gpu.address or gpu.uuid}].address",
                    "no GPU there",
                    gpu.address or gpu.uuid,
                    _equal,
                )
        self._counted |= {names.get(name, name): count for name, count in counted.items()}
        for gpu in result:
            count = self._counted.get(gpu.name)
            if (
                count is not None
                and gpu.nvlinks is not None
                and not gpu.partial
                and count not in _link_counts(gpu, len(result))
            ):
                told = min(_link_counts(gpu, len(result)))
                self._compare(f"gpus[{gpu.name}].nvlinks", f"{told} links", f"{count} links up", _equal)
        return tuple(result)

    def _with_gpu(self, mine: Gpu, yours: Gpu) -> Gpu:
        place = f"gpus[{mine.name}]"
        theirs = replace(yours, name=mine.name, index=mine.index, partial=mine.partial)
        result: Gpu = self._filled(mine, theirs, place, skip=("nvlinks", "cpus"))
        if mine.cpus is not None and yours.cpus is not None:
            self._compare(f"{place}.cpus", mine.cpus, yours.cpus)
        return result

    # -- NICs --

    def _matched_nics(self, other: Facts) -> dict[str, str]:
        """Name there to name here. A NIC that fits several is left alone."""
        matched: dict[str, str] = {}
        for key in _NIC_KEYS:
            taken = set(matched.values())
            here = [nic for nic in self.facts.nics if nic.name not in taken]
            mine, yours = (
                _by_key(here, key),
                _by_key([nic for nic in other.nics if nic.name not in matched], key),
            )
            for value, nics in yours.items():
                fits = mine.get(value, [])
                if len(nics) == len(fits) == 1:
                    matched[nics[0].name] = fits[0].name
        return matched

    def _nics(self, facts: Facts, other: Facts, names: dict[str, str]) -> tuple[Nic, ...]:
        if not facts.nics and other.nics:
            self._sources["nics"] = self._witness
            return other.nics
        theirs = {names[nic.name]: nic for nic in other.nics if nic.name in names}
        result = [self._with_nic(nic, theirs[nic.name]) if nic.name in theirs else nic for nic in facts.nics]
        known = {device.address for device in facts.pci}
        nameless = all(nic.rdma is None and nic.netdev is None for nic in facts.nics)
        occupied = {nic.address for nic in facts.nics} - {None}
        taken = {nic.name for nic in result}
        left_out = []
        for nic in other.nics:
            if nic.name in names or (nic.address in occupied and nic.rdma is None and nic.netdev is None):
                continue
            if (
                nic.address is not None
                and known
                and nic.address not in known
                and not self._first.startswith("nccl-xml")
            ):
                self._compare(f"nics[{nic.name}].address", "no function there", nic.address, _equal)
            elif nic.address is None and nameless:
                left_out.append(nic.name)
            elif nic.name in taken:
                self._notes.append(f"{self._witness}: {nic.name} fits no single port here; left out")
            else:
                result.append(nic)
                self._sources[f"nics[{nic.name}]"] = self._witness
        if left_out:
            self._notes.append(
                f"{self._witness}: {', '.join(left_out)} cannot be tied to PCI functions; give `ibdev2netdev -v` too"
            )
        return tuple(result)

    def _with_nic(self, mine: Nic, yours: Nic) -> Nic:
        # What was called by its address gets the name that people use; a matrix's own name stays.
        if mine.name == mine.address and yours.name != yours.address:
            self._renamed[mine.name] = yours.name
            mine = replace(mine, name=yours.name)
        place = f"nics[{mine.name}]"
        address = yours.address
        nccl = "nccl-xml" in (self._kind, self._first.partition(" ")[0])
        if mine.address and address and nccl:
            # NCCL shows all functions of a card as nets of its first one.
            address = None if mine.address[:-1] == address[:-1] else address
        theirs = replace(yours, name=mine.name, address=address, gids=())
        result: Nic = self._filled(mine, theirs, place, skip=("port",) if nccl else ())
        if yours.gids:
            result = replace(result, gids=self._gids(mine.gids, yours.gids, place))
        return result

    def _rename_places(self) -> None:
        """Sources and conflicts of NICs that have got a better name."""
        if self._renamed:
            self._sources = {self._place(key): witness for key, witness in self._sources.items()}
            self._conflicts = [replace(entry, where=self._place(entry.where)) for entry in self._conflicts]
            self._renamed = {}

    def _place(self, where: str) -> str:
        match = _NIC_PLACE.match(where)
        new = self._renamed.get(match[1]) if match else None
        return where if match is None or new is None else f"nics[{new}]{where[match.end() :]}"

    def _gids(self, mine: tuple[Gid, ...], yours: tuple[Gid, ...], place: str) -> tuple[Gid, ...]:
        table = {gid.index: gid for gid in mine}
        for gid in yours:
            known = table.get(gid.index)
            if known is None:
                table[gid.index] = gid
                self._sources[f"{place}.gids[{gid.index}]"] = self._witness
            else:
                table[gid.index] = self._filled(known, gid, f"{place}.gids[{gid.index}]")
        return tuple(table[index] for index in sorted(table))

    def _irqs(self, facts: Facts, other: Facts) -> Any:
        table = {irq.number: irq for irq in facts.irqs}
        for irq in other.irqs:
            if irq.number in table:
                table[irq.number] = self._filled(table[irq.number], irq, f"irqs[{irq.number}]")
            else:
                table[irq.number] = irq
                self._sources[f"irqs[{irq.number}]"] = self._witness
        order = list(dict.fromkeys(irq.number for irq in (*facts.irqs, *other.irqs)))
        return tuple(table[number] for number in order)


def _speaker(facts: Facts) -> str:
    witness = facts.witnesses[0] if facts.witnesses else None
    return "facts" if witness is None else f"{witness.kind} {witness.source}"


def _has_tree(facts: Facts) -> bool:
    return any(device.parent is not None for device in facts.pci)


def _above(devices: dict[str, PciDevice], address: str) -> list[str]:
    """Bridges above, nearest first, without the host bridge."""
    way: list[str] = []
    here = devices[address].parent
    while here is not None and here in devices and here not in way:
        way.append(here)
        here = devices[here].parent
    return way


def _in_order(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(any(name == other for other in rest) for name in part)


def _reach(level: str) -> int:
    """0: below the CPU, 1: in one NUMA node, 2: over the link between nodes."""
    return 0 if level in BESIDE else 2 if level == "SYS" else 1


def _link_counts(gpu: Gpu, gpus: int) -> set[int]:
    """How many NVLinks a GPU has: a matrix says "NV18" of each peer where all go through switches."""
    counts = [link.count for link in gpu.nvlinks or ()]
    uniform = len(set(counts)) == 1 and len(counts) == gpus - 1
    return {sum(counts)} | ({counts[0]} if uniform else set())


def _by_key(nics: Iterable[Nic], key: Callable[[Nic], object]) -> dict[object, list[Nic]]:
    groups: dict[object, list[Nic]] = {}
    for nic in nics:
        value = key(nic)
        if value is not None:
            groups.setdefault(value, []).append(nic)
    return groups


# What makes two ports one, best first.
_NIC_KEYS: tuple[Callable[[Nic], object], ...] = (
    lambda nic: None if nic.rdma is None else (nic.rdma, nic.port or 1),
    # NCCL calls the second function of a card its second port.
    lambda nic: nic.rdma,
    lambda nic: nic.netdev,
    lambda nic: nic.mac,
    lambda nic: nic.address,
)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{entry.name} {getattr(value, entry.name)}" for entry in dataclasses.fields(value))
    return str(value)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b)


def _same_cpus(a: str, b: str) -> bool:
    return parse_cpulist(a, "cpus") == parse_cpulist(b, "cpus")


def _same_cores(a: Iterable[Any], b: Iterable[Any]) -> bool:
    return {core.cpus for core in a} == {core.cpus for core in b}


def _same_class(a: str, b: str) -> bool:
    return a.startswith(b) or b.startswith(a)


def _same_guid(a: str, b: str) -> bool:
    return plain_guid(a) == plain_guid(b)


def _same_model(a: str, b: str) -> bool:
    # RCCL names the architecture, others the product.
    return a == b or a.startswith("gfx") or b.startswith("gfx")


_ALIKE: dict[str, Callable[[Any, Any], bool]] = {
    "cpus": _same_cpus,
    "online": _same_cpus,
    "offline": _same_cpus,
    "cores": _same_cores,
    "class_code": _same_class,
    "guid": _same_guid,
    "sys_image_guid": _same_guid,
}
