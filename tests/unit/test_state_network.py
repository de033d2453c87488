"""The kind "network": the back-end is told of what changed and of nothing else, and a change has a way back."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import (
    InputError,
    apply,
    backends,
    confirm,
    confirmed,
    network_item,
    release,
    revert,
)
from railwright.node.state.command import Said
from railwright.node.state.item import Node
from tests.unit.state_support import file_entry, fingerprint, items, make_node, plant

DEVICES = ("0000:18:00.0", "0000:3a:00.0")
UNDO = "var/lib/railwright/confirm/undo"
MARK = "/var/lib/railwright/confirm"
NETWORKD = "/etc/systemd/network"


class Network:
    """A kernel and a networkd for two rails: `ip` tells what stands there, and a reload makes what the files say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.timers: list[str] = []
        self.addresses: dict[str, set[str]] = {"enp24s0": set(), "enp58s0": set()}
        self.rules: set[tuple[str, int, int]] = set()
        self.routes: set[tuple[int, str, str]] = set()
        self.deaf = False
        self.answers: dict[str, Said] = {}
        self.stopped: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Said:
        line = " ".join(argv)
        if line in self.answers:
            return self.answers[line]
        if argv[0] == "systemd-run":
            self.timers += [word for word in argv if word.startswith("--on-active=")]
        elif argv[0] != "ip" or "-j" not in argv:
            self.calls.append(line)
        if argv[0] == "ip":
            return self._ip(argv)
        if argv[:2] == ["networkctl", "reload"]:
            self._load()
        if argv[:2] == ["networkctl", "reconfigure"]:
            self._load(argv[2])
        return Said(0)

    def systemctl(self, arguments: list[str]) -> tuple[int, str, str]:
        self.stopped.append(" ".join(arguments))
        return 0, "", ""

    def _ip(self, argv: Sequence[str]) -> Said:
        if argv[-1] == "address":
            rows: list[Any] = [
                {
                    "ifname": name,
                    "addr_info": [
                        {"local": text.split("/")[0], "prefixlen": int(text.split("/")[1])} for text in held
                    ],
                }
                for name, held in self.addresses.items()
            ]
        elif argv[-1] == "rule":
            rows = [{"priority": 0, "src": "all", "table": "255"}]
            rows += [{"priority": p, "src": source, "table": str(t)} for source, t, p in self.rules]
        elif argv[-1] == "all":
            rows = [{"dst": "default", "gateway": "192.0.2.1", "dev": "eno1"}]
            rows += [
                {"table": str(t), "dev": dev, "dst": to}
                if dev
                else {"type": "7", "table": str(t), "dst": to.removeprefix("unreachable ")}
                for t, dev, to in self.routes
            ]
        elif argv[2:4] == ["address", "del"]:
            self.addresses[argv[6]].discard(argv[4])
            return Said(0)
        elif argv[2:4] == ["rule", "del"]:
            self.rules = {rule for rule in self.rules if (rule[0], rule[2]) != (argv[7], int(argv[5]))}
            return Said(0)
        elif argv[2:5] == ["route", "del", "unreachable"]:
            self.routes.discard((int(argv[7]), "", f"unreachable {argv[5]}"))
            return Said(0)
        elif argv[2:4] == ["route", "del"]:
            self.routes.discard((int(argv[8]), argv[6], argv[4]))
            return Said(0)
        else:
            raise AssertionError(argv)
        return Said(0, json.dumps(rows))

    def _load(self, only: str = "") -> None:
        if self.deaf:
            return
        for number, name in enumerate(self.addresses):
            path = self.root / NETWORKD[1:] / f"70-railwright-rail{number}.network"
            if not path.exists() or only not in ("", name):
                continue
            text = path.read_text("utf-8")
            address, table = re.search(r"Address=(\S+)", text), re.search(r"Table=(\d+)", text)
            assert address is not None
            assert table is not None
            self.addresses[name] = {address[1]}
            source = address[1].split("/")[0]
            self.rules = {rule for rule in self.rules if rule[1] != int(table[1])}
            self.rules.add((source, int(table[1]), 10000 + 4 * number))
            self.routes.add((int(table[1]), name, f"{source.rsplit('.', 1)[0]}.0/24"))
            self.routes.add((int(table[1]), "", "unreachable default"))


def lay_rails(root: Path) -> None:
    for device, name in zip(DEVICES, ("enp24s0", "enp58s0"), strict=True):
        plant(root, f"/sys/bus/pci/devices/{device}/net/{name}/ifindex", "4\n")
        plant(root, f"/sys/class/net/{name}/carrier", "1\n")
    for folder in (NETWORKD, "/etc/systemd/system"):
        (root / folder[1:]).mkdir(parents=True)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    root = make_node(tmp_path / "node")
    lay_rails(root)
    return root


@pytest.fixture
def network(node: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(network_item, "_SECONDS", 0.0)
    return Network(node)


def rails(*addresses: str, seconds: int = 120, backend: str = "networkd") -> list[dict[str, Any]]:
    """The slice for these addresses, one a rail."""
    paths = [f"{NETWORKD}/70-railwright-rail{rail}.network" for rail in range(len(addresses))]
    files = [
        file_entry(path, f"[Network]\nAddress={address}\nTable={100 + rail}\n")
        for rail, (path, address) in enumerate(zip(paths, addresses, strict=True))
    ]
    ports = [
        {
            "rail": rail,
            "label": f"rail{rail}",
            "device": DEVICES[rail],
            "netdev": None,
            "name": None,
            "address": address,
            "gateway": None,
            "table": 100 + rail,
            "priority": 10000 + 4 * rail,
            "mtu": 9000,
            "rdma_mtu": 4096,
        }
        for rail, address in enumerate(addresses)
    ]
    entry = {
        "kind": "network",
        "backend": backend,
        "mode": "subnet",
        "files": paths,
        "confirm_seconds": seconds,
        "ports": ports,
    }
    return [*files, entry]


TWO = rails("10.1.0.2/24", "10.1.1.2/24")


def put(node: Path, network: Network, entries: list[dict[str, Any]], **more: Any) -> Any:
    return apply({"rail_network": entries}, root=str(node), runner=network.systemctl, tools=network, **more)


def run_undo(node: Path, *arguments: str) -> str:
    """Runs the script that the timer would run, with stand-ins for what it calls."""
    stand_ins = node / "stand-ins"
    stand_ins.mkdir(exist_ok=True)
    for name in ("networkctl", "ip", "nmcli", "netplan"):
        (stand_ins / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
        (stand_ins / name).chmod(0o755)
    script = (node / UNDO).read_text("utf-8")
    (node / UNDO).write_text(script.replace("PATH=", f"PATH={stand_ins}:", 1))
    done = subprocess.run(["sh", str(node / UNDO), *arguments], capture_output=True, text=True, check=True)
    shutil.rmtree(stand_ins)
    return done.stdout


def test_the_first_run_tells_the_backend_once_and_a_second_one_nothing(node: Path, network: Network) -> None:
    foretold = put(node, network, TWO, check=True)
    assert network.calls == []
    done = put(node, network, TWO)
    assert foretold.failures == done.failures == ()
    assert items(foretold, "rail_network")["network:rails"]["action"] == "arm+reload"
    assert network.calls == ["networkctl reload"]
    # Up to the reload the run may take its time, and then the boot unit; the two minutes begin when it has ended.
    assert network.timers == ["--on-active=3720s", "--on-active=300s", "--on-active=120s"]
    assert network.addresses == {"enp24s0": {"10.1.0.2/24"}, "enp58s0": {"10.1.1.2/24"}}
    network.calls.clear()
    assert not put(node, network, TWO).changed
    assert network.calls == []


def test_the_way_back_is_armed_before_the_first_file_is_written(
    node: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    original = network.__call__

    def look(argv: Sequence[str]) -> Said:
        if "--unit=railwright-confirm-armed" in argv:
            seen.append(sorted(path.name for path in (node / NETWORKD[1:]).iterdir()))
            assert (node / UNDO).exists()
        return original(argv)

    apply({"rail_network": TWO}, root=str(node), runner=network.systemctl, tools=look)
    assert seen == [[]]


def test_a_timer_that_does_not_start_leaves_all_as_it_was(node: Path, network: Network) -> None:
    before = fingerprint(node / "etc")

    def fail(argv: Sequence[str]) -> Said:
        return (
            Said(1, err="Failed to start transient timer unit") if argv[0] == "systemd-run" else network(argv)
        )

    outcome = apply({"rail_network": TWO}, root=str(node), runner=network.systemctl, tools=fail)
    assert any("cannot be started" in failure.why for failure in outcome.failures)
    assert "networkctl reload" not in network.calls
    assert fingerprint(node / "etc") == before
    assert not (node / MARK[1:]).exists()


def test_nobody_comes_back_and_the_node_is_as_it_was_before_the_change(node: Path, network: Network) -> None:
    put(node, network, TWO)
    confirmed(root=str(node), runner=network.systemctl)
    before = fingerprint(node / "etc")
    put(node, network, rails("10.9.0.2/24", "10.1.1.2/24"))
    assert "10.9.0.2" in (node / NETWORKD[1:] / "70-railwright-rail0.network").read_text()
    said = run_undo(node)
    assert fingerprint(node / "etc") == before
    assert "networkctl reload\n" in said
    assert "ip -4 address del 10.9.0.2/24 dev enp24s0\n" in said
    assert "10.1.1.2" not in said


def test_a_first_change_that_is_undone_leaves_no_file_of_ours(node: Path, network: Network) -> None:
    before = fingerprint(node / "etc")
    put(node, network, TWO)
    run_undo(node)
    after = fingerprint(node / "etc")
    assert {path: after[path] for path in before} == before
    assert [path for path in after if "railwright" in path] == []


def test_a_boot_before_the_time_is_over_undoes_and_tells_no_backend(node: Path, network: Network) -> None:
    put(node, network, TWO)
    unit = (node / "etc/systemd/system/railwright-undo.service").read_text()
    # network-pre.target is no part of a boot without a firewall, so nothing that hangs on it alone would start.
    wanted = node / "etc/systemd/system/sysinit.target.wants/railwright-undo.service"
    assert "Before=network-pre.target" in unit
    assert f"ExecStart=/bin/sh {MARK}/undo boot" in unit
    assert wanted.resolve() == node / "etc/systemd/system/railwright-undo.service"
    assert "networkctl" not in run_undo(node, "boot")
    assert list((node / NETWORKD[1:]).iterdir()) == []


def test_a_run_that_is_killed_while_it_arms_undoes_nothing(node: Path, network: Network) -> None:
    class Killed(BaseException):
        pass

    def die(argv: Sequence[str]) -> Said:
        if argv[0] == "systemd-run":
            raise Killed
        return network(argv)

    with pytest.raises(Killed):
        apply({"rail_network": TWO}, root=str(node), runner=network.systemctl, tools=die)
    run_undo(node, "boot")
    assert put(node, network, TWO).failures == ()


def test_netplan_is_asked_again_at_a_boot_since_it_has_told_networkd_by_then(
    node: Path, network: Network
) -> None:
    entry = {**rails("10.1.0.2/24", backend="netplan")[1], "files": ["/etc/netplan/70-railwright-rails.yaml"]}
    network.answers["networkctl reload"] = Said(0)
    put(node, network, [file_entry("/etc/netplan/70-railwright-rails.yaml", "network: {}\n"), entry])
    assert run_undo(node, "boot") == (
        "railwright: nobody came back after the last change of the network: it was undone\nnetplan generate\n"
    )


@pytest.mark.parametrize("call", ["apply", "revert", "release", "confirmed"])
def test_whoever_calls_again_has_reached_the_node(node: Path, network: Network, call: str) -> None:
    put(node, network, TWO)
    assert (node / UNDO).exists()
    put(node, network, TWO, check=True)
    assert (node / UNDO).exists(), "a check confirms nothing"
    where: dict[str, Any] = {"root": str(node), "runner": network.systemctl}
    if call == "apply":
        apply({}, tools=network, **where)
    elif call == "revert":
        revert([], tools=network, **where)
    elif call == "release":
        release("another", root=str(node))
    else:
        confirmed(**where)
    assert not (node / MARK[1:]).exists()
    assert not (node / "etc/systemd/system/railwright-undo.service").exists()
    assert network.addresses["enp24s0"] == {"10.1.0.2/24"}
    if call != "release":
        for stage in ("armed", "told", "ended"):
            assert f"stop railwright-confirm-{stage}.timer" in network.stopped


def test_the_boot_confirms_nothing_and_arms_nothing(node: Path, network: Network) -> None:
    put(node, network, TWO)
    apply({}, root=str(node), runner=network.systemctl, tools=network, unit="railwright.service")
    assert (node / UNDO).exists()
    confirmed(root=str(node), runner=network.systemctl)
    outcome = put(node, network, rails("10.9.0.2/24", "10.1.1.2/24"), unit="railwright.service")
    assert outcome.failures == ()
    assert not (node / UNDO).exists()


def test_what_was_undone_is_not_set_again_before_the_policy_changes(node: Path, network: Network) -> None:
    put(node, network, TWO)
    run_undo(node)
    network.calls.clear()
    outcome = put(node, network, TWO)
    (failure,) = outcome.failures
    assert "nobody came back within 120 s" in failure.why
    assert network.calls == []
    assert list((node / NETWORKD[1:]).iterdir()) == []
    again = put(node, network, TWO, unit="railwright.service")
    assert len(again.failures) == 1
    assert put(node, network, rails("10.1.0.2/24", "10.1.1.2/24", seconds=60)).failures == ()
    assert network.addresses["enp24s0"] == {"10.1.0.2/24"}


def test_after_an_undoing_a_revert_still_takes_our_files_away(node: Path, network: Network) -> None:
    before = fingerprint(node / "etc")
    put(node, network, TWO)
    confirmed(root=str(node), runner=network.systemctl)
    put(node, network, rails("10.9.0.2/24", "10.1.1.2/24"))
    run_undo(node)
    # A run that writes something else keeps the record, which the next one has to read.
    apply(
        {"rail_network": TWO, "part": [file_entry("/etc/other", "x\n")]},
        root=str(node),
        runner=network.systemctl,
        tools=network,
    )
    outcome = revert(["rail_network", "part"], root=str(node), runner=network.systemctl, tools=network)
    assert outcome.failures == ()
    confirmed(root=str(node), runner=network.systemctl)
    assert fingerprint(node / "etc") == before


def at_boot(node: Path, network: Network, entries: list[dict[str, Any]]) -> Any:
    """The boot unit's call: by other names where the rails were named, and without a time to confirm."""
    *files, entry = entries
    named = [{**port, "netdev": port["label"], "name": port["label"]} for port in entry["ports"]]
    asked = [*files, {**entry, "confirm_seconds": 0, "ports": named}]
    return put(node, network, asked, unit="railwright.service")


@pytest.mark.parametrize("late", [False, True])
def test_a_boot_after_an_undoing_sets_nothing_of_it_again(node: Path, network: Network, late: bool) -> None:
    put(node, network, TWO)
    run_undo(node, "boot")
    network.calls.clear()
    (failure,) = at_boot(node, network, rails("10.1.0.2/24") if late else TWO).failures
    assert "nobody came back within 120 s" in failure.why
    assert network.calls == []
    assert list((node / NETWORKD[1:]).iterdir()) == []


def test_rails_that_have_other_names_by_now_are_the_same_change(node: Path, network: Network) -> None:
    put(node, network, TWO)
    run_undo(node, "boot")
    *files, entry = TWO
    named = [{**port, "netdev": port["label"]} for port in entry["ports"]]
    assert len(put(node, network, [*files, {**entry, "ports": named}]).failures) == 1


def test_the_boot_unit_that_the_run_starts_leaves_the_way_back(node: Path, network: Network) -> None:
    started: list[bool] = []

    def look(argv: Sequence[str]) -> Said:
        said = network(argv)
        if argv[:2] == ["networkctl", "reload"] and not started:
            started.append(True)
            # As in the middle of the run: the record says that the reload is still owed.
            shutil.copytree(node / "run", node / "run-kept", symlinks=True)
            shutil.rmtree(node / "run")
            (node / "run").mkdir()
            assert at_boot(node, network, TWO).failures == ()
            shutil.rmtree(node / "run")
            (node / "run-kept").rename(node / "run")
        return said

    apply({"rail_network": TWO}, root=str(node), runner=network.systemctl, tools=look)
    assert started
    assert (node / UNDO).exists()
    assert (node / MARK[1:] / "armed").exists()


def test_after_another_network_stands_the_boot_may_set_it_again(node: Path, network: Network) -> None:
    put(node, network, TWO)
    confirmed(root=str(node), runner=network.systemctl)
    put(node, network, rails("10.9.0.2/24", "10.1.1.2/24"))
    run_undo(node)
    network._load()
    assert put(node, network, TWO).failures == (), "the policy went back"
    network.addresses["enp24s0"].clear()
    assert at_boot(node, network, TWO).failures == ()
    assert network.addresses["enp24s0"] == {"10.1.0.2/24"}


def test_whoever_came_before_the_change_has_not_confirmed_it(node: Path, network: Network) -> None:
    """A second controller calls while the first one's run is still at work."""
    put(node, network, TWO)
    armed = node / MARK[1:] / "armed"
    told = json.loads(armed.read_text())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        born = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        armed.write_text(json.dumps({**told, "process": other.pid, "born": born}))
        confirmed(root=str(node), runner=network.systemctl)
        assert armed.exists()
    confirmed(root=str(node), runner=network.systemctl)
    assert not armed.exists()


def test_a_disk_that_is_full_while_it_arms_leaves_all_as_it_was(
    node: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(node / "etc")
    original = confirm._write

    def full(at: Any, path: str, text: str, mode: str) -> None:
        if path.endswith("/armed"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        original(at, path, text, mode)

    monkeypatch.setattr(confirm, "_write", full)
    outcome = put(node, network, TWO)
    assert any("No space left" in failure.why for failure in outcome.failures)
    assert "networkctl reload" not in network.calls
    assert "stop railwright-confirm-armed.timer" in network.stopped
    assert fingerprint(node / "etc") == before
    assert not (node / MARK[1:]).exists()


def test_a_disk_that_is_full_at_the_undoing_still_gives_the_old_file(node: Path, network: Network) -> None:
    put(node, network, TWO)
    confirmed(root=str(node), runner=network.systemctl)
    put(node, network, rails("10.9.0.2/24", "10.1.1.2/24"))
    script = node / UNDO
    script.write_text(script.read_text().replace("cp -p ", "false ", 1))
    run_undo(node)
    assert "10.1.0.2" in (node / NETWORKD[1:] / "70-railwright-rail0.network").read_text()


def test_a_change_that_is_being_undone_is_not_interrupted(node: Path, network: Network) -> None:
    put(node, network, TWO)
    (node / MARK[1:] / "armed").rename(node / MARK[1:] / "undoing")
    outcome = put(node, network, rails("10.9.0.2/24"))
    assert "is being undone just now" in str(outcome.failures)
    assert (node / UNDO).exists()
    run_undo(node)
    assert list((node / NETWORKD[1:]).iterdir()) == []


@pytest.mark.parametrize("way", [(100, "eno1", "default"), (101, "None", "default")])
def test_a_table_that_somebody_else_uses_is_named_and_nothing_is_written(
    node: Path, network: Network, way: tuple[int, str, str]
) -> None:
    """Whoever speaks by that table, a second way to the management network as often as not, would speak by the rail."""
    network.routes.add(way)
    for check in (True, False):
        told = [failure.why for failure in put(node, network, TWO, check=check).failures]
        assert any(f"table {way[0]} holds the route to default by {way[1]}" in why for why in told)
    assert network.calls == network.timers == []
    assert list((node / NETWORKD[1:]).iterdir()) == []


def test_the_mtu_goes_back_too(node: Path, network: Network) -> None:
    plant(node, "/sys/class/net/enp24s0/mtu", "1500\n")
    put(node, network, TWO)
    said = run_undo(node).splitlines()
    assert said.index("ip link set dev enp24s0 mtu 1500") < said.index("networkctl reload")


def test_a_dead_cable_takes_no_time_of_the_confirmation(node: Path) -> None:
    asked: list[str] = []
    folder = "/etc/NetworkManager/system-connections"
    paths = [f"{folder}/railwright-rail{rail}.nmconnection" for rail in (0, 1)]
    for path in paths:
        plant(node, path, "")

    def listen(argv: Sequence[str]) -> Said:
        asked.append(" ".join(argv))
        return Said(0)

    backends.reload(Node(str(node), None, listen), "networkmanager", paths, ["railwright-rail1"])
    assert asked[1:] == [
        "nmcli --wait 20 connection up id railwright-rail0",
        "nmcli --wait 0 connection up id railwright-rail1",
    ]


def test_without_a_time_nothing_is_armed(node: Path, network: Network) -> None:
    put(node, network, rails("10.1.0.2/24", seconds=0))
    assert network.calls == ["networkctl reload"]
    assert not (node / MARK[1:]).exists()


def test_an_address_that_somebody_took_away_comes_back_without_a_reload(node: Path, network: Network) -> None:
    put(node, network, TWO)
    confirmed(root=str(node), runner=network.systemctl)
    network.addresses["enp58s0"].clear()
    network.calls.clear()
    foretold = put(node, network, TWO, check=True)
    assert "0000:3a:00.0 lacks the address 10.1.1.2/24" in str(
        items(foretold, "rail_network")["network:rails"]
    )
    assert put(node, network, TWO).failures == ()
    assert network.calls == ["networkctl reconfigure enp58s0"]
    assert network.addresses["enp58s0"] == {"10.1.1.2/24"}


def test_a_backend_that_does_not_follow_is_named_with_what_is_missing(node: Path, network: Network) -> None:
    network.deaf = True
    (failure,) = put(node, network, TWO).failures
    assert "0000:18:00.0 lacks the address 10.1.0.2/24, the rule from 10.1.0.2 to table 100" in failure.why
    assert "networkd was told" in failure.why


def test_a_run_that_dies_before_the_reload_owes_it(node: Path, network: Network) -> None:
    class Killed(BaseException):
        pass

    def die(argv: Sequence[str]) -> Said:
        if argv[:2] == ["networkctl", "reload"]:
            raise Killed
        return network(argv)

    with pytest.raises(Killed):
        apply({"rail_network": TWO}, root=str(node), runner=network.systemctl, tools=die)
    network.calls.clear()
    assert put(node, network, TWO).failures == ()
    assert "networkctl reload" in network.calls


def test_a_revert_takes_away_what_the_backend_leaves(node: Path, network: Network) -> None:
    before = fingerprint(node)
    put(node, network, TWO)
    network.calls.clear()
    outcome = revert(["rail_network"], root=str(node), runner=network.systemctl, tools=network)
    assert outcome.failures == ()
    confirmed(root=str(node), runner=network.systemctl)
    assert fingerprint(node) == before
    assert network.addresses == {"enp24s0": set(), "enp58s0": set()}
    assert network.rules == set()
    assert network.routes == set()
    assert network.calls[0] == "networkctl reload"


def test_a_rail_that_left_the_policy_loses_its_address_and_the_other_is_left_alone(
    node: Path, network: Network
) -> None:
    put(node, network, TWO)
    outcome = put(node, network, rails("10.1.0.2/24"))
    assert outcome.failures == ()
    assert network.addresses == {"enp24s0": {"10.1.0.2/24"}, "enp58s0": set()}
    assert not any("enp24s0" in call for call in network.calls if call.startswith("ip"))


def test_a_rail_without_a_device_is_no_failure(node: Path, network: Network) -> None:
    shutil.rmtree(node / "sys/bus/pci/devices" / DEVICES[1])
    assert put(node, network, TWO).failures == ()
    assert not put(node, network, TWO).changed


GARBLED = ['Object "rule" is unknown', "{}", "[1]", "\x00\xff", "[" * 100_000, '[{"priority": "x"}]', "NaN"]


@pytest.mark.parametrize("asked", ["rule", "address", "route show table all"])
@pytest.mark.parametrize("text", GARBLED)
def test_an_answer_of_ip_that_is_none_is_told_in_clear_words_and_no_backend_is_told(
    node: Path, network: Network, asked: str, text: str
) -> None:
    network.answers[f"ip -N -j -4 {asked}"] = Said(0, text)
    outcome = put(node, network, TWO)
    if text.startswith("[{") and asked != "rule":
        assert outcome.failures == () or "lacks" in outcome.failures[0].why
        return
    (failure,) = [each for each in outcome.failures if "network:rails" in each.where]
    assert f"ip -N -j -4 {asked} answered" in failure.why or "has not the form" in failure.why
    assert network.calls == []
    assert list((node / NETWORKD[1:]).iterdir()) == []


def test_addresses_in_a_form_of_their_own_are_told_too(node: Path, network: Network) -> None:
    for text in ('[{"addr_info": 7}]', '[{"addr_info": [{"local": "10.1.0.2"}]}]', '[{"addr_info": [7]}]'):
        network.answers["ip -N -j -4 address"] = Said(0, text)
        told = {failure.where.split(" ")[0]: failure.why for failure in put(node, network, TWO).failures}
        assert "has not the form" in told["slices.rail_network[2]"], text


def test_networkmanager_is_told_of_changed_profiles_only(node: Path, network: Network) -> None:
    folder = "/etc/NetworkManager/system-connections"

    def entries(second: str) -> list[dict[str, Any]]:
        made = rails("10.1.0.2/24", second, backend="networkmanager")
        for rail, entry in enumerate(made[:2]):
            entry["path"] = f"{folder}/railwright-rail{rail}.nmconnection"
            entry["mode"] = "0600"
        made[2]["files"] = [entry["path"] for entry in made[:2]]
        return made

    network.addresses = {"enp24s0": {"10.1.0.2/24"}, "enp58s0": {"10.1.1.2/24"}}
    network.rules = {("10.1.0.2", 100, 10000), ("10.1.1.2", 101, 10004)}
    network.routes = {(100, "enp24s0", "10.1.0.0/24"), (101, "enp58s0", "10.1.1.0/24")}
    network.routes |= {(table, "", "unreachable default") for table in (100, 101)}
    assert put(node, network, entries("10.1.1.2/24")).failures == ()
    network.calls.clear()
    network.addresses["enp58s0"] = {"10.1.1.3/24"}
    network.rules.add(("10.1.1.3", 101, 10004))
    assert put(node, network, entries("10.1.1.3/24")).failures == ()
    assert network.calls[:2] == [
        "nmcli connection reload",
        "nmcli --wait 20 connection up id railwright-rail1",
    ]


def test_under_networkmanager_a_dead_cable_is_said_and_is_no_failure(node: Path, network: Network) -> None:
    plant(node, "/sys/class/net/enp24s0/carrier", "0\n")
    entry = rails("10.1.0.2/24", backend="networkmanager", seconds=0)[1]
    entry["files"] = []
    outcome = put(node, network, [entry])
    assert outcome.failures == ()
    assert "without a carrier" in items(outcome, "rail_network")["network:rails"]["note"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("backend", "ifupdown", "expected one of networkd"),
        ("mode", "both", "expected one of subnet"),
        ("confirm_seconds", -1, "out of range"),
        ("files", "x", "expected a list"),
        ("ports", [{}], "missing"),
        ("ports", [{**TWO[2]["ports"][0], "label": "../x"}], "expected a form like rail0"),
        ("ports", [{**TWO[2]["ports"][0], "address": "10.1.0.2/33"}], "expected a form like 10.100.0.2/24"),
        ("ports", [{**TWO[2]["ports"][0], "more": 1}], "unknown key"),
    ],
)
def test_an_entry_that_means_nothing_is_refused_with_its_place(
    node: Path, network: Network, key: str, value: Any, said: str
) -> None:
    entry = {**TWO[2], key: value}
    with pytest.raises(InputError) as error:
        put(node, network, [entry])
    assert said in str(error.value)
    assert f"slices.rail_network[0].{key}" in error.value.where


def test_killed_before_any_program_the_next_run_ends_as_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every program that a first run and a later change call, one node each."""

    class Killed(BaseException):
        pass

    monkeypatch.setattr(network_item, "_SECONDS", 0.0)
    died = 0
    for deadly in range(40):
        node = make_node(tmp_path / str(deadly))
        lay_rails(node)
        network, count = Network(node), iter(range(1000))

        def die(
            argv: Sequence[str], network: Network = network, count: Any = count, last: int = deadly
        ) -> Said:
            if next(count) == last:
                raise Killed
            return network(argv)

        try:
            for entries in (TWO, rails("10.9.0.2/24", "10.1.1.2/24")):
                apply({"rail_network": entries}, root=str(node), runner=network.systemctl, tools=die)
        except Killed:
            died += 1
        wished = rails("10.9.0.2/24", "10.1.1.2/24")
        assert put(node, network, wished).failures == (), deadly
        assert network.addresses == {"enp24s0": {"10.9.0.2/24"}, "enp58s0": {"10.1.1.2/24"}}, deadly
        assert not put(node, network, wished).changed, deadly
        assert not (node / MARK[1:]).exists(), deadly
    assert 10 < died < 40
