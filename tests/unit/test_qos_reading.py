"""What tools say of a port's QoS, read: right, unknown, or an error with its place; never something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover.qos import read_qos
from railwright.node.discover.tree import Tree
from railwright.node.model import Buffers, Ets, InputError, Nic, Qos, Tool
from railwright.node.model.qos import same
from railwright.node.qos import dcb, mlnx_qos
from railwright.node.state import Said, apply
from tests.unit.qos_node import Port, Rack
from tests.unit.state_support import make_node, plant

# As iproute2 6.15 prints them of a port with PFC in priority 3.
SHOWN: dict[str, dict[str, Any]] = {
    "pfc": {"pfc_cap": 8, "macsec_bypass": False, "delay": 30, "prio_pfc": [n == 3 for n in range(8)]},
    "app": {"dscp_prio": [[26, 3, " "], [48, 6, " "]]},
    "ets": {
        "willing": False,
        "ets_cap": 8,
        "tc_bw": [50, 100, 100, 50, 100, 100, 100, 100],
        "tc_tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "vendor"],
        "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
    },
    "maxrate": {"tc_maxrate": [0, 0, 0, 12500000000, 0, 0, 0, 0]},
    "buffer": {
        "prio_buffer": [0, 0, 0, 1, 0, 0, 0, 0],
        "buffer_size": [20016, 156096, 0, 0, 0, 0, 0, 0],
        "total_size": 262016,
    },
    "dcbx": {"host": True, "ieee": True},
}  # fmt: skip
READERS: dict[str, Callable[[Any, str], Any]] = {
    "pfc": dcb.pfc,
    "app": dcb.dscp_prio,
    "ets": dcb.ets,
    "maxrate": dcb.maxrate,
    "buffer": dcb.buffers,
    "dcbx": dcb.dcbx,
}
READ = {
    "pfc": (3,),
    "app": {26: 3, 48: 6},
    # mlx5 prints 100 for what has no share.
    "ets": Ets(
        (0, 0, 0, 3, 0, 0, 6, 0),
        ("ets", "strict", "strict", "ets", "strict", "strict", "strict", "vendor"),
        (50, 0, 0, 50, 0, 0, 0, 0),
    ),
    "maxrate": (0, 0, 0, 12500000000, 0, 0, 0, 0),
    "buffer": Buffers((0, 0, 0, 1, 0, 0, 0, 0), (20016, 156096, 0, 0, 0, 0, 0, 0), 262016),
    "dcbx": ("host", "ieee"),
}
MLNX_QOS = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:3 dscp:26,
\tprio:6 dscp:48,
default priority:
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=262016
Cable len: 30
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   0   0   0   
\tbuffer      0   0   0   1   0   0   0   0   
tc: 0 ratelimit: unlimited, tsa: ets, bw: 50%
\t priority:  0
\t priority:  1
\t priority:  2
\t priority:  4
\t priority:  5
\t priority:  7
tc: 3 ratelimit: 100.0 Gbps, tsa: ets, bw: 50%
\t priority:  3
tc: 6 ratelimit: unlimited, tsa: strict
\t priority:  6
"""  # noqa: W291
PAUSE = "Pause parameters for rail0:\nAutonegotiate:\toff\nRX:\t\toff\nTX:\t\ton\nRX negotiated: off\n"


def read_dcb(part: str, text: str) -> Any:
    return READERS[part](dcb.one_device(text, "here"), "here")


@pytest.mark.parametrize("part", SHOWN)
def test_dcb_is_read(part: str) -> None:
    assert read_dcb(part, json.dumps(SHOWN[part])) == READ[part]
    assert read_dcb(part, json.dumps([SHOWN[part]])) == READ[part]


def test_mlnx_qos_is_read() -> None:
    port = mlnx_qos.read(MLNX_QOS, "here")
    assert (port.dcbx, port.trust, port.pfc, port.cable_m) == (("host", "ieee"), "dscp", (3,), 30)
    assert port.dscp_prio == {**{str(n): 0 for n in range(8)}, "26": 3, "48": 6}
    assert port.buffers == Buffers((0, 0, 0, 1, 0, 0, 0, 0), (20016, 156096, 0, 0, 0, 0, 0, 0), 262016)
    assert port.ets is not None
    assert (port.ets.prio_tc, port.ets.tc_bw) == ((0, 0, 0, 3, 0, 0, 6, 0), (50, 0, 0, 50, 0, 0, 0, 0))
    assert port.tc_rate == (0, 0, 0, 12_500_000_000, 0, 0, 0, 0)


def test_pause_is_read_and_what_was_negotiated_is_not() -> None:
    assert dcb.pause(PAUSE, "here") == (False, True)


def garbled(text: str) -> list[str]:
    """32 outputs that are wrong: cut short, with another character, a line twice, another tool's words."""
    cuts = [text[: len(text) * n // 17] for n in range(1, 13)]
    swaps = [
        text.replace(old, new, 1) for old, new in (("0", "-1"), ("3", "99999"), ("1", "x"), ("true", '"on"'))
    ]
    doubled = [text + text, text.replace("\n", "\n\n", 1) + "}", f"[{text},{text}]"]
    other = [
        "", " ", "null", "[]", "{}", "3", '"text"', "Attribute read: Operation not supported", "\0" * 64, "[" * 5000,
        "nan", text.upper(), text[::-1],
    ]  # fmt: skip
    found = [*cuts, *swaps, *doubled, *other]
    assert len(found) == 32
    return found


def attempt(read: Callable[[], Any]) -> tuple[Any, str]:
    """What was read, and "here"; or None, and where the error says that it is."""
    try:
        return read(), "here"
    except InputError as error:
        return None, error.where


@pytest.mark.parametrize("part", SHOWN)
@pytest.mark.parametrize("number", range(32))
def test_garbled_output_of_dcb_is_an_error_with_its_place_or_says_nothing_else(
    part: str, number: int
) -> None:
    text = garbled(json.dumps(SHOWN[part]))[number]
    found, where = attempt(lambda: read_dcb(part, text))
    assert where.startswith("here")
    if found is None:
        return
    # What is left: the same words, or a port without entries.
    assert found in (READ[part], {}, ())
    assert "-1" not in str(found)


@pytest.mark.parametrize("number", range(32))
def test_garbled_output_of_mlnx_qos_is_an_error_with_its_line_or_gives_what_is_whole(number: int) -> None:
    text = garbled(MLNX_QOS)[number]
    port, where = attempt(lambda: mlnx_qos.read(text, "here"))
    assert where.startswith("here")
    if port is None:
        return
    right = mlnx_qos.read(MLNX_QOS, "here")
    for name, value in vars(port).items():
        if name == "dscp_prio" and value:
            assert value.items() <= (right.dscp_prio or {}).items()
        elif number < 12:  # cut short
            assert value in (None, getattr(right, name)) or name == "cable_m"


@pytest.mark.parametrize("number", range(32))
def test_garbled_output_of_ethtool_is_an_error_with_its_place_or_the_same(number: int) -> None:
    found, where = attempt(lambda: dcb.pause(garbled(PAUSE)[number], "here"))
    assert (found, where) in ((None, "here"), ((False, True), "here"))


@pytest.mark.parametrize("number", range(32))
def test_garbled_output_of_rdma_takes_no_link_away(tmp_path: Path, number: int) -> None:
    rows = [
        {"ifindex": 0, "ifname": "mlx5_0", "port": 1, "lqpn": 17, "type": "RC", "pid": 3101, "comm": "train"}
    ]
    text = garbled(json.dumps(rows))[number]
    rack = Rack(tmp_path / "node", {"0000:18:00.0": Port("rail0", "mlx5_0")})

    def tools(argv: Any) -> Any:
        return Said(0, text) if argv[0] == "rdma" else rack(argv)

    entry = {"kind": "pause", "device": "0000:18:00.0", "rx": False, "tx": False}
    outcome = apply({"lossless": [entry]}, root=str(rack.root), tools=tools)
    # An empty list is a port that nobody uses; all else is not known.
    if text in ("", "[]"):
        assert not outcome.failures
    else:
        assert outcome.failures
        assert rack.ports["0000:18:00.0"].pause == {"rx": True, "tx": True}


# Facts.

NIC = Nic(
    "mlx5_0",
    address="0000:18:00.0",
    rdma="mlx5_0",
    netdev="rail0",
    link_layer="Ethernet",
    default_route=False,
)


def tool(part: str, output: str, code: int | None = 0) -> Tool:
    return Tool(f"dcb-{part}-rail0", ("dcb", "-j", part, "show", "dev", "rail0"), code, output)


def qos(folder: Path, *outputs: Tool) -> Qos:
    (found,) = read_qos(Tree(folder), [NIC], outputs)
    return found


def test_facts_hold_what_the_tools_and_the_driver_s_files_say(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    plant(node, "/sys/kernel/debug/mlx5/0000:18:00.0/cc_params/np_cnp_dscp", "48\n")
    plant(node, "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "106\n")
    plant(node, "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "RoCE v2\n")
    plant(node, "/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
    plant(node, "/sys/class/net/rail0/qos/trust", "dscp\n")
    port = qos(node, *(tool(part, json.dumps(data)) for part, data in SHOWN.items()))
    assert (port.backend, port.pfc, port.cable_m, port.dscp_prio) == ("dcb", (3,), 30, {"26": 3, "48": 6})
    assert (port.congestion, port.tos, port.roce_mode) == ({"np_cnp_dscp": 48}, 106, "RoCE v2")
    assert (port.traffic_class, port.trust, port.unread) == (106, "dscp", {})


def test_a_driver_without_dcb_is_told_in_its_words(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    port = qos(node, tool("dcbx", "Attribute read: Operation not supported\n", 1))
    assert port.refusal == "dcb ended with 1: Attribute read: Operation not supported"


def test_without_dcb_mlnx_qos_is_read(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    vendor = Tool("mlnx-qos-rail0", ("mlnx_qos", "-i", "rail0"), 0, MLNX_QOS)
    port = qos(node, tool("dcbx", "", None), vendor)
    assert (port.backend, port.pfc, port.cable_m, port.trust) == ("mlnx_qos", (3,), 30, "dscp")


def test_what_cannot_be_read_is_unknown_and_named(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    port = qos(node, tool("dcbx", '{"host":true}'), tool("pfc", '{"prio_pfc":[true]}'))
    assert (port.pfc, port.dcbx) == (None, ("host",))
    assert port.unread["pfc"].startswith("rail0: dcb pfc.prio_pfc")
    assert qos(node).backend is None


@pytest.mark.parametrize(
    ("part", "now", "wanted", "equal"),
    [
        ("app", {"26": 3}, {"26": 3, "40": 0}, True),
        ("app", {}, {"26": 0}, False),
        ("dcbx", "host ieee", "cee host ieee", True),
        ("dcbx", "ieee", "host ieee", False),
        ("buffer", {"prio_buffer": [0], "size": [144]}, {"prio_buffer": [0], "size": [200]}, True),
        ("buffer", {"prio_buffer": [0], "size": [144]}, {"prio_buffer": [0], "size": [400]}, False),
        ("buffer", {"prio_buffer": [0], "size": [288]}, {"prio_buffer": [0], "size": [144]}, False),
        ("pfc", [3], [3, 4], False),
    ],
)
def test_two_values_of_a_part_are_the_same_where_a_port_behaves_the_same(
    part: str, now: Any, wanted: Any, equal: bool
) -> None:
    assert same(part, now, wanted) is equal
