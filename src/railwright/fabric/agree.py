"""Host against switch, on one cable: what the host has, what the switch is configured to, what LLDP heard.

Pure comparisons of what others have read. What nobody could see is said to be unverified; it is never good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from railwright.node.model import Finding, InputError

from .contract import PORT_NAMES, Contract, Port
from .hosts import Dcb, Heard, read_dcb, read_lldp
from .scheduling import scheduling_findings, scheduling_known
from .state import SwitchState


@dataclass(frozen=True)
class HostPort:
    """One NIC port of a host. dcb, heard: None when they were not read. mtu, pause: None is not known.

    unread: why a part is not known, by its key of _PARTS.
    """

    host: str
    nic: str
    dcb: Dcb | None = None
    heard: Heard | None = None
    lldp_seen: bool = False
    mtu: int | None = None
    pause: bool | None = None
    cnp_dscp: int | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> bool:
        """Whether anything was read there: the MTU of facts alone does not count."""
        return not self.unread or self.dcb is not None or self.lldp_seen


# What the reading of a port consists of, in words; "port" is all of it.
_PARTS = {
    "port": "",
    "pfc": "the host's PFC",
    "app": "its DSCP map",
    "ets": "its scheduling",
    "dcbx": "who manages DCBX",
    "pause": "802.3x pause",
    "mtu": "MTU",
    "cnp_dscp": "the DSCP of congestion notifications",
    "lldp": "cabling and the switch's DCBX",
}


def read_hosts(data: object, where: str) -> tuple[HostPort, ...]:
    """Hosts from {host: {nic: {"netdev", "mtu", "pause", "cnp_dscp", "dcb": {"pfc", "app", "ets", "dcbx"}, "lldp",
    "unread": {part: why}}}}.

    The values of dcb and lldp are the tools' own JSON, as text or as data; each may be left out. unread says why, by
    "pfc", "app", "ets", "dcbx" and the other keys, and "port" for all of them. Raises InputError.
    """
    if not isinstance(data, dict):
        raise InputError(where, f"found {type(data).__name__}", "expected hosts with their NICs")
    found = []
    for host, nics in data.items():
        if not isinstance(nics, dict):
            raise InputError(f"{where}: {host}", f"found {type(nics).__name__}", "expected NICs by name")
        found += [_host_port(host, nic, parts, f"{where}: {host}.{nic}") for nic, parts in nics.items()]
    return tuple(found)


def _host_port(host: str, nic: str, parts: object, where: str) -> HostPort:
    known = {"netdev", "mtu", "pause", "cnp_dscp", "dcb", "lldp", "unread"}
    if not isinstance(parts, dict):
        raise InputError(where, f"found {type(parts).__name__}", f"expected keys {', '.join(sorted(known))}")
    for key in parts:
        if key not in known:
            raise InputError(f"{where}.{key}", "unknown key", f"known keys: {', '.join(sorted(known))}")
    for key in ("mtu", "cnp_dscp"):
        value = parts.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{where}.{key}", f"found {type(value).__name__}", "expected a whole number")
    dcb, lldp = parts.get("dcb"), parts.get("lldp")
    if dcb is not None and not isinstance(dcb, dict):
        raise InputError(f"{where}.dcb", f"found {type(dcb).__name__}", "expected pfc, app, ets, dcbx")
    unread = parts.get("unread") or {}
    if not isinstance(unread, dict) or not all(
        key in _PARTS and isinstance(why, str) for key, why in unread.items()
    ):
        raise InputError(
            f"{where}.unread", f"found {str(unread)[:60]}", f"expected reasons by {', '.join(_PARTS)}"
        )
    return HostPort(
        host,
        nic,
        read_dcb(dcb, where) if dcb is not None else None,
        read_lldp(lldp, str(parts.get("netdev", nic)), f"{where}.lldp") if lldp is not None else None,
        lldp is not None,
        parts.get("mtu"),
        parts.get("pause") if isinstance(parts.get("pause"), bool) else None,
        parts.get("cnp_dscp"),
        unread,
    )


def agree(contract: Contract, states: Mapping[str, SwitchState], hosts: Iterable[HostPort]) -> list[Finding]:
    """What differs between hosts, switches and the contract, one host port after the other."""
    plugs = {
        (plug.host, plug.nic): (name, port, plug)
        for name, switch in contract.switches.items()
        for port, plug in switch.ports.items()
    }
    found: list[Finding] = []
    for one in hosts:
        cable = plugs.get((one.host, one.nic))
        where = f"{one.host} {one.nic}"
        found += _unread(one, where)
        if "port" in one.unread:
            continue
        if cable is None:
            found.append(
                Finding(
                    "fabric.host_port",
                    "warning",
                    where,
                    "is in no switch of the contract",
                    "add it to the ports of its leaf switch",
                )
            )
            continue
        name, port, plug = cable
        found += [*_host(contract, one, plug, where), *_neighbour(contract, one, name, port, where)]
        found += _against_switch(one, states.get(name), name, port, where)
    return found


def _unread(one: HostPort, where: str) -> Iterable[Finding]:
    """What has the same reason is said together."""
    for why in dict.fromkeys(one.unread.values()):
        parts = [words for part, words in _PARTS.items() if words and one.unread.get(part) == why]
        yield _unverified(where, ": ".join(filter(None, (", ".join(parts), why))), "")


def _host(contract: Contract, one: HostPort, plug: Port, where: str) -> Iterable[Finding]:
    if one.dcb is not None:
        yield from _dcb(contract, one, one.dcb, plug, where)
    elif "pfc" not in one.unread:
        yield _unverified(
            where, "the host's PFC and DSCP map were not read", "read `dcb -j pfc show dev IF` there"
        )
    if one.pause:
        yield Finding(
            "fabric.host_pause",
            "error",
            where,
            "802.3x pause is on: it stops every class, and the NIC refuses PFC beside it",
            "`ethtool -A IF rx off tx off`",
        )
    if one.mtu is not None and one.mtu != contract.host_mtu:
        yield Finding(
            "fabric.host_mtu",
            "error" if one.mtu > contract.host_mtu else "warning",
            where,
            f"MTU {one.mtu} instead of {contract.host_mtu}",
            f"`ip link set dev IF mtu {contract.host_mtu}`",
        )
    strict = [point for one_ in contract.classes.values() if one_.strict for point in one_.dscp]
    if one.cnp_dscp is not None and one.cnp_dscp not in strict:
        yield Finding(
            "fabric.host_cnp",
            "error",
            where,
            f"the NIC marks its congestion notifications DSCP {one.cnp_dscp}, the contract has "
            f"{' or '.join(map(str, strict))}: they wait in a lossy queue",
            f"set CNP_DSCP to {strict[0]}" if strict else "",
        )


def _dcb(contract: Contract, one: HostPort, dcb: Dcb, plug: Port, where: str) -> Iterable[Finding]:
    wanted = frozenset(one.prio for one in contract.lossless.values())
    if dcb.pfc is None:
        if "pfc" not in one.unread:
            yield _unverified(where, "the host's PFC was not read", "read `dcb -j pfc show dev IF` there")
    elif dcb.pfc != wanted:
        yield Finding(
            "fabric.host_pfc",
            "error",
            where,
            f"PFC is on for {_numbers(dcb.pfc)} on the host, the contract has {_numbers(wanted)}: "
            + (
                "the host drops where it should pause"
                if wanted - dcb.pfc
                else "it obeys pauses of a lossy class"
            ),
            "`dcb pfc set dev IF prio-pfc all:off " + " ".join(f"{prio}:on" for prio in sorted(wanted)) + "`",
        )
    if dcb.dscp_prio is None:
        if "app" not in one.unread:
            yield _unverified(
                where, "the host's DSCP map was not read", "read `dcb -j app show dev IF` there"
            )
    elif not dcb.dscp_prio:
        yield Finding(
            "fabric.host_trust",
            "error",
            where,
            "no DSCP is mapped, so the NIC trusts the VLAN tag: RoCE arrives in priority 0",
            _app(contract),
        )
    else:
        for name, wants in contract.classes.items():
            for point in wants.dscp:
                # mlx5 gives a code point without an entry priority 0.
                prio = dcb.dscp_prio.get(point)
                if prio != wants.prio:
                    yield Finding(
                        "fabric.host_dscp",
                        "error" if wants.lossless else "warning",
                        where,
                        f"DSCP {point} ({name}) has priority {'none' if prio is None else prio} on the host, the "
                        f"contract {wants.prio}",
                        _app(contract),
                    )
    yield from scheduling_findings(contract, dcb, where)
    if "ets" not in one.unread and not scheduling_known(dcb):
        yield _unverified(where, "the host's scheduling was not read", "read `dcb -j ets show dev IF` there")
    metres = contract.cable(plug)
    if dcb.delay is not None and dcb.pfc and dcb.delay < metres:
        yield Finding(
            "fabric.host_cable",
            "error",
            where,
            f"the NIC keeps headroom for {dcb.delay} m, the cable has {metres} m",
            f"`dcb pfc set dev IF delay {metres}` (metres on mlx5)",
        )
    if dcb.host_managed is False:
        yield Finding(
            "fabric.host_dcbx",
            "warning",
            where,
            "firmware or a daemon manages DCBX: what is set here may be overwritten by what the switch sends",
            "`dcb dcbx set dev IF host ieee`, LLDP_NB_* off in firmware, lldpad masked",
        )


def _neighbour(contract: Contract, one: HostPort, name: str, port: str, where: str) -> Iterable[Finding]:
    if one.heard is None and "lldp" in one.unread:
        return
    if one.heard is None:
        why = "LLDP heard nobody" if one.lldp_seen else "LLDP was not read"
        yield _unverified(
            where,
            f"{why}: neither the cabling nor the switch's DCBX is known",
            "run lldpd on the host, firmware LLDP off",
        )
        return
    heard = one.heard
    if heard.chassis is not None and heard.chassis.partition(".")[0] != name.partition(".")[0]:
        yield _cabling(where, f"is plugged into {heard.chassis} {heard.port or ''}".rstrip(), name, port)
    elif heard.port is not None and heard.port != port:
        if re.fullmatch(PORT_NAMES[contract.switches[name].os][0], heard.port, re.ASCII):
            yield _cabling(where, f"is plugged into port {heard.port}", name, port)
        else:
            # SONiC sends the alias that is printed on the front panel.
            yield _unverified(
                where,
                f"{name} calls its port {heard.port}, the contract {port}",
                f"compare `show lldp table` of {name}",
            )
    wanted = frozenset(one_.prio for one_ in contract.lossless.values())
    if heard.pfc is None:
        yield _unverified(
            where, "the switch sends no PFC TLV", "`dcbx mode ieee` or its like, or the probe by DSCP"
        )
    elif heard.pfc != wanted:
        yield Finding(
            "fabric.peer_pfc",
            "error",
            where,
            f"{name} {port} says by DCBX that PFC is on for {_numbers(heard.pfc)}, the contract has {_numbers(wanted)}",
            f"lint the configuration of {name}",
        )
    if heard.willing:
        yield Finding(
            "fabric.peer_willing",
            "warning",
            where,
            f"{name} {port} says by DCBX that it is willing: it takes its PFC from what the host sends, right or wrong",
            f"state PFC on {name} and let it be not willing",
        )
    prios = contract.prio_of
    for point, prio in sorted((heard.dscp_prio or {}).items()):
        if point in prios and prios[point] != prio:
            yield Finding(
                "fabric.peer_dscp",
                "error",
                where,
                f"{name} {port} says by DCBX that DSCP {point} has priority {prio}, the contract has {prios[point]}",
                f"lint the configuration of {name}",
            )
    if heard.roce_prio is not None and heard.roce_prio not in wanted:
        yield Finding(
            "fabric.peer_roce",
            "error",
            where,
            f"{name} {port} says by DCBX that RoCE (UDP 4791) has priority {heard.roce_prio}, which is not lossless",
            f"lint the configuration of {name}",
        )
    if heard.roce_prio is None and not heard.dscp_prio:
        yield _unverified(
            where, "the switch sends no application TLV", "probe by DSCP: traffic has to arrive in its class"
        )


def _against_switch(
    one: HostPort, state: SwitchState | None, name: str, port: str, where: str
) -> Iterable[Finding]:
    here = state.ports.get(port) if state is not None else None
    if here is None or one.dcb is None or one.dcb.pfc is None:
        return
    if one.dcb.pfc != here.pfc.value:
        yield Finding(
            "fabric.both_pfc",
            "error",
            where,
            f"PFC is on for {_numbers(one.dcb.pfc)} on the host and for {_numbers(here.pfc.value)} on {name} {port} "
            f"({here.pfc.where}): one pauses what the other drops",
            "set both ends to the contract",
        )


def _cabling(where: str, found: str, name: str, port: str) -> Finding:
    return Finding(
        "fabric.cabling",
        "error",
        where,
        f"{found}, the contract has {name} {port}",
        "move the cable, or mend the contract",
    )


def _unverified(where: str, why: str, remedy: str) -> Finding:
    return Finding("fabric.unverified", "info", where, f"not verified: {why}", remedy)


def _numbers(prios: frozenset[int]) -> str:
    return f"priority {', '.join(map(str, sorted(prios)))}" if prios else "no priority"


def _app(contract: Contract) -> str:
    pairs = " ".join(f"{point}:{prio}" for point, prio in sorted(contract.prio_of.items()))
    return f"`dcb app replace dev IF dscp-prio {pairs}`"
