"""What launchers need: the table of ranks, Slurm's gres.conf lines, a rank file and a wrapper for torchrun.

Slurm and Open MPI count physical cores (`Rank.cores`), numactl and taskset the kernel's CPUs (`Rank.cpus`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Optional

from ..node.model import Cpus, InputError, Plan, PlannedGpu, Rank, parse_cpulist
from .logical import core_numbers, logical

FORMS = ("table", "gres", "rankfile", "torchrun")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})", re.ASCII)


def rank_table(gpus: Sequence[PlannedGpu], cpus: Cpus) -> tuple[Rank, ...]:
    """One row for each GPU: the local rank equals the CUDA index under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    numbers = core_numbers(cpus)
    return tuple(
        Rank(
            rank=gpu.index,
            gpu=gpu.name,
            nic=gpu.nics[0] if gpu.nics else None,
            rail=gpu.rail,
            cpus=gpu.cpus,
            numa=gpu.numa,
            command=_command(gpu.cpus, gpu.numa),
            cores=logical(parse_cpulist(gpu.cpus, gpu.name), numbers) if gpu.cpus else None,
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


def launch_text(plan: Plan, form: str, host: Optional[str]) -> str:
    """The text of one of FORMS. host: the node's name, which gres.conf and a rank file begin their lines with.

    Raises InputError for a plan that was refused, a form that there is none of, and a host that is missing or no name.
    """
    if form not in FORMS:
        raise InputError("launch", f"found {form!r}", f"expected one of {', '.join(FORMS)}")
    if plan.status != "planned":
        why = "; ".join(refusal.why for refusal in plan.refusals)
        raise InputError("plan", f"was refused, so nothing can be launched by it: {why}")
    if form == "table":
        return table(plan)
    if form == "torchrun":
        return torchrun_wrapper(plan)
    if host is None:
        raise InputError(
            "host", "the node's name is not known", "give it as the launcher calls the node (--host)"
        )
    return gres_lines(plan, host) if form == "gres" else rankfile(plan, host)


def table(plan: Plan) -> str:
    """The ranks as a table with tabs, for scripts and people; "-" is unknown or none."""
    rows: list[tuple[object, ...]] = [("rank", "gpu", "nic", "rail", "cpus", "cores", "command")]
    rows += [
        (rank.rank, rank.gpu, rank.nic, rank.rail, rank.cpus, rank.cores, rank.command) for rank in plan.ranks
    ]
    return "".join(
        "\t".join("-" if cell is None or cell == "" else str(cell) for cell in row) + "\n" for row in rows
    )


def gres_lines(plan: Plan, node: str) -> str:
    """Slurm's gres.conf lines of one node. Raises InputError for a node that is no host name.

    Cores are Slurm's (man gres.conf: logical cores, "Core L#" of `lstopo -l`, one number for all threads of a core).
    Where the driver was not asked for its device files, they are taken in PCI order, and a comment says so.
    """
    name = _host(node)
    ranks = {rank.gpu: rank for rank in plan.ranks}
    known = all(gpu.minor is not None for gpu in plan.gpus)
    lines = [] if known else ["# Device files in PCI order: the driver was not asked for their numbers."]
    for gpu in plan.gpus:
        number = gpu.minor if known else gpu.index
        cores = ranks[gpu.name].cores if gpu.name in ranks else None
        lines.append(
            f"NodeName={name} Name=gpu File=/dev/nvidia{number}" + (f" Cores={cores}" if cores else "")
        )
    return "".join(line + "\n" for line in lines)


def rankfile(plan: Plan, host: str) -> str:
    """Open MPI's rank file of one node, ranks from 0 in the order of the GPUs. Empty when the cores are not known.

    Slots are logical cores, as Open MPI counts them since 1.7 (man mpirun, "Rankfiles"), unless it is told
    --use-hwthread-cpus. Raises InputError for a host that is no host name.
    """
    name = _host(host)
    return "".join(
        f"rank {place}={name} slot={rank.cores}\n" for place, rank in enumerate(plan.ranks) if rank.cores
    )


def torchrun_wrapper(plan: Plan) -> str:
    """A shell script that starts each local rank of torchrun on its own cores, and is put before the command."""
    count = len(plan.ranks)
    indices = [rank.rank for rank in plan.ranks]
    lines = [
        "#!/bin/sh",
        "# Starts each local rank on its own cores, beside its own GPU. To use it:",
        f"#   torchrun --nproc-per-node={count} --no-python ./this-file python3 train.py ...",
        "# One layer binds: torchrun's own --numa-binding stays off.",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ]
    if indices != list(range(count)):
        # torchrun counts from 0, and a GPU that has no rank would be taken for the first.
        lines.append(f"export CUDA_VISIBLE_DEVICES={','.join(map(str, indices))}")
    lines += [
        'case "${LOCAL_RANK:-}" in',
        *(f'{place}) exec {_words(rank)}"$@" ;;' for place, rank in enumerate(plan.ranks)),
        "esac",
        f"echo \"this node has {count} local ranks, counted from 0, and LOCAL_RANK is '${{LOCAL_RANK:-}}'\" >&2",
        "exit 2",
    ]
    return "\n".join(lines) + "\n"


def _words(rank: Rank) -> str:
    return "".join(f"{shlex.quote(word)} " for word in (rank.command or "").split())


def _host(name: str) -> str:
    """Names go into lines of other programs' files."""
    if not _HOST.fullmatch(name):
        raise InputError(
            "host", f"found {name[:60]!r}", "expected a host name like gpu-7 or gpu-7.example.org"
        )
    return name
