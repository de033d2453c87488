"""Facts: one machine as it is, from whatever witness there was.

Unknown is a value: None. An empty tuple says "looked, and there is none". Sizes are bytes, NIC rates Mb/s, PCIe speeds
GT/s. PCI identifiers are text as sysfs prints them ("0x10de"), since people compare them with lspci. PCI addresses are
in the form of `pci.normalise_address`; CPU sets are cpulists ("0-47,96-143").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import InputError, from_json
from .container_facts import Containers
from .cuda_facts import Cuda
from .limit_facts import Limits
from .manager_facts import Managers
from .network_facts import NetworkFacts
from .pcie_facts import PcieErrors, PcieFacts
from .platform_facts import Platform
from .qos import Qos
from .queue_facts import Queues
from .rdma_facts import RdmaStack
from .runtime_facts import Runtime
from .software import Power, Software
from .soundness import must_be_sound

SCHEMA = "railwright.facts/1"


@dataclass(frozen=True)
class Witness:
    """Where facts come from. source: a path or host.

    kind: sysfs, facts, nccl-xml, hwloc, lspci, nvidia-smi (its matrix), nvidia-smi-q, nvlink, ibdev2netdev, ibstat,
    ibstatus, show_gids, mlnx_qos, mlxconfig, interrupts, lscpu, dmidecode.
    """

    kind: str
    source: str


@dataclass(frozen=True)
class Claim:
    """What one witness says of one thing."""

    witness: str
    value: str


@dataclass(frozen=True)
class Conflict:
    """Witnesses that disagree. The first claim is the one that the facts carry."""

    where: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Link:
    """The PCIe link of a function to the port above it: now, and what the function itself is capable of.

    Speeds in GT/s (2.5, 5, 8, 16, 32, 64), widths in lanes. A width of 0 or an unreadable speed is None.
    """

    speed: Optional[float] = None
    width: Optional[int] = None
    max_speed: Optional[float] = None
    max_width: Optional[int] = None


@dataclass(frozen=True)
class Acs:
    """Access Control Services of a bridge: bits it is capable of and bits that are on, by lspci's names.

    Names: SrcValid, TransBlk, ReqRedir, CmpltRedir, UpstreamFwd, EgressCtrl, DirectTrans (PCIe 6.0, 7.7.11).
    """

    capability: tuple[str, ...]
    control: tuple[str, ...]


@dataclass(frozen=True)
class PciDevice:
    """One PCI function that matters: GPUs, NICs, NVSwitches, NVMe and every bridge above them.

    parent: the address of the bridge above, or the host bridge's name ("pci0000:15"); None when the witness hides it.
    port: "root", "upstream", "downstream", "endpoint" (PCIe device/port type) or None.
    acs: None when config space was not readable; capability () when the function has none.
    mrrs, mps: bytes (maximum read request size, maximum payload size).
    """

    address: str
    parent: Optional[str]
    vendor: Optional[str] = None
    device: Optional[str] = None
    subsystem_vendor: Optional[str] = None
    subsystem_device: Optional[str] = None
    class_code: Optional[str] = None
    port: Optional[str] = None
    numa: Optional[int] = None
    local_cpus: Optional[str] = None
    link: Link = field(default_factory=Link)
    acs: Optional[Acs] = None
    mrrs: Optional[int] = None
    mps: Optional[int] = None
    relaxed_ordering: Optional[bool] = None
    driver: Optional[str] = None
    iommu_group: Optional[int] = None
    slot: Optional[str] = None


@dataclass(frozen=True)
class Root:
    """A PCI host bridge: name as in sysfs ("pci0000:15"), or one per NUMA node where a witness shows no more."""

    name: str
    numa: Optional[int]


@dataclass(frozen=True)
class NvLink:
    """NVLinks (or xGMI links) from a GPU to one target, a GPU or NVSwitch by PCI address, or a GPU by name."""

    target: str
    count: int


@dataclass(frozen=True)
class C2c:
    """NVLink-C2C between a GPU and its CPU: links and MB/s of each."""

    count: int
    mbytes: int


@dataclass(frozen=True)
class Fabric:
    """What the driver tells of a GPU's NVLink fabric, in nvidia-smi's words.

    state: "Completed", "In Progress", "Not Started"; "" when the driver says that there is no fabric (no NVSwitch).
    status: "Success" or what went wrong. cluster: the UUID of a fabric of several nodes, "" for one that ends at it
    (NCCL takes a UUID of zeros for that, src/mnnvl.cc). clique: number of the GPU's partition of the fabric.
    """

    state: str
    status: Optional[str] = None
    cluster: Optional[str] = None
    clique: Optional[int] = None


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    name: the column's header where the witness is a matrix, else "GPU<index>". index: in PCI order, which is the CUDA
    index under CUDA_DEVICE_ORDER=PCI_BUS_ID (for a matrix: its own order). sm: compute capability as NCCL writes it
    (90). nvlinks: None when the witness cannot see them. partial: the witness's row for this GPU is cut. fabric: None
    when the witness does not ask the driver. mig: whether the GPU is cut into instances (Multi-Instance GPU).
    """

    name: str
    index: int
    address: Optional[str] = None
    model: Optional[str] = None
    uuid: Optional[str] = None
    sm: Optional[int] = None
    numa: Optional[int] = None
    cpus: Optional[str] = None
    gdr: Optional[bool] = None
    nvlinks: Optional[tuple[NvLink, ...]] = None
    c2c: Optional[C2c] = None
    partial: bool = False
    fabric: Optional[Fabric] = None
    minor: Optional[int] = None
    mig: Optional[bool] = None


@dataclass(frozen=True)
class Gid:
    """One entry of a RoCE port's GID table. kind: "v1" or "v2"."""

    index: int
    gid: str
    kind: Optional[str] = None
    netdev: Optional[str] = None


@dataclass(frozen=True)
class Nic:
    """One network port: an RDMA device's port, or a netdev without one.

    name: as `railwright plan` must print it (the matrix header, else the RDMA device, else the netdev). rate: Mb/s;
    None when down or not told. state: "active", "down", "init", "armed" or None. link_layer: "InfiniBand", "Ethernet"
    or None. physical_function: the PF's address when this is a virtual function, "" when it is known to be none.
    management: an NVSwitch management function (VPD says SW_MNG), never to be touched. default_route: the node's
    default route leaves here. addresses: "10.0.0.5/24". sys_image_guid: equal for all ports of one card. functions: of
    a port that several physical functions serve (a multi-PF netdev), their addresses, the one in `address` first.
    bluefield: "nic" or "dpu", how a BlueField is set up; "" for what is none; None where the witness does not tell.
    adaptive_routing: the firmware's ROCE_ADAPTIVE_ROUTING_EN as it is in force. cnp_dscp: DSCP of the port's congestion
    notifications.
    """

    name: str
    address: Optional[str] = None
    rdma: Optional[str] = None
    port: Optional[int] = None
    netdev: Optional[str] = None
    link_layer: Optional[str] = None
    state: Optional[str] = None
    rate: Optional[int] = None
    mtu: Optional[int] = None
    mac: Optional[str] = None
    numa: Optional[int] = None
    guid: Optional[str] = None
    sys_image_guid: Optional[str] = None
    firmware: Optional[str] = None
    board: Optional[str] = None
    physical_function: Optional[str] = None
    master: Optional[str] = None
    management: Optional[bool] = None
    default_route: Optional[bool] = None
    gdr: Optional[bool] = None
    addresses: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    functions: tuple[str, ...] = ()
    bluefield: Optional[str] = None
    adaptive_routing: Optional[bool] = None
    cnp_dscp: Optional[int] = None


@dataclass(frozen=True)
class Path:
    """Distance of two devices (by name) as a matrix says it, in nvidia-smi's words: PIX, PXB, PHB, NODE, SYS."""

    a: str
    b: str
    level: str


@dataclass(frozen=True)
class P2p:
    """Whether GPU a reaches the memory of GPU b (by name), as nvidia-smi topo -p2p says it.

    status: OK, CNS (not by the chipset), GNS (not by the GPU), TNS (not by this topology), NS (not supported), DR
    (disabled by a driver option), U (unknown). capability: "read", "write", "nvlink", "atomics" or "pcie"; None where
    the witness does not say which one was asked for.
    """

    a: str
    b: str
    status: str
    capability: Optional[str] = None


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node. cpus may be "" (a memory-only node). distances: to node 0, 1, ... as the kernel orders them."""

    id: int
    cpus: str
    distances: tuple[int, ...] = ()
    memory: Optional[int] = None


@dataclass(frozen=True)
class Core:
    """One physical core: its online CPUs (siblings), socket, NUMA node and L3 group (its lowest CPU).

    kind: on a machine with cores of several kinds 0 for the slowest kind, 1 for the next, ...; None where all are of
    one kind or the witness does not tell.
    """

    cpus: tuple[int, ...]
    socket: Optional[int] = None
    numa: Optional[int] = None
    l3: Optional[int] = None
    kind: Optional[int] = None


@dataclass(frozen=True)
class Cpus:
    """The processors. vendor as in /proc/cpuinfo ("GenuineIntel"). cores: () when the witness does not show them."""

    arch: Optional[str] = None
    vendor: Optional[str] = None
    family: Optional[int] = None
    model: Optional[int] = None
    model_name: Optional[str] = None
    online: Optional[str] = None
    offline: Optional[str] = None
    isolated: Optional[str] = None
    allowed: Optional[str] = None
    cores: tuple[Core, ...] = ()


@dataclass(frozen=True)
class Irq:
    """One interrupt of a PCI function. action: its name in /proc/interrupts. affinity, effective: cpulists.

    managed: True when the kernel says that it alone places it; before Linux 6.11 it does not say (None).
    """

    number: int
    device: str
    action: Optional[str] = None
    affinity: Optional[str] = None
    effective: Optional[str] = None
    managed: Optional[bool] = None


@dataclass(frozen=True)
class Module:
    """A loaded kernel module; version where it states one."""

    name: str
    version: Optional[str] = None


@dataclass(frozen=True)
class Host:
    """The operating system around it.

    virtual: "kvm", "vmware", ... or "container"; "" when it is known to be bare metal. driver: version of the loaded
    NVIDIA kernel module. sysctls: as read, whitespace normalised. bios: its version, as DMI tells it. nccl_conf:
    what an /etc/nccl.conf that somebody else wrote sets, as NCCL reads it; {} where there is none or it is ours.
    login_ms: CPU that a command over SSH costs before it begins, in milliseconds.
    """

    name: Optional[str] = None
    os_id: Optional[str] = None
    os_version: Optional[str] = None
    kernel: Optional[str] = None
    cmdline: Optional[str] = None
    boot_id: Optional[str] = None
    product: Optional[str] = None
    virtual: Optional[str] = None
    secure_boot: Optional[bool] = None
    iommu: Optional[bool] = None
    driver: Optional[str] = None
    modules: Optional[tuple[Module, ...]] = None
    sysctls: dict[str, str] = field(default_factory=dict)
    bios: Optional[str] = None
    nccl_conf: Optional[dict[str, str]] = None
    login_ms: Optional[int] = None


@dataclass(frozen=True)
class FileFact:
    """A file that was asked for. sha256 and mode None: it does not exist.

    mode as text ("0644"); "link" where a link stands (not followed, sha256 is that of the text it holds), "folder" or
    "other" for what has no content to compare. text: what a file of the kernel's (below /sys or /proc) holds; None for
    all others.
    """

    path: str
    sha256: Optional[str] = None
    mode: Optional[str] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    text: Optional[str] = None


@dataclass(frozen=True)
class Unit:
    """A systemd unit as `systemctl show` tells it. done: a one-shot that ran well since boot and is inactive again."""

    name: str
    load: Optional[str] = None
    active: Optional[str] = None
    enabled: Optional[str] = None
    needs_reload: Optional[bool] = None
    done: Optional[bool] = None


@dataclass(frozen=True)
class Tool:
    """What another tool on the node says. code None: the tool is not there."""

    name: str
    argv: tuple[str, ...]
    code: Optional[int]
    output: str


@dataclass(frozen=True)
class Facts:
    """One machine.

    complete: False when the witness is cut. paths: only from matrix witnesses, where the PCI tree is not visible.
    notes: what the reader wants said (each becomes a finding `facts.note`). sources: where several witnesses were
    merged, the witness ("lspci node7.txt") of each fact that is not from the first one, by the fact's place
    ("gpus[GPU0].uuid", "cpus.cores"); the PCI tree is the first one's.
    """

    schema: str
    witnesses: tuple[Witness, ...]
    host: Host = field(default_factory=Host)
    cpus: Cpus = field(default_factory=Cpus)
    numa: tuple[NumaNode, ...] = ()
    roots: tuple[Root, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    paths: tuple[Path, ...] = ()
    p2p: tuple[P2p, ...] = ()
    irqs: tuple[Irq, ...] = ()
    files: tuple[FileFact, ...] = ()
    units: tuple[Unit, ...] = ()
    tools: tuple[Tool, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    managers: Managers = field(default_factory=Managers)
    pcie: PcieFacts = field(default_factory=PcieFacts)
    pcie_errors: tuple[PcieErrors, ...] = ()
    queues: tuple[Queues, ...] = ()
    qos: tuple[Qos, ...] = ()
    platform: Optional[Platform] = None
    software: Optional[Software] = None
    power: Optional[Power] = None
    rdma_stack: Optional[RdmaStack] = None
    containers: Optional[Containers] = None
    limits: Optional[Limits] = None
    cuda: Optional[Cuda] = None
    runtimes: Optional[tuple[Runtime, ...]] = None

    @classmethod
    def read(cls, data: Any, where: str = "facts") -> Facts:
        """Facts from JSON. Raises InputError with the place: shape, and what `soundness` says."""
        facts = from_json(cls, data, where)
        if facts.schema != SCHEMA:
            raise InputError(f"{where}.schema", f"found {facts.schema!r}", f"expected {SCHEMA!r}")
        must_be_sound(facts, where)
        return facts
