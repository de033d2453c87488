"""Arista EOS: lines for a configuration session. A qos profile for each speed, attached as a service profile.

Loading adds to what is there, so what the contract does not have is taken away by its own line, where EOS has one.
"""

from __future__ import annotations

from ..contract import Contract
from ..mend import LARGEST_MTU
from ..points import EOS_STRICT_UNSTATED

LOAD = (
    "configure session railwright",
    "copy terminal: session-config (paste {file})",
    "show session-config diffs",
    "commit timer 00:05:00, look, then commit",
)
VERIFY = (
    "show qos maps",
    "show qos profile summary",
    "show qos interfaces {port} trust",
    "show qos interfaces {port} ecn",
    "show priority-flow-control",
    "show priority-flow-control counters",
    "show qos interfaces {port} ecn counters queue",
)
_TIMES = "the watchdog's times, {times}: their lines depend on the release"


def render(contract: Contract, name: str) -> str:
    """The lines, in the order in which EOS prints them."""
    switch = contract.switches[name]
    lines = [
        "! Railwright: the lossless contract; loading it again changes nothing.",
        f"! What is not in this file stands in {name}.commands.txt.",
    ]
    for one in contract.classes.values():
        lines += [f"qos map dscp {point} to traffic-class {one.prio}" for point in sorted(one.dscp)]
    rest = _rest(contract)
    # EOS would put what is left into classes by the upper three bits, most of them with strict queues.
    for block in range(0, 64, 8):
        points = [point for point in range(block, block + 8) if point not in contract.prio_of]
        if points:
            lines.append(f"qos map dscp {' '.join(map(str, points))} to traffic-class {rest}")
    used = [*(one.prio for one in contract.classes.values()), rest]
    lines += [f"qos map traffic-class {prio} to tx-queue {prio}" for prio in used]
    for speed in sorted({contract.speed(plug) for plug in switch.ports.values()}):
        lines += ["!", *_profile(contract, switch.tx_queue, speed)]
    for port, plug in switch.ports.items():
        lines += [
            "!",
            f"interface {port}",
            f"   mtu {min(contract.switch_mtu, LARGEST_MTU['eos'])}",
            "   flowcontrol send off",
            "   flowcontrol receive off",
            "   qos trust dscp",
            f"   service-profile RAILWRIGHT-ROCE-{contract.speed(plug)}G",
        ]
        for one in contract.lossless.values():
            lines += [f"   {switch.tx_queue} {one.prio}", "      random-detect ecn count"]
    return "\n".join([*lines, "!"]) + "\n"


def _rest(contract: Contract) -> int:
    """The class of everything else: 1, where EOS puts what is not marked, if no class of the contract has it."""
    return 1 if all(one.prio != 1 for one in contract.classes.values()) else contract.default_prio


def missing(contract: Contract, name: str) -> tuple[str, ...]:
    """What of the contract is not in the lines."""
    used = {one.prio for one in contract.classes.values()} | {_rest(contract)}
    unused = ", ".join(str(queue) for queue in range(8) if queue not in used)
    return (
        "headroom by cable length: EOS takes what the chip has; compare `show priority-flow-control` with the bound",
        *([_TIMES.format(times=contract.watchdog.times)] if contract.watchdog.enabled else []),
        *(
            [f"queues {unused}: they say nothing and so are strict; no DSCP leads there"]
            if unused and EOS_STRICT_UNSTATED
            else []
        ),
        "what an earlier contract left in these profiles and ports: `priority strict`, `bandwidth percent` and "
        "`random-detect ecn` of queues that are no class's now, and ports that left the contract",
    )


def _profile(contract: Contract, queue: str, speed: int) -> list[str]:
    ecn = contract.marking(speed)
    lines = [f"qos profile RAILWRIGHT-ROCE-{speed}G", "   qos trust dscp", "   priority-flow-control on"]
    lossless = {one.prio for one in contract.lossless.values()}
    for prio in range(8):
        lines.append(f"   {'' if prio in lossless else 'no '}priority-flow-control priority {prio} no-drop")
    lines.append(f"   {'' if contract.watchdog.enabled else 'no '}priority-flow-control pause watchdog")
    shares = contract.shares
    lines += ["   !", f"   {queue} {_rest(contract)}", "      no priority"]
    lines.append(f"      bandwidth percent {shares[contract.default_prio]}")
    for one in sorted(contract.classes.values(), key=lambda one: one.prio):
        lines += ["   !", f"   {queue} {one.prio}"]
        if one.strict:
            lines.append("      priority strict")
        else:
            lines += ["      no priority", f"      bandwidth percent {shares[one.prio]}"]
        if one.lossless:
            lines.append(
                f"      random-detect ecn minimum-threshold {ecn.min_bytes} bytes maximum-threshold {ecn.max_bytes} "
                f"bytes max-mark-probability {ecn.probability_percent} weight 0"
            )
    return lines
