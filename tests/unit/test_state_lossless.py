"""The QoS of ports as the one writer sets it: order, difference, refusals, and the way back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from railwright.node.model import InputError
from railwright.node.state import Outcome, apply, port, revert
from railwright.node.state import dcbx as dcbx_module
from tests.unit.qos_node import Port, Rack, mlnx_tools
from tests.unit.state_support import items, plant

A, B = "0000:18:00.0", "0000:29:00.0"
ETS = {
    "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
    "tc_tsa": ["ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"],
    "tc_bw": [50, 0, 0, 50, 0, 0, 0, 0],
}
BUFFER = {"prio_buffer": [0, 0, 0, 1, 0, 0, 0, 0], "size": [18944, 180970, 0, 0, 0, 0, 0, 0]}
RATE = [0, 0, 0, 12_500_000_000, 0, 0, 0, 0]


def pause(device: str = A) -> dict[str, Any]:
    return {"kind": "pause", "device": device, "rx": False, "tx": False}


def dcb(device: str = A, **more: Any) -> dict[str, Any]:
    whole = {
        "dcbx": "host ieee", "trust": "dscp", "app": {"26": 3, "48": 6}, "ets": ETS, "rate": RATE, "pfc": [3],
        "cable": 30, "buffer": BUFFER,
    }  # fmt: skip
    return {"kind": "dcb", "device": device, **(more or whole)}


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    return Rack(tmp_path / "node", {A: Port("rail0", "mlx5_0"), B: Port("rail1", "mlx5_1")})


def run(rack: Rack, *entries: dict[str, Any], check: bool = False) -> Outcome:
    return apply({"lossless": list(entries)}, root=str(rack.root), tools=rack, check=check)


def back(rack: Rack) -> Outcome:
    return revert(["lossless"], root=str(rack.root), tools=rack)


def changed(outcome: Outcome) -> set[str]:
    return {name for name, item in items(outcome, "lossless").items() if item["changed"]}


def why(outcome: Outcome) -> str:
    return "; ".join(f"{failure.why} ({failure.remedy})" for failure in outcome.failures)


def test_pause_goes_before_pfc_and_pfc_comes_last_whatever_the_order_of_the_entries(
    rack: Rack,
) -> None:
    assert why(run(rack, dcb(), pause())) == ""
    said = [line.split()[:2] for line in rack.wrote]
    assert said == [
        ["ethtool", "-A"], ["dcb", "dcbx"], ["dcb", "app"], ["dcb", "ets"], ["dcb", "maxrate"],
        ["dcb", "buffer"], ["dcb", "pfc"], ["dcb", "pfc"],
    ]  # fmt: skip
    assert rack.wrote[-2:] == [
        "dcb pfc set dev rail0 delay 30", "dcb pfc set dev rail0 prio-pfc all:off 3:on"
    ]  # fmt: skip
    there = rack.ports[A]
    assert (there.pause, there.pfc.index(True), sum(there.pfc)) == ({"rx": False, "tx": False}, 3, 1)
    assert (there.app, there.cable, there.rate) == ({26: 3, 48: 6}, 30, RATE)
    # A cell of this NIC has 144 bytes: the next lower multiple.
    assert there.buffer["buffer_size"][:2] == [18864, 180864]


def test_a_check_tells_the_same_and_writes_nothing(rack: Rack) -> None:
    before = rack.snapshot()
    told = changed(run(rack, pause(), dcb(), check=True))
    assert (rack.wrote, rack.snapshot()) == ([], before)
    assert told == changed(run(rack, pause(), dcb())) == {f"pause:{A}", f"dcb:{A}"}


def test_a_second_run_writes_nothing_and_flaps_no_link(rack: Rack) -> None:
    run(rack, pause(), dcb(), pause(B), dcb(B))
    rack.wrote.clear()
    assert [there.flaps for there in rack.ports.values()] == [1, 1]
    again = run(rack, pause(), dcb(), pause(B), dcb(B))
    assert (changed(again), why(again), rack.wrote) == (set(), "", [])
    assert [there.flaps for there in rack.ports.values()] == [1, 1]


def test_only_what_differs_is_written(rack: Rack) -> None:
    run(rack, pause(), dcb())
    rack.ports[A].app = {26: 3, 48: 6, 34: 3}
    rack.wrote.clear()
    assert changed(run(rack, pause(), dcb())) == {f"dcb:{A}"}
    # `replace` leaves code points that it is not given (iproute2 dcb/dcb_app.c).
    assert rack.wrote == ["dcb app del dev rail0 dscp-prio 34:3"]
    assert rack.ports[A].flaps == 1


def test_putting_back_is_exact(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def release(node: Any, netdev: str) -> None:
        given.append(netdev)
        rack.ports[A].dcbx.pop("host")

    monkeypatch.setattr(dcbx_module, "release", release)
    before = rack.snapshot()
    run(rack, pause(), dcb())
    assert why(back(rack)) == ""
    assert rack.snapshot() == before
    assert given == ["rail0"]
    # PFC goes before what it protects, and pause comes back when PFC is off: the driver refuses it before.
    order = [line.split()[1] for line in rack.wrote[-8:]]
    assert order[0] == "pfc"
    assert order[-1] == "-A"
    # The firmware has the word again when all the rest is back.
    assert rack.wrote[-2].startswith("dcb dcbx")


def test_a_code_point_that_moves_is_moved_though_dcb_ends_badly(rack: Rack) -> None:
    rack.ports[A].app = {26: 0, 34: 3}
    assert why(run(rack, dcb(app={"26": 3, "48": 6}))) == ""
    assert rack.ports[A].app == {26: 3, 48: 6}
    assert why(back(rack)) == ""
    assert rack.ports[A].app == {26: 0, 34: 3}


def sized(*owners: int, metres: int) -> dict[str, Any]:
    """Buffers for lossless priorities, the first in buffer 1: (301 + 2.16 m) x 400, 4 080, 9 978, two cells."""
    least = (301 + 216 * metres // 100) * 400 + 4080 + 9978 + 2 * 256
    return {
        "prio_buffer": [owners.index(prio) + 1 if prio in owners else 0 for prio in range(8)],
        "size": [18944, *[least] * len(owners), *[0] * (7 - len(owners))],
    }


@pytest.mark.parametrize(
    ("first", "then", "flaps"),
    [
        (((3,), 30), ((3,), 300), 0),
        (((3,), 300), ((3,), 30), 0),
        (((3,), 30), ((3, 4), 30), 1),
        (((3, 4), 30), ((3,), 30), 1),
        (((3,), 30), ((4,), 30), 2),
        (((3,), 30), ((4, 5), 100), 2),
    ],
)
def test_a_lossless_port_goes_from_any_layout_to_any_other_in_one_run(
    rack: Rack, first: tuple[tuple[int, ...], int], then: tuple[tuple[int, ...], int], flaps: int
) -> None:
    def wish(prios: tuple[int, ...], metres: int) -> dict[str, Any]:
        return dcb(pfc=list(prios), cable=metres, buffer=sized(*prios, metres=metres))

    assert why(run(rack, pause(), wish(*first))) == ""
    before = rack.ports[A].flaps
    assert why(run(rack, pause(), wish(*then))) == ""
    there = rack.ports[A]
    assert [prio for prio, on in enumerate(there.pfc) if on] == list(then[0])
    assert (there.cable, there.buffer["prio_buffer"]) == (
        then[1], sized(*then[0], metres=then[1])["prio_buffer"]
    )  # fmt: skip
    assert there.flaps - before == flaps
    assert changed(run(rack, pause(), wish(*then))) == set()
    assert why(back(rack)) == ""
    assert (there.cable, there.pfc, there.buffer["buffer_size"][0]) == (7, [False] * 8, 20016 // 144 * 144)


def test_a_card_whose_firmware_alone_deals_out_buffers_gets_all_the_rest(rack: Rack) -> None:
    rack.ports[A].has_buffers = False
    outcome = run(rack, pause(), dcb())
    assert (why(outcome), rack.ports[A].pfc[3]) == ("", True)
    assert "no buffers to be set" in items(outcome, "lossless")[f"dcb:{A}"]["note"]
    assert changed(run(rack, pause(), dcb())) == set()


def test_pfc_that_stands_though_the_driver_ran_out_of_buffer_is_waited_for(rack: Rack) -> None:
    there = rack.ports[A]
    there.pause = {"rx": False, "tx": False}
    there.by_hand, there.buffer["buffer_size"] = True, [20016, 1440, 0, 0, 0, 0, 0, 0]
    there.buffer["prio_buffer"] = [0, 0, 0, 1, 0, 0, 0, 0]
    assert why(run(rack, dcb(pfc=[3]))) == ""
    assert (there.pfc[3], there.flaps) == (True, 1)


def test_a_link_whose_loss_the_kernel_has_not_heard_of_yet_is_waited_for(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = plant(rack.root, "/sys/class/net/rail0/carrier_down_count", "4\n")
    carrier = rack.root / "sys/class/net/rail0/carrier"
    told: list[str] = []

    def sleep(seconds: float) -> None:
        # First the loss is heard of, later the link is back.
        told.append(carrier.read_text().strip())
        count.write_text("5\n")
        carrier.write_text("0\n" if len(told) < 3 else "1\n")

    monkeypatch.setattr(time, "sleep", sleep)
    assert why(run(rack, pause(), dcb(pfc=[3]))) == ""
    assert told[:3] == ["1", "0", "0"]


def test_a_run_that_may_wait_no_longer_says_which_links_it_did_not_wait_for(rack: Rack) -> None:
    rack.dark = {"rail0", "rail1"}
    entries = [entry for device in (A, B) for entry in (pause(device), dcb(device, pfc=[3]))]
    outcome = apply({"lossless": entries}, root=str(rack.root), tools=rack, link_seconds=0.2)
    assert why(outcome) == ""
    notes = {name: item["note"] for name, item in items(outcome, "lossless").items()}
    for device, netdev in ((A, "rail0"), (B, "rail1")):
        assert f"{netdev}: its link was not waited for to the end" in notes[f"dcb:{device}"]


def test_pfc_is_not_set_beside_pause_that_cannot_be_told_off(rack: Rack) -> None:
    outcome = run(rack, dcb(pfc=[3]))
    assert "PFC is not set while 802.3x pause is on" in why(outcome)
    assert (rack.ports[A].flaps, rack.wrote) == (0, [])


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ({"type": "RC", "state": "RTS", "pid": 4711, "comm": "python3"}, "python3 (process 4711)"),
        ({"type": "UD", "state": "RTS", "pid": 4712, "comm": "ucx"}, "ucx (process 4712)"),
        ({"type": "RC", "state": "RTS", "comm": "[nvme_rdma]"}, "[nvme_rdma]"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_a_port_in_use_keeps_its_link(rack: Rack, user: dict[str, Any], name: str, check: bool) -> None:
    rack.ports[A].users = [user]
    before = rack.snapshot()
    outcome = run(rack, pause(), dcb(pfc=[3]), pause(B), dcb(B, pfc=[3]), check=check)
    assert f"in use by {name}" in why(outcome)
    assert rack.ports[A].flaps == 0
    if not check:
        assert rack.ports[B].flaps == 1
        assert json.loads(rack.snapshot())[0] == json.loads(before)[0]


def test_what_takes_no_link_away_is_written_under_a_job(rack: Rack) -> None:
    rack.ports[A].users = [{"type": "RC", "pid": 1, "comm": "job"}]
    assert why(run(rack, dcb(app={"26": 3}, cable=30))) == ""
    assert rack.ports[A].app == {26: 3}


def test_where_use_cannot_be_told_no_link_is_taken_away(rack: Rack) -> None:
    rack.installed.discard("rdma")
    assert "whether mlx5_0 is in use cannot be told: iproute2's rdma is not installed" in why(
        run(rack, pause())
    )
    assert rack.ports[A].pause == {"rx": True, "tx": True}


def test_a_link_that_does_not_come_back_stops_the_run_before_the_next_port(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "LINK_SECONDS", 0.0)
    rack.dark = {"rail0"}
    for there in rack.ports.values():
        there.pause = {"rx": False, "tx": False}
    outcome = run(rack, dcb(pfc=[3]), dcb(B, pfc=[3]))
    assert "the link has not come back" in why(outcome)
    assert "left alone, since the link of rail0 did not come back" in why(outcome)
    assert [there.flaps for there in rack.ports.values()] == [1, 0]
    assert changed(outcome) == {f"dcb:{A}"}


def test_a_port_whose_link_was_down_before_is_not_waited_for(rack: Rack) -> None:
    plant(rack.root, "/sys/class/net/rail0/carrier", "0\n")
    rack.ports[A].pause = {"rx": False, "tx": False}
    assert why(run(rack, dcb(pfc=[3]))) == ""


def test_a_function_without_dcb_is_named(rack: Rack) -> None:
    rack.ports[A].has_dcb = False
    told = why(run(rack, dcb(pfc=[3])))
    assert "its driver has no DCB" in told
    assert "DPU mode" in told
    assert "virtual function" in told


def test_without_either_program_both_are_named(rack: Rack) -> None:
    rack.installed = {"ethtool"}
    assert "neither dcb nor mlnx_qos serves it; dcb is not installed" in why(run(rack, dcb(pfc=[3])))


def test_a_port_that_is_gone_is_refused_and_putting_back_lets_it_go(rack: Rack) -> None:
    run(rack, pause(), dcb(app={"26": 3}))
    (rack.root / f"sys/bus/pci/devices/{A}/net/rail0/dev_port").unlink()
    (rack.root / f"sys/bus/pci/devices/{A}/net/rail0").rmdir()
    assert "no netdev" in why(run(rack, pause(), check=True)) + why(run(rack, dcb(app={"26": 4}), check=True))
    assert why(back(rack)) == ""


def test_a_representor_beside_the_port_is_none_of_it(rack: Rack) -> None:
    plant(rack.root, f"/sys/bus/pci/devices/{A}/net/rail0_3/phys_port_name", "pf0vf3\n")
    assert why(run(rack, pause())) == ""
    plant(rack.root, f"/sys/bus/pci/devices/{A}/net/other/phys_port_name", "p1\n")
    assert "has several netdevs: other, rail0" in why(run(rack, pause()))


def test_trust_is_written_where_the_driver_has_it_for_itself(rack: Rack) -> None:
    assert run(rack, dcb(trust="dscp", app={"26": 3})).failures == ()
    file = rack.vendor("rail1", "qos/trust", "pcp")
    assert run(rack, dcb(B, trust="dscp", app={"26": 3})).failures == ()
    assert file.read_text() == "dscp\n"


# mlnx_qos of DOCA-OFED.


def test_mlnx_qos_sets_the_same_where_there_is_no_dcb(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    mlnx_tools(rack, monkeypatch)
    assert why(run(rack, pause(), dcb(), check=True)) == ""
    assert why(run(rack, pause(), dcb())) == ""
    state = json.loads((rack.root / "run/mlnx_qos/rail0.json").read_text())
    assert (state["trust"], state["pfc"], state["cable_len"]) == ("dscp", [0, 0, 0, 1, 0, 0, 0, 0], 30)
    assert [point for point in range(64) if state["dscp2prio"][point] == 3] == [26]
    assert [point for point in range(64) if state["dscp2prio"][point] == 6] == [48]
    assert set(state["dscp2prio"]) == {0, 3, 6}
    assert (state["tsa"], state["tcbw"], state["prio_tc"]) == (ETS["tc_tsa"], ETS["tc_bw"], ETS["prio_tc"])
    assert (state["ratelimit"][3], state["dcbx"]) == (100, "os")
    rack.wrote.clear()
    again = run(rack, pause(), dcb())
    assert (why(again), changed(again), rack.wrote, rack.ports[A].flaps) == ("", set(), [], 1)


def test_mlnx_qos_puts_back(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    mlnx_tools(rack, monkeypatch)
    run(rack, pause(), dcb())
    assert why(back(rack)) == ""
    state = json.loads((rack.root / "run/mlnx_qos/rail0.json").read_text())
    for name in ("trust", "pfc", "cable_len", "prio_tc", "tsa", "tcbw", "buffer_size", "prio2buffer", "dcbx"):
        expected = {
            "trust": "pcp", "pfc": [0] * 8, "cable_len": 7, "prio_tc": list(range(8)), "tsa": ["vendor"] * 8,
            "tcbw": [0] * 8, "buffer_size": [20016, 156096, 0, 0, 0, 0, 0, 0], "prio2buffer": [0] * 8, "dcbx": "fw",
        }  # fmt: skip
        assert state[name] == expected[name], name


def test_a_traceback_of_mlnx_qos_is_told_by_its_last_line(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlnx_tools(rack, monkeypatch)
    empty = {"prio_buffer": [0, 0, 0, 2, 0, 0, 0, 0], "size": [20016, 156096, 0, 0, 0, 0, 0, 0]}
    told = why(run(rack, pause(), dcb(pfc=[3], buffer=empty)))
    assert "TypeError: set_dcb_buffer: Invalid argument" in told
    assert "Traceback" not in told


# Congestion control and marks.


def test_each_value_goes_where_this_driver_keeps_it(rack: Rack) -> None:
    kernel = rack.knob(A, "np_cnp_dscp", 4)
    vendor = rack.vendor("rail1", "ecn/roce_np/cnp_dscp", "4")
    switch = rack.vendor("rail1", "ecn/roce_rp/enable/3", "0")
    values = {"np_cnp_dscp": 48, "rp_enable_3": 1}
    outcome = run(rack, *({"kind": "congestion", "device": device, "values": values} for device in (A, B)))
    assert why(outcome) == ""
    assert [file.read_text() for file in (kernel, vendor, switch)] == ["48\n", "48\n", "1\n"]
    assert (
        "rail0 shows no rp_enable_3: the card's firmware decides"
        in items(outcome, "lossless")[f"congestion:{A}"]["note"]
    )
    back(rack)
    assert [file.read_text() for file in (kernel, vendor, switch)] == ["4\n", "4\n", "0\n"]


def test_rdma_cm_is_told_and_its_folder_goes_again(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    real, removed = os.mkdir, []
    folder = rack.root / "sys/kernel/config/rdma_cm/mlx5_0"

    def make(path: Any, *more: Any, **named: Any) -> None:
        """As configfs: a folder comes with its files."""
        real(path, *more, **named)
        if str(path) == str(folder):
            plant(rack.root, "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "0\n")
            plant(rack.root, "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "RoCE v2\n")

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "rmdir", lambda path, **named: removed.append(path))
    entry = {"kind": "rdma_marking", "device": A, "tos": 106, "mode": "RoCE v2"}
    assert changed(run(rack, entry, check=True)) == {f"rdma_marking:{A}"}
    assert not folder.exists()
    assert why(run(rack, entry)) == ""
    assert (folder / "ports/1/default_roce_tos").read_text() == "106\n"
    assert changed(run(rack, entry)) == set()
    assert why(back(rack)) == ""
    assert (folder / "ports/1/default_roce_tos").read_text() == "0\n"
    assert str(folder) in removed


def test_a_class_of_all_queue_pairs_that_nobody_has_set_is_an_empty_file(rack: Rack) -> None:
    file = plant(rack.root, "/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "")
    entry = {"kind": "rdma_marking", "device": A, "traffic_class": 106}
    assert (why(run(rack, entry)), file.read_text()) == ("", "106\n")
    # -1 is what the driver begins with.
    assert (why(back(rack)), file.read_text()) == ("", "-1\n")


def test_rules_for_single_addresses_are_no_class_of_all_queue_pairs(rack: Rack) -> None:
    text = "Global tclass=106\nsrc_ip=10.0.0.1,tclass=3\n"
    plant(rack.root, "/sys/class/infiniband/mlx5_0/tc/1/traffic_class", text)
    assert changed(run(rack, {"kind": "rdma_marking", "device": A, "traffic_class": 106})) == set()


def test_the_class_of_all_queue_pairs_reads_back_in_words(rack: Rack) -> None:
    file = plant(rack.root, "/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
    entry = {"kind": "rdma_marking", "device": A, "traffic_class": 106}
    assert (why(run(rack, entry)), file.read_text()) == ("", "Global tclass=106\n")
    file.write_text("0\n")
    assert (why(run(rack, entry)), file.read_text()) == ("", "106\n")


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"kind": "pause", "device": A}, "slices.lossless[0]"),
        ({"kind": "pause", "device": "rail0", "rx": False}, "slices.lossless[0].device"),
        ({"kind": "dcb", "device": A}, "slices.lossless[0]"),
        ({"kind": "dcb", "device": A, "pfc": [3, 3]}, "slices.lossless[0].pfc"),
        ({"kind": "dcb", "device": A, "pfc": [8]}, "slices.lossless[0].pfc"),
        ({"kind": "dcb", "device": A, "app": {"64": 3}}, "slices.lossless[0].app.64"),
        ({"kind": "dcb", "device": A, "app": {"26": True}}, "slices.lossless[0].app.26"),
        (
            {"kind": "dcb", "device": A, "ets": {**ETS, "tc_bw": [50, 0, 0, 40, 0, 0, 0, 0]}},
            "slices.lossless[0].ets",
        ),
        ({"kind": "dcb", "device": A, "dcbx": "lldpad"}, "slices.lossless[0].dcbx"),
        ({"kind": "dcb", "device": A, "cable": "30"}, "slices.lossless[0].cable"),
        ({"kind": "dcb", "device": A, "buffer": {"size": [0] * 8}}, "slices.lossless[0].buffer"),
        ({"kind": "congestion", "device": A, "values": {"np_cnp": 1}}, "slices.lossless[0].values.np_cnp"),
        ({"kind": "rdma_marking", "device": A, "tos": 256}, "slices.lossless[0].tos"),
        ({"kind": "rdma_marking", "device": A, "mode": "v2"}, "slices.lossless[0].mode"),
    ],
)
def test_an_entry_that_no_port_can_be_given_names_its_place(
    rack: Rack, entry: dict[str, Any], place: str
) -> None:
    with pytest.raises(InputError) as error:
        run(rack, entry)
    assert error.value.where.startswith(place)
