"""Several witnesses of one machine: they agree, fill each other, contradict each other on record, or are refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from railwright.captures import read
from railwright.cli import main
from railwright.node.model import Facts, InputError, Policy, to_json
from railwright.plan import plan
from tests.machinery import build_from_nccl_xml
from tests.unit import witness_samples as samples
from tests.unit.captures_text import captures_folder


def together(folder: Path, *texts: str) -> Facts:
    """What the readers make of these texts of one machine."""
    paths = [folder / f"capture{n}" for n in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return read(paths)


def rails(facts: Facts) -> dict[str, tuple[str, ...]]:
    result = plan(facts, Policy())
    assert result.status == "planned", [finding.why for finding in result.refusals]
    return {gpu.name: gpu.nics for gpu in result.gpus}


RIGHT = {"GPU0": ("mlx5_0",), "GPU1": ("mlx5_1",)}
# Witnesses that show the tree, and names for their NICs where they have none.
TREES = {
    "nccl-xml": (samples.NCCL,),
    "hwloc": (samples.HWLOC,),
    "lspci": (samples.LSPCI, samples.IBDEV_V),
    "lspci -nn and -t": (samples.LSPCI_NN, samples.LSPCI_TREE, samples.IBDEV_V),
}


@pytest.mark.parametrize("texts", TREES.values(), ids=list(TREES))
def test_each_witness_of_the_tree_gives_the_same_pairs(tmp_path: Path, texts: tuple[str, ...]) -> None:
    assert rails(together(tmp_path, *texts)) == RIGHT


def test_every_witness_of_the_machine_fits_every_other_one(tmp_path: Path) -> None:
    facts = together(tmp_path, *samples.ALL.values())
    assert facts.conflicts == ()
    assert len(facts.gpus) == len(facts.nics) == 2
    assert len(facts.witnesses) == len(samples.ALL)
    gpu, nic = facts.gpus[0], facts.nics[0]
    assert (gpu.address, gpu.uuid, gpu.sm, gpu.numa) == ("0000:18:00.0", samples.UUIDS[0], 90, 0)
    assert (nic.name, nic.address, nic.netdev) == ("mlx5_0", "0000:19:00.0", "enp25s0np0")
    assert (nic.rate, nic.state, nic.firmware, nic.link_layer) == (
        400_000,
        "active",
        "28.41.1000",
        "InfiniBand",
    )
    assert [gid.index for gid in nic.gids] == [0, 3]
    assert len(facts.cpus.cores) == 4
    assert facts.host.product == "Dell Inc. PowerEdge XE9680"
    assert [irq.number for irq in facts.irqs] == [124, 224]
    assert rails(facts) == RIGHT
    assert Facts.read(to_json(facts)) == facts


def test_each_fact_that_is_not_the_first_witness_s_names_its_own(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.LSPCI, samples.IBDEV_V, samples.IBSTAT, samples.QUERY, samples.LSCPU)
    assert facts.witnesses[0].kind == "lspci"
    kind = {place: witness.partition(" ")[0] for place, witness in facts.sources.items()}
    assert kind["nics[mlx5_0].rdma"] == "ibdev2netdev"
    assert kind["nics[mlx5_0].rate"] == "ibstat"
    assert kind["gpus[GPU0].uuid"] == "nvidia-smi-q"
    assert kind["cpus.cores"] == "lscpu"
    assert kind["numa[0]"] == "lscpu"
    assert "gpus[GPU0].numa" not in kind
    assert not any("0000:19:00.0" in place for place in kind if place.startswith("nics"))


def test_the_order_in_which_files_are_named_does_not_matter(tmp_path: Path) -> None:
    texts = {"a": samples.HWLOC, "b": samples.IBSTAT, "c": samples.MATRIX}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    first, *others = (read([tmp_path / name for name in order]) for order in itertools.permutations(texts))
    assert all(other == first for other in others)


def test_a_matrix_takes_addresses_and_uuids_by_pci_order(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.MATRIX, samples.QUERY, samples.IBSTAT)
    assert [gpu.address for gpu in facts.gpus] == ["0000:18:00.0", "0000:9a:00.0"]
    # A matrix is planned by its words: functions without a tree would hide them.
    assert facts.pci == ()
    assert rails(facts) == {"GPU0": ("NIC0",), "GPU1": ("NIC1",)}
    assert [nic.rate for nic in facts.nics] == [400_000, 400_000]


# ruff: noqa: E501 (the samples stand as the tools print them)
# Each case: the texts, where the conflict must stand, what both say, and whether the plan must be refused for it.
PLANTED = {
    "the matrix says PIX where the XML says SYS": (
        (
            samples.NCCL,
            samples.MATRIX.replace("NV18\tPXB\tSYS", "NV18\tSYS\tPIX")
            .replace("NIC0\tPXB\tSYS", "NIC0\tSYS\tPXB")
            .replace("NIC1\tSYS\tPXB", "NIC1\tPIX\tSYS")
            .replace("GPU1\tNV18\t X \tSYS\tPXB", "GPU1\tNV18\t X \tPXB\tSYS"),
        ),
        "GPU0-mlx5_1",
        {"SYS", "PIX"},
        True,
    ),
    "two NUMA nodes": (
        (samples.LSPCI, samples.NCCL.replace('numaid="1"', 'numaid="7"').replace("000000f0", "00000f00")),
        "pci[0000:9a:00.0].numa",
        {"1", "7"},
        True,
    ),
    "another switch above": (
        (
            samples.LSPCI,
            samples.NCCL.replace("0000:16:00.0", "0000:98:00.0", 1).replace(
                'busid="0000:98:00.0" class="0x060400" vendor="0x11f8" device="0x4128" link_speed="32.0 GT/s PCIe" link_width="16">\n      <pci busid="0000:9a',
                'busid="0000:16:00.0" class="0x060400" vendor="0x11f8" device="0x4128" link_speed="32.0 GT/s PCIe" link_width="16">\n      <pci busid="0000:9a',
            ),
        ),
        "pci[0000:18:00.0].parent",
        {"0000:17:00.0 < 0000:16:00.0 < 0000:15:01.0", "0000:98:00.0"},
        True,
    ),
    "another rate": (
        (samples.NCCL, samples.IBSTAT.replace("Rate: 400", "Rate: 200", 1)),
        "nics[mlx5_0].rate",
        {"400000", "200000"},
        False,
    ),
    "another state": (
        (samples.HWLOC, samples.IBSTATUS.replace("4: ACTIVE", "2: INIT", 1)),
        "nics[mlx5_0].state",
        {"active", "init"},
        False,
    ),
    "one UUID of two": (
        (samples.HWLOC, samples.QUERY.replace(samples.UUIDS[1], samples.UUIDS[1][:-1] + "f")),
        "gpus[GPU1].uuid",
        {samples.UUIDS[1], samples.UUIDS[1][:-1] + "f"},
        False,
    ),
    "cores that pair differently": (
        (samples.HWLOC, samples.LSCPU.replace("1,0,0,0", "1,1,0,0").replace("2,1,0,0", "2,0,0,0")),
        "cpus.cores",
        None,
        False,
    ),
    "CPUs of a node": (
        (
            samples.HWLOC,
            samples.LSCPU.partition("# CPU")[0].replace(
                "CPU(s):               4-7", "CPU(s):               4-6"
            ),
        ),
        "numa[1].cpus",
        {"4-7", "4-6"},
        False,
    ),
    "an NVLink that is down": (
        (samples.MATRIX, samples.NVLINK.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>", 1)),
        "gpus[GPU0].nvlinks",
        {"18 links", "17 links up"},
        False,
    ),
    "a GPU that one does not see": (
        (samples.NCCL, samples.QUERY.replace("9A:00.0", "9C:00.0")),
        "gpus[0000:9c:00.0].address",
        {"no GPU there", "0000:9c:00.0"},
        True,
    ),
    "a slower slot": (
        (samples.LSPCI, samples.NCCL.replace("32.0 GT/s PCIe", "64.0 GT/s PCIe")),
        "pci[0000:18:00.0].link.max_speed",
        {"32.0", "64.0"},
        False,
    ),
}


@pytest.mark.parametrize(("texts", "where", "values", "refused"), PLANTED.values(), ids=list(PLANTED))
def test_a_planted_contradiction_is_found(
    tmp_path: Path, texts: tuple[str, ...], where: str, values: set[str] | None, refused: bool
) -> None:
    facts = together(tmp_path, *texts)
    found = {conflict.where: conflict for conflict in facts.conflicts}
    assert where in found
    if values is not None:
        assert {claim.value for claim in found[where].claims} == values
    assert len({claim.witness for claim in found[where].claims}) == 2
    result = plan(facts, Policy())
    said = [
        finding for finding in result.refusals if finding.code == "facts.conflict" and finding.where == where
    ]
    assert bool(said) == refused
    if not refused:
        assert any(finding.code == "facts.conflict" and finding.where == where for finding in result.findings)


def test_what_is_the_moment_s_or_has_another_meaning_is_no_contradiction(tmp_path: Path) -> None:
    # An idle link's speed (2.5 against 16 GT/s), and the slot's maximum where the function's own is higher.
    slower = samples.NCCL.replace("32.0 GT/s PCIe", "16.0 GT/s PCIe")
    assert together(tmp_path, samples.LSPCI, samples.QUERY, slower).conflicts == ()


STRANGERS = {
    "another host": (samples.HWLOC, samples.HWLOC.replace("node7", "node8"), "node7 and one of node8"),
    "no GPU in common": (
        samples.QUERY,
        samples.NCCL.replace("0000:18", "0000:28").replace("0000:9a", "0000:aa"),
        "",
    ),
    "no UUID in common": (samples.HWLOC, samples.QUERY.replace("GPU-1111", "GPU-2222"), "same UUID"),
    "no GUID in common": (samples.HWLOC, samples.IBSTAT.replace("0xa088", "0xb088"), "same GUID"),
    "no interface in common": (
        samples.HWLOC,
        samples.SHOW_GIDS.replace("enp25s0np0", "eth01").replace("enp155s0np0", "eth02"),
        "no RDMA device has the same interface in both (enp25s0np0 and eth01)",
    ),
    "other processors": (samples.HWLOC, samples.LSCPU.replace("143", "106"), "model 143 and 106"),
    "more GPUs": (samples.NCCL, samples.MATRIX.replace("\tNV18", "", 1).replace("GPU0\tGPU1", "GPU0", 1), ""),
    "nothing shared": (samples.NVLINK, samples.IBSTAT, "nothing shows that these are of one machine"),
    "an interface without a name": (samples.NCCL, samples.QOS.partition("\n")[2], "nothing shows"),
    "names that nothing ties": (samples.LSPCI, samples.IBSTAT, "nothing shows"),
}


@pytest.mark.parametrize(("first", "second", "why"), STRANGERS.values(), ids=list(STRANGERS))
def test_what_cannot_be_told_to_be_one_machine_is_refused_with_the_reason(
    tmp_path: Path, first: str, second: str, why: str
) -> None:
    with pytest.raises(InputError) as caught:
        together(tmp_path, first, second)
    assert "capture0" in caught.value.where or "capture1" in caught.value.where
    assert why in caught.value.why
    assert caught.value.remedy


def test_what_only_like_machines_share_is_said(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.NCCL, samples.IBSTATUS)
    assert any("is taken for the same machine by its RDMA devices' names" in note for note in facts.notes)
    facts = together(tmp_path, samples.HWLOC, samples.QUERY)
    assert not any("taken for the same machine" in note for note in facts.notes)
    facts = together(tmp_path, samples.LSCPU, samples.DMIDECODE)
    assert any("is taken for the same machine by its processor, which" in note for note in facts.notes)
    facts = together(tmp_path, samples.LSCPU, samples.INTERRUPTS)
    assert any("is taken for the same machine by its online CPUs, which" in note for note in facts.notes)
    with pytest.raises(InputError, match="nothing shows"):
        together(tmp_path, samples.INTERRUPTS, samples.DMIDECODE)


def test_one_interface_that_was_renamed_is_a_contradiction(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.HWLOC, samples.SHOW_GIDS.replace("enp25s0np0", "eth01"))
    assert "nics[mlx5_0].netdev" in {conflict.where for conflict in facts.conflicts}


def on_the_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> tuple[int, str, str]:
    """Exit status of `railwright plan a.txt b.xml c.txt`, what it printed in one line, and its errors."""
    for name, text in files.items():
        (folder / name).write_text(text)
    code = main(["plan", *(str(folder / name) for name in files)])
    said = capsys.readouterr()
    return code, " ".join(said.out.split()), said.err


def test_several_files_in_one_call_are_planned_and_a_person_reads_what_contradicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    files = {
        "a.txt": samples.MATRIX,
        "b.xml": samples.NCCL,
        "c.txt": samples.IBSTAT.replace("Rate: 400", "Rate: 200", 1),
    }
    code, out, _ = on_the_command_line(tmp_path, capsys, files)
    assert code == 0
    assert f"nccl-xml {tmp_path}/b.xml, nvidia-smi {tmp_path}/a.txt, ibstat {tmp_path}/c.txt" in out
    assert "facts.conflict at nics[mlx5_0].rate" in out
    assert f"nccl-xml {tmp_path}/b.xml says 400000; ibstat {tmp_path}/c.txt says 200000" in out
    assert "is taken for the same machine by its" in out


def test_files_of_two_machines_in_one_call_are_refused_with_both_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.xml": samples.HWLOC, "b.xml": samples.HWLOC.replace("node7", "node8")}
    code, out, error = on_the_command_line(tmp_path, capsys, files)
    assert (code, out) == (2, "")
    assert (
        f"{tmp_path}/a.xml, {tmp_path}/b.xml: these are not of one machine: one is of node7 and one of node8"
        in error
    )
    assert "give the captures of one machine, taken at one time" in error


def test_too_many_files_are_no_machine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="65 files"):
        read([tmp_path / str(n) for n in range(65)])


def test_the_recorded_tree_and_the_dump_that_it_is_built_from_agree(tmp_path: Path) -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    dump = folder / "nccl_xml/oci-bm-h100-8.xml"
    build_from_nccl_xml(dump, tmp_path / "machine")
    alone, built = read([dump]), read([tmp_path / "machine"])
    assert rails(built) == rails(alone)
    merged = read([dump, tmp_path / "machine"])
    assert merged.conflicts == ()
    assert [witness.kind for witness in merged.witnesses] == ["sysfs", "nccl-xml"]
    assert (len(merged.pci), len(merged.gpus), len(merged.nics)) == (len(built.pci), 8, 16)
    assert {gpu.sm for gpu in merged.gpus} == {90}
    assert rails(merged) == rails(alone)


def test_a_dump_and_the_interfaces_of_the_same_public_machine_fit(tmp_path: Path) -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    facts = read([folder / "nccl_xml/oci-bm-h100-8.xml", folder / "misc/ibdev2netdev-oci-h100.txt"])
    assert facts.conflicts == ()
    assert {nic.rdma: nic.netdev for nic in facts.nics}["mlx5_17"] == "rdma15"
    # The front end's two ports are in one of them only.
    assert {nic.rdma for nic in facts.nics if nic.address is None} == {"mlx5_2", "mlx5_11"}
    assert set(rails(facts)) == {f"GPU{n}" for n in range(8)}


def test_two_public_machines_are_not_merged() -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    with pytest.raises(InputError, match=r"not of one machine|nothing shows"):
        read([folder / "nccl_xml/oci-bm-h100-8.xml", folder / "nccl_xml/azure-ndv5-topo.xml"])
    with pytest.raises(InputError, match=r"not of one machine|nothing shows"):
        read([folder / "lspci/gpud-lspci-vvv.txt", folder / "misc/aicr-nvidia-smi-q.xml"])
