"""Slices: the exact items that each tune role writes, so that Ansible and the boot unit write the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ..node.model import Facts, Finding, InputError, NvlinkDomain, PlannedGpu, Policy, Setting, Slice
from . import (
    boot_unit,
    container_runtime,
    containers,
    cuda,
    dl_runtime,
    fabric_manager,
    irqbalance,
    limits,
    nccl,
    nccl_library,
    nccl_topology,
    nic_firmware,
    nvidia_driver,
    packages,
    pcie,
    queues,
    rdma_stack,
    sysctls,
)
from . import kernel as kernel_slice
from .cores import Cores
from .entries import HEADER, Entry, file
from .rail_names import Named
from .rail_network import Network

GPU_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
NCCL_CONF = "/etc/nccl.conf"
# One address or name a line (NVIDIA IMEX service guide).
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"

# Written by the plays that install only: retuning and the boot leave them alone.
INSTALL_SLICES = (
    "package_sources",
    "kernel",
    "nvidia_driver",
    "fabric_manager",
    "rdma_stack",
    "cuda",
    "nccl",
    "container_runtime",
    "dl_runtime",
    "limits",
)
SLICES = (
    *INSTALL_SLICES,
    "rail_names",
    "gpu_order",
    "nccl_conf",
    "nic_firmware",
    "rail_network",
    "queues",
    "lossless",
    "pcie",
    "irq_affinity",
    "sysctls",
    "imex",
    "boot_unit",
)


def check(policy: Policy) -> None:
    """Raises InputError for a slice that there is none of: a misspelt one would be written after all."""
    for name in policy.manage:
        if name not in SLICES:
            raise InputError(f"policy.manage.{name}", "there is no such slice", f"one of {', '.join(SLICES)}")


@dataclass(frozen=True)
class Decided:
    """What the slices are made from.

    digest: the policy's. topology: the text of NCCL's topology file, where there is one. imex_nodes: what IMEX is told.
    firmware: settings that the rail NICs should have. names, rails: the rails' names and network. lossless: their QoS.
    registers: of PCIe.
    """

    gpus: Sequence[PlannedGpu]
    ports: Sequence[nccl.RailPort]
    cores: Cores
    settings: tuple[Setting, ...]
    values: Mapping[str, str]
    digest: str
    topology: Optional[str] = None
    imex_nodes: Sequence[str] = ()
    firmware: Mapping[str, str] = field(default_factory=dict)
    names: Named = field(default_factory=Named)
    rails: Network = field(default_factory=Network)
    lossless: Optional[Slice] = None
    domains: Sequence[NvlinkDomain] = ()
    registers: pcie.Survey = field(default_factory=pcie.Survey)


def slices_of(facts: Facts, policy: Policy, decided: Decided) -> tuple[dict[str, Slice], list[Finding]]:
    """All slices that the policy manages, and a finding for each that it leaves alone."""
    kernel, findings = sysctls.chosen(
        policy, facts.host, decided.settings, decided.rails.sysctls, decided.rails.least
    )
    rails = [port.nic for port in decided.ports]
    sources, said_of_sources = packages.sources_slice(facts, policy)
    its_kernel, said_of_kernel = kernel_slice.slice_of(facts, policy, decided.settings)
    driver, said_of_driver = nvidia_driver.slice_of(facts, policy)
    fabric, said_of_fabric = fabric_manager.slice_of(facts, policy)
    findings += [*said_of_sources, *said_of_kernel, *said_of_driver, *said_of_fabric]
    toolkits, said_of_cuda = cuda.slice_of(facts, policy)
    library, said_of_library = nccl_library.slice_of(facts, policy)
    findings += [*said_of_cuda, *said_of_library]
    stack, said_of_stack = rdma_stack.slice_of(facts, policy)
    runtime, said_of_runtime = container_runtime.slice_of(facts, policy, len(rails) or None)
    limited, said_of_limits = limits.slice_of(facts, policy)
    learning, said_of_learning = dl_runtime.slice_of(
        facts, policy, decided.gpus, decided.domains, decided.values
    )
    findings += said_of_learning
    findings += [*said_of_stack, *said_of_runtime, *said_of_limits]
    made = {
        "package_sources": sources,
        "kernel": pcie.with_boot_arguments(its_kernel, facts, decided.registers.acs_argument),
        "nvidia_driver": driver,
        "fabric_manager": fabric,
        "rdma_stack": stack,
        "cuda": toolkits,
        "nccl": library,
        "container_runtime": runtime,
        "dl_runtime": learning,
        "limits": limited,
        "rail_names": decided.names.slice,
        "gpu_order": _gpu_order(decided.gpus, policy),
        "nccl_conf": _nccl_conf(decided, policy),
        "nic_firmware": nic_firmware.slice_of(facts, policy, decided.firmware, rails),
        "rail_network": decided.rails.slice,
        "queues": queues.slice_of(facts, policy, rails),
        "lossless": decided.lossless,
        "pcie": decided.registers.slice,
        "irq_affinity": _irq_affinity(facts, policy, decided.ports, decided.cores),
        "sysctls": _sysctls(kernel, policy, decided.rails.later),
        "imex": _imex(decided.imex_nodes),
        "boot_unit": boot_unit.slice_of(policy),
    }
    kept: dict[str, Slice] = {}
    for name, slice_ in made.items():
        if slice_ is None:
            continue
        if policy.manage.get(name, True):
            kept[name] = slice_
        else:
            findings.append(
                Finding(
                    f"{name}.unmanaged",
                    "info",
                    name,
                    f"the policy leaves {name} alone: nothing of it is written",
                    f"set policy.manage.{name} to true to have it written",
                )
            )
    return kept, findings


def _nccl_conf(decided: Decided, policy: Policy) -> Optional[Slice]:
    if not decided.values:
        return None
    entries = [file(NCCL_CONF, nccl.conf_bytes(decided.values, decided.digest))]
    if decided.topology is not None:
        entries.insert(0, file(nccl_topology.PATH, decided.topology))
    carried = [entry["path"] for entry in entries]
    if "cdi" in policy.containers:
        order = [GPU_ORDER] if policy.manage.get("gpu_order", True) else []
        entries.append(file(*containers.cdi("nccl", order, carried)))
    if "enroot" in policy.containers:
        entries.append(file(*containers.enroot_mounts("nccl", carried)))
    return Slice(
        "runtime",
        tuple(entries),
        "NCCL reads it in every process; the exact list keeps NICs that are no rails out, in one order on all nodes",
    )


def _gpu_order(gpus: Sequence[PlannedGpu], policy: Policy) -> Slice:
    entries = [
        file(
            "/etc/systemd/system.conf.d/60-railwright-gpu-order.conf",
            f"{HEADER}[Manager]\nDefaultEnvironment={GPU_ORDER}\n",
        ),
        file("/etc/environment.d/60-railwright-gpu-order.conf", f"{HEADER}{GPU_ORDER}\n"),
        file("/etc/profile.d/railwright-gpu-order.sh", f"{HEADER}export {GPU_ORDER}\n"),
    ]
    if "cdi" in policy.containers:
        entries.append(file(*containers.cdi("gpu-order", [GPU_ORDER])))
    if "enroot" in policy.containers:
        entries.append(file(*containers.enroot_variables("gpu-order", [GPU_ORDER])))
    if all(gpu.pci is not None for gpu in gpus):
        entries.append(file("/etc/railwright/gpus.tsv", gpu_table(gpus)))
    return Slice(
        "runtime",
        tuple(entries),
        "CUDA numbers GPUs by speed unless told otherwise; PCI order is the same for all",
    )


def gpu_table(gpus: Sequence[PlannedGpu]) -> str:
    """The technician's table: physical slot, CUDA index, PCI address, rail and NICs; "-" is unknown or none.

    Without UUIDs: the driver tells them only once a client has used the GPU, and a file must not change with that.
    """
    rows = ["slot\tcuda\tpci\trail\tnic"]
    for gpu in gpus:
        cells = (gpu.slot, gpu.index, gpu.pci, gpu.rail, ",".join(gpu.nics))
        rows.append("\t".join("-" if cell is None or cell == "" else str(cell) for cell in cells))
    return "\n".join(rows) + "\n"


def _irq_affinity(
    facts: Facts, policy: Policy, ports: Sequence[nccl.RailPort], cores: Cores
) -> Optional[Slice]:
    interrupting = {irq.device for irq in facts.irqs}
    entries: dict[str, Entry] = {}
    steering: dict[str, Entry] = {}
    for port in ports:
        for address in port.nic.functions or (port.nic.address,):
            cpus, control = cores.of_function(port.nic, address, facts)
            if address is None or not cpus or (facts.irqs and address not in interrupting):
                continue
            entry: Entry = {"kind": "irq_affinity", "device": address, "cpus": cpus}
            if control:
                entry["control_cpus"] = control
            entries.setdefault(address, entry)
            xps = (
                queues.xps(policy, address, cpus) if port.nic.netdev and address == port.nic.address else None
            )
            if xps is not None:
                steering.setdefault(address, xps)
    if not entries:
        return None
    return Slice(
        "runtime",
        (*entries.values(), *steering.values(), *irqbalance.entries(policy, tuple(entries))),
        "each rail NIC interrupts its own cores on its own NUMA node, away from ranks and from other NICs",
    )


def _sysctls(settings: Mapping[str, str], policy: Policy, later: Mapping[str, str]) -> Optional[Slice]:
    """later: for devices that are called so from the next boot on."""
    if not settings and not later:
        return None
    lasting = dict(sorted({**later, **settings}.items()))
    entries = [file("/etc/sysctl.d/90-railwright.conf", sysctls.conf_bytes(lasting))]
    entries += [{"kind": "sysctl", "name": name, "value": value} for name, value in settings.items()]
    return Slice(
        "runtime",
        tuple(entries),
        f"kernel settings for {policy.workload}, each with its source in the plan's settings",
    )


def _imex(nodes: Sequence[str]) -> Optional[Slice]:
    if not nodes:
        return None
    return Slice(
        "runtime",
        (file(IMEX_NODES, "".join(f"{node}\n" for node in nodes)),),
        "IMEX carries NVLink over nodes and wants the same list on all nodes of the clique; it reads it when it starts "
        "only, and a restart breaks jobs, so nothing here restarts it",
    )
