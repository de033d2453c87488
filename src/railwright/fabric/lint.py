"""The whole lint: contract, headroom, switch files and hosts, as findings and as one document.

{"schema": "railwright.fabric/1", "ok", "source": where the contract stands,
 "classes": [{"name", "dscp", "prio", "lossless", "strict", "bandwidth_percent", "places": [{"name", "kind": "switch" |
   "host", "dscp": {point: class or priority, null unknown}, "pfc", "ecn", "strict": true, false or null, "agrees"}]}],
 "default_prio", "host_mtu", "switch_mtu",
 "ecn": [{"speed_gbps", "min_bytes", "max_bytes", "probability_percent", "source", "confidence"}],
 "links": [{"switch", "port", "host", "nic", "speed_gbps", "cable_m", "bound", "host_buffer", "table", "table_m",
   "table_size", "formula"}], each number {"bytes", "formula", "source", "confidence"} or null,
 "pools": [{"switch", "wanted_bytes", "pool_bytes"}], "findings": as everywhere, "seen": names of what was looked at}

`ok` is true when a switch or a host was looked at and no finding is open: nothing looked at is skipped, which is never
ok. What was not looked at is a finding of severity info.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from railwright.node.check import is_open
from railwright.node.model import Finding, InputError, to_json

from .agree import HostPort, agree
from .compare import compare
from .contract import Contract
from .inventory import Found
from .links import Link, headroom_findings, links, pool_sum
from .read import READERS, host_name, read_switch
from .rules import contract_findings
from .state import SwitchState
from .table import class_table

SCHEMA = "railwright.fabric/1"


@dataclass(frozen=True)
class Lint:
    """What the lint found. states: the switches whose files were read; hosts: what was read on hosts."""

    found: Found
    links: tuple[Link, ...]
    states: Mapping[str, SwitchState]
    hosts: tuple[HostPort, ...]
    findings: tuple[Finding, ...]

    @property
    def open(self) -> tuple[Finding, ...]:
        """What has to be mended, or borne with a reason."""
        return tuple(filter(is_open, self.findings))

    @property
    def seen(self) -> tuple[str, ...]:
        """The names of switches and host ports that were looked at."""
        return (*self.states, *(f"{one.host} {one.nic}" for one in self.hosts if one.seen))

    @property
    def ok(self) -> bool:
        """Whether something was looked at and nothing is open."""
        return bool(self.seen) and not self.open


def lint(found: Found, states: Mapping[str, SwitchState], hosts: Iterable[HostPort] = ()) -> Lint:
    """All findings, in the order contract, headroom, switches, hosts; what the contract accepts carries its reason."""
    contract = found.contract
    every = links(contract)
    seen = tuple(hosts)
    # Buffer pools in a switch's file answer what the contract leaves open.
    pooled = {name for name, state in states.items() if any(port.pool for port in state.ports.values())}
    findings = [
        *contract_findings(contract, found.traffic_class, found.policy_seen),
        *headroom_findings(contract, every),
        *_switches(contract, states),
        *agree(contract, states, seen),
    ]
    accepted = tuple(
        replace(one, accepted=contract.accept.get(one.code))
        for one in findings
        if not (one.code == "fabric.ecn_before_pfc" and one.severity == "info" and one.where in pooled)
    )
    return Lint(found, every, states, seen, accepted)


def _switches(contract: Contract, states: Mapping[str, SwitchState]) -> Iterable[Finding]:
    for name, switch in contract.switches.items():
        if name in states:
            yield from compare(contract, name, states[name])
        else:
            hint = (
                f"give its configuration with --switch-config {name}=FILE"
                if switch.os in READERS
                else "verify it with the reading commands of playbooks/render_fabric.yml"
            )
            yield Finding("fabric.switch", "info", name, "not looked at: no configuration was given", hint)


def read_files(contract: Contract, files: Sequence[str]) -> dict[str, SwitchState]:
    """The states of switches from files, each FILE or SWITCH=FILE.

    Which switch a file is of, the file tells by its host name or its own name. Raises InputError where it does not, or
    when two files are of one switch.
    """
    states: dict[str, SwitchState] = {}
    for text in files:
        stated, mark, rest = text.partition("=")
        path, name = (Path(rest), stated) if mark and stated in contract.switches else (Path(text), None)
        name = name or _whose(contract, path)
        if name in states:
            raise InputError(
                str(path),
                f"is of the switch {name}, and so is {states[name].source}",
                "give one file a switch",
            )
        switch = contract.switches[name]
        states[name] = read_switch(path, switch.os, switch.ports)
    return states


def _whose(contract: Contract, path: Path) -> str:
    if path.stem in contract.switches:
        return path.stem
    if path.name in contract.switches:
        return path.name
    name = host_name(path)
    if name in contract.switches:
        return str(name)
    if len(contract.switches) == 1:
        return next(iter(contract.switches))
    raise InputError(
        str(path),
        "does not tell which switch it is of"
        if name is None
        else f"is of {name[:64]!r}, which the contract has not",
        f"write SWITCH={path}, with one of {', '.join(list(contract.switches)[:6])}",
    )


def document(result: Lint) -> dict[str, Any]:
    """The lint as plain JSON data. Same input, same bytes."""
    contract = result.found.contract
    return {
        "schema": SCHEMA,
        "ok": result.ok,
        "source": result.found.where,
        "classes": class_table(contract, result.states, result.hosts),
        "default_prio": contract.default_prio,
        "host_mtu": contract.host_mtu,
        "switch_mtu": contract.switch_mtu,
        "ecn": ecn_rows(contract),
        "links": [to_json(link) for link in result.links],
        "pools": [
            {
                "switch": name,
                "wanted_bytes": pool_sum(contract, tuple(one for one in result.links if one.switch == name)),
                "pool_bytes": switch.headroom_pool_bytes,
            }
            for name, switch in contract.switches.items()
        ],
        "findings": to_json(result.findings),
        "seen": list(result.seen),
    }


def ecn_rows(contract: Contract) -> list[dict[str, Any]]:
    """The ECN thresholds of each speed that a leaf port has, with their source."""
    speeds = {contract.speed(plug) for switch in contract.switches.values() for plug in switch.ports.values()}
    return [
        {
            "speed_gbps": speed,
            **to_json(contract.marking(speed)),
            "source": "the contract" if str(speed) in contract.ecn else "start values by speed, to be tuned",
            "confidence": None if str(speed) in contract.ecn else "C",
        }
        for speed in sorted(speeds)
    ]
