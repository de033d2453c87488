"""Which CUDA toolkits and which NCCL a node gets, and what stands against them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railwright.node.check import cuda as check_cuda
from railwright.node.libraries import meant
from railwright.node.model import Cuda, Facts, Finding, InputError, Plan, Policy, to_json
from railwright.node.state.kinds import read_slices
from railwright.plan import cuda, nccl_library, packages
from railwright.plan.policy_bytes import canonical
from railwright.plan.stack import cuda as table
from railwright.plan.stack import generations, pairs
from tests.unit.stack_support import B200, H100, V100, machine

PCI_IDS = Path("/usr/share/misc/pci.ids")
B300, A100, A10 = "0x3182", "0x20b0", "0x2236"
BUILD = "ab" * 32
# NVIDIA's table of compute capabilities, by the letters of a chip's name.
CAPABILITIES = {
    "GP100": "6.0", "GP10": "6.1", "GV100": "7.0", "TU1": "7.5", "GA100": "8.0", "GA10": "8.6", "AD10": "8.9",
    "GH100": "9.0",
}  # fmt: skip


def policy(**more: Any) -> Policy:
    return Policy.read(more)


def toolkits(**more: Any) -> Policy:
    return policy(cuda={"toolkits": {"12.9": "12.9.1-1", "13.0": "13.0.2-1"}, **more})


def library(version: str = "2.30.4-1+cuda13.0", **more: Any) -> Policy:
    packages_ = {"libnccl2": version, "libnccl-dev": version}
    built = more.pop("built", None)
    return policy(nccl_library={"packages": packages_, "built": built}, **more)


def with_driver(facts: Facts, version: str) -> Facts:
    return replace(facts, host=replace(facts.host, driver=version))


def found(said: list[Finding], code: str) -> Finding:
    (one,) = (finding for finding in said if finding.code == code)
    return one


# ----- the table -----------------------------------------------------------------------------------------------------


def test_pci_ids_agrees_on_the_capability_of_every_chip_that_it_names() -> None:
    if not PCI_IDS.exists():
        pytest.skip("pci.ids is not installed")
    ours, seen = False, 0
    for line in PCI_IDS.read_text("utf-8", "replace").splitlines():
        if re.match(r"[0-9a-f]{4}  ", line):
            ours = line.startswith("10de")
        match = re.match(r"\t([0-9a-f]{4})  ([A-Z]{2}\d{3})", line) if ours else None
        key = next((key for key in CAPABILITIES if match and match[2].startswith(key)), None)
        # The families hold NVSwitches and sound functions beside the GPUs.
        if match and key and "NVSwitch" not in line and "[" in line and "Audio" not in line:
            seen += 1
            assert table.architecture("0x10de", f"0x{match[1]}") == CAPABILITIES[key], line
    assert seen > 250


@pytest.mark.parametrize("device", [None, "", "0x", "GH100", "0x2330 ", "0x12330"])
def test_what_is_no_device_id_is_no_chip(device: str | None) -> None:
    assert table.architecture("0x10de", device) is None


def test_every_chip_of_a_known_generation_has_a_capability_and_the_other_way_round() -> None:
    for number in range(0x1300, 0x3300):
        device = f"0x{number:04x}"
        if table.architecture("0x10de", device) is not None:
            assert generations.generation("0x10de", device) is not None, device


@pytest.mark.parametrize("toolkit", ["/usr/local/cuda-13.0"])
def test_a_real_compiler_makes_code_for_what_the_table_says_and_for_nothing_older(toolkit: str) -> None:
    if not shutil.which(f"{toolkit}/bin/nvcc"):
        pytest.skip("no nvcc 13.0 is installed")
    argv = [f"{toolkit}/bin/nvcc", "--list-gpu-code"]
    told = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    for capability in table.ARCHITECTURES:
        assert (f"sm_{capability.replace('.', '')}" in told) is table.knows("13.0", capability), capability


@pytest.mark.parametrize(
    ("toolkit", "gpus", "made", "without"),
    [
        ("13.0", ["9.0"], ["9.0"], []),
        ("13.0", ["10.0", "9.0", "9.0"], ["9.0", "10.0"], []),
        ("12.8", ["7.0", "10.0"], ["7.0", "10.0"], []),
        ("12.8", ["10.3"], ["10.0"], []),  # its own from 12.9 on; code of 10.0 runs on it
        ("12.6", ["9.0", "10.0"], ["9.0"], ["10.0"]),
        ("13.0", ["7.0", "9.0"], ["9.0"], ["7.0"]),
        ("11.8", ["8.9", "8.6", "8.0"], ["8.0", "8.6", "8.9"], []),
    ],
)
def test_code_is_made_for_the_gpus_of_the_fleet_as_far_as_the_toolkit_goes(
    toolkit: str, gpus: list[str], made: list[str], without: list[str]
) -> None:
    words, codes, none = table.gencode(toolkit, gpus)
    assert (list(codes), list(none)) == (made, without)
    numbers = [each.replace(".", "") for each in made]
    assert words == " ".join(f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers)


def test_versions_in_the_tables_rise() -> None:
    releases = [pairs.version(release) for release, _ in table.DRIVERS]
    drivers = [pairs.version(driver) for _, driver in table.DRIVERS]
    assert releases == sorted(releases)
    assert drivers == sorted(drivers)
    for release, driver in table.DRIVERS:
        least = table.least_driver(release)
        assert least is not None
        assert pairs.version(driver) >= pairs.version(least)


# ----- the slice cuda ------------------------------------------------------------------------------------------------


def test_toolkits_stand_side_by_side_and_the_newest_is_the_default() -> None:
    made, said = cuda.slice_of(with_driver(machine(H100), "580.95.05"), toolkits())
    assert made is not None, said
    assert [entry["kind"] for entry in made.entries] == [
        "file", "packages", "file", "alternative", "file", "linker_cache",
    ]  # fmt: skip
    by_kind = {entry["kind"]: entry for entry in made.entries}
    assert by_kind["packages"]["versions"] == {
        "cuda-toolkit-12-9": "12.9.1-1",
        "cuda-toolkit-13-0": "13.0.2-1",
    }
    assert by_kind["packages"]["hold"] is True
    assert by_kind["alternative"]["path"] == "/usr/local/cuda-13.0"
    (conf,) = (entry for entry in made.entries if entry.get("path", "").startswith("/etc/ld.so"))
    lines = [line for line in conf["content"].splitlines() if not line.startswith("#")]
    assert lines == ["/usr/local/cuda-13.0/lib64", "/usr/local/cuda-12.9/lib64"]
    assert not any("profile" in str(entry.get("path")) for entry in made.entries)
    read_slices({"cuda": list(made.entries)}, None)
    assert [finding.severity for finding in said] == []


def test_the_default_can_be_an_older_one_and_hides_a_newer_one_of_its_major() -> None:
    asked = policy(cuda={"toolkits": {"13.0": "13.0.2-1", "13.1": "13.1.0-1"}, "default": "13.0"})
    made, _ = cuda.slice_of(machine(H100), asked)
    assert made is not None
    (alternative,) = (entry for entry in made.entries if entry["kind"] == "alternative")
    (conf,) = (entry for entry in made.entries if entry.get("path") == cuda.LD_CONF)
    assert alternative["path"] == "/usr/local/cuda-13.0"
    assert "cuda-13.1" not in conf["content"]


def test_rpm_gets_the_same_packages_without_apts_files() -> None:
    from tests.unit.stack_support import software

    facts = replace(machine(H100), software=software(system="rpm"))
    made, _ = cuda.slice_of(facts, toolkits())
    assert made is not None
    assert [entry["kind"] for entry in made.entries] == ["packages", "alternative", "file", "linker_cache"]


def test_a_driver_too_old_for_the_major_version_refuses_with_what_works() -> None:
    made, said = cuda.slice_of(with_driver(machine(H100), "570.124.06"), toolkits())
    assert made is None
    error = found(said, "cuda.driver")
    assert (error.severity, error.where) == ("error", "policy.cuda.toolkits.13.0")
    assert "needs driver 580.65.06 or later, and this node has 570.124.06" in error.why


def test_the_driver_that_the_policy_installs_counts_and_not_the_one_that_is_loaded() -> None:
    asked = policy(cuda={"toolkits": {"13.0": "13.0.2-1"}}, driver={"version": "580.173.02"})
    made, said = cuda.slice_of(with_driver(machine(H100), "535.54.03"), asked)
    assert (made is not None, said) == (True, [])


def test_minor_version_compatibility_is_said_for_what_it_is() -> None:
    made, said = cuda.slice_of(with_driver(machine(H100), "580.65.06"), toolkits())
    assert made is not None
    told = found(said, "cuda.minor_version")
    assert told.severity == "info"
    assert "came with driver 580.95.05, and the node has 580.65.06" in told.why
    assert "PTX" in told.why


def test_the_forward_compatibility_package_takes_the_refusal_away_and_says_its_price() -> None:
    asked = policy(cuda={"toolkits": {"13.0": "13.0.2-1"}, "packages": {"cuda-compat-13-0": "580.95.05-1"}})
    made, said = cuda.slice_of(with_driver(machine(H100), "535.54.03"), asked)
    assert made is not None
    assert "data center GPUs alone" in found(said, "cuda.compat").why


def test_a_toolkit_that_knows_nothing_of_a_gpu_is_refused_and_one_that_nearly_does_is_not() -> None:
    made, said = cuda.slice_of(machine(V100), policy(cuda={"toolkits": {"13.0": "13.0.2-1"}}))
    assert made is None
    assert found(said, "cuda.architecture").remedy == "take CUDA 9.0 or later, before 13.0"
    made, said = cuda.slice_of(machine(B200), policy(cuda={"toolkits": {"12.6": "12.6.3-1"}}))
    assert made is None
    assert "compute capability 10.0" in found(said, "cuda.architecture").why
    made, said = cuda.slice_of(machine(B300), policy(cuda={"toolkits": {"12.8": "12.8.1-1"}}))
    assert made is not None
    assert "code for 10.0 runs there" in found(said, "cuda.architecture").why


def test_what_the_tables_do_not_reach_is_said_and_not_guessed() -> None:
    made, said = cuda.slice_of(machine("0x4000"), policy(cuda={"toolkits": {"13.9": "13.9.0-1"}}))
    assert made is not None
    assert {finding.code for finding in said} == {"cuda.driver", "cuda.unknown_gpu"}
    made, said = cuda.slice_of(machine(H100), policy(cuda={"toolkits": {"14.0": "14.0.0-1"}}))
    assert made is not None
    assert {finding.code for finding in said} == {"cuda.unknown"}


def test_a_policy_without_cuda_has_the_digest_that_it_had() -> None:
    assert '"cuda"' not in canonical(policy())
    assert '"nccl_library"' not in canonical(policy())
    assert '"cuda"' in canonical(toolkits())
    assert cuda.slice_of(machine(H100), policy()) == (None, [])
    assert nccl_library.slice_of(machine(H100), policy()) == (None, [])


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ({"cuda": {"toolkits": {"13": "13.0.2-1"}}}, "policy.cuda.toolkits"),
        ({"cuda": {"toolkits": {"13.0": "13.1.0-1"}}}, "policy.cuda.toolkits.13.0"),
        ({"cuda": {"toolkits": {"13.0": "13.0.*"}}}, "policy.cuda.toolkits.13.0"),
        ({"cuda": {"toolkits": {"13.0": "13.0.2-1"}, "default": "12.9"}}, "policy.cuda.default"),
        ({"cuda": {"part": "all"}}, "policy.cuda.part"),
        ({"cuda": {}}, "policy.cuda.toolkits"),
        ({"nccl_library": {}}, "policy.nccl_library.packages"),
        ({"nccl_library": {"packages": {"libnccl2": "latest version"}}}, "policy.nccl_library.packages.libnccl2"),
        (
            {"nccl_library": {"packages": {"libnccl2": "2"}, "built": {"sha256": "x", "architectures": ["9.0"]}}},
            "policy.nccl_library.built.sha256",
        ),
        (
            {"nccl_library": {"packages": {"libnccl2": "2"}, "built": {"sha256": BUILD, "architectures": []}}},
            "policy.nccl_library.built.architectures",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_told_with_its_place(words: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as told:
        policy(**words)
    assert told.value.where == where


@pytest.mark.parametrize(
    ("packages_", "wrong"),
    [
        ({"cuda": "13.0.2-1"}, True),
        ({"cuda-13-0": "13.0.2-1"}, True),
        ({"cuda-toolkit-13-0": "13.0.1-1"}, True),
        ({"cuda-toolkit-13-0": "13.0.2-1"}, False),
        ({"cuda-compat-13-0": "580.95.05-1"}, False),
    ],
)
def test_packages_that_undo_what_else_the_policy_says_are_refused(
    packages_: dict[str, str], wrong: bool
) -> None:
    made, said = cuda.slice_of(machine(H100), toolkits(packages=packages_))
    assert (made is None) == wrong
    (name,) = packages_
    assert [one.where for one in said if one.code == "cuda.packages"] == [
        f"policy.cuda.packages.{name}"
    ] * wrong


# ----- the slice nccl ------------------------------------------------------------------------------------------------


def test_prebuilt_packages_are_pinned_with_their_cuda_and_held() -> None:
    made, said = nccl_library.slice_of(with_driver(machine(H100), "580.95.05"), library())
    assert made is not None, said
    entry, hold = made.entries
    assert entry["versions"] == dict.fromkeys(("libnccl2", "libnccl-dev"), "2.30.4-1+cuda13.0")
    assert (entry["hold"], "libnccl" in hold["content"]) == (True, True)
    assert packages.sources_slice(machine(H100), library()) == (None, [])


def test_a_build_of_the_fleet_comes_from_a_folder_that_its_digest_names() -> None:
    asked = library(built={"sha256": BUILD, "architectures": ["9.0", "10.0"]})
    made, said = nccl_library.slice_of(machine(H100, B200), asked)
    assert made is not None, said
    assert made.entries[0]["sources"] == ["/etc/apt/sources.list.d/railwright-built-nccl.sources"]
    sources, _ = packages.sources_slice(machine(H100), asked)
    assert sources is not None
    file, index = sources.entries
    assert f"URIs: file:/var/lib/railwright/archives/{BUILD}\n" in file["content"]
    assert index["sources"] == [file["path"]]
    read_slices({"package_sources": list(sources.entries), "nccl": list(made.entries)}, None)


def test_a_build_without_code_for_a_gpu_of_the_node_is_refused() -> None:
    asked = library(built={"sha256": BUILD, "architectures": ["9.0"]})
    made, said = nccl_library.slice_of(machine(H100, B200), asked)
    assert made is None
    error = found(said, "nccl.architecture")
    assert "code for 9.0, and none for GPU1 (compute capability 10.0)" in error.why
    # Of one major number older code runs on a newer chip, and not the other way round.
    old = library(built={"sha256": BUILD, "architectures": ["8.0"]})
    assert nccl_library.slice_of(machine(A10), old)[0] is not None
    new = library(built={"sha256": BUILD, "architectures": ["8.6"]})
    assert nccl_library.slice_of(machine(A100), new)[0] is None


def test_nccl_for_a_cuda_that_the_driver_does_not_run_is_refused() -> None:
    made, said = nccl_library.slice_of(with_driver(machine(H100), "570.124.06"), library())
    assert made is None
    assert "CUDA 13.0 needs driver 580.65.06" in found(said, "nccl.driver").why


def test_packages_of_two_builds_are_refused() -> None:
    mixed = {"libnccl2": "2.30.4-1+cuda13.0", "libnccl-dev": "2.30.4-1+cuda12.9"}
    made, said = nccl_library.slice_of(machine(H100), policy(nccl_library={"packages": mixed}))
    assert made is None
    assert found(said, "nccl.cuda").severity == "error"


def test_a_conf_for_another_nccl_than_the_installed_one_is_said() -> None:
    _, said = nccl_library.slice_of(machine(H100), library(nccl={"version": "2.29.1"}))
    assert "written for NCCL 2.29.1, and 2.30.4 is installed" in found(said, "nccl.version").why
    _, said = nccl_library.slice_of(machine(H100), library(nccl={"version": "2.30.4"}))
    assert not [finding for finding in said if finding.code == "nccl.version"]


# ----- afterwards ----------------------------------------------------------------------------------------------------


def tree(root: Path, **files: str) -> Facts:
    """What discover reads of toolkits in a root. files: text by path, with a comma for each slash."""
    from railwright.node.discover.cuda import read_cuda
    from railwright.node.discover.tree import Tree

    for name, text in files.items():
        path = root / name.replace(",", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return replace(machine(H100), cuda=read_cuda(Tree(root)))


def test_toolkits_are_found_with_their_versions_whatever_tells_them(tmp_path: Path) -> None:
    local = tmp_path / "usr/local"
    facts = tree(
        tmp_path,
        **{
            "usr,local,cuda-13.0,version.json": '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}',
            "usr,local,cuda-13.0,bin,nvcc": "",
            "usr,local,cuda-12.9,include,cuda.h": "#define CUDA_VERSION 12090\n",
            "usr,local,cuda-11.0,version.txt": "CUDA Version 11.0.207\n",
            "usr,local,cuda-10.1,version.json": "[[[",
            "usr,local,cuda-samples,x": "",
        },
    )
    assert facts.cuda is not None
    assert [(each.path, each.version, each.compiler) for each in facts.cuda.toolkits] == [
        ("/usr/local/cuda-10.1", None, False),
        ("/usr/local/cuda-11.0", "11.0.207", False),
        ("/usr/local/cuda-12.9", "12.9", False),
        ("/usr/local/cuda-13.0", "13.0.2", True),
    ]
    assert (facts.cuda.default, facts.cuda.alternative, facts.cuda.stale_cache) == (None, None, None)
    (local / "cuda").symlink_to("cuda-12.9")
    record = tree(tmp_path, **{"var,lib,dpkg,alternatives,cuda": "manual\n/usr/local/cuda\n\n"})
    assert record.cuda is not None
    assert (record.cuda.default, record.cuda.alternative) == ("/usr/local/cuda-12.9", "manual")
    assert Facts.read(json.loads(json.dumps(to_json(record)))).cuda == record.cuda


def test_a_link_that_leads_elsewhere_and_a_cache_that_is_older_are_drift() -> None:
    made, _ = cuda.slice_of(machine(H100), toolkits())
    assert made is not None
    entries = [entry for entry in made.entries if entry["kind"] in ("alternative", "linker_cache")]
    good = Cuda(default="/usr/local/cuda-13.0", alternative="manual", stale_cache=False)
    for facts, wrong in (
        (good, []),
        (replace(good, default="/usr/local/cuda-12.9"), ["cuda.alternative"]),
        (replace(good, alternative="auto"), ["cuda.alternative"]),
        (replace(good, stale_cache=True), ["cuda.linker_cache"]),
    ):
        told = [
            answer
            for entry in entries
            for answer in check_cuda.KINDS[entry["kind"]](replace(machine(H100), cuda=facts), "cuda", entry)
        ]
        assert [answer.finding.code for answer in told if answer.finding is not None] == wrong
    unseen = [
        answer
        for entry in entries
        for answer in check_cuda.KINDS[entry["kind"]](machine(H100), "cuda", entry)
    ]
    assert [answer.seen for answer in unseen] == [False, False]


def test_a_plan_says_which_library_is_meant_and_another_one_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from railwright.cli import main
    from tests.unit.test_libraries import library as elf

    facts = with_driver(machine(H100), "580.95.05")
    asked = Policy.read(
        {
            "cuda": {"toolkits": {"13.0": "13.0.2-1"}},
            "nccl_library": {"packages": {"libnccl2": "2.30.4-1+cuda13.0"}},
        }
    )
    slices = {name: part.slice_of(facts, asked)[0] for name, part in (("cuda", cuda), ("nccl", nccl_library))}
    plan = {"schema": "railwright.plan/1", "status": "planned", "slices": to_json(slices)}
    assert meant(Plan.read(plan)) == (("libcudart", "13.0"), ("libnccl", "2.30.4"))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan), "utf-8")
    root = tmp_path / "root"
    site = "opt/env/lib/python3.12/site-packages"
    elf(
        root,
        f"{site}/torch/_C.cpython-312-x86_64-linux-gnu.so",
        "libnccl.so.2",
        rpath="$ORIGIN/../nvidia/nccl/lib",
    )
    elf(
        root,
        f"{site}/nvidia/nccl/lib/libnccl.so.2",
        soname="libnccl.so.2",
        text=b"\0NCCL version 2.28.9+cuda13.0\0",
    )
    words = ["audit", "libraries", "--root", str(root), "--plan", str(path)]
    assert main(words) == 1
    assert "2.30.4 is meant" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--expect", "libnccl=2.28"]) == 0
