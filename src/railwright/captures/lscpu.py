"""`lscpu`, with or without the table of `lscpu -p`: processor, online CPUs, NUMA nodes, and cores from the table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from railwright.node.model import Core, Cpus, Facts, Host, InputError, NumaNode, format_cpulist, parse_cpulist

from .cpusets import disjoint
from .fields import facts_of, lines_of, refuse_crowd, whole
from .source import Source

_FIELD = re.compile(r"^ *([A-Za-z][A-Za-z0-9() /.-]{0,40}?):\s*(.*)$", re.ASCII)
# Where every second CPU is on a node, newer ones write the step: "0-62:2".
_STRIDE = re.compile(r"(\d{1,4})-(\d{1,4}):(\d{1,3})", re.ASCII)
_NODE = re.compile(r"^NUMA node(\d{1,4}) CPU\(s\)$", re.ASCII)
_TABLE = re.compile(r"^# ?CPU,", re.IGNORECASE)
_ROW = re.compile(r"^\d+(?:,[\d:-]*)*$", re.ASCII)
_HYPERVISORS = {"KVM": "kvm", "VMware": "vmware", "Xen": "xen", "Microsoft": "microsoft", "Oracle": "oracle"}

# 512 CPUs, one by one, take 2,000 characters.
MAX_LIST = 8192


@dataclass
class _Table:
    line: int
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)


def read_lscpu(source: Source) -> Facts:
    """Processor facts. Raises InputError with file and line."""
    fields: dict[str, tuple[str, int]] = {}
    tables: list[_Table] = []
    for line in lines_of(source):
        text = line.text
        if _TABLE.match(text):
            tables.append(
                _Table(line.number, [word.strip().lower() for word in text.lstrip("# ").split(",")])
            )
        elif tables and _ROW.match(text.strip()):
            tables[-1].rows.append(text.strip().split(","))
            refuse_crowd(len(tables[-1].rows), "CPUs", source.at(line.number))
        elif match := _FIELD.match(text):
            if match[1] in fields:
                raise InputError(
                    source.at(line.number), f"{match[1]} stands twice", "give one machine at a time"
                )
            fields[match[1]] = match[2].strip(), line.number
    return _Reader(source, fields, tables).facts()


class _Reader:
    def __init__(self, source: Source, fields: dict[str, tuple[str, int]], tables: list[_Table]) -> None:
        self._source = source
        self._fields = fields
        self._tables = tables

    def facts(self) -> Facts:
        nodes, doubts = disjoint(self._nodes(), self._source.name)
        cores = self._cores()
        online = self._cpulist("On-line CPU(s) list")
        self._check(online, nodes, cores)
        if online is None and not cores:
            raise InputError(self._source.name, "names no online CPU", "give the whole output of lscpu")
        cpus = Cpus(
            arch=self._text("Architecture"),
            vendor=self._text("Vendor ID"),
            family=self._number("CPU family"),
            # POWER prints "2.1 (pvr 003f 0201)" there.
            model=self._number("Model"),
            model_name=self._text("Model name"),
            online=online
            if online is not None
            else format_cpulist(cpu for core in cores for cpu in core.cpus),
            offline=self._cpulist("Off-line CPU(s) list"),
            cores=cores,
        )
        notes = (
            doubts
            if cores
            else (*doubts, "lscpu without the table of `lscpu -p`: which CPUs share a core is not shown")
        )
        return facts_of(
            "lscpu", self._source, host=Host(virtual=self._virtual()), cpus=cpus, numa=nodes, notes=notes
        )

    def _text(self, name: str) -> str | None:
        value = self._fields.get(name, ("", 0))[0]
        return value if value not in {"", "-"} else None

    def _where(self, name: str) -> str:
        return f"{self._source.at(self._fields[name][1])}: {name}"

    def _cpulist(self, name: str) -> str | None:
        value = self._text(name)
        return None if value is None else _listed(value, self._where(name))

    def _number(self, name: str) -> int | None:
        value = self._text(name)
        if value is None or "pvr" in value:
            return None
        return whole(value, 0, 0xFFFF, self._where(name))

    def _virtual(self) -> str | None:
        """The hypervisor that lscpu names. Where it names none, it may have been asked on a recorded machine."""
        vendor = self._text("Hypervisor vendor")
        return None if vendor is None else _HYPERVISORS.get(vendor, "vm")

    def _nodes(self) -> list[NumaNode]:
        nodes = []
        for name, (value, line) in self._fields.items():
            if match := _NODE.match(name):
                where = self._source.at(line)
                cpus = "" if value == "-" else _listed(value, where)
                nodes.append(NumaNode(whole(match[1], 0, 1023, where), cpus))
        stated = self._number("NUMA node(s)")
        if nodes and stated is not None and stated != len(nodes):
            raise InputError(self._where("NUMA node(s)"), f"says {stated}, and {len(nodes)} nodes are listed")
        return nodes

    def _cores(self) -> tuple[Core, ...]:
        """Cores of the first table: its numbers are lscpu's own, unique over sockets (`-y` prints the kernel's)."""
        if not self._tables:
            return ()
        table = self._tables[0]
        if table.columns[:4] != ["cpu", "core", "socket", "node"]:
            raise InputError(
                self._source.at(table.line),
                f"the table's columns are {','.join(table.columns)[:60]}",
                "expected CPU,Core,Socket,Node first",
            )
        caches = _cache_column(table.columns)
        groups: dict[tuple[str, ...], list[int]] = {}
        shared: dict[str, list[int]] = {}
        seen: set[int] = set()
        for offset, row in enumerate(table.rows, start=1):
            where = self._source.at(table.line + offset)
            if len(row) != len(table.columns):
                raise InputError(where, f"{len(row)} cells under {len(table.columns)} columns")
            cpu = whole(row[0], 0, 8191, where)
            if cpu in seen:
                raise InputError(where, f"CPU {cpu} stands twice")
            seen.add(cpu)
            groups.setdefault((row[1], row[2], row[3]), []).append(cpu)
            if caches is not None and _unit(row[caches]):
                shared.setdefault(_unit(row[caches]), []).append(cpu)
        lowest = {cpu: min(group) for group in shared.values() for cpu in group}
        return tuple(
            Core(tuple(sorted(cpus)), _id(socket), _id(node), lowest.get(cpus[0]))
            for (_, socket, node), cpus in sorted(groups.items(), key=lambda item: min(item[1]))
        )

    def _check(self, online: str | None, nodes: tuple[NumaNode, ...], cores: tuple[Core, ...]) -> None:
        running = None if online is None else set(parse_cpulist(online, self._source.name))
        counted = self._number("CPU(s)")
        listed = {cpu for core in cores for cpu in core.cpus}
        if cores and running is not None and listed != running:
            raise InputError(
                self._source.at(self._tables[0].line),
                f"the table lists {len(listed)} CPUs, and {len(running)} are online",
                "give one machine, and the whole table",
            )
        if running is not None and counted is not None and counted < len(running):
            raise InputError(self._where("CPU(s)"), f"says {counted}, and {len(running)} are online")
        for node in nodes:
            members = set(parse_cpulist(node.cpus, self._source.name))
            told = {cpu for core in cores if core.numa == node.id for cpu in core.cpus}
            if cores and told != members:
                raise InputError(
                    self._source.at(self._tables[0].line),
                    f"the table puts other CPUs on NUMA node {node.id} than the list",
                    "give one machine at a time",
                )


def _listed(text: str, where: str) -> str:
    """A CPU list of lscpu's as the kernel writes it. Raises InputError."""
    cpus: set[int] = set()
    if len(text) > MAX_LIST:
        raise InputError(where, f"a CPU list of {len(text)} characters", "expected a form like 0-3,8")
    for part in text.split(","):
        stride = _STRIDE.fullmatch(part.strip())
        if stride is None:
            cpus.update(parse_cpulist(part.strip(), where))
        else:
            first, last, step = (int(number) for number in stride.groups())
            if not (first <= last <= 8191 and step):
                raise InputError(where, f"{part[:20]!r} is no CPU list", "expected a form like 0-62:2")
            cpus.update(range(first, last + 1, step))
    return format_cpulist(cpus)


def _cache_column(columns: list[str]) -> int | None:
    if "l3" in columns:
        return columns.index("l3")
    last = columns[-1]
    # Newer ones put all caches in one cell: "L1d:L1i:L2:L3" and "0:0:0:0".
    return len(columns) - 1 if last.endswith(":l3") else None


def _unit(cell: str) -> str:
    return cell.rpartition(":")[2]


def _id(cell: str) -> int | None:
    return int(cell) if re.fullmatch(r"[0-9]{1,5}", cell) else None
