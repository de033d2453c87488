"""Cables: what witnesses say, whose NIC it is, and what has to be moved."""

from __future__ import annotations

import json

import pytest

from railwright.fleet.members import Asked
from railwright.fleet.neighbours import Cable, read_cables
from railwright.fleet.planning import FleetPlan, plan_fleet
from railwright.node.model import InputError, Policy
from tests.unit.fleet_support import Json, node

POLICY = Policy()
# lldpd 1.0.16 between two network namespaces wrote this (descriptions and capabilities left out): two interfaces, then
# one alone, then the other form.
TWO = {
    "lldp": {
        "interface": [
            {
                "eth4": {
                    "via": "LLDP",
                    "rid": "1",
                    "age": "0 day, 00:00:05",
                    "chassis": {"leaf3": {"id": {"type": "mac", "value": "d6:c0:66:0d:d8:86"}}},
                    "port": {
                        "id": {"type": "ifname", "value": "Ethernet9"},
                        "descr": "Ethernet9",
                        "ttl": "120",
                    },
                }
            },
            {
                "eth5": {
                    "via": "LLDP",
                    "chassis": {"leaf3": {"id": {"type": "mac", "value": "d6:c0:66:0d:d8:86"}}},
                    "port": {
                        "id": {"type": "ifname", "value": "Ethernet10"},
                        "descr": "Ethernet10",
                        "ttl": "120",
                    },
                }
            },
        ]
    }
}
ONE = {"lldp": {"interface": TWO["lldp"]["interface"][0]}}
OTHER_FORM = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "eth4",
                    "via": "LLDP",
                    "chassis": [
                        {"id": [{"type": "mac", "value": "d6:c0:66:0d:d8:86"}], "name": [{"value": "leaf3"}]}
                    ],
                    "port": [
                        {"id": [{"type": "ifname", "value": "Ethernet9"}], "descr": [{"value": "Ethernet9"}]}
                    ],
                }
            ]
        }
    ]
}
NONE: Json = {"lldp": {}}
# Written by hand after ibnetdiscover(8) of infiniband-diags.
IB = """#
# Topology file: generated on Mon Nov 30 09:00:00 2026
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0xfc6a1c0300aa0003
switchguid=0xfc6a1c0300aa0003(fc6a1c0300aa0003)
Switch\t65 "S-fc6a1c0300aa0003"\t\t# "MF0;leaf3:MQM9700/U1" enhanced port 0 lid 5 lmc 0
[1]\t"H-0200000000010002"[1](200000000010002) \t\t# "node1 mlx5_2" lid 12 4xNDR
[2]\t"H-0200000000010003"[1](200000000010003) \t\t# "node1 mlx5_3" lid 13 4xNDR
[33]\t"S-fc6a1c0300aa0009"[1]\t\t# "MF0;spine1:MQM9700/U1" lid 9 4xNDR

vendid=0x2c9
devid=0x1021
sysimgguid=0x200000000010002
caguid=0x200000000010002
Ca\t1 "H-0200000000010002"\t\t# "node1 mlx5_2"
[1](200000000010002) \t"S-fc6a1c0300aa0003"[1]\t\t# lid 12 lmc 0 "MF0;leaf3:MQM9700/U1" lid 5 4xNDR
"""
SONIC = """LocalPort    RemoteDevice    RemotePortID       Capability    RemotePortDescr
-----------  --------------  -----------------  ------------  -----------------
Ethernet0    node1           02:00:00:00:01:00  RO            mlx5_0
Ethernet8    node2           mlx5_0             RO
--------------------------------------------------
Total entries displayed:  2
"""
ARISTA = {
    "lldpNeighbors": [
        {"port": "Ethernet7", "neighborDevice": "node1.example.com", "neighborPort": "mlx5_3", "ttl": 120}
    ]
}


def ends(cables: tuple[Cable, ...]) -> list[tuple[str | None, str, str, str]]:
    return [(cable.node, cable.nic, cable.leaf, cable.port) for cable in cables]


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        (
            json.dumps(TWO),
            "node17",
            [("node17", "eth4", "leaf3", "Ethernet9"), ("node17", "eth5", "leaf3", "Ethernet10")],
        ),
        (json.dumps(ONE), "node17", [("node17", "eth4", "leaf3", "Ethernet9")]),
        (json.dumps(OTHER_FORM), "node17", [("node17", "eth4", "leaf3", "Ethernet9")]),
        (json.dumps(NONE), "node17", []),
        (
            IB,
            None,
            [
                ("node1", "guid 200000000010002", "leaf3", "1"),
                ("node1", "guid 200000000010003", "leaf3", "2"),
            ],
        ),
        (
            SONIC,
            "leaf0",
            [("node1", "02:00:00:00:01:00", "leaf0", "Ethernet0"), ("node2", "mlx5_0", "leaf0", "Ethernet8")],
        ),
        (json.dumps(ARISTA), "leaf3", [("node1.example.com", "mlx5_3", "leaf3", "Ethernet7")]),
        ("node,rail,leaf,port\nnode1,rail3,leaf3,9\n", None, [("node1", "rail 3", "leaf3", "9")]),
        ("Host,Interface,Switch,Switch_port\nnode1,eth4,leaf3,9\n", None, [("node1", "eth4", "leaf3", "9")]),
    ],
)
def test_each_witness_gives_the_same_kind_of_cables(text: str, host: str | None, expected: object) -> None:
    assert ends(read_cables(text, "test", host)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "test: is not JSON"),
        ('{"x": 1}', "test: neither lldpd's nor a switch's JSON"),
        (json.dumps(TWO), "test: a node's neighbours without the node's name"),
        ('{"lldp": {"interface": [{"eth4": {"port": {}}}]}}', "test: a node's neighbours without"),
        ("node,leaf\na,b\n", "test:1: no column nic or interface"),
        ("node,rail,leaf,port\nnode1,three,leaf3,9\n", "test:2: rail three"),
        ("node,rail,leaf,port\nnode1,3,leaf3,\n", "test:2: port is empty"),
        (IB.replace('[2]\t"H', "[2]\tH"), "test:10: found"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_cables(text, "test")
    assert str(error.value).replace("'", "'").startswith(message.replace("three", "'three'"))


def test_a_neighbour_without_chassis_names_the_interface() -> None:
    with pytest.raises(InputError, match="test: eth4: a neighbour without chassis or port"):
        read_cables('{"lldp": {"interface": [{"eth4": {"port": {}}}]}}', "test", "node1")


# -- whose NIC, which rail --


def rack(count: int, kind: str = "four") -> list[Asked]:
    return [Asked(f"node{n}", node(kind, n), POLICY) for n in range(count)]


def straight(count: int, rails: int = 4, *, at: object = None) -> list[Cable]:
    return [
        Cable(f"node{n}", f"mlx5_{r}", f"leaf{r}", str(n + 1), "lldp")
        for n in range(count)
        for r in range(rails)
    ]


def told(planned: FleetPlan) -> dict[str, list[str]]:
    return {
        name: [finding.why for finding in one.findings] for name, one in planned.nodes.items() if one.findings
    }


def test_a_guid_finds_its_nic_without_a_name() -> None:
    planned = plan_fleet(rack(2), seen=read_cables(IB.replace("node1 ", "localhost "), "ib"))
    assert {key: str(end) for key, end in planned.wiring.ends.items()} == {
        ("node1", nic): end
        for nic, end in zip(
            [entry["address"] for entry in node("four", 1)["nics"][2:4]], ["leaf3/1", "leaf3/2"], strict=True
        )
    }


def test_a_cable_in_the_wrong_port_is_told_in_one_sentence() -> None:
    seen = straight(17 + 1)
    wanted = [
        Cable(f"node{n}", f"rail {r}", f"leaf{r}", str(n + 1), "table") for n in range(18) for r in range(4)
    ]
    seen[17 * 4 + 3] = Cable("node17", "mlx5_3", "leaf3", "7", "lldp")
    planned = plan_fleet(rack(18), seen=seen, wanted=wanted)
    assert told(planned) == {"node17": ["rail3 of node17 is on leaf3/7, should be leaf3/18"]}
    (finding,) = planned.nodes["node17"].findings
    assert finding.remedy.startswith("move the cable to leaf3/18; ")


def test_two_swapped_cables_are_told_as_such() -> None:
    seen = straight(3)
    seen[4], seen[5] = (
        Cable("node1", "mlx5_0", "leaf1", "2", "lldp"),
        Cable("node1", "mlx5_1", "leaf0", "2", "lldp"),
    )
    wanted = [
        Cable(f"node{n}", f"rail {r}", f"leaf{r}", str(n + 1), "table") for n in range(3) for r in range(4)
    ]
    assert told(plan_fleet(rack(3), seen=seen, wanted=wanted)) == {
        "node1": [
            "rail0 of node1 is on leaf1/2 (where rail1 belongs: the two are swapped), should be leaf0/2",
            "rail1 of node1 is on leaf0/2 (where rail0 belongs: the two are swapped), should be leaf1/2",
        ]
    }


def test_without_a_table_the_leaf_that_the_others_use_says_what_is_wrong() -> None:
    seen = straight(4)
    seen[6] = Cable("node1", "mlx5_2", "leaf3", "20", "lldp")
    planned = plan_fleet(rack(4), seen=seen)
    assert told(planned) == {"node1": ["rail2 of node1 is on leaf3/20, leaf3 carries rail 3"]}
    assert planned.nodes["node1"].findings[0].remedy.startswith("move the cable to leaf2; ")
    assert planned.leaves == {"leaf0": 0, "leaf1": 1, "leaf2": 2, "leaf3": 3}


def test_a_build_that_is_cabled_in_another_order_gets_the_rails_of_its_leaves() -> None:
    """The larger build says which leaf is which rail; the other one's NICs go to the leaves the other way round."""
    seen = straight(4)
    other = [Asked(f"big{n}", node("eight", 50 + n), POLICY) for n in range(2)]
    seen += [
        Cable(f"big{n}", f"mlx5_{r}", f"leaf{3 - r if r < 4 else r}", f"{n + 30}", "lldp")
        for n in range(2)
        for r in range(8)
    ]
    planned = plan_fleet([*rack(4), *other], seen=seen)
    rails = {
        nic["name"]: nic["rail"]
        for nic in json.loads(planned.plan_json("big0"))["nics"]
        if nic["role"] == "rail"
    }
    # leaf4 to leaf7 are nobody's before; leaf3 is rail 3 and mlx5_0 is on it.
    assert planned.leaves["leaf3"] == 3
    assert told(planned) == {}
    assert [rails[f"mlx5_{r}"] for r in range(8)] == [3, 2, 1, 0, 4, 5, 6, 7]


def test_the_rails_of_a_table_number_the_first_build_too() -> None:
    wanted = [
        Cable(f"node{n}", f"rail {3 - r}", f"leaf{r}", str(n + 1), "table")
        for n in range(2)
        for r in range(4)
    ]
    planned = plan_fleet(rack(2), seen=straight(2), wanted=wanted)
    assert told(planned) == {}
    assert planned.leaves == {"leaf0": 3, "leaf1": 2, "leaf2": 1, "leaf3": 0}
    assert [rail for _, rail in planned.nodes["node0"].part.rails] == [0, 1, 2, 3]


def test_a_machine_that_hides_its_tree_is_numbered_by_its_leaves() -> None:
    hidden = node("clean", 5)
    hidden["pci"], hidden["roots"] = [], []
    hidden["nics"] = [nic for nic in hidden["nics"] if nic["rate"] == 400_000]
    seen = [Cable("vm", nic["name"], f"leaf{7 - n}", "1", "lldp") for n, nic in enumerate(hidden["nics"])]
    whole = [Asked(f"node{n}", node("clean", n), POLICY) for n in range(2)]
    names = [nic["name"] for nic in node("clean", 0)["nics"] if nic["rate"] == 400_000]
    seen += [
        Cable(f"node{n}", name, f"leaf{r}", "2", "lldp") for n in range(2) for r, name in enumerate(names)
    ]
    planned = plan_fleet([*whole, Asked("vm", hidden, POLICY)], seen=seen)
    assert [rail for _, rail in planned.nodes["vm"].part.rails] == list(range(8))
    assert dict(planned.nodes["vm"].part.rails)[hidden["nics"][0]["address"]] == 7


def test_a_switch_port_that_two_nodes_are_said_to_be_on_is_told() -> None:
    wanted = straight(2)
    twice = [cable for cable in wanted if (cable.leaf, cable.port) != ("leaf0", "2")]
    twice.append(Cable("node1", "mlx5_0", "leaf0", "1", "table"))
    assert "cabling.port_twice" not in {
        finding.code for finding in plan_fleet(rack(2), wanted=wanted).findings
    }
    (told,) = [f for f in plan_fleet(rack(2), wanted=twice).findings if f.code == "cabling.port_twice"]
    assert told.where == "leaf0/1"
    assert told.why.startswith("node0, node1 are said to be on this one port")


def test_strangers_on_a_switch_and_witnesses_that_disagree_are_told() -> None:
    seen = [
        *straight(2),
        Cable("printer", "eth0", "leaf0", "40", "switch"),
        Cable("node0", "mlx5_0", "leaf0", "9", "switch"),
    ]
    codes = {finding.code: finding for finding in plan_fleet(rack(2), seen=seen).findings}
    assert "printer eth0" in codes["cabling.unknown_end"].why
    assert codes["cabling.witnesses"].why == "lldp says leaf0/1, switch says leaf0/9"


def test_a_cable_that_nobody_sees_is_told() -> None:
    wanted = [Cable("node1", "rail 2", "leaf2", "2", "table")]
    seen = [cable for cable in straight(2) if (cable.node, cable.nic) != ("node1", "mlx5_2")]
    assert told(plan_fleet(rack(2), seen=seen, wanted=wanted)) == {
        "node1": ["should be on leaf2/2, and nobody sees it there"]
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("n1," + "9" * 5000 + ",l1,1", "table:2: rail '999"),
        ("n1,\u0661,l1,1", "table:2: rail '\u0661'"),
        ('n1,0,"l1\nSwitchName=evil",1', "table:2: leaf 'l1"),
        ("n1,0,l1," + "1" * 200_000, "table:1: is no CSV table"),
    ],
)
def test_a_row_of_cables_that_means_nothing_says_where(row: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_cables(f"node,rail,leaf,port\n{row}\n", "table")
    assert str(error.value).startswith(message)
