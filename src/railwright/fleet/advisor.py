"""Advisor: which splits of a model fit into this fleet's memory, ordered by the time that is not arithmetic.

Every figure is worked out from the formulas named at its place, and from assumptions that `ASSUMPTIONS` states. None
was measured here: the order of the splits is worth more than the seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from railwright.node.model import InputError

from .placement import RATES

ASSUMPTIONS = (
    "Weights and gradients 2 bytes a parameter, fp32 master weights and Adam's two moments 12 bytes, the latter "
    "divided over data parallel ranks (ZeRO-1; Rajbhandari et al., arXiv 1910.02054, section 3).",
    "Activations with sequence parallelism and selective recomputation: 34 s b h / t bytes a layer (Korthikanti "
    "et al., arXiv 2205.05198, equation 4); the first stage of 1F1B holds as many micro-batches as there are stages.",
    "Tensor parallel: four all-reduces of 2 s b h bytes a layer and micro-batch (Shoeybi et al., arXiv 1909.08053, "
    "section 3). Rings move 2 (n-1)/n of the bytes.",
    "Data parallel: one all-reduce of 2-byte gradients a step, not hidden behind arithmetic: an upper bound.",
    "Pipeline: 2 s b h / t bytes to the next stage and back for each micro-batch; bubble (p-1)/m of the arithmetic "
    "(Narayanan et al., arXiv 2104.04473, section 2.2).",
    "Experts: four all-to-alls of k 2 s b h bytes a layer and micro-batch.",
    "Arithmetic: 6 operations a parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), at the given share "
    "of the GPU's peak.",
    "Memory kept free for NCCL, CUDA and fragmentation: 10 %, a judgement.",
)
_FREE = 0.10
# Far above any machine and any model; splits are tried one by one, so these bound the time.
_MOST = 1e30
_MOST_WHOLE = 10**12
_MOST_DIVIDED = 10**5
_GIB = 1 << 30


@dataclass(frozen=True)
class Model:
    """A transformer. parameters: all of them. active: those that a token meets (less than all where there are experts).

    sequence: tokens. batch: sequences of one step over all GPUs. micro: sequences of one micro-batch.
    """

    parameters: float
    layers: int
    hidden: int
    sequence: int
    batch: int
    micro: int = 1
    experts: int = 1
    chosen: int = 1
    active: float | None = None


@dataclass(frozen=True)
class Fleet:
    """The GPUs. domain: GPUs that share NVLink. memory: bytes of each. peak: dense bf16 operations a second.

    share: of the peak that arithmetic reaches (0.4: common for large models, a judgement).
    """

    gpus: int
    domain: int
    memory: float
    peak: float = 989e12
    share: float = 0.4
    rates: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Advice:
    """One split with what it needs: bytes of memory a GPU, seconds of one step, and GB that a GPU sends in it."""

    tensor: int
    pipeline: int
    data: int
    expert: int
    memory: float
    fits: bool
    arithmetic: float
    bubble: float
    tensor_seconds: float
    pipeline_seconds: float
    data_seconds: float
    expert_seconds: float

    @property
    def lost(self) -> float:
        """Seconds of one step that are not arithmetic."""
        return (
            self.bubble
            + self.tensor_seconds
            + self.pipeline_seconds
            + self.data_seconds
            + self.expert_seconds
        )

    @property
    def step(self) -> float:
        """Seconds of one step."""
        return self.arithmetic + self.lost


def advise(model: Model, fleet: Fleet) -> tuple[Advice, ...]:
    """Splits that fit, the fastest first; () where none does. Raises InputError for sizes that mean nothing."""
    return tuple(sorted((one for one in every_split(model, fleet) if one.fits), key=_worth))


def _worth(one: Advice) -> tuple[float, int, int]:
    return (round(one.step, 9), one.tensor * one.pipeline, one.tensor)


def every_split(model: Model, fleet: Fleet) -> Iterator[Advice]:
    """All splits into whole numbers, whether they fit or not."""
    _must_be_sound(model, fleet)
    for tensor in _divisors(fleet.domain):
        if model.hidden % tensor or fleet.gpus % tensor:
            continue
        for pipeline in _divisors(model.layers):
            if fleet.gpus % (tensor * pipeline):
                continue
            data = fleet.gpus // (tensor * pipeline)
            if model.batch % (data * model.micro):
                continue
            for expert in _divisors(model.experts):
                if data % expert == 0:
                    yield _judged(model, fleet, tensor, pipeline, data, expert)


def _must_be_sound(model: Model, fleet: Fleet) -> None:
    sizes = {**vars(model), **{name: value for name, value in vars(fleet).items() if name != "rates"}}
    for name, value in sizes.items():
        most = (
            _MOST_DIVIDED
            if name in ("layers", "experts", "domain")
            else _MOST_WHOLE
            if isinstance(value, int)
            else _MOST
        )
        if value is not None and not 0 < value <= most:
            raise InputError(name, f"found {value}"[:40], f"expected a number above 0 and at most {most:g}")
    if fleet.share > 1:
        raise InputError("share", f"found {fleet.share:g}", "expected a part of the peak: at most 1")
    _experts_must_be_sound(model)
    if fleet.gpus % fleet.domain and fleet.gpus > fleet.domain:
        raise InputError(
            "gpus", f"{fleet.gpus} GPUs are not whole domains of {fleet.domain}", "name nodes of one shape"
        )


def _experts_must_be_sound(model: Model) -> None:
    if model.chosen > model.experts:
        raise InputError(
            "chosen",
            f"{model.chosen} of {model.experts} experts",
            "a token cannot choose more than there are",
        )
    if model.active is None:
        return
    if model.experts == 1:
        raise InputError("active", "given for a model without experts", "leave it out, or give experts")
    # A token meets all that is shared, and of what belongs to experts the part that it chooses.
    least = model.parameters * model.chosen / model.experts
    if not least <= model.active <= model.parameters:
        raise InputError(
            "active",
            f"found {model.active:.6g}",
            f"with {model.chosen} of {model.experts} experts a token meets {least:.6g} to {model.parameters:.6g}",
        )


def _divisors(number: int) -> list[int]:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _judged(model: Model, fleet: Fleet, tensor: int, pipeline: int, data: int, expert: int) -> Advice:
    rates = {level: rate * 1e9 for level, rate in (fleet.rates or RATES).items()}
    batches = model.batch // (data * model.micro)
    layers = model.layers / pipeline
    token_bytes = 2.0 * model.sequence * model.micro * model.hidden
    memory = memory_bytes(model, tensor, pipeline, data, expert)
    active = model.active if model.active is not None else model.parameters
    arithmetic = 6 * active * model.batch * model.sequence / (fleet.gpus * fleet.peak * fleet.share)
    own = _own_parameters(model, tensor, pipeline, expert)
    return Advice(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=expert,
        memory=memory,
        fits=memory <= fleet.memory * (1 - _FREE),
        arithmetic=arithmetic,
        bubble=arithmetic * (pipeline - 1) / batches,
        tensor_seconds=_ring(tensor) * 4 * token_bytes * layers * batches / rates["nvlink"],
        pipeline_seconds=(2 * token_bytes / tensor * batches / rates["rail"]) if pipeline > 1 else 0.0,
        data_seconds=_ring(data)
        * 2
        * own
        / rates["nvlink" if tensor * pipeline * data <= fleet.domain else "rail"],
        expert_seconds=4
        * model.chosen
        * token_bytes
        * layers
        * batches
        * (expert - 1)
        / expert
        / rates["nvlink" if tensor * expert <= fleet.domain else "rail"],
    )


def _own_parameters(model: Model, tensor: int, pipeline: int, expert: int) -> float:
    """Parameters of one GPU: what belongs to experts is divided over expert parallel ranks besides."""
    if model.experts == 1 or model.active is None:
        return model.parameters / (tensor * pipeline)
    # Of all experts a token meets `chosen`, so what is not met is (1 - chosen/experts) of the experts' parameters.
    shared = 1 - model.chosen / model.experts
    of_experts = (model.parameters - model.active) / shared if shared else 0.0
    return ((model.parameters - of_experts) + of_experts / expert) / (tensor * pipeline)


def memory_bytes(model: Model, tensor: int, pipeline: int, data: int, expert: int = 1) -> float:
    """Bytes of one GPU of the first stage, which holds most."""
    own = _own_parameters(model, tensor, pipeline, expert)
    activations = (
        34.0 * model.sequence * model.micro * model.hidden / tensor * (model.layers / pipeline) * pipeline
    )
    return own * (2 + 2 + 12 / data) + activations


def _ring(size: int) -> float:
    return 2 * (size - 1) / size


def gib(amount: float) -> float:
    """Bytes as GiB."""
    return amount / _GIB
