"""NVIDIA Cumulus Linux: an NVUE patch in YAML (Cumulus Linux 5.9 user guide, Quality of Service)."""

from __future__ import annotations

import re
from typing import Any

import yaml

from railwright.node.model import InputError

from ..contract import Contract
from ..mend import LARGEST_MTU

LOAD = ("nv config patch {file}", "nv config diff", "nv config apply")
VERIFY = (
    "nv show qos roce",
    "nv show qos mapping default-global dscp",
    "nv show qos pfc default-global",
    "nv show qos congestion-control default-global",
    "nv show qos egress-scheduler default-global",
    "nv show interface {port} qos roce status",
    "nv show interface {port} qos roce counters",
)
_PROFILE = "default-global"
_TIMES = "the watchdog's times, {times}: `nv set qos pfc-watchdog polling-interval` and `robustness` hold for all ports"


def render(contract: Contract, name: str) -> str:
    """The patch. Raises InputError where a switch mixes speeds: NVUE's ECN thresholds here are the whole switch's."""
    switch = contract.switches[name]
    speeds = sorted({contract.speed(plug) for plug in switch.ports.values()})
    if len({contract.marking(speed) for speed in speeds}) > 1:
        raise InputError(
            f"fabric.switches.{name}",
            f"has ports of {' and '.join(f'{speed}G' for speed in speeds)} with different ECN thresholds",
            "state one threshold for these speeds in fabric.ecn: the rendered profile holds for the whole switch",
        )
    lossless = list(contract.lossless.values())
    ecn = contract.marking(speeds[0])
    queues = {one.prio: one.prio for one in contract.classes.values()}
    qos: dict[str, Any] = {
        "roce": {"enable": "on", "mode": "lossless"},
        "mapping": {
            _PROFILE: {
                "trust": "l3",
                "dscp": {
                    str(point): {"switch-priority": prio} for point, prio in sorted(_dscp(contract).items())
                },
            }
        },
        "egress-queue-mapping": {
            _PROFILE: {
                "switch-priority": {
                    str(prio): {"traffic-class": queues.get(prio, contract.default_prio)} for prio in range(8)
                }
            }
        },
        "pfc": {
            _PROFILE: {
                "switch-priority": {str(one.prio): {} for one in lossless},
                "tx": "enable",
                "rx": "enable",
                # One value for all ports of the profile, so it is the longest cable's.
                "cable-length": max(contract.cable(plug) for plug in switch.ports.values()),
            }
        },
        "congestion-control": {
            _PROFILE: {
                "traffic-class": {
                    str(one.prio): {
                        "ecn": "enable",
                        "min-threshold": ecn.min_bytes,
                        "max-threshold": ecn.max_bytes,
                        "probability": ecn.probability_percent,
                    }
                    for one in lossless
                }
            }
        },
        "egress-scheduler": {_PROFILE: {"traffic-class": _scheduler(contract)}},
    }
    port: dict[str, Any] = {
        "link": {"mtu": min(contract.switch_mtu, LARGEST_MTU["nvue"])},
        "qos": {"pfc-watchdog": {"state": "enable" if contract.watchdog.enabled else "disable"}},
    }
    tree = [{"set": {"qos": qos, "interface": {_ports(list(switch.ports)): port}}}]
    return yaml.dump(
        tree, Dumper=_Dumper, explicit_start=True, sort_keys=False, default_flow_style=False, width=1000
    )


def _dscp(contract: Contract) -> dict[int, int]:
    """All code points: Cumulus would put the others by their upper three bits, beside the contract's own."""
    return dict.fromkeys(range(64), contract.default_prio) | contract.prio_of


def missing(contract: Contract, name: str) -> tuple[str, ...]:
    """What of the contract is not in the patch."""
    lossless = {one.prio for one in contract.lossless.values()}
    others = ",".join(str(prio) for prio in range(8) if prio not in lossless)
    return (
        *([_TIMES.format(times=contract.watchdog.times)] if contract.watchdog.enabled else []),
        "what an earlier contract left, for a patch only adds: `nv unset qos pfc default-global switch-priority N` for "
        f"any of {others} that `nv show qos pfc default-global` lists, and the same for traffic classes of "
        "congestion-control and egress-scheduler that are no class's now, and ports that left the contract",
    )


class _Dumper(yaml.SafeDumper):
    """Keys and words that YAML would take for numbers or truth values are quoted, as NVUE writes them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _scheduler(contract: Contract) -> dict[str, Any]:
    made: dict[int, dict[str, Any]] = {
        one.prio: {"mode": "strict"} for one in contract.classes.values() if one.strict
    }
    made |= {prio: {"mode": "dwrr", "bw-percent": share} for prio, share in contract.shares.items()}
    return {str(prio): made[prio] for prio in sorted(made)}


def _ports(names: list[str]) -> str:
    """swp1, swp2, swp3 as swp1-3."""
    numbered = sorted(int(name[3:]) for name in names if name[3:].isdecimal())
    groups: list[list[int]] = []
    for number in numbered:
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    parts = [f"swp{first}" if first == last else f"swp{first}-{last}" for first, last in groups]
    split = [name for name in names if not name[3:].isdecimal()]
    return ",".join([*parts, *sorted(split, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])])
