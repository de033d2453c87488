"""Lossless traffic: the classes that hosts and switches agree on, and what of it a host is to be given.

The defaults are the de-facto ones of RoCE fabrics (data DSCP 26 in priority 3, congestion notifications DSCP 48 in
priority 6, strict; NVIDIA Cumulus Linux 5.x "RDMA over Converged Ethernet"), not a truth: OCI, GCP and others use other
code points.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import one_of, within

OWNERS = ("host", "firmware")
# DCQCN parameters by the mlx5 driver's names in debugfs, with the largest value of each register field (torvalds/linux
# drivers/infiniband/hw/mlx5/cong.c; include/linux/mlx5/mlx5_ifc.h, cong_control_r_roce_ecn_rp and _np).
DCQCN = {
    "np_min_time_between_cnps": 131071,
    "rp_ai_rate": 2**32 - 1,
    "rp_byte_reset": 32767,
    "rp_clamp_tgt_rate": 1,
    "rp_clamp_tgt_rate_ati": 1,
    "rp_dce_tcp_g": 1023,
    "rp_dce_tcp_rtt": 131071,
    "rp_gd": 15,
    "rp_hai_rate": 2**32 - 1,
    "rp_initial_alpha_value": 1023,
    "rp_max_rate": 2**32 - 1,
    "rp_min_dec_fac": 100,
    "rp_min_rate": 2**32 - 1,
    "rp_rate_reduce_monitor_period": 131071,
    "rp_rate_to_set_on_first_cnp": 2**32 - 1,
    "rp_threshold": 31,
    "rp_time_reset": 131071,
}
# ECN bits of an IP header (RFC 3168): none, ECT(1), ECT(0).
ECT = (0, 1, 2)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", re.ASCII)
_MOST_BUFFER = 2**24


@dataclass(frozen=True)
class TrafficClass:
    """One class of traffic.

    dscp: the code points that select it. prio: its 802.1p priority on the host and its traffic class on the switch.
    lossless: PFC protects it. strict: its queue is served before all others. bandwidth_percent: its share of the rest;
    None leaves it to the default. rate_gbps: what a host may send of it at most; None is no limit.
    """

    dscp: tuple[int, ...]
    prio: int
    lossless: bool = False
    strict: bool = False
    bandwidth_percent: Optional[int] = None
    rate_gbps: Optional[int] = None


def default_classes() -> dict[str, TrafficClass]:
    return {
        "roce": TrafficClass((26,), 3, lossless=True, bandwidth_percent=50),
        "cnp": TrafficClass((48,), 6, strict=True),
    }


@dataclass(frozen=True)
class LosslessPolicy:
    """The QoS of a host's rails.

    classes, default_prio: as in the fabric's contract. data, notifications: the names of the classes of RoCE's data and
    of its congestion notifications; None takes the only lossless and the only strict one. cable_m: metres of the rails'
    cables, cables: of single ones, by PCI address, RDMA device or netdev. speed_gbps: of the rails, for their buffers;
    None is the rate that a port has. buffer_bytes: of lossless classes, by name, instead of what the driver's formula
    asks for. dcbx: who owns DCBX, "host", or "firmware": then nothing is written and what is in force is checked.
    ect: the ECN bits that RDMA-CM's connections and NCCL carry beside the DSCP. dcqcn: DCQCN's parameters by mlx5's
    names (rp_ai_rate); what is left out stays. traffic_class: of all QPs whatever their program says, where the driver
    offers it; None leaves it.
    """

    classes: dict[str, TrafficClass] = field(default_factory=default_classes)
    default_prio: int = 0
    data: Optional[str] = None
    notifications: Optional[str] = None
    cable_m: Optional[int] = None
    cables: dict[str, int] = field(default_factory=dict)
    speed_gbps: Optional[int] = None
    buffer_bytes: dict[str, int] = field(default_factory=dict)
    dcbx: str = "host"
    ect: int = 2
    dcqcn: dict[str, int] = field(default_factory=dict)
    traffic_class: Optional[int] = None

    @property
    def lossless(self) -> tuple[int, ...]:
        """The priorities that PFC protects."""
        return tuple(sorted(one.prio for one in self.classes.values() if one.lossless))

    @property
    def data_class(self) -> TrafficClass:
        """RoCE's own; `must_agree` has made sure that there is one."""
        return self.classes[self.data or _only(self.classes, "lossless") or ""]

    @property
    def notification_class(self) -> Optional[TrafficClass]:
        """Of the congestion notifications; None where no class is theirs."""
        name = self.notifications or _only(self.classes, "strict")
        return None if name is None else self.classes[name]

    @property
    def tos(self) -> int:
        """The byte that RoCE's data carries: 106 for DSCP 26 with ECT(0)."""
        return self.data_class.dscp[0] << 2 | self.ect


def must_agree(policy: LosslessPolicy, where: str) -> None:
    """Raises InputError for a policy that contradicts itself."""
    check_classes(policy.classes, policy.default_prio, where)
    for key, what in (("data", "lossless"), ("notifications", "strict")):
        name = getattr(policy, key)
        if name is not None and (name not in policy.classes or not getattr(policy.classes[name], what)):
            raise InputError(f"{where}.{key}", f"{name!r} is no {what} class", f"name a class that is {what}")
        if name is None and _only(policy.classes, what) is None and _count(policy.classes, what) > 1:
            raise InputError(f"{where}.{key}", f"several classes are {what}", "name the one")
    one_of(policy.dcbx, OWNERS, f"{where}.dcbx")
    if policy.ect not in ECT:
        raise InputError(
            f"{where}.ect", f"found {policy.ect}", "expected 0, 1 or 2: 3 says that a queue was full"
        )
    metres = {"cable_m": policy.cable_m, **{f"cables.{name}": one for name, one in policy.cables.items()}}
    for key, value in metres.items():
        # mlx5 accepts 1 to 999 m (torvalds/linux mlx5/core/en_dcbnl.c).
        within(value, 1, 999, f"{where}.{key}", "1 to 999 metres, rounded up")
    within(policy.speed_gbps, 1, 1600, f"{where}.speed_gbps")
    for name, size in policy.buffer_bytes.items():
        if name not in policy.classes or not policy.classes[name].lossless:
            raise InputError(
                f"{where}.buffer_bytes.{name}", "is no lossless class", "name one of the classes"
            )
        within(size, 1, _MOST_BUFFER, f"{where}.buffer_bytes.{name}")
    for name, value in policy.dcqcn.items():
        if name not in DCQCN:
            raise InputError(f"{where}.dcqcn.{name}", "is none of DCQCN's", f"one of {', '.join(DCQCN)}")
        within(value, 0, DCQCN[name], f"{where}.dcqcn.{name}")
    if policy.traffic_class is not None:
        within(policy.traffic_class, 0, 255, f"{where}.traffic_class")
        if policy.traffic_class >> 2 not in policy.data_class.dscp:
            raise InputError(
                f"{where}.traffic_class",
                f"{policy.traffic_class} is DSCP {policy.traffic_class >> 2}, which is not that of RoCE's data",
                f"{policy.tos} is",
            )


def check_classes(classes: Mapping[str, TrafficClass], default_prio: int, where: str) -> None:
    """Raises InputError for classes that no fabric can have."""
    owner: dict[int, str] = {}
    prios: dict[int, str] = {}
    for name, one in classes.items():
        place = f"{where}.classes.{name}"
        named(name, place)
        within(one.prio, 0, 7, f"{place}.prio")
        if one.lossless and one.strict:
            raise InputError(
                place,
                "is lossless and strict: data would starve everything else, and NX-OS marks no ECN in a strict queue",
                "make RoCE's data lossless and its congestion notifications strict",
            )
        if not one.dscp:
            raise InputError(f"{place}.dscp", "is empty", "name the code points that select this class")
        for point in one.dscp:
            within(point, 0, 63, f"{place}.dscp")
            if owner.setdefault(point, name) != name:
                raise InputError(
                    f"{place}.dscp", f"{point} selects {owner[point]} too", "give each code point one class"
                )
        if len(set(one.dscp)) != len(one.dscp):
            raise InputError(f"{place}.dscp", "names a code point twice", "name each once")
        if prios.setdefault(one.prio, name) != name:
            raise InputError(
                f"{place}.prio",
                f"{one.prio} is the priority of {prios[one.prio]} too",
                "give each class its own priority",
            )
        _check_share(one, place)
    if not _count(classes, "lossless"):
        raise InputError(f"{where}.classes", "no class is lossless", "set lossless: true on the RoCE class")
    total = sum(one.bandwidth_percent or 0 for one in classes.values())
    others = 1 + sum(one.bandwidth_percent is None and not one.strict for one in classes.values())
    if total > 100 - others:
        raise InputError(
            f"{where}.classes",
            f"the shares sum to {total} %",
            f"leave at least {others} % to everything else and to classes that state none",
        )
    within(default_prio, 0, 7, f"{where}.default_prio")
    if default_prio in prios:
        raise InputError(
            f"{where}.default_prio",
            f"{default_prio} is the priority of the class {prios[default_prio]}",
            "everything else needs a priority of its own",
        )


def _check_share(one: TrafficClass, place: str) -> None:
    # The register of most ConnectX has eight bits, and drivers before it had more wrap around (torvalds/linux
    # mlx5/core/en_dcbnl.c, ieee_setmaxrate).
    within(one.rate_gbps, 1, 255, f"{place}.rate_gbps", "1 to 255, or no limit")
    if one.bandwidth_percent is None:
        return
    within(one.bandwidth_percent, 1, 100, f"{place}.bandwidth_percent")
    if one.strict:
        raise InputError(
            f"{place}.bandwidth_percent",
            "a strict class has no share",
            "leave bandwidth_percent out, or strict",
        )


def shares(classes: Mapping[str, TrafficClass], default_prio: int) -> dict[int, int]:
    """Priority to bandwidth in % of what strict classes leave; with that of everything else they sum to 100.

    Classes that state none have equal parts with everything else.
    """
    weighted = [one for one in classes.values() if not one.strict]
    left = 100 - sum(one.bandwidth_percent or 0 for one in weighted)
    part = left // (1 + sum(one.bandwidth_percent is None for one in weighted))
    made = {one.prio: one.bandwidth_percent or part for one in weighted}
    return {**made, default_prio: 100 - sum(made.values())}


def named(text: str, where: str) -> None:
    """Raises InputError for what is no name of a class, a host or a port."""
    if not _NAME.fullmatch(text):
        raise InputError(where, f"{text!r} is no name", "letters, digits and _ . : - only, at most 64")


def _only(classes: Mapping[str, TrafficClass], what: str) -> Optional[str]:
    found = [name for name, one in classes.items() if getattr(one, what)]
    return found[0] if len(found) == 1 else None


def _count(classes: Mapping[str, TrafficClass], what: str) -> int:
    return sum(bool(getattr(one, what)) for one in classes.values())
