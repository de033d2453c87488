"""Kernel settings that Railwright writes by default: one table, each with its source.

Values on which good sources contradict each other are not set: vm.zone_reclaim_mode (1 in tuned hpc-compute and Azure's
images, 0 in mlnx_tune), vm.swappiness (0, 1 and 10), net.core.rmem_max (4 MiB to 2 GiB), net.ipv4.conf.*.rp_filter (0
and 2), vm.min_free_kbytes. A policy may set any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..node.model import Finding, Host, Policy
from ..node.model.policy import WORKLOADS

_MANY_NODES = ("train-large", "moe-alltoall")
_LATENCY = ("inference-latency",)


@dataclass(frozen=True)
class Sysctl:
    """One setting. confidence: "vendor" (a vendor ships it for this purpose) or "practice" (common, little seen).

    least: a node that has more keeps it.
    """

    name: str
    value: str
    workloads: tuple[str, ...]
    why: str
    source: str
    confidence: str
    least: bool = False


TABLE: tuple[Sysctl, ...] = (
    Sysctl(
        "kernel.numa_balancing",
        "0",
        WORKLOADS,
        "page migration fights the binding of ranks to cores and stalls GPU threads",
        "tuned profiles/hpc-compute/tuned.conf; mlnx-tools mlnx_tune; open-mpi/ompi#11357",
        "vendor",
    ),
    Sysctl(
        "net.ipv4.conf.all.arp_announce",
        "2",
        WORKLOADS,
        "several ports in one subnet must not announce each other's addresses",
        "Documentation/networking/ip-sysctl.rst; NVIDIA skyhook-packages nvidia-base",
        "vendor",
    ),
    Sysctl(
        "net.ipv4.conf.all.arp_ignore",
        "1",
        WORKLOADS,
        "a port answers ARP only for its own address",
        "Documentation/networking/ip-sysctl.rst; NVIDIA skyhook-packages nvidia-base",
        "vendor",
    ),
    Sysctl(
        "net.ipv4.conf.default.arp_announce",
        "2",
        WORKLOADS,
        "as above, for ports that appear later",
        "NVIDIA skyhook-packages nvidia-base",
        "vendor",
    ),
    Sysctl(
        "net.ipv4.conf.default.arp_ignore",
        "1",
        WORKLOADS,
        "as above, for ports that appear later",
        "NVIDIA skyhook-packages nvidia-base",
        "vendor",
    ),
    Sysctl(
        "net.ipv4.neigh.default.gc_thresh1",
        "4096",
        _MANY_NODES,
        "every rail of every node is a neighbour; the kernel's 128 forgets them under load",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "vendor",
        least=True,
    ),
    Sysctl(
        "net.ipv4.neigh.default.gc_thresh2",
        "8192",
        _MANY_NODES,
        "as above",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "vendor",
        least=True,
    ),
    Sysctl(
        "net.ipv4.neigh.default.gc_thresh3",
        "16384",
        _MANY_NODES,
        "as above",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "vendor",
        least=True,
    ),
    Sysctl(
        "kernel.nmi_watchdog",
        "0",
        _LATENCY,
        "one interrupt less on every core",
        "tuned profiles/network-latency/tuned.conf; mlnx-tools mlnx_tune",
        "vendor",
    ),
    Sysctl(
        "kernel.timer_migration",
        "0",
        _LATENCY,
        "timers stay off the cores that serve requests",
        "tuned profiles/network-latency/tuned.conf",
        "vendor",
    ),
    Sysctl(
        "net.core.busy_poll",
        "50",
        _LATENCY,
        "sockets poll for 50 microseconds before they sleep",
        "tuned profiles/network-latency/tuned.conf",
        "vendor",
    ),
    Sysctl(
        "net.core.busy_read",
        "50",
        _LATENCY,
        "as above, for blocking reads",
        "tuned profiles/network-latency/tuned.conf",
        "vendor",
    ),
)


def chosen(policy: Policy, host: Host) -> tuple[dict[str, str], list[Finding]]:
    """Settings by name, in order, and findings. Only settings that this kernel has are chosen."""
    wanted = {
        entry.name: _value(entry, host.sysctls.get(entry.name, ""))
        for entry in TABLE
        if policy.workload in entry.workloads
    }
    wanted.update(policy.sysctls)
    values = {name: value for name, value in sorted(wanted.items()) if value != "" and name in host.sysctls}
    absent = [
        name for name, value in sorted(policy.sysctls.items()) if value != "" and name not in host.sysctls
    ]
    findings = [
        Finding(
            "sysctls.absent",
            "warning",
            name,
            f"the policy sets {name}, and this node's kernel did not show it",
            "correct the name, or load the module that brings it",
        )
        for name in (absent if host.sysctls else [])
    ]
    return values, findings


def _value(entry: Sysctl, now: str) -> str:
    """Our value, or the node's where more is better and it has more: a large network was sized by somebody."""
    return now if entry.least and now.isdecimal() and int(now) > int(entry.value) else entry.value


def conf_bytes(values: Mapping[str, str]) -> str:
    """The text of the sysctl.d file."""
    lines = [
        "# Written by Railwright; changes made here are lost. What is wanted stands in the node's policy."
    ]
    lines += [f"{name} = {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
