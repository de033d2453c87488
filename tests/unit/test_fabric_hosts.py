"""Host against switch on one cable: dcb -j, LLDP with its DCBX TLVs, and what nobody saw."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from railwright.captures.source import Source
from railwright.fabric import Found, document, lint, read_dcb, read_hosts, read_lldp
from railwright.fabric.read import read_source
from railwright.node.check import is_open
from railwright.node.model import Finding, InputError
from tests.unit.fabric_samples import PORTS, as_file, contract, right_sonic, stock_sonic

# As iproute2 prints it: `dcb -j pfc|app|ets|dcbx show dev rail0` (dcb/dcb_pfc.c, dcb_app.c, dcb_ets.c, dcb_dcbx.c).
PFC = {
    "ifname": "rail0",
    "pfc_cap": 8,
    "macsec_bypass": False,
    "delay": 7,
    "prio_pfc": [False, False, False, True, False, False, False, False],
}
APP = {"ifname": "rail0", "dscp_prio": [[26, 3], [48, 6]]}
ETS = {
    "ifname": "rail0",
    "willing": False,
    "ets_cap": 8,
    "cbs": False,
    "tc_bw": [50, 0, 0, 50, 0, 0, 0, 0],
    "tc_tsa": ["ets", "ets", "ets", "ets", "ets", "ets", "strict", "ets"],
    "prio_tc": [0, 1, 2, 3, 4, 5, 6, 7],
}
DCBX = {"ifname": "rail0", "host": True, "ieee": True}
# iproute2 6.5 and later: the space between two pairs of the text is printed into the JSON as well.
APP_6_5 = '[{"ifname":"rail0","dscp_prio":[[26,3," "],[48,6," "]]}]'
# PFC: not willing, 8 classes, priority 3 (bit 3). Applications: UDP 4791 (0x12b7) and DSCP 26 (0x1a), priority 3:
# 3 << 5 | selector 3 = 0x63, 3 << 5 | selector 5 = 0x65.
TLVS = [
    {"oui": "00,80,C2", "subtype": "11", "len": "2", "value": "08,08"},
    {"oui": "00,80,C2", "subtype": "12", "len": "7", "value": "00,63,12,B7,65,00,1A"},
    {"oui": "00,90,69", "subtype": "1", "len": "1", "value": "57"},
]
# lldpd 1.0.16 says it so for a frame with these TLVs.
LLDP = {
    "lldp": {
        "interface": {
            "rail0": {
                "via": "LLDP",
                "rid": "1",
                "age": "0 day, 00:03:11",
                "chassis": {"sonic": {"id": {"type": "mac", "value": "02:00:00:00:00:01"}, "descr": "SONiC"}},
                "port": {"id": {"type": "local", "value": "Ethernet0"}, "descr": "gpu01 rail0", "ttl": "120"},
                "unknown-tlvs": {"unknown-tlv": TLVS},
            }
        }
    }
}
HOSTS: dict[str, Any] = {
    "gpu01": {
        "rail0": {
            "mtu": 9000,
            "pause": False,
            "cnp_dscp": 48,
            "dcb": {"pfc": PFC, "app": APP, "ets": ETS, "dcbx": DCBX},
            "lldp": LLDP,
        }
    }
}


def found(hosts: dict[str, Any], switch: str | None = None) -> dict[str, Finding]:
    of = contract("sonic")
    states = {}
    if switch is not None:
        states["sonic"] = read_source(Source("sonic.cfg", switch), "sonic", of.switches["sonic"].ports)
    result = lint(Found(of, "fabric", None, policy_seen=False), states, read_hosts(hosts, "hosts.json"))
    mine = [one for one in result.findings if one.where.startswith("gpu")]
    assert len({one.code for one in mine if one.code != "fabric.unverified"}) == len(
        [one for one in mine if one.code != "fabric.unverified"]
    )
    return {one.code: one for one in mine}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    hosts = copy.deepcopy(HOSTS)
    part: Any = hosts["gpu01"]["rail0"]
    for key in path[:-1]:
        part = part[key]
    if to is None:
        del part[path[-1]]
    else:
        part[path[-1]] = to
    return hosts


def flags(*prios: int) -> list[bool]:
    return [prio in prios for prio in range(8)]


def test_a_host_that_agrees_has_nothing_to_say() -> None:
    assert found(HOSTS) == {}
    assert found(HOSTS, as_file(right_sonic(*PORTS["sonic"]))) == {}


def test_text_and_data_of_the_tools_are_the_same() -> None:
    hosts = copy.deepcopy(HOSTS)
    port = hosts["gpu01"]["rail0"]
    port["dcb"] = {name: json.dumps([value]) for name, value in port["dcb"].items()}
    port["lldp"] = json.dumps(port["lldp"])
    assert read_hosts(hosts, "x") == read_hosts(HOSTS, "x")


@pytest.mark.parametrize(
    ("hosts", "code", "severity", "why"),
    [
        (
            changed("dcb", "pfc", "prio_pfc", to=flags()),
            "host_pfc",
            "error",
            "PFC is on for no priority on the host",
        ),
        (
            changed("dcb", "pfc", "prio_pfc", to=flags(3, 4)),
            "host_pfc",
            "error",
            "obeys pauses of a lossy class",
        ),
        (changed("dcb", "app", "dscp_prio", to=[]), "host_trust", "error", "trusts the VLAN tag"),
        (
            changed("dcb", "app", "dscp_prio", to=[[26, 4], [48, 6]]),
            "host_dscp",
            "error",
            "has priority 4 on the host",
        ),
        (
            changed("dcb", "app", "dscp_prio", to=[[26, 3]]),
            "host_dscp",
            "warning",
            "DSCP 48 (cnp) has priority none",
        ),
        (
            # TC 6 with a share, as everything else.
            changed("dcb", "ets", "tc_tsa", to=["ets"] * 8),
            "host_strict",
            "warning",
            "priority 6 (cnp) is in traffic class 6, which is not strict",
        ),
        (
            changed("dcb", "ets", "tc_bw", to=[100, 0, 0, 0, 0, 0, 100, 0]),
            "host_share",
            "error",
            "priority 3 (roce) is in traffic class 3 with a share of 0 %",
        ),
        (
            changed("dcb", "ets", "prio_tc", to=[3, 1, 2, 3, 4, 5, 6, 7]),
            "host_shared",
            "error",
            "priorities 0 (everything else) and 3 (roce) share traffic class 3",
        ),
        (
            changed(
                "lldp", "lldp", "interface", "rail0", "unknown-tlvs", "unknown-tlv", 0, "value", to="88,08"
            ),
            "peer_willing",
            "warning",
            "sonic Ethernet0 says by DCBX that it is willing",
        ),
        (changed("dcb", "pfc", "delay", to=2), "host_cable", "error", "headroom for 2 m, the cable has 3 m"),
        (changed("dcb", "dcbx", "host", to=False), "host_dcbx", "warning", "manages DCBX"),
        (changed("pause", to=True), "host_pause", "error", "the NIC refuses PFC beside it"),
        (changed("mtu", to=1500), "host_mtu", "warning", "MTU 1500 instead of 9000"),
        (changed("mtu", to=9200), "host_mtu", "error", "MTU 9200 instead of 9000"),
        (changed("cnp_dscp", to=4), "host_cnp", "error", "DSCP 4, the contract has 48"),
        (
            changed("lldp", "lldp", "interface", "rail0", "port", "id", "value", to="Ethernet8"),
            "cabling",
            "error",
            "is plugged into port Ethernet8, the contract has sonic Ethernet0",
        ),
        (
            changed("lldp", "lldp", "interface", "rail0", "chassis", to={"leaf9": {"id": {"value": "x"}}}),
            "cabling",
            "error",
            "is plugged into leaf9 Ethernet0, the contract has sonic Ethernet0",
        ),
        (
            changed(
                "lldp", "lldp", "interface", "rail0", "unknown-tlvs", "unknown-tlv", 0, "value", to="08,18"
            ),
            "peer_pfc",
            "error",
            "PFC is on for priority 3, 4",
        ),
        (
            # UDP 4791 in priority 4: 4 << 5 | 3 = 0x83.
            changed(
                "lldp",
                "lldp",
                "interface",
                "rail0",
                "unknown-tlvs",
                "unknown-tlv",
                1,
                "value",
                to="00,83,12,B7",
            ),
            "peer_roce",
            "error",
            "has priority 4, which is not lossless",
        ),
        (
            changed(
                "lldp",
                "lldp",
                "interface",
                "rail0",
                "unknown-tlvs",
                "unknown-tlv",
                1,
                "value",
                to="00,45,00,1A",
            ),
            "peer_dscp",
            "error",
            "DSCP 26 has priority 2",
        ),
    ],
)
def test_what_differs_on_a_host_or_its_peer_is_told(
    hosts: dict[str, Any], code: str, severity: str, why: str
) -> None:
    told = {name: one for name, one in found(hosts).items() if is_open(one)}
    assert list(told) == [f"fabric.{code}"]
    assert told[f"fabric.{code}"].severity == severity
    assert why in told[f"fabric.{code}"].why


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (changed("dcb", to=None), "the host's PFC and DSCP map were not read"),
        (changed("dcb", "pfc", to=None), "the host's PFC was not read"),
        (changed("dcb", "app", to=None), "the host's DSCP map was not read"),
        (changed("dcb", "ets", to=None), "the host's scheduling was not read"),
        (changed("dcb", "ets", "tc_bw", to=None), "the host's scheduling was not read"),
        (changed("dcb", "ets", "prio_tc", to=None), "the host's scheduling was not read"),
        (changed("lldp", to=None), "LLDP was not read"),
        (changed("lldp", "lldp", "interface", to={}), "LLDP heard nobody"),
        (
            changed("lldp", "lldp", "interface", "rail0", "port", "id", "value", to="etp1"),
            "sonic calls its port etp1, the contract Ethernet0",
        ),
        (
            changed("lldp", "lldp", "interface", "rail0", "unknown-tlvs", "unknown-tlv", to=TLVS[1:]),
            "the switch sends no PFC TLV",
        ),
        (
            changed("lldp", "lldp", "interface", "rail0", "unknown-tlvs", "unknown-tlv", to=TLVS[:1]),
            "the switch sends no application TLV",
        ),
    ],
)
def test_what_nobody_saw_is_unverified_and_neither_good_nor_bad(hosts: dict[str, Any], why: str) -> None:
    told = found(hosts)
    assert list(told) == ["fabric.unverified"]
    assert why in told["fabric.unverified"].why
    assert told["fabric.unverified"].severity == "info"


def test_pairs_of_iproute2_since_6_5_are_read() -> None:
    hosts = changed("dcb", "app", to=APP_6_5)
    assert found(hosts) == {}
    assert read_dcb({"app": APP_6_5}, "x").dscp_prio == {26: 3, 48: 6}


def test_shares_count_only_where_a_class_is_scheduled_by_shares() -> None:
    """mlx5 prints 100 for strict classes and for the vendor's own, 0 there is no share either."""
    words = ["ets", "vendor", "vendor", "vendor", "vendor", "vendor", "strict", "vendor"]
    dcb = read_dcb({"ets": {**ETS, "tc_tsa": words, "tc_bw": [100, 0, 0, 0, 0, 100, 100, 100]}}, "x")
    assert dcb.tc_share == {0: 100}
    hosts = changed("dcb", "ets", "tc_tsa", to=words)
    hosts["gpu01"]["rail0"]["dcb"]["ets"]["tc_bw"] = [100, 0, 0, 0, 0, 100, 100, 100]
    assert found(hosts) == {}


def test_two_classes_in_the_strict_class_of_a_host_are_told_for_both_reasons() -> None:
    """Priority 6 in the class of priority 0: not strict, and shared."""
    hosts = changed("dcb", "ets", "prio_tc", to=[0, 1, 2, 3, 4, 5, 0, 7])
    told = found(hosts)
    assert {code: one.severity for code, one in told.items()} == {
        "fabric.host_shared": "warning",
        "fabric.host_strict": "warning",
    }
    assert (
        "priorities 0 (everything else) and 6 (cnp) share traffic class 0" in told["fabric.host_shared"].why
    )


def test_a_host_and_a_switch_that_both_differ_are_set_against_each_other() -> None:
    told = found(HOSTS, as_file(stock_sonic(*PORTS["sonic"])))
    assert list(told) == ["fabric.both_pfc"]
    assert (
        "PFC is on for priority 3 on the host and for priority 3, 4 on sonic Ethernet0"
        in told["fabric.both_pfc"].why
    )


def test_a_nic_that_is_in_no_switch_is_named() -> None:
    assert list(found({"gpu07": HOSTS["gpu01"]})) == ["fabric.host_port"]


def test_lldp_of_several_neighbours_and_of_json0_is_read() -> None:
    entry = LLDP["lldp"]["interface"]["rail0"]
    several = {"lldp": {"interface": [{"eth0": {"chassis": {}}}, {"rail0": entry}]}}
    json0 = {
        "lldp": [
            {
                "interface": [
                    {
                        "name": "rail0",
                        "chassis": [{"id": [{"type": "mac", "value": "x"}], "name": [{"value": "sonic"}]}],
                        "port": [{"id": [{"type": "local", "value": "Ethernet0"}]}],
                        "unknown-tlvs": [{"unknown-tlv": TLVS}],
                    }
                ]
            }
        ]
    }
    one = read_lldp(LLDP, "rail0", "x")
    assert one is not None
    assert (one.chassis, one.port, one.pfc, one.willing) == ("sonic", "Ethernet0", frozenset({3}), False)
    assert (one.roce_prio, one.dscp_prio) == (3, {26: 3})
    assert read_lldp(several, "rail0", "x") == one
    assert read_lldp(json0, "rail0", "x") == one
    assert read_lldp(several, "rail7", "x") is None


def test_of_two_neighbours_on_one_port_none_is_guessed_and_only_lldp_counts() -> None:
    entry = LLDP["lldp"]["interface"]["rail0"]
    cdp = {**entry, "via": "CDPv2", "chassis": {"other": {"id": {"type": "local", "value": "x"}}}}
    heard = read_lldp({"lldp": {"interface": [{"rail0": cdp}, {"rail0": entry}]}}, "rail0", "x")
    assert heard == read_lldp(LLDP, "rail0", "x")
    with pytest.raises(InputError, match="rail0 hears 2 neighbours: other, sonic"):
        read_lldp(
            {"lldp": {"interface": [{"rail0": {**cdp, "via": "LLDP"}}, {"rail0": entry}]}}, "rail0", "x"
        )


def test_a_willing_peer_and_a_single_tlv_are_read() -> None:
    entry = {
        "unknown-tlvs": {"unknown-tlv": {"oui": "00,80,C2", "subtype": "11", "len": "2", "value": "88,10"}}
    }
    heard = read_lldp({"lldp": {"interface": {"rail0": entry}}}, "rail0", "x")
    assert heard is not None
    assert (heard.willing, heard.pfc, heard.chassis) == (True, frozenset({4}), None)


def test_of_two_priorities_for_a_code_point_the_kernel_takes_the_higher() -> None:
    dcb = read_dcb({"app": {"dscp_prio": [[26, 3], [26, 1]]}}, "x")
    assert dcb.dscp_prio == {26: 3}


@pytest.mark.parametrize(
    ("hosts", "where", "why"),
    [
        ([], "hosts.json", "expected hosts with their NICs"),
        ({"gpu01": []}, "hosts.json: gpu01", "expected NICs by name"),
        ({"gpu01": {"rail0": {"mut": 1}}}, "hosts.json: gpu01.rail0.mut", "known keys"),
        ({"gpu01": {"rail0": {"mtu": "9000"}}}, "hosts.json: gpu01.rail0.mtu", "expected a whole number"),
        ({"gpu01": {"rail0": {"dcb": {"pfc": "["}}}}, "hosts.json: gpu01.rail0: dcb pfc", "is not JSON"),
        (
            {"gpu01": {"rail0": {"dcb": {"pfc": {"prio_pfc": [1]}}}}},
            "hosts.json: gpu01.rail0: dcb pfc.prio_pfc",
            "eight of true and false",
        ),
        (
            {"gpu01": {"rail0": {"dcb": {"app": {"dscp_prio": [[26]]}}}}},
            "hosts.json: gpu01.rail0: dcb app.dscp_prio",
            "expected pairs like [26, 3]",
        ),
        (
            {"gpu01": {"rail0": {"dcb": {"app": {"dscp_prio": [[26, 3, 1]]}}}}},
            "hosts.json: gpu01.rail0: dcb app.dscp_prio",
            "expected pairs like [26, 3]",
        ),
        (
            {"gpu01": {"rail0": {"dcb": {"app": {"dscp_prio": [[26, 3, "x"]]}}}}},
            "hosts.json: gpu01.rail0: dcb app.dscp_prio",
            "expected pairs like [26, 3]",
        ),
        (
            {"gpu01": {"rail0": {"dcb": {"ets": {"tc_tsa": ["ets"] * 8, "tc_bw": [101] * 8}}}}},
            "hosts.json: gpu01.rail0: dcb ets.tc_bw",
            "found '101' as a share",
        ),
        ({"gpu01": {"rail0": {"lldp": 3}}}, "hosts.json: gpu01.rail0.lldp", "holds no LLDP neighbours"),
        (
            changed("lldp", "lldp", "interface", "rail0", "unknown-tlvs", "unknown-tlv", 0, "value", to="zz"),
            "hosts.json: gpu01.rail0.lldp: rail0: unknown-tlvs",
            "expected octets like 00,80,C2",
        ),
    ],
)
def test_an_output_that_cannot_be_used_says_where(hosts: Any, where: str, why: str) -> None:
    with pytest.raises(InputError) as told:
        read_hosts(hosts, "hosts.json")
    assert told.value.where == where
    assert why in str(told.value)


def test_the_class_table_sets_hosts_and_switches_side_by_side() -> None:
    of = contract("sonic", "eos")
    states = {
        "sonic": read_source(Source("s", as_file(stock_sonic(*PORTS["sonic"]))), "sonic", PORTS["sonic"])
    }
    result = lint(Found(of, "fabric", None, policy_seen=False), states, read_hosts(HOSTS, "x"))
    roce, cnp = document(result)["classes"]
    assert [
        (place["name"], place["kind"], place["dscp"], place["pfc"], place["agrees"])
        for place in roce["places"]
    ] == [
        ("sonic", "switch", {"26": 1}, False, False),
        ("eos", "switch", {"26": None}, None, None),
        ("gpu01", "host", {"26": 3}, True, True),
    ]
    assert [(place["name"], place["strict"], place["agrees"]) for place in cnp["places"]] == [
        ("sonic", False, False),
        ("eos", None, None),
        ("gpu01", True, True),
    ]
    for part, strict in (("tc_tsa", None), ("prio_tc", None)):
        hosts = read_hosts(changed("dcb", "ets", part, to=None), "x")
        (*_, place) = document(lint(Found(of, "fabric", None, policy_seen=False), states, hosts))["classes"][
            1
        ]["places"]
        assert (place["strict"], place["agrees"]) == (strict, None), part
    hosts = read_hosts(changed("dcb", "ets", "tc_tsa", to=["ets"] * 8), "x")
    (*_, place) = document(lint(Found(of, "fabric", None, policy_seen=False), states, hosts))["classes"][1][
        "places"
    ]
    assert (place["strict"], place["agrees"]) == (False, False)
