"""The proof by traffic that a DSCP arrives in its priority, whatever configuration and DCBX say.

Send packets with the DSCP of a class (`ib_write_bw --tclass=104` for 26) and take the receiver's `ethtool -S` before
and after: at least 99 % of what came has to have come in the class's priority. It finds a DSCP that the fabric
rewrites, too. The sender's own counters tell whether what leaves is marked at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from railwright.node.model import Finding, InputError

from .contract import Contract

# Management traffic shares the port; what a NIC counts in other priorities stays below this.
PASS = 0.99
# Fewer packets than a second of a slow sender prove nothing.
FEWEST = 1000
_COUNTER = re.compile(r"^\s*([rt]x_prio[0-7]_packets): (\d+)\s*$", re.MULTILINE)
RECEIVED, SENT = "rx", "tx"
_VERBS = {RECEIVED: "came", SENT: "left"}
_CAUSES = {
    RECEIVED: "the sender does not mark them, or a switch on the way maps or rewrites them",
    SENT: "the program does not mark them, or this host maps the code point elsewhere",
}


@dataclass(frozen=True)
class Probe:
    """One probe. share: of the packets that came (or left) in the wanted priority; None when too little is known.

    by_prio: packets in each priority. finding: None when the proof holds.
    """

    dscp: int
    prio: int
    share: float | None
    by_prio: Mapping[int, int]
    finding: Finding | None


def counters(text: str, where: str, way: str = RECEIVED) -> dict[str, int]:
    """The counters rx_prioN_packets of `ethtool -S IF`, or tx_prioN_packets (SENT). Raises InputError when there is
    none."""
    found = {match[1]: int(match[2]) for match in _COUNTER.finditer(text) if match[1].startswith(way)}
    if not found:
        raise InputError(where, f"holds no counter {way}_prioN_packets", "give the output of `ethtool -S IF`")
    return found


def dscp_probe(
    contract: Contract,
    dscp: int,
    before: Mapping[str, int],
    after: Mapping[str, int],
    where: str,
    way: str = RECEIVED,
) -> Probe:
    """The verdict on packets with `dscp` from the receiver's counters before and after, or from the sender's (SENT).

    Raises InputError for a code point that no class selects.
    """
    prio = contract.prio_of.get(dscp)
    if prio is None:
        raise InputError(
            "dscp", f"{dscp} is in no class", f"one of {', '.join(map(str, sorted(contract.prio_of)))}"
        )
    names = {number: f"{way}_prio{number}_packets" for number in range(8)}
    came = {
        number: after[name] - before[name]
        for number, name in names.items()
        if name in before and name in after
    }
    total = sum(came.values())
    if prio not in came or total < FEWEST or min(came.values()) < 0:
        why = (
            f"the NIC counts nothing in priority {prio}"
            if prio not in came
            else "a counter went backwards: the driver was loaded anew"
            if min(came.values()) < 0
            else f"{total} packets {_VERBS[way]}, {FEWEST} are needed"
        )
        finding = Finding("fabric.probe", "info", where, f"not verified: {why}", "send more, and read again")
        return Probe(dscp, prio, None, came, finding)
    share = came[prio] / total
    if share >= PASS:
        return Probe(dscp, prio, share, came, None)
    most = max(came, key=lambda number: came[number])
    return Probe(
        dscp,
        prio,
        share,
        came,
        Finding(
            "fabric.probe",
            "error",
            where,
            f"of {total} packets with DSCP {dscp} {share:.1%} {_VERBS[way]} in priority {prio}, most in {most}: "
            + _CAUSES[way],
            "compare NCCL_IB_TC and the DSCP maps of host and switches",
        ),
    )
