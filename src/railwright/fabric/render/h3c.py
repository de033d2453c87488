"""H3C Comware: PFC and trust of the leaf ports. ECN, strict queues and headroom differ from model to model and are not
rendered: `missing` says so, and so does the file."""

from __future__ import annotations

from ..contract import Contract

LOAD = ("system-view, then paste {file}", "save force")
VERIFY = ("display priority-flow-control interface {port}", "display qos trust interface {port}")
_MISSING = (
    "ECN marking of the lossless queue",
    "the strict queue of congestion notifications",
    "headroom by cable length",
    "the map from DSCP to local precedence, where it is not the upper three bits",
    "the PFC watchdog",
    "MTU, 802.3x pause off, and the shares of bandwidth",
    "what an earlier contract left: no-drop of other priorities, and ports that left the contract",
)


def missing(contract: Contract, name: str) -> tuple[str, ...]:
    """What of the contract is not in the lines: the same for every contract."""
    return _MISSING


def render(contract: Contract, name: str) -> str:
    """The lines for the leaf ports."""
    prios = " ".join(str(one.prio) for one in contract.lossless.values())
    lines = ["# Railwright: a part of the lossless contract. Not in this file, to be done by hand:"]
    lines += [f"#   {what}" for what in missing(contract, name)]
    for port in contract.switches[name].ports:
        lines += [
            f"interface {port}",
            " qos trust dscp",
            " priority-flow-control enable",
            f" priority-flow-control no-drop dot1p {prios}",
            "#",
        ]
    return "\n".join(lines) + "\n"
