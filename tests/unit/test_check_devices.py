"""Registers, queues and firmware against the plan, and what PCIe counted between two readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from railwright.node.check import check, checks
from railwright.node.discover import discover
from railwright.node.model import (
    Acs,
    Facts,
    Finding,
    Host,
    NetworkPlan,
    Nic,
    PciDevice,
    PcieErrors,
    Plan,
    PlannedNic,
    Policy,
    Queues,
    Slice,
    Tool,
)
from railwright.node.state import apply, revert
from railwright.plan import plan as make_plan
from tests.machinery import build
from tests.unit.state_support import register as register_at
from tests.unit.test_state_nvconfig import Card

MACHINES = Path(__file__).resolve().parents[1] / "machines"

RAIL, BRIDGE = "0000:18:00.0", "0000:17:01.0"


def facts(**more: Any) -> Facts:
    known: dict[str, Any] = {
        "host": Host(virtual="", boot_id="one"),
        "pci": (
            PciDevice(BRIDGE, None, port="root", acs=Acs(("SrcValid", "ReqRedir"), ("SrcValid",))),
            PciDevice(RAIL, BRIDGE, mrrs=4096, relaxed_ordering=True),
        ),
        "nics": (Nic("mlx5_0", RAIL, rdma="mlx5_0", netdev="ens1", firmware="28.39.1002"),),
        **more,
    }
    return Facts("railwright.facts/1", (), **known)


def plan(name: str, *entries: dict[str, Any], firmware: dict[str, str] | None = None) -> Plan:
    return Plan(
        "railwright.plan/1",
        "planned",
        nics=(PlannedNic("mlx5_0", RAIL, "rail", 0, None, "because"),),
        network=NetworkPlan(nic_firmware=firmware or {}),
        slices={name: Slice("runtime", entries, "because")} if entries else {},
    )


def register(device: str, capability: str, mask: str, value: str) -> dict[str, Any]:
    return register_at(device, capability, 6 if capability == "ECAP_ACS" else 8, mask, value)


def answered(made: Plan, seen: Facts, prefix: str, earlier: Facts | None = None) -> list[Finding]:
    return [one for one in check(made, seen, None, earlier) if one.code.startswith(prefix)]


def row(made: Plan, seen: Facts, name: str, earlier: Facts | None = None) -> dict[str, Any]:
    (found,) = [one for one in checks(made, seen, None, earlier) if one["name"] == name]
    return found


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (register(RAIL, "CAP_EXP", "7000", "5000"), "pcie.read_request"),
        (register(RAIL, "CAP_EXP", "0010", "0010"), "pcie.relaxed_ordering"),
        # Source validation alone redirects nothing, so it is no drift.
        (register(BRIDGE, "ECAP_ACS", "001d", "0000"), "pcie.acs"),
    ],
)
def test_a_register_that_is_as_planned_is_good(entry: dict[str, Any], name: str) -> None:
    assert row(plan("pcie", entry), facts(), name)["ok"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (register(RAIL, "CAP_EXP", "7000", "2000"), "is 4096 bytes, planned 512 bytes"),
        (register(RAIL, "CAP_EXP", "0010", "0000"), "is on, planned off"),
        (
            register(BRIDGE, "ECAP_ACS", "001d", "001d"),
            "is SrcValid, planned SrcValid+ReqRedir+CmpltRedir+UpstreamFwd",
        ),
    ],
)
def test_a_register_that_differs_is_an_error_in_words(entry: dict[str, Any], why: str) -> None:
    (finding,) = answered(plan("pcie", entry), facts(), "pcie.")
    assert (finding.severity, finding.where, finding.why) == ("error", entry["device"], why)
    assert "retune.yml" in finding.remedy


@pytest.mark.parametrize(
    "seen",
    [facts(pci=()), facts(pci=(PciDevice(RAIL, None),))],
)
def test_a_register_that_was_not_read_is_never_good(seen: Facts) -> None:
    told = row(plan("pcie", register(RAIL, "CAP_EXP", "7000", "5000")), seen, "pcie.read_request")
    assert (told["ok"], told["skipped"]) == (False, True)


CHANNELS = {"kind": "ethtool_channels", "device": RAIL, "combined": 8}
RINGS = {"kind": "ethtool_rings", "device": RAIL, "rx": 8192, "tx": 8192}
COALESCE = {"kind": "ethtool_coalesce", "device": RAIL, "adaptive_rx": 0, "rx_usecs": 8}
TOLD = Queues("ens1", combined=8, rx_ring=8192, tx_ring=8192, adaptive_rx=False, rx_usecs=8)


def test_queues_as_planned_are_good_and_others_are_named() -> None:
    made = plan("queues", CHANNELS, RINGS, COALESCE)
    for name in ("queues.channels", "queues.rings", "queues.coalesce"):
        assert row(made, facts(queues=(TOLD,)), name)["ok"]
    other = Queues("ens1", combined=56, rx_ring=1024, tx_ring=8192, adaptive_rx=True, rx_usecs=8)
    whys = [finding.why for finding in answered(made, facts(queues=(other,)), "queues.")]
    assert whys == ["combined is 56, planned 8", "rx is 1024, planned 8192", "adaptive_rx is 1, planned 0"]


def test_queues_that_nobody_told_are_never_good() -> None:
    for seen in (facts(), facts(queues=(Queues("ens1", rx_ring=1),))):
        told = row(plan("queues", CHANNELS), seen, "queues.channels")
        assert (told["ok"], told["skipped"]) == (False, True)


def told_by(card: Card, code: int | None = 0) -> tuple[Tool, ...]:
    return (
        Tool(
            f"nvconfig-{RAIL}", ("mstconfig", "-d", RAIL, "-e", "q"), code, card.table() if code == 0 else ""
        ),
    )


def test_firmware_that_is_as_wished_is_good_and_another_value_is_named() -> None:
    card = Card()
    assert row(plan("x", firmware={"CNP_DSCP_P1": "48"}), facts(tools=told_by(card)), "nic_firmware.setting")[
        "ok"
    ]
    wish = {"CNP_DSCP_P1": "26"}
    (finding,) = answered(plan("x", firmware=wish), facts(tools=told_by(card)), "nic_firmware.setting")
    assert (finding.severity, finding.why) == ("warning", "CNP_DSCP_P1 is 48, wanted 26")
    assert "policy.nic_firmware.write" in finding.remedy
    written = plan("nic_firmware", {"kind": "nvconfig", "device": RAIL, "settings": wish}, firmware=wish)
    (finding,) = answered(written, facts(tools=told_by(card)), "nic_firmware.setting")
    assert (finding.severity, "retune.yml" in finding.remedy) == ("error", True)


def test_a_setting_that_waits_for_a_reset_is_told_whoever_set_it() -> None:
    card = Card()
    assert row(plan("x"), facts(tools=told_by(card)), "nic_firmware.pending")["ok"]
    card.next["SRIOV_EN"] = "True(1)"
    (finding,) = answered(plan("x"), facts(tools=told_by(card)), "nic_firmware.pending")
    assert "SRIOV_EN is False(0), and True(1) after that" in finding.why
    assert "mstfwreset" in finding.remedy


def test_values_that_are_unusual_on_bare_metal_are_told_and_are_no_fault() -> None:
    card = Card()
    card.current["SRIOV_EN"] = card.next["SRIOV_EN"] = "True(1)"
    (finding,) = answered(plan("x"), facts(tools=told_by(card)), "nic_firmware.unusual")
    assert (finding.severity, finding.why) == ("info", "SRIOV_EN is True(1), usual on bare metal is 0")
    assert not answered(
        plan("x", firmware={"SRIOV_EN": "1"}), facts(tools=told_by(card)), "nic_firmware.unusual"
    )


def test_settings_that_the_card_does_not_show_are_told() -> None:
    (finding,) = answered(
        plan("x", firmware={"MAX_ACC_OUT_READ": "0"}), facts(tools=told_by(Card())), "nic_firmware.absent"
    )
    assert "MAX_ACC_OUT_READ" in finding.why


@pytest.mark.parametrize("tools", [(), told_by(Card(), None), told_by(Card(), 3), told_by(Card(), 124)])
def test_without_the_tools_word_firmware_is_not_judged(tools: tuple[Tool, ...]) -> None:
    told = row(plan("x", firmware={"CNP_DSCP_P1": "48"}), facts(tools=tools), "nic_firmware.setting")
    assert (told["ok"], told["skipped"]) == (False, True)


@pytest.mark.parametrize(
    ("code", "ok", "skipped"), [(0, True, False), (1, False, False), (None, False, True)]
)
def test_rdma_topo_has_its_word(code: int | None, ok: bool, skipped: bool) -> None:
    tools = (Tool("rdma-topo", ("rdma_topo", "check"), code, "checked\nACS of 0000:17:01.0 is wrong\n"),)
    told = row(plan("x"), facts(tools=tools), "pcie.topology")
    assert (told["ok"], told["skipped"]) == (ok, skipped)


def counted(correctable: int, fatal: int = 0, boot: str = "one") -> Facts:
    return facts(host=Host(virtual="", boot_id=boot), pcie_errors=(PcieErrors(RAIL, correctable, 0, fatal),))


def test_errors_count_by_their_difference_and_not_by_their_number() -> None:
    made = plan("x")
    assert row(made, counted(70_000), "pcie.aer", counted(70_000))["ok"]
    (finding,) = answered(made, counted(70_012), "pcie.aer", counted(70_000))
    assert (finding.severity, finding.where) == ("warning", RAIL)
    assert finding.why.startswith("12 correctable errors")
    (finding,) = answered(made, counted(5, 1), "pcie.aer", counted(5))
    assert (finding.severity, finding.why.split(" since")[0]) == ("error", "1 fatal errors")
    assert row(made, counted(0), "pcie.aer", counted(9))["ok"]  # reset with the device


@pytest.mark.parametrize(
    ("before", "after"),
    [(counted(1, boot="one"), counted(9, boot="two")), (facts(), counted(9)), (counted(1), facts())],
)
def test_over_a_boot_and_without_counters_nothing_is_said(before: Facts, after: Facts) -> None:
    told = row(plan("x"), after, "pcie.aer", before)
    assert (told["ok"], told["skipped"]) == (False, True)


def test_a_recorded_machine_comes_to_its_plan_stays_there_and_goes_back(tmp_path: Path) -> None:
    """The way of a whole run: read, plan, write, read again, check; then all of it once more, and the revert."""
    tree = tmp_path / "tree"
    build(MACHINES / "2s_8xh100_10xcx7_backwards", tree)
    for folder in ("run", "var/lib"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    policy = Policy.read(
        {"schema": "railwright.policy/1", "pcie": {"acs": "bare-metal", "read_request": 4096}}
    )
    before = discover(tree)
    made = make_plan(before, policy)
    entries = {"pcie": list(made.slices["pcie"].entries)}
    assert {one.code for one in check(made, before)} >= {"pcie.read_request", "pcie.acs"}
    foreseen = apply(entries, root=str(tree), check=True)
    assert discover(tree) == before
    done = apply(entries, root=str(tree))
    assert (done.failures, done.to_json()["slices"]) == ((), foreseen.to_json()["slices"])
    after = discover(tree)
    assert not answered(made, after, "pcie.")
    assert make_plan(after, policy).slices["pcie"] == made.slices["pcie"]
    assert not apply(entries, root=str(tree)).changed
    revert(["pcie"], root=str(tree))
    assert discover(tree) == before
