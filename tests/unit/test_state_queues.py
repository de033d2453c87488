"""The kinds of a port's queues, on a node whose driver is a stand-in that makes interrupts anew as a real one does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node import ethtool
from railwright.node.model import InputError
from railwright.node.state import Outcome, Said, apply, kernel_items, port, revert
from tests.unit.state_support import DEVICE, item, items, make_node, plant, plant_irqs

NETDEV = "ens1f0np0"
NET = f"sys/bus/pci/devices/{DEVICE}/net/{NETDEV}"


class Port:
    """A port with channels, rings and coalescing. A change of channels or rings frees its vectors and takes others."""

    def __init__(self, node: Path, channels: int = 4) -> None:
        self.node = node
        self.values = {
            ethtool.CHANNELS: {"combined": channels, "most_combined": 8, "rx": 0, "most_rx": 0, "tx": 0, "most_tx": 0},
            ethtool.RINGS: {"rx": 1024, "most_rx": 8192, "tx": 1024, "most_tx": 8192},
            ethtool.COALESCE: {
                "adaptive_rx": 1, "adaptive_tx": 1, "rx_usecs": 8, "tx_usecs": 8, "rx_frames": 128, "tx_frames": 128,
            },
        }  # fmt: skip
        self.first = 60
        self.writes: list[tuple[ethtool.Group, dict[str, int]]] = []
        self.users: list[dict[str, Any]] = []
        self.dark = False
        self.refuses = 0
        self.refused: tuple[ethtool.Group, ...] = ()
        plant(node, f"/{NET}/carrier", "1\n")
        (node / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (node / "sys/class/net" / NETDEV).symlink_to(node / NET)
        (node / f"sys/bus/pci/devices/{DEVICE}/infiniband/mlx5_0").mkdir(parents=True)
        self.open()

    def open(self) -> None:
        """Vectors and queues for as many channels as there are."""
        shutil.rmtree(self.node / f"sys/bus/pci/devices/{DEVICE}/msi_irqs", ignore_errors=True)
        shutil.rmtree(self.node / "proc/irq", ignore_errors=True)
        shutil.rmtree(self.node / NET / "queues", ignore_errors=True)
        count = self.values[ethtool.CHANNELS]["combined"]
        plant_irqs(
            self.node,
            {
                9: f"mlx5_async0@pci:{DEVICE}",
                **{self.first + n: f"mlx5_comp{n}@pci:{DEVICE}" for n in range(count)},
            },
        )
        for n in range(count):
            plant(self.node, f"/{NET}/queues/tx-{n}/xps_cpus", "00000000,00000000\n")
            plant(self.node, f"/{NET}/queues/rx-{n}/rps_cpus", "00000000,000000ff\n")

    def read(self, netdev: str, group: ethtool.Group) -> dict[str, int] | None:
        assert netdev == NETDEV
        return dict(self.values[group]) if group in self.values else None

    def write(self, netdev: str, group: ethtool.Group, values: Mapping[str, int]) -> None:
        if self.refuses and (not self.refused or group in self.refused):
            self.writes += [(group, dict(values))] if self.refused else []
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.writes.append((group, dict(values)))
        before = dict(self.values[group])
        self.values[group].update(values)
        for way in ("rx", "tx"):
            if before.get(f"adaptive_{way}") != self.values[group].get(f"adaptive_{way}"):
                # As mlx5 does: its own numbers win over those of the same call.
                self.values[group].update({f"{way}_usecs": 8, f"{way}_frames": 128})
        if group is not ethtool.COALESCE or before.keys() & values.keys() & {"adaptive_rx", "adaptive_tx"}:
            self.first += 20
            self.open()
        if self.dark:
            plant(self.node, f"/{NET}/carrier", "0\n")

    def __call__(self, argv: Sequence[str]) -> Said:
        assert list(argv) == ["rdma", "-j", "resource", "show", "qp"]
        return Said(0, json.dumps(self.users))

    def irqs(self) -> dict[int, str]:
        places = (self.node / "proc/irq").glob("*/smp_affinity_list")
        return {int(place.parent.name): place.read_text().strip() for place in places}

    def steering(self, kind: str) -> list[str]:
        names = sorted((self.node / NET / "queues").glob(f"*/{kind}_cpus"))
        return [name.read_text().strip() for name in names]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Port:
    made = Port(make_node(tmp_path / "node"))
    monkeypatch.setattr(ethtool, "read", made.read)
    monkeypatch.setattr(ethtool, "write", made.write)
    monkeypatch.setattr(port, "LINK_SECONDS", 0.01)
    return made


def channels(count: int = 2, **more: Any) -> dict[str, Any]:
    return {"kind": "ethtool_channels", "device": DEVICE, "combined": count, **more}


RINGS = {"kind": "ethtool_rings", "device": DEVICE, "rx": 4096, "tx": 2048}
COALESCE = {"kind": "ethtool_coalesce", "device": DEVICE, "adaptive_rx": 0, "rx_usecs": 16}
AFFINITY = {"kind": "irq_affinity", "device": DEVICE, "cpus": "4,6", "control_cpus": "2"}
XPS = {"kind": "queue_cpus", "device": DEVICE, "steering": "xps", "cpus": "4,6"}
WHOLE = {"irq_affinity": [AFFINITY, XPS], "queues": [COALESCE, RINGS, channels()]}


def put(driver: Port, slices: Mapping[str, Any], **more: Any) -> Any:
    return apply(slices, root=str(driver.node), tools=driver, **more)


def test_channels_come_before_rings_before_coalescing_and_all_before_the_interrupts(driver: Port) -> None:
    outcome = put(driver, WHOLE)
    assert outcome.failures == ()
    assert list(dict.fromkeys(group for group, _ in driver.writes)) == [
        ethtool.CHANNELS,
        ethtool.RINGS,
        ethtool.COALESCE,
    ]
    # Three changes of queues, each with vectors of other numbers; those that are there now are placed.
    assert driver.irqs() == {9: "2", 120: "4", 121: "6"}
    assert driver.steering("xps") == ["00000010", "00000040"]
    assert item_of(outcome, f"irq_affinity:{DEVICE}")["after"] == {"120": "4", "121": "6", "9": "2"}


def item_of(outcome: Any, name: str) -> dict[str, Any]:
    (found,) = [one[name] for one in (items(outcome, part) for part in outcome.slices) if name in one]
    return found


def test_a_second_run_changes_nothing_and_stops_no_port(driver: Port) -> None:
    put(driver, WHOLE)
    before = len(driver.writes)
    outcome = put(driver, WHOLE)
    assert (outcome.changed, outcome.failures, len(driver.writes)) == (False, (), before)


def test_a_check_writes_nothing_and_says_that_interrupts_come_after(driver: Port) -> None:
    outcome = put(driver, WHOLE, check=True)
    assert outcome.changed
    assert driver.writes == []
    assert "placed after that" in item_of(outcome, f"irq_affinity:{DEVICE}")["note"]
    assert driver.irqs() == {9: "0-9", 60: "0-9", 61: "0-9", 62: "0-9", 63: "0-9"}


def test_a_revert_gives_queues_and_interrupts_back(driver: Port) -> None:
    before = {group: dict(values) for group, values in driver.values.items()}
    put(driver, WHOLE)
    outcome = revert(root=str(driver.node), tools=driver)
    assert outcome.failures == ()
    assert driver.values == before
    assert set(driver.irqs().values()) == {"0-9"}
    assert len(driver.irqs()) == 5
    assert not (driver.node / "var/lib/railwright").exists()


def test_new_interrupts_that_a_reload_of_the_driver_brings_are_placed_by_the_next_run(driver: Port) -> None:
    put(driver, WHOLE)
    driver.first += 40
    driver.values[ethtool.CHANNELS]["combined"] = 8
    driver.open()
    put(driver, WHOLE)
    assert set(driver.irqs().values()) == {"2", "4", "6"}
    assert len(driver.irqs()) == 3


def test_a_port_that_somebody_uses_is_not_stopped(driver: Port) -> None:
    driver.users = [{"ifname": "mlx5_0", "lqpn": 70, "type": "RC", "pid": 4711, "comm": "python3"}]
    outcome = put(driver, WHOLE)
    assert len(outcome.failures) == 3
    assert all("in use by python3 (process 4711)" in failure.why for failure in outcome.failures)
    assert driver.writes == []
    assert driver.irqs() == {9: "2", 60: "4", 61: "6", 62: "4", 63: "6"}


def test_a_wait_alone_stops_nothing_and_is_set_while_a_port_is_used(driver: Port) -> None:
    driver.users = [{"ifname": "mlx5_0", "lqpn": 70, "type": "RC", "pid": 4711, "comm": "python3"}]
    driver.values[ethtool.COALESCE]["adaptive_rx"] = 0
    assert put(driver, {"queues": [COALESCE]}).failures == ()
    assert driver.writes == [(ethtool.COALESCE, {"rx_usecs": 16})]
    assert driver.first == 60


def test_numbers_come_after_the_switch_that_takes_its_own(driver: Port) -> None:
    assert put(driver, {"queues": [COALESCE]}).failures == ()
    assert driver.values[ethtool.COALESCE]["rx_usecs"] == 16
    assert not put(driver, {"queues": [COALESCE]}).changed


@pytest.mark.parametrize("group", [ethtool.RINGS, ethtool.CHANNELS])
def test_what_the_driver_refuses_is_tried_once_and_interrupts_are_placed_all_the_same(
    driver: Port, group: ethtool.Group
) -> None:
    driver.refuses, driver.refused = errno.EINVAL, (group,)
    for _ in range(2):
        driver.writes.clear()
        (failure,) = put(driver, WHOLE).failures
        assert "the driver refuses" in failure.why
        assert [one for one, _ in driver.writes].count(group) == 1
        assert set(driver.irqs().values()) == {"2", "4", "6"}
        assert set(driver.steering("xps")) == {"00000010", "00000040"}


def test_a_reboot_that_another_item_is_owed_outlives_the_second_pass() -> None:
    """The second pass has a part of the items only, and a card that tells of its own reboot is none of them."""
    first = Outcome({"nic_firmware": ()}, (), (), (f"nvconfig:{DEVICE}",))
    assert first.then(Outcome({"nic_firmware": ()}, (), (), ())).reboot_needed == (f"nvconfig:{DEVICE}",)


def test_a_port_that_went_away_is_named_as_gone(driver: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(netdev: str, group: ethtool.Group) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(ethtool, "read", gone)
    (failure,) = put(driver, {"queues": [RINGS]}).failures
    assert failure.why == f"{NETDEV}: No such device"


def test_the_ioctl_tells_a_missing_port_from_a_driver_that_does_not_expose_it() -> None:
    with pytest.raises(OSError, match="No such device"):
        ethtool.read("rw-none", ethtool.CHANNELS)
    assert ethtool.read("lo", ethtool.CHANNELS) is None


def test_after_a_link_that_did_not_come_back_no_other_is_taken_down(driver: Port) -> None:
    driver.dark = True
    outcome = put(driver, {"queues": [channels(), RINGS]})
    assert [group for group, _ in driver.writes] == [ethtool.CHANNELS]
    assert "the link has not come back" in outcome.failures[0].why
    assert "was left alone, since the link of" in outcome.failures[1].why


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EINVAL, errno.EOPNOTSUPP])
def test_what_the_driver_refuses_is_named(driver: Port, number: int) -> None:
    driver.refuses = number
    (failure,) = put(driver, {"queues": [channels()]}).failures
    assert failure.why == f"{NETDEV}: the driver refuses channels combined 2: {os.strerror(number)}"


def test_more_than_the_driver_has_is_refused(driver: Port) -> None:
    (failure,) = put(driver, {"queues": [channels(16)]}).failures
    assert failure.why == f"{NETDEV} has at most 8 channels combined, asked for 16"


def test_what_the_driver_does_not_expose_is_named(driver: Port) -> None:
    (failure,) = put(driver, {"queues": [{"kind": "ethtool_channels", "device": DEVICE, "rx": 4}]}).failures
    assert failure.why == f"{DEVICE}: its driver does not expose channels rx"
    del driver.values[ethtool.RINGS]
    (failure,) = put(driver, {"queues": [RINGS]}).failures
    assert failure.why == f"{NETDEV}: its driver does not expose this"


def test_a_function_without_a_netdev_is_named(driver: Port) -> None:
    (failure,) = put(driver, {"queues": [{**RINGS, "device": "0000:3b:00.0"}]}).failures
    assert failure.why == "the node has no PCI function 0000:3b:00.0"


def test_queues_of_a_card_that_is_gone_are_released_and_what_is_left_goes_back(driver: Port) -> None:
    put(driver, WHOLE)
    shutil.rmtree(driver.node / f"sys/bus/pci/devices/{DEVICE}")
    failures = put(driver, {"irq_affinity": [XPS], "queues": WHOLE["queues"]}).failures
    assert [one.why for one in failures] == [f"the node has no PCI function {DEVICE}"] * 4
    assert revert(root=str(driver.node), tools=driver).failures == ()
    assert not (driver.node / "var/lib/railwright").exists()


def test_a_job_that_begins_between_the_look_and_the_write_keeps_its_queues(driver: Port) -> None:
    asked = 0

    def rdma(argv: Sequence[str]) -> Said:
        nonlocal asked
        asked += 1
        users = [{"ifname": "mlx5_0", "lqpn": 70, "type": "RC", "pid": 4711, "comm": "python3"}]
        return Said(0, json.dumps(users if asked > 1 else []))

    (failure,) = apply({"queues": [RINGS]}, root=str(driver.node), tools=rdma).failures
    assert "in use by python3 (process 4711)" in failure.why
    assert driver.writes == []


def test_packets_are_not_spread_by_the_kernel_where_that_is_asked(driver: Port) -> None:
    wish = {"kind": "queue_cpus", "device": DEVICE, "steering": "rps", "cpus": ""}
    put(driver, {"queues": [wish]})
    assert driver.steering("rps") == ["00000000"] * 4
    assert not put(driver, {"queues": [wish]}).changed
    revert(root=str(driver.node), tools=driver)
    assert driver.steering("rps") == ["000000ff"] * 4


def test_a_mask_of_512_cpus_is_read_and_written_beyond_its_first_word(driver: Port) -> None:
    plant(driver.node, f"/{NET}/queues/tx-0/xps_cpus", ",".join(["00000000"] * 16) + "\n")
    outcome = put(driver, {"irq_affinity": [{**XPS, "cpus": "85,511"}]})
    assert item(outcome)["after"] == {"tx-0": "85", "tx-1": "511", "tx-2": "85", "tx-3": "511"}
    # CPU 85 is bit 21 of the third group from the right; CPU 511 is the highest of sixteen.
    assert driver.steering("xps")[:2] == ["00200000,00000000,00000000", "80000000" + ",00000000" * 15]


def test_a_queue_that_the_kernel_refuses_is_named_and_those_before_it_are_told(
    driver: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: str, value: str) -> None:
        if "tx-2" in path:
            raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
        kernel_items.write_value(path, value)

    monkeypatch.setattr("railwright.node.state.queues_item.write_value", write)
    outcome = put(driver, {"irq_affinity": [XPS]})
    (failure,) = outcome.failures
    assert failure.why == f"{DEVICE} tx-2 xps: the kernel refuses '4': {os.strerror(errno.EOVERFLOW)}"
    assert outcome.changed
    assert driver.steering("xps")[:3] == ["00000010", "00000040", "00000000,00000000"]


@pytest.mark.parametrize(
    "mask", ["", "xyz", "0x10", "00000010 ", "0000001,0", "1\n2", "-1", "ffffffffff"] * 4
)
def test_a_garbled_mask_is_a_failure_and_nothing_is_written(driver: Port, mask: str) -> None:
    if mask.strip() == "00000010":
        mask = "00000010;"
    plant(driver.node, f"/{NET}/queues/tx-2/xps_cpus", mask)
    (failure,) = put(driver, {"irq_affinity": [XPS]}).failures
    assert "tx-2/xps_cpus: found " in failure.why
    assert driver.steering("xps")[0] == "00000000,00000000"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"kind": "ethtool_channels", "device": DEVICE}, "sets nothing"),
        (channels(0), "0 is out of range"),
        (channels(device="eth0"), "is no PCI address"),
        ({**COALESCE, "adaptive_rx": 2}, "2 is out of range"),
        ({**RINGS, "jumbo": 1}, "unknown key"),
        ({**XPS, "steering": "rfs"}, "expected xps or rps"),
        ({**XPS, "cpus": ""}, "no CPU is named"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(driver: Port, entry: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        put(driver, {"queues": [entry]})


def test_the_ioctl_gives_what_ethtool_prints() -> None:
    """On this machine's own interfaces, as far as they have rings; ethtool is the other witness."""
    if shutil.which("ethtool") is None:
        pytest.skip("ethtool is not installed")
    compared = 0
    for name in os.listdir("/sys/class/net"):
        found = ethtool.read(name, ethtool.RINGS)
        said = subprocess.run(["ethtool", "-g", name], capture_output=True, text=True, check=False)
        if found is None or said.returncode != 0:
            continue
        told = [line.split()[-1] for line in said.stdout.splitlines() if line.startswith(("RX:", "TX:"))]
        wanted = [str(found[key]) for key in ("most_rx", "most_tx", "rx", "tx")]
        assert told == [value if value != "0" else "n/a" for value in wanted] or told == wanted
        compared += 1
    if not compared:
        pytest.skip("no interface of this machine tells its rings")
