"""What runs the node's network, and by which file each port runs: from processes, /run and /etc."""

from __future__ import annotations

from pathlib import Path

import pytest

from railwright.node.discover.managers import read_managers
from railwright.node.discover.tree import Tree, processes
from railwright.node.model import Facts, InputError, ManagedPort, Managers, Nic
from tests.unit.state_support import plant

ADDRESS = "0000:18:00.0"
RAIL = Nic("mlx5_0", ADDRESS, netdev="enp24s0")


def netdev(root: Path, name: str, index: int, address: str = ADDRESS, link: int | None = None) -> None:
    place = f"sys/devices/pci0000:15/{address}/net/{name}"
    plant(root, f"{place}/ifindex", f"{index}\n")
    plant(root, f"{place}/iflink", f"{index if link is None else link}\n")
    (root / "sys/class/net").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/net" / name).symlink_to(f"../../../{place}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    netdev(tmp_path, "enp24s0", 4)
    (tmp_path / "etc").mkdir()
    return tmp_path


def process(root: Path, number: int, name: str, network: str = "net:[1]") -> None:
    plant(root, f"proc/{number}/comm", f"{name}\n")
    (root / f"proc/{number}/ns").mkdir()
    (root / f"proc/{number}/ns/net").symlink_to(network)


def read(root: Path) -> Managers:
    tree = Tree(root)
    return read_managers(tree, (RAIL,), processes(tree))


def port(root: Path) -> ManagedPort:
    (found,) = read(root).ports
    return found


def test_a_tree_without_processes_tells_nothing_of_what_runs(root: Path) -> None:
    assert read(root).running is None


def test_managers_are_known_by_their_processes_in_the_nodes_own_network(root: Path) -> None:
    process(root, 1, "systemd")
    assert read(root).running == ()
    # The kernel cuts a name after 15 characters.
    process(root, 500, "systemd-network")
    assert read(root).running == ("systemd-networkd",)
    process(root, 900, "NetworkManager", "net:[77]")
    assert read(root).running == ("systemd-networkd",), "it runs in a container"
    process(root, 901, "NetworkManager")
    assert read(root).running == ("NetworkManager", "systemd-networkd")


def test_netplan_is_there_with_its_program_and_a_configuration(root: Path) -> None:
    assert read(root).netplan is False
    plant(root, "etc/netplan/50-cloud-init.yaml", "network: {}\n")
    assert read(root).netplan is False
    plant(root, "usr/libexec/netplan/generate", "")
    assert read(root).netplan is True


def test_udev_tells_path_and_link_file(root: Path) -> None:
    plant(
        root,
        "run/udev/data/n4",
        "E:ID_PATH=pci-0000:18:00.0\nE:ID_NET_LINK_FILE=/usr/lib/systemd/network/99-default.link\nG:systemd\n",
    )
    assert port(root) == ManagedPort(
        "enp24s0", ADDRESS, "pci-0000:18:00.0", "/usr/lib/systemd/network/99-default.link"
    )


def test_networkd_tells_the_file_by_which_a_link_runs(root: Path) -> None:
    plant(
        root,
        "run/systemd/netif/links/4",
        "# This is private data. Do not parse.\nADMIN_STATE=configured\n"
        "NETWORK_FILE=/run/systemd/network/10-netplan-all.network\n",
    )
    assert port(root).file == "/run/systemd/network/10-netplan-all.network"


def test_networkmanager_tells_the_profile_and_nothing_else_of_it_is_kept(root: Path) -> None:
    name = "etc/NetworkManager/system-connections/rail.nmconnection"
    plant(
        root,
        name,
        "[connection]\nid=rail\nuuid=9A3F06DC-0a5d-4a5c-8d5a-2f9d4a7d1c11\n[802-1x]\npassword=secret\n",
    )
    plant(
        root,
        "run/NetworkManager/devices/4",
        "[device]\nmanaged=true\nconnection-uuid=9a3f06dc-0a5d-4a5c-8d5a-2f9d4a7d1c11\n",
    )
    assert port(root).file == f"/{name}"
    assert "secret" not in str(read(root))


def test_ifupdown_and_ifcfg_know_an_interface_by_its_name(root: Path) -> None:
    plant(root, "etc/network/interfaces", "auto lo\niface lo inet loopback\n")
    assert port(root).file is None
    plant(root, "etc/network/interfaces.d/rails", "iface enp24s0 inet static\n  address 10.0.0.1/24\n")
    assert port(root).file == "/etc/network/interfaces.d/rails"
    plant(root, "etc/sysconfig/network-scripts/ifcfg-enp24s0", "DEVICE=enp24s0\n")
    assert port(root).file == "/etc/sysconfig/network-scripts/ifcfg-enp24s0"


def test_a_function_with_several_netdevs_is_crowded_and_a_child_does_not_count(root: Path) -> None:
    netdev(root, "ib0.8001", 9, link=4)
    assert read(root).crowded == ()
    netdev(root, "enp24s0npf0vf0", 10)
    assert read(root).crowded == (ADDRESS,)


def test_numbered_devices_that_are_no_ports_are_known_by_name(root: Path) -> None:
    for name in ("bond0", "rail1", "lo", "veth3f2a9c1", "docker0"):
        plant(root, f"sys/devices/virtual/net/{name}/ifindex", "20\n")
        (root / "sys/class/net" / name).symlink_to(f"../../devices/virtual/net/{name}")
    assert read(root).names == ("bond0", "docker0", "rail1")


def test_rules_for_rdma_names_are_somebody_elses_or_ours(root: Path) -> None:
    path = "etc/udev/rules.d/60-rdma-persistent-naming.rules"
    assert read(root).rdma_rules == ""
    plant(root, path, 'ACTION=="add", SUBSYSTEM=="infiniband", PROGRAM="rdma_rename %k NAME_PCI"\n')
    assert read(root).rdma_rules == f"/{path}"
    plant(root, path, "# Written by Railwright; changes made here are lost.\n")
    assert read(root).rdma_rules == ""
    (root / path).unlink()
    (root / path).symlink_to("/dev/null")
    assert read(root).rdma_rules == f"/{path}", "it masks the rule, which somebody meant"


def test_what_no_manager_wrote_is_passed_over(root: Path) -> None:
    plant(root, "run/systemd/netif/links/4", "\x00\xff===\n=\nNETWORK_FILE=\n")
    plant(root, "run/NetworkManager/devices/4", "[[[\nconnection-uuid\n")
    plant(root, "run/udev/data/n4", "E:\nE:=x\n")
    plant(root, "etc/network/interfaces", "iface\n" * 100)
    (root / "etc/network/interfaces.d/folder").mkdir(parents=True)
    assert port(root) == ManagedPort("enp24s0", ADDRESS)


@pytest.mark.parametrize("path", ["pci-*", "a b", "pci-0000:18:00.0\nName=evil", "x" * 200])
def test_a_path_that_files_would_read_as_something_else_is_no_fact(path: str) -> None:
    data = {
        "schema": "railwright.facts/1",
        "witnesses": [],
        "managers": {"ports": [{"netdev": "e0", "device": ADDRESS, "path": path}]},
    }
    with pytest.raises(InputError) as error:
        Facts.read(data)
    assert error.value.where == "facts.managers.ports[0].path"


def test_a_hardware_address_that_would_end_a_line_is_no_fact() -> None:
    nic = {"name": "mlx5_0", "mac": 'aa:bb:cc:00:00:01"\n      dhcp4: true'}
    with pytest.raises(InputError) as error:
        Facts.read({"schema": "railwright.facts/1", "witnesses": [], "nics": [nic]})
    assert error.value.where == "facts.nics[0].mac"
