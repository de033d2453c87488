"""The QoS of rails on a lab node without dcb: mlnx_qos's stand-in keeps state and fails as the real one does.

A veth device has neither pause nor RDMA, so two small programs answer for the driver there. The exit status of
ethtool is that of mlx5, which takes pause and cannot take its autonegotiation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import packages
from tests.lab.lab import Node
from tests.lab.on_guest import changed, converge, revert

ETHTOOL = """#!/bin/sh
kept=/run/lab-pause/$2
case $1 in
-a) now=$(cat "$kept" 2> /dev/null || echo on)
    printf 'Pause parameters for %s:\\nAutonegotiate:\\toff\\nRX:\\t\\t%s\\nTX:\\t\\t%s\\n\\n' "$2" "$now" "$now" ;;
-A) mkdir -p /run/lab-pause && echo "$4" > "$kept"
    echo 'netlink error: Operation not supported' >&2
    exit 76 ;;
*) exec /usr/sbin/ethtool "$@" ;;
esac
"""
RDMA = """#!/bin/sh
[ "$*" = "-j resource show qp" ] || exec /usr/bin/rdma "$@"
cat /run/lab-qp 2> /dev/null || echo '[]'
"""
PARTS: dict[str, Any] = {
    "dcbx": "host ieee",
    "trust": "dscp",
    "app": {str(point): {26: 3, 48: 6}.get(point, 0) for point in range(64)},
    "ets": {
        "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
        "tc_tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
        "tc_bw": [50, 0, 0, 50, 0, 0, 0, 0],
    },
    "rate": [0, 0, 0, 12_500_000_000, 0, 0, 0, 0],
    "pfc": [3],
    "cable": 30,
    "buffer": {"prio_buffer": [0, 0, 0, 1, 0, 0, 0, 0], "size": [18944, 180970, 0, 0, 0, 0, 0, 0]},
}


@pytest.fixture(scope="module")
def node(archive: packages.Archive, trixie: Node) -> Iterator[Node]:
    trixie.must("DEBIAN_FRONTEND=noninteractive apt-get -qq -y install mlnx-tools")
    trixie.must("rm -rf /run/mlnx_qos; mv /usr/sbin/dcb /usr/sbin/dcb.away; mkdir -p /usr/local/sbin")
    for name, text in (("ethtool", ETHTOOL), ("rdma", RDMA)):
        trixie.must(f"cat > /usr/local/sbin/{name} && chmod 755 /usr/local/sbin/{name}", stdin=text)
    yield trixie
    trixie.must(
        "mv /usr/sbin/dcb.away /usr/sbin/dcb; "
        "rm -rf /usr/local/sbin/ethtool /usr/local/sbin/rdma /run/lab-pause /run/lab-qp /run/mlnx_qos"
    )


@pytest.fixture(scope="module")
def rails(node: Node) -> dict[str, str]:
    """PCI functions of two rails, and their netdevs."""
    netdevs = sorted(port.netdev for port in node.ports if port.switch.startswith("sw100."))[:2]
    return {
        node.must(f"basename $(readlink -f /sys/class/net/{netdev}/device)").strip(): netdev
        for netdev in netdevs
    }


def slices(rails: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "lossless": [
            entry
            for device in rails
            for entry in (
                {"kind": "pause", "device": device, "rx": False, "tx": False},
                {"kind": "dcb", "device": device, **PARTS, **more},
            )
        ]
    }


def kept(node: Node, netdev: str) -> dict[str, Any]:
    """What the tool itself has of a port."""
    found: dict[str, Any] = json.loads(node.must(f"cat /run/mlnx_qos/{netdev}.json"))
    return found


def test_both_rails_are_set_by_mlnx_qos_and_a_second_run_calls_it_for_nothing(
    node: Node, rails: dict[str, str]
) -> None:
    foretold = converge(node, slices(rails), check=True)
    assert node.ssh("ls /run/mlnx_qos /run/lab-pause").stdout == ""
    done = converge(node, slices(rails))
    assert (foretold["failures"], done["failures"]) == ([], [])
    assert changed(done) == changed(foretold)
    assert len(changed(done)) == 4
    for netdev in rails.values():
        there = kept(node, netdev)
        assert (there["dcbx"], there["trust"], there["cable_len"]) == ("os", "dscp", 30)
        assert there["pfc"] == [0, 0, 0, 1, 0, 0, 0, 0]
        assert {point: prio for point, prio in enumerate(there["dscp2prio"]) if prio} == {26: 3, 48: 6}
        assert (there["prio_tc"], there["tcbw"]) == (PARTS["ets"]["prio_tc"], PARTS["ets"]["tc_bw"])
        assert there["ratelimit"][3] == 100
        assert there["buffer_size"][1] == 180970
        assert "enabled     0   0   0   1   0   0   0   0" in node.must(f"mlnx_qos -i {netdev}")
    stamps = "stat -c %y /run/mlnx_qos/* /run/lab-pause/*"
    before = node.must(stamps)
    again = converge(node, slices(rails))
    assert (again["failures"], changed(again)) == ([], set())
    assert node.must(stamps) == before


def test_a_port_in_use_keeps_its_link(node: Node, rails: dict[str, str]) -> None:
    device = next(iter(rails))
    rdma = node.must(f"ls /sys/bus/pci/devices/{device}/infiniband").split()[0]
    row = {"ifname": rdma, "lqpn": 300, "type": "RC", "state": "RTS", "pid": 4711, "comm": "train.py"}
    node.must("cat > /run/lab-qp", stdin=json.dumps([row]))
    try:
        (failure,) = converge(node, slices(rails, pfc=[4]))["failures"]
        assert "in use by train.py (process 4711)" in failure["why"]
        assert kept(node, rails[device])["pfc"] == [0, 0, 0, 1, 0, 0, 0, 0]
    finally:
        node.must("rm /run/lab-qp")
    assert converge(node, slices(rails))["failures"] == []


def test_its_traceback_is_told_by_its_last_line_and_the_other_port_is_set(
    node: Node, rails: dict[str, str]
) -> None:
    """The driver has pause on behind ethtool's back: PFC is refused, and mlnx_qos dies of its own error message."""
    first, other = rails.values()
    there = {**kept(node, first), "pause": True}
    node.must(f"cat > /run/mlnx_qos/{first}.json", stdin=json.dumps(there))
    try:
        (failure,) = converge(node, slices(rails, cable=50))["failures"]
        assert "TypeError: set_ieee_pfc: Invalid argument" in failure["why"]
        assert (kept(node, first)["cable_len"], kept(node, other)["cable_len"]) == (30, 50)
    finally:
        node.must(f"cat > /run/mlnx_qos/{first}.json", stdin=json.dumps({**there, "pause": False}))
    assert converge(node, slices(rails))["failures"] == []


def test_a_reboot_forgets_it_and_a_revert_gives_back_what_the_boot_brought(
    node: Node, rails: dict[str, str]
) -> None:
    netdev = next(iter(rails.values()))
    written = kept(node, netdev)
    node.reboot()
    fresh = node.must(f"mlnx_qos -i {netdev}")
    assert "Priority trust state: pcp" in fresh
    assert converge(node, slices(rails))["failures"] == []
    assert kept(node, netdev) == written
    undone = revert(node, "lossless")
    assert undone["failures"] == []
    # Of trust in the VLAN tag the map is of no account, and the tool does not show it.
    assert node.must(f"mlnx_qos -i {netdev}") == fresh
    assert changed(revert(node, "lossless")) == set()
