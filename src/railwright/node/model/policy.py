"""Policy: what a node is meant to be. Every value has a documented default; an inventory states only what differs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import InputError, from_json

SCHEMA = "railwright.policy/1"
WORKLOADS = ("train-large", "train-single-node", "inference-latency", "inference-throughput", "moe-alltoall")
ROLES = ("rail", "storage", "management", "spare", "down", "vf", "second-port", "nvlink-mgmt", "unknown")


@dataclass(frozen=True)
class NicPolicy:
    """The user's word on one NIC. match: PCI address, RDMA device or netdev. rail: its number, when role is rail."""

    match: str
    role: Optional[str] = None
    rail: Optional[int] = None


@dataclass(frozen=True)
class Expect:
    """The shape that the node was bought with; fewer devices refuse the plan."""

    gpus: Optional[int] = None
    rails: Optional[int] = None


@dataclass(frozen=True)
class NcclPolicy:
    """NCCL on this node.

    version: the NCCL that will run, "2.30.7"; None when tenants bring their own (then only syntax that every version
    reads is written). traffic_class, gid_index: None leaves them to NCCL. socket_ifname: None takes the interface that
    holds the default route. env: further variables as they stand, last word.
    """

    version: Optional[str] = None
    traffic_class: Optional[int] = None
    gid_index: Optional[int] = None
    socket_ifname: Optional[str] = None
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CorePolicy:
    """Cores. irq_per_nic: physical cores for the interrupts of each rail NIC (2: common practice, a choice).

    housekeeping: physical cores of each NUMA node that stay with the system, lowest numbers first.
    """

    irq_per_nic: int = 2
    housekeeping: int = 1


@dataclass(frozen=True)
class BootPolicy:
    """The boot unit: the digest of the zipapp that the node must run."""

    sha256: str


@dataclass(frozen=True)
class Policy:
    """To be.

    manage: slices that Railwright leaves alone are set to False ({"sysctls": False}). accept: findings that are known
    and borne, code to reason. sysctls: values over the defaults of the workload; "" leaves a default out.
    """

    schema: str = SCHEMA
    workload: str = "train-large"
    expect: Expect = field(default_factory=Expect)
    nics: tuple[NicPolicy, ...] = ()
    nccl: NcclPolicy = field(default_factory=NcclPolicy)
    cores: CorePolicy = field(default_factory=CorePolicy)
    sysctls: dict[str, str] = field(default_factory=dict)
    manage: dict[str, bool] = field(default_factory=dict)
    accept: dict[str, str] = field(default_factory=dict)
    boot: Optional[BootPolicy] = None

    @classmethod
    def read(cls, data: Any, where: str = "policy") -> Policy:
        """Policy from JSON; what is left out has its default. Raises InputError with the place."""
        policy = from_json(cls, data, where)
        if policy.schema != SCHEMA:
            raise InputError(f"{where}.schema", f"found {policy.schema!r}", f"expected {SCHEMA!r}")
        if policy.workload not in WORKLOADS:
            raise InputError(
                f"{where}.workload", f"unknown workload {policy.workload!r}", f"one of {', '.join(WORKLOADS)}"
            )
        for number, nic in enumerate(policy.nics):
            if nic.role is not None and nic.role not in ROLES:
                raise InputError(
                    f"{where}.nics[{number}].role", f"unknown role {nic.role!r}", f"one of {', '.join(ROLES)}"
                )
        if policy.cores.irq_per_nic < 1 or policy.cores.housekeeping < 0:
            raise InputError(f"{where}.cores", "expected irq_per_nic >= 1 and housekeeping >= 0")
        _must_be_writable(policy, where)
        return policy


def _must_be_writable(policy: Policy, where: str) -> None:
    """What the policy says ends up in files of the node, so it is one word or one line."""
    for name, value in policy.sysctls.items():
        if not re.fullmatch(r"[A-Za-z0-9_./:@+-]+", name):
            raise InputError(f"{where}.sysctls", f"{name!r} is no name of a kernel parameter")
        if value != "" and not re.fullmatch(r"[ \t]*[!-~]+(?:[ \t]+[!-~]+)*[ \t]*", value):
            raise InputError(
                f"{where}.sysctls.{name}", f"found {value!r}", "expected one line, or an empty text"
            )
    interface = policy.nccl.socket_ifname
    if interface is not None and not re.fullmatch(
        r"\^?=?[A-Za-z0-9_.:@+-]+(?:,[A-Za-z0-9_.:@+-]+)*", interface
    ):
        raise InputError(f"{where}.nccl.socket_ifname", f"found {interface!r}", "expected interface names")
    if policy.boot is not None and not re.fullmatch(r"[0-9a-f]{64}", policy.boot.sha256):
        raise InputError(
            f"{where}.boot.sha256", f"found {policy.boot.sha256!r}", "expected 64 hexadecimal digits"
        )
    for number in (policy.expect.gpus, policy.expect.rails):
        if number is not None and number < 0:
            raise InputError(f"{where}.expect", f"found {number}", "expected a number that is not negative")
