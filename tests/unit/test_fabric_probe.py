"""The proof by traffic: a share of packets in the right priority, and what proves nothing."""

from __future__ import annotations

import pytest

from railwright.fabric.probe import SENT, Probe, counters, dscp_probe
from railwright.node.model import InputError
from tests.unit.fabric_samples import contract

# `ethtool -S` of an mlx5 port, shortened.
TEXT = """\
NIC statistics:
     rx_packets: 9
     rx_prio0_bytes: 77
     rx_prio0_packets: {0}
     tx_prio0_packets: 5
     rx_prio3_packets: {3}
     rx_prio3_pause: 0
     rx_prio6_packets: {6}
"""


def probe(before: tuple[int, int, int], after: tuple[int, int, int], dscp: int = 26) -> Probe:
    first, second = (
        counters(TEXT.format(p0, "", "", p3, "", "", p6), "gpu01 rail0") for p0, p3, p6 in (before, after)
    )
    return dscp_probe(contract("sonic"), dscp, first, second, "gpu01 rail0")


def test_all_but_one_in_a_hundred_in_the_class_is_a_proof() -> None:
    held = probe((100, 0, 0), (200, 9900, 0))
    assert (held.share, held.finding) == (0.99, None)
    assert held.by_prio == {0: 100, 3: 9900, 6: 0}


def test_one_packet_more_elsewhere_is_none() -> None:
    failed = probe((100, 0, 0), (201, 9900, 0))
    assert failed.finding is not None
    assert failed.finding.severity == "error"


def test_traffic_in_priority_0_is_told_as_what_it_is() -> None:
    failed = probe((0, 5, 0), (50_000, 10, 0))
    assert failed.finding is not None
    assert "of 50005 packets with DSCP 26 0.0% came in priority 3, most in 0" in failed.finding.why


def test_notifications_have_their_own_priority() -> None:
    assert probe((0, 0, 0), (0, 0, 5000), dscp=48).finding is None


@pytest.mark.parametrize(
    ("after", "why"),
    [((0, 999, 0), "999 packets came, 1000 are needed"), ((-1, 9999, 0), "a counter went backwards")],
)
def test_what_proves_nothing_is_not_verified(after: tuple[int, int, int], why: str) -> None:
    p0, p3, p6 = (base + more for base, more in zip((10, 0, 0), after, strict=True))
    unknown = probe((10, 0, 0), (p0, p3, p6))
    assert unknown.share is None
    assert unknown.finding is not None
    assert unknown.finding.severity == "info"
    assert why in unknown.finding.why


def test_a_nic_that_does_not_count_the_priority_is_not_verified() -> None:
    unknown = dscp_probe(contract("sonic"), 26, {"rx_prio0_packets": 0}, {"rx_prio0_packets": 9000}, "x")
    assert unknown.finding is not None
    assert unknown.finding.why == "not verified: the NIC counts nothing in priority 3"


def test_bad_input_says_what_was_expected() -> None:
    with pytest.raises(InputError, match=r"dscp: 10 is in no class \(one of 26, 48\)"):
        dscp_probe(contract("sonic"), 10, {}, {}, "x")
    with pytest.raises(InputError, match="holds no counter rx_prioN_packets"):
        counters("no stats available", "x")


def test_the_sender_s_own_counters_tell_whether_what_leaves_is_marked() -> None:
    before = counters(
        "     tx_prio0_packets: 10\n     tx_prio3_packets: 5\n     rx_prio3_packets: 1\n", "x", SENT
    )
    assert before == {"tx_prio0_packets": 10, "tx_prio3_packets": 5}
    marked = {"tx_prio0_packets": 12, "tx_prio3_packets": 5005}
    assert dscp_probe(contract("sonic"), 26, before, marked, "gpu01 rail0", SENT).finding is None
    lossy = {"tx_prio0_packets": 5010, "tx_prio3_packets": 5}
    told = dscp_probe(contract("sonic"), 26, before, lossy, "gpu01 rail0", SENT).finding
    assert told is not None
    assert told.why.startswith("of 5000 packets with DSCP 26 0.0% left in priority 3, most in 0: the program")
