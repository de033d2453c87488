"""Firmware settings on lab nodes: a tool that keeps state and refuses as the real one does, over a reboot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab import packages
from tests.lab.lab import Lab, Node
from tests.lab.on_guest import changed, converge, revert


@pytest.fixture(scope="module")
def node(archive: packages.Archive, rack: Lab) -> Node:
    made = rack.nodes[1]
    made.must("DEBIAN_FRONTEND=noninteractive apt-get -qq -y install mstflint-standin")
    return made


@pytest.fixture(scope="module")
def card(node: Node) -> str:
    """The first of the node's own ConnectX cards."""
    return node.must("grep -l 0x15b3 /sys/bus/pci/devices/*/vendor").split()[0].split("/")[5]


def wish(card: str, **settings: str) -> dict[str, Any]:
    return {"nic_firmware": [{"kind": "nvconfig", "device": card, "settings": settings, "reboot": True}]}


def shown(node: Node, card: str, name: str) -> list[str]:
    """Default, current and next value, by the tool itself."""
    return node.must(f"mstconfig -d {card} -e query {name} | grep {name}").replace("*", "").split()[1:]


def test_a_setting_waits_for_the_reboot_and_is_then_in_force(node: Node, card: str) -> None:
    given = wish(card, CNP_DSCP_P1="26", SRIOV_EN="1")
    foreseen = converge(node, given, check=True)
    assert (foreseen["failures"], changed(foreseen)) == ([], {f"nvconfig:{card}"})
    assert shown(node, card, "CNP_DSCP_P1") == ["48", "48", "48"]
    done = converge(node, given)
    assert (done["failures"], done["reboot_needed"]) == ([], [f"nvconfig:{card}"])
    assert "mstfwreset" in done["slices"]["nic_firmware"]["items"][0]["note"]
    assert shown(node, card, "CNP_DSCP_P1") == ["48", "48", "26"]
    waiting = converge(node, given)
    assert (waiting["changed"], waiting["reboot_needed"]) == (False, [f"nvconfig:{card}"])
    node.reboot()
    after = converge(node, given)
    assert (after["changed"], after["reboot_needed"], after["failures"]) == (False, [], [])
    assert shown(node, card, "SRIOV_EN") == ["False(0)", "True(1)", "True(1)"]


def test_hidden_settings_come_in_their_order(node: Node, card: str) -> None:
    given = wish(card, MAX_ACC_OUT_READ="44")
    converge(node, given)
    assert shown(node, card, "ADVANCED_PCI_SETTINGS")[1:] == ["False(0)", "True(1)"]
    node.reboot()
    converge(node, given)
    assert shown(node, card, "MAX_ACC_OUT_READ") == ["0", "0", "44"]
    node.reboot()
    assert not converge(node, given)["changed"]
    assert shown(node, card, "MAX_ACC_OUT_READ") == ["0", "44", "44"]


def test_what_the_card_lacks_and_a_card_that_is_not_there_are_named(node: Node, card: str) -> None:
    (failure,) = converge(node, wish(card, NO_SUCH_SETTING="1"), check=True)["failures"]
    assert failure["why"] == f"{card} has no setting NO_SUCH_SETTING"
    (failure,) = converge(node, wish("0000:ff:00.0", CNP_DSCP_P1="26"), check=True)["failures"]
    assert failure["why"] == "the node has no PCI function 0000:ff:00.0"


def test_a_revert_brings_the_factorys_values_at_the_next_boot(node: Node, card: str) -> None:
    assert revert(node, "nic_firmware")["failures"] == []
    node.reboot()
    assert shown(node, card, "CNP_DSCP_P1") == ["48", "48", "48"]
    assert shown(node, card, "ADVANCED_PCI_SETTINGS") == ["False(0)"] * 3
