"""Processors and NUMA nodes: /sys/devices/system/{cpu,node} and /proc/{cpuinfo,meminfo}.

Files and their formats: Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu
and stable/sysfs-devices-node of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .cpusets import format_list, format_mask, parse_list
from .errors import MachineError
from .model import Cache, Cpus, Machine
from .tree import Tree

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
_LINE = 64  # bytes in a cache line


@dataclass(frozen=True)
class Cpu:
    """One logical CPU: its core is counted within its socket."""

    number: int
    socket: int
    node: int
    core: int
    thread: int


@dataclass(frozen=True)
class Topology:
    """All logical CPUs, offline ones too."""

    cpus: tuple[Cpu, ...]
    offline: frozenset[int]
    possible: int
    nodes: tuple[int, ...]

    @cached_property
    def online(self) -> tuple[int, ...]:
        return tuple(cpu.number for cpu in self.cpus if cpu.number not in self.offline)

    @cached_property
    def by_node(self) -> Mapping[int, tuple[int, ...]]:
        """The online CPUs of each node."""
        return {
            node: tuple(
                cpu.number for cpu in self.cpus if cpu.node == node and cpu.number not in self.offline
            )
            for node in self.nodes
        }

    def local(self, node: int) -> tuple[int, ...]:
        """The CPUs that sysfs calls local to a device of `node`: all online ones where the node is -1."""
        return self.online if node < 0 else self.by_node[node]

    def mask(self, cpus: tuple[int, ...]) -> str:
        return format_mask(cpus, self.possible)


def topology(cpus: Cpus) -> Topology:
    """The CPUs of a description, ascending by number."""
    members = _listed(cpus.nodes, cpus.sibling_distance) if cpus.nodes is not None else _regular(cpus)
    ordered = tuple(sorted(members, key=lambda cpu: cpu.number))
    nodes = tuple(sorted({cpu.node for cpu in ordered} | set(cpus.nodes or ())))
    return Topology(ordered, frozenset(cpus.offline), cpus.possible or ordered[-1].number + 1, nodes)


def _regular(cpus: Cpus) -> list[Cpu]:
    if cpus.cores % cpus.nodes_per_socket:
        raise MachineError(
            "cpus", "the cores do not divide evenly over the nodes", "correct nodes_per_socket"
        )
    per_node = cpus.cores // cpus.nodes_per_socket
    total = cpus.sockets * cpus.cores
    members = []
    for socket in range(cpus.sockets):
        for core in range(cpus.cores):
            for thread in range(cpus.threads):
                number = {
                    "half-split": thread * total + socket * cpus.cores + core,
                    "odd-even": thread * total + core * cpus.sockets + socket,
                    "adjacent": (socket * cpus.cores + core) * cpus.threads + thread,
                }[cpus.numbering]
                node = socket * cpus.nodes_per_socket + core // per_node
                members.append(Cpu(number, socket, node, core, thread))
    return members


def _listed(nodes: Mapping[int, tuple[int, ...]], distance: int | None) -> list[Cpu]:
    """One socket a node; CPU n and n + distance share a core."""
    members = []
    for socket, node in enumerate(sorted(nodes)):
        own = set(nodes[node])
        first = [cpu for cpu in sorted(own) if distance is None or cpu - distance not in own]
        for core, number in enumerate(first):
            members.append(Cpu(number, socket, node, core, 0))
            if distance is not None and number + distance in own:
                members.append(Cpu(number + distance, socket, node, core, 1))
    return members


@dataclass(frozen=True)
class Block:
    """CPUs that share something, in the kernel's two spellings."""

    mask: str
    listed: str


def blocks(shape: Topology, cores: int) -> dict[tuple[int, int], Block]:
    """(socket, place) -> the online CPUs of `cores` neighbouring cores; 0 cores are the whole socket."""
    members: dict[tuple[int, int], list[int]] = {}
    for cpu in shape.cpus:
        if cpu.number not in shape.offline:
            members.setdefault(_place(cpu, cores), []).append(cpu.number)
    return {
        place: Block(format_mask(numbers, shape.possible), format_list(numbers))
        for place, numbers in members.items()
    }


def _place(cpu: Cpu, cores: int) -> tuple[int, int]:
    return cpu.socket, cpu.core // cores if cores else 0


def add_cpus(tree: Tree, machine: Machine, shape: Topology) -> None:
    """/sys/devices/system/cpu, /proc/cpuinfo."""
    described = machine.cpus
    smt = any(cpu.thread for cpu in shape.cpus)
    tree.lines(
        CPU,
        {
            "online": format_list(shape.online),
            "present": format_list(cpu.number for cpu in shape.cpus),
            "possible": format_list(range(shape.possible)),
            "offline": format_list(set(range(shape.possible)) - set(shape.online)),
            "isolated": format_list(_isolated(machine.cmdline)),
            "kernel_max": 8191,
            "smt/active": int(smt),
            "smt/control": "on" if smt else "notsupported",
        },
    )
    sizes = {0, 1, *(cache.cores for cache in described.caches)}
    shared = {size: blocks(shape, size) for size in sizes}
    for cpu in shape.cpus:
        _add_cpu(tree, cpu, cpu.number in shape.offline)
        if cpu.number not in shape.offline:
            _add_topology(tree, cpu, shared[1][_place(cpu, 1)], shared[0][_place(cpu, 0)])
            for index, cache in enumerate(described.caches):
                _add_cache(tree, index, cache, cpu, shared[cache.cores][_place(cpu, cache.cores)])
            _add_frequency(tree, described, cpu.number)
    tree.file("proc/cpuinfo", _cpuinfo(described, shape))


def _isolated(cmdline: str) -> tuple[int, ...]:
    for word in cmdline.split():
        if word.startswith("isolcpus="):
            ranges = [item for item in word.partition("=")[2].split(",") if item[:1].isdigit()]
            return parse_list(",".join(ranges), "kernel.cmdline")
    return ()


def _add_cpu(tree: Tree, cpu: Cpu, offline: bool) -> None:
    folder = f"{CPU}/cpu{cpu.number}"
    tree.folder(folder)
    if cpu.number:  # the boot CPU of x86 has no such file
        tree.lines(folder, {"online": int(not offline)})
    if not offline:
        tree.link(f"{folder}/node{cpu.node}", f"{NODE}/node{cpu.node}")


def _add_topology(tree: Tree, cpu: Cpu, core: Block, package: Block) -> None:
    groups = {
        "core_cpus": core,
        "thread_siblings": core,
        "core_siblings": package,
        "die_cpus": package,
        "package_cpus": package,
    }
    tree.lines(
        f"{CPU}/cpu{cpu.number}/topology",
        {
            "physical_package_id": cpu.socket,
            "die_id": 0,
            "core_id": cpu.core,
            **{name: block.mask for name, block in groups.items()},
            **{f"{name}_list": block.listed for name, block in groups.items()},
        },
    )


def _add_cache(tree: Tree, index: int, cache: Cache, cpu: Cpu, shared: Block) -> None:
    socket, place = _place(cpu, cache.cores)
    tree.lines(
        f"{CPU}/cpu{cpu.number}/cache/index{index}",
        {
            "level": cache.level,
            "type": cache.kind,
            "id": socket << 8 | place,
            "size": f"{cache.size >> 10}K",
            "ways_of_associativity": cache.ways,
            "number_of_sets": cache.size // (cache.ways * _LINE),
            "coherency_line_size": _LINE,
            "physical_line_partition": 1,
            "shared_cpu_map": shared.mask,
            "shared_cpu_list": shared.listed,
        },
    )


def _add_frequency(tree: Tree, described: Cpus, cpu: int) -> None:
    if described.scaling_driver is None or described.governor is None:
        return
    policy = f"{CPU}/cpufreq/policy{cpu}"
    tree.link(f"{CPU}/cpu{cpu}/cpufreq", policy)
    tree.lines(
        policy,
        {
            "affected_cpus": cpu,
            "scaling_driver": described.scaling_driver,
            "scaling_governor": described.governor,
        },
    )


def _cpuinfo(described: Cpus, shape: Topology) -> str:
    # Fields and order: arch/x86/kernel/cpu/proc.c.
    siblings = {
        socket: sum(cpu.socket == socket for cpu in shape.cpus) for socket in {c.socket for c in shape.cpus}
    }
    cores = {socket: len({c.core for c in shape.cpus if c.socket == socket}) for socket in siblings}
    size = max((cache.size for cache in described.caches), default=0) >> 10
    texts = []
    for cpu in shape.cpus:
        if cpu.number in shape.offline:
            continue
        apic = cpu.socket << 8 | cpu.core << 1 | cpu.thread
        fields: list[tuple[str, object]] = [
            ("processor\t", cpu.number),
            ("vendor_id\t", described.vendor),
            ("cpu family\t", described.family),
            ("model\t\t", described.model),
            ("model name\t", described.name),
            ("stepping\t", described.stepping),
            ("microcode\t", "0x2b0005c0"),
            ("cpu MHz\t\t", f"{described.mhz}.000"),
            ("cache size\t", f"{size} KB"),
            ("physical id\t", cpu.socket),
            ("siblings\t", siblings[cpu.socket]),
            ("core id\t\t", cpu.core),
            ("cpu cores\t", cores[cpu.socket]),
            ("apicid\t\t", apic),
            ("initial apicid\t", apic),
            ("fpu\t\t", "yes"),
            ("fpu_exception\t", "yes"),
            ("cpuid level\t", 32),
            ("wp\t\t", "yes"),
            ("flags\t\t", described.flags),
            ("bogomips\t", f"{2 * described.mhz}.00"),
            ("clflush size\t", _LINE),
            ("cache_alignment\t", _LINE),
            ("address sizes\t", "46 bits physical, 57 bits virtual"),
            ("power management", ""),
        ]
        texts.append("".join(f"{name}: {value}\n".replace(": \n", ":\n") for name, value in fields) + "\n")
    return "".join(texts)


def add_nodes(tree: Tree, machine: Machine, shape: Topology) -> None:
    """/sys/devices/system/node, /proc/meminfo."""
    nodes = sorted({*shape.nodes, *machine.memory_gib})
    with_cpus = [node for node in nodes if shape.by_node.get(node)]
    with_memory = [node for node in nodes if machine.memory_gib.get(node)]
    tree.lines(
        NODE,
        {
            "online": format_list(nodes),
            "possible": format_list(nodes),
            "has_cpu": format_list(with_cpus),
            "has_memory": format_list(with_memory),
            "has_normal_memory": format_list(with_memory),
        },
    )
    for node in nodes:
        _add_node(tree, machine, shape, node, len(nodes))
    total = sum(machine.memory_gib.values()) << 20
    tree.file("proc/meminfo", _meminfo(total))


def _add_node(tree: Tree, machine: Machine, shape: Topology, node: int, count: int) -> None:
    folder = f"{NODE}/node{node}"
    cpus = shape.by_node.get(node, ())
    row = machine.distances.get(node)
    if row is None or len(row) != count:
        raise MachineError(f"{machine.name}.numa_distance.{node}", f"needs {count} distances", "add the row")
    kib = machine.memory_gib.get(node, 0) << 20
    tree.lines(
        folder,
        {
            "cpulist": format_list(cpus),
            "cpumap": format_mask(cpus, shape.possible),
            "distance": " ".join(str(step) for step in row),
        },
    )
    tree.file(
        f"{folder}/meminfo",
        "".join(
            f"Node {node} {name:<16}{value:8d} {unit}".rstrip() + "\n"
            for name, value, unit in (
                ("MemTotal:", kib, "kB"),
                ("MemFree:", kib - kib // 50, "kB"),
                ("MemUsed:", kib // 50, "kB"),
                ("HugePages_Total:", 0, ""),
                ("HugePages_Free:", 0, ""),
                ("HugePages_Surp:", 0, ""),
            )
        ),
    )
    for size in (2048, 1048576):
        tree.lines(
            f"{folder}/hugepages/hugepages-{size}kB",
            {"nr_hugepages": 0, "free_hugepages": 0, "surplus_hugepages": 0},
        )
    for cpu in cpus:
        tree.link(f"{folder}/cpu{cpu}", f"{CPU}/cpu{cpu}")


def _meminfo(total: int) -> str:
    used = total // 50
    values = (
        ("MemTotal:", total, "kB"),
        ("MemFree:", total - used, "kB"),
        ("MemAvailable:", total - used, "kB"),
        ("Buffers:", used // 20, "kB"),
        ("Cached:", used // 4, "kB"),
        ("SwapTotal:", 0, "kB"),
        ("SwapFree:", 0, "kB"),
        ("HugePages_Total:", 0, ""),
        ("HugePages_Free:", 0, ""),
        ("HugePages_Rsvd:", 0, ""),
        ("HugePages_Surp:", 0, ""),
        ("Hugepagesize:", 2048, "kB"),
        ("Hugetlb:", 0, "kB"),
    )
    return "".join(f"{name:<16}{value:8d} {unit}".rstrip() + "\n" for name, value, unit in values)
