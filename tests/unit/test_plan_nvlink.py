"""NVLink domains, where NVLS is, and what IMEX is told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.node.model import Fabric, Facts, Gpu, InputError, NvLink, NvlinkDomain, Plan, Policy, Witness
from railwright.node.model.facts import SCHEMA
from railwright.plan import plan
from railwright.plan.nvlink import told
from tests.unit.plan_machines import hgx

_PLACE = os.environ.get("RAILWRIGHT_CAPTURES", "")
RACK = "11111111-2222-3333-4444-555555555555"
READY = Fabric("Completed", "Success", "", 0)


def _policy(**more: Any) -> Policy:
    return Policy.read({"schema": "railwright.policy/1", **more})


def _gpus(links: Sequence[Sequence[int]], **more: Any) -> Facts:
    """A matrix of NVLinks between GPUs, 0 where there is none."""
    gpus = tuple(
        Gpu(
            f"GPU{a}",
            a,
            nvlinks=tuple(NvLink(f"GPU{b}", count) for b, count in enumerate(row) if count),
            **more,
        )
        for a, row in enumerate(links)
    )
    return Facts(SCHEMA, (Witness("nvidia-smi", "topo"),), gpus=gpus)


def _with(facts: Facts, fabric: Fabric | None, *only: int) -> Facts:
    return replace(
        facts,
        gpus=tuple(
            replace(gpu, fabric=fabric) if not only or gpu.index in only else gpu for gpu in facts.gpus
        ),
    )


def _domains(result: Plan) -> tuple[NvlinkDomain, ...]:
    assert result.nvlink.domains is not None
    return result.nvlink.domains


def _codes(result: Plan) -> list[str]:
    return [finding.code for finding in result.findings if finding.code != "nics.none"]


# -- domains --


def test_gpus_behind_nvswitches_are_one_domain_with_nccls_rate() -> None:
    result = plan(hgx(8).facts(), Policy())
    (domain,) = _domains(result)
    assert domain.gpus == tuple(f"GPU{index}" for index in range(8))
    assert (domain.kind, domain.links) == ("switch", 16)
    # 16 links of 20.6 GB/s (NCCL src/graph/topo.h, sm 90).
    assert domain.per_gpu_gbytes == pytest.approx(329.6)
    assert (result.nvlink.multi_node, domain.nvls, domain.cluster) == (None, None, None)


def test_a_pair_a_mesh_and_a_cube_mesh_are_told_apart() -> None:
    (pair,) = _domains(plan(_gpus([[0, 4], [4, 0]]), Policy()))
    assert (pair.kind, pair.links, pair.nvls) == ("pair", 4, False)
    (mesh,) = _domains(plan(_gpus([[4 * (a != b) for b in range(4)] for a in range(4)]), Policy()))
    assert (mesh.kind, mesh.links) == ("mesh", 12)
    # DGX-1 (V100), as `nvidia-smi topo -m` shows it: six links each, not to all.
    cube = [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ]
    (cube_mesh,) = _domains(plan(_gpus(cube), Policy()))
    assert (cube_mesh.kind, cube_mesh.links, len(cube_mesh.gpus)) == ("partial-mesh", 6, 8)


def test_two_bridged_pairs_are_two_domains_and_end_at_the_node() -> None:
    result = plan(_gpus([[0, 4, 0, 0], [4, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 0]]), Policy())
    assert [domain.gpus for domain in _domains(result)] == [("GPU0", "GPU1"), ("GPU2", "GPU3")]
    assert result.nvlink.multi_node is False


def test_a_matrix_that_tells_all_links_for_each_peer_shows_nvswitches() -> None:
    # 18 for each of 7 peers: 126 are more than any GPU has.
    (domain,) = _domains(plan(_gpus([[18 * (a != b) for b in range(8)] for a in range(8)], sm=90), Policy()))
    assert (domain.kind, domain.links) == ("switch", 18)
    assert domain.per_gpu_gbytes == pytest.approx(370.8)


def test_no_nvlink_and_nvlink_that_cannot_be_seen_are_two_things() -> None:
    none = plan(_gpus([[0, 0], [0, 0]]), Policy())
    assert (none.nvlink.domains, none.nvlink.multi_node) == ((), False)
    assert told(none.nvlink) == ("no NVLink between the GPUs",)
    facts = _gpus([[0, 0], [0, 0]])
    hidden = plan(replace(facts, gpus=tuple(replace(gpu, nvlinks=None) for gpu in facts.gpus)), Policy())
    assert (hidden.nvlink.domains, hidden.nvlink.multi_node) == (None, None)
    assert told(hidden.nvlink) == ()


def test_gpus_whose_links_a_cut_witness_hides_are_named() -> None:
    facts = _gpus([[0, 4, 0], [4, 0, 0], [0, 0, 0]])
    facts = replace(facts, gpus=(*facts.gpus[:2], replace(facts.gpus[2], nvlinks=None)))
    assert plan(facts, Policy()).nvlink.because.endswith("the links of GPU2 the witness does not show")


def test_a_gpu_that_lost_all_its_links_behind_nvswitches_is_named_with_the_links_of_its_peers() -> None:
    links = [[18 * (a != b and 2 not in (a, b)) for b in range(8)] for a in range(8)]
    result = plan(_gpus(links), Policy())
    (found,) = [finding for finding in result.findings if finding.code == "gpu.nvlinks"]
    assert (found.severity, found.where) == ("error", "GPU2")
    assert found.why == "GPU2 has 0 NVLinks where its peers have 18"
    assert "GPU2" not in _domains(result)[0].gpus


# -- the fabric, NVLS --


def test_nvls_is_there_where_hopper_gpus_are_behind_nvswitches_and_the_fabric_is_completed() -> None:
    result = plan(_with(hgx(4).facts(), READY), Policy())
    (domain,) = _domains(result)
    assert (domain.nvls, domain.cluster, domain.clique) == (True, "", 0)
    assert result.nvlink.multi_node is False
    assert not _codes(result)


@pytest.mark.parametrize(
    ("sm", "fabric", "nvls", "because"),
    [
        (80, READY, False, "NVLS needs Hopper"),
        (90, Fabric("In Progress"), False, "before the fabric is Completed"),
        (90, None, None, "only the driver tells"),
        (None, READY, None, "the witness does not tell"),
        (103, READY, True, "NVLS: Hopper or later"),
    ],
)
def test_nvls_is_unknown_where_anything_that_it_needs_is(
    sm: int | None, fabric: Fabric | None, nvls: bool | None, because: str
) -> None:
    (domain,) = _domains(plan(_with(hgx(4, sm=sm).facts(), fabric), Policy()))
    assert domain.nvls is nvls
    assert because in domain.because


def test_a_fabric_that_is_not_ready_is_an_error_at_each_gpu() -> None:
    facts = _with(_with(hgx(2).facts(), READY), Fabric("In Progress"), 1)
    (found,) = [finding for finding in plan(facts, Policy()).findings if finding.code == "nvlink.fabric"]
    assert (found.severity, found.where) == ("error", "GPU1")
    assert "(In Progress): CUDA cannot start there (error 802)" in found.why
    failed = _with(hgx(2).facts(), Fabric("Completed", "Unknown Error", "", 0))
    assert _codes(plan(failed, Policy())) == ["nvlink.fabric"] * 2
    # What the driver says of GPUs without NVSwitches.
    assert not _codes(plan(_with(hgx(2).facts(), Fabric("")), Policy()))


def test_cliques_of_one_node_are_domains_of_their_own_and_told() -> None:
    facts = hgx(4).facts()
    facts = _with(_with(facts, Fabric("Completed", "Success", "", 1), 0, 1), replace(READY, clique=2), 2, 3)
    result = plan(facts, Policy())
    assert [(domain.gpus, domain.clique) for domain in _domains(result)] == [
        (("GPU0", "GPU1"), 1),
        (("GPU2", "GPU3"), 2),
    ]
    (found,) = [finding for finding in result.findings if finding.code == "nvlink.cliques"]
    assert found.why.endswith("GPU0, GPU1 in this node.1; GPU2, GPU3 in this node.2")


def test_cliques_stay_apart_where_a_matrix_shows_links_between_them() -> None:
    # The matrix tells what is wired, the clique what may pass.
    facts = _gpus([[18 * (a != b) for b in range(4)] for a in range(4)])
    facts = _with(_with(facts, replace(READY, clique=1), 0, 1), replace(READY, clique=2), 2, 3)
    assert [domain.gpus for domain in _domains(plan(facts, Policy()))] == [("GPU0", "GPU1"), ("GPU2", "GPU3")]


@pytest.mark.parametrize(
    ("env", "sm", "code"),
    [
        ({"NCCL_NVLS_ENABLE": "1"}, 80, ["nccl.nvls"]),
        ({"NCCL_NVLS_ENABLE": "1"}, 90, []),
        ({"NCCL_NVLS_ENABLE": "2"}, 80, []),
        ({"NCCL_NVLS_ENABLE": "0"}, 80, []),
        ({"NCCL_MNNVL_ENABLE": "1"}, 90, ["nccl.mnnvl"]),
        ({"NCCL_MNNVL_ENABLE": "2"}, 90, []),
    ],
)
def test_what_nccl_is_told_to_use_and_is_not_there_is_found(
    env: dict[str, str], sm: int, code: list[str]
) -> None:
    facts = _with(hgx(2, sm=sm).facts(), READY)
    assert _codes(plan(facts, _policy(nccl={"env": env}))) == code


def test_nothing_is_written_for_what_nccl_finds_by_itself() -> None:
    told_nccl = plan(_with(hgx(2).facts(), READY), Policy()).nccl
    assert not {"NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_COLLNET_ENABLE"} & set(told_nccl)


@pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")
def test_a_real_hgx_h100_tells_its_fabric() -> None:
    # Its file says product_architecture Hopper, state Completed and a cluster UUID of zeros for all eight.
    result = plan(captures.read([Path(_PLACE) / "misc/aicr-nvidia-smi-q.xml"]), Policy())
    (domain,) = _domains(result)
    assert (len(domain.gpus), domain.kind, domain.nvls, domain.clique) == (8, "switch", True, 0)
    assert result.nvlink.multi_node is False


QUERY = """==============NVSMI LOG==============

Driver Version                            : 580.95.05
Attached GPUs                             : 2
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    Product Architecture                  : Blackwell
    Minor Number                          : 1
    PCI
        Bus Id                            : 00000008:01:00.0
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 11111111-2222-3333-4444-555555555555
GPU 00000009:01:00.0
    Product Name                          : NVIDIA GB200
    Product Architecture                  : Blackwell
    Minor Number                          : 0
    PCI
        Bus Id                            : 00000009:01:00.0
    Fabric
        State                             : In Progress
        Status                            : N/A
        CliqueId                          : N/A
        ClusterUUID                       : N/A
"""


def test_nvidia_smi_q_tells_the_fabric_and_the_device_files(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(QUERY)
    facts = captures.read([tmp_path / "q.txt"])
    assert [gpu.fabric for gpu in facts.gpus] == [
        Fabric("Completed", "Success", RACK, 32766),
        Fabric("In Progress"),
    ]
    # Blackwell is 10.0, 10.3 or 12.0: no one capability.
    assert [(gpu.minor, gpu.sm) for gpu in facts.gpus] == [(1, None), (0, None)]
    result = plan(facts, Policy())
    assert result.nvlink.multi_node is True
    assert [finding.where for finding in result.findings if finding.code == "nvlink.fabric"] == ["GPU1"]


# -- NVLink over nodes --


def _rack(clique: int | None = 4_000_000_004) -> Facts:
    facts = _with(hgx(2).facts(), Fabric("Completed", "Success", RACK, clique))
    nics = (replace(facts.nics[0], addresses=("10.0.0.11/24", "fd00::b/64")), *facts.nics[1:])
    return replace(facts, nics=nics)


def _listed(*nodes: str, clique: str = f"{RACK}.4000000004") -> Policy:
    return _policy(nvlink={"imex_nodes": {clique: list(nodes)}})


def test_imex_is_told_the_nodes_of_the_clique_in_the_policys_order() -> None:
    result = plan(_rack(), _listed("10.0.0.12", "10.0.0.11", "gpu-13.example.org"))
    assert result.nvlink.multi_node is True
    assert result.nvlink.imex_nodes == ("10.0.0.12", "10.0.0.11", "gpu-13.example.org")
    assert result.slices["imex"].entries == (
        {
            "kind": "file",
            "path": "/etc/nvidia-imex/nodes_config.cfg",
            "content": "10.0.0.12\n10.0.0.11\ngpu-13.example.org\n",
            "mode": "0644",
        },
    )
    assert not _codes(result)


def test_a_clique_that_the_policy_does_not_list_is_asked_for_by_its_key() -> None:
    for policy in (Policy(), _listed("10.0.0.11", clique=f"{RACK}.7")):
        result = plan(_rack(), policy)
        assert "imex" not in result.slices
        (asked,) = result.findings
        assert (asked.code, asked.where) == ("nvlink.imex", f"clique {RACK}.4000000004")
        assert f"policy.nvlink.imex_nodes: {{{RACK}.4000000004: [...]}}" in asked.remedy


@pytest.mark.parametrize(
    ("nodes", "written"),
    [
        (("10.0.0.12", "10.0.0.13"), False),
        (("10.0.0.12", "fd00:0:0::000b"), True),
        # A name may be this node's: only a resolver knows.
        (("10.0.0.12", "gpu-11"), True),
    ],
)
def test_a_list_without_this_node_is_an_error_where_that_is_certain(
    nodes: tuple[str, ...], written: bool
) -> None:
    result = plan(_rack(), _listed(*nodes))
    assert ("imex" in result.slices) is written
    assert [(finding.code, finding.severity) for finding in result.findings] == (
        [] if written else [("nvlink.imex", "error")]
    )


@pytest.mark.parametrize(("fabric", "severity"), [(READY, "warning"), (None, "info")])
def test_a_list_for_a_node_whose_nvlink_ends_there_is_not_written(
    fabric: Fabric | None, severity: str
) -> None:
    result = plan(_with(hgx(2).facts(), fabric), _listed("10.0.0.11"))
    assert "imex" not in result.slices
    assert [(finding.code, finding.severity) for finding in result.findings] == [("nvlink.imex", severity)]


def test_a_clique_without_a_number_is_not_guessed() -> None:
    result = plan(_rack(clique=None), _listed("10.0.0.11"))
    assert (result.nvlink.multi_node, result.nvlink.imex_nodes) == (True, ())


@pytest.mark.parametrize(
    ("nodes", "where"),
    [
        ({"rack1": ["10.0.0.1"]}, "policy.nvlink.imex_nodes.rack1"),
        ({f"{RACK}.x": []}, f"policy.nvlink.imex_nodes.{RACK}.x"),
        ({f"{RACK}.1": ["10.0.0.1", "a b"]}, f"policy.nvlink.imex_nodes.{RACK}.1[1]"),
        ({f"{RACK}.1": ["a\nb"]}, f"policy.nvlink.imex_nodes.{RACK}.1[0]"),
    ],
)
def test_a_list_that_cannot_be_written_is_an_input_error(nodes: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as error:
        _policy(nvlink={"imex_nodes": nodes})
    assert error.value.where == where
