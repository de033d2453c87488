"""Switch files against the contract: right ones pass, each planted disagreement is named with effect, line, mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from railwright.captures.source import Source
from railwright.fabric.read import read_source
from railwright.node.check import is_open
from railwright.node.model import InputError
from tests.unit.fabric_samples import (
    PORTS,
    RIGHT_EOS,
    RIGHT_NVUE,
    RIGHT_NXOS,
    as_file,
    contract,
    contract_data,
    findings,
    opened,
    result,
    right_sonic,
    stock_sonic,
)

SONIC = PORTS["sonic"]
RIGHT = {"sonic": as_file(right_sonic(*SONIC)), "nvue": RIGHT_NVUE, "eos": RIGHT_EOS, "nxos": RIGHT_NXOS}
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("system", RIGHT)
def test_a_right_configuration_has_nothing_open(system: str) -> None:
    assert opened(contract(system), **{system: RIGHT[system]}) == {}


def test_sonics_stock_configuration_sends_dscp_26_to_a_lossy_queue() -> None:
    text = as_file(stock_sonic(*SONIC))
    found = opened(contract("sonic"), sonic=text)
    assert set(found) == {
        "fabric.dscp_map",
        "fabric.pfc_extra",
        "fabric.cnp_strict",
        "fabric.ecn_thresholds",
    }
    lossy = found["fabric.dscp_map"]
    assert (
        "DSCP 26 (roce) goes to a lossy queue, traffic class 1 instead of 3: SONiC's default map" in lossy.why
    )
    assert lossy.severity == "error"
    assert '"DSCP_TO_TC_MAP": {"AZURE": {"26": "3"}}' in lossy.remedy
    assert '"26": "1"' in text.splitlines()[int(lossy.where.removeprefix("sonic.cfg:")) - 1]
    assert "queue 6 of DSCP 48 (cnp) is not strict" in found["fabric.cnp_strict"].why
    assert "priority 4 too" in found["fabric.pfc_extra"].why


def test_what_mends_the_stock_configuration_mends_it() -> None:
    tables = stock_sonic(*SONIC)
    for _ in range(9):
        found = opened(contract("sonic"), sonic=as_file(tables))
        if not found:
            return
        for one in found.values():
            # Each mend is JSON between backticks, given for the first port and meant for each.
            for part in one.remedy.split("`")[1::2]:
                for port in SONIC:
                    merge(tables, json.loads("{" + part.replace(SONIC[0], port) + "}"))
        tables["SCHEDULER"]["RAILWRIGHT_STRICT"] = {"type": "STRICT"}
    pytest.fail(f"still open: {found}")


def merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def test_a_half_configured_fabric_is_found_switch_by_switch() -> None:
    """One leaf was done, the second has PFC without ECN, the third has nothing, the fourth was forgotten."""
    bare_eos = (
        "hostname eos\ninterface Ethernet1/1\n   no switchport\ninterface Ethernet2/1\n   no switchport\n"
    )
    tables = right_sonic(*SONIC)
    for port in SONIC:
        del tables["QUEUE"][f"{port}|3"]["wred_profile"]
    of = contract("nvue", "sonic", "eos", "nxos")
    found = [
        one for one in findings(of, nvue=RIGHT_NVUE, sonic=as_file(tables), eos=bare_eos) if is_open(one)
    ]
    assert {(one.where.partition(".")[0], one.code) for one in found} == {
        ("sonic", "fabric.ecn"),
        ("eos", "fabric.pfc"),
        ("eos", "fabric.watchdog"),
        ("eos", "fabric.ecn"),
        ("eos", "fabric.mtu"),
    }
    (forgotten,) = (
        one for one in findings(of, nvue=RIGHT_NVUE) if one.where == "nxos" and one.code == "fabric.switch"
    )
    assert forgotten.why == "not looked at: no configuration was given"


# Planted in SONiC's tables: how, the finding, its effect, its mend, what stands on its line.
PLANTED: dict[str, tuple[Change, str, str, str, str]] = {
    "RoCE's DSCP in class 0": (
        lambda t: t["DSCP_TO_TC_MAP"]["AZURE"].update({"26": "0"}),
        "dscp_map",
        "lossy queue, traffic class 0 instead of 3",
        '"26": "3"',
        '"26": "0"',
    ),
    "RoCE's DSCP in no map": (
        lambda t: t["DSCP_TO_TC_MAP"]["AZURE"].pop("26"),
        "dscp_map",
        "DSCP 26 (roce) is in no map",
        '"26": "3"',
        '"0": "1"',
    ),
    "notifications in the lossless class": (
        lambda t: t["DSCP_TO_TC_MAP"]["AZURE"].update({"48": "3"}),
        "dscp_map",
        "DSCP 48 (cnp) goes to the lossless traffic class 3",
        '"48": "6"',
        '"48": "3"',
    ),
    "no map bound to a port": (
        lambda t: [t["PORT_QOS_MAP"][port].pop("dscp_to_tc_map") for port in ("global", "Ethernet0")],
        "trust",
        "DSCP is not looked at",
        '"dscp_to_tc_map"',
        '"Ethernet0"',
    ),
    "PFC off": (
        lambda t: t["PORT_QOS_MAP"]["Ethernet8"].pop("pfc_enable"),
        "pfc",
        "PFC is off for priority 3: no pfc_enable on the port",
        '"pfc_enable": "3"',
        '"Ethernet8"',
    ),
    "PFC on for a second priority": (
        lambda t: t["PORT_QOS_MAP"]["Ethernet0"].update(pfc_enable="3,4"),
        "pfc_extra",
        "on for priority 4 too",
        '"pfc_enable": "3"',
        '"pfc_enable": "3,4"',
    ),
    "the watchdog off": (
        lambda t: t["PORT_QOS_MAP"]["Ethernet0"].update(pfcwd_sw_enable=""),
        "watchdog",
        "one host that pauses for ever stops the fabric",
        '"pfcwd_sw_enable": "3"',
        '"Ethernet0"',
    ),
    "no ECN": (
        lambda t: t["WRED_PROFILE"]["AZURE_LOSSLESS"].update(ecn="ecn_none"),
        "ecn",
        "marks no ECN: nothing slows the hosts down",
        "ecn_all",
        '"Ethernet0"',
    ),
    "ECN that starts too late": (
        lambda t: t["WRED_PROFILE"]["AZURE_LOSSLESS"].update(green_min_threshold="2500000"),
        "ecn_thresholds",
        "from 2500000 instead of 500000 bytes",
        '"green_min_threshold": "500000"',
        '"AZURE_LOSSLESS"',
    ),
    "notifications in a queue by weight": (
        lambda t: t["QUEUE"]["Ethernet0|6"].update(scheduler="scheduler.0"),
        "cnp_strict",
        "queue 6 of DSCP 48 (cnp) is not strict",
        "STRICT",
        '"scheduler.0"',
    ),
    "the lossless class in another queue than PFC stops": (
        lambda t: (
            t["TC_TO_QUEUE_MAP"].update(AZURE=t["TC_TO_QUEUE_MAP"]["AZURE"] | {"3": "5", "5": "3"}),
            [t["QUEUE"][f"{port}|5"].update(wred_profile="AZURE_LOSSLESS") for port in SONIC],
        ),
        "pfc_queue_map",
        "a PAUSE for priority 3 stops queue 3, and its traffic waits in queue 5",
        '"3": "5"',
        '"3": "3"',
    ),
    "a lossy class in the lossless queue": (
        lambda t: t["TC_TO_QUEUE_MAP"].update(AZURE=t["TC_TO_QUEUE_MAP"]["AZURE"] | {"1": "3"}),
        "queue_shared",
        "traffic class 1 shares queue 3 with the lossless class 3",
        '"1": "1"',
        '"1": "3"',
    ),
    "the lossless class in the lossy buffer group": (
        lambda t: t["TC_TO_PRIORITY_GROUP_MAP"]["AZURE"].update({"3": "0"}),
        "group_map",
        "traffic class 3 lies in priority group 0 instead of 3: no headroom",
        '"3": "3"',
        '"3": "0"',
    ),
    "a lossy class in the lossless buffer group": (
        lambda t: t["TC_TO_PRIORITY_GROUP_MAP"]["AZURE"].update({"1": "3"}),
        "group_shared",
        "lossy traffic fills its headroom",
        '"1": "0"',
        '"1": "3"',
    ),
    "an MTU below the hosts'": (
        lambda t: t["PORT"]["Ethernet0"].pop("mtu") and t["PORT"]["Ethernet0"].update(mtu="9000"),
        "mtu",
        "MTU 9000 is below the hosts' 9000 + 22",
        '"mtu": "9216"',
        '"mtu": "9000"',
    ),
    "headroom for a shorter cable": (
        lambda t: t["CABLE_LENGTH"]["AZURE"].update(Ethernet8="5m"),
        "cable",
        "headroom is for 5 m, the cable has 30 m",
        '"Ethernet8": "40m"',
        '"Ethernet8": "5m"',
    ),
    "another speed": (
        lambda t: t["PORT"]["Ethernet0"].update(speed="100000"),
        "speed",
        "the port has 100G, the contract 400G",
        '"speed": "400000"',
        '"speed": "100000"',
    ),
    "a map that is not there": (
        lambda t: t["PORT_QOS_MAP"]["Ethernet0"].update(tc_to_pg_map="AZUR"),
        "reference",
        "names 'AZUR' of TC_TO_PRIORITY_GROUP_MAP, which is not there",
        "add AZUR",
        '"AZUR"',
    ),
    "a static profile below the bound": (
        lambda t: t.update(
            BUFFER_PG={"Ethernet0|3": {"profile": "small"}},
            BUFFER_PROFILE={"small": {"xoff": "40000", "dynamic_th": "0", "pool": "p", "size": "1"}},
            BUFFER_POOL={"p": {"size": "50000000"}},
        ),
        "headroom",
        # 77 932 at 400G and 3 m.
        "keeps 40000 bytes of headroom, the bound for 400G and 3 m is 77932",
        '"xoff": "231424"',
        '"small"',
    ),
    "a pool whose threshold pauses before ECN marks": (
        lambda t: t.update(
            BUFFER_PG={"Ethernet0|3": {"profile": "tight"}},
            BUFFER_PROFILE={"tight": {"xoff": "240000", "dynamic_th": "-3", "pool": "p", "size": "1"}},
            BUFFER_POOL={"p": {"size": "12000000"}},
        ),
        "ecn_before_pfc",
        # alpha 1/8, two senders: each pauses at 1 200 000.
        "PFC pauses 2 senders at 2 x 1200000",
        '"green_max_threshold": "1200000"',
        '"AZURE_LOSSLESS"',
    ),
    "a port that is not there": (
        lambda t: (
            [t[table].pop("Ethernet8") for table in ("PORT", "PORT_QOS_MAP")]
            + [t["QUEUE"].pop(f"Ethernet8|{queue}") for queue in range(7)]
        ),
        "port",
        "Ethernet8: is not in this configuration",
        '"PORT_QOS_MAP": {"Ethernet8"',
        "",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_in_sonics_tables_is_found(name: str) -> None:
    change, code, effect, mend, line = PLANTED[name]
    tables = right_sonic(*SONIC)
    change(tables)
    text = as_file(tables)
    found = opened(contract("sonic"), sonic=text)
    assert list(found) == [f"fabric.{code}"]
    (one,) = found.values()
    assert effect in one.why
    assert mend in one.remedy
    if line:
        assert line in text.splitlines()[int(one.where.removeprefix("sonic.cfg:")) - 1]


# Planted in the others' text: what is taken away, what stands there instead, the finding, its effect, its mend.
TEXTS = [
    ("nvue", "        mode: lossless\n", "        mode: lossy\n", None, "", ""),
    ("nvue", "          switch-priority:\n            '3': {}\n", "          tx: disable\n", None, "", ""),
    (
        "nvue",
        "      roce:\n        mode: lossless\n",
        "      roce:\n        enable: 'off'\n",
        "trust",
        "trusts the VLAN tag: Cumulus's default",
        "nv set qos mapping default-global trust l3",
    ),
    (
        "nvue",
        "'3': {}\n          cable",
        "'2': {}\n          cable",
        "pfc",
        "PFC is off for priority 3",
        "switch-priority 3",
    ),
    ("nvue", "cable-length: 40", "cable-length: 5", "cable", "headroom is for 5 m", "cable-length 40"),
    ("nvue", "          mtu: 9216\n", "          mtu: 1500\n", "mtu", "MTU 1500", "link mtu 9216"),
    (
        "nvue",
        "min-threshold: 500000",
        "min-threshold: 40000",
        "ecn_thresholds",
        "from 40000",
        "min-threshold 500000",
    ),
    (
        "nvue",
        "              probability: 10\n",
        "              ecn: disable\n",
        "ecn",
        "marks no ECN",
        "probability 10",
    ),
    (
        "nvue",
        "          pfc-watchdog: {}\n",
        "          other: {}\n",
        "watchdog",
        "watchdog is off",
        "pfc-watchdog",
    ),
    (
        "nvue",
        "    qos:\n      roce:",
        "    qos:\n      egress-scheduler:\n        default-global:\n          traffic-class:\n            '6':\n"
        "              mode: dwrr\n      roce:",
        "cnp_strict",
        "queue 6 of DSCP 48 (cnp) is not strict",
        "traffic-class 6 mode strict",
    ),
    (
        "nvue",
        "    qos:\n      roce:",
        "    qos:\n      mapping:\n        default-global:\n          dscp:\n            20-30:\n"
        "              switch-priority: 1\n      roce:",
        "dscp_map",
        "DSCP 26 (roce) goes to a lossy queue, traffic class 1 instead of 3",
        "dscp 26 switch-priority 3",
    ),
    (
        "nvue",
        "    qos:\n      roce:",
        "    qos:\n      egress-queue-mapping:\n        default-global:\n          switch-priority:\n            '1':\n"
        "              traffic-class: 3\n      roce:",
        "queue_shared",
        "traffic class 1 shares queue 3",
        "switch-priority 1 traffic-class 0",
    ),
    (
        "eos",
        "qos map dscp af31 to traffic-class 3",
        "qos map dscp 26 to traffic-class 1",
        "dscp_map",
        "traffic class 1 instead of 3",
        "qos map dscp 26 to traffic-class 3",
    ),
    ("eos", "   qos trust dscp\n", "   qos trust cos\n", "trust", "trusts the VLAN tag", "qos trust dscp"),
    (
        "eos",
        "   priority-flow-control on\n",
        "",
        "pfc",
        "priority-flow-control is not on",
        "priority-flow-control on",
    ),
    (
        "eos",
        "priority 3 no-drop\n",
        "priority 3 drop\n",
        "pfc",
        "PFC is off for priority 3",
        "priority 3 no-drop",
    ),
    (
        "eos",
        "priority 3 no-drop\n",
        "priority 3 no-drop\n   priority-flow-control priority 4 no-drop\n",
        "pfc_extra",
        "priority 4 too",
        "priority N drop",
    ),
    (
        "eos",
        "priority-flow-control pause watchdog default timeout 0.2\n",
        "",
        "watchdog",
        "watchdog is off",
        "pause watchdog",
    ),
    (
        "eos",
        "      random-detect ecn minimum-threshold 500 kbytes maximum-threshold 3 mbytes max-mark-probability 10 "
        "weight 0\n",
        "",
        "ecn",
        "marks no ECN",
        "random-detect ecn minimum-threshold 500000 bytes",
    ),
    (
        "eos",
        "maximum-threshold 3 mbytes",
        "maximum-threshold 9 mbytes",
        "ecn_thresholds",
        "to 9000000",
        "3000000 bytes",
    ),
    (
        "eos",
        "      priority strict\n",
        "      no priority\n",
        "cnp_strict",
        "is not strict",
        "`priority strict` under queue 6",
    ),
    (
        "eos",
        "priority 3 no-drop\n",
        "priority 3 no-drop\n   no priority-flow-control priority 3 no-drop\n",
        "pfc",
        "PFC is off for priority 3",
        "priority 3 no-drop",
    ),
    (
        "eos",
        "   priority-flow-control on\n",
        "   priority-flow-control on\n   no priority-flow-control pause watchdog\n",
        "watchdog",
        "watchdog is off",
        "pause watchdog",
    ),
    ("eos", "   mtu 9214\n   service", "   mtu 1500\n   service", "mtu", "MTU 1500", "`mtu 9214`"),
    (
        "eos",
        "   description gpu01 rail0\n",
        "   flowcontrol receive on\n",
        "pause",
        "802.3x pause is on",
        "receive off",
    ),
    (
        "eos",
        "qos profile lossless",
        "qos profile lossles",
        "reference",
        "which is not there",
        "qos profile lossless",
    ),
    (
        "eos",
        "interface Ethernet2/1\n",
        "interface Ethernet3/1\n",
        "port",
        "Ethernet2/1: is not in",
        "interface Eth",
    ),
    (
        "nxos",
        "match dscp 24,26",
        "match dscp 24",
        "dscp_map",
        "DSCP 26 (roce) goes to a lossy queue, traffic class 0 instead of 3: no class matches it",
        "match dscp 26",
    ),
    (
        "nxos",
        "set qos-group 3",
        "set qos-group 2",
        "dscp_map",
        "traffic class 2 instead of 3",
        "set qos-group 3",
    ),
    (
        "nxos",
        "  service-policy type qos input IN\n",
        "",
        "trust",
        "trusts no marking: no input policy",
        "service-policy type qos input",
    ),
    ("nxos", "    pause pfc-cos 3\n", "", "pfc", "PFC is off for priority 3", "pause pfc-cos 3"),
    ("nxos", "mode on\n", "mode auto\n", "pfc", "mode auto waits for DCBX", "priority-flow-control mode on"),
    (
        "nxos",
        "watch-dog-interval on\n",
        "watch-dog-interval off\n",
        "watchdog",
        "is off",
        "watch-dog-interval on",
    ),
    ("nxos", "    priority level 1\n", "", "cnp_strict", "is not strict", "`priority level 1`"),
    (
        "nxos",
        "class-map type qos match-any CNP\n  match dscp cs6\n",
        "",
        "dscp_map",
        "whose queue is not strict",
        "dscp 48",
    ),
    ("nxos", " weight 0 ecn", " weight 0", "ecn", "marks no ECN", "drop-probability 10 weight 0 ecn"),
    (
        "nxos",
        "drop-probability 10",
        "drop-probability 90",
        "ecn_thresholds",
        "with 90 instead of 10 %",
        "probability 10",
    ),
    ("nxos", "  mtu 9216\n  priority", "  mtu 1500\n  priority", "mtu", "MTU 1500", "`mtu 9216`"),
    (
        "nxos",
        "queuing output OUT",
        "queuing output OUTPUT",
        "reference",
        "attaches the queuing policy",
        "OUTPUT",
    ),
    (
        "nxos",
        "  mtu 9216\n  priority",
        "  mtu 9216\n  flowcontrol send on\n  priority",
        "pause",
        "802.3x",
        "send off",
    ),
    (
        "nxos",
        "    pause pfc-cos 3\n",
        "    pause pfc-cos 4\n",
        "pfc",
        "PFC is off for priority 3",
        "pfc-cos 3",
    ),
]


@pytest.mark.parametrize(("system", "old", "new", "code", "effect", "mend"), [row for row in TEXTS if row[3]])
def test_what_is_planted_in_a_text_is_found(
    system: str, old: str, new: str, code: str, effect: str, mend: str
) -> None:
    text = RIGHT[system]
    assert old in text
    found = opened(contract(system), **{system: text.replace(old, new)})
    assert f"fabric.{code}" in found
    assert effect in found[f"fabric.{code}"].why
    assert mend in found[f"fabric.{code}"].remedy
    assert found[f"fabric.{code}"].where.startswith(f"{system}.cfg")


def test_the_line_in_yaml_is_that_of_the_key() -> None:
    text = RIGHT_NVUE.replace("cable-length: 40", "cable-length: 5")
    found = opened(contract("nvue"), nvue=text)["fabric.cable"]
    assert text.splitlines()[int(found.where.removeprefix("nvue.cfg:")) - 1].strip() == "cable-length: 5"


def test_a_sonic_port_that_states_no_mtu_has_9100() -> None:
    tables = right_sonic(*SONIC)
    for port in SONIC:
        del tables["PORT"][port]["mtu"]
    assert opened(contract("sonic"), sonic=as_file(tables)) == {}
    assert (
        "MTU 9100 is below"
        in opened(contract("sonic", host_mtu=9100), sonic=as_file(tables))["fabric.mtu"].why
    )


@pytest.mark.parametrize("line", ["no priority-flow-control", "priority-flow-control off"])
def test_pfc_that_an_interface_turns_off_is_off_whatever_its_profile_says(line: str) -> None:
    text = RIGHT_EOS.replace("   description gpu01 rail0\n", f"   {line}\n")
    found = opened(contract("eos"), eos=text)
    assert found["fabric.pfc"].why.startswith(
        "eos Ethernet1/1: PFC is off for priority 3: priority-flow-control is off"
    )


def test_on_nxos_the_first_class_that_matches_wins() -> None:
    first = "policy-map type qos IN\n  class CNP\n    set qos-group 7\n  class ROCE\n    set qos-group 3\n"
    text = RIGHT_NXOS.replace("match dscp 24,26", "match dscp 24,26,48")
    assert set(opened(contract("nxos"), nxos=text)) == {"fabric.dscp_map"}
    head, tail = text.split("policy-map type qos IN\n", 1)
    turned = head + first + tail.split("    set qos-group 7\n", 1)[1]
    assert opened(contract("nxos"), nxos=turned) == {}


def test_roce_in_lossy_mode_has_no_pfc_unless_it_is_stated() -> None:
    text = RIGHT_NVUE.replace("mode: lossless", "mode: lossy")
    assert opened(contract("nvue"), nvue=text) == {}
    bare = text.replace("          switch-priority:\n            '3': {}\n", "")
    assert "RoCE is in lossy mode" in opened(contract("nvue"), nvue=bare)["fabric.pfc"].why


def test_what_reaches_a_strict_queue_beside_notifications_is_named() -> None:
    """EOS's own classes by hand: 0 to 7 in class 1, 8 to 15 in class 0, the others by their upper three bits. Of its
    queues only 3 is not strict here, so all but 24 to 31 and the notifications, 48, stray: 64 - 8 - 1 = 55."""
    (strict,) = (
        one
        for one in findings(contract("eos"), eos=RIGHT_EOS)
        if one.code == "fabric.dscp_strays" and "strict" in one.why
    )
    assert "DSCP 0, 1, 2, 3 and 51 more reach a strict queue" in strict.why
    assert strict.severity == "info"
    state = read_source(Source("eos.cfg", RIGHT_EOS), "eos", PORTS["eos"]).ports["Ethernet1/1"]
    assert {queue: seen.value for queue, seen in state.strict.items()} == {n: n != 3 for n in range(8)}
    assert state.strict[7].default == "EOS's default"
    assert opened(contract("eos"), eos=RIGHT_EOS.replace("      priority strict\n", "")) == {}
    (roce,) = (one for one in findings(contract("nvue"), nvue=RIGHT_NVUE) if "a strict queue" in one.why)
    # Cumulus has 48 to 55 in class 6, which RoCE makes strict.
    assert "DSCP 49, 50, 51, 52 and 3 more" in roce.why


def test_pfc_in_one_direction_is_no_pfc() -> None:
    text = RIGHT_NVUE.replace(
        "          cable-length: 40", "          cable-length: 40\n          tx: disable"
    )
    assert "tx is disabled" in opened(contract("nvue"), nvue=text)["fabric.pfc"].why


def test_thresholds_in_segments_are_not_verified_and_not_wrong() -> None:
    text = RIGHT_EOS.replace("500 kbytes", "2000 segments").replace("3 mbytes", "10000 segments")
    of = contract("eos")
    assert opened(of, eos=text) == {}
    assert any("in a unit that depends on it" in one.why for one in findings(of, eos=text))


def test_pools_in_a_file_answer_whether_ecn_acts_first() -> None:
    tables = right_sonic(*SONIC) | {
        "BUFFER_PG": {f"{port}|3": {"profile": "wide"} for port in SONIC},
        "BUFFER_PROFILE": {"wide": {"xoff": "290000", "dynamic_th": "0", "pool": "p", "size": "1"}},
        "BUFFER_POOL": {"p": {"size": "50000000"}},
    }
    of = contract("sonic")
    assert opened(of, sonic=as_file(tables)) == {}
    assert not [one for one in findings(of, sonic=as_file(tables)) if one.code == "fabric.ecn_before_pfc"]
    assert [one for one in findings(of, sonic=RIGHT["sonic"]) if one.code == "fabric.ecn_before_pfc"]


def test_thresholds_of_nxos_are_right_as_stated_or_in_whole_kbytes() -> None:
    ecn = {"400": {"min_bytes": 500_500, "max_bytes": 3_000_999, "probability_percent": 10}}
    of = contract("nxos", ecn=ecn)
    for low, wrong in (("500 kbytes", 0), ("500500 bytes", 0), ("501 kbytes", 1), ("499 kbytes", 1)):
        text = RIGHT_NXOS.replace("minimum-threshold 500 kbytes", f"minimum-threshold {low}")
        # Both thresholds in one unit: what is half as stated, half rounded, is neither.
        high = "3000999 bytes" if "bytes" in low.split() else "3000 kbytes"
        text = text.replace("maximum-threshold 3000 kbytes", f"maximum-threshold {high}")
        assert len(opened(of, nxos=text)) == wrong, low


def test_ports_that_say_the_same_share_one_finding() -> None:
    data = contract_data("sonic")
    ports = [f"Ethernet{number * 8}" for number in range(64)]
    data["switches"]["sonic"]["ports"] = {
        port: {"host": f"gpu{n}", "nic": "rail0"} for n, port in enumerate(ports)
    }
    found = opened(contract("sonic", switches=data["switches"]), sonic=as_file(stock_sonic(*ports)))
    assert found["fabric.dscp_map"].why.startswith("sonic Ethernet0, Ethernet8 and 62 more: ")


def test_the_line_is_that_of_the_file_whatever_its_shape() -> None:
    tables = stock_sonic(*SONIC)
    of = contract("sonic")
    for indent in (None, 1, 8):
        text = "\n\n" + json.dumps(tables, indent=indent)
        found = opened(of, sonic=text)["fabric.dscp_map"]
        assert '"26": "1"' in text.splitlines()[int(found.where.removeprefix("sonic.cfg:")) - 1]


def test_old_references_and_port_lists_of_sonic_are_read() -> None:
    tables = right_sonic(*SONIC)
    alike = tables["PORT_QOS_MAP"].pop(SONIC[0]) | {"dscp_to_tc_map": "[DSCP_TO_TC_MAP|AZURE]"}
    tables["PORT_QOS_MAP"] = {",".join(SONIC): alike}
    for port in SONIC:
        for queue in range(7):
            del tables["QUEUE"][f"{port}|{queue}"]
    tables["QUEUE"] = {
        "Ethernet0,Ethernet8|3-4": {
            "scheduler": "[SCHEDULER|scheduler.1]",
            "wred_profile": "[WRED_PROFILE|AZURE_LOSSLESS]",
        },
        "Ethernet0,Ethernet8|6": {"scheduler": "[SCHEDULER|strict]"},
    }
    assert opened(contract("sonic"), sonic=as_file(tables)) == {}


def test_nvue_in_json_and_without_the_list_is_the_same() -> None:
    import yaml

    value = yaml.safe_load(RIGHT_NVUE)
    of = contract("nvue")
    for text in (json.dumps(value), json.dumps(value[1]), json.dumps(value[1]["set"])):
        assert opened(of, nvue=text) == {}


def test_a_port_of_a_range_takes_what_stands_under_its_own_name_later() -> None:
    text = RIGHT_NVUE.replace(
        "    qos:\n      roce:", "      swp2:\n        link:\n          mtu: 1500\n    qos:\n      roce:", 1
    )
    found = opened(contract("nvue"), nvue=text)
    assert found["fabric.mtu"].why.startswith("nvue swp2: MTU 1500")


@pytest.mark.parametrize(
    ("system", "text", "where", "why"),
    [
        ("sonic", "{", "sonic.cfg:1:2", "is not JSON"),
        ("sonic", "[]", "sonic.cfg", "holds none of SONiC's tables"),
        ("sonic", '{"VLAN": {}}', "sonic.cfg", "holds none of SONiC's tables"),
        ("sonic", '{"PORT": {}, "PORT": {}}', "sonic.cfg", "states 'PORT' twice"),
        ("sonic", '{"PORT": {"Ethernet0": 5}}', "sonic.cfg:1", "is int, no table"),
        ("sonic", '{"PORT": {"Ethernet0": {"mtu": "big"}}}', "sonic.cfg:1", "found 'big' as an MTU"),
        ("sonic", '{"PORT": {"Ethernet0": {"mtu": NaN}}}', "sonic.cfg", "which is no number in JSON"),
        ("sonic", RIGHT_EOS, "sonic.cfg:1:1", "is not JSON"),
        ("nvue", "- set: [\n", "nvue.cfg:2", "is not YAML"),
        ("nvue", "a: 1\n", "nvue.cfg", "holds no NVUE configuration"),
        ("nvue", "qos: {}\nqos: {}\n", "nvue.cfg:2", "states 'qos' twice"),
        ("nvue", "qos: &a {b: *a}\n", "nvue.cfg:1", "alias"),
        ("nvue", RIGHT["sonic"], "nvue.cfg", "holds no NVUE configuration"),
        ("eos", "nothing here\n", "eos.cfg", "holds no EOS configuration"),
        ("eos", "qos map dscp 99 to traffic-class 3\n", "eos.cfg:1", "found '99' as a DSCP"),
        ("eos", "interface Ethernet9-1\n", "eos.cfg:1", "a range goes upwards"),
        ("eos", "interface Ethernet1\n \x00x\n", "eos.cfg:2", "characters that no configuration has"),
        ("nxos", "nothing here\n", "nxos.cfg", "holds no NX-OS configuration"),
        ("nxos", "class-map type qos match-any A\n  match dscp\n", "nxos.cfg:2", "names no DSCP"),
        (
            "nxos",
            "interface Ethernet1/1\n  priority-flow-control mode maybe\n",
            "nxos.cfg:2",
            "expected mode on, off or auto",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_what_was_expected(
    system: str, text: str, where: str, why: str
) -> None:
    with pytest.raises(InputError) as told:
        result(contract(system), **{system: text})
    assert told.value.where == where
    assert why in str(told.value)


def test_a_system_that_is_not_read_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="configuration of h3c is not read"):
        result(contract("h3c"), h3c="interface FourHundredGigE1/0/1\n")
