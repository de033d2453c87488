"""Processors and NUMA nodes, from sysfs and cpuinfo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import Core, InputError, NumaNode, parse_cpulist
from tests.unit.small_machine import LEAST, plant

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def siblings(*groups: str) -> dict[str, str | bytes | None]:
    """Files of cores with these CPU lists."""
    files: dict[str, str | bytes | None] = {}
    for group in groups:
        for cpu in parse_cpulist(group, "test"):
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = group
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = "0"
    return files


def test_cores_have_siblings_socket_node_and_l3(tmp_path: Path) -> None:
    files = siblings("0,4", "1,5", "2,6", "3,7")
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = "0" if cpu % 4 < 2 else "1"
        files[f"{CPU}/cpu{cpu}/cache/index0/level"] = "1"
        files[f"{CPU}/cpu{cpu}/cache/index3/level"] = "3"
        files[f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list"] = "0-1,4-5" if cpu % 4 < 2 else "2-3,6-7"
    files |= {f"{CPU}/online": "0-7", f"{NODE}/node0/cpulist": "0-1,4-5", f"{NODE}/node1/cpulist": "2-3,6-7"}
    files |= {f"{NODE}/node0/distance": "10 21", f"{NODE}/node1/distance": "21 10"}
    files[f"{NODE}/node0/meminfo"] = "Node 0 MemTotal:       131841932 kB\nNode 0 MemFree:  5 kB\n"
    facts = discover(plant(tmp_path, files))
    assert facts.cpus.cores == (
        Core((0, 4), 0, 0, 0),
        Core((1, 5), 0, 0, 0),
        Core((2, 6), 1, 1, 2),
        Core((3, 7), 1, 1, 2),
    )
    assert facts.numa == (
        NumaNode(0, "0-1,4-5", (10, 21), 131841932 * 1024),
        NumaNode(1, "2-3,6-7", (21, 10), None),
    )


def test_offline_siblings_are_no_part_of_a_core(tmp_path: Path) -> None:
    files = {**siblings("0,2", "1,3"), f"{CPU}/online": "0-2", f"{CPU}/offline": "3", f"{CPU}/isolated": "\n"}
    cpus = discover(plant(tmp_path, files)).cpus
    assert [core.cpus for core in cpus.cores] == [(0, 2), (1,)]
    assert (cpus.online, cpus.offline, cpus.isolated) == ("0-2", "3", "")


def test_a_nodes_offline_cpus_are_left_out_where_the_kernel_lists_them(tmp_path: Path) -> None:
    files = {**siblings("0,2", "1,3"), f"{CPU}/online": "0-2", f"{NODE}/node0/cpulist": "0-3"}
    assert discover(plant(tmp_path, files)).numa[0].cpus == "0-2"


def test_a_memory_only_node_has_no_cpu(tmp_path: Path) -> None:
    files = {
        f"{NODE}/node2/cpulist": "\n",
        f"{NODE}/node0/distance": "10 80",
        f"{NODE}/node2/distance": "80 10",
    }
    assert [(node.id, node.cpus) for node in discover(plant(tmp_path, files)).numa] == [(0, "0-1"), (2, "")]


def test_a_kernel_without_numa_has_no_node(tmp_path: Path) -> None:
    facts = discover(plant(tmp_path, {f"{NODE}/node0/cpulist": None, f"{NODE}/node0/distance": None}))
    assert facts.numa == ()
    assert facts.cpus.cores == (Core((0, 1), 0, None, None),)


def test_masks_serve_where_lists_are_not_there(tmp_path: Path) -> None:
    files: dict[str, str | bytes | None] = {
        f"{CPU}/cpu0/topology/core_cpus_list": None,
        f"{CPU}/cpu0/topology/thread_siblings": "00000001,00000001\n",
        f"{CPU}/cpu0/cache/index3/level": "3",
        f"{CPU}/cpu0/cache/index3/shared_cpu_map": "00000001,00000001",
        f"{NODE}/node0/cpulist": None,
        f"{NODE}/node0/cpumap": "00000001,00000001\n",
        f"{NODE}/node0/distance": None,
        f"{CPU}/online": "0,32",
    }
    facts = discover(plant(tmp_path, files))
    assert facts.cpus.cores == (Core((0, 32), 0, 0, 0),)
    assert facts.numa == (NumaNode(0, "0,32"),)


def test_a_list_that_ends_with_a_nul_is_read(tmp_path: Path) -> None:
    assert discover(plant(tmp_path, {f"{NODE}/node0/cpulist": b"0-1\n\0"})).numa[0].cpus == "0-1"


def test_without_topology_no_core_is_guessed(tmp_path: Path) -> None:
    assert (
        discover(plant(tmp_path, {f"{CPU}/cpu1/topology/core_cpus_list": None} | siblings("0"))).cpus.cores
        == ()
    )


def test_online_is_derived_where_its_summary_is_not_there(tmp_path: Path) -> None:
    files = {
        **siblings("0", "1", "2"),
        f"{CPU}/online": None,
        f"{CPU}/cpu1/online": "0",
        f"{CPU}/cpu2/online": "1",
    }
    assert discover(plant(tmp_path, files)).cpus.online == "0,2"


EPYC = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : AMD EPYC\nflags : fpu lm"
GRACE = "CPU implementer : 0x41\nCPU architecture: {}\nCPU part : 0xd4f"
POWER9 = "processor : 0\ncpu : POWER9, altivec supported\nmodel : 8335-GTW"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EPYC, ("x86_64", "AuthenticAMD", 25, 17, "AMD EPYC")),
        (EPYC.replace(" lm", ""), (None, "AuthenticAMD", 25, 17, "AMD EPYC")),
        (GRACE.format("8"), ("aarch64", "0x41", 8, 0xD4F, None)),
        (GRACE.format("AArch64"), ("aarch64", "0x41", None, 0xD4F, None)),
        (POWER9, (None, None, None, None, "POWER9, altivec supported")),
    ],
)
def test_cpuinfo_of_each_architecture(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    cpus = discover(plant(tmp_path, {"proc/cpuinfo": text})).cpus
    assert (cpus.arch, cpus.vendor, cpus.family, cpus.model, cpus.model_name) == expected


@pytest.mark.parametrize(
    ("files", "where", "words"),
    [
        ({f"{CPU}/online": ""}, f"{CPU}/online", "names no CPU"),
        ({f"{CPU}/online": "all"}, f"{CPU}/online", "is no CPU list"),
        ({f"{NODE}/node0/distance": "10 21"}, f"{NODE}/node0/distance", "expected 1 distances"),
        ({f"{NODE}/node0/distance": "ten"}, f"{NODE}/node0/distance", "expected 1 distances"),
        # A digit to str.isdigit(), and none to int(); and one to int(), and none to the kernel.
        ({f"{NODE}/node0/distance": "1\u00b2"}, f"{NODE}/node0/distance", "expected 1 distances"),
        ({f"{NODE}/node0/distance": "1\u0660"}, f"{NODE}/node0/distance", "expected 1 distances"),
        ({f"{NODE}/node0/cpulist": "0-\u0661"}, f"{NODE}/node0/cpulist", "no CPU list"),
        ({"proc/cpuinfo": "vendor_id : GenuineIntel\nmodel : 1_43"}, "proc/cpuinfo", "expected a number"),
        ({"proc/cpuinfo": "vendor_id : GenuineIntel\nmodel : \u0661"}, "proc/cpuinfo", "expected a number"),
        ({f"{NODE}/node0/cpulist": None}, f"{NODE}/node0/cpulist", "cannot be read"),
        (
            {f"{NODE}/node0/cpulist": None, f"{NODE}/node0/cpumap": "g"},
            f"{NODE}/node0/cpumap",
            "expected a CPU mask",
        ),
        ({f"{NODE}/node0/meminfo": "MemTotal: 5 kB"}, f"{NODE}/node0/meminfo", "has no MemTotal"),
        (
            {f"{CPU}/cpu0/topology/core_cpus_list": "1"},
            f"{CPU}/cpu0/topology/thread_siblings_list",
            "with CPU 0",
        ),
        (siblings("0"), f"{CPU}/cpu1/topology/thread_siblings_list", "shares no CPU with another core"),
        (
            {f"{CPU}/cpu0/topology/physical_package_id": "x"},
            f"{CPU}/cpu0/topology/physical_package_id",
            "whole number",
        ),
        ({"proc/cpuinfo": None}, "proc/cpuinfo", "cannot be read: No such file"),
        ({"proc/cpuinfo": "\n"}, "proc/cpuinfo", "holds no field"),
        ({"proc/cpuinfo": "vendor_id : GenuineIntel\nmodel : big"}, "proc/cpuinfo", "expected a number"),
    ],
)
def test_nonsense_is_refused_with_file_and_form(
    tmp_path: Path, files: dict[str, str | bytes | None], where: str, words: str
) -> None:
    plant(tmp_path, {**siblings("0-1"), **files})
    with pytest.raises(InputError, match=words) as error:
        discover(tmp_path)
    assert error.value.where == f"{tmp_path}/{where}"


def test_a_socket_below_zero_is_unknown(tmp_path: Path) -> None:
    cores = discover(plant(tmp_path, {f"{CPU}/cpu0/topology/physical_package_id": "-1"})).cpus.cores
    assert cores[0].socket is None


def test_a_folder_that_is_no_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected the root of a Linux machine"):
        discover(tmp_path)


def test_this_machine_agrees_with_the_c_library() -> None:
    cpus = discover(Path("/")).cpus
    assert cpus.online is not None
    assert cpus.allowed is not None
    assert len(parse_cpulist(cpus.online, "online")) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert set(parse_cpulist(cpus.allowed, "allowed")) == os.sched_getaffinity(0)
    assert cpus.arch == os.uname().machine


def test_what_only_a_live_machine_knows_stays_unknown_in_a_tree(tmp_path: Path) -> None:
    facts = discover(
        plant(tmp_path, {"proc/self/status": "Cpus_allowed_list:\t0\n"}), units=("cron.service",), tools=True
    )
    assert (facts.cpus.allowed, facts.units, facts.tools) == (None, (), ())
    assert set(LEAST) <= {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
