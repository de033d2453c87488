"""Nodes made up by hand for the tests of the report: no planner decided here, each plan is written down.

`python -m tests.unit.report_samples DIR` (from the checkout, with src on the path) lays them out as a run's directory.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from railwright.node.model import (
    Bound,
    Certificate,
    Core,
    Cpus,
    CutLink,
    Facts,
    Finding,
    Gpu,
    Host,
    Link,
    LoadedLink,
    Nic,
    NumaNode,
    NvLink,
    PciDevice,
    Plan,
    PlannedGpu,
    PlannedNic,
    Policy,
    Rank,
    Root,
    Slice,
    Witness,
    to_json,
)
from railwright.node.model import Path as Distance

GEN5 = Link(32.0, 16, 32.0, 16)
SYSFS = (Witness("sysfs", "/"),)


def switch(root: str, bus: int, numa: int, downstream: int) -> list[PciDevice]:
    """A root port, a switch's upstream port and its downstream ports: buses `bus`, `bus` + 1 and `bus` + 2."""
    up = f"0000:{bus + 1:02x}:00.0"
    domain_bus = int(root.removeprefix("pci0000:"), 16)
    port = f"0000:{domain_bus:02x}:01.0"
    devices = [
        PciDevice(port, root, class_code="0x060400", port="root", numa=numa, link=GEN5),
        PciDevice(up, port, class_code="0x060400", port="upstream", numa=numa, link=GEN5),
    ]
    devices += [
        PciDevice(
            f"0000:{bus + 2:02x}:{n:02x}.0",
            up,
            class_code="0x060400",
            port="downstream",
            numa=numa,
            link=GEN5,
        )
        for n in range(downstream)
    ]
    return devices


def endpoint(address: str, parent: str, numa: int, class_code: str) -> PciDevice:
    return PciDevice(address, parent, class_code=class_code, port="endpoint", numa=numa, link=GEN5)


def two_sockets(cores: int = 48) -> tuple[Cpus, tuple[NumaNode, ...]]:
    """Two sockets of `cores` cores with two threads each, numbered as the kernel does: second threads last."""
    total = 2 * cores
    made = tuple(
        Core((cpu, cpu + total), socket=cpu // cores, numa=cpu // cores, l3=cpu // cores * cores)
        for cpu in range(total)
    )
    nodes = tuple(
        NumaNode(
            n,
            f"{n * cores}-{n * cores + cores - 1},{total + n * cores}-{total + n * cores + cores - 1}",
            (10, 21),
        )
        for n in (0, 1)
    )
    return Cpus(
        "x86_64", "GenuineIntel", 6, 143, "Intel Xeon Platinum 8468", f"0-{2 * total - 1}", cores=made
    ), nodes


def rank_cpus(index: int, nodes: int = 2, cores: int = 48, gpus: int = 8) -> str:
    per = cores // (gpus // nodes) - 3
    start = index * (cores * nodes // gpus) + 3
    return f"{start}-{start + per - 1},{start + cores * nodes}-{start + cores * nodes + per - 1}"


# A clean HGX H100: one switch for each GPU and its NIC, storage on two of the switches, management on its own port.


def hgx(names: list[str] | None = None, name: str = "gpu-a01") -> tuple[Facts, Plan]:
    """8 GPUs, 8 rail NICs (by the names given, in the order of the GPUs), 2 storage, 1 management, 1 down."""
    names = names or ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    cpus, numa = two_sockets()
    pci: list[PciDevice] = []
    roots: list[Root] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for index in range(8):
        bus = 0x15 + index * 0x18
        root, node = f"pci0000:{bus:02x}", index // 4
        roots.append(Root(root, node))
        storage = index in (0, 4)
        pci += switch(root, bus, node, 3 if storage else 2)
        gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
        pci.append(endpoint(gpu, f"0000:{bus + 2:02x}:00.0", node, "0x030200"))
        pci.append(endpoint(nic, f"0000:{bus + 2:02x}:01.0", node, "0x020700"))
        gpus.append(
            Gpu(
                f"GPU{index}",
                index,
                gpu,
                "NVIDIA H100 80GB HBM3",
                f"GPU-{index:08x}",
                90,
                node,
                numa[node].cpus,
                True,
                tuple(NvLink(f"0000:{6 + n:02x}:00.0", count) for n, count in enumerate((5, 4, 4, 5))),
            )
        )
        nics.append(
            Nic(
                names[index],
                nic,
                names[index],
                1,
                f"ibp{bus + 4}s0",
                "InfiniBand",
                "active",
                400000,
                numa=node,
            )
        )
        if storage:
            address, title = f"0000:{bus + 5:02x}:00.0", "mlx5_1" if index == 0 else "mlx5_7"
            pci.append(endpoint(address, f"0000:{bus + 2:02x}:02.0", node, "0x020000"))
            nics.append(Nic(title, address, title, 1, f"ens{bus}f0", "Ethernet", "active", 200000, numa=node))
    roots.append(Root("pci0000:00", 0))
    for function, (title, state) in enumerate((("mlx5_2", "active"), ("mlx5_8", "down"))):
        address = f"0000:02:00.{function}"
        if function == 0:
            pci.append(PciDevice("0000:00:1c.0", "pci0000:00", class_code="0x060400", port="root", numa=0))
        pci.append(endpoint(address, "0000:00:1c.0", 0, "0x020000"))
        nics.append(
            Nic(
                title,
                address,
                title,
                1,
                f"eno{function + 1}",
                "Ethernet",
                state,
                25000 if function == 0 else None,
                numa=0,
                default_route=function == 0,
            )
        )
    facts = Facts(
        "railwright.facts/1",
        SYSFS,
        Host(
            name, "ubuntu", "22.04", "5.15.0-113-generic", product="HGX H100", virtual="", driver="570.124.06"
        ),
        cpus,
        numa,
        tuple(roots),
        tuple(sorted(pci, key=lambda device: device.address)),
        tuple(gpus),
        tuple(nics),
    )
    return facts, _hgx_plan(facts, names)


def _hgx_plan(facts: Facts, names: list[str]) -> Plan:
    nics = {nic.name: nic for nic in facts.nics}
    gpus = tuple(
        PlannedGpu(
            gpu.index,
            gpu.name,
            gpu.address,
            gpu.numa,
            gpu.index,
            (names[gpu.index],),
            "PIX",
            rank_cpus(gpu.index),
            f"{names[gpu.index]} is on its PCIe switch and serves no other GPU",
            slot=str(gpu.index + 1),
            uuid=gpu.uuid,
        )
        for gpu in facts.gpus
    )
    planned = []
    for nic in facts.nics:
        if nic.name in names:
            index = names.index(nic.name)
            core = 48 * (index // 4) + 1 + index % 4 * 12
            planned.append(
                PlannedNic(
                    nic.name,
                    nic.address,
                    "rail",
                    index,
                    f"{core}-{core + 1}",
                    f"InfiniBand, active at 400 Gb/s, on the switch of GPU{index}",
                    nic.rdma,
                    nic.netdev,
                    1,
                    nic.numa,
                    (f"GPU{index}",),
                )
            )
            continue
        role, because = {
            "mlx5_2": ("management", "the default route leaves here"),
            "mlx5_8": ("down", "no link"),
        }.get(nic.name, ("storage", "Ethernet at 200 Gb/s beside InfiniBand rails at 400 Gb/s"))
        planned.append(
            PlannedNic(nic.name, nic.address, role, None, None, because, nic.rdma, nic.netdev, 1, nic.numa)
        )
    links = []
    for gpu in facts.gpus:
        parents = {device.address: device.parent for device in facts.pci}
        for end, flows in ((gpu.address, (gpu.name,)), (nics[names[gpu.index]].address, (gpu.name,))):
            assert end is not None
            port = parents[end]
            assert port is not None
            up = parents[port]
            assert up is not None
            links.append(LoadedLink(end, up, "pcie", 48.0, 48.0, flows))
    links.append(LoadedLink("numa0", "numa1", "cpu", 22.0, 0.0, ()))
    content = "".join(f"{key}={value}\n" for key, value in _NCCL(names).items())
    return Plan(
        "railwright.plan/1",
        "planned",
        summary=(
            "No change needed: each GPU has a NIC of its own on its PCIe switch, and NCCL would choose the same.",
            "2 NICs are kept out of NCCL: storage (mlx5_1, mlx5_7).",
            "The default route leaves by eno1 (mlx5_2): bootstrap traffic stays there.",
        ),
        gpus=gpus,
        nics=tuple(planned),
        bound=Bound(
            48.0,
            48.0,
            48.0,
            True,
            Certificate(50.0, 8, 0, tuple(CutLink(f"{name} port", 48.0, 0) for name in names)),
            6.0 if names[0] != "mlx5_0" else 48.0,
            48.0,
            48.0,
            "Every GPU gets 48 GB/s with all GPUs sending, the rate of its NIC; no pairing does better.",
        ),
        links=tuple(links),
        nccl=_NCCL(names),
        ranks=tuple(
            Rank(
                gpu.index,
                gpu.name,
                gpu.nics[0],
                gpu.rail,
                gpu.cpus,
                gpu.numa,
                f"numactl --physcpubind={gpu.cpus} --membind={gpu.numa}",
            )
            for gpu in gpus
        ),
        housekeeping_cpus="0,48,96,144",
        slices={
            "nccl_conf": Slice(
                "runtime",
                (
                    {
                        "id": "nccl_conf",
                        "kind": "file",
                        "path": "/etc/nccl.conf",
                        "content": content,
                        "mode": "0644",
                    },
                ),
                "NCCL must use the 8 rails and nothing else",
            ),
            "irq_affinity": Slice(
                "runtime",
                tuple({"id": f"irq.{name}", "kind": "irq", "device": nics[name].address} for name in names),
                "interrupts of a NIC belong on its own NUMA node, away from rank cores",
            ),
            "sysctls": Slice(
                "runtime",
                ({"kind": "sysctl", "name": "kernel.numa_balancing", "value": "0"},),
                "page migration stalls pinned memory",
            ),
        },
        policy_sha256="0" * 64,
    )


def _NCCL(names: list[str]) -> dict[str, str]:
    return {
        "NCCL_IB_HCA": "=" + ",".join(f"{name}:1:{rail}" for rail, name in enumerate(names)),
        "NCCL_SOCKET_IFNAME": "=eno1",
        "NCCL_IB_TC": "106",
    }


# The same board with NIC numbers running backwards, and faults.


def backwards() -> tuple[Facts, Plan]:
    names = ["mlx5_11", "mlx5_10", "mlx5_9", "mlx5_6", "mlx5_5", "mlx5_4", "mlx5_3", "mlx5_0"]
    facts, plan = hgx(names, "gpu-a02")
    slow = plan.gpus[3].pci
    assert slow is not None
    links = tuple(
        replace(link, capacity_gbytes=12.0, load_gbytes=12.0, bottleneck=True) if link.a == slow else link
        for link in plan.links
    )
    finding = Finding(
        "pcie.degraded",
        "error",
        f"GPU3 ({slow})",
        "its link runs at 8 GT/s x16 under load, the slot and the GPU are capable of 32 GT/s x16",
        "Reseat the GPU, then look again: `lspci -vv -s " + slow + " | grep LnkSta`",
    )
    return facts, replace(
        plan,
        findings=(
            finding,
            Finding(
                "nic.order",
                "warning",
                "mlx5_0 … mlx5_11",
                "NIC numbers run against GPU numbers: pairing by index would cross the sockets for every GPU",
                "Use the written NCCL_IB_HCA list; do not pair by index in launch scripts",
            ),
            Finding(
                "pcie.acs",
                "error",
                "0000:16:00.0 and 7 more",
                "ACS request redirect is on: peer traffic goes up to the CPU",
                "Turn it off: `setpci -s 0000:17:00.0 ECAP_ACS+6.w=0000`",
                accepted="the cloud needs ACS here, ticket 4711",
            ),
            Finding("facts.note", "info", "cpus", "hyper-threading is on", ""),
        ),
        summary=(
            "Each GPU gets the NIC on its own switch; pairing by index would send all traffic between the sockets.",
            *plan.summary[1:],
        ),
        bound=replace(
            plan.bound,
            per_gpu_gbytes=48.0,
            achieved_gbytes=12.0,
            credible_gbytes=12.0,
            index_pairing_gbytes=2.75,
            nearest_gbytes=12.0,
            nccl_gbytes=12.0,
            certificate=Certificate(24.0, 8, 7, (CutLink(f"GPU3 ({slow}) to its switch", 12.0, 0),)),
            verdict="12 GB/s for each GPU with all GPUs sending: the link of GPU3 is the limit.",
        ),
        links=links,
    )


# Four GPUs on root ports, one NIC for two of them.


def pcie_box() -> tuple[Facts, Plan]:
    cpus, numa = two_sockets(32)
    pci: list[PciDevice] = []
    gpus, nics = [], []
    for node in (0, 1):
        root = f"pci0000:{0x20 * (2 * node + 1):02x}"
        for n in range(2):
            bus = 0x20 * (2 * node + 1) + 1 + n
            port = f"0000:{0x20 * (2 * node + 1):02x}:0{n + 1}.0"
            pci += [
                PciDevice(port, root, class_code="0x060400", port="root", numa=node, link=GEN5),
                endpoint(f"0000:{bus:02x}:00.0", port, node, "0x030200"),
            ]
            index = 2 * node + n
            gpus.append(
                Gpu(
                    f"GPU{index}",
                    index,
                    f"0000:{bus:02x}:00.0",
                    "NVIDIA L40S",
                    None,
                    89,
                    node,
                    numa[node].cpus,
                    True,
                    (),
                )
            )
        port, address = f"0000:{0x20 * (2 * node + 1):02x}:03.0", f"0000:{0x20 * (2 * node + 1) + 9:02x}:00.0"
        pci += [
            PciDevice(port, root, class_code="0x060400", port="root", numa=node, link=GEN5),
            endpoint(address, port, node, "0x020000"),
        ]
        nics.append(
            Nic(
                f"rocep{33 + 64 * node}s0",
                address,
                f"rocep{33 + 64 * node}s0",
                1,
                f"enp{33 + 64 * node}s0np0",
                "Ethernet",
                "active",
                200000,
                numa=node,
            )
        )
    facts = Facts(
        "railwright.facts/1",
        SYSFS,
        Host("gpu-b07", "rocky", "9.4", "5.14.0-427", virtual="", product="R760xa"),
        cpus,
        numa,
        (Root("pci0000:20", 0), Root("pci0000:60", 1)),
        tuple(pci),
        tuple(gpus),
        tuple(nics),
    )
    planned = tuple(
        PlannedGpu(
            gpu.index,
            gpu.name,
            gpu.address,
            gpu.numa,
            (gpu.numa or 0),
            (nics[gpu.numa or 0].name,),
            "PHB",
            rank_cpus(gpu.index, 2, 32, 4),
            f"{nics[gpu.numa or 0].name} is the only NIC on its NUMA node; it is shared with one other GPU",
            slot=f"GPU-{gpu.index}",
        )
        for gpu in gpus
    )
    links = [
        LoadedLink(
            gpu.address or "",
            f"pci0000:{0x20 * (2 * (gpu.numa or 0) + 1):02x}",
            "pcie",
            24.0,
            12.5,
            (gpu.name,),
        )
        for gpu in gpus
    ]
    links += [
        LoadedLink(
            nic.address or "",
            f"pci0000:{0x20 * (2 * node + 1):02x}",
            "pcie",
            25.0,
            25.0,
            (f"GPU{2 * node}", f"GPU{2 * node + 1}"),
            bottleneck=True,
        )
        for node, nic in enumerate(nics)
    ]
    links.append(LoadedLink("numa0", "numa1", "cpu", 22.0, 0.0, ()))
    plan = Plan(
        "railwright.plan/1",
        "planned",
        findings=(
            Finding(
                "nic.shared",
                "warning",
                "GPU0, GPU1",
                "two GPUs share one 200 Gb/s NIC",
                "For more than 12.5 GB/s per GPU add a NIC to each socket",
            ),
        ),
        summary=("Two GPUs share each NIC: 12.5 GB/s per GPU with all GPUs sending.",),
        workload="inference-throughput",
        gpus=planned,
        nics=tuple(
            PlannedNic(
                nic.name,
                nic.address,
                "rail",
                node,
                f"{32 * node + 1}-{32 * node + 2}",
                "Ethernet with RDMA, active at 200 Gb/s",
                nic.rdma,
                nic.netdev,
                1,
                node,
                (f"GPU{2 * node}", f"GPU{2 * node + 1}"),
            )
            for node, nic in enumerate(nics)
        ),
        bound=Bound(
            12.5,
            12.5,
            12.5,
            True,
            Certificate(22.0, 4, 2, tuple(CutLink(f"{nic.name} port", 25.0, 1) for nic in nics)),
            12.5,
            12.5,
            12.5,
            "12.5 GB/s for each GPU: two NICs of 25 GB/s serve four GPUs.",
        ),
        links=tuple(links),
        nccl={"NCCL_IB_HCA": "=" + ",".join(nic.name for nic in nics), "NCCL_SOCKET_IFNAME": "=eno8303"},
        policy_sha256="1" * 64,
    )
    return facts, plan


# A virtual machine that hides its tree: refused.


def refused_vm() -> tuple[Facts, Plan]:
    gpus = tuple(
        Gpu(f"GPU{n}", n, f"0000:00:{5 + n:02x}.0", "NVIDIA H100 80GB HBM3", None, 90, None, None, True, ())
        for n in range(8)
    )
    nics = tuple(
        Nic(
            f"mlx5_{n}",
            f"0000:00:{16 + n:02x}.0",
            f"mlx5_{n}",
            1,
            f"ens{16 + n}",
            "InfiniBand",
            "active",
            400000,
        )
        for n in range(8)
    )
    pci = tuple(endpoint(device.address or "", "pci0000:00", 0, "0x030200") for device in gpus)
    pci += tuple(endpoint(device.address or "", "pci0000:00", 0, "0x020700") for device in nics)
    facts = Facts(
        "railwright.facts/1",
        SYSFS,
        Host("vm-c3", "ubuntu", "24.04", "6.8.0", virtual="kvm", product="KVM"),
        Cpus("x86_64", "GenuineIntel", online="0-95"),
        (NumaNode(0, "0-95", (10,)),),
        (Root("pci0000:00", None),),
        pci,
        gpus,
        nics,
    )
    refusal = Finding(
        "facts.hidden_tree",
        "error",
        "pci0000:00",
        "all 8 GPUs and 8 NICs hang off one bus: a virtual machine hides the real PCI tree",
        "Ask the provider for the topology file of this instance type and plan with it: "
        "`railwright plan topo.xml --policy policy.yml`",
    )
    return facts, Plan(
        "railwright.plan/1",
        "refused",
        refusals=(refusal,),
        summary=("Refused: the PCI tree is hidden, any pairing would be a guess.",),
        policy_sha256="2" * 64,
    )


# What a pasted matrix shows: no PCI tree, no addresses.


def matrix() -> tuple[Facts, Plan]:
    """Two sockets, four GPUs; a NIC on one switch with GPU0 and one with GPU2; a third only on the second socket."""
    gpus = tuple(
        Gpu(f"GPU{n}", n, numa=n // 2, cpus=("0-31", "32-63")[n // 2], nvlinks=(NvLink(f"GPU{n ^ 1}", 4),))
        for n in range(4)
    )
    nics = tuple(Nic(f"NIC{n}", rdma=f"mlx5_{n}") for n in range(3))
    levels = {
        ("GPU0", "NIC0"): "PIX",
        ("GPU1", "NIC0"): "PXB",
        ("GPU2", "NIC1"): "PIX",
        ("GPU3", "NIC1"): "PHB",
        ("GPU2", "NIC2"): "NODE",
        ("GPU3", "NIC2"): "NODE",
    }
    paths = []
    names = [*(gpu.name for gpu in gpus), *(nic.name for nic in nics)]
    for n, a in enumerate(names):
        for b in names[n + 1 :]:
            if a.startswith("GPU") and b.startswith("GPU"):
                continue
            paths.append(Distance(a, b, levels.get((a, b), "SYS")))
    facts = Facts(
        "railwright.facts/1",
        (Witness("nvidia-smi", "paste.txt"),),
        numa=(NumaNode(0, "0-31"), NumaNode(1, "32-63")),
        gpus=gpus,
        nics=nics,
        paths=tuple(paths),
    )
    nic_of = ("NIC0", "NIC0", "NIC1", "NIC1")
    plan = Plan(
        "railwright.plan/1",
        "planned",
        gpus=tuple(
            PlannedGpu(
                n,
                f"GPU{n}",
                None,
                n // 2,
                n // 2,
                (nic_of[n],),
                ("PIX", "PXB", "PIX", "PHB")[n],
                None,
                "nearest",
            )
            for n in range(4)
        ),
        nics=(
            PlannedNic("NIC0", None, "rail", 0, None, "PIX to GPU0", "mlx5_0", gpus=("GPU0", "GPU1")),
            PlannedNic("NIC1", None, "rail", 1, None, "PIX to GPU2", "mlx5_1", gpus=("GPU2", "GPU3")),
            PlannedNic("NIC2", None, "storage", None, None, "near no GPU", "mlx5_2"),
        ),
        bound=Bound(verdict="Rates are unknown: a matrix names no speeds."),
        policy_sha256="3" * 64,
    )
    return facts, plan


# Sixteen rails over four NUMA nodes, lines across the sockets, a link that nobody believes.


def uneven() -> tuple[Facts, Plan]:
    """8 GPUs, two on each of four NUMA nodes, and 5 NICs, none on node 3: two flows cross."""
    pci: list[PciDevice] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for index in range(8):
        node, bus = index // 2, 0x10 + index * 0x10
        root, port = f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.1"
        pci += [
            PciDevice(port, root, port="root", numa=node, link=GEN5),
            endpoint(f"0000:{bus + 1:02x}:00.0", port, node, "0x030200"),
        ]
        gpus.append(
            Gpu(f"GPU{index}", index, f"0000:{bus + 1:02x}:00.0", "AMD Instinct MI250X", numa=node, gdr=True)
        )
        if index in (0, 1, 2, 4, 5):
            port = f"0000:{bus:02x}:03.1"
            address = f"0000:{bus + 8:02x}:00.0"
            pci += [
                PciDevice(port, root, port="root", numa=node, link=GEN5),
                endpoint(address, port, node, "0x020000"),
            ]
            nics.append(
                Nic(
                    f"mlx5_{len(nics)}",
                    address,
                    f"mlx5_{len(nics)}",
                    1,
                    None,
                    "Ethernet",
                    "active",
                    200000,
                    numa=node,
                )
            )
    facts = Facts(
        "railwright.facts/1",
        SYSFS,
        Host("amd-07", virtual="", product="NPS4 node"),
        Cpus("x86_64", "AuthenticAMD"),
        tuple(NumaNode(n, f"{16 * n}-{16 * n + 15}") for n in range(4)),
        tuple(Root(f"pci0000:{0x10 + i * 0x10:02x}", i // 2) for i in range(8)),
        tuple(pci),
        tuple(gpus),
        tuple(nics),
    )
    choice = (0, 1, 2, 2, 3, 4, 3, 4)
    path = ("PHB", "PHB", "PHB", "SYS", "PHB", "PHB", "SYS", "SYS")
    links = [
        LoadedLink(g.address or "", f"pci0000:{0x10 + g.index * 0x10:02x}", "pcie", 24.0, 12.5, (g.name,))
        for g in gpus
    ]
    for n, nic in enumerate(nics):
        flows = tuple(f"GPU{g}" for g in range(8) if choice[g] == n)
        root = f"pci0000:{0x10 + (0, 1, 2, 4, 5)[n] * 0x10:02x}"
        links.append(
            LoadedLink(
                nic.address or "",
                root,
                "pcie",
                25.0,
                12.5 * len(flows),
                flows,
                believed=n != 1,
                bottleneck=len(flows) > 1,
            )
        )
    links.append(LoadedLink("numa2", "numa3", "cpu", 32.0, 25.0, ("GPU6", "GPU7")))
    plan = Plan(
        "railwright.plan/1",
        "planned",
        findings=(
            Finding(
                "gpu.far", "warning", "GPU6", "no NIC on its NUMA node", "Move a NIC to a slot of NUMA node 3"
            ),
        ),
        summary=("5 NICs serve 8 GPUs: three NICs are shared, two GPUs cross to another NUMA node.",),
        gpus=tuple(
            PlannedGpu(
                g.index,
                g.name,
                g.address,
                g.numa,
                choice[g.index] + (8 if choice[g.index] > 2 else 0),
                (nics[choice[g.index]].name,),
                path[g.index],
                f"{8 * g.index}-{8 * g.index + 7}",
                "highest guaranteed rate, then fewest crossings",
            )
            for g in gpus
        ),
        nics=tuple(
            PlannedNic(
                nic.name,
                nic.address,
                "rail",
                n + (8 if n > 2 else 0),
                None,
                "Ethernet with RDMA, active",
                nic.rdma,
                None,
                1,
                nic.numa,
                tuple(f"GPU{g}" for g in range(8) if choice[g] == n),
            )
            for n, nic in enumerate(nics)
        ),
        bound=Bound(
            15.6,
            12.5,
            12.5,
            True,
            Certificate(16.0, 8, 5, tuple(CutLink(f"{nic.name} port", 25.0, 1) for nic in nics)),
            None,
            8.33,
            10.0,
            "12.5 GB/s for each GPU with all GPUs sending.",
        ),
        links=tuple(links),
        policy_sha256="4" * 64,
    )
    return facts, plan


def hostile() -> tuple[Facts, Plan]:
    """A node whose owner had root and ideas."""
    script, mark = "<script>alert(1)</script>", "\u202eevil\u202c"
    long = "n" * 300
    facts, plan = pcie_box()
    rename = {
        "GPU0": 'GPU0" onload="alert(2)',
        facts.nics[0].name: f"{script}{mark}",
        facts.nics[1].name: long,
    }
    facts = replace(
        facts,
        host=replace(facts.host, name=f"{script}\x1b[31m", product="]]><![CDATA[<b>"),
        gpus=tuple(replace(gpu, name=rename.get(gpu.name, gpu.name)) for gpu in facts.gpus),
        nics=tuple(replace(nic, name=rename[nic.name], rdma=None) for nic in facts.nics),
    )
    plan = replace(
        plan,
        summary=(f"{script} {mark} \ud800 \ufffe",),
        gpus=tuple(
            replace(
                gpu,
                name=rename.get(gpu.name, gpu.name),
                nics=tuple(rename[nic] for nic in gpu.nics),
                because="'\"><img src=http://example.invalid/x>",
            )
            for gpu in plan.gpus
        ),
        nics=tuple(replace(nic, name=rename[nic.name], rdma=None) for nic in plan.nics),
        findings=(Finding(script, "warning", mark, "</style></script>\u2028", f"`rm -rf {script}`"),),
        nccl={"NCCL_IB_HCA": f"={script}"},
    )
    return facts, plan


def hostile_files() -> tuple[Facts, Plan]:
    """The same as far as files may say it: facts name devices soundly, everything else is anybody's text."""
    facts, plan = hostile()
    box, _ = pcie_box()
    host = replace(facts.host, name=box.host.name)
    return replace(facts, host=host, gpus=box.gpus, nics=box.nics), plan


# A run's directory.

GOOD_CHECKS = [
    {"name": "nccl_conf.content", "ok": True, "detail": "/etc/nccl.conf is as planned", "skipped": False},
    {
        "name": "irq_affinity.placement",
        "ok": True,
        "detail": "64 interrupts are on the planned cores",
        "skipped": False,
    },
    {"name": "gpu_order.lspci", "ok": True, "detail": "8 GPUs at the planned addresses", "skipped": False},
]
SKIPPED_CHECK = {
    "name": "nvidia_smi.order",
    "ok": False,
    "detail": "nvidia-smi is not on the node",
    "skipped": True,
}
FAILED_CHECK = {
    "name": "irq_affinity.placement",
    "ok": False,
    "detail": "interrupt 312 of 0000:4d:00.0 is on CPU 95, planned 25-26",
    "skipped": False,
}


def changes(changed: bool = True) -> dict[str, Any]:
    items = [
        {
            "id": "irq.312",
            "kind": "irq",
            "changed": changed,
            "action": "write" if changed else "none",
            "before": "95" if changed else "25-26",
            "after": "25-26",
            "note": "",
        },
        {
            "id": "irq.313",
            "kind": "irq",
            "changed": False,
            "action": "none",
            "before": "25-26",
            "after": "25-26",
            "note": "managed by the kernel",
        },
    ]
    file = {
        "id": "/etc/nccl.conf",
        "kind": "file",
        "changed": changed,
        "action": "create" if changed else "none",
        "before": None if changed else "NCCL_IB_TC=106\n",
        "after": "NCCL_IB_TC=106\n",
        "note": "",
    }
    return {
        "changed": changed,
        "slices": {
            "irq_affinity": {"changed": changed, "items": items},
            "nccl_conf": {"changed": changed, "items": [file]},
            "sysctls": {
                "changed": False,
                "items": [
                    {
                        "id": "kernel.numa_balancing",
                        "kind": "sysctl",
                        "changed": False,
                        "action": "none",
                        "before": "0",
                        "after": "0",
                        "note": "",
                    }
                ],
            },
        },
    }


def write_node(
    directory: Path,
    name: str,
    facts: Facts,
    plan: Plan,
    *,
    findings: tuple[Finding, ...] = (),
    checks: list[dict[str, Any]] | None = None,
    changes: dict[str, Any] | None = None,
) -> Path:
    """One node of a run, as the playbooks leave it."""
    node = directory / name
    node.mkdir(parents=True)
    values: dict[str, Any] = {
        "facts": to_json(facts),
        "policy": to_json(Policy()),
        "plan": to_json(plan),
        "findings": {"findings": to_json(findings), "checks": GOOD_CHECKS if checks is None else checks},
    }
    if changes is not None:
        values["changes"] = changes
    for stem, value in values.items():
        (node / f"{stem}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    return node


def write_rack(directory: Path) -> None:
    """Every kind of node in one run."""
    write_node(directory, "gpu-a01", *hgx(), checks=[*GOOD_CHECKS, SKIPPED_CHECK], changes=changes(False))
    write_node(
        directory,
        "gpu-a02",
        *backwards(),
        checks=[GOOD_CHECKS[0], FAILED_CHECK, SKIPPED_CHECK],
        changes=changes(),
    )
    write_node(directory, "gpu-b07", *pcie_box(), changes=changes())
    write_node(directory, "amd-07", *uneven())
    write_node(directory, "paste", *matrix(), checks=[SKIPPED_CHECK])
    write_node(directory, "vm-c3", *refused_vm())
    broken = write_node(directory, "gpu-a03", *hgx(name="gpu-a03"))
    (broken / "findings.json").unlink()


def main(arguments: list[str]) -> int:
    """Lay the rack out below the directory that is named."""
    if len(arguments) != 1:
        print("usage: python -m tests.unit.report_samples DIR", file=sys.stderr)
        return 2
    write_rack(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
