"""Launch files of a whole fleet: hostfile, MPI rank file, Slurm's gres.conf and topology.conf, notes for the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from railwright.node.model import Plan
from railwright.plan import gres_lines
from railwright.plan import rankfile as rankfile_of_node
from railwright.plan.order import natural
from railwright.report.visible import visible

_NUMBERED = re.compile(r"^(.*?)(\d+)$")
_RANK = re.compile(r"^rank (\d+)=", re.MULTILINE)
# torchrun's default port for rendezvous.
_PORT = 29500


@dataclass(frozen=True)
class Host:
    """One node for the launchers. leaves: of its rails, () where nobody has told them. group: its shape."""

    name: str
    plan: Plan
    leaves: tuple[str, ...] = ()
    group: str = ""


def launch_files(hosts: Sequence[Host]) -> dict[str, str]:
    """File name to text. Nodes whose plan was refused are in none of them. Nodes of one unit stand together."""
    ready = [host for host in hosts if host.plan.status == "planned" and host.plan.ranks]
    units = units_of(ready)
    ordered = [host for members in units.values() for host in members]
    return {
        "hostfile": hostfile(ordered),
        "rankfile": rankfile(ordered),
        "gres.conf": gres_conf(ordered),
        "topology.conf": topology_conf(units),
        "torchrun.md": torchrun_notes(ordered),
        "kubernetes.md": kubernetes_notes(units),
    }


def units_of(hosts: Iterable[Host]) -> dict[str, list[Host]]:
    """Hosts by the leaves that they share ("unit1", ...), in order. Without cables there is one unit."""
    found: dict[tuple[str, ...], list[Host]] = {}
    for host in sorted(hosts, key=lambda host: natural(host.name)):
        found.setdefault(tuple(sorted(set(host.leaves))), []).append(host)
    ordered = sorted(found.values(), key=lambda members: natural(members[0].name))
    return {f"unit{number}": members for number, members in enumerate(ordered, 1)}


def hostfile(hosts: Sequence[Host]) -> str:
    """Open MPI's hostfile: a slot for each GPU."""
    return "".join(f"{host.name} slots={len(host.plan.ranks)}\n" for host in hosts)


def rankfile(hosts: Sequence[Host]) -> str:
    """Open MPI's rank file over all nodes, ranks by node and CUDA index. Empty where a node's cores are not known."""
    parts = []
    first = 0
    for host in hosts:
        own = rankfile_of_node(host.plan, host.name)
        if own.count("\n") != len(host.plan.ranks):
            return ""
        parts.append(_counted_on(own, first))
        first += len(host.plan.ranks)
    return "".join(parts)


def _counted_on(lines: str, first: int) -> str:
    return _RANK.sub(lambda match: f"rank {first + int(match[1])}=", lines)


def gres_conf(hosts: Sequence[Host]) -> str:
    """Slurm's gres.conf; nodes with the same lines share them."""
    alike: dict[str, list[str]] = {}
    for host in hosts:
        alike.setdefault(gres_lines(host.plan, "NODE"), []).append(host.name)
    return "".join(
        lines.replace("NodeName=NODE ", f"NodeName={hostlist(names)} ") for lines, names in alike.items()
    )


def topology_conf(units: Mapping[str, Sequence[Host]]) -> str:
    """Slurm's topology.conf (topology/tree).

    In a rail-optimised fabric a node is on as many leaves as it has rails, and Slurm's tree knows one switch above a
    node: the set of leaves is that switch.
    """
    lines = []
    for unit, hosts in units.items():
        leaves = sorted({leaf for host in hosts for leaf in host.leaves}, key=natural)
        if leaves:
            # A switch tells its own name, and what stands after a line break would be Slurm's.
            lines.append(f"# {unit}: {visible(' '.join(', '.join(leaves).split()))}")
        lines.append(f"SwitchName={unit} Nodes={hostlist([host.name for host in hosts])}")
    if len(units) > 1:
        lines.append(f"SwitchName=spine Switches={hostlist(list(units))}")
    return "".join(line + "\n" for line in lines)


def torchrun_notes(hosts: Sequence[Host]) -> str:
    """How to start torchrun over these nodes. Empty without a node."""
    if not hosts:
        return ""
    counts = sorted({len(host.plan.ranks) for host in hosts})
    if len(counts) > 1:
        by_count = "; ".join(
            f"{count} GPUs: {hostlist([host.name for host in hosts if len(host.plan.ranks) == count])}"
            for count in counts
        )
        return (
            f"torchrun wants one number of processes on all nodes of a job; these have several. {by_count}\n"
        )
    first = hosts[0].name
    return (
        f"Run on each node, {first} first (its number is --node-rank 0, in the order of the hostfile):\n\n"
        f"    torchrun --nnodes={len(hosts)} --nproc-per-node={counts[0]} --node-rank=RANK \\\n"
        f"        --rdzv-backend=c10d --rdzv-endpoint={first}:{_PORT} --rdzv-id=JOB SCRIPT\n\n"
        "NCCL reads /etc/nccl.conf on each node; set no NCCL_IB_HCA in the job. CUDA_DEVICE_ORDER is PCI_BUS_ID\n"
        "there, so LOCAL_RANK is the GPU of the rank table. To bind cores too, start each rank through the command of\n"
        "that table.\n"
    )


def kubernetes_notes(units: Mapping[str, Sequence[Host]]) -> str:
    """Labels by which pods of one job come onto one unit and one shape."""
    lines = [
        "Label the nodes, then let jobs ask for one unit (podAffinity, or a scheduler that knows topology):",
        "",
    ]
    for unit, hosts in units.items():
        for host in hosts:
            shape = f" railwright/shape={label(host.group)}" if host.group else ""
            lines.append(f"    kubectl label node {host.name} --overwrite railwright/unit={unit}{shape}")
    lines += [
        "",
        "A pod sees the rails only with hostNetwork, or with one RDMA device resource for each rail; the host's",
        "/etc/nccl.conf is not visible inside a container, so mount it read-only at the same place.",
    ]
    return "\n".join(lines) + "\n"


def label(text: str) -> str:
    """A Kubernetes label value: at most 63 letters, digits and "-_.", with a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def hostlist(names: Sequence[str]) -> str:
    """Names as Slurm writes them, node[1-3,7],other; numbers keep their leading zeros."""
    matches = {name: _NUMBERED.match(name) for name in names}
    # gpu10 belongs to gpu01, gpu02; beside gpu1 it does not.
    padded = {
        (m[1], len(m[2]))
        for m in matches.values()
        if m is not None and len(m[2]) > 1 and m[2].startswith("0")
    }
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name, match in matches.items():
        if match is None or len(match[2]) > 9:
            plain.append(name)
        else:
            width = len(match[2]) if (match[1], len(match[2])) in padded else 0
            groups.setdefault((match[1], width), []).append(int(match[2]))
    folded = [_folded(prefix, width, sorted(set(numbers))) for (prefix, width), numbers in groups.items()]
    return ",".join([*folded, *plain])


def _folded(prefix: str, width: int, numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in ranges
    ]
    alone = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{prefix}{told[0]}" if alone else f"{prefix}[{','.join(told)}]"
