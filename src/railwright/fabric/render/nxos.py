"""Cisco NX-OS (Nexus 9000): the three kinds of QoS policies and the leaf ports.

A strict class takes qos-group 7 and `priority level 1` as Cisco's AI/ML blueprint has it, whatever its priority is on
the host: the group is the switch's own.
"""

from __future__ import annotations

from railwright.node.model import InputError, TrafficClass

from ..contract import Contract
from ..mend import LARGEST_MTU, strict_class

LOAD = ("configure session railwright", "(paste {file})", "verify", "commit")
VERIFY = (
    "show policy-map system type network-qos",
    "show policy-map interface {port}",
    "show queuing interface {port}",
    "show interface {port} priority-flow-control",
    "show interface priority-flow-control",
)

# Of a class-map's name, in characters (Nexus 9000 QoS configuration guide, Configuring Classification).
_LONGEST_NAME = 40
_TIMES = "the watchdog's times, {times}: their lines depend on the release"


def render(contract: Contract, name: str) -> str:
    """The lines. Raises InputError for more than one strict class, because Nexus has one queue of priority level 1, and
    for class names that would be one or too long there."""
    switch = contract.switches[name]
    strict = [key for key, one in contract.classes.items() if one.strict]
    if len(strict) > 1:
        raise InputError(
            f"fabric.switches.{name}",
            f"NX-OS has one strict queue here, the contract has {len(strict)} strict classes: {', '.join(strict)}",
            "make them one class with all their code points",
        )
    groups = [_group(one) for one in contract.classes.values()]
    if len(set(groups)) != len(groups) or 0 in groups:
        raise InputError(
            f"fabric.switches.{name}",
            f"the classes would take the qos-groups {', '.join(map(str, groups))}",
            "on NX-OS group 0 is everything else's and 7 the strict class's: give the classes other priorities",
        )
    _check_names(contract, name)
    lines = [
        "! Railwright: the lossless contract; loading it again changes nothing.",
        f"! What is not in this file stands in {name}.commands.txt.",
    ]
    for key, one in contract.classes.items():
        points = ",".join(map(str, sorted(one.dscp)))
        lines += [f"class-map type qos match-any {_class(key)}", f"  match dscp {points}"]
    lines.append("policy-map type qos RAILWRIGHT-IN")
    for key, one in contract.classes.items():
        lines += [f"  class {_class(key)}", f"    set qos-group {_group(one)}"]
    lines += ["  class class-default", "    set qos-group 0"]
    lines += _network(contract)
    for speed in sorted({contract.speed(plug) for plug in switch.ports.values()}):
        lines += _queuing(contract, speed)
    lines += ["system qos", "  service-policy type network-qos RAILWRIGHT-NETWORK"]
    for port, plug in switch.ports.items():
        lines += [
            f"interface {port}",
            f"  mtu {min(contract.switch_mtu, LARGEST_MTU['nxos'])}",
            "  flowcontrol receive off",
            "  flowcontrol send off",
            "  priority-flow-control mode on",
            f"  priority-flow-control watch-dog-interval {'on' if contract.watchdog.enabled else 'off'}",
            "  service-policy type qos input RAILWRIGHT-IN",
            f"  service-policy type queuing output RAILWRIGHT-OUT-{contract.speed(plug)}G",
        ]
    return "\n".join(lines) + "\n"


def missing(contract: Contract, name: str) -> tuple[str, ...]:
    """What of the contract is not in the lines."""
    lossless = {_group(one) for one in contract.lossless.values()}
    others = ", ".join(str(group) for group in range(1, 8) if group not in lossless)
    return (
        "headroom by cable length: `pause buffer-size` of an input queuing policy, which cables beyond 100 m need",
        *([_TIMES.format(times=contract.watchdog.times)] if contract.watchdog.enabled else []),
        "what an earlier contract left, for lines only add: `pause pfc-cos` in RAILWRIGHT-NETWORK and `random-detect` "
        f"in RAILWRIGHT-OUT-* of the groups {others}, `match dscp` lines of other code points, class-maps RAILWRIGHT-* "
        "that are no class's now, and ports that left the contract",
    )


def _check_names(contract: Contract, switch: str) -> None:
    taken: dict[str, str] = {}
    for key in contract.classes:
        name = _class(key)
        other = taken.setdefault(name, key)
        if other != key:
            raise InputError(
                f"fabric.switches.{switch}",
                f"the classes {other} and {key} would be one class-map on NX-OS, {name}",
                "give them names that differ by more than case and . : -",
            )
        if len(name) > _LONGEST_NAME:
            raise InputError(
                f"fabric.switches.{switch}",
                f"the class {key} would be the class-map {name}, {len(name)} characters; NX-OS takes {_LONGEST_NAME}",
                f"give it a name of at most {_LONGEST_NAME - len(_class(''))} characters",
            )


def _class(name: str) -> str:
    return "RAILWRIGHT-" + name.upper().replace(".", "-").replace(":", "-")


def _group(one: TrafficClass) -> int:
    return strict_class("nxos", one.prio) if one.strict else one.prio


def _network(contract: Contract) -> list[str]:
    mtu = min(contract.switch_mtu, LARGEST_MTU["nxos"])
    lines = ["policy-map type network-qos RAILWRIGHT-NETWORK"]
    for one in contract.classes.values():
        lines += [f"  class type network-qos c-8q-nq{_group(one)}", f"    mtu {mtu}"]
        if one.lossless:
            lines.append(f"    pause pfc-cos {one.prio}")
    return [*lines, "  class type network-qos c-8q-nq-default", f"    mtu {mtu}"]


def _queuing(contract: Contract, speed: int) -> list[str]:
    ecn = contract.marking(speed)
    classes = {_group(one): one for one in contract.classes.values()}
    lines = [f"policy-map type queuing RAILWRIGHT-OUT-{speed}G"]
    for group in range(7, 0, -1):
        lines.append(f"  class type queuing c-out-8q-q{group}")
        one = classes.get(group)
        if one is not None and one.strict:
            lines.append("    priority level 1")
            continue
        share = contract.shares[one.prio] if one is not None else 0
        lines.append(f"    bandwidth remaining percent {share}")
        if one is not None and one.lossless:
            lines.append(
                f"    random-detect minimum-threshold {ecn.min_bytes // 1000} kbytes maximum-threshold "
                f"{ecn.max_bytes // 1000} kbytes drop-probability {ecn.probability_percent} weight 0 ecn"
            )
    return [
        *lines,
        "  class type queuing c-out-8q-q-default",
        f"    bandwidth remaining percent {contract.shares[contract.default_prio]}",
    ]
