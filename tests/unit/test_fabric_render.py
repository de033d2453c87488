"""Rendered switch configuration: agreed files, the systems' own rules for their tables, and the way back through lint.

The agreed files were written by `python -m tests.unit.test_fabric_render` (with src on the path) and read line by line;
a test never writes them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.fabric import Contract, render
from railwright.node.check import is_open
from railwright.node.model import InputError
from tests.unit.fabric_samples import PORTS, contract, contract_data, findings

AGREED = Path(__file__).parent / "fabric_golden"
SYSTEMS = ("sonic", "nvue", "eos", "nxos", "h3c")


def other_contract() -> Contract:
    """Another fabric's numbers: DSCP 24 and 10, notifications 46, 200G and 100G, no watchdog."""
    classes = {
        "data": {"dscp": [24, 10], "prio": 4, "lossless": True, "bandwidth_percent": 80},
        "cnp": {"dscp": [46], "prio": 5, "strict": True},
        "storage": {"dscp": [18], "prio": 2, "bandwidth_percent": 10},
    }
    ecn = {
        speed: {"min_bytes": 200_000, "max_bytes": 900_000, "probability_percent": 25} for speed in (100, 200)
    }
    data = contract_data(
        *SYSTEMS, classes=classes, ecn=ecn, speed_gbps=200, watchdog={"enabled": False}, switch_mtu=9100
    )
    for system in SYSTEMS:
        data["switches"][system]["ports"][PORTS[system][0]]["speed_gbps"] = 100
    return Contract.read(data)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_rendered_file_is_the_agreed_one(system: str) -> None:
    fragment = render(contract(*SYSTEMS), system)
    assert fragment.content == (AGREED / fragment.file).read_text("utf-8")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_second_fabrics_file_is_the_agreed_one(system: str) -> None:
    fragment = render(other_contract(), system)
    assert fragment.content == (AGREED / f"other_{fragment.file}").read_text("utf-8")


@pytest.mark.parametrize("system", ["sonic", "nvue", "eos", "nxos"])
@pytest.mark.parametrize("of", [contract(*SYSTEMS), other_contract()], ids=["usual", "other"])
def test_what_is_rendered_lints_clean(of: Contract, system: str) -> None:
    found = findings(of, **{system: render(of, system).content})
    mine = [one for one in found if one.where.startswith(f"{system}.cfg")]
    assert [one for one in found if is_open(one)] == []
    assert [one for one in mine if one.code != "fabric.ecn_before_pfc"] == []


@pytest.mark.parametrize("system", ["sonic", "nvue", "eos", "nxos"])
def test_a_file_for_another_fabric_does_not_lint_clean(system: str) -> None:
    text = render(other_contract(), system).content
    assert [one.code for one in findings(contract(*SYSTEMS), **{system: text}) if is_open(one)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_file_says_how_to_load_it_and_how_to_read_it_back(system: str) -> None:
    fragment = render(contract(*SYSTEMS), system)
    assert any(fragment.file in line for line in fragment.load)
    assert any(PORTS[system][0] in line for line in fragment.verify)
    assert "{" not in " ".join((*fragment.load, *fragment.verify))


# SONiC: the rules of its documented tables (sonic-buildimage src/sonic-yang-models, Configuration.md).

NAME = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}")
EIGHT = {str(number) for number in range(8)}


def sonic_tables(of: Contract) -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(render(of, "sonic").content)
    return tables


@pytest.mark.parametrize("of", [contract(*SYSTEMS), other_contract()], ids=["usual", "other"])
def test_sonics_tables_keep_the_rules_of_their_models(of: Contract) -> None:
    tables = sonic_tables(of)
    for table, keys, values in (
        ("DSCP_TO_TC_MAP", {str(point) for point in range(64)}, EIGHT),
        ("TC_TO_QUEUE_MAP", EIGHT, EIGHT),
        ("TC_TO_PRIORITY_GROUP_MAP", EIGHT, EIGHT),
        ("MAP_PFC_PRIORITY_TO_QUEUE", EIGHT, EIGHT),
        ("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", EIGHT, EIGHT),
    ):
        for name, mapping in tables[table].items():
            assert NAME.fullmatch(name)
            assert set(mapping) <= keys
            assert set(mapping.values()) <= values
    assert len(tables["DSCP_TO_TC_MAP"]["RAILWRIGHT_ROCE"]) == 64
    for profile in tables["WRED_PROFILE"].values():
        assert profile["ecn"] == "ecn_all"
        for colour in ("green", "yellow", "red"):
            assert int(profile[f"{colour}_max_threshold"]) >= int(profile[f"{colour}_min_threshold"])
            assert 0 <= int(profile[f"{colour}_drop_probability"]) <= 100
            assert profile[f"wred_{colour}_enable"] in {"true", "false"}
    for scheduler in tables["SCHEDULER"].values():
        assert scheduler["type"] in {"DWRR", "WRR", "STRICT"}
        assert 1 <= int(scheduler.get("weight", "1")) <= 100
    assert all(re.fullmatch(r"[0-9]+m", length) for length in tables["CABLE_LENGTH"]["AZURE"].values())
    for port, entry in tables.get("PFC_WD", {}).items():
        if port == "GLOBAL":
            assert 100 <= int(entry["POLL_INTERVAL"]) <= 1000
        else:
            assert entry["action"] in {"drop", "forward", "alert"}
            assert int(entry["detection_time"]) >= int(tables["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"])
            assert int(entry["restoration_time"]) >= int(tables["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"])


@pytest.mark.parametrize("of", [contract(*SYSTEMS), other_contract()], ids=["usual", "other"])
def test_sonics_references_lead_to_what_is_there(of: Contract) -> None:
    tables = sonic_tables(of)
    bindings = {
        "dscp_to_tc_map": "DSCP_TO_TC_MAP",
        "tc_to_queue_map": "TC_TO_QUEUE_MAP",
        "tc_to_pg_map": "TC_TO_PRIORITY_GROUP_MAP",
        "pfc_to_queue_map": "MAP_PFC_PRIORITY_TO_QUEUE",
        "pfc_to_pg_map": "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
        "scheduler": "SCHEDULER",
        "wred_profile": "WRED_PROFILE",
    }
    entries = [*tables["PORT_QOS_MAP"].values(), *tables["QUEUE"].values()]
    for entry in entries:
        for key, value in entry.items():
            if key in bindings:
                assert value in tables[bindings[key]], (key, value)
            else:
                assert key in {"pfc_enable", "pfcwd_sw_enable"}
                assert re.fullmatch(r"([0-7](,[0-7])*)?", value)


def test_sonic_gets_a_cable_length_that_its_platform_has_a_profile_for() -> None:
    assert sonic_tables(contract("sonic"))["CABLE_LENGTH"]["AZURE"] == {"Ethernet0": "5m", "Ethernet8": "40m"}


def test_only_nvidias_and_intels_chips_get_the_map_from_pfc_to_groups() -> None:
    data = contract_data("sonic")
    data["switches"]["sonic"]["platform"] = "7060x6-64pe"
    assert "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP" not in sonic_tables(
        contract("sonic", switches=data["switches"])
    )


# What the other systems' files say, read without the project's readers.


def test_nvues_file_says_the_contract() -> None:
    ((tree,),) = (list(entry.values()) for entry in yaml.safe_load(render(other_contract(), "nvue").content))
    qos = tree["qos"]
    assert qos["roce"] == {"enable": "on", "mode": "lossless"}
    dscp = qos["mapping"]["default-global"]["dscp"]
    assert {
        point: entry["switch-priority"] for point, entry in dscp.items() if entry["switch-priority"] != 0
    } == {
        "10": 4,
        "24": 4,
        "46": 5,
        "18": 2,
    }
    assert list(dscp) == [str(point) for point in range(64)]
    assert list(qos["pfc"]["default-global"]["switch-priority"]) == ["4"]
    assert qos["pfc"]["default-global"]["cable-length"] == 30
    assert qos["egress-scheduler"]["default-global"]["traffic-class"]["5"] == {"mode": "strict"}
    assert qos["congestion-control"]["default-global"]["traffic-class"] == {
        "4": {"ecn": "enable", "min-threshold": 200_000, "max-threshold": 900_000, "probability": 25}
    }
    shares = [
        entry.get("bw-percent", 0)
        for entry in qos["egress-scheduler"]["default-global"]["traffic-class"].values()
    ]
    assert sum(shares) == 100


def test_nvue_takes_one_threshold_for_a_switch() -> None:
    data = contract_data("nvue")
    data["switches"]["nvue"]["ports"]["swp1"]["speed_gbps"] = 100
    with pytest.raises(InputError, match="100G and 400G with different ECN thresholds"):
        render(contract("nvue", switches=data["switches"]), "nvue")


def test_nvues_ports_are_written_as_ranges() -> None:
    data = contract_data("nvue")
    names = ["swp1", "swp2", "swp3", "swp10", "swp5s0", "swp5s1", "swp4"]
    data["switches"]["nvue"]["ports"] = {
        name: {"host": f"gpu{n}", "nic": "r"} for n, name in enumerate(names)
    }
    (entry,) = yaml.safe_load(render(contract("nvue", switches=data["switches"]), "nvue").content)
    assert list(entry["set"]["interface"]) == ["swp1-4,swp10,swp5s0,swp5s1"]


def test_eos_lines_say_the_contract() -> None:
    lines = [line.strip() for line in render(other_contract(), "eos").content.splitlines()]
    assert "qos map dscp 10 24 to traffic-class 4" not in lines
    assert {"qos map dscp 10 to traffic-class 4", "qos map dscp 24 to traffic-class 4"} <= set(lines)
    assert "qos map dscp 46 to traffic-class 5" in lines
    # EOS's own class 4 is DSCP 32 to 39.
    assert "qos map dscp 32 33 34 35 36 37 38 39 to traffic-class 1" in lines
    assert lines.count("priority-flow-control priority 4 no-drop") == 2
    assert [line for line in lines if "watchdog" in line] == ["no priority-flow-control pause watchdog"] * 2
    assert lines.count("service-profile RAILWRIGHT-ROCE-100G") == 1
    assert lines.count("service-profile RAILWRIGHT-ROCE-200G") == 1


def test_what_eos_puts_into_a_lossless_class_by_itself_is_moved_out() -> None:
    classes = {
        "roce": {"dscp": [26], "prio": 1, "lossless": True},
        "cnp": {"dscp": [48], "prio": 6, "strict": True},
    }
    text = render(contract("eos", classes=classes), "eos").content
    # EOS has DSCP 0 to 7 in class 1, and class 1 is the contract's here: the rest goes to its default, 0.
    assert "qos map dscp 0 1 2 3 4 5 6 7 to traffic-class 0\n" in text


def eos_after(*texts: str) -> tuple[dict[int, int], set[int], set[int]]:
    """What a switch has after loading these, by EOS's rules: class of each DSCP, no-drop priorities, strict queues."""
    # EOS user manual: classes by the upper three bits but for 0 and 1, and a queue that says nothing is strict.
    classes = {point: {0: 1, 1: 0}.get(point // 8, point // 8) for point in range(64)}
    no_drop: set[int] = set()
    strict = set(range(8))
    queue = -1
    for line in "".join(texts).splitlines():
        if found := re.fullmatch(r"qos map dscp ([\d ]+) to traffic-class (\d)", line):
            classes |= dict.fromkeys(map(int, found[1].split()), int(found[2]))
        elif found := re.fullmatch(r" +priority-flow-control priority (\d) no-drop", line):
            no_drop.add(int(found[1]))
        elif found := re.fullmatch(r" +no priority-flow-control priority (\d) no-drop", line):
            no_drop.discard(int(found[1]))
        elif found := re.fullmatch(r" +uc-tx-queue (\d)", line):
            queue = int(found[1])
        elif line == "      no priority":
            strict.discard(queue)
        elif line == "      priority strict":
            strict.add(queue)
    return classes, no_drop, strict


def moved(prio: int) -> Contract:
    classes = {
        "roce": {"dscp": [26], "prio": prio, "lossless": True},
        "cnp": {"dscp": [48], "prio": 6, "strict": True},
    }
    return contract(*SYSTEMS, classes=classes)


def test_only_notifications_reach_a_strict_queue_of_eos() -> None:
    classes, no_drop, strict = eos_after(render(contract("eos"), "eos").content)
    assert classes == {point: {26: 3, 48: 6}.get(point, 1) for point in range(64)}
    assert no_drop == {3}
    assert [point for point, one in classes.items() if one in strict] == [48]


def test_a_class_that_moves_on_eos_leaves_no_pfc_behind() -> None:
    classes, no_drop, strict = eos_after(*(render(moved(prio), "eos").content for prio in (3, 4)))
    assert classes[26] == 4
    assert no_drop == {4}
    assert 4 not in strict


def test_only_notifications_reach_a_strict_queue_of_cumulus() -> None:
    (entry,) = yaml.safe_load(render(contract("nvue"), "nvue").content)
    qos = entry["set"]["qos"]
    # The user guide: by the upper three bits, unless the map says otherwise; RoCE makes class 6 strict.
    dscp = {point: point // 8 for point in range(64)}
    dscp |= {
        int(point): one["switch-priority"] for point, one in qos["mapping"]["default-global"]["dscp"].items()
    }
    queues = qos["egress-queue-mapping"]["default-global"]["switch-priority"]
    strict = {6} | {
        int(queue)
        for queue, one in qos["egress-scheduler"]["default-global"]["traffic-class"].items()
        if one["mode"] == "strict"
    }
    led = {point: queues[str(prio)]["traffic-class"] for point, prio in dscp.items()}
    assert led == {point: {26: 3, 48: 6}.get(point, 0) for point in range(64)}
    assert [point for point, queue in led.items() if queue in strict] == [48]


def test_a_watchdog_that_the_contract_turns_off_is_turned_off() -> None:
    of = other_contract()
    assert render(of, "nxos").content.count("  priority-flow-control watch-dog-interval off\n") == 2
    (entry,) = yaml.safe_load(render(of, "nvue").content)
    (port,) = entry["set"]["interface"].values()
    assert port["qos"] == {"pfc-watchdog": {"state": "disable"}}
    assert any("sudo pfcwd stop" in what for what in render(of, "sonic").missing)


@pytest.mark.parametrize(
    ("system", "parts"),
    [
        ("sonic", ["wred_profile"]),
        ("nvue", ["200 and 300 ms", "nv unset qos pfc default-global switch-priority N"]),
        ("eos", ["headroom by cable length", "200 and 300 ms", "queues 0, 2, 4, 5, 7", "random-detect ecn"]),
        ("nxos", ["headroom by cable length", "200 and 300 ms", "groups 1, 2, 4, 5, 6, 7", "pause pfc-cos"]),
        ("h3c", ["ECN marking", "MTU"]),
    ],
)
def test_what_a_file_leaves_out_and_behind_is_said_beside_it(system: str, parts: list[str]) -> None:
    of = contract(
        *SYSTEMS,
        watchdog={"restoration_ms": 300},
        adaptive_routing={"fabric": True, "nic": True, "nccl": True},
    )
    fragment = render(of, system)
    by_hand = fragment.commands.partition("Not in the file, by hand")[2]
    for part in (*parts, "an earlier contract left", "ports that left the contract", "adaptive routing"):
        assert part in by_hand, part
    assert not any("ms:" in what for what in render(other_contract(), system).missing)


def test_sonic_says_for_which_cables_no_profile_is_known() -> None:
    data = contract_data("sonic")
    assert not any("headroom" in what for what in render(contract("sonic"), "sonic").missing)
    data["switches"]["sonic"]["platform"] = None
    (said, _) = render(contract("sonic", switches=data["switches"]), "sonic").missing
    assert said.startswith("headroom for 400G and 3 m, 400G and 30 m: no profile is known here")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            ("roce.a", "roce-a"),
            "the classes roce.a and roce-a would be one class-map on NX-OS, RAILWRIGHT-ROCE-A",
        ),
        (("ROCE", "roce"), "the classes ROCE and roce would be one class-map on NX-OS, RAILWRIGHT-ROCE"),
        # RAILWRIGHT- has 11 characters.
        (("r" * 29, "r" * 30), "41 characters; NX-OS takes 40"),
    ],
)
def test_class_names_that_nxos_cannot_tell_apart_or_hold_are_refused(
    names: tuple[str, str], why: str
) -> None:
    classes = {
        names[0]: {"dscp": [26], "prio": 3, "lossless": True},
        names[1]: {"dscp": [18], "prio": 2},
        "cnp": {"dscp": [48], "prio": 6, "strict": True},
    }
    of = contract("nxos", "eos", classes=classes)
    with pytest.raises(InputError) as told:
        render(of, "nxos")
    assert why in str(told.value)
    assert render(of, "eos").content


def test_a_platform_of_arista_that_has_plain_queues_gets_them() -> None:
    data = contract_data("eos")
    data["switches"]["eos"]["tx_queue"] = "tx-queue"
    text = render(contract("eos", switches=data["switches"]), "eos").content
    assert "uc-tx-queue" not in text
    assert text.count("   tx-queue 3\n") == 3


def test_nxos_shares_sum_to_a_hundred_in_each_queuing_policy() -> None:
    text = render(other_contract(), "nxos").content
    policies = text.split("policy-map type queuing ")[1:]
    assert len(policies) == 2
    for policy in policies:
        shares = re.findall(r"bandwidth remaining percent (\d+)", policy)
        assert sum(map(int, shares)) == 100
        assert len(shares) == 7
    assert "pause pfc-cos 4" in text
    assert text.count("priority level 1") == 2


def test_nxos_has_one_strict_queue() -> None:
    classes = {
        "roce": {"dscp": [26], "prio": 3, "lossless": True},
        "cnp": {"dscp": [48], "prio": 6, "strict": True},
        "voice": {"dscp": [46], "prio": 5, "strict": True},
    }
    with pytest.raises(InputError, match="2 strict classes: cnp, voice"):
        render(contract("nxos", classes=classes), "nxos")


def test_h3c_says_what_it_leaves_to_hands() -> None:
    fragment = render(contract("h3c"), "h3c")
    assert "ECN marking of the lossless queue" in fragment.missing
    for what in fragment.missing:
        assert f"#   {what}" in fragment.content


def test_huawei_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="configuration for huawei is not rendered") as told:
        render(contract("huawei"), "huawei")
    assert "400G 500 to 3000 KB, 10 %" in told.value.remedy


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_contract_gives_the_same_bytes_whatever_the_order_of_its_keys(system: str) -> None:
    data = contract_data(*SYSTEMS)
    turned = {key: data[key] for key in reversed(data)}
    assert render(Contract.read(turned), system) == render(Contract.read(data), system)


def main() -> None:
    for prefix, of in (("", contract(*SYSTEMS)), ("other_", other_contract())):
        for system in SYSTEMS:
            fragment = render(of, system)
            (AGREED / f"{prefix}{fragment.file}").write_text(fragment.content, encoding="utf-8")


if __name__ == "__main__":
    main()
