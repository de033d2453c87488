"""Archives of /sys and /proc: the same facts as the tree on disk, and nothing that an archive can do to its reader."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from railwright.captures import read
from railwright.captures.sysfs_archive import MAX_UNPACKED
from railwright.node.model import Facts, InputError, parse_cpulist, to_json
from tests.machinery import build
from tests.unit.captures_text import captures_folder
from tests.unit.hwloc import xml_of as hwloc_xml

Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, data: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return file(name, type=kind, linkname=target)


MACHINE = [
    file("m/sys/devices/system/cpu/online", b"0-1\n"),
    file("m/proc/cpuinfo", b"processor\t: 0\nvendor_id\t: GenuineIntel\n\n"),
]


def packed(folder: Path, members: list[Member], name: str = "node.tar") -> Path:
    path = folder / name
    with tarfile.open(path, "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("pack", [None, gzip.compress, bz2.compress, lzma.compress])
def test_each_packing_is_read(tmp_path: Path, pack: Callable[[bytes], bytes] | None) -> None:
    path = packed(tmp_path, MACHINE)
    if pack is not None:
        path.write_bytes(pack(path.read_bytes()))
    facts = read([path])
    assert (facts.cpus.online, facts.cpus.vendor) == ("0-1", "GenuineIntel")
    assert facts.witnesses[0].source == str(path)


def test_an_archive_says_what_its_tree_says(tmp_path: Path) -> None:
    machines = Path(__file__).resolve().parents[1] / "machines"
    build(machines / "2s_8xh100_10xcx7", tmp_path / "m")
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "m", "m")
    from_tree, from_archive = to_json(read([tmp_path / "m"])), to_json(read([tmp_path / "m.tar.gz"]))
    assert from_tree.pop("witnesses") != from_archive.pop("witnesses")
    assert from_archive == from_tree
    assert len(from_tree["gpus"]) == 8


HOSTILE = {
    "a way out": ([*MACHINE, file("m/sys/../../../etc/passwd", b"x")], "leads out of the archive"),
    "a link out": ([*MACHINE, link("m/sys/class", "/etc")], "is a link that leads out"),
    "a link far up": ([*MACHINE, link("m/sys/class", "../../../etc")], "is a link that leads out"),
    "a file twice": ([*MACHINE, MACHINE[0]], "stands twice"),
    "a file below a link": (
        [*MACHINE, link("m/sys/a", "devices"), file("m/sys/a/b/c", b"x")],
        "lies below a file or link",
    ),
    "two machines": ([*MACHINE, file("n/sys/devices/system/cpu/online", b"0")], "a second machine"),
    "no machine": ([file("readme", b"x")], "holds no sys and proc"),
    "a file of the wrong size": (
        [*MACHINE, file("m/proc/interrupts", b"0" * (17 * 2**20))],
        "which are small",
    ),
    "a FIFO in the place of a file": (
        [MACHINE[1], file("m/sys/devices/system/cpu/online", type=tarfile.FIFOTYPE)],
        "is not there",
    ),
}


@pytest.mark.parametrize(("members", "why"), HOSTILE.values(), ids=list(HOSTILE))
def test_an_archive_that_means_harm_is_refused(tmp_path: Path, members: list[Member], why: str) -> None:
    path = packed(tmp_path, members)
    before = set(os.listdir(tmp_path))
    with pytest.raises(InputError) as caught:
        read([path])
    assert caught.value.where.startswith(str(path))
    assert why in str(caught.value)
    assert set(os.listdir(tmp_path)) == before


def test_a_ring_of_links_is_nothing_rather_than_for_ever(tmp_path: Path) -> None:
    facts = read([packed(tmp_path, [*MACHINE, link("m/sys/class", "bus"), link("m/sys/bus", "class")])])
    assert facts.nics == ()


def test_a_hard_link_means_a_file_of_the_archive_only(tmp_path: Path) -> None:
    inside = link("m/sys/devices/system/cpu/offline", "m/sys/devices/system/cpu/online", tarfile.LNKTYPE)
    assert read([packed(tmp_path, [*MACHINE, inside])]).cpus.offline == "0-1"
    outside = link("m/sys/devices/system/cpu/offline", "/sys/devices/system/cpu/online", tarfile.LNKTYPE)
    assert read([packed(tmp_path, [*MACHINE, outside])]).cpus.offline is None


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_refused_before_it_fills_anything(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    big = file("m/sys/big", type=tarfile.REGTYPE)[0]
    big.size = 2 * MAX_UNPACKED
    header = big.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "bomb.tar"
    path.write_bytes(pack(header + b"\0" * (MAX_UNPACKED + 2**20)))
    with pytest.raises(InputError, match=r"which are small|unpacks to more than 128 MiB"):
        read([path])
    other = tmp_path / "other.tar"
    other.write_bytes(
        pack(
            file("x", type=tarfile.DIRTYPE)[0].tobuf()
            + big.tobuf().replace(b"m/sys", b"m/abc")
            + b"\0" * (MAX_UNPACKED + 2**20)
        )
    )
    with pytest.raises(InputError):
        read([other])


@pytest.mark.parametrize("cut", [5, 40, 150])
def test_a_cut_archive_is_refused(tmp_path: Path, cut: int) -> None:
    whole = gzip.compress(packed(tmp_path, MACHINE).read_bytes())
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(whole[:cut])
    with pytest.raises(InputError) as caught:
        read([path])
    assert caught.value.remedy


# -- hwloc reads the same trees --

TREES = (
    "128arm-2pa2n8cluster4co.tar.bz2",
    "16em64t-4s2c2t-offlines.tar.bz2",
    "20em64t-hybrid-1p6c2t+2ca4co1t.tar.bz2",
    "2pa-pcidomain32bits.tar.bz2",
    "32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2",
    "40intel64-2g2n4c+pcilocality.tar.bz2",
    "48amd64-4pa2n6c-sparse.tar.bz2",
    "96em64t-4no4pa3ca2co.tar.bz2",
    "fakecpuid1f-64intel64-2p4d2n2c2t.tar.bz2",
    "fakepcilocalities.tar.bz2",
    "memorysidecaches.tar.bz2",
    "nvidia-dgx-gb10.tar.bz2",
)


@pytest.mark.parametrize("name", TREES)
def test_hwlocs_own_reading_of_its_archives_agrees_with_ours(name: str, tmp_path: Path) -> None:
    """Locality of PCI functions, nodes, cores and threads: the archive through our reader, hwloc's XML of it too."""
    archive = captures_folder("RAILWRIGHT_CAPTURES") / "hwloc_sysfs" / name
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("hwloc is not installed")
    subprocess.run(
        ["tar", "--no-same-owner", "--mode=u+rwX", "-xf", archive, "-C", tmp_path], check=True, timeout=300
    )
    (root,) = tmp_path.iterdir()
    (tmp_path / "hwloc.xml").write_bytes(hwloc_xml(root, "--whole-io"))
    ours, theirs = read([archive]), read([tmp_path / "hwloc.xml"])
    assert _cores(ours) == _cores(theirs)
    assert ours.cpus.online == theirs.cpus.online
    # hwloc leaves out nodes that have neither CPUs nor memory, and gives a kernel without NUMA one node.
    known = {node.id: node for node in ours.numa}
    for node in theirs.numa:
        if known:
            assert known.pop(node.id).cpus == node.cpus
    assert all(not node.cpus for node in known.values())
    tree = {device.address: device for device in ours.pci}
    compared = explained = 0
    for device in theirs.pci:
        # hwloc 2 shows no PCI domain above 16 bits.
        if device.address not in tree:
            continue
        mine = tree[device.address]
        assert (mine.parent, mine.vendor, mine.device) == (device.parent, device.vendor, device.device)
        if _locality(mine.numa, mine.local_cpus, ours) != _locality(device.numa, device.local_cpus, theirs):
            near = _locality(device.numa, device.local_cpus, theirs)
            assert mine.local_cpus
            local = set(parse_cpulist(mine.local_cpus, ""))
            if mine.numa is None:
                # The kernel says -1 there, and hwloc takes the node around local_cpus; ours stays unknown.
                assert local < near
            else:
                # The kernel names a node and calls other CPUs local too; hwloc takes local_cpus at its word.
                assert local == near
            explained += 1
        compared += 1
    print(
        f"{archive.name}: {len(_cores(ours))} cores, {len(theirs.numa)} nodes, {compared} PCI functions compared"
    )
    assert compared == sum(len(address) == len("0000:00:00.0") for address in tree)


def _cores(facts: Facts) -> set[tuple[int, ...]]:
    return {core.cpus for core in facts.cpus.cores}


def _locality(numa: int | None, cpus: str | None, facts: Facts) -> set[int]:
    if numa is not None:
        return set(parse_cpulist(next(node.cpus for node in facts.numa if node.id == numa), ""))
    return set(parse_cpulist(cpus or "", "")) or set(parse_cpulist(facts.cpus.online or "", ""))
