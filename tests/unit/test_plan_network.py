"""On what NIC, network and NCCL have to agree: adaptive routing and SHARP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.node.model import Facts, Finding, Plan, Policy
from railwright.plan import plan
from tests.unit.plan_machines import Chassis, hgx


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


# What is told wherever the policy says nothing of the rails' addresses and traffic classes.
ASKING = ("rail_network.ask", "lossless.unmanaged")


def _found(result: Plan) -> list[Finding]:
    return [finding for finding in result.findings if finding.code not in ASKING]


def _codes(result: Plan) -> list[str]:
    return [finding.code for finding in _found(result)]


def _rails(layer: str | None) -> Facts:
    facts = hgx(2, storage=0).facts()
    return replace(facts, nics=tuple(replace(nic, link_layer=layer) for nic in facts.nics))


@pytest.mark.parametrize(
    ("layer", "routing", "nccl", "firmware"),
    [
        ("Ethernet", True, "1", {"ROCE_ADAPTIVE_ROUTING_EN": "1"}),
        ("Ethernet", False, "0", {"ROCE_ADAPTIVE_ROUTING_EN": "0"}),
        ("Ethernet", None, None, {}),
        # InfiniBand NICs have no such switch.
        ("InfiniBand", True, "1", {}),
        ("InfiniBand", False, "0", {}),
        ("InfiniBand", None, None, {}),
        (None, True, "1", {}),
    ],
)
def test_adaptive_routing_is_one_word_for_network_nccl_and_nic(
    layer: str | None, routing: bool | None, nccl: str | None, firmware: dict[str, str]
) -> None:
    result = plan(_rails(layer), _policy(network={"adaptive_routing": routing}))
    assert result.nccl.get("NCCL_IB_ADAPTIVE_ROUTING") == nccl
    assert (result.network.adaptive_routing, result.network.nic_firmware) == (routing, firmware)
    assert not _codes(result)


@pytest.mark.parametrize(
    ("layer", "routing", "nccl", "found"),
    [
        ("Ethernet", False, "1", True),
        ("InfiniBand", True, "0", True),
        ("Ethernet", None, "1", True),
        ("Ethernet", True, "1", False),
        # InfiniBand's default is 1, and a node cannot see the subnet manager's routing.
        ("InfiniBand", None, "1", False),
        ("Ethernet", None, "0", False),
    ],
)
def test_nccl_and_network_that_differ_about_adaptive_routing_are_found(
    layer: str, routing: bool | None, nccl: str, found: bool
) -> None:
    policy = _policy(network={"adaptive_routing": routing}, nccl={"env": {"NCCL_IB_ADAPTIVE_ROUTING": nccl}})
    result = plan(_rails(layer), policy)
    assert _codes(result) == (["network.adaptive_routing"] if found else [])
    assert result.nccl["NCCL_IB_ADAPTIVE_ROUTING"] == nccl


@pytest.mark.parametrize(
    ("layer", "network", "nics", "where"),
    [
        ("Ethernet", True, (True, False), "mlx5_1"),
        ("Ethernet", False, (True, True), "mlx5_0, mlx5_1"),
        ("Ethernet", True, (True, None), None),
        ("Ethernet", None, (True, False), None),
        # The setting is of RDMA over Ethernet alone.
        ("InfiniBand", True, (False, False), None),
    ],
)
def test_nics_whose_firmware_differs_from_the_network_about_adaptive_routing_are_named(
    layer: str, network: bool | None, nics: tuple[bool | None, bool | None], where: str | None
) -> None:
    facts = _rails(layer)
    facts = replace(
        facts,
        nics=tuple(replace(nic, adaptive_routing=on) for nic, on in zip(facts.nics, nics, strict=True)),
    )
    result = plan(facts, _policy(network={"adaptive_routing": network}))
    assert [finding.where for finding in _found(result)] == ([] if where is None else [where])
    if where is not None:
        assert _found(result)[0].code == "network.adaptive_routing"
        assert f"set ROCE_ADAPTIVE_ROUTING_EN={int(network or 0)}`" in _found(result)[0].remedy


@pytest.mark.parametrize(
    ("columns", "values", "known"),
    [
        ("Default  Current  Next Boot", "False(0)  True(1)  False(0)", True),
        ("Default  Current  Next Boot", "True(1)  False(0)  True(1)", False),
        # What the next boot brings is not what is.
        ("Next Boot", "True(1)", None),
    ],
)
def test_mlxconfig_tells_adaptive_routing_as_it_is_in_force(
    columns: str, values: str, known: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "mlxconfig.txt").write_text(
        "\nDevice #1:\n----------\n\nDevice type:        ConnectX7\nDevice:             0000:19:00.0\n\n"
        f"Configurations:      {columns}\n*       ROCE_ADAPTIVE_ROUTING_EN      {values}\n"
    )
    (nic,) = captures.read([tmp_path / "mlxconfig.txt"]).nics
    assert nic.adaptive_routing is known


@pytest.mark.parametrize(
    ("layer", "sharp", "known", "told_nccl", "found"),
    [
        ("InfiniBand", True, True, "1", []),
        ("InfiniBand", False, False, None, []),
        ("InfiniBand", None, None, None, []),
        ("Ethernet", None, False, None, []),
        ("Ethernet", True, False, None, ["network.sharp"]),
    ],
)
def test_sharp_is_asked_for_where_the_policy_says_that_it_is_and_the_rails_are_infiniband(
    layer: str, sharp: bool | None, known: bool | None, told_nccl: str | None, found: list[str]
) -> None:
    result = plan(_rails(layer), _policy(network={"sharp": sharp}))
    assert result.network.sharp is known
    assert result.nccl.get("NCCL_COLLNET_ENABLE") == told_nccl
    assert _codes(result) == found


def test_sharp_that_the_policys_own_variable_asks_for_over_ethernet_is_found() -> None:
    result = plan(_rails("Ethernet"), _policy(nccl={"env": {"NCCL_COLLNET_ENABLE": "1"}}))
    (found,) = _found(result)
    assert (found.code, found.where) == ("network.sharp", "policy.nccl.env.NCCL_COLLNET_ENABLE")


def test_rails_of_two_link_layers_have_no_sharp() -> None:
    facts = _rails("InfiniBand")
    facts = replace(facts, nics=(facts.nics[0], replace(facts.nics[1], link_layer="Ethernet")))
    nics = [{"match": nic.name, "role": "rail"} for nic in facts.nics]
    result = plan(facts, _policy(nics=nics, network={"sharp": True}))
    assert (result.network.link_layer, result.network.sharp) == ("mixed", False)
    assert _codes(result) == ["network.sharp"]


def test_a_node_without_rails_has_no_network_to_agree_with() -> None:
    chassis = Chassis()
    chassis.gpu(0)
    result = plan(chassis.facts(), Policy())
    assert (result.network.link_layer, result.network.sharp) == (None, None)
