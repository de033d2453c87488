"""What takes longer of the rails: netplan, NetworkManager, ARP flux where nothing prevents it, a boot's whole wait."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from railwright.fleet import zipapp
from railwright.node.model import Policy
from railwright.plan import boot_unit
from tests.lab.railnet import Counters, Rails
from tests.lab.test_lab_rails import (
    RAILS,
    both,
    counters,
    each_has_its_own_way,
    eventually,
    flat,
    pair,
    reach,
)

__all__ = ["counters", "pair"]


@pytest.mark.parametrize("backend", ["netplan", "networkmanager"])
def test_the_other_back_ends_do_the_same(pair: tuple[Rails, Rails], counters: Counters, backend: str) -> None:
    each_has_its_own_way(pair, counters, backend)


def test_without_the_planned_sysctls_rails_answer_for_each_other(
    pair: tuple[Rails, Rails], counters: Counters
) -> None:
    flat(pair, counters, quiet=False)


def test_a_revert_after_which_nobody_comes_back_undoes_itself(pair: tuple[Rails, Rails]) -> None:
    one, other = pair
    both(pair, "networkd")
    bare = one.network()
    policy = one.policy(confirm_seconds=6)
    assert one.run("apply", policy, slices=["rail_network"]).failures == ()
    assert other.run("apply", other.policy()).failures == ()
    one.run("confirmed")
    before = one.network()
    assert one.run("revert", slices=["rail_network"]).failures == ()
    assert reach(one, other) == dict.fromkeys(RAILS, False)
    assert eventually(lambda: one.network() == before, 30)
    assert reach(one, other) == dict.fromkeys(RAILS, True)
    # It is known for our own again: a run finds nothing to do, and a revert that is confirmed is exact.
    assert one.run("apply", policy, slices=["rail_network"]).changed == ()
    assert one.run("revert", slices=["rail_network"]).failures == ()
    one.run("confirmed")
    time.sleep(10)
    assert [route for route in one.network()["routes"] if route not in bare["routes"]] == []
    assert one.network() == bare


def test_a_dead_cable_delays_work_and_never_the_administrator(pair: tuple[Rails, Rails]) -> None:
    """A rail that the policy expects never comes. The unit's whole wait is waited for: some 70 s."""
    node = pair[0].node
    program = zipapp.build()
    policy = Policy.read(
        {
            "schema": "railwright.policy/1",
            "expect": {"rails": 9},
            "boot": {"sha256": hashlib.sha256(program).hexdigest(), "gate": ["kubelet.service"]},
        }
    )
    made = boot_unit.slice_of(policy)
    assert made is not None
    for entry in made.entries:
        if "content" in entry:
            node.must(f"mkdir -p $(dirname {entry['path']}) && cat > {entry['path']}", stdin=entry["content"])
    node.must(f"mkdir -p $(dirname {boot_unit.ZIPAPP}) && base64 -d > {boot_unit.ZIPAPP}",
              stdin=base64.b64encode(program).decode())  # fmt: skip
    for work in ("slurmd", "kubelet"):
        page = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
        node.must(f"cat > /etc/systemd/system/{work}.service", stdin=page)
    node.must(f"systemctl daemon-reload && systemctl enable {boot_unit.BOOT_UNIT} slurmd kubelet")
    before = node.read("/proc/sys/kernel/random/boot_id")
    node.ssh("systemctl reboot")
    # sshd answers in the new boot while the unit is still waiting, and work has not begun.
    deadline = time.monotonic() + 60
    states: list[str] = []
    while time.monotonic() < deadline and states[:2] != ["activating", "inactive"]:
        said = node.ssh(
            f"cat /proc/sys/kernel/random/boot_id; systemctl is-active {boot_unit.BOOT_UNIT} slurmd"
        )
        boot, _, rest = said.stdout.partition("\n")
        states = rest.split() if boot not in ("", before) else []
    assert states == ["activating", "inactive"]
    node.wait(not_boot=before)
    states = node.ssh(f"systemctl is-active {boot_unit.BOOT_UNIT} slurmd kubelet").stdout.split()
    assert states == ["failed", "active", "inactive"]
    lines = node.must(f"journalctl -b -q --no-pager -o cat -u {boot_unit.BOOT_UNIT}").splitlines()
    assert any(line.startswith("waiting up to 60 s: ") for line in lines)
    assert "waited 60 s in vain" in lines
    (refused,) = [line for line in lines if line.startswith("refused: ")]
    assert "9" in refused
    # What has to be repaired can be asked for alone, and the gate says why the work does not start.
    assert refused in node.must(f"journalctl -b -q --no-pager -o cat -p err -u {boot_unit.BOOT_UNIT}")
    assert "Assertion failed" in node.ssh("systemctl start kubelet").stderr
    assert node.ssh(f"python3 {boot_unit.ZIPAPP} check").returncode != 0
