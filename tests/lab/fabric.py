"""The lab's network, in a network namespace of its own: a management switch, and one switch for each rail and network.

A node's NICs are the recorded ones, by name; each hangs on the switch that its recorded network names, so rails meet
their like. A port can be cut, delayed, or made to drop: by the kernel's bridge and nftables, and where a delay is
wanted by a small program that holds frames back (kernels without netem are common).
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .errors import LabError
from .namespaces import ip, within
from .run import Run
from .shell import call

MANAGEMENT = "mgmt"
CONTROLLER = "10.77.0.1"
_TABLE = "bridge lab"


@dataclass(frozen=True)
class Port:
    """netdev: on the node; switch: a bridge of the fabric; address: with its prefix; default: has the default route."""

    netdev: str
    switch: str
    address: str
    default: bool


def ports(machine: Path, number: int) -> tuple[Port, ...]:
    """The NICs of a node of that number, from the routes that its machine recorded. Raises LabError."""
    lines = (machine / "tree/proc/net/route").read_text("ascii").splitlines()[1:]
    routes = [(fields[0], _network(fields[1]), fields[7]) for fields in map(str.split, lines)]
    default = {netdev for netdev, network, mask in routes if mask == "00000000"}
    if len(default) != 1:
        raise LabError(str(machine), "records no default route", "name a machine with one NIC for management")
    found = {}
    for netdev, network, mask in routes:
        if mask == "00000000":
            continue
        if netdev in default:
            found[netdev] = Port(netdev, MANAGEMENT, f"10.77.0.{number + 1}/16", True)
        else:
            # /31 to a leaf in the record, one subnet a switch here: the third byte is the rail.
            switch = "sw" + ".".join(str(network).split(".")[1:3])
            address = str(network).split(".")
            found[netdev] = Port(netdev, switch, f"{'.'.join(address[:3])}.{number + 1}/24", False)
    return tuple(found[name] for name in sorted(found))


def _network(word: str) -> ipaddress.IPv4Address:
    """procfs shows the bytes in the CPU's order: "0001640A" is 10.100.1.0."""
    return ipaddress.IPv4Address(bytes.fromhex(word)[::-1])


@dataclass(frozen=True)
class Fabric:
    """The network of a run."""

    run: Run

    @property
    def pid(self) -> int:
        return int(self.run.process("fabric").pid)

    def start(self) -> None:
        """Makes the namespace and the management switch. It lives as long as its one process."""
        argv = ["unshare", "--net", "--mount", "--propagation", "private", "--", "sleep", "infinity"]
        process = processes.launch(self.run.record("fabric"), argv, self.run.folder / "fabric.log")
        _await_own_network(process.pid)
        ip(
            [
                "link set lo up",
                f"link add {MANAGEMENT} type bridge",
                f"addr add {CONTROLLER}/16 dev {MANAGEMENT}",
                f"link set {MANAGEMENT} up",
            ],
            process.pid,
        )
        call(within(process.pid, "nft", "-f", "-"), stdin=_RULES)

    def attach(self, number: int, keeper: int, wanted: Iterable[Port]) -> None:
        """Plugs a node's NICs in. keeper: a process in the node's network namespace."""
        wanted = tuple(wanted)
        _await_own_network(keeper)
        pid = self.pid
        known = set(re.findall(r"^\d+: ([^:@]+)", call(within(pid, "ip", "-o", "link")), re.MULTILINE))
        here, there = [], ["link set lo up"]
        for index, port in enumerate(wanted):
            if port.switch not in known:
                known.add(port.switch)
                here += [f"link add {port.switch} type bridge", f"link set {port.switch} up"]
            end = name(number, index)
            here += [
                f"link add {end} type veth peer name {port.netdev} netns {keeper}",
                f"link set {end} master {port.switch} up",
            ]
            there += [f"addr add {port.address} dev {port.netdev}", f"link set {port.netdev} up"]
            if port.default:
                there.append(f"route add default via {CONTROLLER}")
        ip(here, pid)
        ip(there, keeper)

    def cut(self, end: str) -> None:
        """Takes the cable out: the node sees its link go down."""
        ip([f"link set {end} down"], self.pid)

    def mend(self, end: str) -> None:
        """Puts the cable back in, and forgets what was dropped there."""
        ip([f"link set {end} up"], self.pid)
        call(within(self.pid, "nft", "-f", "-"), stdin=f"flush chain {_TABLE} forward\n")

    def drop(self, end: str, what: str = "") -> None:
        """Drops what comes in there and matches, in the words of nft(8) ("udp dport 4791"): everything without any."""
        call(
            within(self.pid, "nft", "-f", "-"),
            stdin=f'add rule {_TABLE} forward iifname "{end}" {what} drop\n',
        )

    def delay(self, end: str, switch: str, milliseconds: int) -> None:
        """Holds each frame on that port back, both ways."""
        pid = self.pid
        inner, outer = f"{end}i", f"{end}o"
        ip(
            [
                f"link set {end} nomaster",
                f"link set {end} promisc on",
                f"link add {inner} type veth peer name {outer}",
                f"link set {inner} promisc on up",
                f"link set {outer} master {switch} up",
            ],
            pid,
        )
        relay = [
            sys.executable,
            str(Path(__file__).with_name("relay.py")),
            end,
            inner,
            str(milliseconds / 1000),
        ]
        log = self.run.folder / f"delay-{end}.log"
        process = processes.launch(self.run.record(f"delay-{end}"), within(pid, *relay), log)
        while "ready" not in log.read_text("utf-8"):
            if not process.alive:
                raise LabError(end, f"is not delayed: {log.read_text('utf-8')}", "see relay.py")
            time.sleep(0.02)

    def undelay(self, end: str, switch: str) -> None:
        processes.end(self.run.process(f"delay-{end}"), 0)
        self.run.record(f"delay-{end}").unlink()
        ip([f"link del {end}i", f"link set {end} promisc off", f"link set {end} master {switch}"], self.pid)


def name(number: int, index: int) -> str:
    """The fabric's end of a node's cable."""
    return f"n{number}p{index}"


def _await_own_network(pid: int) -> None:
    """`unshare` runs for a moment in the namespace that it came from."""
    ours = os.readlink("/proc/self/ns/net")
    for _ in range(2000):
        if os.readlink(f"/proc/{pid}/ns/net") != ours:
            return
        time.sleep(0.005)
    raise LabError(f"process {pid}", "has no network namespace of its own", "see why unshare(1) fails here")


_RULES = f"""
table {_TABLE} {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
    }}
}}
"""
