"""A host's transmit scheduling, `dcb ets`, against the contract: strict notifications, a share for the data, and no
traffic class with two of the contract's classes in it."""

from __future__ import annotations

from collections.abc import Iterable

from railwright.node.model import Finding

from .contract import Contract
from .hosts import Dcb


def scheduling_findings(contract: Contract, dcb: Dcb, where: str) -> Iterable[Finding]:
    """What differs; nothing for a part that is not known."""
    if dcb.prio_tc is None:
        return
    yield from _shared(contract, dcb.prio_tc, where)
    if dcb.tc_strict is not None:
        yield from _strict(contract, dcb.prio_tc, dcb.tc_strict, where)
    for name, one in contract.lossless.items():
        tc = dcb.prio_tc[one.prio]
        # A class that is not scheduled by shares has none, whatever number stands there.
        if (dcb.tc_share or {}).get(tc) == 0:
            yield Finding(
                "fabric.host_share",
                "error",
                where,
                f"priority {one.prio} ({name}) is in traffic class {tc} with a share of 0 %: under load the data waits "
                "for everything else",
                f"`dcb ets set dev IF tc-bw {tc}:{contract.shares[one.prio]} ...`; shares of ets classes sum to 100",
            )


def scheduling_known(dcb: Dcb) -> bool:
    """Whether everything that is judged here was read."""
    return None not in (dcb.prio_tc, dcb.tc_strict, dcb.tc_share)


def _strict(
    contract: Contract, prio_tc: tuple[int, ...], strict: frozenset[int], where: str
) -> Iterable[Finding]:
    for name, one in contract.classes.items():
        tc = prio_tc[one.prio]
        if one.strict and tc not in strict:
            yield Finding(
                "fabric.host_strict",
                "warning",
                where,
                f"priority {one.prio} ({name}) is in traffic class {tc}, which is not strict on the host: "
                "notifications wait behind the data that they are to slow down",
                f"`dcb ets set dev IF tc-tsa {tc}:strict`",
            )


def _shared(contract: Contract, prio_tc: tuple[int, ...], where: str) -> Iterable[Finding]:
    names = {one.prio: name for name, one in contract.classes.items()}
    names[contract.default_prio] = "everything else"
    for tc in range(8):
        inside = [prio for prio in sorted(names) if prio_tc[prio] == tc]
        if len(inside) > 1:
            told = " and ".join(f"{prio} ({names[prio]})" for prio in inside)
            pairs = " ".join(f"{prio}:{prio}" for prio in inside)
            yield Finding(
                "fabric.host_shared",
                "error" if any(prio in _lossless(contract) for prio in inside) else "warning",
                where,
                f"priorities {told} share traffic class {tc} on the host: what pauses or delays one stops the other",
                f"`dcb ets set dev IF prio-tc {pairs}`, with no other priority in these traffic classes",
            )


def _lossless(contract: Contract) -> set[int]:
    return {one.prio for one in contract.lossless.values()}
