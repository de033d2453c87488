"""Kinds of item that a driver's programs read and write: their state lies in the node's folder, as if the driver kept
it, so that it outlives whoever calls them and goes with the folder where that is copied."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railwright.node.state import Said
from tests.unit.kind_nodes import PORT, Entry, Kind
from tests.unit.qos_node import Port, Rack
from tests.unit.state_support import Systemd, plant

NETDEV, RDMA = "rail9", "mlx5_9"
FOLDER = f"sys/kept/{PORT}"
PARTS = ("pause", "pfc", "cable", "app", "ets", "rate", "buffer")
ETS = {
    "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
    "tc_tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
    "tc_bw": [50, 0, 0, 50, 0, 0, 0, 0],
}


class Driver(Rack):
    """The programs of one port. Each part of its state is a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {PORT: Port(NETDEV, RDMA)}
        self.installed = {"dcb", "ethtool", "rdma"}
        self.wrote = []
        self.dark = set()

    def __call__(self, argv: Sequence[str]) -> Said:
        port = self.ports[PORT]
        for part in PARTS:
            kept = json.loads((self.root / FOLDER / part).read_text())
            setattr(port, part, {int(key): value for key, value in kept.items()} if part == "app" else kept)
        said = super().__call__(argv)
        for part in PARTS:
            _write(self.root, part, getattr(port, part))
        return said


def _write(root: Path, part: str, value: Any) -> None:
    (root / FOLDER / part).write_text(json.dumps(value, sort_keys=True))


def _plant(node: Path) -> None:
    plant(node, f"/sys/bus/pci/devices/{PORT}/net/{NETDEV}/dev_port", "0\n")
    plant(node, f"/sys/bus/pci/devices/{PORT}/infiniband/{RDMA}/node_guid", "x\n")
    plant(node, f"/sys/class/net/{NETDEV}/carrier", "1\n")
    (node / FOLDER).mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        _write(node, part, getattr(Port(NETDEV, RDMA), part))


def _plant_quiet(node: Path) -> None:
    """Without 802.3x pause, beside which there is no PFC."""
    _plant(node)
    _write(node, "pause", {"rx": False, "tx": False})


def _drift(node: Path, rng: random.Random, systemd: Systemd) -> None:
    changes: dict[str, Any] = {"cable": rng.choice([7, 20, 100]), "app": {"26": rng.randrange(8)}}
    part = rng.choice(sorted(changes))
    _write(node, part, changes[part])


def _see(kind: str) -> Any:
    def see(node: Path, systemd: Systemd) -> dict[str, Any]:
        return {f"{kind}:{PORT}": {part: (node / FOLDER / part).read_text() for part in PARTS}}

    return see


QUEUES = {
    name: f"/sys/class/net/{NETDEV}/queues/{name}/{steering}_cpus"
    for name, steering in (("tx-0", "xps"), ("tx-1", "xps"), ("rx-0", "rps"))
}
STATES = {str(cpu): f"/sys/devices/system/cpu/cpu{cpu}/cpuidle/state3/disable" for cpu in range(3)}


def _plant_queues(node: Path) -> None:
    _plant(node)
    for path in QUEUES.values():
        plant(node, path, "0000000f\n")


def _plant_states(node: Path) -> None:
    _plant(node)
    for cpu, path in STATES.items():
        plant(node, path, "1\n" if cpu == "1" else "0\n")


def _see_values(prefix: str, paths: Mapping[str, str]) -> Any:
    def see(node: Path, systemd: Systemd) -> dict[str, Any]:
        return {prefix: {name: (node / path[1:]).read_text().strip() for name, path in paths.items()}}

    return see


DCB: Entry = {
    "kind": "dcb", "device": PORT, "app": {"26": 3, "48": 6}, "ets": ETS, "pfc": [3], "cable": 30,
    "rate": [0] * 3 + [10**9] + [0] * 4,
}  # fmt: skip
WIRED: Mapping[str, Kind] = {
    "pause": Kind(
        _plant, ({"kind": "pause", "device": PORT, "rx": False, "tx": False},), _drift, _see("pause")
    ),
    "dcb": Kind(_plant_quiet, (DCB,), _drift, _see("dcb")),
    "queue_cpus": Kind(
        _plant_queues,
        (
            {"kind": "queue_cpus", "device": PORT, "steering": "xps", "cpus": "4-5"},
            {"kind": "queue_cpus", "device": PORT, "steering": "rps", "cpus": ""},
        ),
        _drift,
        _see_values("queue_cpus", QUEUES),
    ),
    "sysfs_each": Kind(
        _plant_states,
        (
            {
                "kind": "sysfs_each",
                "path": "/sys/devices/system/cpu/cpu*/cpuidle/state3/disable",
                "value": "1",
            },
        ),
        _drift,
        _see_values("sysfs_each", STATES),
    ),
}
