"""From what a verify keeps of a node to a verdict on host and switch: the tools' own words, and their silence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.cli import main
from railwright.fabric import Contract, Found, document, host_states, lint, ports_only, read_hosts, read_pause
from railwright.node.check import is_open
from railwright.node.discover.tools import DCB, DCB_OF_HOST, port_tools
from railwright.node.model import Facts, Finding, InputError, Nic, Tool, to_json
from railwright.report.fabric import read_fabric
from tests.unit.fabric_samples import contract, contract_data
from tests.unit.test_fabric_hosts import HOSTS, flags

RAIL = Nic(
    "mlx5_0",
    rdma="mlx5_0",
    netdev="rail0",
    link_layer="Ethernet",
    state="active",
    mtu=9000,
    default_route=False,
    physical_function="",
    cnp_dscp=48,
)
# As ethtool 6.x prints it; a port that negotiates has two more lines.
PAUSE = "Pause parameters for rail0:\nAutonegotiate:\toff\nRX:\t\toff\nTX:\t\toff\n"
SAID = {
    **{f"dcb-{part}-rail0": json.dumps(HOSTS["gpu01"]["rail0"]["dcb"][part]) for part in DCB},
    "ethtool-pause-rail0": PAUSE,
    "lldpcli": json.dumps(HOSTS["gpu01"]["rail0"]["lldp"]),
}


def facts(*nics: Nic, said: dict[str, str] = SAID, codes: dict[str, int | None] | None = None) -> Facts:
    """A node whose tools said this; what `said` leaves out was asked and is not installed."""
    outcomes = codes or {}
    tools = tuple(
        Tool(name, argv, outcomes.get(name, 0 if name in said else None), said.get(name, ""))
        for name, argv in port_tools(nics)
    )
    return Facts("railwright.facts/1", (), nics=nics, tools=(Tool("lspci", ("lspci",), 0, "x"), *tools))


def found(*nodes: tuple[str, Facts], of: Contract | None = None) -> list[Finding]:
    of = of or contract("sonic")
    hosts = read_hosts(host_states(of, nodes), "out")
    result = lint(Found(of, "fabric", None, policy_seen=False), {}, hosts)
    return [one for one in result.findings if one.where.startswith("gpu")]


def of_gpu01(facts: Facts) -> dict[str, list[str]]:
    """What is said of gpu01 rail0, by code."""
    told: dict[str, list[str]] = {}
    for one in found(("gpu01", facts)):
        if one.where == "gpu01 rail0":
            told.setdefault(one.code, []).append(one.why)
    return told


def test_a_node_that_agrees_is_read_as_the_file_of_the_same_words_is() -> None:
    states = host_states(contract("sonic"), [("gpu01", facts(RAIL))])
    kept, _ = read_hosts(states, "out")
    assert kept == read_hosts(HOSTS, "hosts.json")[0]
    assert of_gpu01(facts(RAIL)) == {}


def test_the_contract_may_name_a_port_by_its_rdma_device() -> None:
    data = contract_data("sonic")
    data["switches"]["sonic"]["ports"]["Ethernet0"]["nic"] = "mlx5_0"
    states = host_states(Contract.read(data), [("gpu01", facts(RAIL))])
    assert list(states["gpu01"]) == ["mlx5_0"]
    (port, _) = read_hosts(states, "out")
    assert (port.pause, port.heard is not None, port.unread) == (False, True, {})


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("dcb-pfc-rail0", json.dumps({"prio_pfc": flags(4)}), "host_pfc"),
        ("dcb-app-rail0", json.dumps({"dscp_prio": [[26, 4], [48, 6]]}), "host_dscp"),
        ("dcb-dcbx-rail0", json.dumps({"ieee": True}), "host_dcbx"),
        ("ethtool-pause-rail0", PAUSE.replace("RX:\t\toff", "RX:\t\ton"), "host_pause"),
        ("lldpcli", SAID["lldpcli"].replace("Ethernet0", "Ethernet8"), "cabling"),
    ],
)
def test_what_a_tool_of_the_node_says_against_the_contract_is_found(name: str, text: str, code: str) -> None:
    assert list(of_gpu01(facts(RAIL, said={**SAID, name: text}))) == [f"fabric.{code}"]


def test_mtu_and_cnp_of_the_facts_are_held_against_the_contract() -> None:
    told = of_gpu01(facts(replace(RAIL, mtu=1500, cnp_dscp=4)))
    assert set(told) == {"fabric.host_mtu", "fabric.host_cnp"}


# What each part of the reading is called, and the tool that would say it.
PARTS = {
    "dcb-pfc-rail0": "the host's PFC",
    "dcb-app-rail0": "its DSCP map",
    "dcb-ets-rail0": "its scheduling",
    "dcb-dcbx-rail0": "who manages DCBX",
    "ethtool-pause-rail0": "802.3x pause",
    "lldpcli": "cabling and the switch's DCBX",
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (None, None, "is not on the node"),
        ("Operation not supported\nmore", 1, "ended with 1: Operation not supported"),
        ('{"prio_pfc": [tr', 124, "ended with 124"),
        ("\x1b[31m{garbled", 0, "found|is not JSON"),
        ("", 0, "found|is not JSON"),
        ("[1, 2, 3]", 0, "found|holds no LLDP"),
        ("9" * 6000, 0, "found|is not JSON"),
        ("[" * 100_000, 0, "found|is not JSON"),
    ],
)
def test_a_tool_that_is_absent_fails_or_talks_nonsense_leaves_its_part_unverified(
    name: str, text: str | None, code: int | None, why: str
) -> None:
    said = {key: value for key, value in SAID.items() if key != name} | (
        {name: text} if text is not None else {}
    )
    node = facts(RAIL, said=said, codes={name: code})
    told = of_gpu01(node)
    assert list(told) == ["fabric.unverified"]
    (sentence,) = told["fabric.unverified"]
    assert sentence.startswith(f"not verified: {PARTS[name]}: ")
    assert any(words in sentence for words in why.split("|"))
    assert len(sentence) < 400


def test_without_any_tool_nothing_is_called_good_or_seen() -> None:
    of = contract("sonic")
    hosts = read_hosts(host_states(of, [("gpu01", facts(RAIL, said={}))]), "out")
    result = document(lint(Found(of, "fabric", None, policy_seen=False), {}, hosts))
    assert result["seen"] == []
    places = [place for one in result["classes"] for place in one["places"] if place["kind"] == "host"]
    assert [place["name"] for place in places] == ["gpu01", "gpu02"] * 2
    assert {(place["agrees"], place["pfc"]) for place in places} == {(None, None)}
    told = of_gpu01(facts(RAIL, said={}))
    assert told == {
        "fabric.unverified": [
            "not verified: the host's PFC, its DSCP map, its scheduling, who manages DCBX: dcb is not on the node",
            "not verified: 802.3x pause: ethtool is not on the node",
            "not verified: cabling and the switch's DCBX: lldpcli is not on the node",
        ]
    }


def test_facts_of_a_run_that_asked_no_tool_say_which_run_does() -> None:
    told = of_gpu01(replace(facts(replace(RAIL, cnp_dscp=None)), tools=()))
    assert "dcb was not asked there: run playbooks/verify.yml" in told["fabric.unverified"][0]
    assert "the DSCP of congestion notifications: /sys/class/net/rail0/ecn is not there" in " ".join(
        told["fabric.unverified"]
    )


def test_a_host_without_a_record_and_ports_that_nobody_expects_are_named() -> None:
    front = replace(RAIL, name="mlx5_3", rdma="mlx5_3", netdev="front", default_route=True)
    spare = replace(RAIL, name="mlx5_4", rdma="mlx5_4", netdev="spare", state="down")
    forgotten = replace(RAIL, name="mlx5_5", rdma="mlx5_5", netdev="rail7")
    told = {one.where: one.why for one in found(("gpu01", facts(RAIL, front, spare, forgotten)))}
    assert set(told) == {"gpu01 rail7", "gpu02 rail0"}
    assert "is in no switch of the contract" in told["gpu01 rail7"]
    assert "there is no record of this host" in told["gpu02 rail0"]
    (stranger,) = [one for one in found(("gpu99", facts(RAIL))) if one.where.startswith("gpu99")]
    assert (stranger.where, stranger.severity) == ("gpu99 rail0", "info")


@pytest.mark.parametrize(
    ("nic", "why"),
    [
        (replace(RAIL, netdev="eth7"), "the host has no NIC of this name; it has eth7 (mlx5_0)"),
        (replace(RAIL, link_layer="InfiniBand"), "mlx5_0 is an InfiniBand port"),
        (replace(RAIL, name="rail0", netdev=None), "rail0 has no netdev"),
    ],
)
def test_a_nic_that_cannot_be_the_contracts_port_says_why(nic: Nic, why: str) -> None:
    assert of_gpu01(facts(nic)) == {"fabric.unverified": [f"not verified: {why}"]}


@pytest.mark.parametrize(
    ("text", "on"),
    [
        (PAUSE, False),
        (PAUSE.replace("TX:\t\toff", "TX:\t\ton"), True),
        (PAUSE + "RX negotiated: on\nTX negotiated: on\n", False),
    ],
)
def test_pause_is_what_is_set_not_what_was_negotiated(text: str, on: bool) -> None:
    assert read_pause(text, "ethtool -a rail0") is on


def test_half_an_answer_on_pause_is_none() -> None:
    with pytest.raises(InputError, match="expected RX and TX, each on or off"):
        read_pause("Pause parameters for rail0:\nRX:\t\toff\n", "ethtool -a rail0")


def test_what_is_kept_of_a_node_are_its_ports_alone_and_they_are_facts() -> None:
    kept = ports_only(facts(RAIL))
    assert [tool.name for tool in kept.tools] == [
        "lldpcli",
        *(f"dcb-{part}-rail0" for part in (*DCB, *DCB_OF_HOST)),
        PAUSE_OF,
    ]
    assert Facts.read(to_json(kept)) == kept


PAUSE_OF = "ethtool-pause-rail0"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The output folder of a run that verified gpu01; gpu02 was not reached."""
    (tmp_path / "all.yml").write_text(yaml.safe_dump({"fabric": contract_data("sonic")}), encoding="utf-8")
    for path, data in (
        ("gpu01/ports.json", to_json(ports_only(facts(RAIL)))),
        ("gpu01/facts.json", to_json(replace(facts(RAIL), tools=()))),
        (".fabric/x.json", {}),
        ("fleet.json", {}),
    ):
        (tmp_path / "out" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / path).write_text(json.dumps(data), encoding="utf-8")
    return tmp_path / "out"


def lint_fabric(out: Path) -> tuple[int, dict[str, Any]]:
    code = main(["lint-fabric", str(out.parent / "all.yml"), "--host-state", str(out), "--output", str(out)])
    return code, json.loads((out / "fabric.json").read_text("utf-8"))


def test_a_runs_folder_is_host_state_and_the_report_shows_the_hosts(out: Path) -> None:
    code, told = lint_fabric(out)
    assert (code, told["seen"]) == (0, ["gpu01 rail0"])
    view = read_fabric(out)
    assert view is not None
    rows = {row.name: [(cell.words, cell.state) for cell in row.cells] for row in view.rows}
    assert rows["gpu01"] == [("26 → 3 · PFC", "agrees"), ("48 → 6 · strict", "agrees")]
    assert rows["gpu02"] == [("not seen", "unseen")] * 2


def test_a_run_that_only_planned_leaves_every_host_unverified(out: Path) -> None:
    (out / "gpu01/ports.json").unlink()
    code, told = lint_fabric(out)
    assert (code, told["seen"]) == (0, [])
    assert not any(place["agrees"] for one in told["classes"] for place in one["places"])
    assert "dcb was not asked there" in json.dumps(told["findings"])


def test_a_host_that_disagrees_ends_with_code_one_and_is_marked(out: Path) -> None:
    wrong = facts(RAIL, said={**SAID, "dcb-pfc-rail0": json.dumps({"prio_pfc": flags(4)})})
    (out / "gpu01/ports.json").write_text(json.dumps(to_json(wrong)), encoding="utf-8")
    code, told = lint_fabric(out)
    assert code == 1
    opened = [one["code"] for one in told["findings"] if is_open(Finding(**one))]
    assert opened == ["fabric.host_pfc"]
    view = read_fabric(out)
    assert view is not None
    assert [row.cells[0].state for row in view.rows if row.name == "gpu01"] == ["differs"]


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("gpu01/ports.json", "{", "gpu01/ports.json:1:2: is not JSON"),
        ("gpu01/ports.json", "{}", "ports.json"),
        (None, "", "holds no record of a node (run playbooks/verify.yml first)"),
    ],
)
def test_a_folder_that_cannot_be_used_says_where(
    out: Path, capsys: pytest.CaptureFixture[str], path: str | None, text: str, why: str
) -> None:
    if path is None:
        for kept in (out / "gpu01").iterdir():
            kept.unlink()
    else:
        (out / path).write_text(text, encoding="utf-8")
    assert main(["lint-fabric", str(out.parent / "all.yml"), "--host-state", str(out)]) == 2
    assert why in capsys.readouterr().err
