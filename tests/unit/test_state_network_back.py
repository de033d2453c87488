"""The kind "network": taking the rails' network away has a way back as well, and the way in is never touched."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest

from railwright.node import durable
from railwright.node.state import Outcome, apply, confirmed, network_item, revert
from railwright.node.state.command import Said
from railwright.node.state.rail_port import RailPort
from tests.unit.state_support import fingerprint, items, plant
from tests.unit.test_state_network import (
    DEVICES,
    MARK,
    NETWORKD,
    TWO,
    Network,
    at_boot,
    network,
    node,
    put,
    rails,
    run_undo,
)

__all__ = ["network", "node"]
STATE = "var/lib/railwright/state.json"
ROUTES = "ip -N -j -4 route show table all"


def stand(node: Path, network: Network, entries: list[dict[str, Any]] = TWO) -> None:
    """These rails, confirmed."""
    assert put(node, network, entries).failures == ()
    confirmed(root=str(node), runner=network.systemctl)
    network.calls.clear()
    network.timers.clear()


def take_away(node: Path, network: Network, call: str = "revert", **more: Any) -> Outcome:
    """Either of the two ways that lose the rails their addresses."""
    where: dict[str, Any] = {"root": str(node), "runner": network.systemctl, "tools": network}
    if call == "policy":
        return apply({"rail_network": []}, **where, **more)
    return revert(["rail_network"], **where, **more)


def slice_of_record(node: Path) -> Any:
    return json.loads((node / STATE).read_text())["slices"]["rail_network"]


def priors(node: Path) -> dict[str, Any]:
    return {
        item_id: {cell: known["prior"] for cell, known in kept["cells"].items()}
        for item_id, kept in slice_of_record(node).items()
    }


@pytest.mark.parametrize("call", ["revert", "policy"])
def test_taking_the_rails_away_is_armed_before_the_first_file_goes(
    node: Path, network: Network, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand(node, network)
    seen: list[int] = []

    def look(argv: Any) -> Said:
        if "--unit=railwright-confirm-armed" in argv:
            seen.append(len(list((node / NETWORKD[1:]).iterdir())))
        return Network.__call__(network, argv)

    where: dict[str, Any] = {"root": str(node), "runner": network.systemctl, "tools": look}
    foretold = take_away(node, network, call, check=True)
    assert network.timers == []
    done = revert(["rail_network"], **where) if call == "revert" else apply({"rail_network": []}, **where)
    assert done.failures == foretold.failures == ()
    assert (seen, list((node / NETWORKD[1:]).iterdir())) == ([2], [])
    assert network.timers == ["--on-active=3720s", "--on-active=300s", "--on-active=120s"]
    verb = "revert" if call == "revert" else "release"
    assert items(done, "rail_network")["network:rails"]["action"] == verb
    assert network.addresses == {"enp24s0": set(), "enp58s0": set()}
    assert (network.rules, network.routes) == (set(), set())


def test_the_link_that_lets_a_boot_undo_it_is_on_the_disk_before_the_change_is_armed(
    node: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power may take what was not written out, on btrfs the link alone."""
    wants = node / "etc/systemd/system/sysinit.target.wants"
    stand(node, network)
    seen: list[tuple[bool, bool]] = []

    def sync(path: Any) -> None:
        if Path(path) == wants:
            there = (wants / "railwright-undo.service").is_symlink()
            seen.append((there, (node / "var/lib/railwright/confirm/armed").exists()))

    monkeypatch.setattr(durable, "sync", sync)
    assert take_away(node, network).failures == ()
    assert (True, False) in seen


def test_nobody_comes_back_after_a_revert_and_all_of_it_stands_again(node: Path, network: Network) -> None:
    before = fingerprint(node)
    stand(node, network)
    there, known = fingerprint(node / "etc"), priors(node)
    take_away(node, network)
    assert fingerprint(node / "etc") != there
    assert not (node / STATE).exists()
    said = run_undo(node)
    assert fingerprint(node / "etc") == there
    assert "networkctl reload\n" in said
    assert "del" not in said
    # The next run knows it for its own again, has nothing to write, and the next revert is exact.
    network._load()
    assert not put(node, network, TWO).changed
    assert priors(node) == known
    take_away(node, network)
    confirmed(root=str(node), runner=network.systemctl)
    assert fingerprint(node) == before


def test_a_revert_may_be_tried_again_after_it_was_undone(node: Path, network: Network) -> None:
    before = fingerprint(node)
    stand(node, network)
    take_away(node, network)
    run_undo(node)
    network._load()
    again = take_away(node, network)
    assert (again.failures, again.changed) == ((), True)
    confirmed(root=str(node), runner=network.systemctl)
    assert fingerprint(node) == before
    assert not take_away(node, network).changed


def test_a_boot_after_an_undone_revert_keeps_the_rails(node: Path, network: Network) -> None:
    stand(node, network)
    take_away(node, network)
    run_undo(node, "boot")
    network._load()
    assert at_boot(node, network, TWO).failures == ()
    assert network.addresses["enp24s0"] == {"10.1.0.2/24"}


def test_whoever_comes_back_after_a_revert_lets_nothing_stay(node: Path, network: Network) -> None:
    before = fingerprint(node)
    stand(node, network)
    take_away(node, network)
    assert (node / MARK[1:]).exists()
    confirmed(root=str(node), runner=network.systemctl)
    assert fingerprint(node) == before


def test_a_boot_takes_away_without_a_way_back_what_the_policy_does_not_name(
    node: Path, network: Network
) -> None:
    stand(node, network)
    assert put(node, network, [], unit="railwright.service").failures == ()
    assert network.timers == []
    assert not (node / MARK[1:]).exists()


def test_a_revert_without_a_timer_leaves_the_rails_as_they_are(node: Path, network: Network) -> None:
    stand(node, network)
    there = fingerprint(node / "etc")

    def fail(argv: Any) -> Said:
        return Said(1, err="no") if argv[0] == "systemd-run" else Network.__call__(network, argv)

    outcome = revert(["rail_network"], root=str(node), runner=network.systemctl, tools=fail)
    assert any("cannot be started" in failure.why for failure in outcome.failures)
    assert fingerprint(node / "etc") == there
    assert network.addresses["enp24s0"] == {"10.1.0.2/24"}
    assert set(slice_of_record(node)) == {
        f"file:{NETWORKD}/70-railwright-rail{n}.network" for n in (0, 1)
    } | {"network:rails"}


def way_in(network: Network, netdev: str) -> None:
    rows = [{"dst": "default", "gateway": "192.0.2.1", "dev": netdev}]
    network.answers[ROUTES] = Said(0, json.dumps(rows))


def test_a_rail_that_holds_the_default_route_by_now_is_left_alone(node: Path, network: Network) -> None:
    before = fingerprint(node / "etc")
    way_in(network, "enp58s0")
    outcome = put(node, network, TWO)
    assert "enp58s0 (rail 1) holds the node's default route" in outcome.failures[0].why
    assert network.calls == []
    assert fingerprint(node / "etc") == before


@pytest.mark.parametrize(("seconds", "refused"), [(0, True), (120, False)])
def test_a_revert_takes_the_way_in_only_where_it_comes_back_by_itself(
    node: Path, network: Network, seconds: int, refused: bool
) -> None:
    stand(node, network, rails("10.1.0.2/24", "10.1.1.2/24", seconds=seconds))
    there = fingerprint(node / "etc")
    way_in(network, "enp24s0")
    outcome = take_away(node, network)
    assert [failure for failure in outcome.failures if "default route" in failure.why] != [] or not refused
    assert (fingerprint(node / "etc") == there) is refused
    assert (node / MARK[1:]).exists() is not refused


def test_a_rail_that_gets_a_gateway_loses_the_route_to_nowhere(node: Path, network: Network) -> None:
    stand(node, network)
    entries = rails("10.1.0.2/24", "10.1.1.2/24")
    entries[0]["content"] += "Gateway=10.1.0.1\n"
    entries[2]["ports"][0]["gateway"] = "10.1.0.1"
    network.routes.add((100, "enp24s0", "default"))
    assert put(node, network, entries).failures == ()
    assert "ip -4 route del unreachable default table 100" in network.calls
    # Its address and rule are the same as before, and nobody takes them away.
    assert not any("address del" in call or "rule del" in call for call in network.calls)


def test_a_rail_that_went_to_another_card_keeps_what_its_table_has_without_a_device() -> None:
    """Its address goes from the old card, and the rule stays; so does the route to nowhere, which is the new card's."""
    old, new = (
        RailPort(0, device, ipaddress.IPv4Interface("10.1.0.2/24"), 100, 10000, None, "railwright-rail0")
        for device in DEVICES
    )
    assert [" ".join(argv) for argv in network_item._away(old, "enp24s0", (new,))] == [
        "ip -4 address del 10.1.0.2/24 dev enp24s0",
        "ip -4 route del 10.1.0.0/24 dev enp24s0 table 100",
    ]


def test_a_rail_whose_table_leads_to_nowhere_no_more_is_named(node: Path, network: Network) -> None:
    stand(node, network)
    network.routes.discard((101, "", "unreachable default"))
    (changed,) = [
        one for one in items(put(node, network, TWO, check=True), "rail_network").values() if one["changed"]
    ]
    assert changed["id"] == "network:rails"
    assert put(node, network, TWO).failures == ()
    assert network.calls == ["networkctl reconfigure enp58s0"]


def test_an_undone_first_write_is_no_revert(node: Path, network: Network) -> None:
    plant(node, "/etc/kept", "x\n")
    put(node, network, TWO)
    run_undo(node)
    assert "nobody came back" in str(put(node, network, TWO).failures)
