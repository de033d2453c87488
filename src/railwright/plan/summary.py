"""A plan in a few sentences, most important first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from ..node.model import Bound, Finding, LoadedLink, PlannedGpu, PlannedNic

_COUNT_WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}


def summarise(
    gpus: Sequence[PlannedGpu],
    nics: Sequence[PlannedNic],
    rates: Sequence[Optional[int]],
    bound: Bound,
    links: Sequence[LoadedLink],
    findings: Sequence[Finding],
) -> tuple[str, ...]:
    """rates: Mb/s of the rail cards, None where unknown."""
    sentences = [_who_has_what(gpus, nics, rates), *_rate(bound), bound.verdict, *_bottlenecks(links)]
    sentences += [*_apart(nics), *_wrong(findings)]
    return tuple(sentence for sentence in sentences if sentence)


def refused(refusals: Sequence[Finding]) -> tuple[str, ...]:
    """The refusals as sentences."""
    return tuple(f"Refused: {refusal.why} ({refusal.where}). Do: {refusal.remedy}." for refusal in refusals)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _who_has_what(
    gpus: Sequence[PlannedGpu], nics: Sequence[PlannedNic], rates: Sequence[Optional[int]]
) -> str:
    rails = [nic for nic in nics if nic.role == "rail"]
    if not rails:
        return f"{_plural(len(gpus), 'GPU')}, no rail: no NIC of this node can carry GPU traffic."
    served = Counter(gpu.rail for gpu in gpus if gpu.rail is not None)
    words = Counter(gpu.path for gpu in gpus if gpu.path is not None)
    rate = rates[0] if len(set(rates)) == 1 else None
    speed = "" if rate is None else f"{rate / 1000:g} Gb/s "
    paths = ", ".join(word if len(words) == 1 else f"{count} {word}" for word, count in words.items())
    head = f"{_plural(len(gpus), 'GPU')}, {_plural(len(rails), 'rail')}: "
    alone = all(count == 1 for count in served.values())
    if len(rails) > len(served) and served and len(served) == len(gpus):
        each = len(rails) // len(served)
        return f"{head}every GPU has {_COUNT_WORDS.get(each, each)} {speed}NICs of its own ({paths})."
    if alone and len(served) == len(gpus):
        place = " behind the same switch" if set(words) == {"PIX"} else ""
        return f"{head}every GPU has its own {speed}NIC{place} ({paths})."
    most = max(served.values(), default=0)
    without = sum(1 for gpu in gpus if gpu.rail is None)
    tail = f"; {_plural(without, 'GPU')} without a rail" if without else ""
    shared = (
        f"up to {_COUNT_WORDS.get(most, most)} GPUs share a {speed}NIC"
        if most > 1
        else f"each has its own {speed}NIC"
    )
    return f"{head}{shared} ({paths}){tail}."


def _rate(bound: Bound) -> Iterator[str]:
    rate = bound.achieved_gbytes
    if rate is None:
        return
    reached = bound.of_plan
    if reached is not None and reached < rate:
        yield (
            f"With all GPUs sending, each is sure of {reached:.4g} GB/s; another pairing gives {rate:.4g}, but here "
            "the shortest way counts first."
        )
    else:
        proof = ", and no other pairing gives more" if bound.optimal else ""
        yield f"With all GPUs sending, each is sure of {rate:.4g} GB/s{proof}."
    if bound.credible_gbytes is not None and bound.credible_gbytes > rate:
        yield (
            f"Some links state rates that cannot be true (virtual bridges, idle GPUs); without them it is "
            f"{bound.credible_gbytes:.4g} GB/s."
        )
    if bound.alltoall_gbytes is not None:
        yield f"In an all-to-all over all rails each gets {bound.alltoall_gbytes:.4g} GB/s."
    if bound.per_gpu_gbytes is not None and bound.per_gpu_gbytes > rate * 1.001:
        yield f"Spread over several NICs it could be {bound.per_gpu_gbytes:.4g} GB/s at most."


def _bottlenecks(links: Sequence[LoadedLink]) -> Iterator[str]:
    tight = [link for link in links if link.bottleneck and link.believed]
    if not tight:
        return
    worst = max(tight, key=lambda link: (len(link.flows), link.kind != "port"))
    if len(worst.flows) == 1:
        yield f"What limits it: PCIe links of {worst.capacity_gbytes:.4g} GB/s; the NICs could send more."
        return
    alike = len([link for link in tight if len(link.flows) == len(worst.flows)]) - 1
    yield (
        f"What limits it: {worst.a} to {worst.b}, {worst.capacity_gbytes:.4g} GB/s, carries {', '.join(worst.flows)}"
        + (f" (and {alike} more like it)." if alike else ".")
    )


def _apart(nics: Sequence[PlannedNic]) -> Iterator[str]:
    kinds = Counter(nic.role for nic in nics if nic.role not in {"rail", "second-port"})
    if kinds:
        words = ", ".join(f"{count} {role}" for role, count in sorted(kinds.items()))
        yield f"Other NIC ports, kept out of NCCL's list: {words}."


def _wrong(findings: Sequence[Finding]) -> Iterator[str]:
    open_ = [finding for finding in findings if finding.accepted is None and finding.severity != "info"]
    if open_:
        first = open_[0]
        more = f" ({len(open_) - 1} more)" if len(open_) > 1 else ""
        yield f"Look at: {first.why}{more}."
