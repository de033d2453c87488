"""The bound of a plan and its proof in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from railwright.node.model import Bound, Certificate

from .numbers import count, rate


@dataclass(frozen=True)
class Gauge:
    """One rate to compare. share: part of the largest rate shown, 0 to 100; None is unknown. main: the plan's own."""

    label: str
    gbytes: float | None
    share: float | None
    main: bool = False


def gauges(bound: Bound) -> tuple[Gauge, ...]:
    """The plan's rate beside its bound and beside what simpler rules would get."""
    rows = (
        ("this plan", bound.of_plan),
        ("this plan, believed links only", bound.credible_gbytes),
        ("upper bound, several NICs per GPU", bound.per_gpu_gbytes),
        ("GPU k with NIC k", bound.index_pairing_gbytes),
        ("nearest NIC, first on ties", bound.nearest_gbytes),
        ("NCCL on its own", bound.nccl_gbytes),
    )
    if all(value is None for _, value in rows):
        return ()
    largest = max((value for _, value in rows if value is not None), default=0.0)
    return tuple(
        Gauge(
            label,
            value,
            None if value is None else round(100 * value / largest, 1) if largest > 0 else 0.0,
            number == 0,
        )
        for number, (label, value) in enumerate(rows)
    )


def proof(bound: Bound) -> str:
    """Why no other assignment is better, in one or two sentences; "" where the rate itself is not known."""
    if bound.certificate is not None:
        return in_words(bound.certificate)
    if bound.optimal:
        return "No larger rate is possible: no link of this node lets one through."
    if bound.optimal is False:
        return "Not shown to be the best: the plan carries no proof."
    return "" if bound.verdict else "Unknown: this witness does not tell how fast the links are."


def link_ends(link: str, names: dict[str, str]) -> str:
    """A link of the cut as the planner writes it ("0000:0f:00.0 -> 0000:08:00.0"), with the names of its ends."""
    return " to ".join(names.get(end, end) for end in link.split(" -> "))


def in_words(certificate: Certificate) -> str:
    """The cut as a sentence."""
    number = len(certificate.links)
    these = {0: "the links of this node admit", 1: "this link admits"}.get(
        number, f"these {number} links admit"
    )
    return (
        f"No assignment does better. The next rate up is {rate(certificate.rate_gbytes)} GB/s, "
        f"and at that rate {these} only {count(certificate.admits, 'flow')} for {count(certificate.gpus, 'GPU')}."
    )
