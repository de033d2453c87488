"""What an item gives up: a run that fails on the way does not forget it, and one that is done lets it go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import InputError, Outcome, Said, apply, confirmed
from tests.unit.state_support import fingerprint, make_node, plant
from tests.unit.test_state_network import NETWORKD, TWO, UNDO, Network, lay_rails, network, put, rails
from tests.unit.test_state_packages import Debian, Node, Rocky, debian, do, node, undo, wanted, why

__all__ = ["debian", "network", "node"]
STATE = "var/lib/railwright/state.json"
FETCH = {Debian: " -d ", Rocky: "--downloadonly"}


def entry_of(root: Path, name: str, item_id: str) -> Any:
    return json.loads((root / STATE).read_text())["slices"][name][item_id]["entry"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_package_that_the_policy_dropped_goes_in_the_run_after_one_that_could_not_fetch(
    node: Node, killed: bool
) -> None:
    assert why(do(node, {"other": "2-1", "tool": "5-1"})) == ""

    def broken(argv: Sequence[str]) -> Said:
        if FETCH[type(node)] in " ".join(argv):
            if killed:
                raise KeyboardInterrupt
            return Said(100, err="E: the mirror is down")
        return node(argv)

    if killed:
        with pytest.raises(KeyboardInterrupt):
            apply(wanted(node, {"other": "1-1"}), root=str(node.root), tools=broken)
    else:
        failed = apply(wanted(node, {"other": "1-1"}), root=str(node.root), tools=broken)
        assert "the mirror is down" in why(failed)
    assert (node.standing, node.held) == ({"other": "2-1", "tool": "5-1"}, {"other", "tool"})
    assert why(do(node, {"other": "1-1"})) == ""
    assert (node.standing, node.held) == ({"other": "1-1"}, {"other"})
    assert entry_of(node.root, "part", "packages:part")["versions"] == {"other": "1-1"}


def test_what_failed_to_go_goes_with_a_revert_too(node: Node) -> None:
    do(node, {"other": "2-1", "tool": "5-1"})
    node.fails[FETCH[type(node)]] = "E: the mirror is down"
    assert why(do(node, {"other": "2-1"})) != ""
    node.fails.clear()
    assert why(undo(node)) == ""
    assert (node.standing, node.held) == ({"other": "1-1"}, set())


@pytest.fixture
def railed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr("railwright.node.state.network_item._SECONDS", 0.0)
    root = make_node(tmp_path / "railed")
    lay_rails(root)
    made = Network(root)
    assert put(root, made, TWO).failures == ()
    confirmed(root=str(root), runner=made.systemctl)
    made.calls.clear()
    return made


@pytest.mark.parametrize("fails", ["systemd-run", "networkctl", "killed"])
def test_an_address_that_was_replaced_goes_in_the_run_after_one_that_failed(
    railed: Network, fails: str
) -> None:
    root, other = railed.root, rails("10.9.0.2/24", "10.1.1.2/24")

    def broken(argv: Sequence[str]) -> Said:
        if fails == "killed" and argv[0] == "networkctl":
            raise KeyboardInterrupt
        return Said(1, err="no") if argv[0] == fails else railed(argv)

    where: dict[str, Any] = {"root": str(root), "runner": railed.systemctl}
    if fails == "killed":
        with pytest.raises(KeyboardInterrupt):
            apply({"rail_network": other}, tools=broken, **where)
    else:
        assert apply({"rail_network": other}, tools=broken, **where).failures != ()
    assert railed.addresses["enp24s0"] == {"10.1.0.2/24"}
    railed.calls.clear()
    assert put(root, railed, other).failures == ()
    assert {call for call in railed.calls if " del " in call} == {
        "ip -4 address del 10.1.0.2/24 dev enp24s0",
        "ip -4 rule del priority 10000 from 10.1.0.2 table 100",
        "ip -4 route del 10.1.0.0/24 dev enp24s0 table 100",
    }
    script = (root / UNDO).read_text("utf-8")
    assert "address del 10.9.0.2/24 dev enp24s0" in script.replace("'", "")
    assert "10.1.1.2" not in script, "the rail that stays as it is has nothing to undo"
    ports = entry_of(root, "rail_network", "network:rails")["ports"]
    assert [port["address"] for port in ports] == ["10.9.0.2/24", "10.1.1.2/24"]
    confirmed(root=str(root), runner=railed.systemctl)
    assert not put(root, railed, other).changed


def test_a_rail_that_the_policy_dropped_goes_after_a_run_that_could_not_arm(railed: Network) -> None:
    railed.answers["ip -N -j -4 route show table all"] = Said(0, "[]")
    one = rails("10.1.0.2/24")

    def broken(argv: Sequence[str]) -> Said:
        return Said(1, err="no") if argv[0] == "systemd-run" else railed(argv)

    failed = apply({"rail_network": one}, root=str(railed.root), runner=railed.systemctl, tools=broken)
    assert failed.failures != ()
    del railed.answers["ip -N -j -4 route show table all"]
    railed.calls.clear()
    put(railed.root, railed, one)
    assert "ip -4 address del 10.1.1.2/24 dev enp58s0" in railed.calls
    assert not (railed.root / NETWORKD[1:] / "70-railwright-rail1.network").exists()


# -- what was given up without a write --


def both(node: Node, first: dict[str, Any], second: dict[str, Any], check: bool = False) -> Outcome:
    slices = wanted(node, first, hold=False)
    if second:
        slices["late"] = [{**slices["part"][0], "name": "late", "versions": second}]
    return apply(slices, root=str(node.root), tools=node, check=check)


def test_another_slice_may_have_a_package_that_was_right_from_the_first_and_given_up(node: Node) -> None:
    node.standing["tool"] = "5-1"
    node.write()
    assert why(both(node, {"tool": "5-1", "other": "2-1"}, {})) == ""
    with pytest.raises(InputError, match="both own package tool"):
        both(node, {"tool": "5-1", "other": "2-1"}, {"tool": "5-1"})
    before = fingerprint(node.root)
    assert not both(node, {"other": "2-1"}, {}, check=True).changed
    assert fingerprint(node.root) == before
    assert not both(node, {"other": "2-1"}, {}).changed
    record = (node.root / STATE).stat().st_ino
    assert not both(node, {"other": "2-1"}, {}).changed
    assert (node.root / STATE).stat().st_ino == record, "the record is mended once"
    done = both(node, {"other": "2-1"}, {"tool": "5-1"})
    assert (why(done), done.changed) == ("", False)


def test_another_slice_may_have_a_key_that_somebody_put_back_and_the_first_gave_up(tmp_path: Path) -> None:
    root = make_node(tmp_path / "node")
    place = plant(root, "/etc/d.json", '{"a": 1, "b": 1}')

    def run(first: dict[str, int], second: dict[str, int]) -> Outcome:
        found = {"part": first, "late": second}
        slices = {
            name: [{"kind": "json_keys", "path": "/etc/d.json", "keys": keys}]
            for name, keys in found.items()
            if keys
        }
        return apply(slices, root=str(root))

    assert run({"/a": 2, "/b": 2}, {}).failures == ()
    place.write_text(place.read_text().replace('"a": 2', '"a": 1'))
    assert not run({"/b": 2}, {}).changed
    assert run({"/b": 2}, {"/a": 3}).failures == ()
    assert json.loads(place.read_text()) == {"a": 3, "b": 2}


# -- what a removal leaves --


def transactions(debian: Debian) -> list[str]:
    told = [call for call in debian.calls if call.startswith(("apt-get", "dpkg --purge"))]
    return [call for call in told if " -s " not in call and " -d " not in call]


def test_the_nodes_own_package_keeps_its_configuration_when_it_must_not_be_there(debian: Debian) -> None:
    assert why(do(debian, {"tool": "5-1", "other": None})) == ""
    assert [("purge" in call, "other-" in call) for call in transactions(debian)] == [(False, True)]
    debian.calls.clear()
    assert why(undo(debian)) == ""
    (back,) = transactions(debian)
    assert "--purge" in back
    assert back.split("install ")[-1].split() == ["tool-", "other=1-1"]


def test_of_a_removal_of_both_only_what_came_by_us_is_purged(debian: Debian) -> None:
    do(debian, {"tool": "5-1"})
    debian.calls.clear()
    assert why(do(debian, {"other": None})) == ""
    remove, purge = transactions(debian)
    assert "--purge" not in remove
    assert purge == "dpkg --purge tool"


# -- a hold that was there before --


def held(debian: Debian) -> None:
    debian(["apt-mark", "hold", "other"])


def test_a_hold_of_the_nodes_own_outlasts_a_kill_and_a_second_run(debian: Debian) -> None:
    held(debian)
    debian.dies = True
    with pytest.raises(KeyboardInterrupt):
        do(debian, {"other": "2-1"})
    assert debian.held == set()
    assert why(do(debian, {"other": "2-1"})) == ""
    assert debian.held == {"other"}
    assert why(undo(debian)) == ""
    assert (debian.standing, debian.held) == ({"other": "1-1"}, {"other"})


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("way", ["revert", "dropped"])
def test_a_hold_of_the_nodes_own_is_there_after_the_way_back(debian: Debian, way: str, killed: bool) -> None:
    held(debian)
    assert why(do(debian, {"other": "2-1", "tool": "5-1"})) == ""

    def back() -> Outcome:
        return undo(debian) if way == "revert" else do(debian, {"tool": "5-1"})

    debian.dies = killed
    if killed:
        with pytest.raises(KeyboardInterrupt):
            back()
        assert "other" not in debian.held
    assert why(back()) == ""
    assert debian.standing["other"] == "1-1"
    assert "other" in debian.held
    assert not back().changed


def test_a_package_that_moves_under_a_hold_that_stands_is_told_as_a_change_alone(debian: Debian) -> None:
    held(debian)
    outcome = do(debian, {"other": "2-1"}, check=True)
    (told,) = outcome.to_json()["slices"]["part"]["items"]
    assert told["action"] == "change"


# -- what a question leaves --


def test_dnf_is_asked_with_its_log_aside_and_the_log_goes(tmp_path: Path) -> None:
    rocky = Rocky(make_node(tmp_path / "node"), {"other": "1-1"})
    rocky.write()
    logs = []

    def logging(argv: Sequence[str]) -> Said:
        if "--assumeno" in argv:
            (word,) = [word for word in argv if word.startswith("--setopt=logdir=")]
            logs.append(Path(word.partition("=")[2].partition("=")[2], "dnf.log"))
            logs[-1].write_text("asked\n")
        return rocky(argv)

    before = fingerprint(rocky.root)
    told = apply(wanted(rocky, {"other": "2-1"}), root=str(rocky.root), tools=logging, check=True)
    assert (why(told), told.changed) == ("", True)
    assert logs
    assert fingerprint(rocky.root) == before
    assert why(apply(wanted(rocky, {"other": "2-1"}), root=str(rocky.root), tools=logging)) == ""
    assert not any(log.parent.exists() for log in logs)
    assert not any("logdir" in call for call in rocky.calls if "--assumeno" not in call)
