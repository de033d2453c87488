"""The kind "nvconfig": firmware settings with their three states, by a card that keeps state as a real one does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node import nvconfig
from railwright.node.model import InputError
from railwright.node.state import Said, apply, revert
from railwright.node.state.command import Tools
from tests.unit.state_support import DEVICE, fingerprint, item, make_node, plant

FACTORY = {
    "ADVANCED_PCI_SETTINGS": "False(0)",
    "CNP_DSCP_P1": "48",
    "LINK_TYPE_P1": "ETH(2)",
    "MAX_ACC_OUT_READ": "0",
    "ROCE_CONTROL": "ROCE_ENABLE(2)",
    "SRIOV_EN": "False(0)",
}
WORDS = {"False(0)": {"0": "False(0)", "1": "True(1)"}, "ETH(2)": {"1": "IB(1)", "2": "ETH(2)"}}


class Card:
    """A card and its tools. Values that were set are in force after `reset`; two are hidden until the switch for them
    is in force."""

    def __init__(self, tool: str = "mstconfig") -> None:
        self.tool = tool
        self.current = dict(FACTORY)
        self.next = dict(FACTORY)
        self.asked: list[list[str]] = []
        self.refuses = ""
        self.forgets = False

    def __call__(self, argv: Sequence[str]) -> Said:
        self.asked.append(list(argv))
        if argv[0] == "mstfwreset":
            return Said(
                0, "3: Driver restart and PCI reset  -Supported (default)\n4: Warm Reboot  -Supported\n"
            )
        if argv[0] != self.tool:
            return Said(None)
        assert argv[argv.index("-d") + 1] == DEVICE
        if "set" not in argv:
            return Said(0, self.table())
        if self.refuses:
            return Said(3, self.refuses)
        for pair in argv[argv.index("set") + 1 :]:
            name, _, value = pair.partition("=")
            if name not in self.shown():
                return Said(3, f"-E- The Device doesn't support {name} parameter")
            if not self.forgets:
                self.next[name] = WORDS.get(FACTORY[name], {}).get(value, value)
        return Said(0, "Applying... Done!\n-I- Please reboot machine to load new configurations.\n")

    def shown(self) -> list[str]:
        open_ = self.current["ADVANCED_PCI_SETTINGS"] == "True(1)"
        return [name for name in FACTORY if open_ or name != "MAX_ACC_OUT_READ"]

    def table(self) -> str:
        rows = [
            f"{'*' if self.next[name] != FACTORY[name] else ' '}       {name:<44}"
            f"{FACTORY[name]:<20}{self.current[name]:<20}{self.next[name]:<20}"
            for name in self.shown()
        ]
        head = f"Configurations:{'':<41}Default             Current             Next Boot"
        foot = "The '*' shows parameters with next value different from default/current value."
        return "\n".join(
            [
                "",
                "Device #1:",
                "----------",
                "",
                "Device type:        ConnectX7",
                f"Device:             {DEVICE}",
                "",
                head,
                *rows,
                foot,
                "",
            ]
        )

    def reset(self) -> None:
        self.current = dict(self.next)

    @property
    def writes(self) -> list[list[str]]:
        return [argv for argv in self.asked if "set" in argv]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    made = make_node(tmp_path / "node")
    (made / f"sys/bus/pci/devices/{DEVICE}").mkdir(parents=True)
    return made


def entry(**settings: str) -> dict[str, Any]:
    return {"kind": "nvconfig", "device": DEVICE, "settings": settings, "reboot": True}


def put(node: Path, card: Card, given: dict[str, Any], **more: Any) -> Any:
    return apply({"nic_firmware": [given]}, root=str(node), tools=card, **more)


@pytest.mark.parametrize("check", [True, False])
def test_an_nvswitchs_management_function_is_neither_asked_nor_set(node: Path, check: bool) -> None:
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/class", "0x020700\n")
    plant(node, f"/sys/bus/pci/devices/{DEVICE}/vpd", b"\x82\x05\x00SW_MNG")
    card = Card()
    (failure,) = put(node, card, entry(CNP_DSCP_P1="46"), check=check).failures
    assert "manages NVSwitches" in failure.why
    assert card.asked == []


def test_a_setting_goes_through_its_three_states(node: Path) -> None:
    card, wish = Card(), entry(CNP_DSCP_P1="26")
    first = put(node, card, wish)
    assert (item(first)["before"], item(first)["after"]) == ({"CNP_DSCP_P1": "48"}, {"CNP_DSCP_P1": "26"})
    assert first.reboot_needed == (f"nvconfig:{DEVICE}",)
    waiting = put(node, card, wish)
    assert not waiting.changed
    assert waiting.reboot_needed == (f"nvconfig:{DEVICE}",)
    assert "in force after a reset" in item(waiting)["note"]
    card.reset()
    done = put(node, card, wish)
    assert (done.changed, done.reboot_needed, item(done)["note"]) == (False, (), "")
    assert len(card.writes) == 1


def test_what_somebody_else_set_and_did_not_reset_is_told_as_pending(node: Path) -> None:
    card = Card()
    card.next["CNP_DSCP_P1"] = "26"
    outcome = put(node, card, entry(CNP_DSCP_P1="26"))
    assert (outcome.changed, outcome.reboot_needed) == (False, (f"nvconfig:{DEVICE}",))


def test_a_tool_that_fails_after_it_has_set_something_is_told_as_a_change(node: Path) -> None:
    card = Card()

    def stopped(argv: Sequence[str]) -> Said:
        said = card(argv)
        return Said(124, err="mstconfig did not come back in 120 s") if "set" in argv else said

    outcome = apply({"nic_firmware": [entry(CNP_DSCP_P1="26")]}, root=str(node), tools=stopped)
    assert "did not come back" in outcome.failures[0].why
    assert outcome.changed
    card.refuses = "-E- Failed"
    assert not put(node, card, entry(CNP_DSCP_P1="46")).changed
    card.refuses = ""
    revert(root=str(node), tools=card)
    assert card.next == FACTORY


def test_a_hidden_setting_is_set_by_the_run_after_its_switch_is_in_force(node: Path) -> None:
    card, wish = Card(), entry(MAX_ACC_OUT_READ="44")
    first = put(node, card, wish)
    assert card.writes[-1][-1] == "ADVANCED_PCI_SETTINGS=1"
    assert "hidden until" in item(first)["note"]
    assert not put(node, card, wish).changed  # not yet in force: nothing more can be set
    card.reset()
    put(node, card, wish)
    assert card.writes[-1][-1] == "MAX_ACC_OUT_READ=44"
    card.reset()
    assert not put(node, card, wish).changed
    assert card.current["ADVANCED_PCI_SETTINGS"] == "True(1)"
    assert len(card.writes) == 2


def test_a_revert_sets_what_the_next_boot_would_have_brought(node: Path) -> None:
    card = Card()
    before = fingerprint(node)
    put(node, card, entry(CNP_DSCP_P1="26", SRIOV_EN="1"))
    revert(root=str(node), tools=card)
    assert card.next == FACTORY
    assert fingerprint(node).keys() == before.keys()


def boot(node: Path, card: Card) -> None:
    card.reset()
    for left in (node / "run").iterdir():
        left.unlink()


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("ends", ["boot", "reset"])
def test_the_reboot_for_a_dropped_setting_is_owed_until_it_is_out_of_force(
    node: Path, check: bool, ends: str
) -> None:
    card = Card()
    put(node, card, entry(CNP_DSCP_P1="26", SRIOV_EN="1"))
    boot(node, card)
    owed = (f"nvconfig:{DEVICE}",)
    assert put(node, card, entry(SRIOV_EN="1")).reboot_needed == owed
    for _ in range(3):
        again = put(node, card, entry(SRIOV_EN="1"), check=check)
        assert (again.changed, again.reboot_needed) == (False, owed)
    assert (card.current["CNP_DSCP_P1"], card.next["CNP_DSCP_P1"]) == ("26", "48")
    boot(node, card) if ends == "boot" else card.reset()
    done = put(node, card, entry(SRIOV_EN="1"))
    assert (done.changed, done.reboot_needed) == (False, ())


def test_a_dropped_setting_that_is_taken_again_before_the_boot_owes_none(node: Path) -> None:
    card, wish = Card(), entry(CNP_DSCP_P1="26", SRIOV_EN="1")
    put(node, card, wish)
    boot(node, card)
    put(node, card, entry(SRIOV_EN="1"))
    put(node, card, wish)
    assert put(node, card, wish).reboot_needed == ()


@pytest.mark.parametrize("whole", [False, True])
def test_of_a_card_that_is_gone_nothing_is_put_back_and_all_else_goes_on(node: Path, whole: bool) -> None:
    card = Card()
    before = fingerprint(node)
    wish = entry(CNP_DSCP_P1="26")
    beside = {"kind": "file", "path": "/etc/beside", "content": "x\n", "owner": "0", "group": "0"}
    apply({"nic_firmware": [wish, beside]}, root=str(node), tools=card)
    boot(node, card)
    (node / f"sys/bus/pci/devices/{DEVICE}").rmdir()
    asked = len(card.asked)
    # The tune that still names it says so, and does the rest.
    other = {**beside, "content": "y\n"}
    outcome = apply({"nic_firmware": [wish, other]}, root=str(node), tools=gone(card))
    assert [failure.why for failure in outcome.failures] == [f"the node has no PCI function {DEVICE}"]
    assert (node / "etc/beside").read_text() == "y\n"
    # One that does not any more lets it go, and so does a revert of the whole.
    if whole:
        outcome = revert(root=str(node), tools=gone(card))
    else:
        outcome = apply({"nic_firmware": [other]}, root=str(node), tools=gone(card))
    assert outcome.failures == ()
    told = {item["id"]: item for item in outcome.to_json()["slices"]["nic_firmware"]["items"]}
    assert "CNP_DSCP_P1 is gone: nothing to put back" in told[f"nvconfig:{DEVICE}"]["note"]
    assert apply({"nic_firmware": []}, root=str(node), tools=gone(card)).failures == ()
    assert len(card.asked) == asked
    assert fingerprint(node).keys() == before.keys() - {f"sys/bus/pci/devices/{DEVICE}"}


def gone(card: Card) -> Tools:
    def tools(argv: Sequence[str]) -> Said:
        card.asked.append(list(argv))
        return Said(1, err=f"-E- Failed to open device: {DEVICE}. No such device")

    return tools


def test_a_card_that_is_there_and_does_not_answer_is_not_taken_for_gone(node: Path) -> None:
    card = Card()
    put(node, card, entry(CNP_DSCP_P1="26"))
    assert "Failed to open device" in revert(root=str(node), tools=gone(card)).failures[0].why
    assert revert(root=str(node), tools=card).failures == ()
    assert card.next == FACTORY


def test_a_check_asks_and_never_sets(node: Path) -> None:
    card = Card()
    assert put(node, card, entry(CNP_DSCP_P1="26"), check=True).changed
    assert card.writes == []


def test_no_run_ever_resets_a_card(node: Path) -> None:
    card = Card()
    first = put(node, card, entry(CNP_DSCP_P1="26"))
    assert [argv for argv in card.asked if argv[0] == "mstfwreset"] == [["mstfwreset", "-d", DEVICE, "q"]]
    assert "3: Driver restart and PCI reset" in item(first)["note"]


def test_of_a_card_that_carries_the_way_out_only_a_reboot_is_named(node: Path) -> None:
    card = Card()
    outcome = put(node, card, {**entry(CNP_DSCP_P1="26"), "reset": False})
    assert "it is not to be reset" in item(outcome)["note"]
    assert not any(argv[0] == "mstfwreset" for argv in card.asked)


@pytest.mark.parametrize(("told", "wanted", "same"), [
    ("True(1)", "1", True), ("True(1)", "true", True), ("ETH(2)", "eth", True), ("48", "48", True),
    ("DISABLED(0)", "0", True), ("ETH(2)", "1", False), ("48", "4", False), ("False(0)", "1", False),
])  # fmt: skip
def test_a_value_may_be_given_as_number_or_word(told: str, wanted: str, same: bool) -> None:
    assert nvconfig.same(told, wanted) is same


def test_where_only_mft_is_there_its_twin_is_asked(node: Path) -> None:
    card = Card("mlxconfig")
    assert put(node, card, entry(CNP_DSCP_P1="26")).failures == ()
    assert card.next["CNP_DSCP_P1"] == "26"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (entry(CPN_DSCP_P1="26"), f"{DEVICE} has no setting CPN_DSCP_P1"),
        (entry(CNP_DSCP_P1="26", LINKTYPE_P1="2"), f"{DEVICE} has no setting LINKTYPE_P1"),
    ],
)
def test_a_setting_that_the_card_lacks_is_named_and_nothing_is_set(
    node: Path, given: dict[str, Any], why: str
) -> None:
    card = Card()
    (failure,) = put(node, card, given).failures
    assert failure.why == why
    assert card.writes == []


def test_a_setting_that_only_other_cards_have_is_left_out_and_said(node: Path) -> None:
    card = Card()
    outcome = put(node, card, entry(CNP_DSCP_P1="26", LINK_TYPE_P2="2"))
    assert outcome.failures == ()
    assert "LINK_TYPE_P2: this card has none of that name, left out" in item(outcome)["note"]
    assert card.next["CNP_DSCP_P1"] == "26"
    card.reset()
    assert put(node, card, entry(CNP_DSCP_P1="26", LINK_TYPE_P2="2")).reboot_needed == ()


def test_what_the_tool_refuses_and_what_does_not_read_back_are_failures(node: Path) -> None:
    card = Card()
    card.refuses = "-E- Failed to set configuration: Parameter is read only"
    (failure,) = put(node, card, entry(CNP_DSCP_P1="26")).failures
    assert failure.why.endswith("-E- Failed to set configuration: Parameter is read only")
    card.refuses, card.forgets = "", True
    (failure,) = put(node, card, entry(CNP_DSCP_P1="26")).failures
    assert failure.why == f"{DEVICE}: CNP_DSCP_P1 was set and does not read back"


def test_without_a_tool_and_on_a_folder_nothing_is_done(node: Path) -> None:
    (failure,) = put(node, Card("another"), entry(CNP_DSCP_P1="26")).failures
    assert "neither mstconfig nor mlxconfig is on the node" in failure.why
    (failure,) = apply({"nic_firmware": [entry(CNP_DSCP_P1="26")]}, root=str(node)).failures
    assert "no running node" in failure.why


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "names no setting"),
        ({"cnp": "1"}, "is no name of a setting"),
        ({"CNP_DSCP_P1": 26}, "expected text"),
        ({"CNP_DSCP_P1": "2 6"}, "is no value"),
        ({"MAX_ACC_OUT_READ": "0", "ADVANCED_PCI_SETTINGS": "0"}, "hides MAX_ACC_OUT_READ"),
    ],
)
def test_settings_that_no_tool_takes_are_refused(node: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        put(node, Card(), {"kind": "nvconfig", "device": DEVICE, "settings": settings})


def test_the_table_is_read_as_the_tool_prints_it() -> None:
    card = Card()
    card.next["CNP_DSCP_P1"] = "26"
    found = nvconfig.parse(card.table(), "mstconfig")
    assert found["CNP_DSCP_P1"] == nvconfig.Setting("48", "48", "26")
    assert list(found) == [name for name in FACTORY if name != "MAX_ACC_OUT_READ"]


def garbled(seed: int) -> str:
    """The table with one thing wrong that leaves it without its meaning."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    lines = Card().table().splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("Configurations"))
    row = rng.randrange(head + 1, head + 5)
    how = seed % 8
    if how == 0:
        return "\n".join(lines[:head])
    if how == 1:
        lines[head] = "Configurations:      Next Boot"
    elif how == 2:
        lines[row] = " ".join(lines[row].split()[:-1])
    elif how == 3:
        lines[row] += " 17"
    elif how == 4:
        lines[row] = lines[row].lower()
    elif how == 5:
        lines.insert(row, lines[row])
    elif how == 6:
        lines.insert(row, "-E- Failed to query device: MFE_CR_ERROR")
    else:
        lines[head] = lines[head].replace("Current", "Curent")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(32))
def test_a_garbled_table_is_an_error_that_names_its_line(seed: int) -> None:
    with pytest.raises(InputError, match=r"^mstconfig(:\d+)?: "):
        nvconfig.parse(garbled(seed), "mstconfig")


@pytest.mark.parametrize("seed", range(32))
def test_a_card_whose_answer_is_garbled_is_left_alone(node: Path, seed: int) -> None:
    card = Card()
    card.table = lambda: garbled(seed)  # type: ignore[method-assign]
    assert len(put(node, card, entry(CNP_DSCP_P1="26")).failures) == 1
    assert card.writes == []
