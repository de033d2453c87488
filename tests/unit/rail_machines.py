"""A node with Ethernet rails for tests of their names and addresses: two cards, one of them with two ports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from railwright.node.model import Facts, ManagedPort, Managers, Plan, Policy
from railwright.plan import plan
from tests.unit.plan_machines import Chassis

ROCE = {"link_layer": "Ethernet", "management": False, "physical_function": "", "mtu": 1500}


def node(rails: int = 2, front: bool = True, **changed: dict[str, Any]) -> Facts:
    """A node of which networkd runs the network. changed: fields of the rail's port, by "rail0" and so on."""
    chassis = Chassis()
    for number in range(rails):
        switch = chassis.switch(number)
        chassis.gpu(switch)
        fields = {
            "netdev": f"enp{number}s0np0",
            "mac": f"aa:bb:cc:00:00:{number:02x}",
            **ROCE,
            **changed.get(f"rail{number}", {}),
        }
        chassis.nic(switch, f"mlx5_{number}", **fields)
    if front:
        chassis.nic(
            0, "eno1", rate=10_000, rdma=None, port=None, netdev="eno1", default_route=True, **_front()
        )
    facts = chassis.facts()
    names = {
        f"net.ipv4.conf.{nic.netdev}.{key}": "0"
        for nic in facts.nics
        for key in ("accept_local", "arp_announce", "arp_ignore", "rp_filter")
    }
    limits = {
        f"net.ipv4.neigh.default.gc_thresh{n}": str(value) for n, value in ((1, 128), (2, 512), (3, 1024))
    }
    return replace(
        facts,
        host=replace(facts.host, sysctls={**names, **limits}),
        managers=managers(facts, ("systemd-networkd",)),
    )


def _front() -> dict[str, Any]:
    return {**ROCE, "mac": "aa:bb:cc:ff:00:00", "addresses": ("192.0.2.10/24",)}


def managers(facts: Facts, running: tuple[str, ...] | None, **more: Any) -> Managers:
    """Managers that run, and what they say of the ports: `files` and `links` by netdev."""
    files, links = more.pop("files", {}), more.pop("links", {})
    ports = tuple(
        ManagedPort(
            nic.netdev, nic.address, f"pci-{nic.address}", links.get(nic.netdev), files.get(nic.netdev)
        )
        for nic in facts.nics
        if nic.netdev is not None and nic.address is not None
    )
    return Managers(running=running, ports=ports, **more)


def planned(facts: Facts, **rails: Any) -> Plan:
    """The plan of these facts with this part of a policy about rails."""
    more = rails.pop("policy", {})
    return plan(facts, Policy.read({**more, "rails": rails}))


def files(made: Plan, part: str) -> dict[str, str]:
    """Files of a slice by their path."""
    return {entry["path"]: entry["content"] for entry in made.slices[part].entries if entry["kind"] == "file"}


def codes(made: Plan, prefix: str = "rail_n") -> list[tuple[str, str]]:
    """Findings about rails: code and place."""
    return [(found.code, found.where) for found in made.findings if found.code.startswith(prefix)]
