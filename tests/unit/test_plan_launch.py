"""What launchers are given, each in the launcher's own way of counting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from railwright import captures
from railwright.node.model import Facts, InputError, Plan, Policy
from railwright.plan import LAUNCH_FORMS, gres_lines, launch_text, plan, rankfile
from railwright.plan.launch import torchrun_wrapper
from railwright.plan.logical import core_numbers
from tests.unit.plan_machines import Chassis, cores, hgx, with_cores

_PLACE = os.environ.get("RAILWRIGHT_CAPTURES", "")
# hwloc 2 does not read what hwloc 3 wrote.
_XML = [
    path
    for path in sorted(Path(_PLACE or "/nowhere").glob("hwloc_xml/*.xml"))
    if b'topology version="3' not in path.read_bytes()[:300]
]

# The small ones: a large tree is thousands of files. Offline CPUs, two kinds of cores, sockets without order are in.
_TREES = [
    path
    for path in sorted(Path(_PLACE or "/nowhere").glob("hwloc_sysfs/*.tar.bz2"))
    if path.stat().st_size < 20_000
]


def _facts(numbering: str = "half") -> Facts:
    """Two GPUs with rails, one on each of two sockets of 5 cores with two threads."""
    return with_cores(hgx(2, storage=0).facts(), *cores(sockets=2, nodes=2, each=5, numbering=numbering))


def test_each_rank_has_its_command_in_the_kernels_numbers_and_its_cores_in_hwlocs() -> None:
    # Core 0 of each socket stays with the system, the last two serve the NIC.
    result = plan(_facts(), Policy())
    assert [
        (rank.rank, rank.gpu, rank.nic, rank.rail, rank.cores, rank.command) for rank in result.ranks
    ] == [
        (0, "GPU0", "mlx5_0", 0, "1-2", "numactl --physcpubind=1-2,11-12 --preferred=0"),
        (1, "GPU1", "mlx5_1", 1, "6-7", "numactl --physcpubind=6-7,16-17 --preferred=1"),
    ]


@pytest.mark.parametrize("numbering", ["half", "odd-even", "pairs"])
def test_slurm_and_open_mpi_count_cores_whatever_the_kernel_numbers(numbering: str) -> None:
    # man gres.conf: core 0 is the first of the first socket, each number stands for all threads of the core.
    result = plan(_facts(numbering), Policy())
    assert gres_lines(result, "gpu-a").splitlines()[1:] == [
        "NodeName=gpu-a Name=gpu File=/dev/nvidia0 Cores=1-2",
        "NodeName=gpu-a Name=gpu File=/dev/nvidia1 Cores=6-7",
    ]
    assert rankfile(result, "gpu-a") == "rank 0=gpu-a slot=1-2\nrank 1=gpu-a slot=6-7\n"


def test_device_files_have_the_drivers_numbers_where_it_was_asked() -> None:
    facts = _facts()
    result = plan(facts, Policy())
    assert gres_lines(result, "n").startswith("# Device files in PCI order: the driver was not asked")
    swapped = replace(
        facts, gpus=tuple(replace(gpu, minor=minor) for gpu, minor in zip(facts.gpus, (1, 0), strict=True))
    )
    lines = gres_lines(plan(swapped, Policy()), "n").splitlines()
    assert [line.split()[2] for line in lines] == ["File=/dev/nvidia1", "File=/dev/nvidia0"]


def test_a_rank_without_a_numa_node_is_bound_by_taskset() -> None:
    facts = _facts()
    lost = replace(facts, gpus=tuple(replace(gpu, numa=None) for gpu in facts.gpus))
    assert all((rank.command or "").startswith("taskset -c ") for rank in plan(lost, Policy()).ranks)


def test_launchers_get_no_cores_where_they_are_unknown() -> None:
    result = plan(hgx(1).facts(), Policy())
    assert gres_lines(result, "n").splitlines()[1:] == ["NodeName=n Name=gpu File=/dev/nvidia0"]
    assert rankfile(result, "n") == ""
    assert launch_text(result, "table", None).splitlines()[1] == "0\tGPU0\tmlx5_0\t0\t-\t-\t-"


def _with_display() -> Plan:
    chassis = Chassis()
    chassis.gpu(0, class_code="0x030000", vendor="0x10de", device="0x1fb2")
    for node in (0, 1):
        switch = chassis.switch(node)
        chassis.gpu(switch, class_code="0x030200", vendor="0x10de", device="0x2330")
        chassis.nic(switch, f"mlx5_{node}")
    return plan(with_cores(chassis.facts(), *cores(2, 2, 5)), Policy())


def test_a_card_that_only_drives_a_screen_takes_no_rank_and_no_place_in_a_rank_file() -> None:
    result = _with_display()
    assert [rank.rank for rank in result.ranks] == [1, 2]
    # mpirun and torchrun count ranks from 0.
    assert rankfile(result, "n") == "rank 0=n slot=1-2\nrank 1=n slot=6-7\n"
    wrapper = torchrun_wrapper(result)
    assert "export CUDA_VISIBLE_DEVICES=1,2\n" in wrapper
    assert "--nproc-per-node=2 " in wrapper
    assert "Cores" not in gres_lines(result, "n").splitlines()[1]


def _run(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    told = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_DEVICE_ORDER'])"
    environment = {"PATH": os.environ["PATH"], **variables}
    command = ["sh", str(script), sys.executable, "-c", told]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_wrapper_binds_a_local_rank_to_its_cores_as_the_kernel_says(tmp_path: Path) -> None:
    result = plan(_facts(), Policy())
    cpu = min(os.sched_getaffinity(0))
    ranks = (replace(result.ranks[0], command=f"taskset -c {cpu}"), replace(result.ranks[1], command=None))
    script = tmp_path / "wrapper"
    script.write_text(torchrun_wrapper(replace(result, ranks=ranks)))
    assert _run(script, LOCAL_RANK="0").stdout == f"[{cpu}] PCI_BUS_ID\n"
    # A rank without cores of its own runs where it is.
    assert _run(script, LOCAL_RANK="1").stdout == f"{sorted(os.sched_getaffinity(0))} PCI_BUS_ID\n"


@pytest.mark.parametrize("variables", [{}, {"LOCAL_RANK": "2"}, {"LOCAL_RANK": ""}, {"LOCAL_RANK": "0 1"}])
def test_the_wrapper_refuses_a_local_rank_that_the_node_does_not_have(
    variables: Mapping[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "wrapper"
    script.write_text(torchrun_wrapper(plan(_facts(), Policy())))
    done = _run(script, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this node has 2 local ranks, counted from 0" in done.stderr


@pytest.mark.parametrize("host", ["a b", "a\nNodeName=x", "", "-a", "a;b", "a" * 300])
def test_a_host_that_is_no_name_goes_into_no_file(host: str) -> None:
    for form in ("gres", "rankfile"):
        with pytest.raises(InputError) as error:
            launch_text(plan(_facts(), Policy()), form, host)
        assert error.value.where == "host"


def test_a_form_that_needs_the_nodes_name_says_so() -> None:
    result = plan(_facts(), Policy())
    for form in ("gres", "rankfile"):
        with pytest.raises(InputError, match="host: the node's name is not known"):
            launch_text(result, form, None)
    with pytest.raises(InputError, match="expected one of table, gres, rankfile, torchrun"):
        launch_text(result, "pbs", "n")


@pytest.mark.parametrize("form", LAUNCH_FORMS)
def test_a_refused_plan_launches_nothing(form: str) -> None:
    refused = plan(_facts(), Policy.read({"expect": {"gpus": 4}}))
    with pytest.raises(InputError, match="was refused, so nothing can be launched by it: 2 of 4 GPUs"):
        launch_text(refused, form, "n")


# -- hwloc's own numbers --


def _as_hwloc_counts(*arguments: str) -> dict[int, int]:
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo is not installed")
    command = ["lstopo-no-graphics", *arguments, "--only", "core", "--cpuset"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers: dict[int, int] = {}
    for number, mask in re.findall(r"^Core L#(\d+).*cpuset=(\S+)$", told, re.MULTILINE):
        # The highest 32 CPUs first: 0x000000ff,,0x1.
        value = 0
        for word in mask.split(","):
            value = value << 32 | int(word or "0", 16)
        numbers |= {cpu: int(number) for cpu in range(value.bit_length()) if value >> cpu & 1}
    assert numbers
    return numbers


@pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")
@pytest.mark.parametrize("path", _XML, ids=lambda path: path.name)
def test_cores_have_hwlocs_numbers_on_machines_from_its_xml(path: Path) -> None:
    assert core_numbers(captures.read([path]).cpus) == _as_hwloc_counts("--input", str(path))


@pytest.mark.skipif(not _PLACE, reason="RAILWRIGHT_CAPTURES is not set")
@pytest.mark.parametrize("path", _TREES, ids=lambda path: path.name)
def test_cores_have_hwlocs_numbers_on_machines_from_their_sysfs(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        # Processors and nodes are all that is asked for; the PCI tree is thousands of files.
        wanted = [entry for entry in archive if re.search(r"/(?:proc|sys/devices/system)/", entry.name)]
        archive.extractall(tmp_path, wanted, filter="tar")
    (root,) = tmp_path.iterdir()
    assert core_numbers(captures.read([path]).cpus) == _as_hwloc_counts(
        "--if", "fsroot", "--input", str(root)
    )
