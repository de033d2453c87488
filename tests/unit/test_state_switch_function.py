"""A function through which NVSwitches are managed looks like a NIC, and no kind of item writes anything of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply
from railwright.node.state.kinds import KINDS
from tests.unit.qos_node import Port, Rack
from tests.unit.state_support import fingerprint, plant, register
from tests.unit.test_state_network import rails

SWITCH = "0000:18:00.0"
PLACE = f"/sys/bus/pci/devices/{SWITCH}"
KNOB = f"/sys/kernel/debug/mlx5/{SWITCH}/cc_params/np_cnp_dscp"

# What each kind that names a device asks of it; a sysfs file is a device's by its path, by where it leads and by its
# class.
ASKED: dict[str, dict[str, Any]] = {
    "pause": {"device": SWITCH, "rx": False, "tx": False},
    "dcb": {"device": SWITCH, "pfc": [3]},
    "congestion": {"device": SWITCH, "values": {"np_cnp_dscp": 48}},
    "rdma_marking": {"device": SWITCH, "tos": 106},
    "pci_register": register(SWITCH, "CAP_EXP", 8, "7000", "5000"),
    "nvconfig": {"device": SWITCH, "settings": {"CNP_DSCP_P1": "48"}},
    "ethtool_channels": {"device": SWITCH, "combined": 8},
    "ethtool_rings": {"device": SWITCH, "rx": 8192},
    "ethtool_coalesce": {"device": SWITCH, "adaptive_rx": 0},
    "queue_cpus": {"device": SWITCH, "steering": "xps", "cpus": "0"},
    "irq_affinity": {"device": SWITCH, "cpus": "0", "control_cpus": "0"},
    "network": {**rails("10.1.0.2/24", seconds=0)[-1], "files": []},
    "sysfs": {"path": f"{PLACE}/numa_node", "value": "1"},
    "sysfs_each": {"path": "/sys/class/net/rail0/queues/tx-*/xps_cpus", "value": "1"},
}
# Kinds that name no device.
WITHOUT = {
    "file", "json_keys", "sysctl", "package_index", "packages", "dkms_module", "initramfs", "alternative",
    "linker_cache", "boot_arguments", "python_environment", "systemd_unit", "container_image", "container_daemon",
}  # fmt: skip
TABLE = (
    "            CPU0\n  40:          0  IR-PCI-MSIX-0000:18:00.0 0-edge      mlx5_comp0@pci:0000:18:00.0\n"
)
MORE_FILES = [
    {"kind": "sysfs", "path": path, "value": "1"}
    for path in (
        KNOB,
        "/sys/class/net/rail0/mtu",
        "/sys/class/infiniband/mlx5_0/node_desc",
        "/sys/kernel/led",
    )
]


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A port with all that the kinds write, whose vital product data says what it is."""
    made = Rack(tmp_path / "node", {SWITCH: Port("rail0", "mlx5_0")})
    made.installed |= {"mstconfig", "ip"}
    plant(made.root, f"{PLACE}/class", "0x020700\n")
    plant(made.root, f"{PLACE}/vpd", b"\x82\x10\x00Nvidia SW_MNG\x00")
    # The one capability, Express, at 0x60.
    space = bytearray(256)
    space[0x06], space[0x34], space[0x60] = 0x10, 0x60, 0x10
    plant(made.root, f"{PLACE}/config", bytes(space))
    plant(made.root, f"{PLACE}/numa_node", "0\n")
    plant(made.root, f"{PLACE}/led", "0\n")
    plant(made.root, f"{PLACE}/msi_irqs/40", "msix\n")
    plant(made.root, "/proc/irq/40/smp_affinity_list", "1\n")
    plant(made.root, "/proc/interrupts", TABLE)
    plant(made.root, KNOB, "4\n")
    plant(made.root, "/sys/class/net/rail0/mtu", "1500\n")
    plant(made.root, "/sys/class/net/rail0/queues/tx-0/xps_cpus", "2\n")
    plant(made.root, "/sys/class/infiniband/mlx5_0/node_desc", "x\n")
    (made.root / "sys/kernel/led").symlink_to(made.root / f"{PLACE[1:]}/led")
    for link in ("net/rail0", "infiniband/mlx5_0"):
        place = made.root / "sys/class" / link / "device"
        if place.is_dir():
            for part in sorted(place.rglob("*"), reverse=True):
                part.unlink() if part.is_file() else part.rmdir()
            place.rmdir()
        place.symlink_to(made.root / PLACE[1:])
    return made


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("entry", [*({"kind": kind, **asked} for kind, asked in ASKED.items()), *MORE_FILES],
                         ids=lambda entry: f"{entry['kind']}-{entry.get('path', '')}")  # fmt: skip
def test_no_kind_writes_anything_of_it(rack: Rack, entry: dict[str, Any], check: bool) -> None:
    before = fingerprint(rack.root)
    outcome = apply({"part": [entry]}, root=str(rack.root), tools=rack, check=check)
    assert [failure.why for failure in outcome.failures] == [
        f"{SWITCH} manages NVSwitches: nothing of it is ever written"
    ]
    assert fingerprint(rack.root) == before
    assert rack.wrote == []


@pytest.mark.parametrize("kind", ["sysfs", "sysfs_each", "irq_affinity"])
def test_a_nic_beside_it_is_written(rack: Rack, kind: str) -> None:
    (rack.root / f"{PLACE[1:]}/vpd").write_bytes(b"\x82\x10\x00Nvidia ConnectX-7\x00")
    outcome = apply({"part": [{"kind": kind, **ASKED[kind]}]}, root=str(rack.root), tools=rack)
    assert (outcome.failures, outcome.changed) == ((), True)


def test_every_kind_is_in_one_of_the_two_lists() -> None:
    """A new kind that names a device belongs into the first one."""
    assert {kind.kind for kind in KINDS} - WITHOUT == set(ASKED)
