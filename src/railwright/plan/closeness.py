"""Roles of the ports that only closeness to GPUs tells, together with rate and link layer.

Closeness alone misleads: some chassis put a front-end NIC on a GPU's switch, and some container shows half of the GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from ..node.model import Facts, Gpu, Nic
from .distance import BESIDE, Distances

# A front-end or storage port that is slower than this is taken for neither: such ports serve many purposes.
_FAST_MBPS = 100_000


@dataclass(frozen=True)
class Judged:
    """One port: its role, why, and whether NCCL on its own would use it. number: its rail, where the policy says so.

    presumed: a rail only because nothing better is there; no distance and no policy says so.
    """

    nic: Nic
    role: str
    because: str
    number: Optional[int] = None
    visible: bool = True
    presumed: bool = False


_Kind = tuple[Optional[int], Optional[str]]


def _kind(nic: Nic) -> _Kind:
    """What all rails of a machine have in common."""
    return (nic.rate, nic.link_layer)


def _describe(kind: _Kind) -> str:
    rate, layer = kind
    words = [f"{rate / 1000:g} Gb/s" if rate is not None else "rate unknown", layer or ""]
    return " ".join(word for word in words if word)


def among_candidates(
    candidates: Sequence[Judged],
    named: Sequence[Judged],
    gpus: Sequence[Gpu],
    distances: Distances,
    facts: Facts,
) -> list[Judged]:
    """Roles of the ports that the policy leaves open. named: rails by its word, beside which the others are judged."""
    beside = {port.nic.name: near_gpus(port.nic, gpus, distances) for port in (*named, *candidates)}
    near = [port for port in (*named, *candidates) if beside[port.nic.name]]
    if near:
        usual = _usual([port.nic for port in near])
        judged = [
            _when_some_are_near(port, beside[port.nic.name], usual, len(near), facts, distances)
            for port in candidates
        ]
        return _of_one_model(judged, len(gpus), distances)
    return _when_none_is_near(candidates, named, gpus, distances)


def near_gpus(nic: Nic, gpus: Sequence[Gpu], distances: Distances) -> list[tuple[str, str]]:
    """GPUs that share a switch with the port: (name, PIX or PXB)."""
    found = [(gpu.name, distances.word(gpu, nic)) for gpu in gpus]
    return [(name, word) for name, word in found if word in BESIDE and word is not None]


def _usual(nics: Sequence[Nic]) -> _Kind:
    """The kind that most ports have; among equals the faster."""
    counts = Counter(_kind(nic) for nic in nics)
    return max(counts, key=lambda kind: (counts[kind], kind[0] or 0, kind[1] or ""))


def _when_some_are_near(
    port: Judged,
    near: Sequence[tuple[str, str]],
    usual: _Kind,
    count: int,
    facts: Facts,
    distances: Distances,
) -> Judged:
    nic = port.nic
    if near and _kind(nic) == usual:
        said = ", ".join(f"{word} to {gpu}" for gpu, word in near)
        return replace(port, role="rail", because=f"up, {said}")
    if near:
        gpu, word = near[0]
        why = (
            f"{word} to {gpu}, but {_describe(_kind(nic))} where the NICs beside GPUs have {_describe(usual)}"
        )
        return replace(port, role=_other_role(nic), because=why)
    if distances.matrix and not facts.complete:
        return replace(port, role="unknown", because="beside no GPU whose row is whole; other rows are cut")
    why = f"beside no GPU, while {count} other port{'s are' if count > 1 else ' is'}"
    return replace(port, role=_other_role(nic), because=why)


def _of_one_model(judged: Sequence[Judged], gpus: int, distances: Distances) -> list[Judged]:
    """Where more NICs sit beside GPUs than there are GPUs, a model that is not the usual one is no rail.

    Chassis put a front-end DPU on a GPU's switch (XE9680, SR675).
    """
    rails = [port for port in judged if port.role == "rail"]
    models = Counter(distances.model(port.nic) for port in rails)
    usual, count = max(models.items(), key=lambda item: item[1], default=(None, 0))
    if usual is None or count < gpus or len(models) == 1:
        return list(judged)
    return [
        replace(
            port, role="unknown", because=f"{port.because}, but of another model than the {count} other rails"
        )
        if port.role == "rail" and distances.model(port.nic) != usual
        else port
        for port in judged
    ]


def _other_role(nic: Nic) -> str:
    """Storage where an RDMA port is up and fast; what else it may be for only the user can say."""
    up = nic.state == "active" and nic.rdma is not None
    return "storage" if up and nic.rate is not None and nic.rate >= _FAST_MBPS else "unknown"


def _when_none_is_near(
    candidates: Sequence[Judged], named: Sequence[Judged], gpus: Sequence[Gpu], distances: Distances
) -> list[Judged]:
    """PCIe machines: GPUs and NICs meet in the CPU, so the fastest NICs of one kind are the rails."""
    every = (*named, *candidates)
    rates = [port.nic.rate for port in every if port.nic.rate is not None]
    fastest = max(rates, default=None)
    layers = {port.nic.link_layer for port in every if port.nic.rate == fastest}
    layer = "InfiniBand" if "InfiniBand" in layers and len(layers) > 1 else None
    judged = []
    for port in candidates:
        nic = port.nic
        words = {distances.word(gpu, nic) for gpu in gpus} - {None}
        if nic.rate != fastest:
            why = (
                f"{_describe(_kind(nic))}, slower than {_describe((fastest, None))}"
                if fastest
                else "rate unknown"
            )
            judged.append(replace(port, role=_other_role(nic), because=why))
        elif layer is not None and nic.link_layer != layer:
            why = f"{nic.link_layer or 'link layer unknown'}, while as fast InfiniBand ports are there"
            judged.append(replace(port, role="unknown", because=why))
        else:
            rate = "" if fastest is None else f"{_describe((fastest, None))}, "
            where = (
                f"at best {min(words, key=_rank)} to a GPU"
                if words
                else "its distance to GPUs is not visible"
            )
            judged.append(
                replace(
                    port,
                    role="rail",
                    because=f"up, {rate}{where}; no NIC shares a switch with a GPU",
                    presumed=True,
                )
            )
    return judged


def _rank(word: Optional[str]) -> int:
    return ("PIX", "PXB", "P2C", "PHB", "NODE", "SYS").index(word or "SYS")
