"""The fabric between nodes: what passes, what does not, and what a cut, a drop and a delay do. ping(8) is the judge."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab, Node

RAILS = range(8)


def netdev(node: Node, rail: int) -> str:
    return next(port.netdev for port in node.ports if port.switch == f"sw100.{rail}")


def address(node: Node, rail: int) -> str:
    return next(port.address.split("/")[0] for port in node.ports if port.switch == f"sw100.{rail}")


def reaches(node: Node, rail: int, there: str) -> bool:
    """One ping out of that rail's device."""
    return node.ssh(f"ping -n -c 1 -W 1 -I {netdev(node, rail)} {there}").returncode == 0


def sends(one: Node, other: Node, rail: int, port: int) -> bool:
    """Whether a datagram to that UDP port arrives."""
    listen = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); "
        f"s.bind(('{address(other, rail)}', {port})); print('ready', flush=True); s.recv(9)"
    )
    send = (
        "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        f"[(s.sendto(b'x', ('{address(other, rail)}', {port})), time.sleep(0.1)) for _ in range(10)]"
    )
    other.must(f'(python3 -c "{listen}" > /run/heard 2>&1; echo $? > /run/heard.code) > /dev/null 2>&1 &')
    other.must("for i in $(seq 50); do grep -qs ready /run/heard && break; sleep 0.1; done")
    one.must(f'python3 -c "{send}"')
    heard = "for i in $(seq 60); do [ -s /run/heard.code ] && break; sleep 0.1; done; cat /run/heard.code"
    return other.must(f"{heard}; rm /run/heard*").strip() == "0"


@pytest.fixture
def end(rack: Lab) -> Iterator[str]:
    """The fabric's end of the first node's rail 2, whole again afterwards."""
    name = rack.nodes[0].end(netdev(rack.nodes[0], 2))
    yield name
    rack.fabric.mend(name)


def test_each_rail_reaches_the_same_rail_of_the_other_node(rack: Lab) -> None:
    one, other = rack.nodes
    for rail in RAILS:
        assert reaches(one, rail, address(other, rail)), rail


def test_a_rails_switch_leads_to_no_other_rail(rack: Lab) -> None:
    """Asked on the same rail, a node's kernel answers for all its addresses (that is what arp_ignore is for)."""
    one, other = rack.nodes
    cut = other.end(netdev(other, 0))
    rack.fabric.cut(cut)
    try:
        for rail in (1, 4, 7):
            assert not reaches(one, 0, address(other, rail)), rail
    finally:
        rack.fabric.mend(cut)
    assert reaches(one, 0, address(other, 0))


def test_a_node_reaches_nothing_outside_the_lab(rack: Lab) -> None:
    # 192.0.2.1 is nobody's (RFC 5737); the way there is the controller, which does not forward.
    assert rack.nodes[0].ssh("ping -n -c 1 -W 1 192.0.2.1").returncode != 0


def test_a_cut_rail_is_down_and_its_neighbour_is_not(rack: Lab, end: str) -> None:
    one, other = rack.nodes
    rack.fabric.cut(end)
    assert not reaches(one, 2, address(other, 2))
    assert "NO-CARRIER" in one.must(f"ip link show {netdev(one, 2)}")
    assert reaches(one, 3, address(other, 3))
    rack.fabric.mend(end)
    assert reaches(one, 2, address(other, 2))


def test_a_port_can_drop_roce_and_let_the_rest_pass(rack: Lab, end: str) -> None:
    one, other = rack.nodes
    assert sends(one, other, 2, 4791)
    rack.fabric.drop(end, "ether type ip ip protocol udp udp dport 4791")
    assert not sends(one, other, 2, 4791)
    assert sends(one, other, 2, 4792)
    assert reaches(one, 2, address(other, 2))


def test_a_delayed_port_answers_that_much_later(rack: Lab, end: str) -> None:
    one, other = rack.nodes
    rack.fabric.delay(end, "sw100.2", 40)
    try:
        said = one.must(f"ping -n -c 3 -I {netdev(one, 2)} {address(other, 2)}")
    finally:
        rack.fabric.undelay(end, "sw100.2")
    times = [float(text) for text in re.findall(r"time=([\d.]+)", said)]
    # Both ways are held back; a busy machine only adds to it.
    assert len(times) == 3
    assert min(times) >= 80
    assert reaches(one, 2, address(other, 2))
