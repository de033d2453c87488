"""A switch as it is configured against the contract: each disagreement with what it does and the line that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from railwright.node.model import Finding

from .amounts import check_amounts
from .classes import check_classes
from .contract import Contract
from .links import ports_in_words
from .mend import mend
from .said import Said, Subject
from .state import SwitchState


def compare(contract: Contract, name: str, state: SwitchState) -> list[Finding]:
    """What differs on the leaf ports of the switch `name`, in the order of the contract; ports that agree on what is
    wrong share one finding."""
    switch = contract.switches[name]
    groups: dict[Said, list[str]] = {}
    lines: dict[Said, str] = {}
    for port, plug in switch.ports.items():
        here = state.ports.get(port)
        if here is None:
            said = iter([Said("fabric.port", "error", state.source, "is not in this configuration", "port")])
        else:
            said = _both(Subject(contract, switch, port, plug, here, state.system))
        for one in said:
            # Each port has lines of its own; what is said is the same.
            key = Said(one.code, one.severity, "", one.why, one.kind, one.values)
            groups.setdefault(key, []).append(port)
            lines.setdefault(key, one.where)
    found = [
        Finding(
            one.code,
            one.severity,
            lines[one],
            f"{name} {ports_in_words(ports)}: {one.why}",
            _remedy(contract, state.system, one, ports[0]),
        )
        for one, ports in groups.items()
    ]
    return [*state.faults, *found]


def _remedy(contract: Contract, system: str, said: Said, port: str) -> str:
    if not said.kind:
        return ""
    prios = ",".join(str(one.prio) for one in contract.lossless.values())
    return mend(
        system,
        said.kind,
        **{
            "port": port,
            "prios": prios,
            "name": "",
            "detect": contract.watchdog.detection_ms,
            "restore": contract.watchdog.restoration_ms,
            **dict(said.values),
        },
    )


def _both(subject: Subject) -> Iterator[Said]:
    return chain(check_classes(subject), check_amounts(subject))
