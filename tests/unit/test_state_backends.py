"""netplan: what it makes of its configuration is taken over for the rails alone, and no other link is told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from railwright.node.state import backends
from railwright.node.state.command import Said
from railwright.node.state.item import Node
from railwright.node.state.outcome import Refused
from tests.unit.state_support import make_node, plant

MADE = "/run/systemd/network"
RAIL = "10-netplan-railwright-rail0.network"
FRONT = "10-netplan-all-en.network"


class Netplan:
    """A netplan that makes these files of what it is told, below the folder that it is given."""

    def __init__(self, made: dict[str, str]) -> None:
        self.made = made
        self.calls: list[list[str]] = []
        self.told: set[str] = set()
        self.said = Said(0)

    def __call__(self, argv: Sequence[str]) -> Said:
        self.calls.append(list(argv))
        if argv[:3] == ["netplan", "generate", "--root-dir"]:
            root = Path(argv[3])
            self.told = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
            for name, text in self.made.items():
                plant(root, f"{MADE}/{name}", text, 0o640)
            return self.said
        return Said(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    node = make_node(tmp_path / "node")
    plant(node, "/etc/netplan/70-railwright-rails.yaml", "network: {}\n", 0o600)
    plant(node, "/etc/netplan/50-cloud-init.yaml", "network: {}\n")
    plant(node, "/etc/netplan/50-cloud-init.yaml.bak", "old\n")
    return node


def reload(root: Path, netplan: Netplan) -> None:
    backends.reload(Node(str(root), None, netplan), "netplan", [])


def stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def test_only_the_rails_files_are_taken_over_and_networkd_is_told_once(root: Path) -> None:
    front = plant(root, f"{MADE}/{FRONT}", "[Match]\nName=en*\n")
    before = stamp(front)
    netplan = Netplan({RAIL: "[Network]\nAddress=10.1.0.2/24\n", FRONT: "[Match]\nName=eth*\n"})
    reload(root, netplan)
    assert (root / MADE[1:] / RAIL).read_text() == "[Network]\nAddress=10.1.0.2/24\n"
    assert (root / MADE[1:] / RAIL).stat().st_mode & 0o777 == 0o640
    assert stamp(front) == before, "somebody else's change is not ours to bring into force"
    assert [call[:2] for call in netplan.calls] == [["netplan", "generate"], ["networkctl", "reload"]]
    assert netplan.told == {"etc/netplan/50-cloud-init.yaml", "etc/netplan/70-railwright-rails.yaml"}


def test_a_file_that_is_the_same_keeps_its_inode_so_that_networkd_leaves_the_link(root: Path) -> None:
    rail = plant(root, f"{MADE}/{RAIL}", "[Network]\n")
    before = stamp(rail)
    reload(root, Netplan({RAIL: "[Network]\n"}))
    assert stamp(rail) == before


def test_a_rail_that_left_the_configuration_leaves_networkds_too(root: Path) -> None:
    rail = plant(root, f"{MADE}/{RAIL}", "[Network]\n")
    reload(root, Netplan({}))
    assert not rail.exists()


def test_a_configuration_that_netplan_refuses_changes_nothing_and_its_words_are_told(root: Path) -> None:
    rail = plant(root, f"{MADE}/{RAIL}", "[Network]\n")
    netplan = Netplan({RAIL: "other\n"})
    netplan.said = Said(1, err="/etc/netplan/50-cloud-init.yaml:3:1: Invalid YAML: tabs are not allowed")
    with pytest.raises(Refused) as error:
        reload(root, netplan)
    assert "tabs are not allowed" in error.value.why
    assert rail.read_text() == "[Network]\n"
    assert [call[0] for call in netplan.calls] == ["netplan"]


def test_nothing_is_left_in_run(root: Path) -> None:
    before = set(os.listdir(root / "run"))
    reload(root, Netplan({}))
    assert set(os.listdir(root / "run")) - {"systemd"} == before


def test_a_node_without_the_program_says_so(root: Path) -> None:
    with pytest.raises(Refused) as error:
        backends.reload(Node(str(root), None, lambda argv: Said(None)), "networkmanager", [])
    assert error.value.why == "the node has no nmcli"
