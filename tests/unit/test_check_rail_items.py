"""The entry of the rails' network against the facts."""

from __future__ import annotations

from dataclasses import replace

from railwright.node.check import check
from railwright.node.model import Facts, Finding
from tests.unit.rail_machines import node, planned

ADDRESSES = [{"rail": 0, "address": "10.1.0.2/24"}, {"rail": 1, "address": "10.1.1.2/24"}]


def told(facts: Facts) -> list[Finding]:
    """What the check says of the addresses planned on the bare node."""
    made = planned(node(), addresses=ADDRESSES)
    return [found for found in check(made, facts, {}) if found.code == "rail_network.address"]


def test_an_address_that_the_port_has_is_good_under_whatever_name() -> None:
    held = {"netdev": "rail0", "addresses": ("fe80::1/64", "10.1.0.2/24")}
    assert told(node(rail0=held, rail1={"addresses": ("10.1.1.2/24",)})) == []


def test_an_address_that_the_port_has_not_is_named_with_what_it_has() -> None:
    facts = node(rail0={"addresses": ("10.1.0.9/24",)}, rail1={"addresses": ("10.1.1.2/24",)})
    (found,) = told(facts)
    assert (found.where, found.why) == ("enp0s0np0", "has 10.1.0.9/24, planned 10.1.0.2/24")


def test_a_port_without_a_netdev_is_not_looked_at() -> None:
    facts = node(rail1={"addresses": ("10.1.1.2/24",)})
    nics = tuple(replace(nic, netdev=None) if nic.rdma == "mlx5_0" else nic for nic in facts.nics)
    (found,) = told(replace(facts, nics=nics))
    assert found.severity == "info"
    assert "not looked at" in found.why
