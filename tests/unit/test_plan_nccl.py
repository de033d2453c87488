"""What NCCL is told about addresses and the fabric, what its file replaces, and what containers see of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover import discover
from railwright.node.discover.host import OUR_HEADER
from railwright.node.model import Facts, Finding, Gid, InputError, Plan, Policy, to_json
from railwright.plan import plan
from railwright.plan.nccl import conf_bytes
from tests.machinery import build
from tests.unit.plan_machines import Chassis, hgx

MACHINES = Path(__file__).resolve().parents[1] / "machines"
LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe00:0001"


def _policy(nccl: dict[str, Any] | None = None, **more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", "nccl": nccl or {}, **more})


def _mapped(address: str) -> str:
    """The GID of an IPv4 address, as sysfs prints it."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a << 8 | b:04x}:{c << 8 | d:04x}"


def _table(*entries: tuple[int, str, str], netdev: str | None = None) -> tuple[Gid, ...]:
    return tuple(Gid(index, gid, kind, netdev) for index, gid, kind in entries)


def _usual(address: str) -> tuple[Gid, ...]:
    """As mlx5 lays them out: link-local in both versions, then the address in both (nccl#769)."""
    return _table(
        (0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2"), (2, _mapped(address), "v1"), (3, _mapped(address), "v2")
    )


def _roce(*tables: tuple[Gid, ...]) -> Facts:
    chassis = Chassis()
    for index, _ in enumerate(tables):
        switch = chassis.switch(0)
        chassis.gpu(switch)
        chassis.nic(switch, f"mlx5_{index}", link_layer="Ethernet", netdev=f"rail{index}")
    facts = chassis.facts()
    nics = tuple(replace(nic, gids=table) for nic, table in zip(facts.nics, tables, strict=True))
    return replace(facts, nics=nics)


def _of_gid(result: Plan) -> dict[str, str]:
    names = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY")
    return {name: result.nccl[name] for name in names if name in result.nccl}


def _said(result: Plan, code: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == code]


# ----- GIDs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "nccl", "written"),
    [
        # NCCL chooses by itself since 2.21, so nothing has to be said.
        (None, {}, {}),
        ("2.21.5", {}, {}),
        ("2.20.5", {}, {"NCCL_IB_GID_INDEX": "3"}),
        (None, {"addr_range": "10.1.0.0/16"}, {"NCCL_IB_ADDR_RANGE": "10.1.0.0/16"}),
        ("2.30.7", {"addr_range": "10.1.0.0/16"}, {"NCCL_IB_ADDR_RANGE": "10.1.0.0/16"}),
        # Older ones do not know ranges: the index is computed from it.
        ("2.19.3", {"addr_range": "10.1.0.0/16"}, {"NCCL_IB_GID_INDEX": "3"}),
        ("2.30.7", {"gid_index": 3, "addr_range": "10.1.0.0/16"}, {"NCCL_IB_GID_INDEX": "3"}),
    ],
)
def test_the_gid_is_left_to_nccl_told_by_range_or_computed(
    version: str | None, nccl: dict[str, Any], written: dict[str, str]
) -> None:
    facts = _roce(_usual("10.1.0.5"), _usual("10.1.1.5"))
    result = plan(facts, _policy({"version": version, **nccl}))
    assert _of_gid(result) == written
    assert not _said(result, "nccl.gid")


def test_a_second_address_needs_the_range() -> None:
    both = (*_usual("192.168.7.5"), *_table((4, _mapped("10.1.0.5"), "v1"), (5, _mapped("10.1.0.5"), "v2")))
    facts = _roce(both, both)
    unclear = plan(facts, _policy({"version": "2.20.5"}))
    assert _of_gid(unclear) == {}
    (asked,) = _said(unclear, "nccl.gid")
    assert asked.where == "mlx5_0, mlx5_1"
    assert "mlx5_0 3, 5" in asked.why
    assert "addr_range" in asked.remedy
    assert _of_gid(plan(facts, _policy({"version": "2.20.5", "addr_range": "10.1.0.0/16"}))) == {
        "NCCL_IB_GID_INDEX": "5"
    }


def test_ports_whose_index_differs_cannot_share_one() -> None:
    odd = _table((1, LINK_LOCAL, "v2"), (2, _mapped("10.1.1.5"), "v2"))
    result = plan(_roce(_usual("10.1.0.5"), odd), _policy({"version": "2.20.5"}))
    assert _of_gid(result) == {}
    (asked,) = _said(result, "nccl.gid")
    assert "mlx5_0 3; mlx5_1 2" in asked.why
    assert "2.21" in asked.remedy


def test_a_rail_without_an_address_is_named() -> None:
    bare = _table((0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2"))
    for version in (None, "2.20.5"):
        result = plan(_roce(_usual("10.1.0.5"), bare), _policy({"version": version}))
        assert [finding.where for finding in _said(result, "nccl.gid")] == ["mlx5_1"]
        assert _of_gid(result) == {}
    outside = plan(_roce(_usual("10.2.0.5")), _policy({"addr_range": "10.1.0.0/16"}))
    (named,) = _said(outside, "nccl.gid")
    assert "in 10.1.0.0/16" in named.why


def test_unreadable_and_strange_entries_are_skipped() -> None:
    # Some indices answer with an error (nccl#1538), some kernels print no kind.
    table = (
        Gid(0, "", None),
        Gid(1, "not a gid", "v2"),
        Gid(2, _mapped("10.1.0.5"), None),
        *_usual("10.1.0.5")[3:],
    )
    assert _of_gid(plan(_roce(table), _policy({"version": "2.20.5"}))) == {"NCCL_IB_GID_INDEX": "3"}


def test_a_gid_of_another_interface_on_the_port_does_not_count() -> None:
    vlan = _table((4, _mapped("10.9.0.5"), "v2"), netdev="rail0.100")
    facts = _roce((*_usual("10.1.0.5"), *vlan))
    assert _of_gid(plan(facts, _policy({"version": "2.20.5"}))) == {"NCCL_IB_GID_INDEX": "3"}
    meant = _policy({"version": "2.20.5", "addr_range": "10.9.0.0/16"})
    assert _of_gid(plan(facts, meant)) == {"NCCL_IB_GID_INDEX": "4"}


def test_rails_with_ipv6_addresses_only_are_told_as_such() -> None:
    # All GIDs of these ports are IPv6 (uccl PR#803): NCCL looks for IPv4 unless told.
    table = _table(
        (0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2"), (2, "fd93:0000:0000:0000:0ac0:ebff:fe00:0001", "v2")
    )
    assert _of_gid(plan(_roce(table), Policy())) == {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    ranged = plan(_roce(table), _policy({"addr_range": "fd93::/64"}))
    assert _of_gid(ranged) == {"NCCL_IB_ADDR_RANGE": "fd93::/64", "NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    assert _of_gid(plan(_roce(table), _policy({"version": "2.20.5"}))) == {"NCCL_IB_GID_INDEX": "2"}


def test_among_addresses_of_both_families_the_ipv4_one_counts_as_nccl_prefers_it() -> None:
    both = (*_usual("10.1.0.5"), *_table((5, "fd93:0000:0000:0000:0ac0:ebff:fe00:0001", "v2")))
    assert _of_gid(plan(_roce(both), _policy({"version": "2.20.5"}))) == {"NCCL_IB_GID_INDEX": "3"}
    assert _of_gid(plan(_roce(both), Policy())) == {}


def test_an_index_of_the_policy_that_is_link_local_is_said() -> None:
    result = plan(_roce(_usual("10.1.0.5"), _usual("10.1.1.5")), _policy({"gid_index": 1}))
    assert _of_gid(result) == {"NCCL_IB_GID_INDEX": "1"}
    assert [finding.where for finding in _said(result, "nccl.gid")] == ["mlx5_0", "mlx5_1"]


def test_infiniband_rails_have_no_gid_to_choose() -> None:
    result = plan(hgx(2).facts(), _policy({"version": "2.20.5", "addr_range": "10.1.0.0/16"}))
    assert _of_gid(result) == {}
    assert not _said(result, "nccl.gid")


def test_gids_that_a_witness_does_not_show_are_asked_for_only_where_they_are_needed() -> None:
    assert not _said(plan(_roce((), ()), Policy()), "nccl.gid")
    (asked,) = _said(plan(_roce((), ()), _policy({"version": "2.20.5"})), "nccl.gid")
    assert asked.where == "mlx5_0, mlx5_1"


@pytest.mark.parametrize("text", ["10.1.0.5/16", "10.1.0.0/33", "10.1", "0.0.0.0/0", "rails"])
def test_a_range_that_nccl_cannot_read_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(hgx(1).facts(), _policy({"addr_range": text}))
    assert caught.value.where == "policy.nccl.addr_range"


# ----- the fabric ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fabric", "written"), [("rail-only", "0"), ("rail-optimised", None), ("flat", None), (None, None)]
)
def test_rails_are_kept_apart_only_where_the_network_does(fabric: str | None, written: str | None) -> None:
    result = plan(hgx(2).facts(), _policy(network={"fabric": fabric}))
    assert result.nccl.get("NCCL_CROSS_NIC") == written


def test_a_fabric_that_nobody_knows_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        _policy(network={"fabric": "rail only"})
    assert caught.value.where == "policy.network.fabric"
    assert "rail-only" in caught.value.remedy


def test_a_list_longer_than_nccl_reads_is_an_error_and_not_cut() -> None:
    # NCCL keeps 1023 characters of a value, and half a name would match another device or none.
    facts = hgx(20, storage=0).facts()
    long = tuple(replace(nic, name="x" * 55 + nic.name, rdma="x" * 55 + nic.name) for nic in facts.nics)
    result = plan(replace(facts, nics=long), Policy())
    assert "NCCL_IB_HCA" not in result.nccl
    (said,) = _said(result, "nccl.hcas")
    assert said.severity == "error"


def test_an_empty_variable_of_the_policy_leaves_it_out() -> None:
    result = plan(
        hgx(1).facts(), _policy({"traffic_class": 106, "env": {"NCCL_IB_TC": "", "NCCL_DEBUG": "INFO"}})
    )
    assert "NCCL_IB_TC" not in result.nccl
    assert "NCCL_IB_TC" not in _files(result)["/etc/nccl.conf"]
    assert result.nccl["NCCL_DEBUG"] == "INFO"


# ----- somebody else's file ------------------------------------------------------------------------------------------


def _files(result: Plan) -> dict[str, str]:
    return {
        entry["path"]: entry["content"]
        for part in result.slices.values()
        for entry in part.entries
        if "content" in entry
    }


def _holding(conf: dict[str, str] | None) -> Facts:
    facts = hgx(1).facts()
    return replace(facts, host=replace(facts.host, nccl_conf=conf))


def test_what_another_owners_file_sets_and_the_plan_does_not_is_named() -> None:
    theirs = {"NCCL_IB_TC": "41", "NCCL_IB_HCA": "=mlx5_0:1", "NCCL_IB_TIMEOUT": "22"}
    (said,) = _said(plan(_holding(theirs), _policy({"traffic_class": 106})), "nccl.replaced")
    assert (said.severity, said.where) == ("warning", "/etc/nccl.conf")
    assert said.why == (
        "somebody else wrote this file, and the plan drops NCCL_IB_TIMEOUT=22 and changes NCCL_IB_TC from 41 to 106"
    )
    assert "policy.nccl.env" in said.remedy


def test_a_file_that_the_plan_agrees_with_is_replaced_in_silence() -> None:
    kept = _policy({"env": {"NCCL_IB_TIMEOUT": "22"}})
    theirs = {"NCCL_IB_TIMEOUT": "22", "NCCL_IB_HCA": "=mlx5_0:1"}
    assert not _said(plan(_holding(theirs), kept), "nccl.replaced")


@pytest.mark.parametrize(
    ("conf", "manage"), [(None, {}), ({}, {}), ({"NCCL_IB_TC": "41"}, {"nccl_conf": False})]
)
def test_nothing_is_said_where_nothing_is_replaced(
    conf: dict[str, str] | None, manage: dict[str, bool]
) -> None:
    assert not _said(plan(_holding(conf), _policy(manage=manage)), "nccl.replaced")


def test_a_node_tells_of_its_file_until_it_is_ours(tmp_path: Path) -> None:
    build(MACHINES / "2s_4xh100pcie_2xcx6", tmp_path / "tree")
    conf = tmp_path / "tree/etc/nccl.conf"
    assert discover(tmp_path / "tree").host.nccl_conf == {}
    # NCCL splits at the first equals sign, skips lines that begin with #, and a name's first value counts.
    conf.write_text("# ours\nNCCL_IB_HCA==mlx5_0:1\nNCCL_IB_TC=41\nNCCL_IB_TC=106\nnot a line\n #NCCL_X=1\n")
    facts = discover(tmp_path / "tree")
    assert facts.host.nccl_conf == {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_IB_TC": "41"}
    assert Facts.read(json.loads(json.dumps(to_json(facts)))) == facts
    result = plan(facts, Policy())
    assert [finding.where for finding in _said(result, "nccl.replaced")] == ["/etc/nccl.conf"]
    conf.write_text(_files(result)["/etc/nccl.conf"])
    assert discover(tmp_path / "tree").host.nccl_conf == {}


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    build(MACHINES / "2s_4xh100pcie_2xcx6", tmp_path / "tree")
    (tmp_path / "tree/etc/nccl.conf").mkdir(parents=True)
    assert discover(tmp_path / "tree").host.nccl_conf is None


def test_our_files_begin_as_the_reader_of_a_node_knows_them() -> None:
    assert conf_bytes({}, "").startswith(OUR_HEADER)


# ----- containers ----------------------------------------------------------------------------------------------------


def _cdi(text: str) -> dict[str, Any]:
    """A CDI file, by the rules of the specification (SPEC.md) for what ours uses."""
    spec: dict[str, Any] = json.loads(text)
    assert set(spec) == {"cdiVersion", "kind", "devices"}
    # env and mounts without a type are as old as 0.3.0; a reader refuses versions that it does not know.
    assert spec["cdiVersion"] == "0.3.0"
    vendor, _, kind = spec["kind"].partition("/")
    for name in (vendor, kind, *(device["name"] for device in spec["devices"])):
        assert name[0].isalpha()
        assert name[-1].isalnum()
        assert all(character.isalnum() or character in "_-." for character in name)
    for device in spec["devices"]:
        assert set(device) == {"name", "containerEdits"}
        edits = device["containerEdits"]
        assert edits
        assert set(edits) <= {"env", "mounts"}
        assert all("=" in variable for variable in edits.get("env", []))
        for mount in edits.get("mounts", []):
            assert set(mount) == {"hostPath", "containerPath", "options"}
    return spec


def test_containers_see_order_configuration_and_topology_file() -> None:
    facts = hgx(1, storage=0).facts()
    nccl = {"version": "2.30.7", "loaded_links": {facts.gpus[0].address: "gen5 x16"}}
    files = _files(plan(facts, _policy(nccl)))
    (device,) = _cdi(files["/etc/cdi/railwright-nccl.json"])["devices"]
    carried = ["/etc/railwright/nccl-topology.xml", "/etc/nccl.conf"]
    assert device["containerEdits"]["env"] == ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    assert [mount["hostPath"] for mount in device["containerEdits"]["mounts"]] == carried
    # At their own path, since the configuration names the other file by it; and nobody in there writes them.
    for mount in device["containerEdits"]["mounts"]:
        assert mount["containerPath"] == mount["hostPath"]
        assert "ro" in mount["options"]
    lines = files["/etc/enroot/mounts.d/60-railwright-nccl.fstab"].splitlines()
    assert [line.split()[:3] for line in lines] == [[path, path, "none"] for path in carried]
    assert all({"bind", "ro", "x-create=file", "nofail"} <= set(line.split()[3].split(",")) for line in lines)
    assert all(path in files for path in carried)
    assert files["/etc/enroot/environ.d/60-railwright-gpu-order.env"] == "CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
    _cdi(files["/etc/cdi/railwright-gpu-order.json"])


def test_devices_of_all_our_cdi_files_have_one_kind_and_different_names() -> None:
    texts = [
        text for path, text in _files(plan(hgx(1).facts(), Policy())).items() if path.startswith("/etc/cdi/")
    ]
    specs = [_cdi(text) for text in texts]
    assert {spec["kind"] for spec in specs} == {"railwright/node"}
    names = [device["name"] for spec in specs for device in spec["devices"]]
    assert len(names) == len(set(names)) == 2


@pytest.mark.parametrize(
    ("containers", "folders"),
    [(["cdi"], {"cdi"}), (["enroot"], {"enroot"}), ([], set()), (["cdi", "enroot"], {"cdi", "enroot"})],
)
def test_only_the_runtimes_that_the_policy_names_get_files(containers: list[str], folders: set[str]) -> None:
    paths = _files(plan(hgx(1).facts(), _policy(containers=containers)))
    assert {path.split("/")[2] for path in paths if path.split("/")[2] in ("cdi", "enroot")} == folders


def test_a_slice_that_is_left_alone_leaves_containers_alone_too() -> None:
    files = _files(plan(hgx(1).facts(), _policy(manage={"gpu_order": False})))
    (device,) = _cdi(files["/etc/cdi/railwright-nccl.json"])["devices"]
    assert "env" not in device["containerEdits"]
    assert "/etc/cdi/railwright-gpu-order.json" not in files
    files = _files(plan(hgx(1).facts(), _policy(manage={"nccl_conf": False})))
    assert "/etc/cdi/railwright-nccl.json" not in files


def test_a_runtime_that_nobody_knows_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        _policy(containers=["docker"])
    assert caught.value.where == "policy.containers"
