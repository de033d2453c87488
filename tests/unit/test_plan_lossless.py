"""The QoS of rails as planned: values worked out by hand from the classes, and what is said and not written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import fabric
from railwright.node.check.lossless import KINDS
from railwright.node.model import (
    Buffers,
    Ets,
    Facts,
    InputError,
    Nic,
    PciDevice,
    PlannedNic,
    Policy,
    Qos,
    Unit,
    Witness,
    to_json,
)
from railwright.node.model.facts import SCHEMA
from railwright.plan import lossless, plan
from railwright.plan.nccl import RailPort, variables
from tests.unit.fabric_samples import contract_data
from tests.unit.rail_machines import node

A = "0000:18:00.0"


def nic(name: str = "mlx5_0", address: str = A, **more: Any) -> Nic:
    given = {
        "rdma": name,
        "netdev": "rail0",
        "link_layer": "Ethernet",
        "rate": 400_000,
        "mtu": 9000,
        "port": 1,
        **more,
    }
    return Nic(name, address=address, **given)


def facts(*nics: Nic, vendor: str = "0x15b3", **more: Any) -> Facts:
    devices = tuple(PciDevice(one.address or "", None, vendor=vendor) for one in nics)
    return Facts(SCHEMA, (Witness("sysfs", "/"),), nics=nics, pci=devices, **more)


def planned(one: Nic, rail: int | None = 0) -> PlannedNic:
    return PlannedNic(one.name, one.address, "rail", rail, None, "a test")


def policy(**more: Any) -> Policy:
    return Policy.read({"lossless": more})


def survey(of: Policy, *nics: Nic, **more: Any) -> lossless.Survey:
    seen = nics or (nic(),)
    return lossless.survey(facts(*seen, **more), of, [planned(one) for one in seen])


def entry(of: Policy, kind: str = "dcb", *nics: Nic, **more: Any) -> dict[str, Any]:
    made = survey(of, *nics, **more).slice
    assert made is not None
    return next(dict(one) for one in made.entries if one["kind"] == kind)


def codes(found: lossless.Survey) -> list[str]:
    return [finding.code for finding in found.findings]


def test_the_defaults_are_those_of_roce_fabrics() -> None:
    of = policy(cable_m=3)
    assert entry(of) == {
        "kind": "dcb",
        "device": A,
        "dcbx": "host ieee",
        "trust": "dscp",
        "app": {**{str(point): 0 for point in range(64)}, "26": 3, "48": 6},
        "ets": {
            "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
            "tc_tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
            "tc_bw": [50, 0, 0, 50, 0, 0, 0, 0],
        },
        "pfc": [3],
        "cable": 7,
    }
    assert entry(of, "pause") == {"kind": "pause", "device": A, "rx": False, "tx": False}
    assert entry(of, "congestion")["values"] == {
        "np_enable_3": 1, "rp_enable_3": 1, "np_cnp_dscp": 48, "np_cnp_prio": 6,
    }  # fmt: skip
    # 26 << 2 with ECT(0).
    assert entry(of, "rdma_marking") == {"kind": "rdma_marking", "device": A, "tos": 106, "mode": "RoCE v2"}


@pytest.mark.parametrize(
    ("metres", "speed", "size"),
    [(3, 400, None), (7, 400, None), (30, 100, 60_980), (30, 400, 170_480), (100, 800, 438_080)],
)
def test_buffers_are_sized_by_hand_for_long_cables_only(metres: int, speed: int, size: int | None) -> None:
    """size: the reserve of the specification's table for MTU 9000; a largest frame and two cells come on top."""
    of = policy(cable_m=metres, speed_gbps=speed)
    made = entry(of)
    assert made["cable"] == max(metres, 7)
    if size is None:
        assert "buffer" not in made
    else:
        assert made["buffer"]["prio_buffer"] == [0, 0, 0, 1, 0, 0, 0, 0]
        assert made["buffer"]["size"][1] == size + 9978 + 2 * 256


def test_a_second_lossless_class_has_a_buffer_of_its_own_or_is_refused_by_the_nic_s_size() -> None:
    classes = {
        "roce": {"dscp": [26], "prio": 3, "lossless": True},
        "storage": {"dscp": [34], "prio": 4, "lossless": True},
    }
    of = policy(classes=classes, data="roce", cable_m=3)
    assert entry(of)["buffer"]["prio_buffer"] == [0, 0, 0, 1, 2, 0, 0, 0]
    small = Qos(A, "rail0", backend="dcb", buffers=Buffers((0,) * 8, (1000,) * 8, total=262_016))
    found = survey(of, qos=(small,))
    assert "buffer" not in entry(of, qos=(small,))
    (told,) = [finding for finding in found.findings if finding.code == "lossless.buffers"]
    assert "the NIC has 262016" in told.why


def test_storage_has_its_share_and_its_rate_and_the_rest_its_priority() -> None:
    classes = {
        "roce": {"dscp": [10, 11], "prio": 5, "lossless": True, "bandwidth_percent": 60},
        "storage": {"dscp": [18], "prio": 2, "bandwidth_percent": 25, "rate_gbps": 50},
        "cnp": {"dscp": [46], "prio": 7, "strict": True},
    }
    made = entry(policy(classes=classes, default_prio=1, cable_m=5))
    assert made["ets"]["prio_tc"] == [1, 1, 2, 1, 1, 5, 1, 7]
    assert made["ets"]["tc_bw"] == [0, 15, 25, 0, 0, 60, 0, 0]
    assert made["rate"] == [0, 0, 6_250_000_000, 0, 0, 0, 0, 0]
    assert len(made["app"]) == 64
    assert [point for point, prio in made["app"].items() if prio != 1] == ["10", "11", "18", "46"]


def test_a_cable_may_be_stated_by_any_name_of_its_port() -> None:
    for name in (A, "mlx5_0", "rail0"):
        assert entry(policy(cable_m=3, cables={name: 12}))["cable"] == 12
    unstated = survey(policy())
    assert "cable" not in next(dict(one) for one in unstated.slice.entries if one["kind"] == "dcb")  # type: ignore[union-attr]
    assert codes(unstated).count("lossless.cable") == 1


def test_without_a_policy_nothing_is_written_and_that_is_said_once() -> None:
    found = survey(Policy(), nic(), nic("mlx5_1", "0000:29:00.0"))
    assert found.slice is None
    (told,) = found.findings
    assert (told.code, told.severity, told.where) == ("lossless.unmanaged", "info", "mlx5_0, mlx5_1")


def test_no_nic_an_infiniband_rail_and_an_nvswitch_are_nobody_s_business() -> None:
    assert lossless.survey(facts(), policy(), []) == lossless.Survey()
    assert survey(policy(), nic(link_layer="InfiniBand")) == lossless.Survey()
    assert survey(policy(cable_m=3), nic(management=True)).slice is None
    spare = nic()
    assert lossless.survey(facts(spare), policy(), [planned(spare, None)]) == lossless.Survey()


@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        ("0x14e4", "Broadcom bnxt_re"),
        ("0x8086", "Intel irdma/ice"),
        ("0x1d0f", "a vendor that is not known here"),
    ],
)
def test_other_vendors_are_compared_and_given_what_the_kernel_keeps(vendor: str, words: str) -> None:
    now = Qos(A, "rail0", backend="dcb", pfc=(), dscp_prio={}, pause_rx=True, pause_tx=False)
    found = survey(policy(cable_m=3), vendor=vendor, qos=(now,))
    assert found.slice is not None
    assert [one["kind"] for one in found.slice.entries] == ["rdma_marking"]
    assert words in found.findings[0].why
    told = [finding.why for finding in found.findings if finding.code == "lossless.differs"]
    assert [why.split(" is ")[0] for why in told] == ["the map of code points", "PFC", "802.3x pause"]


@pytest.mark.parametrize(
    ("more", "port", "code"),
    [
        ({"physical_function": "0000:18:00.0"}, {}, "lossless.not_here"),
        ({"bluefield": "dpu"}, {}, "lossless.not_here"),
        ({}, {"refusal": "dcb ended with 1: Operation not supported"}, "lossless.not_here"),
    ],
)
def test_ports_whose_qos_is_elsewhere_are_named(
    more: dict[str, Any], port: dict[str, Any], code: str
) -> None:
    found = survey(policy(cable_m=3), nic(**more), qos=(Qos(A, "rail0", **port),))
    assert code in codes(found)
    assert "dcb" not in [one["kind"] for one in (found.slice.entries if found.slice else ())]


def test_two_owners_of_dcbx_stop_it() -> None:
    found = survey(policy(cable_m=3), units=(Unit("lldpad.service", load="loaded", active="active"),))
    (told,) = [finding for finding in found.findings if finding.code == "lossless.two_owners"]
    assert told.severity == "error"
    assert [one["kind"] for one in (found.slice.entries if found.slice else ())] == ["rdma_marking"]


def test_a_firmware_that_owns_dcbx_is_compared_and_left() -> None:
    now = Qos(A, "rail0", backend="dcb", pfc=(4,))
    found = survey(policy(cable_m=3, dcbx="firmware"), qos=(now,))
    assert [one["kind"] for one in (found.slice.entries if found.slice else ())] == ["rdma_marking"]
    assert "lossless.differs" in codes(found)


def test_what_takes_the_link_away_is_announced_and_what_does_not_is_not() -> None:
    fresh = Qos(A, "rail0", backend="dcb", pfc=(), pause_rx=True, pause_tx=True)
    done = replace(fresh, pfc=(3,), pause_rx=False, pause_tx=False)
    (told,) = [one for one in survey(policy(cable_m=3), qos=(fresh,)).findings if one.code == "lossless.flap"]
    assert "PFC is on for no priority, planned priority 3; 802.3x pause is on" in told.why
    assert "lossless.flap" not in codes(survey(policy(cable_m=3), qos=(done,)))


@pytest.mark.parametrize("state", ["down", "init"])
@pytest.mark.parametrize("metres", [3, 30])
def test_a_rail_whose_link_is_down_is_written_all_the_same_and_that_is_said(state: str, metres: int) -> None:
    """The link may come back before the next run does."""
    asked = policy(cable_m=metres)
    whole, dark = (
        plan(mlx5_cards(node(rail1=fields)), asked) for fields in ({}, {"state": state, "rate": None})
    )
    assert [nic.role for nic in dark.nics if nic.name == "mlx5_1"] == ["down"]
    assert dark.slices["lossless"] == whole.slices["lossless"]
    assert len([one for one in dark.slices["lossless"].entries if one["kind"] == "dcb"]) == 2
    told = [(one.code, one.where) for one in dark.findings if one.code in ("nics.down", "lossless.down")]
    assert told == [("nics.down", "mlx5_1"), ("lossless.down", "mlx5_1")]
    assert "lossless.down" not in [one.code for one in whole.findings]


def mlx5_cards(found: Facts) -> Facts:
    """With the vendor of each card, as the PCI bus tells it."""
    devices = [
        replace(one, vendor="0x15b3") if one.address in {nic.address for nic in found.nics} else one
        for one in found.pci
    ]
    return replace(found, pci=tuple(devices))


def test_a_port_that_is_down_and_beside_no_gpu_is_not_written() -> None:
    seen = facts(nic(), nic("mlx5_9", "0000:29:00.0"))
    for lost, devices in (((), {A}), (("mlx5_9",), {A, "0000:29:00.0"})):
        found = lossless.survey(seen, policy(cable_m=3), [planned(nic())], lost)
        assert found.slice is not None
        assert {one["device"] for one in found.slice.entries} == devices


def test_the_slice_does_not_follow_what_stands_there() -> None:
    """Else a second run would undo the first."""
    states = [
        Qos(A, "rail0"),
        Qos(
            A,
            "rail0",
            backend="dcb",
            pfc=(3,),
            cable_m=30,
            trust="dscp",
            buffers=Buffers((0,) * 8, (9,) * 8, 10**6),
        ),
    ]
    first, second = (survey(policy(cable_m=30), qos=(state,)).slice for state in states)
    assert first == second


def test_nccl_and_what_a_gpu_sends_itself_carry_the_same_class() -> None:
    ports = [RailPort(nic(), 0)]
    values, _ = variables(policy(), ports, (), (), {})
    assert (values["NCCL_IB_TC"], values["NCCL_GIN_IB_TC"]) == ("106", "106")
    old = Policy.read({"lossless": {}, "nccl": {"version": "2.27.3"}})
    assert "NCCL_GIN_IB_TC" not in variables(old, ports, (), (), {})[0]
    assert "NCCL_IB_TC" not in variables(policy(), [RailPort(nic(link_layer="InfiniBand"), 0)], (), (), {})[0]
    assert "NCCL_IB_TC" not in variables(Policy(), ports, (), (), {})[0]


@pytest.mark.parametrize(
    "nccl", [{"traffic_class": 96}, {"env": {"NCCL_IB_TC": "0"}}, {"env": {"NCCL_GIN_IB_TC": "96"}}]
)
def test_another_class_for_nccl_is_an_error(nccl: dict[str, Any]) -> None:
    of = Policy.read({"lossless": {"cable_m": 3}, "nccl": nccl})
    (told,) = [one for one in survey(of).findings if one.code == "lossless.nccl"]
    assert "not that of RoCE's data" in told.why
    assert "lossless.nccl" not in codes(
        survey(Policy.read({"lossless": {"cable_m": 3}, "nccl": {"traffic_class": 104}}))
    )


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"ect": 3}, "policy.lossless.ect"),
        ({"cable_m": 1000}, "policy.lossless.cable_m"),
        ({"cables": {"rail0": 0}}, "policy.lossless.cables.rail0"),
        ({"dcbx": "lldpad"}, "policy.lossless.dcbx"),
        ({"dcqcn": {"rp_ai": 5}}, "policy.lossless.dcqcn.rp_ai"),
        ({"dcqcn": {"rp_threshold": 32}}, "policy.lossless.dcqcn.rp_threshold"),
        ({"traffic_class": 96}, "policy.lossless.traffic_class"),
        (
            {"classes": {"a": {"dscp": [9], "prio": 3, "lossless": True, "rate_gbps": 256}}},
            "policy.lossless.classes.a.rate_gbps",
        ),
        ({"data": "cnp"}, "policy.lossless.data"),
        ({"buffer_bytes": {"cnp": 1}}, "policy.lossless.buffer_bytes.cnp"),
        ({"classes": {"a": {"dscp": [64], "prio": 3, "lossless": True}}}, "policy.lossless.classes.a.dscp"),
        (
            {"classes": {n: {"dscp": [i], "prio": i, "lossless": True} for i, n in enumerate("bc", start=2)}},
            "policy.lossless.data",
        ),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused_with_its_place(more: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as error:
        policy(**more)
    assert error.value.where == where


def test_a_name_that_would_be_a_command_never_reaches_a_remedy() -> None:
    spoilt = to_json(facts(nic(), qos=(Qos(A, "rail0; reboot"),)))
    with pytest.raises(InputError) as error:
        Facts.read(spoilt)
    assert error.value.where == "facts.qos[0].netdev"


# The check and the linter judge what was written.


def as_written(of: Policy) -> Qos:
    """A port that holds what the plan says, put together from the entries."""
    made = entry(of)
    marks, steering = entry(of, "rdma_marking"), entry(of, "congestion")["values"]
    buffer = made.get("buffer")
    return Qos(
        A,
        "rail0",
        backend="dcb",
        dscp_prio=made["app"],
        pfc=tuple(made["pfc"]),
        cable_m=made.get("cable"),
        ets=Ets(*(tuple(made["ets"][key]) for key in ("prio_tc", "tc_tsa", "tc_bw"))),
        tc_rate=tuple(made.get("rate", ())),
        buffers=None if buffer is None else Buffers(tuple(buffer["prio_buffer"]), tuple(buffer["size"])),
        dcbx=("host", "ieee"),
        pause_rx=False,
        pause_tx=False,
        congestion=steering,
        tos=marks["tos"],
        roce_mode=marks["mode"],
    )


def judged(of: Policy, port: Qos) -> dict[str, str | None]:
    """Each check's word: None where it is as planned."""
    made = survey(of).slice
    assert made is not None
    seen = facts(nic(), qos=(port,))
    found: dict[str, str | None] = {}
    for one in made.entries:
        for answer in KINDS[one["kind"]](seen, "lossless", dict(one)):
            why = answer.finding.why if answer.finding else None
            found[answer.check] = found.get(answer.check) or why
    return found


def test_the_check_is_content_with_what_was_written_and_names_each_part_that_is_not() -> None:
    of = policy(cable_m=30)
    port = as_written(of)
    assert set(judged(of, port).values()) == {None}
    for change, check in (
        ({"pfc": (4,)}, "lossless.pfc"),
        ({"dscp_prio": {}}, "lossless.app"),
        ({"cable_m": 7}, "lossless.cable"),
        ({"dcbx": ("ieee",)}, "lossless.dcbx"),
        ({"pause_tx": True}, "lossless.pause"),
        ({"tos": 0}, "lossless.marking"),
        ({"buffers": Buffers((0,) * 8, (20_016, 156_096) + (0,) * 6)}, "lossless.buffer"),
    ):
        wrong = judged(of, replace(port, **change))
        assert [name for name, why in wrong.items() if why is not None] == [check]
    # ConnectX-4 and elder: no fault, and nothing to be read again.
    none = replace(port, buffers=None, unread={"buffer": "dcb ended with 1: Operation not supported"})
    assert set(judged(of, none).values()) == {None}
    hidden = judged(of, replace(port, cable_m=None, unread={"pfc": "dcb ended with 124"}))["lossless.cable"]
    assert "dcb ended with 124" in str(hidden)
    # Code points that nobody has named are the firmware's to map.
    few = {point: prio for point, prio in (port.dscp_prio or {}).items() if prio}
    assert judged(of, replace(port, dscp_prio=few))["lossless.app"] is not None
    dark = judged(of, Qos(A, "rail0"))
    assert all(why is not None and "not looked at" in why for why in dark.values())


def test_the_contract_gives_a_host_its_classes_its_cables_and_its_speed(tmp_path: Path) -> None:
    data = contract_data("nvue", "eos")
    contract = fabric.Contract.read(data)
    made = fabric.host_policy(contract, "gpu02")
    assert (made["cables"], made["speed_gbps"]) == ({"rail0": 30, "rail1": 30}, 400)
    of = policy(**made).lossless
    assert of is not None
    assert (of.classes, of.default_prio, of.tos) == (contract.classes, contract.default_prio, 106)
    # The linter knows what NCCL is told then.
    template = {"lossless": "{{ fabric | lossless_policy(inventory_hostname) }}"}
    (tmp_path / "all.yml").write_text(
        json.dumps({"all": {"vars": {"fabric": data, "node_policy": template}}})
    )
    assert fabric.read_inventory(tmp_path / "all.yml").traffic_class == 106


def test_the_linter_has_nothing_against_a_host_that_holds_what_was_written() -> None:
    data = contract_data("nvue", cable_m=30)
    contract = fabric.Contract.read(data)
    of = policy(cable_m=30)
    port = as_written(of)
    ets = {"prio_tc": port.ets.prio_tc, "tc_tsa": port.ets.tc_tsa, "tc_bw": port.ets.tc_bw}  # type: ignore[union-attr]
    state = {
        "netdev": "rail0",
        "mtu": 9000,
        "cnp_dscp": port.congestion["np_cnp_dscp"],
        "pause": "RX: off\nTX: off\n",
        "dcb": {
            "pfc": {"prio_pfc": [n in (port.pfc or ()) for n in range(8)], "delay": port.cable_m},
            "app": {"dscp_prio": [[int(point), prio] for point, prio in (port.dscp_prio or {}).items()]},
            "ets": {key: list(value) for key, value in ets.items()},
            "dcbx": {"host": True},
        },
    }
    hosts = fabric.read_hosts({"gpu01": {"rail0": state}}, "hosts.json")
    found = fabric.lint(
        fabric.Found(contract, "fabric", of.lossless.tos if of.lossless else None, policy_seen=True),
        {},
        hosts,
    )
    told = [one.code for one in found.findings if one.where.startswith("gpu01") and one.severity != "info"]
    assert told == []
    broken = {**state, "dcb": {**state["dcb"], "pfc": {"prio_pfc": [False] * 8}}}  # type: ignore[dict-item]
    again = fabric.lint(
        fabric.Found(contract, "fabric", 106, policy_seen=True),
        {},
        fabric.read_hosts({"gpu01": {"rail0": broken}}, "x"),
    )
    assert "fabric.host_pfc" in [one.code for one in again.findings]
