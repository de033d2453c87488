"""The rails on the network: each fault is planted alone, and exactly its finding is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.model import (
    Facts,
    Gid,
    Host,
    InputError,
    Master,
    NetworkFacts,
    Nic,
    Plan,
    PlannedNic,
    Slice,
    Tool,
    Witness,
)
from railwright.node.model import facts as facts_model
from railwright.node.model import plan as plan_model
from railwright.plan.rail_network import rdma_mtu

# A healthy node of four rails: /24 each, ways of their own, MTU 9000.
RAILS = range(4)
RULES = [{"priority": 0, "src": "all", "table": "255"}, {"priority": 32766, "src": "all", "table": "254"}]
QUIET = {"arp_ignore": "1", "arp_announce": "2", "rp_filter": "2"}


def nic(rail: int, address: str | None = None, **fields: Any) -> Nic:
    address = address or f"10.100.{rail}.5/24"
    octets = [int(part) for part in address.split("/")[0].split(".")]
    gid = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
    known = Nic(
        name=f"mlx5_{rail}",
        rdma=f"mlx5_{rail}",
        port=1,
        netdev=f"rail{rail}",
        link_layer="Ethernet",
        state="active",
        rate=400_000,
        mtu=9000,
        addresses=(address,),
        gids=(Gid(2, gid, "v1", f"rail{rail}"), Gid(3, gid, "v2", f"rail{rail}")),
    )
    return replace(known, **fields)


def tool(name: str, entries: Any) -> Tool:
    return Tool(
        name, ("ip", "-N", "-j", name), 0, entries if isinstance(entries, str) else json.dumps(entries)
    )


def routed(rail: int, address: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A rule and a table for one rail, as `ip -N -j` prints them."""
    rule = {"priority": 10000 + rail, "src": address, "table": str(100 + rail)}
    return rule, [
        {
            "dst": "default",
            "gateway": "10.0.0.1",
            "dev": f"rail{rail}",
            "table": str(100 + rail),
            "flags": [],
        },
        local(rail, address),
    ]


def local(rail: int, address: str) -> dict[str, Any]:
    """The kernel's own route for an address that it answers for."""
    return {
        "type": "2",
        "dst": address,
        "dev": f"rail{rail}",
        "table": "255",
        "prefsrc": address,
        "flags": [],
    }


def node(*nics: Nic, tools: tuple[Tool, ...] | None = None, quiet: bool = True, **fields: Any) -> Facts:
    nics = nics or tuple(map(nic, RAILS))
    sysctls = {
        f"net.ipv4.conf.{name}.{key}": "0"
        for key in QUIET
        for name in ("all", *(n.netdev or "" for n in nics))
    }
    if quiet:
        sysctls |= {f"net.ipv4.conf.{n.netdev}.{key}": value for n in nics for key, value in QUIET.items()}
    if tools is None:
        ways = [routed(int(n.name[-1]), n.addresses[0].split("/")[0]) for n in nics]
        tools = (
            tool("ip-rule", RULES + [rule for rule, _ in ways]),
            tool("ip-route", [route for _, routes in ways for route in routes]),
        )
    known = {"host": Host(name="gpu-a", sysctls=sysctls), "nics": nics, "tools": tools, **fields}
    return Facts(facts_model.SCHEMA, (Witness("sysfs", "/"),), **known)


def plan(mode: str | None = None, rails: range = RAILS, nccl: dict[str, str] | None = None) -> Plan:
    nics = tuple(PlannedNic(f"mlx5_{n}", None, "rail", n, None, "") for n in rails)
    slices = (
        {}
        if mode is None
        else {"rail_network": Slice("runtime", ({"kind": "network", "mode": mode, "ports": []},), "")}
    )
    return Plan(plan_model.SCHEMA, "planned", nics=nics, slices=slices, nccl=nccl or {})


def found(planned: Plan, facts: Facts) -> list[tuple[str, str, str]]:
    """Without what the check says of kinds of entries, which are not this test's."""
    return [
        (f.code, f.severity, f.where) for f in check(planned, facts) if not f.code.startswith("rail_network.")
    ]


def row(planned: Plan, facts: Facts, name: str) -> tuple[bool, bool, str]:
    (one,) = [entry for entry in checks(planned, facts) if entry["name"] == name]
    return one["ok"], one["skipped"], one["detail"]


@pytest.mark.parametrize("mode", [None, "subnet"])
def test_a_healthy_node_has_no_finding_and_every_row_is_good(mode: str | None) -> None:
    assert found(plan(mode), node()) == []
    rows = {
        entry["name"]: entry for entry in checks(plan(mode), node()) if entry["name"].startswith("rails.")
    }
    subnets = "rails.one_subnet" if mode else "rails.arp_flux"
    assert set(rows) == {
        "rails.link", "rails.speed", "rails.bond", "rails.duplicate_address", subnets, "rails.return_route",
        "rails.mtu", "rails.gid",
    }  # fmt: skip
    assert all(entry["ok"] and not entry["skipped"] for entry in rows.values())


def test_a_healthy_flat_network_has_no_finding() -> None:
    assert found(plan("flat"), node(*(nic(n, f"10.100.0.{n + 5}/24") for n in RAILS))) == []


def test_a_link_that_is_down_is_named() -> None:
    for state in ("down", "init", "armed"):
        assert found(plan(), node(nic(0), nic(1), nic(2, state=state), nic(3))) == [
            ("rails.link", "error", "mlx5_2")
        ]


def test_a_rail_that_is_gone_is_named() -> None:
    assert found(plan(), node(nic(0), nic(1), nic(3))) == [("rails.link", "error", "mlx5_2")]


def test_a_rail_at_another_speed_is_named_with_both() -> None:
    facts = node(nic(0), nic(1, rate=200_000), nic(2), nic(3))
    (finding,) = check(plan(), facts)
    assert (finding.code, finding.severity, finding.where) == ("rails.speed", "error", "mlx5_1")
    assert "200 Gb/s" in finding.why
    assert "400 Gb/s" in finding.why
    assert "ethtool rail1" in finding.remedy


def test_a_bond_where_rails_are_meant_is_named_with_its_members() -> None:
    bonded = [nic(0), nic(1), nic(2, master="bond0"), nic(3, master="bond0")]
    tools = node().tools
    facts = node(*bonded, tools=tools, network=NetworkFacts(masters=(Master("bond0", "bond"),)))
    found_here = [f for f in check(plan(), facts) if f.code != "rails.return_route"]
    assert [(f.code, f.severity, f.where) for f in found_here] == [("rails.bond", "warning", "bond0")]
    assert "rail2, rail3" in found_here[0].why
    vrf = node(*bonded, tools=tools, network=NetworkFacts(masters=(Master("bond0", "vrf"),)))
    assert [f for f in check(plan(), vrf) if f.code == "rails.bond"] == []


def test_one_address_on_two_rails_is_named_with_both() -> None:
    twice = node(
        nic(0),
        nic(1),
        nic(2),
        nic(3, addresses=(), gids=(*nic(2).gids[:1], replace(nic(2).gids[1], netdev="rail3"))),
        tools=node().tools,
    )
    assert found(plan(), twice) == [("rails.duplicate_address", "error", "rail2, rail3")]
    (finding,) = check(plan(), twice)
    assert finding.why.startswith("10.100.2.5 is on rail2 and on rail3")


def test_two_rails_in_one_subnet_are_a_fault_where_each_has_its_own_by_the_plan() -> None:
    facts = node(nic(0), nic(1), nic(2), nic(3, "10.100.2.6/24"))
    assert found(plan("subnet"), facts) == [("rails.one_subnet", "error", "rail2, rail3")]
    assert found(plan("flat"), facts) == []


@pytest.mark.parametrize("mode", [None, "flat"])
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("arp_ignore", "0", "answers for the addresses of other rails (arp_ignore 0)"),
        ("arp_announce", "0", "asks in the name of other rails (arp_announce 0)"),
        ("rp_filter", "1", "drops answers that it did not ask for (rp_filter 1)"),
    ],
)
def test_rails_of_one_subnet_that_speak_for_each_other_are_arp_flux(
    mode: str | None, key: str, value: str, words: str
) -> None:
    facts = node(*(nic(n, f"10.100.0.{n + 5}/24") for n in RAILS))
    facts.host.sysctls[f"net.ipv4.conf.rail2.{key}"] = value
    (finding,) = [f for f in check(plan(mode), facts) if f.code.startswith("rails.")]
    assert (finding.code, finding.severity) == ("rails.arp_flux", "error")
    assert f"rail2 {words}" in finding.why
    # The larger of `all` and the device's own counts (ip-sysctl.rst), so `all` can heal an ARP setting, and never this.
    if key != "rp_filter":
        facts.host.sysctls[f"net.ipv4.conf.all.{key}"] = "2"
        assert found(plan(mode), facts) == []


def test_sysctls_that_the_facts_do_not_hold_are_never_good() -> None:
    facts = replace(node(*(nic(n, f"10.100.0.{n + 5}/24") for n in RAILS)), host=Host(name="gpu-a"))
    ok, skipped, detail = row(plan("flat"), facts, "rails.arp_flux")
    assert (ok, skipped) == (False, True)
    assert "net.ipv4.conf.all.arp_ignore" in detail


def test_a_rail_whose_address_has_no_rule_is_named() -> None:
    ways = [routed(n, f"10.100.{n}.5") for n in RAILS]
    tools = (
        tool("ip-rule", RULES + [rule for n, (rule, _) in enumerate(ways) if n != 1]),
        tool("ip-route", [route for _, routes in ways for route in routes]),
    )
    assert found(plan("subnet"), node(tools=tools)) == [("rails.return_route", "error", "rail1")]
    # On wide subnets that nobody manages, peers may all be neighbours.
    assert found(plan(), node(tools=tools)) == []


def test_a_rule_to_a_table_that_leads_elsewhere_is_no_way_back() -> None:
    ways = [routed(n, f"10.100.{n}.5") for n in RAILS]
    ways[1][1][0]["dev"] = "rail3"
    tools = (
        tool("ip-rule", RULES + [rule for rule, _ in ways]),
        tool("ip-route", [route for _, routes in ways for route in routes]),
    )
    assert found(plan("subnet"), node(tools=tools)) == [("rails.return_route", "error", "rail1")]


def test_links_of_two_addresses_need_a_way_beyond_whoever_manages_them() -> None:
    nics = tuple(nic(n, f"10.100.{n}.5/31") for n in RAILS)
    ways = [{"dst": f"10.100.{n}.0/16", "gateway": f"10.100.{n}.4", "dev": f"rail{n}"} for n in RAILS]
    routes = [{"dst": f"10.100.{n}.4/31", "dev": f"rail{n}", "prefsrc": f"10.100.{n}.5"} for n in RAILS]
    routes += [local(n, f"10.100.{n}.5") for n in RAILS]
    bare = (tool("ip-rule", RULES), tool("ip-route", routes))
    assert [code for code, _, _ in found(plan(), node(*nics, tools=bare))] == ["rails.return_route"] * 4
    # Routes to the peers in the main table serve too.
    assert found(plan(), node(*nics, tools=(bare[0], tool("ip-route", routes + ways)))) == []


def test_rules_and_routes_that_nobody_told_are_not_good() -> None:
    assert row(plan("subnet"), node(tools=()), "rails.return_route")[:2] == (False, True)


def test_rules_and_routes_of_another_network_namespace_say_nothing_of_the_rails() -> None:
    other = (tool("ip-rule", RULES), tool("ip-route", [local(0, "192.0.2.7")]))
    ok, skipped, detail = row(plan("subnet"), node(tools=other), "rails.return_route")
    assert (ok, skipped) == (False, True)
    assert "without any of the rails' addresses" in detail


def test_a_rail_of_a_smaller_mtu_is_named() -> None:
    facts = node(nic(0), nic(1, mtu=4200), nic(2), nic(3))
    (finding,) = check(plan(), facts)
    assert (finding.code, finding.severity, finding.where) == ("rails.mtu", "warning", "rail1")
    assert "4200" in finding.why
    assert "9000" in finding.why


@pytest.mark.parametrize(
    ("mtu", "admits"),
    # By hand: 96 bytes go off first. 4192 is the least for 4096, 1120 the least for 1024.
    [
        (9000, 4096),
        (4192, 4096),
        (4191, 2048),
        (1500, 1024),
        (1120, 1024),
        (1119, 512),
        (352, 256),
        (351, None),
    ],
)
def test_the_rdma_mtu_is_what_is_left_of_the_netdevs(mtu: int, admits: int | None) -> None:
    assert rdma_mtu(mtu) == admits
    small = check(plan(), node(*(nic(n, mtu=mtu) for n in RAILS)))
    assert bool(small) is (admits != 4096)
    assert all(f"RDMA MTU of {admits or 'nothing'}" in finding.why for finding in small)


def lldp(form: str, size: str) -> Tool:
    port: dict[str, Any] = {"id": {"type": "ifname", "value": "Ethernet8"}, "mfs": size}
    neighbour: dict[str, Any] = {"via": "LLDP", "chassis": {"leaf1": {}}, "port": port}
    page: dict[str, Any] = {"lldp": {"interface": [{"rail1": neighbour}]}}
    if form == "json0":
        listed = {
            "name": "rail1",
            "chassis": [{"name": [{"value": "leaf1"}]}],
            "port": [{"mfs": [{"value": size}]}],
        }
        page = {"lldp": [{"interface": [listed]}]}
    return Tool("lldpcli", ("lldpcli", "-f", form, "show", "neighbors"), 0, json.dumps(page))


@pytest.mark.parametrize("form", ["json", "json0"])
def test_a_switch_port_that_takes_smaller_frames_is_named(form: str) -> None:
    healthy = node()
    facts = node(tools=(*healthy.tools, lldp(form, "1522")))
    (finding,) = check(plan(), facts)
    assert (finding.code, finding.where) == ("rails.mtu", "rail1")
    assert "leaf1 takes 1522" in finding.why
    # 14 bytes of header and 4 of checksum: 9018 is enough, 9017 is not.
    assert found(plan(), node(tools=(*healthy.tools, lldp(form, "9018")))) == []
    assert len(check(plan(), node(tools=(*healthy.tools, lldp(form, "9017"))))) == 1


def test_a_rail_without_a_usable_gid_is_named() -> None:
    link_local = (
        Gid(0, "fe80:0000:0000:0000:0ac0:ebff:fe00:0001", "v1"),
        Gid(1, "fe80:0000:0000:0000:0ac0:ebff:fe00:0001", "v2"),
    )
    assert found(plan(), node(nic(0), nic(1, gids=link_local), nic(2), nic(3))) == [
        ("rails.gid", "error", "mlx5_1")
    ]


def test_an_index_that_moved_after_a_flap_is_named_with_the_one_it_has_now() -> None:
    moved = tuple(replace(entry, index=entry.index + 2) for entry in nic(1).gids)
    facts = node(nic(0), nic(1, gids=moved), nic(2), nic(3))
    assert found(plan(), facts) == []
    (finding,) = check(plan(nccl={"NCCL_IB_GID_INDEX": "3"}), facts)
    assert (finding.code, finding.where) == ("rails.gid", "mlx5_1")
    assert "told GID index 3, and 10.100.1.5 is at 5 now" in finding.why


def test_two_gids_of_one_port_need_the_range() -> None:
    second = Gid(5, "0000:0000:0000:0000:0000:ffff:c0a8:0105", "v2", "rail1")
    facts = node(nic(0), nic(1, gids=(*nic(1).gids, second)), nic(2), nic(3))
    (finding,) = check(plan(), facts)
    assert (finding.code, finding.where) == ("rails.gid", "mlx5_1")
    assert "3 (10.100.1.5), 5 (192.168.1.5)" in finding.why
    assert check(plan(nccl={"NCCL_IB_ADDR_RANGE": "10.100.0.0/16"}), facts) == ()


@pytest.mark.parametrize("name", ["ip-rule", "ip-route"])
@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("Segmentation fault", "expected JSON; is this iproute2?"),
        ('{"a": 1}', "expected a list of JSON objects"),
        ("[7]", "expected a JSON object"),
        ('[{"priority": "x", "dst": "10.0.0/x", "src": "10.0.0/x"}]', "found"),
        ('[{"priority": 1, "src": [], "dst": []}]', "expected"),
        ("[" * 100_000, "expected JSON"),
    ],
)
def test_garbled_rules_and_routes_are_said_with_the_command(name: str, output: str, words: str) -> None:
    tools = tuple(one if one.name != name else replace(one, output=output) for one in node().tools)
    with pytest.raises(InputError, match=r"^ip -N -j ip-r") as caught:
        check(plan("subnet"), node(tools=tools))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "lldpcli: not running",
        "[]",
        '{"lldp": [7]}',
        '{"lldp": {"interface": [7]}}',
        '{"lldp": {"interface": [{"rail1": 7}]}}',
    ],
)
def test_garbled_neighbours_are_said_with_the_command(output: str) -> None:
    garbled = replace(lldp("json", "9216"), output=output)
    with pytest.raises(InputError, match=r"^lldpcli -f json show neighbors: "):
        check(plan(), node(tools=(*node().tools, garbled)))
