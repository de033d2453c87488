"""Names of the rails: .link files by the place in the chassis, and what keeps its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railwright.node.model import InputError, Policy
from tests.unit.rail_machines import codes, files, managers, node, planned

LINK = "/etc/systemd/network/70-railwright-rail{}.link"
RULES = "/etc/udev/rules.d/60-rdma-persistent-naming.rules"


def test_without_a_prefix_no_rail_is_named() -> None:
    assert "rail_names" not in planned(node()).slices


def test_a_rail_is_named_by_its_place_with_these_bytes() -> None:
    facts = node()
    made = planned(facts, prefix="rail")
    first, second = (nic.address for nic in facts.nics if nic.rdma is not None)
    assert files(made, "rail_names")[LINK.format(0)] == (
        "# Written by Railwright; changes made here are lost.\n"
        "# Rail 0: the card in this place of the chassis, whichever it is. Further names keep what was written for the"
        " old one.\n"
        "[Match]\n"
        f"Path=pci-{first}\n"
        "Type=ether\n"
        "\n"
        "[Link]\n"
        "Name=rail0\n"
        "AlternativeNamesPolicy=database onboard slot path\n"
    )
    assert f"Path=pci-{second}\n" in files(made, "rail_names")[LINK.format(1)]


def test_names_need_a_reboot_and_a_new_initramfs() -> None:
    part = planned(node(), prefix="rail").slices["rail_names"]
    assert part.stage == "persistent"
    *written, image = part.entries
    assert all(entry["reboot"] for entry in written)
    assert image == {
        "kind": "initramfs",
        "name": "rail_names",
        "inputs": [LINK.format(0), LINK.format(1), RULES],
    }


def test_udevs_own_path_is_taken_where_it_is_known() -> None:
    facts = node()
    path = "platform-NVDA2023.00-pci-0002:01:00.0"
    ports = tuple(
        replace(port, path=path) if port.netdev == "enp0s0np0" else port for port in facts.managers.ports
    )
    facts = replace(facts, managers=replace(facts.managers, ports=ports))
    assert f"Path={path}\n" in files(planned(facts, prefix="rail"), "rail_names")[LINK.format(0)]


def test_the_old_names_are_told_with_the_new_ones_until_the_reboot() -> None:
    facts = node()
    (told,) = (each for each in planned(facts, prefix="rail").findings if each.code == "rail_names.reboot")
    assert told.why == "at the next boot enp0s0np0 becomes rail0, enp1s0np0 becomes rail1"
    after = node(rail0={"netdev": "rail0"}, rail1={"netdev": "rail1"})
    assert codes(planned(after, prefix="rail"), "rail_names") == []


def test_the_files_are_the_same_before_and_after_the_reboot() -> None:
    before = planned(node(), prefix="rail")
    after = planned(node(rail0={"netdev": "rail0"}, rail1={"netdev": "rail1"}), prefix="rail")
    assert files(before, "rail_names") == files(after, "rail_names")


def test_the_management_route_keeps_its_device() -> None:
    facts = node(front=False, rail1={"default_route": True, "addresses": ("192.0.2.10/24",)})
    made = planned(facts, prefix="rail", policy={"nics": [{"match": "mlx5_1", "role": "rail"}]})
    assert ("rail_names.management", "enp1s0np0") in codes(made)
    assert list(files(made, "rail_names")) == [LINK.format(0), RULES]


def test_a_member_of_a_bond_keeps_its_name() -> None:
    made = planned(node(rail1={"master": "bond0"}), prefix="rail")
    assert ("rail_names.master", "enp1s0np0") in codes(made)
    assert LINK.format(1) not in files(made, "rail_names")


def test_somebody_elses_link_file_that_comes_first_is_named_and_not_fought() -> None:
    facts = node()
    theirs = {
        "enp0s0np0": "/run/systemd/network/10-netplan-eth0.link",
        "enp1s0np0": "/usr/lib/systemd/network/99-default.link",
    }
    facts = replace(facts, managers=managers(facts, ("systemd-networkd",), links=theirs))
    made = planned(facts, prefix="rail")
    (found,) = (each for each in made.findings if each.code == "rail_names.foreign")
    assert (found.where, "/run/systemd/network/10-netplan-eth0.link names it" in found.why) == (
        "enp0s0np0",
        True,
    )
    assert LINK.format(0) not in files(made, "rail_names")
    assert LINK.format(1) in files(made, "rail_names")


def test_a_virtual_function_and_a_subfunction_are_never_named() -> None:
    facts = node()
    rail = next(nic for nic in facts.nics if nic.rdma == "mlx5_0")
    virtual = replace(
        rail,
        name="mlx5_9",
        rdma="mlx5_9",
        netdev="enp0s0v0",
        address="0000:15:00.2",
        physical_function=rail.address,
        mac="aa:bb:cc:00:01:00",
    )
    made = planned(replace(facts, nics=(*facts.nics, virtual)), prefix="rail")
    assert "0000:15:00.2" not in str(made.slices["rail_names"].entries)


def test_several_netdevs_on_one_function_are_not_told_apart() -> None:
    facts = node()
    address = next(nic.address for nic in facts.nics if nic.rdma == "mlx5_0") or ""
    facts = replace(facts, managers=replace(facts.managers, crowded=(address,)))
    made = planned(facts, prefix="rail")
    assert ("rail_names.shared", "enp0s0np0") in codes(made)
    assert LINK.format(0) not in files(made, "rail_names")


def test_the_second_port_of_a_card_is_named_after_it_and_keeps_the_name_while_it_is_down() -> None:
    facts = node(rails=1)
    rail = next(nic for nic in facts.nics if nic.rdma == "mlx5_0")
    address = f"{(rail.address or '')[:-1]}1"
    for state in ("active", "down"):
        second = replace(
            rail,
            name="mlx5_1",
            rdma="mlx5_1",
            netdev="enp0s0np1",
            address=address,
            state=state,
            mac="aa:bb:cc:00:01:00",
        )
        device = next(device for device in facts.pci if device.address == rail.address)
        both = replace(facts, nics=(*facts.nics, second), pci=(*facts.pci, replace(device, address=address)))
        named = files(planned(both, prefix="rail"), "rail_names")
        assert f"Path=pci-{address}\n" in named[LINK.format("0p2")], state
        assert f"Path=pci-{rail.address}\n" in named[LINK.format(0)], state


def test_a_rail_that_is_down_keeps_its_file() -> None:
    facts = node(rail1={"state": "down"})
    address = next(nic.address for nic in facts.nics if nic.rdma == "mlx5_1")
    said = {"nics": [{"match": address, "role": "rail", "rail": 1}]}
    assert LINK.format(1) in files(planned(facts, prefix="rail", policy=said), "rail_names")


def test_a_name_that_another_device_has_is_an_error() -> None:
    facts = node()
    facts = replace(facts, managers=replace(facts.managers, names=("bond0", "rail1")))
    assert ("rail_names.taken", "enp1s0np0") in codes(planned(facts, prefix="rail"))


def test_a_policy_that_knows_a_rail_by_the_name_it_loses_is_told_before_the_reboot() -> None:
    made = planned(node(), prefix="rail", policy={"nics": [{"match": "enp1s0np0", "role": "rail"}]})
    (found,) = (each for each in made.findings if each.code == "rail_names.match")
    assert "policy.nics[0] knows it by this name, and would find nothing once it is rail1" in found.why
    assert LINK.format(1) not in files(made, "rail_names")


def test_infiniband_ports_are_left_to_their_rdma_names() -> None:
    facts = node(rail0={"link_layer": "InfiniBand"}, rail1={"link_layer": "InfiniBand"})
    assert list(files(planned(facts, prefix="rail"), "rail_names")) == [RULES]


def test_rdma_devices_keep_the_kernels_names_by_a_rule_that_renames_nothing() -> None:
    text = files(planned(node(), prefix="rail"), "rail_names")[RULES]
    assert [line for line in text.splitlines() if not line.startswith("#")] == []


def test_names_of_rdma_core_are_told_to_go() -> None:
    facts = node(rail0={"rdma": "rocep21s0"})
    assert ("rail_names.rdma_kernel", "rocep21s0") in codes(planned(facts, prefix="rail"))


def test_fixed_rdma_names_are_for_the_rails_alone_and_say_what_breaks() -> None:
    facts = node()
    made = planned(facts, prefix="rail", rdma_names="fixed")
    first, second = (nic.address for nic in facts.nics if nic.rdma is not None)
    rules = [line for line in files(made, "rail_names")[RULES].splitlines() if not line.startswith("#")]
    assert rules == [
        f'ACTION=="add", SUBSYSTEM=="infiniband", DEVPATH=="*/{address}/infiniband/*", '
        f'PROGRAM="rdma_rename %k NAME_FIXED rail{rail}"'
        for rail, address in enumerate((first, second))
    ]
    (found,) = (each for each in made.findings if each.code == "rail_names.rdma_fixed")
    assert found.severity == "warning"
    assert "NCCL_IB_HCA=mlx5 then matches nothing and NCCL falls back to TCP" in found.why


def test_rdma_names_as_they_are_write_no_rule() -> None:
    assert RULES not in files(planned(node(), prefix="rail", rdma_names="as-is"), "rail_names")


def test_somebody_elses_rules_for_rdma_names_stay() -> None:
    facts = node()
    facts = replace(facts, managers=replace(facts.managers, rdma_rules=RULES))
    made = planned(facts, prefix="rail", rdma_names="fixed")
    assert ("rail_names.rdma_foreign", RULES) in codes(made)
    assert list(files(made, "rail_names")) == [LINK.format(0), LINK.format(1)]


def test_left_alone_it_is_said_and_nothing_else_counts_on_the_names() -> None:
    addresses = [{"rail": 0, "address": "10.1.0.2/24"}]
    made = planned(node(), prefix="rail", addresses=addresses, policy={"manage": {"rail_names": False}})
    assert "rail_names" not in made.slices
    assert codes(made, "rail_names") == [("rail_names.unmanaged", "rail_names")]
    assert "rail0.arp" not in str(made.slices["sysctls"].entries)


@pytest.mark.parametrize(
    "prefix",
    ["eth", "en", "ib", "mlx", "lo", "bondage", "enrail", "rail0", "Rail", "r/ail", "", "railwrightrails"],
)
def test_a_prefix_of_the_kernels_name_space_is_refused(prefix: str) -> None:
    with pytest.raises(InputError) as error:
        Policy.read({"rails": {"prefix": prefix}})
    assert error.value.where == "policy.rails.prefix"


def test_the_longest_name_fits_into_a_netdevs() -> None:
    made = planned(node(), prefix="gpurailpath")
    assert made.status == "planned"
    lines = [line for text in files(made, "rail_names").values() for line in text.splitlines()]
    assert {line for line in lines if line.startswith("Name=")} == {"Name=gpurailpath0", "Name=gpurailpath1"}
    # The longest name of all, of rail 63's fourth port, must fit: one letter more and the policy is refused.
    assert len("gpurailpath63p4") == 15
    with pytest.raises(InputError):
        Policy.read({"rails": {"prefix": "gpurailpaths"}})
