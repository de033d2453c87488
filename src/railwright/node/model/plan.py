"""Plan: what was decided, why, and the proof. Same facts and policy, same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import InputError, from_json
from .finding import Finding

SCHEMA = "railwright.plan/1"
# By which key an entry says what on the node it is about.
_SUBJECT = {
    "file": "path",
    "json_keys": "path",
    "sysfs": "path",
    "sysctl": "name",
    "systemd_unit": "name",
    "irq_affinity": "device",
    "nvconfig": "device",
    "pci_register": "device",
    "ethtool_channels": "device",
    "ethtool_rings": "device",
    "ethtool_coalesce": "device",
    "queue_cpus": "device",
    "packages": "name",
    "package_index": "name",
    "container_daemon": "name",
    "dkms_module": "name",
    "initramfs": "name",
    "alternative": "path",
    "linker_cache": "name",
    "boot_arguments": "name",
    "sysfs_each": "path",
    "network": "backend",
    "python_environment": "name",
    "container_image": "image",
}


@dataclass(frozen=True)
class PlannedGpu:
    """One GPU: rail and NICs by name (the rail NIC first, further ports of its card after it).

    path: the way to the rail NIC in NCCL's words (PIX, PXB, PHB, SYS, ...). cpus: the rank's cores, a cpulist.
    slot: the chassis's name of the physical slot. minor: the number of its device file.
    """

    index: int
    name: str
    pci: Optional[str]
    numa: Optional[int]
    rail: Optional[int]
    nics: tuple[str, ...]
    path: Optional[str]
    cpus: Optional[str]
    because: str
    slot: Optional[str] = None
    uuid: Optional[str] = None
    minor: Optional[int] = None


@dataclass(frozen=True)
class PlannedNic:
    """One NIC port: role, rail number, cores for its interrupts (a cpulist) and the GPUs it serves, by name."""

    name: str
    pci: Optional[str]
    role: str
    rail: Optional[int]
    irq_cpus: Optional[str]
    because: str
    rdma: Optional[str] = None
    netdev: Optional[str] = None
    port: Optional[int] = None
    numa: Optional[int] = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class CutLink:
    """One link of the cut: capacity in GB/s and how many flows of the next rate it admits."""

    link: str
    capacity_gbytes: float
    admits: int


@dataclass(frozen=True)
class Certificate:
    """Why no assignment is better.

    At `rate_gbytes`, the next candidate, these links admit only `admits` < `gpus` flows.
    """

    rate_gbytes: float
    gpus: int
    admits: int
    links: tuple[CutLink, ...]


@dataclass(frozen=True)
class Bound:
    """Guaranteed rate per GPU with all GPUs sending, GB/s (10^9 bytes); None is unknown.

    per_gpu: upper bound with several NICs per GPU. achieved: the best one-NIC-per-GPU rate, links as stated.
    credible: without links that are not believed. index_pairing, nearest, nccl: what those rules would get. alltoall:
    with each GPU's traffic spread evenly over all rails, relayed over NVSwitches where all GPUs have them (told where
    the workload asks for it). plan: what this plan's NICs give together; less than achieved where the workload puts the
    shortest way first.
    verdict: one sentence for a person. certificate: None when there is no larger candidate rate at all.
    """

    per_gpu_gbytes: Optional[float] = None
    achieved_gbytes: Optional[float] = None
    credible_gbytes: Optional[float] = None
    optimal: Optional[bool] = None
    certificate: Optional[Certificate] = None
    index_pairing_gbytes: Optional[float] = None
    nearest_gbytes: Optional[float] = None
    nccl_gbytes: Optional[float] = None
    verdict: str = ""
    alltoall_gbytes: Optional[float] = None
    plan_gbytes: Optional[float] = None

    @property
    def of_plan(self) -> Optional[float]:
        """The rate that this plan's pairing gives each GPU, as its proof tells it."""
        return self.plan_gbytes if self.optimal is False else self.achieved_gbytes


@dataclass(frozen=True)
class LoadedLink:
    """One link of the node under the plan: flows are GPU names; load with all GPUs sending, in GB/s.

    a, b: ends, by PCI address, host bridge or "numa<N>". bottleneck: load equals capacity and several flows share it,
    or a NIC could do more.
    """

    a: str
    b: str
    kind: str
    capacity_gbytes: Optional[float]
    load_gbytes: Optional[float]
    flows: tuple[str, ...]
    believed: bool = True
    bottleneck: bool = False


@dataclass(frozen=True)
class Rank:
    """One row of the per-rank table: the local rank equals the CUDA index.

    cpus: as the kernel numbers them. cores: the same as physical cores, counted from 0 through sockets, NUMA nodes and
    L3 groups, as hwloc, Slurm and Open MPI count them.
    """

    rank: int
    gpu: str
    nic: Optional[str]
    rail: Optional[int]
    cpus: Optional[str]
    numa: Optional[int]
    command: Optional[str]
    cores: Optional[str] = None


@dataclass(frozen=True)
class Setting:
    """One thing that the workload asks for, with where it comes from.

    kind: "plan" (the planner follows it), "nccl", "sysctl", "kernel_parameter", "power", "memory", "roce" or
    "acceptance". value: None where the policy leaves it out. role: the role that writes it (its slice, where the plan
    has one; else the setting itself is what the role reads); None for the planner's own. confidence: "A" read in a
    primary source, "B" in a secondary one, "C" common practice.
    """

    name: str
    kind: str
    value: Optional[str]
    role: Optional[str]
    confidence: str
    source: str
    because: str


@dataclass(frozen=True)
class NvlinkDomain:
    """GPUs of this node, by name, that reach each other over NVLink (or xGMI).

    kind: "pair", "mesh" (each has links to each other one), "partial-mesh" or "switch" (NVSwitches). links: of the
    GPU that has most. per_gpu_gbytes: what these carry one way, by NCCL's rate of a link. cluster: UUID of the
    fabric, "" where it ends at the node. clique: number of the partition. nvls: whether NVSwitches reduce (NCCL's
    NVLS). None is unknown.
    """

    gpus: tuple[str, ...]
    kind: str
    links: Optional[int]
    per_gpu_gbytes: Optional[float]
    cluster: Optional[str]
    clique: Optional[int]
    nvls: Optional[bool]
    because: str


@dataclass(frozen=True)
class NvlinkPlan:
    """NVLink of the node. domains: () where the witness shows none, None where it cannot tell.

    multi_node: whether the fabric reaches over nodes. imex_nodes: what IMEX is told, in the policy's order.
    """

    domains: Optional[tuple[NvlinkDomain, ...]] = None
    multi_node: Optional[bool] = None
    imex_nodes: tuple[str, ...] = ()
    because: str = ""


@dataclass(frozen=True)
class NetworkPlan:
    """What the rails' network has to agree on with NIC and NCCL; None is unknown.

    link_layer: of all rails, "mixed" where they differ. adaptive_routing, sharp: as the policy tells them.
    nic_firmware: settings of the rail NICs that belong to that, by their NVCONFIG names.
    """

    link_layer: Optional[str] = None
    adaptive_routing: Optional[bool] = None
    sharp: Optional[bool] = None
    nic_firmware: dict[str, str] = field(default_factory=dict)
    because: str = ""


@dataclass(frozen=True)
class Slice:
    """What one role writes. stage: "runtime" or "persistent" (needs a reboot). entries: items of node_state."""

    stage: str
    entries: tuple[dict[str, Any], ...]
    because: str


@dataclass(frozen=True)
class Plan:
    """The plan of one node. status: "planned" or "refused" (then `refusals` says why and there are no slices).

    summary: sentences for a person, most important first. settings: what the workload asks for, whoever writes it.
    policy_sha256: digest of the policy it follows.
    """

    schema: str
    status: str
    refusals: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    summary: tuple[str, ...] = ()
    workload: str = "train-large"
    gpus: tuple[PlannedGpu, ...] = ()
    nics: tuple[PlannedNic, ...] = ()
    bound: Bound = field(default_factory=Bound)
    links: tuple[LoadedLink, ...] = ()
    nvlink: NvlinkPlan = field(default_factory=NvlinkPlan)
    network: NetworkPlan = field(default_factory=NetworkPlan)
    nccl: dict[str, str] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    housekeeping_cpus: Optional[str] = None
    settings: tuple[Setting, ...] = ()
    slices: dict[str, Slice] = field(default_factory=dict)
    policy_sha256: str = ""

    def files(self) -> tuple[str, ...]:
        """Paths that the plan writes, in order: what a reader has to look at. Of a pattern the file of CPU 0."""
        paths = (e for e in self._entries() if e["kind"] in ("file", "json_keys", "sysfs", "sysfs_each"))
        return tuple(e["path"].replace("*", "0") if e["kind"] == "sysfs_each" else e["path"] for e in paths)

    def packages(self) -> tuple[str, ...]:
        """Packages that the plan names, in order."""
        return tuple(name for e in self._entries() if e["kind"] == "packages" for name in e["versions"])

    def units(self) -> tuple[str, ...]:
        """systemd units that the plan sets, in order."""
        return tuple(e["name"] for e in self._entries() if e["kind"] == "systemd_unit")

    def _entries(self) -> Iterator[dict[str, Any]]:
        for part in self.slices.values():
            yield from part.entries

    @classmethod
    def read(cls, data: Any, where: str = "plan") -> Plan:
        """Plan from JSON. Raises InputError with the place."""
        plan = from_json(cls, data, where)
        if plan.schema != SCHEMA:
            raise InputError(f"{where}.schema", f"found {plan.schema!r}", f"expected {SCHEMA!r}")
        for name, part in plan.slices.items():
            for number, entry in enumerate(part.entries):
                _must_have_its_key(entry, f"{where}.slices.{name}.entries[{number}]")
        return plan


def _must_have_its_key(entry: dict[str, Any], where: str) -> None:
    kind = entry.get("kind")
    if not isinstance(kind, str):
        raise InputError(f"{where}.kind", "missing", f"one of {', '.join(_SUBJECT)}")
    key = _SUBJECT.get(kind)
    if key is not None and not isinstance(entry.get(key), str):
        raise InputError(f"{where}.{key}", f"missing: a {kind} has one")
