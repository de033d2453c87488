"""Host state from the facts of nodes: what dcb, ethtool, lldpcli and sysfs said there, by the contract's names.

What comes out is what a file of host state holds, so `read_hosts` reads both. A tool that was not asked, is not there,
failed or was not understood gives a reason under "unread", and is never taken for a good answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from railwright.node.discover.tools import (
    DCB,
    NEIGHBOURS,
    dcb_tool,
    fabric_netdevs,
    pause_tool,
    port_tools,
    silence,
)
from railwright.node.model import Facts, InputError, Nic, Qos, Tool

from .contract import Contract
from .hosts import read_dcb, read_lldp, read_pause

# Takes a tool's output and its command line; gives what is kept, or raises InputError.
_Read = Callable[[str, str], object]
_NOT_ASKED = "was not asked there: run playbooks/verify.yml"


def ports_only(facts: Facts) -> Facts:
    """The part of a node's facts that is about its NICs' ports, with what the tools said of them."""
    names = {name for name, _ in port_tools(facts.nics)}
    asked = tuple(tool for tool in facts.tools if tool.name in names)
    return Facts(facts.schema, facts.witnesses, nics=facts.nics, tools=asked, qos=facts.qos)


def host_states(contract: Contract, nodes: Iterable[tuple[str, Facts]]) -> dict[str, Any]:
    """Data for `read_hosts` from the facts of nodes, by the inventory's name of each.

    It holds every NIC of the contract, and what is plugged in on the nodes beside those: a rail that was forgotten?
    """
    wanted: dict[str, list[str]] = {}
    for switch in contract.switches.values():
        for plug in switch.ports.values():
            wanted.setdefault(plug.host, []).append(plug.nic)
    states = {host: _ports(wanted.get(host, ()), facts) for host, facts in nodes}
    missing = _unseen("there is no record of this host: run playbooks/verify.yml on it")
    return {**{host: dict.fromkeys(nics, missing) for host, nics in wanted.items()}, **states}


def _ports(names: Sequence[str], facts: Facts) -> dict[str, Any]:
    tools = {tool.name: tool for tool in facts.tools}
    found = {name: _named(facts.nics, name) for name in names}
    qos = {port.netdev: port for port in facts.qos}
    ports = {name: _missing(facts) if nic is None else _port(nic, tools, qos) for name, nic in found.items()}
    known = [nic for nic in found.values() if nic is not None]
    fabric = fabric_netdevs(facts.nics)
    for nic in facts.nics:
        spare = nic.rdma is None or nic.default_route or nic.state == "down"
        if nic.netdev in fabric and nic not in known and not spare:
            ports[nic.netdev] = _unseen(
                "is in no switch of the contract; add it to the ports of its leaf, if it is one of the fabric's"
            )
    return ports


def _named(nics: Sequence[Nic], name: str) -> Nic | None:
    """The contract may call a port by its netdev or by its RDMA device."""
    by_netdev = [nic for nic in nics if nic.netdev == name]
    return next(iter(by_netdev or [nic for nic in nics if name in (nic.rdma, nic.name)]), None)


def _missing(facts: Facts) -> dict[str, Any]:
    names = [f"{nic.netdev} ({nic.rdma})" if nic.netdev and nic.rdma else nic.name for nic in facts.nics]
    return _unseen(f"the host has no NIC of this name; it has {', '.join(names[:16]) or 'none at all'}")


def _unseen(why: str) -> dict[str, Any]:
    return {"unread": {"port": why}}


def _port(nic: Nic, tools: Mapping[str, Tool], qos: Mapping[str, Qos]) -> dict[str, Any]:
    if nic.netdev is None or nic.link_layer == "InfiniBand":
        what = "is an InfiniBand port" if nic.link_layer == "InfiniBand" else "has no netdev"
        return _unseen(f"{nic.name} {what}")
    netdev = nic.netdev
    said = {
        part: _said(tools.get(name), program, read) for part, (name, program, read) in _asked(netdev).items()
    }
    known = qos.get(netdev, Qos(nic.address or "", netdev))
    if known.backend == "mlnx_qos":
        said.update({part: (value, None) for part, value in _of_mlnx_qos(known).items()})
    cnp_dscp = known.congestion.get("np_cnp_dscp", nic.cnp_dscp)
    unread = {part: why for part, (_, why) in said.items() if why is not None}
    if nic.mtu is None:
        unread["mtu"] = f"/sys/class/net/{netdev}/mtu does not tell"
    if cnp_dscp is None:
        unread["cnp_dscp"] = (
            f"/sys/class/net/{netdev}/ecn is not there and debugfs does not tell: mstconfig does"
        )
    kept = {part: value for part, (value, why) in said.items() if why is None}
    return {
        "netdev": netdev,
        "mtu": nic.mtu,
        "cnp_dscp": cnp_dscp,
        "pause": kept.get("pause"),
        "dcb": {part: kept[part] for part in DCB if part in kept} or None,
        "lldp": kept.get("lldp"),
        "unread": unread,
    }


def _of_mlnx_qos(port: Qos) -> dict[str, object]:
    """What mlnx_qos said of a port without dcb, in dcb's own form."""
    pfc, ets, points, flags = port.pfc, port.ets, port.dscp_prio, port.dcbx
    told: dict[str, object] = {}
    if pfc is not None:
        length = {} if port.cable_m is None else {"delay": port.cable_m}
        told["pfc"] = {"prio_pfc": [prio in pfc for prio in range(8)], **length}
    if points is not None:
        told["app"] = {"dscp_prio": [[int(point), prio] for point, prio in points.items()]}
    if ets is not None:
        told["ets"] = {"prio_tc": list(ets.prio_tc), "tc_tsa": list(ets.tc_tsa), "tc_bw": list(ets.tc_bw)}
    if flags is not None:
        told["dcbx"] = dict.fromkeys(flags, True)
    return told


def _asked(netdev: str) -> dict[str, tuple[str, str, _Read]]:
    """By part: the name of its tool's record, the program, and what is kept of the output."""
    return {
        **{part: (dcb_tool(part, netdev), "dcb", _dcb(part)) for part in DCB},
        "pause": (pause_tool(netdev), "ethtool", read_pause),
        "lldp": (NEIGHBOURS, "lldpcli", _lldp(netdev)),
    }


def _dcb(part: str) -> _Read:
    def read(text: str, where: str) -> str:
        read_dcb({part: text}, where)
        return text

    return read


def _lldp(netdev: str) -> _Read:
    def read(text: str, where: str) -> str:
        read_lldp(text, netdev, where)
        return text

    return read


def _said(tool: Tool | None, program: str, read: _Read) -> tuple[object, str | None]:
    """What `read` makes of a tool's output, or the reason why there is nothing to keep."""
    if tool is None:
        return None, f"{program} {_NOT_ASKED}"
    why = silence(tool)
    if why is not None:
        return None, why
    try:
        return read(tool.output, " ".join(tool.argv)), None
    except InputError as error:
        return None, str(error)
