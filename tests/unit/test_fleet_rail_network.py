"""What only several nodes show of the rails' network, each planted alone."""

from __future__ import annotations

from typing import Any

from railwright.fleet.members import Asked
from railwright.fleet.planning import plan_fleet
from railwright.node.model import Finding, Policy
from tests.unit.fleet_support import node

RAILS = range(8)


def fleet(*facts: Any) -> list[Finding]:
    asked = [Asked(f"n{number}", one, Policy()) for number, one in enumerate(facts, start=1)]
    return [finding for finding in plan_fleet(asked).findings if finding.code.startswith("rails.")]


def nodes(count: int) -> list[Any]:
    return [node("snc", number) for number in range(1, count + 1)]


def port(facts: Any, rail: int) -> Any:
    """The rail's port: on this machine the rails are its first eight RDMA devices, in order."""
    return [nic for nic in facts["nics"] if nic["rdma"]][rail]


def test_equal_nodes_have_no_finding() -> None:
    assert fleet(*nodes(3)) == []


def test_one_address_on_two_nodes_is_named_with_both() -> None:
    facts = nodes(3)
    # The same address is the same whatever network it is said to be in.
    port(facts[2], 4)["addresses"] = [port(facts[0], 4)["addresses"][0].split("/")[0] + "/24"]
    (finding,) = fleet(*facts)
    assert (finding.code, finding.severity) == ("rails.duplicate_address", "error")
    assert finding.where == "rail4 of n1, rail4 of n3"
    assert port(facts[0], 4)["addresses"][0].split("/")[0] in finding.why


def test_link_local_addresses_may_be_equal() -> None:
    facts = nodes(2)
    for one in facts:
        port(one, 0)["addresses"] = ["fe80::1/64"]
    assert fleet(*facts) == []


def test_a_node_whose_rails_have_another_mtu_is_named_once() -> None:
    facts = nodes(3)
    for rail in RAILS:
        port(facts[1], rail)["mtu"] = 4200
    (finding,) = fleet(*facts)
    assert (finding.code, finding.severity) == ("rails.mtu", "error")
    assert finding.where == f"{', '.join(f'rail{rail}' for rail in RAILS)} of n2"
    assert "MTU 4200, where 2 of 3 nodes have 9000" in finding.why


def test_without_a_majority_nobody_is_called_odd() -> None:
    facts = nodes(2)
    port(facts[1], 3)["mtu"] = 1500
    (finding,) = fleet(*facts)
    assert finding.where == "rail3 of the fleet"
    assert "1500 on n2, 9000 on n1" in finding.why
