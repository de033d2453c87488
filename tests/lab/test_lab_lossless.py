"""Lossless rails on the virtual machine: a real kernel's DCB judges, asked by iproute2's own dcb and by ethtool.

What takes longer stands in long_lossless.py.
"""

from __future__ import annotations

from typing import Any

from tests.lab import on_guest
from tests.lab.lossless_rails import State, before, plan, slices, state, vm, written
from tests.lab.vm.machine import Vm

__all__ = ["before", "plan", "slices", "vm", "written"]


def test_pfc_is_refused_while_802_3x_pause_is_on(vm: Vm, before: State) -> None:
    rail = vm.layout.rails[0].pci
    assert "on" in before[rail]["pause"]
    only = {"lossless": [{"kind": "dcb", "device": rail, "pfc": [4]}]}
    (failure,) = on_guest.converge(vm, only)["failures"]
    assert "PFC is not set while 802.3x pause is on" in failure["why"]
    # The kernel's own word on it, past Railwright.
    assert vm.ssh(f"dcb pfc set dev {before[rail]['netdev']} prio-pfc 4:on").returncode != 0
    assert state(vm) == before


def test_a_plan_says_before_that_a_link_will_go_away(plan: Any, vm: Vm, before: State) -> None:
    told = [finding for finding in plan["findings"] if finding["code"] == "lossless.flap"]
    assert {finding["where"] for finding in told} == {f"mlx5_{rail.number}" for rail in vm.layout.rails}


def test_dcb_reads_back_what_the_classes_say(vm: Vm, before: State, written: State) -> None:
    for rail in vm.layout.rails:
        now = written[rail.pci]
        assert [prio for prio, on in enumerate(now["pfc"]["prio_pfc"]) if on] == [4]
        assert now["pfc"]["delay"] == 30
        points = {point: prio for point, prio, *_ in now["app"]["dscp_prio"]}
        assert points == {**dict.fromkeys(range(64), 0), 10: 4, 18: 2, 46: 5}
        assert now["ets"]["prio_tc"] == [0, 0, 2, 0, 4, 5, 0, 0]
        assert [now["ets"]["tc_tsa"][tc] for tc in (0, 2, 4, 5)] == ["ets", "ets", "ets", "strict"]
        assert [now["ets"]["tc_bw"][tc] for tc in (0, 2, 4)] == [10, 30, 60]
        # 100 Gb/s in bytes a second.
        assert now["maxrate"]["tc_maxrate"] == [0, 0, 12_500_000_000, 0, 0, 0, 0, 0]
        assert now["buffer"]["prio_buffer"] == [0, 0, 0, 0, 1, 0, 0, 0]
        # The driver's formula at 400 Gb/s, 30 m, MTU 9000: 170 480 bytes of reserve, and a frame of 9 978.
        assert now["buffer"]["buffer_size"][1] >= 170_480 + 9_978
        assert now["dcbx"] == {"host": True, "ieee": True}
        assert now["pause"].split() == ["RX:", "off", "TX:", "off"]
        assert {"np_cnp_dscp:46", "np_cnp_prio:5", "rp_ai_rate:10"} <= set(now["knobs"].split())
        # DSCP 10 with ECT(0).
        assert {line.rpartition("/")[2] for line in now["cma"].splitlines()} == {
            "default_roce_tos:42", "default_roce_mode:RoCE v2",
        }  # fmt: skip
        assert written.flaps[rail.pci] == before.flaps[rail.pci] + 1


def test_a_packet_with_the_data_s_code_point_leaves_in_its_priority(vm: Vm, written: State) -> None:
    netdev = written[vm.layout.rails[0].pci]["netdev"]
    count = f"ethtool -S {netdev} | sed -n 's/.*tx_prio4_packets: //p'"
    said = vm.must(
        f"ip neigh replace 10.9.0.77 lladdr 52:54:00:10:00:77 dev {netdev}; {count}; "
        f"ping -q -c 20 -i 0.01 -W 1 -Q 42 10.9.0.77 > /dev/null; {count}"
    )
    first, last = map(int, said.split())
    assert last - first == 20
