"""The rails' network on lab nodes: both addressing modes, flaps, a lost device and the way back.

The judges are ip(8), ping(8), the kernel's counter of carrier changes, and counters where the cables enter the fabric.
The other back-ends have their turn in long_rails.py (`make lab-rails`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.lab import flavours, namespaces, racks
from tests.lab.lab import Lab, Wanted
from tests.lab.namespaces import ip
from tests.lab.railnet import Counters, Rails, rails_of
from tests.lab.shell import ask, call

RAILS = range(8)
NETWORK = "network:rails"


@pytest.fixture(scope="module")
def pair(ready: None) -> Iterator[tuple[Rails, Rails]]:
    """Two nodes of eight rails each, both with every back-end and none of them running."""
    wanted = [
        Wanted(name, flavours.MANAGERS, machine)
        for name, machine in zip(("n1", "n2"), racks.MACHINES, strict=True)
    ]
    with racks.raised("rails", *wanted) as lab:
        # The controller's kernel would answer for its own address on the rails' switches too.
        quiet = "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore"
        call(namespaces.within(lab.fabric.pid, "sh", "-c", quiet))
        one, other = (rails_of(lab, node) for node in lab.nodes)
        yield one, other


@pytest.fixture(scope="module")
def counters(pair: tuple[Rails, Rails]) -> Iterator[Counters]:
    made = Counters(pair[0].lab, {rail: pair[0].end(rail) for rail in RAILS})
    yield made
    made.close()


def both(pair: tuple[Rails, Rails], backend: str) -> None:
    """Both nodes bare, and with this back-end running."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rails: (rails.bare(), rails.manage(backend)), pair))


def tuned(pair: tuple[Rails, Rails], backend: str, **policy: bool) -> None:
    both(pair, backend)
    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(lambda rails: rails.run("apply", rails.policy(backend, **policy)), pair))
    assert [one.failures for one in ran] == [(), ()]


def reach(one: Rails, other: Rails, flat: bool = False) -> dict[int, bool]:
    """Whether each rail's address reaches its peer's: three pings on each rail, all rails at once."""
    pings = "; ".join(
        f"(ping -q -n -c 3 -i 0.2 -W 2 -I {one.address(rail, flat)} {other.address(rail, flat)} > /dev/null; "
        f"echo {rail} $?) &"
        for rail in RAILS
    )
    said = one.node.must(f"{pings.replace('&;', '&')} wait").split()
    return {int(rail): code == "0" for rail, code in zip(said[::2], said[1::2], strict=True)}


def alone(one: Rails, other: Rails, rail: int, counters: Counters, flat: bool = False) -> dict[int, int]:
    """Pings from one rail to its peer alone; on which rails they left the node."""
    counters.read()
    one.node.must(
        f"ping -q -n -c 2 -i 0.2 -W 2 -I {one.address(rail, flat)} {other.address(rail, flat)} > /dev/null"
    )
    return {number: count for number, count in counters.read().items() if count}


def test_each_rail_has_its_own_way_and_a_second_run_changes_nothing(
    pair: tuple[Rails, Rails], counters: Counters
) -> None:
    each_has_its_own_way(pair, counters, "networkd")


def each_has_its_own_way(pair: tuple[Rails, Rails], counters: Counters, backend: str) -> None:
    """A back-end's whole story: foretold, set, proved, run again, taken back."""
    one, other = pair
    both(pair, backend)
    before = one.network()
    policy = one.policy()
    foretold = one.run("apply", policy, check=True)
    assert one.network() == before
    first = one.run("apply", policy)
    assert first.failures == ()
    assert NETWORK in first.changed
    assert foretold.changed == first.changed
    assert other.run("apply", other.policy()).failures == ()
    assert reach(one, other) == dict.fromkeys(RAILS, True)
    for rail in RAILS:
        assert alone(one, other, rail, counters) == {rail: 2}
    # And by the kernel's own word, without a packet.
    for rail in RAILS:
        (way,) = one.told("route", "get", other.address(rail), "from", one.address(rail))
        assert (way["dev"], way["table"]) == (one.netdevs[rail], str(100 + rail))
        # Beyond its network no gateway is given, and the management network's default route is not for rails.
        assert "No route to host" in one.node.ssh(f"ip route get 192.0.2.9 from {one.address(rail)}").stderr
    flaps = one.flaps()
    second = one.run("apply", policy)
    assert (second.changed, second.failures) == ((), ())
    assert one.flaps() == flaps
    undone = one.run("revert")
    assert undone.failures == ()
    assert one.network() == before


def test_a_rail_that_flaps_or_whose_device_comes_back_has_its_way_again(
    pair: tuple[Rails, Rails], counters: Counters
) -> None:
    one, other = pair
    tuned(pair, "networkd")
    assert reach(one, other) == dict.fromkeys(RAILS, True)
    one.lab.fabric.cut(one.end(2))
    assert reach(one, other) == {rail: rail != 2 for rail in RAILS}
    one.lab.fabric.mend(one.end(2))
    assert eventually(lambda: reach(one, other)[2])
    # The card is gone, and comes back with what the kernel gives a new device.
    with out(one, 5):
        assert reach(one, other) == {rail: rail != 5 for rail in RAILS}
    assert eventually(lambda: reach(one, other)[5])
    assert alone(one, other, 5, counters) == {5: 2}
    assert one.run("apply", one.policy()).failures == ()


def test_in_a_flat_network_every_rail_answers_for_itself_alone(
    pair: tuple[Rails, Rails], counters: Counters
) -> None:
    flat(pair, counters, quiet=True)


def flat(pair: tuple[Rails, Rails], counters: Counters, quiet: bool) -> None:
    """All rails in one network. quiet: with the planned sysctls; without them the wrong rails answer."""
    one, other = pair
    with one_network(pair):
        tuned(pair, "networkd", flat=True)
        if not quiet:
            # The fault that the planned case must not have.
            for rails in pair:
                rails.run("revert", slices=["sysctls"])
        assert reach(one, other, flat=True) == dict.fromkeys(RAILS, True)
        heard = neighbours(other, one)
        own = {rail: mac(one, rail) for rail in RAILS}
        assert (heard == own) is quiet
        if quiet:
            for rail in RAILS:
                assert alone(one, other, rail, counters, flat=True) == {rail: 2}


def test_a_change_that_cuts_the_controller_off_undoes_itself(pair: tuple[Rails, Rails]) -> None:
    one, _ = pair
    tuned(pair, "networkd")
    before = one.network()
    policy = one.policy(confirm_seconds=6)
    # The controller is 10.77.0.1, and answers to it leave by the rail from then on.
    policy["rails"]["addresses"][0] = {"rail": 0, "address": "10.77.0.9/24"}
    page = "/tmp/lockout.json"
    asked = json.dumps({"verb": "apply", "policy": policy, "check": False, "slices": ["rail_network"]})
    one.node.must(f"cat > {page}", stdin=asked)
    one.node.must(f"(setsid python3 /opt/railwright/drive.py < {page} > /tmp/lockout.log 2>&1 &)")
    one.node.disconnect()
    assert eventually(lambda: not answers(one), 20), one.node.must("cat /tmp/lockout.log")
    assert eventually(lambda: answers(one), 60)
    assert eventually(lambda: one.network() == before, 20)
    assert "10.77.0.9" not in one.node.must("cat /etc/systemd/network/70-railwright-rail0.network")
    # What was undone is not set again by the next run.
    again = one.run("apply", policy, slices=["rail_network"])
    assert "nobody came back" in str(again.failures)
    assert one.network() == before


def test_a_reboot_before_anybody_came_back_undoes_the_change(pair: tuple[Rails, Rails]) -> None:
    """No firewall asks for network-pre.target here, so nothing that waits for it alone would run."""
    one, _ = pair
    tuned(pair, "networkd")
    one.run("apply", one.policy())  # whoever calls again confirms
    page = "/etc/systemd/network/70-railwright-rail0.network"
    before, boot = one.node.must(f"cat {page}"), one.node.read("/proc/sys/kernel/random/boot_id")
    policy = one.policy(confirm_seconds=3600)
    policy["rails"]["addresses"][0] = {"rail": 0, "address": "10.100.200.9/24"}
    assert one.run("apply", policy, slices=["rail_network"]).failures == ()
    assert "10.100.200.9" in one.node.must(f"cat {page}")
    one.node.ssh("systemctl reboot")
    one.node.wait(not_boot=boot)
    assert one.node.must(f"cat {page}") == before
    assert "it was undone" in one.node.must("journalctl -b -q --no-pager -o cat -u railwright-undo.service")
    assert "railwright-undo" not in one.node.must("find /etc/systemd/system")


def eventually(holds: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.3)
    return False


def answers(rails: Rails) -> bool:
    """Whether the node's sshd can be reached from the controller's side."""
    lab = rails.lab
    probe = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 22), 1); s.settimeout(1); "
        "sys.exit(0 if s.recv(4) == b'SSH-' else 1)"
    )
    return ask(lab.controller("python3", "-c", probe, rails.node.spec.address)).returncode == 0


def mac(rails: Rails, rail: int) -> str:
    (link,) = rails.told("link", "show", "dev", rails.netdevs[rail])
    return str(link["address"])


def neighbours(asking: Rails, asked: Rails) -> dict[int, str]:
    """By which hardware address each of a node's rails answers."""
    asking.node.must("ip neigh flush all")
    reach(asking, asked, flat=True)
    heard = {one["dst"]: one.get("lladdr", "") for one in asking.told("neigh")}
    return {rail: heard.get(asked.address(rail, flat=True), "") for rail in RAILS}


@contextmanager
def one_network(pair: tuple[Rails, Rails]) -> Iterator[None]:
    """All rails on the first rail's switch."""
    fabric = pair[0].lab.fabric.pid
    ends = [(rails.end(rail), rail) for rails in pair for rail in RAILS]
    ip([f"link set {end} master sw100.0" for end, _ in ends], fabric)
    try:
        yield
    finally:
        ip([f"link set {end} master sw100.{rail}" for end, rail in ends], fabric)


@contextmanager
def out(rails: Rails, rail: int) -> Iterator[None]:
    """One rail's device is gone; afterwards one of the same name, place and hardware address is there."""
    lab: Lab = rails.lab
    end, netdev, own = rails.end(rail), rails.netdevs[rail], mac(rails, rail)
    ip([f"link del {end}"], lab.fabric.pid)
    try:
        yield
    finally:
        keeper = rails.node.keeper.pid
        ip([f"link add {end} type veth peer name {netdev} address {own} netns {keeper}"], lab.fabric.pid)
        ip([f"link set {end} master sw100.{rail} up"], lab.fabric.pid)
