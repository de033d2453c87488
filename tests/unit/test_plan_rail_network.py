"""Addresses, tables and rules of the rails: the bytes that each back-end is given, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railwright.fleet.form import Forms, canonical
from railwright.node.model import InputError, Plan, Policy, to_json
from railwright.plan import plan
from railwright.plan.rail_network import rdma_mtu
from tests.unit.rail_machines import codes, files, managers, node, planned

ROUTED = [
    {"rail": 0, "address": "10.100.0.2/24", "gateway": "10.100.0.1"},
    {"rail": 1, "address": "10.100.1.2/24"},
]
NETWORK = "/etc/systemd/network/70-railwright-rail{}.network"
PROFILE = "/etc/NetworkManager/system-connections/railwright-rail{}.nmconnection"
NETPLAN = "/etc/netplan/70-railwright-rails.yaml"
UDEV = "/etc/udev/rules.d/90-railwright-rails.rules"
HEADER = "# Written by Railwright; changes made here are lost.\n"


def entry(made: Plan) -> dict[str, Any]:
    """The item that tells the back-end."""
    (found,) = (each for each in made.slices["rail_network"].entries if each["kind"] == "network")
    return found


def sysctls(made: Plan) -> dict[str, str]:
    return {
        each["name"]: each["value"] for each in made.slices["sysctls"].entries if each["kind"] == "sysctl"
    }


def test_without_addresses_the_rails_are_left_as_they_are_and_told_how_to_ask() -> None:
    made = planned(node())
    assert "rail_network" not in made.slices
    (found,) = (each for each in made.findings if each.code == "rail_network.ask")
    assert (found.severity, found.where) == ("info", "enp0s0np0, enp1s0np0")
    assert "node_rails" in found.remedy
    addressed = node(rail0={"addresses": ("10.0.0.1/24",)}, rail1={"addresses": ("10.0.1.1/24",)})
    assert codes(planned(addressed)) == []


def test_addresses_that_will_be_set_are_said_until_they_are_there() -> None:
    """An inventory's node_rails are enough to have them written, so no run does it without a word."""
    (found,) = [
        each for each in planned(node(), addresses=ROUTED).findings if each.code == "rail_network.gives"
    ]
    assert (found.severity, found.where) == ("info", "enp0s0np0, enp1s0np0")
    assert "node_rails" in found.why
    assert "enp0s0np0 gets 10.100.0.2/24, and has none" in found.why
    assert "policy.manage.rail_network" in found.remedy
    assert "node_rails ask for" in planned(node(), addresses=ROUTED).slices["rail_network"].because
    there = node(rail0={"addresses": ("10.100.0.2/24",)}, rail1={"addresses": ("10.100.1.2/24",)})
    assert "rail_network.gives" not in [code for code, _ in codes(planned(there, addresses=ROUTED))]


def test_networkd_is_given_these_bytes() -> None:
    made = planned(node(), addresses=ROUTED)
    assert files(made, "rail_network")[NETWORK.format(0)] == HEADER + (
        "[Match]\n"
        "MACAddress=aa:bb:cc:00:00:00\n"
        "Type=ether\n"
        "\n"
        "[Link]\n"
        "MTUBytes=9000\n"
        "RequiredForOnline=no\n"
        "\n"
        "[Network]\n"
        "Address=10.100.0.2/24\n"
        "DHCP=no\n"
        "IPv6AcceptRA=no\n"
        "ConfigureWithoutCarrier=yes\n"
        "\n"
        "[Route]\n"
        "Destination=10.100.0.0/24\n"
        "Scope=link\n"
        "PreferredSource=10.100.0.2\n"
        "Table=100\n"
        "\n"
        "[Route]\n"
        "Destination=0.0.0.0/0\n"
        "Gateway=10.100.0.1\n"
        "PreferredSource=10.100.0.2\n"
        "Table=100\n"
        "\n"
        "[RoutingPolicyRule]\n"
        "From=10.100.0.2/32\n"
        "Table=100\n"
        "Priority=10000\n"
    )
    second = files(made, "rail_network")[NETWORK.format(1)]
    # Without a gateway its table leads nowhere: the main table's default route is the management network's.
    assert "Gateway" not in second
    assert second.endswith(
        "PreferredSource=10.100.1.2\n"
        "Table=101\n"
        "\n"
        "[Route]\n"
        "Destination=0.0.0.0/0\n"
        "Type=unreachable\n"
        "Table=101\n"
        "\n"
        "[RoutingPolicyRule]\n"
        "From=10.100.1.2/32\n"
        "Table=101\n"
        "Priority=10004\n"
    )


def test_netplan_is_given_these_bytes_and_neither_name_nor_mtu() -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, ("systemd-networkd",), netplan=True))
    made = planned(facts, addresses=ROUTED)
    assert files(made, "rail_network")[NETPLAN] == HEADER + (
        f"# The MTU of 9000 is set by {UDEV}.\n"
        "network:\n"
        "  version: 2\n"
        "  ethernets:\n"
        "    railwright-rail0:\n"
        "      renderer: networkd\n"
        "      match:\n"
        '        macaddress: "aa:bb:cc:00:00:00"\n'
        "      dhcp4: false\n"
        "      dhcp6: false\n"
        "      accept-ra: false\n"
        "      optional: true\n"
        "      ignore-carrier: true\n"
        "      addresses:\n"
        '        - "10.100.0.2/24"\n'
        "      routes:\n"
        '        - to: "10.100.0.0/24"\n'
        "          scope: link\n"
        '          from: "10.100.0.2"\n'
        "          table: 100\n"
        '        - to: "0.0.0.0/0"\n'
        '          via: "10.100.0.1"\n'
        '          from: "10.100.0.2"\n'
        "          table: 100\n"
        "      routing-policy:\n"
        '        - from: "10.100.0.2/32"\n'
        "          table: 100\n"
        "          priority: 10000\n"
        "    railwright-rail1:\n"
        "      renderer: networkd\n"
        "      match:\n"
        '        macaddress: "aa:bb:cc:00:00:01"\n'
        "      dhcp4: false\n"
        "      dhcp6: false\n"
        "      accept-ra: false\n"
        "      optional: true\n"
        "      ignore-carrier: true\n"
        "      addresses:\n"
        '        - "10.100.1.2/24"\n'
        "      routes:\n"
        '        - to: "10.100.1.0/24"\n'
        "          scope: link\n"
        '          from: "10.100.1.2"\n'
        "          table: 101\n"
        '        - to: "0.0.0.0/0"\n'
        "          type: unreachable\n"
        "          table: 101\n"
        "      routing-policy:\n"
        '        - from: "10.100.1.2/32"\n'
        "          table: 101\n"
        "          priority: 10004\n"
    )
    modes = {
        each["path"]: each["mode"]
        for each in made.slices["rail_network"].entries
        if "mode" in each and "path" in each
    }
    assert modes[NETPLAN] == "0600"


def test_networkmanager_is_given_these_bytes() -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, ("NetworkManager",)))
    made = planned(facts, addresses=ROUTED)
    assert files(made, "rail_network")[PROFILE.format(0)] == HEADER + (
        "[connection]\n"
        "id=railwright-rail0\n"
        # uuidgen --sha1 --namespace 7c3f6c0e-9d0b-5a51-8d0f-2a6f0c1b7e55 --name railwright-rail0
        "uuid=3b4f15ad-13af-5bf4-a6e4-987d9a11f0fe\n"
        "type=ethernet\n"
        "autoconnect-priority=100\n"
        "\n"
        "[ethernet]\n"
        "mac-address=aa:bb:cc:00:00:00\n"
        "mtu=9000\n"
        "\n"
        "[ipv4]\n"
        "address1=10.100.0.2/24\n"
        "method=manual\n"
        "route1=10.100.0.0/24\n"
        "route1_options=src=10.100.0.2,table=100\n"
        "route2=0.0.0.0/0,10.100.0.1\n"
        "route2_options=src=10.100.0.2,table=100\n"
        "routing-rule1=priority 10000 from 10.100.0.2 table 100\n"
        "\n"
        "[ipv6]\n"
        "method=link-local\n"
    )
    modes = {
        each["path"]: each["mode"]
        for each in made.slices["rail_network"].entries
        if "mode" in each and "path" in each
    }
    assert modes[PROFILE.format(0)] == "0600"
    assert (
        "route1_options=src=10.100.1.2,table=101\n"
        "route2=0.0.0.0/0\n"
        "route2_options=table=101,type=unreachable\n"
        "routing-rule1=priority 10004 from 10.100.1.2 table 101\n"
    ) in files(made, "rail_network")[PROFILE.format(1)]


def test_a_device_that_comes_later_is_given_mtu_and_sysctls_by_a_rule() -> None:
    facts = node()
    address = next(nic.address for nic in facts.nics if nic.rdma == "mlx5_0")
    rules = files(planned(facts, addresses=ROUTED), "rail_network")[UDEV].splitlines()
    assert rules[2] == (
        f'ACTION=="add", SUBSYSTEM=="net", ENV{{ID_PATH}}=="pci-{address}", ATTR{{type}}=="1", ATTR{{mtu}}="9000", '
        'RUN+="/usr/lib/systemd/systemd-sysctl --prefix=/net/ipv4/conf/$name"'
    )


def test_the_files_are_the_same_before_and_after_the_rails_are_named() -> None:
    before = planned(node(), prefix="rail", addresses=ROUTED)
    after = planned(
        node(rail0={"netdev": "rail0"}, rail1={"netdev": "rail1"}), prefix="rail", addresses=ROUTED
    )
    assert files(before, "rail_network") == files(after, "rail_network")


@pytest.mark.parametrize(
    ("mode", "addresses", "values"),
    [
        ("subnet", ROUTED, {"arp_announce": "2", "arp_ignore": "1", "rp_filter": "2"}),
        (
            "flat",
            [{"rail": 0, "address": "10.1.0.2/16"}, {"rail": 1, "address": "10.1.0.3/16"}],
            {"accept_local": "1", "arp_announce": "2", "arp_ignore": "2", "rp_filter": "2"},
        ),
    ],
)
def test_arp_is_kept_to_its_rail_by_mode_under_todays_name_and_the_next(
    mode: str, addresses: list[dict[str, Any]], values: dict[str, str]
) -> None:
    made = planned(node(), prefix="rail", mode=mode, addresses=addresses)
    told = {name: value for name, value in sysctls(made).items() if ".conf.enp0s0np0." in name}
    assert told == {f"net.ipv4.conf.enp0s0np0.{key}": value for key, value in values.items()}
    text = files(made, "sysctls")["/etc/sysctl.d/90-railwright.conf"]
    for name in ("enp1s0np0", "rail1"):
        assert [f"net.ipv4.conf.{name}.{key} = {value}" in text for key, value in values.items()] == [
            True
        ] * len(values)
    assert not any("rail0." in name for name in sysctls(made)), "no device is called so yet"


def test_the_policys_own_word_on_a_sysctl_comes_last() -> None:
    own = {"net.ipv4.conf.enp0s0np0.arp_ignore": "0"}
    made = planned(node(), addresses=ROUTED, policy={"sysctls": own})
    assert sysctls(made)["net.ipv4.conf.enp0s0np0.arp_ignore"] == "0"


@pytest.mark.parametrize(
    ("mode", "nodes", "first"),
    # Two rails: in subnets each knows its own of every node, in one network all of them.
    [("subnet", 100, 4096), ("subnet", 4000, 8192), ("flat", 4000, 16384), ("flat", 4096, 16384)],
)
def test_the_neighbour_table_holds_the_fleet(mode: str, nodes: int, first: int) -> None:
    told = sysctls(planned(node(), mode=mode, nodes=nodes))
    assert [told[f"net.ipv4.neigh.default.gc_thresh{n}"] for n in (1, 2, 3)] == [
        str(first),
        str(2 * first),
        str(4 * first),
    ]


def test_a_larger_neighbour_table_of_the_nodes_own_stays() -> None:
    facts = node()
    known = {**facts.host.sysctls, "net.ipv4.neigh.default.gc_thresh3": "999999"}
    facts = replace(facts, host=replace(facts.host, sysctls=known))
    assert sysctls(planned(facts, nodes=100))["net.ipv4.neigh.default.gc_thresh3"] == "999999"


def test_the_mtu_is_set_now_and_what_that_interrupts_is_said() -> None:
    made = planned(node(), addresses=ROUTED)
    assert {
        each["path"]: each["value"] for each in made.slices["rail_network"].entries if each["kind"] == "sysfs"
    } == {"/sys/class/net/enp0s0np0/mtu": "9000", "/sys/class/net/enp1s0np0/mtu": "9000"}
    (found,) = (each for each in made.findings if each.code == "rail_network.interruption")
    assert "from 1500 to 9000" in found.why
    already = node(rail0={"mtu": 9000}, rail1={"mtu": 9000})
    assert "rail_network.interruption" not in [code for code, _ in codes(planned(already, addresses=ROUTED))]


@pytest.mark.parametrize(
    ("mtu", "admitted"),
    # 96 bytes go around the data: 4096 + 96 is the first MTU that takes the largest packet.
    [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1120, 1024), (1119, 512), (351, None)],
)
def test_the_rdma_mtu_is_the_largest_that_fits(mtu: int, admitted: int | None) -> None:
    assert rdma_mtu(mtu) == admitted


def test_an_mtu_that_admits_no_full_packet_is_a_warning() -> None:
    made = planned(node(), addresses=ROUTED, mtu=1500)
    (found,) = (each for each in made.findings if each.code == "rail_network.mtu")
    assert "admits RDMA packets of 1024 bytes" in found.why


def test_the_item_names_what_a_reader_needs() -> None:
    facts = node()
    address = next(nic.address for nic in facts.nics if nic.rdma == "mlx5_0")
    told = entry(planned(facts, prefix="rail", addresses=ROUTED, confirm_seconds=60))
    assert (told["backend"], told["mode"], told["confirm_seconds"]) == ("networkd", "subnet", 60)
    assert told["files"] == [NETWORK.format(0), NETWORK.format(1)]
    assert told["ports"][0] == {
        "rail": 0,
        "label": "rail0",
        "device": address,
        "netdev": "enp0s0np0",
        "name": "rail0",
        "address": "10.100.0.2/24",
        "gateway": "10.100.0.1",
        "table": 100,
        "priority": 10000,
        "mtu": 9000,
        "rdma_mtu": 4096,
    }


# -- what runs the network --


@pytest.mark.parametrize(
    ("running", "netplan", "backend"),
    [
        (("systemd-networkd",), False, "networkd"),
        (("systemd-networkd",), True, "netplan"),
        (("NetworkManager",), False, "networkmanager"),
        (("NetworkManager",), True, "networkmanager"),
    ],
)
def test_the_backend_is_what_really_runs(running: tuple[str, ...], netplan: bool, backend: str) -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, running, netplan=netplan))
    assert entry(planned(facts, addresses=ROUTED))["backend"] == backend


def test_two_managers_are_refused_by_name_unless_the_policy_chooses() -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, ("NetworkManager", "systemd-networkd")))
    made = planned(facts, addresses=ROUTED)
    assert made.status == "refused"
    (refusal,) = made.refusals
    assert refusal.code == "rail_network.backend"
    assert "NetworkManager and systemd-networkd both run here" in refusal.why
    assert entry(planned(facts, addresses=ROUTED, backend="networkd"))["backend"] == "networkd"
    assert planned(facts).status == "planned", "without addresses nobody needs to know"


def test_no_manager_is_refused_and_an_unseen_one_is_said() -> None:
    facts = node()
    none = replace(facts, managers=managers(facts, ()))
    assert [refusal.code for refusal in planned(none, addresses=ROUTED).refusals] == ["rail_network.backend"]
    unseen = planned(replace(facts, managers=managers(facts, None)), addresses=ROUTED)
    assert unseen.status == "planned"
    assert ("rail_network.unseen", "policy.rails.addresses") in codes(unseen)
    assert "rail_network" not in unseen.slices


# -- what is left alone --


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("rail_network.master", {"master": "bond0"}),
        ("rail_network.mac", {"mac": None}),
    ],
)
def test_a_port_that_cannot_have_an_address_is_named_and_the_others_have_theirs(
    code: str, changed: dict[str, Any]
) -> None:
    made = planned(node(rail1=changed), addresses=ROUTED)
    assert (code, "enp1s0np0") in codes(made)
    assert [port["rail"] for port in entry(made)["ports"]] == [0]


def test_infiniband_rails_are_given_no_address() -> None:
    made = planned(
        node(rail0={"link_layer": "InfiniBand"}, rail1={"link_layer": "InfiniBand"}), addresses=ROUTED
    )
    assert ("rail_network.layer", "enp0s0np0") in codes(made)
    assert "rail_network" not in made.slices


def test_the_management_route_is_never_touched() -> None:
    facts = node(front=False, rail1={"default_route": True, "addresses": ("192.0.2.10/24",)})
    made = planned(facts, addresses=ROUTED, policy={"nics": [{"match": "mlx5_1", "role": "rail", "rail": 1}]})
    assert ("rail_network.management", "enp1s0np0") in codes(made)
    assert "aa:bb:cc:00:00:01" not in str(files(made, "rail_network"))


@pytest.mark.parametrize(
    ("running", "netplan", "theirs", "fought"),
    [
        ("systemd-networkd", False, "/etc/systemd/network/10-dhcp.network", True),
        ("systemd-networkd", False, "/usr/lib/systemd/network/80-ec2.network", False),
        ("systemd-networkd", True, "/run/systemd/network/10-netplan-all.network", True),
        ("systemd-networkd", True, "/run/systemd/network/10-netplan-zz.network", False),
        ("systemd-networkd", False, "/etc/network/interfaces", True),
        ("NetworkManager", False, "/etc/NetworkManager/system-connections/rail.nmconnection", True),
        ("NetworkManager", False, "/etc/sysconfig/network-scripts/ifcfg-enp0s0np0", True),
        (
            "NetworkManager",
            False,
            "/run/NetworkManager/system-connections/Wired connection 1.nmconnection",
            False,
        ),
        ("systemd-networkd", False, NETWORK.format(0), None),
        ("systemd-networkd", True, "/run/systemd/network/10-netplan-railwright-rail0.network", None),
    ],
)
def test_somebody_elses_configuration_is_named_and_not_fought(
    running: str, netplan: bool, theirs: str, fought: bool | None
) -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, (running,), netplan=netplan, files={"enp0s0np0": theirs}))
    made = planned(facts, addresses=ROUTED)
    rails = [port["rail"] for port in entry(made)["ports"]]
    found = [each for each in made.findings if theirs in each.why]
    if fought is None:
        assert (rails, found) == ([0, 1], [])
    else:
        (told,) = found
        assert told.code == ("rail_network.foreign" if fought else "rail_network.replaces")
        assert rails == ([1] if fought else [0, 1])


def test_an_address_for_a_rail_that_is_not_there_is_an_error() -> None:
    made = planned(node(), addresses=[*ROUTED, {"rail": 7, "address": "10.100.7.2/24"}])
    assert ("rail_network.unplaced", "rail 7") in codes(made)


def test_a_rail_without_an_address_beside_one_that_has_is_a_warning() -> None:
    assert ("rail_network.bare", "enp1s0np0") in codes(planned(node(), addresses=ROUTED[:1]))


def test_left_alone_nothing_of_it_is_written_and_nothing_is_refused() -> None:
    facts = node()
    facts = replace(facts, managers=managers(facts, ("NetworkManager", "systemd-networkd")))
    made = planned(facts, addresses=ROUTED, backend="networkd", policy={"manage": {"rail_network": False}})
    assert made.status == "planned"
    assert "rail_network" not in made.slices
    assert "arp_ignore" not in str(made.slices["sysctls"].entries)
    assert not any(".conf.enp" in name for name in sysctls(made))


# -- the policy --


@pytest.mark.parametrize(
    ("rails", "where"),
    [
        ({"addresses": [{"rail": 0, "address": "10.1.0.2"}]}, "addresses[0].address"),
        ({"addresses": [{"rail": 0, "address": "10.1.0.0/24"}]}, "addresses[0].address"),
        ({"addresses": [{"rail": 0, "address": "10.1.0.255/24"}]}, "addresses[0].address"),
        ({"addresses": [{"rail": 0, "address": "127.0.0.1/8"}]}, "addresses[0].address"),
        ({"addresses": [{"rail": 0, "address": "fd00::2/64"}]}, "addresses[0].address"),
        ({"addresses": [{"rail": -1, "address": "10.1.0.2/24"}]}, "addresses[0].rail"),
        ({"addresses": [{"rail": 0, "address": "10.1.0.2/24", "port": 9}]}, "addresses[0].port"),
        (
            {"addresses": [{"rail": 0, "address": "10.1.0.2/24", "gateway": "10.2.0.1"}]},
            "addresses[0].gateway",
        ),
        ({"addresses": [ROUTED[0], {"rail": 0, "address": "10.9.0.2/24"}]}, "addresses[1]"),
        ({"addresses": [ROUTED[0], {"rail": 1, "address": "10.100.0.2/24"}]}, "addresses[1].address"),
        ({"addresses": [ROUTED[0], {"rail": 1, "address": "10.100.0.3/24"}]}, "addresses[1].address"),
        ({"addresses": ROUTED, "mode": "flat"}, "addresses[1].address"),
        ({"mode": "mixed"}, "mode"),
        ({"backend": "ifupdown"}, "backend"),
        ({"mtu": 65000}, "mtu"),
        ({"table": 250}, "table"),
        ({"nodes": 0}, "nodes"),
        ({"confirm_seconds": -1}, "confirm_seconds"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_its_place(rails: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as error:
        Policy.read({"rails": rails})
    assert error.value.where == f"policy.rails.{where}"


def test_a_network_of_two_addresses_has_none_to_spare() -> None:
    link = [{"rail": 0, "address": "10.1.0.0/31", "gateway": "10.1.0.1"}]
    assert Policy.read({"rails": {"addresses": link}}).rails.addresses[0].gateway == "10.1.0.1"


def test_equal_nodes_of_a_fleet_are_planned_once_with_each_ones_hardware_address() -> None:
    policy = Policy.read({"rails": {"prefix": "rail", "addresses": ROUTED}})
    facts = replace(node(), managers=managers(node(), ("NetworkManager",)))
    forms = Forms()
    member = forms.add("n1", to_json(facts))
    assert forms.plan_json(member, policy) == canonical(to_json(plan(facts, policy)))
    assert "aa:bb:cc:00:00:01" in forms.plan_json(member, policy)
