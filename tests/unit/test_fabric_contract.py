"""The contract as data: read from an inventory without Ansible, and what it has to hold by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.fabric import Contract, Found, lint, read_inventory
from railwright.node.check import is_open
from railwright.node.model import InputError
from tests.unit.fabric_samples import contract, contract_data, opened

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path, **files: Any) -> Path:
    (folder / "group_vars").mkdir()
    for name, value in files.items():
        text = value if isinstance(value, str) else yaml.safe_dump(value)
        (folder / "group_vars" / f"{name}.yml").write_text(text, encoding="utf-8")
    return folder


def test_a_right_contract_has_nothing_open() -> None:
    assert opened(contract("sonic", "nvue", "eos", "nxos")) == {}


def test_the_defaults_are_the_de_facto_classes() -> None:
    of = contract("sonic")
    assert of.prio_of == {26: 3, 48: 6}
    assert list(of.lossless) == ["roce"]
    # Start values of the table by speed.
    assert (of.marking(400).min_bytes, of.marking(400).max_bytes) == (500_000, 3_000_000)
    assert (of.marking(100).min_bytes, of.marking(100).max_bytes) == (150_000, 1_500_000)
    assert (of.marking(200).min_bytes, of.marking(200).max_bytes) == (300_000, 2_000_000)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        ({"classes": {"roce": {"dscp": [64], "prio": 3, "lossless": True}}}, "classes.roce.dscp", "found 64"),
        ({"classes": {"roce": {"dscp": [26], "prio": 8, "lossless": True}}}, "classes.roce.prio", "found 8"),
        ({"classes": {"roce": {"dscp": [], "prio": 3, "lossless": True}}}, "classes.roce.dscp", "is empty"),
        ({"classes": {"roce": {"dscp": [26], "prio": 3}}}, "classes", "no class is lossless"),
        (
            {
                "classes": {
                    "roce": {"dscp": [26], "prio": 3, "lossless": True},
                    "cnp": {"dscp": [26], "prio": 6, "strict": True},
                }
            },
            "classes.cnp.dscp",
            "26 selects roce too",
        ),
        (
            {
                "classes": {
                    "roce": {"dscp": [26], "prio": 3, "lossless": True},
                    "cnp": {"dscp": [48], "prio": 3, "strict": True},
                }
            },
            "classes.cnp.prio",
            "3 is the priority of roce too",
        ),
        ({"default_prio": 3}, "default_prio", "is the priority of the class roce"),
        ({"host_mtu": 90}, "host_mtu", "expected 1500 to 9702"),
        ({"speed_gbps": 399}, "speed_gbps", "one of 10, 25, 40"),
        ({"cable_m": 1000}, "cable_m", "expected 1 to 999 metres"),
        (
            {"ecn": {"400": {"min_bytes": 5, "max_bytes": 5, "probability_percent": 10}}},
            "ecn.400.max_bytes",
            "more than",
        ),
        (
            {"ecn": {400: {"min_bytes": 5, "max_bytes": 6, "probability_percent": 0}}},
            "ecn.400.probability",
            "found 0",
        ),
        (
            {"ecn": {"0400": {"min_bytes": 5, "max_bytes": 6, "probability_percent": 10}}},
            "ecn.0400",
            "is no speed",
        ),
        (
            {"classes": {"roce": {"dscp": [26], "prio": 3, "lossless": True, "strict": True}}},
            "classes.roce",
            "is lossless and strict",
        ),
        ({"watchdog": {"detection_ms": 50}}, "watchdog.detection_ms", "expected 100 to 5000"),
        ({"accept": {"fabric.mtu": " "}}, "accept.fabric.mtu", "say why"),
        ({"speeds": 1}, "fabric.speeds", "unknown key"),
        ({"speed_gbps": None}, "ports.Ethernet0.speed_gbps", "is not known"),
        ({"speed_gbps": 800}, "ports.Ethernet0.speed_gbps", "state fabric.ecn.800"),
        ({"switches": {}}, "fabric.switches", "is empty"),
    ],
)
def test_what_cannot_be_a_contract_is_told_with_its_place(
    change: dict[str, Any], where: str, why: str
) -> None:
    data = contract_data("sonic") | change
    with pytest.raises(InputError) as told:
        Contract.read(data)
    assert where in told.value.where
    assert why in str(told.value)


@pytest.mark.parametrize(
    ("low", "high", "kbytes"),
    # 999 bytes are no kbyte; 1000 and 1999 are one each.
    [(999, 5000, "0 to 5"), (1000, 1999, "1 to 1"), (1000, 2000, None)],
)
def test_thresholds_that_are_nothing_or_equal_in_kbytes_are_refused_on_nxos(
    low: int, high: int, kbytes: str | None
) -> None:
    ecn = {"400": {"min_bytes": low, "max_bytes": high, "probability_percent": 10}}
    assert contract("eos", ecn=ecn).marking(400).min_bytes == low
    if kbytes is None:
        assert contract("eos", "nxos", ecn=ecn).marking(400).max_bytes == high
        return
    with pytest.raises(InputError) as told:
        contract("eos", "nxos", ecn=ecn)
    assert told.value.where == "fabric.ecn.400"
    assert f"are {kbytes} kbytes on NX-OS (nxos)" in str(told.value)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        ({"os": "junos"}, "switches.sonic.os", "one of sonic, nvue"),
        ({"platform": "sn9999"}, "switches.sonic.platform", "leave it out"),
        ({"ports": {}}, "switches.sonic.ports", "holds 0 ports"),
        ({"ports": {"swp1": {"host": "a", "nic": "b"}}}, "ports.swp1", "expected a name like Ethernet0"),
        ({"ports": {"Ethernet0": {"host": "a\nb", "nic": "c"}}}, "Ethernet0.host", "is no name"),
        ({"ports": {"Ethernet0\n": {"host": "a", "nic": "c"}}}, "ports.Ethernet0", "is no port of sonic"),
        (
            {"ports": {"Ethernet0": {"host": "a", "nic": "b"}, "Ethernet8": {"host": "a", "nic": "b"}}},
            "ports.Ethernet8",
            "a NIC port has one cable",
        ),
        ({"lanes": 3}, "switches.sonic.lanes", "one of 1, 2, 4, 8"),
        ({"headroom_pool_bytes": 0}, "headroom_pool_bytes", "found 0"),
    ],
)
def test_what_cannot_be_a_switch_is_told_with_its_place(change: dict[str, Any], where: str, why: str) -> None:
    data = contract_data("sonic")
    data["switches"]["sonic"].update(change)
    with pytest.raises(InputError) as told:
        Contract.read(data)
    assert where in told.value.where
    assert why in str(told.value)


def test_shares_sum_to_a_hundred_and_unstated_ones_are_equal() -> None:
    def shares(**stated: int | None) -> dict[int, int]:
        classes = {
            name: {"dscp": [prio], "prio": prio, "lossless": True, "bandwidth_percent": share}
            for prio, (name, share) in enumerate(stated.items(), 1)
        }
        return contract("sonic", classes=classes | {"cnp": {"dscp": [48], "prio": 6, "strict": True}}).shares

    assert shares(a=50) == {1: 50, 0: 50}
    assert shares(a=80, b=10) == {1: 80, 2: 10, 0: 10}
    assert shares(a=None, b=None) == {1: 33, 2: 33, 0: 34}
    assert shares(a=98, b=None) == {1: 98, 2: 1, 0: 1}
    with pytest.raises(InputError, match="leave at least 2 %"):
        shares(a=99, b=None)


@pytest.mark.parametrize(
    ("change", "code", "effect"),
    [
        ({"switch_mtu": 9000}, "fabric.mtu", "dropped as oversized"),
        ({"host_mtu": 4100}, "fabric.host_mtu", "4192"),
        ({"adaptive_routing": {"fabric": True}}, "fabric.adaptive_routing", "fabric on, nic off, nccl off"),
        (
            {"adaptive_routing": {"nic": True, "nccl": True}},
            "fabric.adaptive_routing",
            "that the fabric does not do",
        ),
        (
            {"classes": {"roce": {"dscp": [26], "prio": 3, "lossless": True}}},
            "fabric.cnp_strict",
            "wait behind",
        ),
        (
            {
                "classes": {
                    "roce": {"dscp": [26], "prio": 3, "lossless": True},
                    "two": {"dscp": [34], "prio": 4, "lossless": True},
                    "cnp": {"dscp": [48], "prio": 6, "strict": True},
                }
            },
            "fabric.lossless_count",
            "2 lossless classes (roce, two)",
        ),
        (
            {"ecn": {"400": {"min_bytes": 500_000, "max_bytes": 3_000_000, "probability_percent": 1}}},
            "fabric.marking_probability",
            "1 % at the upper threshold",
        ),
    ],
)
def test_a_contract_that_contradicts_itself_is_told_with_the_effect(
    change: dict[str, Any], code: str, effect: str
) -> None:
    found = opened(contract("sonic", **change))
    assert list(found) == [code]
    assert effect in found[code].why
    assert found[code].remedy


def test_ecn_that_acts_after_pfc_is_found_at_the_very_byte() -> None:
    data = contract_data("sonic")
    # Two senders fill a queue with twice what each may hold: 3 000 000 / 2.
    for xoff, codes in ((1_500_001, []), (1_500_000, ["fabric.ecn_before_pfc"])):
        data["switches"]["sonic"]["pfc_xoff_bytes"] = xoff
        assert list(opened(contract("sonic", switches=data["switches"]))) == codes


def test_nccl_has_to_send_what_the_contract_calls_lossless() -> None:
    for traffic_class, severity in ((104, None), (106, None), (0, "error"), (96, "error"), (None, "warning")):
        found = lint(Found(contract("sonic"), "fabric", traffic_class, policy_seen=True), {}).findings
        mine = [one for one in found if one.code == "fabric.nccl_traffic_class"]
        assert [one.severity for one in mine] == ([] if severity is None else [severity]), traffic_class
        assert all("104" in one.remedy for one in mine)


def test_a_finding_that_the_contract_accepts_keeps_its_reason_and_is_not_open() -> None:
    of = contract("sonic", switch_mtu=9000, accept={"fabric.mtu": "The spines follow in March."})
    result = lint(Found(of, "fabric", None, policy_seen=False), {})
    (found,) = (one for one in result.findings if one.code == "fabric.mtu")
    assert found.accepted == "The spines follow in March."
    assert result.open == ()


# The inventory.


def test_the_contract_is_found_in_group_vars_with_the_policys_traffic_class(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        all={"fabric": contract_data("sonic")},
        gpu_nodes={"node_policy": {"nccl": {"env": {"NCCL_IB_TC": "104"}}}},
    )
    (folder / "hosts.yml").write_text("gpu_nodes: {hosts: {gpu01: }}\n", encoding="utf-8")
    found = read_inventory(folder)
    assert found.contract == contract("sonic")
    assert found.where == f"{folder}/group_vars/all.yml: fabric"
    assert (found.traffic_class, found.policy_seen) == (104, True)
    assert read_inventory(folder / "hosts.yml").contract == found.contract
    assert read_inventory(folder / "group_vars/all.yml").contract == found.contract


def test_the_contract_is_found_in_the_vars_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"vars": {"fabric": contract_data("eos")}}}), encoding="utf-8")
    assert read_inventory(path).where.endswith("hosts.yml: all.vars.fabric")


def test_a_file_may_be_the_contract_itself(tmp_path: Path) -> None:
    path = tmp_path / "contract.yml"
    path.write_text(yaml.safe_dump(contract_data("eos")), encoding="utf-8")
    assert read_inventory(path).contract == contract("eos")


def test_a_vault_beside_it_does_not_matter(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        all={"fabric": contract_data("sonic")},
        secret="$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        more="password: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n",
    )
    assert read_inventory(folder).contract == contract("sonic")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\n", "holds no variable `fabric`"),
        ("fabric: {switches: '{{ leaves }}'}\n", "fabric.switches: holds a template"),
        ("fabric: [\n", "all.yml:2: is not YAML"),
        ("fabric: 7\n", "expected dict, found int"),
        ("fabric: {switches: {a: {os: sonic, ports: 3}}}\n", "switches.a.ports: expected dict, found int"),
        ("fabric: &a {switches: *a}\n", "is nested too deeply"),
        ("a: {b: 1, b: 2}\nfabric:\n  switches:\n    x: 1\n    x: 2\n", "all.yml:5: states 'x' twice"),
        (
            "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
            "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n"
            "fabric: {switches: *f}\n",
            "too large for a contract",
        ),
    ],
)
def test_an_inventory_that_cannot_be_used_says_so(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as told:
        read_inventory(write(tmp_path, all=text))
    assert why in str(told.value)


def test_two_contracts_in_one_inventory_are_refused_with_both_places(tmp_path: Path) -> None:
    folder = write(tmp_path, all={"fabric": contract_data("sonic")}, more={"fabric": contract_data("eos")})
    with pytest.raises(InputError, match=r"more\.yml: fabric: states `fabric`, and so does .*all\.yml"):
        read_inventory(folder)


def test_an_inventory_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        read_inventory(tmp_path / "nowhere")


def test_the_example_has_a_right_contract() -> None:
    found = read_inventory(ROOT / "inventories/example")
    result = lint(found, {})
    assert not [one for one in result.findings if is_open(one)]
