"""The slice `lossless`: the QoS of the rails as the policy's classes have it, and what the facts say of it.

mlx5 is written whole. Other vendors' NICs are given what RDMA-CM keeps, which is the kernel's; their QoS is compared
and left: what their own tools set nobody has read back for this project.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ..node.model import Facts, Finding, LosslessPolicy, Nic, PlannedNic, Policy, Qos, Slice
from ..node.model.lossless import shares
from ..node.model.pci import MELLANOX
from ..node.model.qos import CELL, CODES, same
from .buffers import MAX_FRAME, least_buffer

Entry = dict[str, Any]
# PCI vendors whose QoS is read and compared (docs/lossless.md); of any other it is told only.
READ_ONLY = {"0x14e4": "Broadcom bnxt_re", "0x8086": "Intel irdma/ice", "0x1dd8": "AMD Pensando"}
# What mlx5 reckons with when nobody says (torvalds/linux mlx5/core/en/port_buffer.h).
DEFAULT_CABLE = 7
# The largest frame of a ConnectX port, and buffer 0's share: two of the largest frames.
_LARGEST_MTU = 9978
_LOSSY = 2 * MAX_FRAME + 2 * CELL
_RATE = 125_000_000
_NOT_LOOKED = "look at the node: dcb -j pfc show dev IF; dcb -j app show dev IF; ethtool -a IF"


@dataclass(frozen=True)
class Survey:
    """slice: None where there is nothing to write."""

    slice: Optional[Slice] = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Port:
    """finding: why its QoS is not written; None where it is. marked: RDMA-CM's defaults are. speed_gbps: 0: unknown."""

    nic: Nic
    device: str
    qos: Qos
    vendor: Optional[str]
    finding: Optional[Finding] = None
    marked: bool = True
    speed_gbps: int = 0

    @property
    def name(self) -> str:
        return self.nic.name


def survey(facts: Facts, policy: Policy, nics: Sequence[PlannedNic], lost: Collection[str] = ()) -> Survey:
    """What is written of the QoS of each Ethernet port that has a rail, and what there is to say of it.

    lost: ports that would have one if their links were up. They are written by their PCI functions like the others:
    when the link comes back, no run may come before the traffic does.
    """
    placed = {nic.name for nic in nics if nic.rail is not None}.union(lost)
    rails = [nic for nic in facts.nics if nic.name in placed and nic.link_layer == "Ethernet"]
    if not rails or policy.manage.get("lossless") is False:
        return Survey()
    wanted = policy.lossless
    if wanted is None:
        return Survey(None, (_unasked(rails),))
    fastest = max((nic.rate or 0 for nic in rails if nic.name not in lost), default=0)
    ports = [
        replace(_port(facts, wanted, nic), speed_gbps=(nic.rate or fastest) // 1000)
        for nic in rails
        if nic.address is not None and not nic.management
    ]
    entries: list[Entry] = []
    found: list[Finding] = [*_nccl(policy, wanted), *_nameless(rails)]
    found += _without_link([port for port in ports if port.name in lost and port.finding is None])
    for port in ports:
        entry, said = _dcb(port, policy, wanted)
        found += said
        if port.finding is None:
            entries += [{"kind": "pause", "device": port.device, "rx": False, "tx": False}, entry]
            entries.append(_congestion(port, wanted))
            found += _announced(port, entry)
        else:
            found += [port.finding, *_compared(port, entry)]
        if port.marked and port.nic.rdma is not None:
            entries.append(_marking(port, wanted))
    made = Slice("runtime", tuple(entries), _because(wanted)) if entries else None
    return Survey(made, tuple(found))


def traffic_class(policy: Policy) -> Optional[int]:
    """What NCCL marks RoCE's data with: its own word, else that of the lossless class; None leaves it to NCCL."""
    if policy.nccl.traffic_class is not None:
        return policy.nccl.traffic_class
    return None if policy.lossless is None else policy.lossless.tos


def _because(wanted: LosslessPolicy) -> str:
    data = wanted.data_class
    return (
        f"RoCE's data (DSCP {', '.join(map(str, data.dscp))}) goes in priority {data.prio}, which PFC protects; a "
        "driver forgets all of it when it is loaded; a change of PFC takes a port's link away for a moment, so it is "
        "made only where it differs, one port after the other, and while nobody uses the port"
    )


def _unasked(rails: Sequence[Nic]) -> Finding:
    return Finding(
        "lossless.unmanaged",
        "info",
        ", ".join(nic.name for nic in rails),
        "the policy says nothing of lossless traffic: QoS, pause and congestion control of the rails stay as they are",
        "state policy.lossless with the fabric's classes (docs/lossless.md); compare both ends: railwright lint-fabric",
    )


def _port(facts: Facts, wanted: LosslessPolicy, nic: Nic) -> _Port:
    address = nic.address or ""
    device = next((device for device in facts.pci if device.address == address), None)
    vendor = None if device is None else device.vendor
    qos = next((port for port in facts.qos if port.device == address), Qos(address, nic.netdev or ""))
    code, why, remedy = "", "", ""
    marked = True
    if nic.physical_function:
        code, marked = "lossless.not_here", False
        why = "it is a virtual function: QoS is its physical function's"
        remedy = "set it on the host that holds the physical function"
    elif nic.bluefield == "dpu":
        code, marked = "lossless.not_here", False
        why = "its BlueField is in DPU mode: QoS is the DPU's"
        remedy = "set it on the DPU, or INTERNAL_CPU_OFFLOAD_ENGINE=1 for NIC mode"
    elif qos.refusal is not None:
        code, why, remedy = (
            "lossless.not_here",
            f"its driver has no DCB ({qos.refusal})",
            "see docs/lossless.md",
        )
    elif vendor != MELLANOX:
        code = "lossless.vendor"
        of = READ_ONLY.get(vendor or "", "a vendor that is not known here" if vendor else "an unknown vendor")
        why = f"its NIC is of {of}: its QoS is compared and not written"
        remedy = "set it by the vendor's tool (docs/lossless.md)"
    elif wanted.dcbx == "firmware":
        code, why = (
            "lossless.firmware",
            "the policy leaves DCBX to the firmware: what is in force is compared",
        )
        remedy = "state policy.lossless.dcbx: host to have it written"
    elif any(unit.name == "lldpad.service" and unit.active == "active" for unit in facts.units):
        return _Port(nic, address, qos, vendor, _two_owners(nic))
    finding = Finding(code, "info", nic.name, why, remedy) if code else None
    return _Port(nic, address, qos, vendor, finding, marked)


def _two_owners(nic: Nic) -> Finding:
    return Finding(
        "lossless.two_owners",
        "error",
        nic.name,
        "lldpad runs and writes DCB too: nothing is set while there are two owners",
        "`systemctl disable --now lldpad.socket lldpad.service` and mask both, or policy.manage.lossless: false",
    )


def _nameless(rails: Sequence[Nic]) -> Iterator[Finding]:
    names = [nic.name for nic in rails if nic.address is None]
    if names:
        yield Finding(
            "lossless.unread",
            "info",
            ", ".join(names),
            "the witness does not tell the PCI addresses of these ports: nothing is planned for their QoS",
            "read the node itself: railwright look",
        )


# -- entries --


def _dcb(port: _Port, policy: Policy, wanted: LosslessPolicy) -> tuple[Entry, list[Finding]]:
    found: list[Finding] = []
    entry: Entry = {
        "kind": "dcb",
        "device": port.device,
        "dcbx": "host ieee",
        "trust": "dscp",
        "app": _map(wanted),
        "ets": _ets(wanted),
    }
    if any(one.rate_gbps is not None for one in wanted.classes.values()):
        rates = {one.prio: (one.rate_gbps or 0) * _RATE for one in wanted.classes.values()}
        entry["rate"] = [rates.get(tc, 0) for tc in range(8)]
    entry["pfc"] = list(wanted.lossless)
    metres = _metres(port.nic, wanted)
    if metres is None:
        found.append(
            Finding(
                "lossless.cable",
                "info",
                port.name,
                f"its cable's length is not stated: headroom is kept for {DEFAULT_CABLE} m, or what was set before",
                "state policy.lossless.cable_m, or cables for single ports",
            )
        )
    else:
        entry["cable"] = max(metres, DEFAULT_CABLE)
        found += _with_buffers(entry, port, policy, wanted, max(metres, DEFAULT_CABLE))
    return entry, found


def _map(wanted: LosslessPolicy) -> dict[str, int]:
    """All code points: one without an entry has the priority that mlx5's firmware begins with, DSCP / 8, so that 24
    would be in the class of 26 (torvalds/linux mlx5/core/en_dcbnl.c, mlx5e_trust_initialize)."""
    points = {str(point): wanted.default_prio for point in range(CODES)}
    for one in wanted.classes.values():
        points.update({str(point): one.prio for point in one.dscp})
    return dict(sorted(points.items(), key=lambda pair: int(pair[0])))


def _ets(wanted: LosslessPolicy) -> Entry:
    """A traffic class for each class, by its priority's number; all else in the default's. Nothing is in the others."""
    own = {one.prio for one in wanted.classes.values()}
    parts = shares(wanted.classes, wanted.default_prio)
    strict = {one.prio for one in wanted.classes.values() if one.strict}
    weighted = [tc in parts and tc not in strict for tc in range(8)]
    return {
        "prio_tc": [prio if prio in own else wanted.default_prio for prio in range(8)],
        "tc_tsa": ["ets" if shared else "strict" for shared in weighted],
        "tc_bw": [parts[tc] if shared else 0 for tc, shared in enumerate(weighted)],
    }


def _metres(nic: Nic, wanted: LosslessPolicy) -> Optional[int]:
    named = (nic.address, nic.rdma, nic.netdev, nic.name)
    return next((wanted.cables[name] for name in named if name in wanted.cables), wanted.cable_m)


def _with_buffers(
    entry: Entry, port: _Port, policy: Policy, wanted: LosslessPolicy, metres: int
) -> Iterator[Finding]:
    """Buffers by hand only where the firmware's are not meant for it: a long cable, a second lossless class, or the
    policy's own sizes. By hand they stay for the life of the driver."""
    if metres <= DEFAULT_CABLE and len(wanted.lossless) == 1 and not wanted.buffer_bytes:
        return
    speed = wanted.speed_gbps or port.speed_gbps
    if not speed:
        yield _buffers_left(port, "its rate is not known", "state policy.lossless.speed_gbps")
        return
    mtu = max(port.nic.mtu or 0, policy.rails.mtu)
    least = least_buffer(speed, metres, mtu, _LARGEST_MTU, CELL)
    sizes = [_LOSSY] + [0] * 7
    order = {prio: number for number, prio in enumerate(wanted.lossless, start=1)}
    for name, one in wanted.classes.items():
        if one.lossless and one.prio in order and order[one.prio] < 8:
            stated = wanted.buffer_bytes.get(name)
            sizes[order[one.prio]] = (stated or least) + CELL
            if stated is not None and stated < least:
                yield Finding(
                    "lossless.buffers",
                    "warning",
                    port.name,
                    f"the class {name} is given {stated} bytes, the driver asks for {least} at {speed} Gb/s over "
                    f"{metres} m",
                    f"leave policy.lossless.buffer_bytes.{name} out, or state {least} or more",
                )
    total = None if port.qos.buffers is None else port.qos.buffers.total
    if total is not None and sum(sizes) > total:
        yield _buffers_left(
            port,
            f"{sum(sizes)} bytes are needed for {len(order)} lossless classes at {speed} Gb/s over {metres} m, and the "
            f"NIC has {total}",
            "have one lossless class, or a shorter cable",
        )
        return
    entry["buffer"] = {"prio_buffer": [order.get(prio, 0) for prio in range(8)], "size": sizes}


def _buffers_left(port: _Port, why: str, remedy: str) -> Finding:
    return Finding("lossless.buffers", "error", port.name, f"its buffers are not set: {why}", remedy)


def _congestion(port: _Port, wanted: LosslessPolicy) -> Entry:
    values = {f"{end}_enable_{wanted.data_class.prio}": 1 for end in ("np", "rp")}
    marks = wanted.notification_class
    if marks is not None:
        values["np_cnp_dscp"], values["np_cnp_prio"] = marks.dscp[0], marks.prio
    return {"kind": "congestion", "device": port.device, "values": {**values, **wanted.dcqcn}}


def _marking(port: _Port, wanted: LosslessPolicy) -> Entry:
    entry: Entry = {"kind": "rdma_marking", "device": port.device, "tos": wanted.tos, "mode": "RoCE v2"}
    if wanted.traffic_class is not None and port.vendor == MELLANOX:
        entry["traffic_class"] = wanted.traffic_class
    return entry


# -- findings --


def _without_link(ports: Sequence[_Port]) -> Iterator[Finding]:
    if ports:
        yield Finding(
            "lossless.down",
            "info",
            ", ".join(port.name for port in ports),
            "the link is down, so it has no rail now; it is written like the rails, so that it is as lossless as they "
            "are when the link is back",
            "find out why it is down (nics.down)",
        )


def _announced(port: _Port, entry: Entry) -> Iterator[Finding]:
    """What a run would do to the link, and what the facts leave open."""
    qos = port.qos
    flaps = []
    if qos.pfc is not None and list(qos.pfc) != entry["pfc"]:
        flaps.append(f"PFC is on for {_numbers(qos.pfc)}, planned {_numbers(entry['pfc'])}")
    if qos.pause_rx or qos.pause_tx:
        flaps.append("802.3x pause is on, planned off")
    if flaps:
        yield Finding(
            "lossless.flap",
            "info",
            port.name,
            f"{'; '.join(flaps)}: the change takes the link away for a moment",
            "it is refused while a job, a lease or a connection holds the port; see --check first",
        )
    if qos.backend is None:
        yield Finding("lossless.unread", "info", port.name, "its QoS was not read", _NOT_LOOKED)
    for part, why in qos.unread.items():
        yield Finding("lossless.unread", "info", port.name, f"{part} was not read: {why}", _NOT_LOOKED)


def _compared(port: _Port, entry: Entry) -> Iterator[Finding]:
    """Of a port that is not written: each part that differs from the policy."""
    qos = port.qos
    if qos.backend is None or qos.refusal is not None:
        return
    for part in ("app", "pfc", "ets"):
        now = qos.part(part)
        if part == "app" and now:
            # What a driver's map does not name is the default's.
            now = {**dict.fromkeys(map(str, range(CODES)), 0), **now}
        if now is not None and not same(part, now, entry[part]):
            yield Finding(
                "lossless.differs",
                "warning",
                port.name,
                f"{_WORDS[part]} is {now}, the policy has {entry[part]}",
                "set it by its owner: the vendor's tool, or the switch where the firmware is willing",
            )
    if qos.pause_rx or qos.pause_tx:
        yield Finding(
            "lossless.differs",
            "warning",
            port.name,
            "802.3x pause is on: it stops every class",
            f"ethtool -A {qos.netdev} rx off tx off",
        )


_WORDS = {"app": "the map of code points", "pfc": "PFC", "ets": "scheduling"}


def _nccl(policy: Policy, wanted: LosslessPolicy) -> Iterator[Finding]:
    """NCCL's word on its class against the class that is lossless."""
    stated = {"policy.nccl.traffic_class": policy.nccl.traffic_class}
    for name in ("NCCL_IB_TC", "NCCL_GIN_IB_TC"):
        text = policy.nccl.env.get(name, "")
        stated[f"policy.nccl.env.{name}"] = int(text) if text.isdecimal() else None
    for where, value in stated.items():
        if value is not None and value >> 2 not in wanted.data_class.dscp:
            yield Finding(
                "lossless.nccl",
                "error",
                where,
                f"{value} is DSCP {value >> 2}, which is not that of RoCE's data: it would travel in a lossy class",
                f"leave it out: NCCL is then told {wanted.tos}",
            )


def _numbers(prios: Iterable[int]) -> str:
    return f"priority {', '.join(map(str, prios))}" if list(prios) else "no priority"
