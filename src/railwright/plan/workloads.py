"""What each workload asks for: one table, each row with its source and how sure it is.

Sources are vendors' and projects' files by name; NCCL's are of 2.30.7. Confidence "A": read in a primary source that
ships the value for this purpose. "B": a secondary source. "C": common practice or our judgement, a choice.

Left as they are, for good sources contradict each other: vm.zone_reclaim_mode (1 in tuned hpc-compute and Azure's
images, 0 in mlnx_tune), vm.swappiness (0, 1 and 10), net.core.rmem_max (4 MiB to 2 GiB), net.ipv4.conf.*.rp_filter (0
and 2), vm.min_free_kbytes, NCCL_IB_QPS_PER_CONNECTION (1 and 4 on like machines), and reserved huge pages (5128 of
2 MiB on one vendor's GB200, none elsewhere: whoever uses them knows how many). Left as they are, for they hide
a fault or undo this plan: NCCL_IB_TIMEOUT (a longer wait cures no link), NCCL_IGNORE_CPU_AFFINITY (NCCL's threads would
leave the rank's cores), isolcpus (one report: requests took 6 s instead of 0.55 s). A policy may set any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..node.model.policy import WORKLOADS

RATE, EVEN, DISTANCE = "rate", "rate-even", "distance"
EXPECTED, OPTIONAL = "expected", "optional"

_TRAINING = ("train-large", "train-single-node", "moe-alltoall")
_MANY_NODES = ("train-large", "moe-alltoall")
_BETWEEN_NODES = ("train-large", "inference-latency", "inference-throughput", "moe-alltoall")
_LATENCY = ("inference-latency",)
_PATIENT = ("train-large", "train-single-node", "inference-throughput")
_WAITING = ("inference-latency", "moe-alltoall")


@dataclass(frozen=True)
class Effect:
    """One row. kind and confidence as in `Setting`. least: a node that has more of it keeps that."""

    name: str
    kind: str
    value: str
    workloads: tuple[str, ...]
    why: str
    source: str
    confidence: str
    least: bool = False


TABLE: tuple[Effect, ...] = (
    # -- what the planner follows --
    Effect(
        "assignment",
        "plan",
        RATE,
        ("train-large", "inference-throughput"),
        "a collective is as fast as its slowest GPU, so the rate that every GPU is sure of counts first",
        "NCCL src/graph/search.cc: one bandwidth for all channels",
        "A",
    ),
    Effect(
        "assignment",
        "plan",
        EVEN,
        ("moe-alltoall",),
        "all-to-all sends many small messages over every rail, so among equal rates the NICs are used evenly before "
        "distance counts",
        "practice: a NIC's rate of messages, not its bandwidth, limits expert dispatch",
        "C",
    ),
    Effect(
        "assignment",
        "plan",
        DISTANCE,
        ("train-single-node", "inference-latency"),
        "GPUs do not send all at once over the rails, so the shortest way counts before the common rate",
        "practice: copies of requests and of training data go by the nearest NIC",
        "C",
    ),
    Effect(
        "rails",
        "plan",
        EXPECTED,
        _MANY_NODES,
        "a node without rails cannot take part",
        "practice: collectives between nodes need RDMA",
        "C",
    ),
    Effect(
        "rails",
        "plan",
        OPTIONAL,
        ("train-single-node", "inference-latency", "inference-throughput"),
        "the work runs inside the node; rails serve what else there is",
        "practice: NVLink or PCIe carries collectives inside a node",
        "C",
    ),
    # -- NCCL --
    Effect(
        "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
        "nccl",
        "1",
        _LATENCY,
        "small sends between nodes use the low-latency protocol; costs memory for each connection",
        "NCCL docs/userguide env.rst, NCCL_ALLOC_P2P_NET_LL_BUFFERS (what it does; to set it is a choice)",
        "C",
    ),
    # -- the kernel's sysctls --
    Effect(
        "kernel.numa_balancing",
        "sysctl",
        "0",
        WORKLOADS,
        "page migration fights the binding of ranks to cores and stalls GPU threads",
        "tuned profiles/hpc-compute/tuned.conf; mlnx-tools mlnx_tune; open-mpi/ompi#11357",
        "A",
    ),
    Effect(
        "net.ipv4.conf.all.arp_announce",
        "sysctl",
        "2",
        WORKLOADS,
        "several ports in one subnet must not announce each other's addresses",
        "Documentation/networking/ip-sysctl.rst; NVIDIA skyhook-packages nvidia-base",
        "A",
    ),
    Effect(
        "net.ipv4.conf.all.arp_ignore",
        "sysctl",
        "1",
        WORKLOADS,
        "a port answers ARP only for its own address",
        "Documentation/networking/ip-sysctl.rst; NVIDIA skyhook-packages nvidia-base",
        "A",
    ),
    Effect(
        "net.ipv4.conf.default.arp_announce",
        "sysctl",
        "2",
        WORKLOADS,
        "several ports in one subnet must not announce each other's addresses, those that appear later neither",
        "NVIDIA skyhook-packages nvidia-base",
        "A",
    ),
    Effect(
        "net.ipv4.conf.default.arp_ignore",
        "sysctl",
        "1",
        WORKLOADS,
        "a port answers ARP only for its own address, one that appears later too",
        "NVIDIA skyhook-packages nvidia-base",
        "A",
    ),
    Effect(
        "net.ipv4.neigh.default.gc_thresh1",
        "sysctl",
        "4096",
        _MANY_NODES,
        "every rail of every node is a neighbour; the kernel's 128 forgets them under load",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "A",
        least=True,
    ),
    Effect(
        "net.ipv4.neigh.default.gc_thresh2",
        "sysctl",
        "8192",
        _MANY_NODES,
        "every rail of every node is a neighbour; above this the kernel begins to forget",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "A",
        least=True,
    ),
    Effect(
        "net.ipv4.neigh.default.gc_thresh3",
        "sysctl",
        "16384",
        _MANY_NODES,
        "every rail of every node is a neighbour; this is the most that the kernel keeps",
        "linux-system-roles hpc templates/90-hpc-sysctl.conf; Azure azhpc-images hpc-tuning.sh",
        "A",
        least=True,
    ),
    Effect(
        "kernel.nmi_watchdog",
        "sysctl",
        "0",
        _LATENCY,
        "one interrupt less on every core",
        "tuned profiles/network-latency/tuned.conf; mlnx-tools mlnx_tune",
        "A",
    ),
    Effect(
        "kernel.timer_migration",
        "sysctl",
        "0",
        _LATENCY,
        "timers stay off the cores that serve requests",
        "tuned profiles/network-latency/tuned.conf",
        "A",
    ),
    Effect(
        "net.core.busy_poll",
        "sysctl",
        "50",
        _LATENCY,
        "sockets poll for 50 microseconds before they sleep",
        "tuned profiles/network-latency/tuned.conf",
        "A",
    ),
    Effect(
        "net.core.busy_read",
        "sysctl",
        "50",
        _LATENCY,
        "blocking reads poll for 50 microseconds before they sleep",
        "tuned profiles/network-latency/tuned.conf",
        "A",
    ),
    # -- power --
    Effect(
        "cpu.governor",
        "power",
        "performance",
        WORKLOADS,
        "cores that feed GPUs must not ramp up first",
        "tuned profiles/accelerator-performance/tuned.conf; DGX OS nv-cpu-governor",
        "A",
    ),
    Effect(
        "cpu.energy_perf_bias",
        "power",
        "performance",
        WORKLOADS,
        "where hardware chooses the clock it must not save",
        "tuned profiles/accelerator-performance/tuned.conf",
        "A",
    ),
    Effect(
        "cpu.min_perf_pct",
        "power",
        "100",
        WORKLOADS,
        "the lowest clock that intel_pstate may take",
        "tuned profiles/accelerator-performance/tuned.conf",
        "A",
    ),
    Effect(
        "cpu.force_latency",
        "power",
        "99",
        _PATIENT,
        "no C-state that takes more than 99 microseconds to leave: keeps cores out of deep sleep, lets them rest",
        "tuned profiles/accelerator-performance/tuned.conf",
        "A",
    ),
    Effect(
        "cpu.force_latency",
        "power",
        "cstate.id_no_zero:1|3",
        _WAITING,
        "no deeper than C1: whoever waits for a small message waits for the core to wake up too; costs power",
        "tuned profiles/latency-performance/tuned.conf (the value; for all-to-all it is a choice)",
        "A",
    ),
    Effect(
        "skew_tick",
        "kernel_parameter",
        "1",
        ("train-large", "inference-latency", "moe-alltoall"),
        "timer ticks of the cores do not fall together on one lock",
        "oci-hpc-images ansible/group_vars/kernel_parameters.yml; tuned profiles/network-latency/tuned.conf",
        "A",
    ),
    # -- memory --
    Effect(
        "memory.transparent_hugepage",
        "memory",
        "always",
        _TRAINING,
        "large host buffers need fewer translations",
        "tuned profiles/hpc-compute/tuned.conf",
        "A",
    ),
    Effect(
        "memory.transparent_hugepage",
        "memory",
        "never",
        _LATENCY,
        "no request waits until the kernel has collected a huge page",
        "tuned profiles/network-latency/tuned.conf; mlnx-tools mlnx_tune",
        "A",
    ),
    Effect(
        "init_on_alloc",
        "kernel_parameter",
        "0",
        _TRAINING,
        "the kernel does not clear its own buffers before use; a node that is let to strangers leaves this out",
        "NVIDIA skyhook-packages nvidia-tuned H100 profile; azhpc-images setup_sku_customizations.sh",
        "A",
    ),
    # -- the fabric, and what a node has to show --
    Effect(
        "roce.ecn",
        "roce",
        "on",
        _BETWEEN_NODES,
        "senders slow down before buffers fill; the NIC's factory setting, kept on purpose",
        "NVIDIA nic-configuration-operator: ROCE_CC_PRIO_MASK 255",
        "A",
    ),
    Effect(
        "acceptance.proofs",
        "acceptance",
        "all_reduce_perf,ib_write_bw",
        ("train-large",),
        "what the workload does: reductions over all nodes, bandwidth of each rail",
        "NVIDIA nccl-tests; linux-rdma perftest",
        "C",
    ),
    Effect(
        "acceptance.proofs",
        "acceptance",
        "all_reduce_perf",
        ("train-single-node",),
        "what the workload does: reductions inside the node",
        "NVIDIA nccl-tests",
        "C",
    ),
    Effect(
        "acceptance.proofs",
        "acceptance",
        "nvbandwidth,ib_write_lat",
        _LATENCY,
        "what the workload does: copies to and from GPUs, latency of each rail",
        "NVIDIA nvbandwidth; linux-rdma perftest",
        "C",
    ),
    Effect(
        "acceptance.proofs",
        "acceptance",
        "nvbandwidth,ib_write_bw",
        ("inference-throughput",),
        "what the workload does: copies to and from GPUs, bandwidth of each rail",
        "NVIDIA nvbandwidth; linux-rdma perftest",
        "C",
    ),
    Effect(
        "acceptance.proofs",
        "acceptance",
        "alltoall_perf,ib_write_bw",
        ("moe-alltoall",),
        "what the workload does: all-to-all over all nodes, bandwidth of each rail",
        "NVIDIA nccl-tests; linux-rdma perftest",
        "C",
    ),
)
