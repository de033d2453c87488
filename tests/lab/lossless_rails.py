"""What tests of lossless rails on the virtual machine share: policy, plan, and what other programs show of rails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lab import on_guest
from tests.lab.errors import LabError
from tests.lab.vm.machine import Vm

# Other code points than the defaults, so that nothing here is right by chance: data DSCP 10 in priority 4,
# notifications DSCP 46 in priority 5, storage DSCP 18 in priority 2 with at most 100 Gb/s.
CLASSES = {
    "roce": {"dscp": [10], "prio": 4, "lossless": True, "bandwidth_percent": 60},
    "cnp": {"dscp": [46], "prio": 5, "strict": True},
    "storage": {"dscp": [18], "prio": 2, "bandwidth_percent": 30, "rate_gbps": 100},
}
POLICY = {
    "expect": {"gpus": 2, "rails": 2},
    "cores": {"irq_per_nic": 1, "housekeeping": 0},
    "lossless": {"classes": CLASSES, "cable_m": 30, "speed_gbps": 400, "dcqcn": {"rp_ai_rate": 10}},
}
PARTS = ("pfc", "app", "ets", "maxrate", "buffer", "dcbx")
SECONDS = 900.0


# One call for all of it: each costs seconds in emulation.
_SHOW = """\
for device in {devices}; do
  netdev=$(ls /sys/bus/pci/devices/$device/net) || exit 1
  for part in {parts}; do echo "@$device $part"; dcb -j $part show dev $netdev || exit 1; done
  echo "@$device netdev"; echo $netdev
  echo "@$device pause"; ethtool -a $netdev | grep X:
  echo "@$device knobs"; cd /sys/kernel/debug/mlx5/$device/cc_params && grep . *
  echo "@$device flaps"; ethtool -S $netdev | sed -n "s/.*link_down_events_phy: //p"
  rdma=$(ls /sys/bus/pci/devices/$device/infiniband) || exit 1
  echo "@$device cma"; grep . /sys/kernel/config/rdma_cm/$rdma/ports/1/default_roce_* 2> /dev/null
done; true
"""


@dataclass(frozen=True)
class State:
    """What other programs show of the rails: by PCI address and part, a JSON value or text."""

    shown: dict[str, dict[str, Any]]
    flaps: dict[str, int]

    def __getitem__(self, device: str) -> dict[str, Any]:
        return self.shown[device]


def state(vm: Vm) -> State:
    """All that the slice may write, of each rail, and how often its link went down."""
    devices = " ".join(rail.pci for rail in vm.layout.rails)
    said = vm.must(_SHOW.format(devices=devices, parts=" ".join(PARTS)))
    shown: dict[str, dict[str, Any]] = {}
    for section in said.split("@")[1:]:
        title, _, text = section.partition("\n")
        device, part = title.split()
        shown.setdefault(device, {})[part] = json.loads(text) if part in PARTS else text.strip()
    flaps = {device: int(parts.pop("flaps")) for device, parts in shown.items()}
    return State(shown, flaps)


@pytest.fixture(scope="module")
def vm(nic_vm: Vm) -> Iterator[Vm]:
    yield nic_vm
    on_guest.revert(nic_vm)


@pytest.fixture(scope="module")
def plan(vm: Vm) -> Any:
    vm.must("cat > /run/policy.json", stdin=json.dumps(POLICY))
    made = on_guest.program(vm, "plan", "--policy", "/run/policy.json")
    assert made["status"] == "planned"
    return made


@pytest.fixture(scope="module")
def slices(plan: Any) -> dict[str, Any]:
    return {"lossless": plan["slices"]["lossless"]["entries"]}


@pytest.fixture(scope="module")
def before(vm: Vm) -> State:
    return state(vm)


@pytest.fixture(scope="module")
def written(vm: Vm, slices: dict[str, Any], before: State) -> State:
    """The state after the first run; a check went before it."""
    foretold = on_guest.converge(vm, slices, check=True)
    assert state(vm) == before, "a check changed something"
    done = on_guest.converge(vm, slices)
    assert done["failures"] == []
    assert on_guest.changed(done) == on_guest.changed(foretold)
    return state(vm)


def settled(vm: Vm) -> dict[str, dict[str, Any]]:
    """What is shown, {} while a device is on its way."""
    try:
        return state(vm).shown
    except (LabError, ValueError, KeyError):
        return {}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(2)
