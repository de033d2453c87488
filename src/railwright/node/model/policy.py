"""Policy: what a node is meant to be. Every value has a documented default; an inventory states only what differs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import InputError, from_json
from .container_policy import ContainerRuntimePolicy
from .container_policy import must_be_sound as containers_must_be_sound
from .cuda_policy import CudaPolicy, NcclLibraryPolicy
from .cuda_policy import must_be_sound as cuda_must_be_sound
from .device_policy import NicFirmwarePolicy, PciePolicy, QueuesPolicy
from .device_policy import must_be_sound as devices_must_be_sound
from .driver_policy import DriverPolicy, FabricManagerPolicy
from .driver_policy import must_be_known as driver_must_be_known
from .image_policy import ImagePolicy
from .image_policy import must_be_known as image_must_be_known
from .limits_policy import LimitsPolicy
from .limits_policy import must_be_sound as limits_must_be_sound
from .lossless import LosslessPolicy
from .lossless import must_agree as lossless_must_agree
from .rails_policy import RailsPolicy
from .rails_policy import must_be_sound as rails_must_be_sound
from .rdma_policy import RdmaStackPolicy
from .rdma_policy import must_be_sound as rdma_must_be_sound
from .runtime_policy import RuntimePolicy
from .runtime_policy import must_be_sound as runtime_must_be_sound
from .software_policy import KernelPolicy, SoftwarePolicy
from .software_policy import must_be_sound as software_must_be_sound
from .values import SHA256, like, one_of

SCHEMA = "railwright.policy/1"
WORKLOADS = ("train-large", "train-single-node", "inference-latency", "inference-throughput", "moe-alltoall")
FABRICS = ("rail-only", "rail-optimised", "flat")
CONTAINERS = ("cdi", "enroot")
_HOST = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:_-]{0,252}")
_INTERFACES = re.compile(r"\^?=?[A-Za-z0-9_.:@+-]+(?:,[A-Za-z0-9_.:@+-]+)*")
_WAYS_IN = ("ssh.service", "sshd.service", "systemd-logind.service", "dbus.service")
ROLES = ("rail", "storage", "management", "spare", "down", "vf", "second-port", "nvlink-mgmt", "unknown")


@dataclass(frozen=True)
class NicPolicy:
    """The user's word on NICs. match: PCI address, RDMA device or netdev of one, or what all of a kind share: PCI
    vendor and device ("15b3:a2dc") or the board ("MT_0000000884", mlx5's board_id). rail: its number, when role is
    rail. source: the preset that says so; the user's own word on the same NIC comes first.
    """

    match: str
    role: Optional[str] = None
    rail: Optional[int] = None
    source: Optional[str] = None


@dataclass(frozen=True)
class Expect:
    """The shape that the node was bought with; fewer devices refuse the plan."""

    gpus: Optional[int] = None
    rails: Optional[int] = None


@dataclass(frozen=True)
class NcclPolicy:
    """NCCL on this node.

    version: the NCCL that will run, "2.30.7"; None when tenants bring their own (then only syntax that every version
    reads is written). traffic_class, gid_index: None leaves them to NCCL. addr_range: the rails' addresses, a CIDR, for
    the choice of the GID. socket_ifname: None takes the interface that holds the default route. loaded_links: the PCIe
    link of a GPU or NIC as it ran under load, by PCI address ("gen5 x16"). env: further variables as they stand, last
    word; "" leaves a variable out.
    """

    version: Optional[str] = None
    traffic_class: Optional[int] = None
    gid_index: Optional[int] = None
    addr_range: Optional[str] = None
    socket_ifname: Optional[str] = None
    loaded_links: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkPolicy:
    """What the network between the nodes does, which no node can see. None is unknown: nothing is written for it.

    fabric: "rail-only" (no way from rail to rail), "rail-optimised" (there is one, over the spines) or "flat".
    adaptive_routing: its switches send packets of one flow over several ways. sharp: an aggregation manager serves this
    InfiniBand fabric, and the jobs' NCCL has its SHARP plugin.
    """

    fabric: Optional[str] = None
    adaptive_routing: Optional[bool] = None
    sharp: Optional[bool] = None


@dataclass(frozen=True)
class NvlinkPolicy:
    """NVLink over nodes. imex_nodes: addresses or names of all nodes of a clique, this one among them, by the clique
    ("<cluster UUID>.<clique number>"), so that one policy serves several racks.
    """

    imex_nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class CorePolicy:
    """Cores. irq_per_nic: physical cores for the interrupts of each rail NIC (2: common practice, a choice).

    housekeeping: physical cores of each NUMA node that stay with the system, lowest numbers first.
    """

    irq_per_nic: int = 2
    housekeeping: int = 1


@dataclass(frozen=True)
class BootPolicy:
    """The boot unit. sha256: of the zipapp that the node must run; "" is the one that the controller's checkout builds.

    gate: units that start only on a node that was found as planned ("slurmd.service"); without any, such units start
    after the boot unit, whatever it found.
    """

    sha256: str = ""
    gate: tuple[str, ...] = ()


@dataclass(frozen=True)
class Policy:
    """To be.

    manage: slices that Railwright leaves alone are set to False ({"sysctls": False}). accept: findings that are known
    and borne, code to reason. effects: what the workload brings, by name: False leaves it out, a text is its value
    instead ({"cpu.force_latency": False}). containers: runtimes whose containers see the GPUs' order and NCCL's files.
    sysctls: values over the defaults of the workload; "" leaves a default out.
    """

    schema: str = SCHEMA
    workload: str = "train-large"
    expect: Expect = field(default_factory=Expect)
    presets: tuple[str, ...] = ()
    nics: tuple[NicPolicy, ...] = ()
    nccl: NcclPolicy = field(default_factory=NcclPolicy)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    nvlink: NvlinkPolicy = field(default_factory=NvlinkPolicy)
    cores: CorePolicy = field(default_factory=CorePolicy)
    effects: dict[str, Any] = field(default_factory=dict)
    containers: tuple[str, ...] = CONTAINERS
    sysctls: dict[str, str] = field(default_factory=dict)
    manage: dict[str, bool] = field(default_factory=dict)
    accept: dict[str, str] = field(default_factory=dict)
    boot: Optional[BootPolicy] = None
    rails: RailsPolicy = field(default_factory=RailsPolicy)
    driver: DriverPolicy = field(default_factory=DriverPolicy)
    fabric_manager: FabricManagerPolicy = field(default_factory=FabricManagerPolicy)
    pcie: PciePolicy = field(default_factory=PciePolicy)
    queues: QueuesPolicy = field(default_factory=QueuesPolicy)
    lossless: Optional[LosslessPolicy] = None
    nic_firmware: NicFirmwarePolicy = field(default_factory=NicFirmwarePolicy)
    software: SoftwarePolicy = field(default_factory=SoftwarePolicy)
    kernel: Optional[KernelPolicy] = None
    rdma_stack: Optional[RdmaStackPolicy] = None
    container_runtime: Optional[ContainerRuntimePolicy] = None
    limits: Optional[LimitsPolicy] = None
    dl_runtime: Optional[RuntimePolicy] = None
    cuda: Optional[CudaPolicy] = None
    nccl_library: Optional[NcclLibraryPolicy] = None
    image: Optional[ImagePolicy] = None

    @classmethod
    def read(cls, data: Any, where: str = "policy") -> Policy:
        """Policy from JSON; what is left out has its default. Raises InputError with the place."""
        policy = from_json(cls, data, where)
        if policy.schema != SCHEMA:
            raise InputError(f"{where}.schema", f"found {policy.schema!r}", f"expected {SCHEMA!r}")
        _must_be_known(policy, where)
        if policy.cores.irq_per_nic < 1 or policy.cores.housekeeping < 0:
            raise InputError(f"{where}.cores", "expected irq_per_nic >= 1 and housekeeping >= 0")
        _must_be_writable(policy, where)
        rails_must_be_sound(policy.rails, f"{where}.rails")
        software_must_be_sound(policy.software, policy.kernel, where)
        cuda_must_be_sound(policy.cuda, policy.nccl_library, where)
        driver_must_be_known(policy.driver, policy.fabric_manager, where)
        if policy.lossless is not None:
            lossless_must_agree(policy.lossless, f"{where}.lossless")
        if policy.dl_runtime is not None:
            runtime_must_be_sound(policy.dl_runtime, where)
        devices_must_be_sound(policy.pcie, policy.queues, policy.nic_firmware, where)
        if policy.rdma_stack is not None:
            rdma_must_be_sound(policy.rdma_stack, f"{where}.rdma_stack")
        if policy.container_runtime is not None:
            containers_must_be_sound(policy.container_runtime, f"{where}.container_runtime")
        if policy.limits is not None:
            limits_must_be_sound(policy.limits, f"{where}.limits")
        if policy.image is not None:
            image_must_be_known(policy.image, f"{where}.image")
        return policy


def _must_be_known(policy: Policy, where: str) -> None:
    """Words of which there are few."""
    one_of(policy.workload, WORKLOADS, f"{where}.workload")
    for number, nic in enumerate(policy.nics):
        one_of(nic.role, ROLES, f"{where}.nics[{number}].role")
    one_of(policy.network.fabric, FABRICS, f"{where}.network.fabric")
    for runtime in policy.containers:
        one_of(runtime, CONTAINERS, f"{where}.containers")
    for name, value in policy.effects.items():
        if value is not False and not (isinstance(value, str) and re.fullmatch(r"[!-~]+", value)):
            raise InputError(
                f"{where}.effects.{name}",
                f"found {value!r}",
                "expected false, or the value to take instead, as a text without blanks",
            )


def _must_be_writable(policy: Policy, where: str) -> None:
    """What the policy says ends up in files of the node, so it is one word or one line."""
    for name, value in policy.sysctls.items():
        if not re.fullmatch(r"[A-Za-z0-9_./:@+-]+", name):
            raise InputError(f"{where}.sysctls", f"{name!r} is no name of a kernel parameter")
        if value != "" and not re.fullmatch(r"[ \t]*[!-~]+(?:[ \t]+[!-~]+)*[ \t]*", value):
            raise InputError(
                f"{where}.sysctls.{name}", f"found {value!r}", "expected one line, or an empty text"
            )
    for clique, nodes in policy.nvlink.imex_nodes.items():
        place = f"{where}.nvlink.imex_nodes.{clique}"
        if not re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}", clique):
            raise InputError(
                place, "is no clique", "expected <cluster UUID>.<clique number>, as `nvidia-smi -q` tells"
            )
        for number, node in enumerate(nodes):
            like(node, _HOST, f"{place}[{number}]", "an address or a host name")
    like(policy.nccl.socket_ifname, _INTERFACES, f"{where}.nccl.socket_ifname", "interface names")
    if policy.boot is not None and policy.boot.sha256 != "":
        like(policy.boot.sha256, SHA256, f"{where}.boot.sha256", "64 hexadecimal digits")
    for unit in () if policy.boot is None else policy.boot.gate:
        # Whoever repairs the node has to get in.
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9:_.\\@-]*\.service", unit) or unit in _WAYS_IN:
            raise InputError(
                f"{where}.boot.gate",
                f"found {unit!r}",
                "expected services that run work, like slurmd.service; never the way into the node",
            )
    marked = policy.nccl.traffic_class
    # RFC 3168: two bits of ECN below the six of the DSCP; 3 is what a congested switch writes, and no sender.
    if marked is not None and (not 0 <= marked <= 255 or marked & 3 == 3):
        raise InputError(
            f"{where}.nccl.traffic_class",
            f"found {marked}",
            "expected DSCP x 4, with 2 more for ECN (DSCP 26: 106), 255 at most",
        )
    for count in (policy.expect.gpus, policy.expect.rails):
        if count is not None and count < 0:
            raise InputError(f"{where}.expect", f"found {count}", "expected a number that is not negative")
