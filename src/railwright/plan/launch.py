"""What launchers need: the table of ranks, Slurm's gres.conf lines and a rank file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ..node.model import Plan, PlannedGpu, Rank


def rank_table(gpus: Sequence[PlannedGpu]) -> tuple[Rank, ...]:
    """One row for each GPU: the local rank equals the CUDA index under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    return tuple(
        Rank(
            rank=gpu.index,
            gpu=gpu.name,
            nic=gpu.nics[0] if gpu.nics else None,
            rail=gpu.rail,
            cpus=gpu.cpus,
            numa=gpu.numa,
            command=_command(gpu.cpus, gpu.numa),
        )
        for gpu in gpus
    )


def _command(cpus: Optional[str], numa: Optional[int]) -> Optional[str]:
    """What to put before the rank's command. Memory is preferred, not bound: a full node must not kill the rank."""
    if not cpus:
        return None
    if numa is None:
        return f"taskset -c {cpus}"
    return f"numactl --physcpubind={cpus} --preferred={numa}"


def gres_lines(plan: Plan, node: str) -> str:
    """Slurm's gres.conf lines of one node. Files follow PCI order, as the driver numbers /dev/nvidia<n>."""
    lines = [
        f"NodeName={node} Name=gpu File=/dev/nvidia{gpu.index}" + (f" Cores={gpu.cpus}" if gpu.cpus else "")
        for gpu in plan.gpus
    ]
    return "".join(line + "\n" for line in lines)


def rankfile(plan: Plan, host: str) -> str:
    """Open MPI's rank file of one node, ranks by CUDA index. Empty when the cores are not known."""
    return "".join(f"rank {rank.rank}={host} slot={rank.cpus}\n" for rank in plan.ranks if rank.cpus)
