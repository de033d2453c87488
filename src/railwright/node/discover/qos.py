"""The QoS of ports that may be rails: what their tools said, and what drivers and configfs show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from ..model import InputError, Nic, Tool
from ..model.qos import Qos
from ..qos import congestion, dcb, mlnx_qos
from .tools import dcb_tool, fabric_netdevs, mlnx_tool, pause_tool, silence
from .tree import Tree

_MODES = ("IB/RoCE v1", "RoCE v2")
_CLASS = re.compile(r"[0-9]{1,3}", re.ASCII)
_UNSUPPORTED = "Operation not supported"
# The fields of Qos by the part of dcb that tells them.
_PARTS: Mapping[str, Callable[[Mapping[str, Any], str], Mapping[str, Any]]] = {
    "pfc": lambda data, where: {"pfc": dcb.pfc(data, where), "cable_m": dcb.delay(data, where)},
    "app": lambda data, where: {
        "dscp_prio": {str(point): prio for point, prio in sorted(dcb.dscp_prio(data, where).items())}
    },
    "ets": lambda data, where: {"ets": dcb.ets(data, where)},
    "dcbx": lambda data, where: {"dcbx": dcb.dcbx(data, where)},
    "buffer": lambda data, where: {"buffers": dcb.buffers(data, where)},
    "maxrate": lambda data, where: {"tc_rate": dcb.maxrate(data, where)},
}


def read_qos(tree: Tree, nics: Sequence[Nic], outputs: Sequence[Tool]) -> tuple[Qos, ...]:
    """The QoS of the ports that may be rails of an Ethernet fabric, in the order in which they are asked.

    What a tool says and cannot be read stays unknown and is named in `unread`: a node is not left unplanned for it.
    """
    said = {tool.name: tool for tool in outputs}
    by_netdev = {nic.netdev: nic for nic in nics if nic.netdev is not None and nic.address is not None}
    found = []
    for netdev in fabric_netdevs(nics):
        nic = by_netdev.get(netdev)
        if nic is not None:
            port = _from_files(tree, nic, Qos(nic.address or "", netdev))
            found.append(_from_tools(port, said))
    return tuple(found)


def _from_tools(port: Qos, said: Mapping[str, Tool]) -> Qos:
    asked = {part: said.get(dcb_tool(part, port.netdev)) for part in _PARTS}
    port = _pause(port, said.get(pause_tool(port.netdev)))
    vendor = said.get(mlnx_tool(port.netdev))
    if vendor is not None and vendor.code == 0:
        return _from_mlnx_qos(port, vendor)
    told = asked["dcbx"] or asked["pfc"]
    if told is None or told.code is None:
        return port
    if told.code != 0 and _UNSUPPORTED in told.output:
        return replace(port, backend="dcb", refusal=silence(told))
    port = replace(port, backend="dcb")
    for part, tool in asked.items():
        if tool is None:
            continue
        why = silence(tool)
        if why is None:
            try:
                where = f"{port.netdev}: dcb {part}"
                port = replace(port, **_PARTS[part](dcb.one_device(tool.output, where), where))
                continue
            except InputError as error:
                why = str(error)
        port = _unread(port, part, why)
    return port


def _from_mlnx_qos(port: Qos, tool: Tool) -> Qos:
    try:
        told = mlnx_qos.read(tool.output, f"{port.netdev}: mlnx_qos")
    except InputError as error:
        return _unread(replace(port, backend="mlnx_qos"), "mlnx_qos", str(error))
    return replace(
        port,
        backend="mlnx_qos",
        trust=told.trust or port.trust,
        dscp_prio=told.dscp_prio,
        pfc=told.pfc,
        cable_m=told.cable_m,
        ets=told.ets,
        tc_rate=told.tc_rate,
        buffers=told.buffers,
        dcbx=told.dcbx,
    )


def _pause(port: Qos, tool: Optional[Tool]) -> Qos:
    if tool is None:
        return port
    why = silence(tool)
    if why is None:
        try:
            received, sent = dcb.pause(tool.output, f"{port.netdev}: ethtool -a")
            return replace(port, pause_rx=received, pause_tx=sent)
        except InputError as error:
            why = str(error)
    return _unread(port, "pause", why)


def _unread(port: Qos, part: str, why: str) -> Qos:
    return replace(port, unread={**port.unread, part: why[:200]})


def _from_files(tree: Tree, nic: Nic, port: Qos) -> Qos:
    trust = tree.text(congestion.trust_file(port.netdev).lstrip("/"))
    values = {}
    for name in congestion.SYSFS:
        value = _first(tree, congestion.places(name, port.netdev, port.device))
        if value is not None:
            values[name] = value
    port = replace(port, trust=trust if trust in ("dscp", "pcp") else None, congestion=values)
    if nic.rdma is None:
        return port
    mode = tree.text(congestion.cma_file(nic.rdma, "default_roce_mode").lstrip("/"))
    return replace(
        port,
        tos=_class(tree.text(congestion.cma_file(nic.rdma, "default_roce_tos").lstrip("/"))),
        roce_mode=mode if mode in _MODES else None,
        traffic_class=_class_of_all(tree.text(congestion.traffic_class_file(nic.rdma).lstrip("/"))),
    )


def _first(tree: Tree, places: Sequence[str]) -> Optional[int]:
    for place in places:
        text = tree.text(place.lstrip("/"))
        if text is not None:
            return int(text) if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) else None
    return None


def _class(text: Optional[str]) -> Optional[int]:
    match = _CLASS.fullmatch(text or "")
    return None if match is None or int(match[0]) > 255 else int(match[0])


def _class_of_all(text: Optional[str]) -> Optional[int]:
    value = None if text is None else congestion.class_of(text)
    return None if value is None or value > 255 else value
