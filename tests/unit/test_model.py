"""The border: what comes in as JSON or text is either exact or an error that names the place."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railwright.node.model import (
    Facts,
    Gpu,
    Host,
    InputError,
    Nic,
    NvLink,
    PciDevice,
    Plan,
    PlannedGpu,
    Policy,
    Slice,
    Witness,
    format_cpulist,
    normalise_address,
    parse_cpulist,
    sort_key,
    to_json,
)


def test_facts_survive_json() -> None:
    facts = Facts(
        schema="railwright.facts/1",
        witnesses=(Witness("sysfs", "/"),),
        pci=(PciDevice("0000:18:00.0", "pci0000:15"),),
        gpus=(Gpu("GPU0", 0, nvlinks=(NvLink("0000:06:00.0", 5),)),),
    )
    assert Facts.read(json.loads(json.dumps(to_json(facts)))) == facts


def test_a_plan_survives_json_with_entries_of_any_shape() -> None:
    gpu = PlannedGpu(0, "GPU0", None, None, 0, ("mlx5_0",), "PIX", None, "why")
    entry = {"kind": "json_keys", "path": "/etc/x.json", "keys": {"/a": [1, None, {"b": True}]}}
    plan = Plan("railwright.plan/1", "planned", gpus=(gpu,), slices={"x": Slice("runtime", (entry,), "why")})
    assert Plan.read(json.loads(json.dumps(to_json(plan)))) == plan
    assert plan.files() == ("/etc/x.json",)
    assert plan.units() == ()


def test_unknown_nvlinks_and_no_nvlinks_stay_apart() -> None:
    unknown, none = Gpu("GPU0", 0, nvlinks=None), Gpu("GPU0", 0, nvlinks=())
    assert to_json(unknown)["nvlinks"] is None
    assert to_json(none)["nvlinks"] == []


@pytest.mark.parametrize(
    ("data", "place", "why"),
    [
        ({"workload": 1}, "policy.workload", "expected str, found int"),
        ({"workload": "fast"}, "policy.workload", "found 'fast'"),
        ({"cores": {"irq_per_nic": True}}, "policy.cores.irq_per_nic", "expected int, found bool"),
        ({"cores": {"irq_per_nic": 0}}, "policy.cores", "expected irq_per_nic >= 1"),
        ({"nics": [{"match": "mlx5_0", "role": "fast"}]}, "policy.nics[0].role", "found 'fast'"),
        ({"nics": [{}]}, "policy.nics[0].match", "missing"),
        ({"nics": {}}, "policy.nics", "expected list, found dict"),
        ({"tuned": True}, "policy.tuned", "unknown key"),
        ({"nccl": {"env": {"NCCL_DEBUG": 1}}}, "policy.nccl.env.NCCL_DEBUG", "expected str, found int"),
        ({"nccl": {"env": {1: "x"}}}, "policy.nccl.env", "expected text as a key"),
        ({"schema": "railwright.policy/9"}, "policy.schema", "found 'railwright.policy/9'"),
        ([], "policy", "expected dict, found list"),
        ({"nccl": {"socket_ifname": "a b\nNCCL_DEBUG=TRACE"}}, "policy.nccl.socket_ifname", "found"),
        ({"sysctls": {"vm.swappiness": "1\nkernel.panic = 1"}}, "policy.sysctls.vm.swappiness", "found"),
        ({"nccl": {"traffic_class": 256}}, "policy.nccl.traffic_class", "found 256"),
        ({"nccl": {"traffic_class": -4}}, "policy.nccl.traffic_class", "found -4"),
        ({"nccl": {"traffic_class": 107}}, "policy.nccl.traffic_class", "found 107"),
        ({"sysctls": {"vm.swappiness": " "}}, "policy.sysctls.vm.swappiness", "found"),
        ({"sysctls": {"vm.a\nb": "1"}}, "policy.sysctls", "is no name of a kernel parameter"),
        ({"boot": {"sha256": "x"}}, "policy.boot.sha256", "found 'x'"),
        ({"expect": {"gpus": -1}}, "policy.expect", "found -1"),
    ],
)
def test_a_wrong_policy_is_named_with_its_place(data: Any, place: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        Policy.read(data)
    assert caught.value.where == place
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"cuda": {"toolkits": {13.0: "13.0.2-1"}}}, "policy.cuda.toolkits"),
        ({"cuda": {"default": 13.0}}, "policy.cuda.default"),
        ({"limits": {"memlock": False}}, "policy.limits.memlock"),
        ({"rdma_stack": {"firmware": {"MT_1": date(2026, 11, 1)}}}, "policy.rdma_stack.firmware.MT_1"),
    ],
)  # fmt: skip
def test_what_yaml_took_for_a_number_or_a_day_is_to_be_put_in_quotes(data: Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        Policy.read(data)
    assert (caught.value.where, caught.value.remedy) == (place, "put it in quotes")


@pytest.mark.parametrize("kind", [Facts, Plan])
def test_another_schema_is_refused(kind: Any) -> None:
    data = {"schema": "railwright.other/1", "witnesses": [], "status": "planned"}
    data.pop("status" if kind is Facts else "witnesses")
    with pytest.raises(InputError, match=r"schema: found 'railwright.other/1'"):
        kind.read(data)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:18:00.0", "0000:18:00.0"),
        ("00000000:AF:1F.7", "0000:af:1f.7"),
        ("18:00.0", "0000:18:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("7C1FE1F4:00:00.0", "7c1fe1f4:00:00.0"),
        ("0008:06:0.1", "0008:06:00.1"),
    ],
)
def test_every_spelling_of_a_pci_address_becomes_one(text: str, address: str) -> None:
    assert normalise_address(text, "x") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "GPU0", "0000:18:00", "0000:18:20.0", "0000:18:00.8", "123456789:18:00.0"),
        # Digits of another script, and what an anchor of regular expressions lets through.
        *("0000:18:00.\u0663", "\u0660000:18:00.0", "0000:18:00.0\n", " 0000:18:00.0", "0000:18:00.0\u00a0"),
    ],
)
def test_what_is_no_pci_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no PCI address"):
        normalise_address(text, "x")


def test_pci_order_is_numeric() -> None:
    addresses = ["10000:01:00.0", "0000:9a:00.0", "0000:18:00.1", "0000:18:00.0"]
    assert sorted(addresses, key=sort_key) == [
        "0000:18:00.0",
        "0000:18:00.1",
        "0000:9a:00.0",
        "10000:01:00.0",
    ]


@given(st.sets(st.integers(0, 600)))
def test_a_cpulist_round_trips(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus), "x") == tuple(sorted(cpus))


def test_cpulists_read_as_the_kernel_prints_them() -> None:
    assert parse_cpulist("0-2,8,10-11", "x") == (0, 1, 2, 8, 10, 11)
    assert parse_cpulist("0-2, 8", "x") == (0, 1, 2, 8)
    assert parse_cpulist("", "x") == ()
    assert format_cpulist([11, 10, 8, 2, 1, 0]) == "0-2,8,10-11"


@pytest.mark.parametrize(
    "text",
    [
        *("a", "3-1", "0-99999", "1,,2", "-1", "0x3", "0-3,", " "),
        # int() takes the digits of every script, and a line's end would end the line of a file that it is written to.
        *("\u0661-\u0663", "0-\u0967", "0-3\n", "\n", "0-3\nirqaffinity=0", "0\t", "\u00b2", "9" * 5000),
    ],
)
def test_a_damaged_cpulist_is_an_error_and_never_an_empty_set(text: str) -> None:
    with pytest.raises(InputError, match="no CPU list"):
        parse_cpulist(text, "x")


@pytest.mark.parametrize(
    ("entry", "place"),
    [({}, "kind"), ({"kind": "file"}, "path"), ({"kind": "systemd_unit", "name": 7}, "name")],
)
def test_an_entry_that_is_about_nothing_is_named(entry: dict[str, Any], place: str) -> None:
    data = {"schema": "railwright.plan/1", "status": "planned"}
    data["slices"] = {"x": {"stage": "runtime", "entries": [entry], "because": "why"}}  # type: ignore[assignment]
    with pytest.raises(InputError) as caught:
        Plan.read(data)
    assert caught.value.where == f"plan.slices.x.entries[0].{place}"


@pytest.mark.parametrize("place", ["host.name", "nics[0].master"])
def test_a_name_that_could_add_a_line_or_a_command_is_refused(place: str) -> None:
    evil = "a\nNCCL_DEBUG=INFO; rm"
    facts = Facts(
        schema="railwright.facts/1",
        witnesses=(Witness("sysfs", "/"),),
        host=Host(name=evil if place == "host.name" else None),
        nics=(Nic("mlx5_0", master=evil if place != "host.name" else None),),
    )
    with pytest.raises(InputError) as caught:
        Facts.read(to_json(facts))
    assert caught.value.where == f"facts.{place}"


@pytest.mark.parametrize("interface", ["eth0", "=eth0", "^=docker0,lo", "bond0.100"])
def test_nccls_ways_to_name_interfaces_are_taken(interface: str) -> None:
    assert Policy.read({"nccl": {"socket_ifname": interface}}).nccl.socket_ifname == interface


def test_a_rate_below_zero_is_no_rate() -> None:
    facts = Facts("railwright.facts/1", (Witness("sysfs", "/"),), nics=(Nic("mlx5_0", rate=-1),))
    with pytest.raises(InputError, match=r"facts\.nics\[0\]\.rate: found -1"):
        Facts.read(to_json(facts))
