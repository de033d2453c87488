"""Placement: which GPU each rank of a job gets, so that most bytes stay where bandwidth is.

A job is a box of ranks: tensor, expert, data and pipeline parallel sizes. Tensor groups should lie in one NVLink
domain, gradient rings on equal rails. Ranks are numbered as Megatron-LM numbers them by default: tensor fastest, then
expert, data, pipeline (megatron/core/parallel_state.py, order "tp-cp-ep-dp-pp").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from railwright.node.model import InputError

AXES = ("tensor", "expert", "data", "pipeline")
# Of one GPU in one step: more than any memory holds, and far from where sums of floats lose their meaning.
_MOST_BYTES = 1e18
LEVELS = ("nvlink", "rail", "spine", "cross-rail")
# GB/s one way for each GPU. NVLink 4: 18 links of 25 GB/s each way (NVIDIA H100 white paper). rail: one 400 Gb/s port.
# spine: the same port where the fabric is not oversubscribed. cross-rail: half of it, a judgement: the flow takes a
# second hop over NVLink or another leaf, and shares what it meets there.
RATES = {"nvlink": 450.0, "rail": 50.0, "spine": 49.0, "cross-rail": 25.0}


@dataclass(frozen=True)
class Place:
    """One GPU: its NVLink domain (the node, or a rack of NVL72), node, rail and unit (nodes on the same leaves)."""

    domain: str
    node: str
    index: int
    rail: int | None
    unit: str = ""


@dataclass(frozen=True)
class Split:
    """The sizes, and the bytes of one step: what each GPU puts into one collective of each kind, summed over the step.

    tensor, data: all-reduce. expert: all-to-all. pipeline: to the next stage.
    """

    tensor: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1
    tensor_bytes: float = 0.0
    expert_bytes: float = 0.0
    data_bytes: float = 0.0
    pipeline_bytes: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.tensor, self.expert, self.data, self.pipeline)

    @property
    def ranks(self) -> int:
        return prod(self.sizes)


@dataclass(frozen=True)
class Placement:
    """order: GPU of each rank. crossing: level to bytes of one step, all GPUs together. axes: from the inside out.

    seconds: of one step: the collectives one after the other, each as slow as the rank with the slowest links.
    spanning: tensor groups that lie in more than one NVLink domain.
    """

    order: tuple[Place, ...]
    crossing: dict[str, float]
    seconds: float
    spanning: int
    axes: tuple[str, ...]

    @property
    def cost(self) -> tuple[int, float]:
        """What is least in the best order. Whole tensor groups go first, whatever the bytes: every layer waits for
        their all-reduces, while those of gradients run behind the arithmetic (Megatron-LM, arXiv 2104.04473, 3.2)."""
        return self.spanning, round(self.seconds, 12)


@dataclass(frozen=True)
class Comparison:
    """What a launcher's default order gives, and the best that was found. sentences: for a person."""

    before: Placement
    after: Placement
    sentences: tuple[str, ...]


def place(places: Sequence[Place], split: Split, rates: Mapping[str, float] = RATES) -> Comparison:
    """The best order for these GPUs, in the order of the hostfile, against that order as it stands.

    Raises InputError when the sizes and the GPUs do not fit together.
    """
    _must_fit(places, split)
    before = _judged(tuple(places), split, rates, AXES)
    candidates = [before, *_candidates(places, split, rates)]
    # The order as it stands wins a tie: no change without a gain.
    after = min(candidates, key=lambda one: one.cost)
    return Comparison(before, after, tuple(_sentences(before, after, split)))


def _must_fit(places: Sequence[Place], split: Split) -> None:
    if min(split.sizes) < 1:
        raise InputError(
            "sizes", f"found {split.sizes}", "expected tensor, expert, data and pipeline of at least 1"
        )
    for axis in AXES:
        amount = getattr(split, f"{axis}_bytes")
        if not 0 <= amount <= _MOST_BYTES:
            raise InputError(
                f"{axis} bytes", f"found {amount:g}", f"expected a number from 0 to {_MOST_BYTES:g}"
            )
    if split.ranks != len(places):
        raise InputError(
            "sizes",
            f"{' x '.join(map(str, split.sizes))} is {split.ranks} ranks, and there are {len(places)} GPUs",
            "choose sizes whose product is the number of GPUs, or name the nodes that take part",
        )


def _candidates(places: Sequence[Place], split: Split, rates: Mapping[str, float]) -> Iterator[Placement]:
    """Nodes of a unit together, GPUs of a node by rail; the axes nested in every order."""
    by_rail = sorted(
        places,
        key=lambda gpu: (gpu.unit, gpu.domain, gpu.node, -1 if gpu.rail is None else gpu.rail, gpu.index),
    )
    # To and fro: a ring that runs through whole nodes leaves each on the rail on which it enters the next.
    snaking = [
        gpu for number, node in enumerate(_by_node(by_rail)) for gpu in (node[::-1] if number % 2 else node)
    ]
    for axes in itertools.permutations(AXES):
        yield _judged(_nested(by_rail, split, axes), split, rates, axes)
        yield _judged(_nested(snaking, split, axes), split, rates, axes)


def _by_node(places: Sequence[Place]) -> list[list[Place]]:
    return [list(gpus) for _, gpus in itertools.groupby(places, key=lambda gpu: gpu.node)]


def _nested(places: Sequence[Place], split: Split, axes: Sequence[str]) -> tuple[Place, ...]:
    """Places by rank, when the places are filled with these axes from the inside out."""
    sizes = dict(zip(AXES, split.sizes, strict=True))
    order: list[Place | None] = [None] * len(places)
    for position, gpu in enumerate(places):
        rest, coordinate = position, {}
        for axis in axes:
            rest, coordinate[axis] = divmod(rest, sizes[axis])
        rank = 0
        for axis in reversed(AXES):
            rank = rank * sizes[axis] + coordinate[axis]
        order[rank] = gpu
    return tuple(gpu for gpu in order if gpu is not None)


def _judged(
    order: tuple[Place, ...], split: Split, rates: Mapping[str, float], axes: tuple[str, ...]
) -> Placement:
    crossing = dict.fromkeys(LEVELS, 0.0)
    busy = {axis: [0.0] * len(order) for axis in AXES}
    for axis, one, other, amount in flows(split):
        level = level_of(order[one], order[other])
        crossing[level] += amount
        busy[axis][one] += amount / (rates[level] * 1e9)
    return Placement(order, crossing, sum(map(max, busy.values())), _spanning(order, split), axes)


def _spanning(order: Sequence[Place], split: Split) -> int:
    groups = (order[first : first + split.tensor] for first in range(0, len(order), split.tensor))
    return sum(len({gpu.domain for gpu in group}) > 1 for group in groups)


def flows(split: Split) -> Iterator[tuple[str, int, int, float]]:
    """(axis, from rank, to rank, bytes). In NCCL's rings each rank sends 2(n-1)/n of its bytes to the next one."""
    sizes = split.sizes
    amounts = (split.tensor_bytes, split.expert_bytes, split.data_bytes, split.pipeline_bytes)
    for axis, (size, amount) in enumerate(zip(sizes, amounts, strict=True)):
        if size == 1 or not amount:
            continue
        name = AXES[axis]
        stride = prod(sizes[:axis])
        for rank in range(split.ranks):
            own = rank // stride % size
            first = rank - own * stride
            if axis == 1:
                # all-to-all: an equal share to each of the others
                for other in range(size):
                    if other != own:
                        yield name, rank, first + other * stride, amount / size
            elif axis == 3:
                if own + 1 < size:
                    yield name, rank, rank + stride, amount
                    yield name, rank + stride, rank, amount
            else:
                yield name, rank, first + (own + 1) % size * stride, amount * 2 * (size - 1) / size


def level_of(one: Place, other: Place) -> str:
    """What the bytes between two GPUs have to cross."""
    if one.domain == other.domain:
        return "nvlink"
    if one.rail is None or one.rail != other.rail:
        return "cross-rail"
    return "rail" if one.unit == other.unit else "spine"


def _sentences(before: Placement, after: Placement, split: Split) -> Iterator[str]:
    filled = f"fill {', then '.join(after.axes)}"
    if after is before:
        yield "The launcher's order is as good as any that was tried: no change needed."
    elif after.spanning < before.spanning:
        kept = before.spanning - after.spanning
        yield f"Ranks in another order keep {kept} more tensor groups in one NVLink domain: {filled}."
    else:
        saved = 1 - after.seconds / before.seconds if before.seconds else 0.0
        yield f"Ranks in another order spend {saved:.0%} less time in communication: {filled}."
    for level in LEVELS:
        if before.crossing[level] or after.crossing[level]:
            yield f"{level}: {before.crossing[level] / 1e9:.3f} GB before, {after.crossing[level] / 1e9:.3f} GB after."
    if after.spanning:
        yield f"{after.spanning} tensor groups span NVLink domains: choose a smaller tensor size."
