"""The lossless contract: what every host and every leaf port of a fabric has to agree on, as data.

It stands in the inventory as the variable `fabric`. Each key has a default but `switches`; the defaults are the
de-facto ones of RoCE fabrics (RoCE data DSCP 26 in priority 3, congestion notifications DSCP 48 in priority 6, strict;
NVIDIA Cumulus Linux 5.x "RDMA over Converged Ethernet"), not a truth: OCI, GCP and others use other code points.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from railwright.node.model import InputError, TrafficClass, from_json
from railwright.node.model.lossless import check_classes, default_classes, named, shares
from railwright.node.model.values import one_of, within

from .platforms import PLATFORMS
from .quanta import QUANTA

SYSTEMS = ("sonic", "nvue", "eos", "nxos", "h3c", "huawei")
# How each system names a front-panel port. What is not of this form never gets into a rendered file.
PORT_NAMES = {
    "sonic": (r"Ethernet\d{1,5}", "Ethernet0"),
    "nvue": (r"swp\d{1,4}(?:s\d)?", "swp1 or swp1s0"),
    "eos": (r"Ethernet\d{1,3}(?:/\d{1,3}){0,2}", "Ethernet1/1"),
    "nxos": (r"Ethernet\d{1,3}(?:/\d{1,3}){1,2}", "Ethernet1/1"),
    "h3c": (r"[A-Za-z]{1,30}-?[A-Za-z]{0,30}\d{1,3}(?:/\d{1,3}){2}(?::\d)?", "FourHundredGigE1/0/1"),
    "huawei": (r"\d{2,3}GE\d{1,3}(?:/\d{1,3}){2}", "400GE1/0/1"),
}
_MOST_PORTS = 2048


@dataclass(frozen=True)
class Ecn:
    """ECN marking on the queues of the lossless classes: queue depths in bytes, probability in % at the upper one."""

    min_bytes: int
    max_bytes: int
    probability_percent: int


@dataclass(frozen=True)
class Watchdog:
    """The PFC watchdog of leaf ports; times in ms."""

    enabled: bool = True
    detection_ms: int = 200
    restoration_ms: int = 200

    @property
    def times(self) -> str:
        """Both times in words."""
        return f"{self.detection_ms} and {self.restoration_ms} ms"


@dataclass(frozen=True)
class AdaptiveRouting:
    """Packet spraying: it has to be on in the fabric, in the NIC's firmware and in NCCL, or in none of them."""

    fabric: bool = False
    nic: bool = False
    nccl: bool = False


@dataclass(frozen=True)
class Port:
    """One leaf port and what is plugged into it. speed_gbps, cable_m: None takes the contract's own."""

    host: str
    nic: str
    speed_gbps: int | None = None
    cable_m: int | None = None


@dataclass(frozen=True)
class Switch:
    """One leaf switch.

    os: one of SYSTEMS. platform: a key of PLATFORMS, None when its headroom table is not known here.
    headroom_pool_bytes: what the switch has for headroom of all ports. pfc_xoff_bytes: fill of one port's lossless
    group at which it sends PAUSE. fan_in: the smallest number of senders that fill one queue. lanes: of each port.
    tx_queue: EOS's word for a unicast queue, which depends on the chip.
    """

    os: str
    ports: dict[str, Port]
    platform: str | None = None
    headroom_pool_bytes: int | None = None
    pfc_xoff_bytes: int | None = None
    fan_in: int = 2
    lanes: int | None = None
    tx_queue: str = "uc-tx-queue"


# Start values by speed (bytes, %): common practice, to be tuned with np_ecn_marked against rx_prio_pause.
ECN_START = {
    100: Ecn(150_000, 1_500_000, 10),
    200: Ecn(300_000, 2_000_000, 10),
    400: Ecn(500_000, 3_000_000, 10),
}


@dataclass(frozen=True)
class Contract:
    """The whole contract. ecn: by speed in Gb/s, as text. default_prio: everything that no class selects."""

    switches: dict[str, Switch]
    classes: dict[str, TrafficClass] = field(default_factory=default_classes)
    default_prio: int = 0
    host_mtu: int = 9000
    switch_mtu: int = 9216
    speed_gbps: int | None = None
    cable_m: int | None = None
    ecn: dict[str, Ecn] = field(default_factory=dict)
    watchdog: Watchdog = field(default_factory=Watchdog)
    adaptive_routing: AdaptiveRouting = field(default_factory=AdaptiveRouting)
    accept: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Any, where: str = "fabric") -> Contract:
        """The contract from JSON or YAML data. Raises InputError with place, what was found and what was expected."""
        contract = from_json(cls, _with_text_keys(data), where)
        if not contract.switches:
            raise InputError(f"{where}.switches", "is empty", "name the leaf switches with their ports")
        check_classes(contract.classes, contract.default_prio, where)
        _check_numbers(contract, where)
        for name, switch in contract.switches.items():
            _check_switch(contract, name, switch, f"{where}.switches.{name}")
        _check_plugs(contract, where)
        return contract

    @property
    def lossless(self) -> dict[str, TrafficClass]:
        """The classes that PFC protects, by name."""
        return {name: one for name, one in self.classes.items() if one.lossless}

    @property
    def prio_of(self) -> dict[int, int]:
        """DSCP to priority, for the code points that a class selects."""
        return {point: one.prio for one in self.classes.values() for point in one.dscp}

    @property
    def shares(self) -> dict[int, int]:
        """Priority to bandwidth in % of what strict classes leave; with that of everything else they sum to 100.

        Classes that state none have equal parts with everything else.
        """
        return shares(self.classes, self.default_prio)

    def speed(self, port: Port) -> int:
        """Gb/s of a port; read() has made sure that there is one."""
        return port.speed_gbps or self.speed_gbps or 0

    def cable(self, port: Port) -> int:
        """Metres of a port's cable; read() has made sure that there is a length."""
        return port.cable_m or self.cable_m or 0

    def marking(self, speed_gbps: int) -> Ecn:
        """ECN thresholds for a speed; read() has made sure that there are some."""
        return self.ecn.get(str(speed_gbps)) or ECN_START[speed_gbps]


def _with_text_keys(data: Any) -> Any:
    """YAML reads `400:` as a number; JSON has text keys only."""
    if isinstance(data, dict):
        return {
            str(key) if isinstance(key, int) and not isinstance(key, bool) else key: _with_text_keys(value)
            for key, value in data.items()
        }
    return [_with_text_keys(value) for value in data] if isinstance(data, list) else data


def _check_numbers(contract: Contract, where: str) -> None:
    within(contract.host_mtu, 1500, 9702, f"{where}.host_mtu")
    within(contract.switch_mtu, 1500, 9730, f"{where}.switch_mtu")
    _speed(contract.speed_gbps, f"{where}.speed_gbps")
    _cable(contract.cable_m, f"{where}.cable_m")
    for speed, ecn in contract.ecn.items():
        place = f"{where}.ecn.{speed}"
        # "0400" would be a key that no port asks for.
        if speed not in map(str, QUANTA):
            raise InputError(place, "is no speed", f"one of {', '.join(map(str, QUANTA))} (Gb/s)")
        within(ecn.min_bytes, 1, 2**32, f"{place}.min_bytes")
        within(ecn.probability_percent, 1, 100, f"{place}.probability_percent")
        if ecn.max_bytes <= ecn.min_bytes or ecn.max_bytes > 2**32:
            raise InputError(
                f"{place}.max_bytes",
                f"found {ecn.max_bytes}",
                f"expected more than min_bytes, {ecn.min_bytes}",
            )
    dog = contract.watchdog
    # The ranges of SONiC's model of PFC_WD (sonic-pfcwd.yang).
    within(dog.detection_ms, 100, 5000, f"{where}.watchdog.detection_ms")
    within(dog.restoration_ms, 100, 60_000, f"{where}.watchdog.restoration_ms")
    for code, reason in contract.accept.items():
        if not reason.strip():
            raise InputError(f"{where}.accept.{code}", "is empty", "say why this finding is borne")


def _check_switch(contract: Contract, name: str, switch: Switch, where: str) -> None:
    named(name, where)
    one_of(switch.os, SYSTEMS, f"{where}.os")
    if switch.platform is not None and switch.platform not in PLATFORMS:
        raise InputError(
            f"{where}.platform",
            f"no headroom table is known for {switch.platform!r}",
            f"one of {', '.join(PLATFORMS)}, or leave it out: then headroom is only computed",
        )
    one_of(switch.tx_queue, ("uc-tx-queue", "tx-queue"), f"{where}.tx_queue")
    for key in ("headroom_pool_bytes", "pfc_xoff_bytes"):
        within(getattr(switch, key), 1, 2**40, f"{where}.{key}")
    within(switch.fan_in, 1, 1024, f"{where}.fan_in")
    one_of(switch.lanes, (1, 2, 4, 8), f"{where}.lanes")
    if not 1 <= len(switch.ports) <= _MOST_PORTS:
        raise InputError(
            f"{where}.ports", f"holds {len(switch.ports)} ports", f"expected 1 to {_MOST_PORTS} leaf ports"
        )
    pattern, example = PORT_NAMES[switch.os]
    for port, plug in switch.ports.items():
        place = f"{where}.ports.{port}"
        if not re.fullmatch(pattern, port, re.ASCII):
            raise InputError(place, f"is no port of {switch.os}", f"expected a name like {example}")
        named(plug.host, f"{place}.host")
        named(plug.nic, f"{place}.nic")
        _speed(plug.speed_gbps, f"{place}.speed_gbps")
        _cable(plug.cable_m, f"{place}.cable_m")
        for key, value in (("speed_gbps", contract.speed(plug)), ("cable_m", contract.cable(plug))):
            if not value:
                raise InputError(f"{place}.{key}", "is not known", f"state it here or as fabric.{key}")
        speed = contract.speed(plug)
        if str(speed) not in contract.ecn and speed not in ECN_START:
            raise InputError(
                f"{place}.speed_gbps",
                f"no ECN thresholds are known for {speed} Gb/s",
                f"state fabric.ecn.{speed}: min_bytes, max_bytes, probability_percent",
            )
        if switch.os == "nxos":
            _whole_kbytes(contract.marking(speed), f"{where.partition('.switches.')[0]}.ecn.{speed}", name)


def _whole_kbytes(ecn: Ecn, where: str, name: str) -> None:
    low, high = ecn.min_bytes // 1000, ecn.max_bytes // 1000
    if not 0 < low < high:
        raise InputError(
            where,
            f"{ecn.min_bytes} to {ecn.max_bytes} bytes are {low} to {high} kbytes on NX-OS ({name})",
            "state at least 1000 bytes, and thresholds that differ by 1000 or more",
        )


def _check_plugs(contract: Contract, where: str) -> None:
    taken: dict[tuple[str, str], str] = {}
    for name, switch in contract.switches.items():
        for port, plug in switch.ports.items():
            place = f"{name} {port}"
            other = taken.setdefault((plug.host, plug.nic), place)
            if other != place:
                raise InputError(
                    f"{where}.switches.{name}.ports.{port}",
                    f"{plug.host} {plug.nic} is plugged into {other} too",
                    "a NIC port has one cable",
                )


def _speed(speed: int | None, where: str) -> None:
    if speed is not None and speed not in QUANTA:
        raise InputError(where, f"found {speed}", f"one of {', '.join(map(str, QUANTA))} (Gb/s)")


def _cable(metres: int | None, where: str) -> None:
    # mlx5 accepts 1 to 999 m (torvalds/linux mlx5/core/en_dcbnl.c).
    if metres is not None and not 1 <= metres <= 999:
        raise InputError(where, f"found {metres}", "expected 1 to 999 metres, rounded up")
