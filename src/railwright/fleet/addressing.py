"""An inventory of nodes with an address on each rail, and the table of their cables."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from railwright.node.model import InputError

from .inventory import Machine, Rail

# More than any node has NICs; each is a subnet.
_MOST_RAILS = 1024


def with_addresses(machines: Sequence[Machine], network: str, rails: int) -> tuple[Machine, ...]:
    """Machines with an address on each rail: one subnet a rail, the n-th node at the n-th address of each.

    network: what the rails share, 10.100.0.0/16 say; it is divided into as many subnets as there are rails. Addresses
    that are there stay. Raises InputError where the network is too small.
    """
    try:
        whole = ipaddress.ip_network(network)
    except ValueError as error:
        raise InputError("network", f"{network}: {error}", "expected a form like 10.100.0.0/16") from error
    if not 1 <= rails <= _MOST_RAILS:
        raise InputError("rails", f"found {rails}", f"expected 1 to {_MOST_RAILS}")
    if whole.is_loopback or whole.is_multicast or whole.is_unspecified or whole.prefixlen == 0:
        raise InputError("network", f"{network} is no network of hosts", "expected a form like 10.100.0.0/16")
    bits = max(rails - 1, 0).bit_length()
    # The first and the last address of a subnet are no host's, and one is the leaf's.
    if whole.prefixlen + bits > whole.max_prefixlen or (
        2 ** (whole.max_prefixlen - whole.prefixlen - bits) < len(machines) + 3
    ):
        raise InputError(
            "network", f"{network} does not hold {rails} rails of {len(machines)} nodes", "name a larger one"
        )
    subnets: list[Any] = list(whole.subnets(prefixlen_diff=bits))[:rails]
    made = []
    for number, machine in enumerate(machines):
        known = {rail.rail: rail for rail in machine.rails}
        ends = []
        for rail, subnet in enumerate(subnets):
            own = known.get(rail, Rail(rail))
            # The leaf has the first address.
            address = own.address or f"{subnet[number + 2]}/{subnet.prefixlen}"
            ends.append(Rail(rail, address, own.leaf, own.port))
        more = [rail for number_, rail in sorted(known.items()) if number_ >= rails]
        made.append(
            Machine(
                machine.name, machine.address, machine.where, machine.rack, machine.position, (*ends, *more)
            )
        )
    return tuple(made)


def policy_with_rails(policy: Mapping[str, Any], rails: Any, where: str) -> dict[str, Any]:
    """The policy with the inventory's rail addresses in `rails.addresses`, for rails of which it says nothing itself.

    policy: JSON, as in the inventory. rails: the inventory's `node_rails`; entries without an address, and what they
    say of cables, are none of the policy's. Raises InputError.
    """
    if not isinstance(rails, list) or not all(isinstance(entry, Mapping) for entry in rails):
        raise InputError(where, "expected a list of mappings", "expected what `railwright inventory` writes")
    own = policy.get("rails", {})
    if not isinstance(own, Mapping) or not isinstance(own.get("addresses", []), list):
        return dict(policy)  # whoever reads the policy says what is wrong with it
    known = [entry.get("rail") for entry in own.get("addresses", []) if isinstance(entry, Mapping)]
    more = [
        {key: entry[key] for key in ("rail", "address", "gateway") if entry.get(key) is not None}
        for entry in rails
        if entry.get("address") is not None and entry.get("rail") not in known
    ]
    if not more:
        return dict(policy)
    return {**policy, "rails": {**own, "addresses": [*own.get("addresses", []), *more]}}


def inventory_yaml(machines: Sequence[Machine]) -> str:
    """Ansible's inventory: the group gpu_nodes, addresses and rails of each node."""
    hosts: dict[str, dict[str, Any]] = {}
    for machine in machines:
        own: dict[str, Any] = {}
        if machine.address is not None:
            own["ansible_host"] = machine.address
        if machine.rack is not None:
            own["node_rack"] = (
                machine.rack if machine.position is None else f"{machine.rack} U{machine.position}"
            )
        if machine.rails:
            own["node_rails"] = [
                {key: value for key, value in vars(rail).items() if value is not None}
                for rail in machine.rails
            ]
        hosts[machine.name] = own
    return "---\n" + yaml.safe_dump(
        {"gpu_nodes": {"hosts": hosts}}, sort_keys=False, default_flow_style=None, width=110
    )


def cabling_csv(machines: Sequence[Machine]) -> str:
    """The cables as they should be: what `railwright fleet plan --cabling` and `node_cabling` take."""
    rows = [
        f"{machine.name},{rail.rail},{rail.leaf},{rail.port}\n"
        for machine in machines
        for rail in machine.rails
        if rail.leaf and rail.port
    ]
    return "".join(["node,rail,leaf,port\n", *rows])
