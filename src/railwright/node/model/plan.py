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
}


@dataclass(frozen=True)
class PlannedGpu:
    """One GPU: rail and NICs by name (the rail NIC first, further ports of its card after it).

    path: the way to the rail NIC in NCCL's words (PIX, PXB, PHB, SYS, ...). cpus: the rank's cores, a cpulist.
    slot: the chassis's name of the physical slot.
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
    credible: without links that are not believed. index_pairing, nearest, nccl: what those rules would get.
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
    """One row of the per-rank table: the local rank equals the CUDA index."""

    rank: int
    gpu: str
    nic: Optional[str]
    rail: Optional[int]
    cpus: Optional[str]
    numa: Optional[int]
    command: Optional[str]


@dataclass(frozen=True)
class Slice:
    """What one role writes. stage: "runtime" or "persistent" (needs a reboot). entries: items of node_state."""

    stage: str
    entries: tuple[dict[str, Any], ...]
    because: str


@dataclass(frozen=True)
class Plan:
    """The plan of one node. status: "planned" or "refused" (then `refusals` says why and there are no slices).

    summary: sentences for a person, most important first. policy_sha256: digest of the policy it follows.
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
    nccl: dict[str, str] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    housekeeping_cpus: Optional[str] = None
    slices: dict[str, Slice] = field(default_factory=dict)
    policy_sha256: str = ""

    def files(self) -> tuple[str, ...]:
        """Paths that the plan writes, in order: what a reader has to look at."""
        return tuple(e["path"] for e in self._entries() if e["kind"] in ("file", "json_keys", "sysfs"))

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
