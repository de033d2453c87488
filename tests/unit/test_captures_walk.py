"""Every public capture is read by the reader of its kind or refused with a reason; none is passed over in silence."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from railwright.captures import read
from railwright.node.model import Facts, InputError, to_json
from tests.unit.captures_text import captures_folder

# By what the list that comes with the captures calls them.
KINDS = {
    "nccl-topo-full": "nccl-xml",
    "nccl-topo-skeleton": "nccl-xml",
    "nccl-topo-part": "nccl-xml",
    "nccl-topo-full(rccl)": "nccl-xml",
    "nvidia-smi topo -m": "nvidia-smi",
    "nvidia-smi topo -mp": "nvidia-smi",
    "hwloc-xml": "hwloc",
    "hwloc-expected": "hwloc",
    "sysfs-tarball": "sysfs",
    "lscpu": "lscpu",
    "lspci -nn": "lspci",
    "lspci -vvv": "lspci",
    "lspci -tv (part)": "lspci",
    "nvidia-smi nvlink -s": "nvlink",
    "nvidia-smi -q -x": "nvidia-smi-q",
    "ibdev2netdev": "ibdev2netdev",
    "ibdev2netdev -v": "ibdev2netdev",
    "show_gids": "show_gids",
    "mlnx_qos -i": "mlnx_qos",
    "/proc/interrupts": "interrupts",
    "ibstatus": "ibstatus",
}
REFUSED = {
    "hwloc_sysfs/2pa-pcidomain32bits.console": "the text of lstopo",
    "hwloc_sysfs/48amd64-4pa2n6c-sparse.console": "the text of lstopo",
    # Put together by hwloc's authors from parts of several machines.
    "hwloc_xml/32em64t-2n8c2t-pci-wholeio.xml": "0000:04:00.0 stands on line 100 too",
    # The excerpt begins below the line that names the root bus.
    "lspci/h200-kvm-flat-tree.txt": "hangs on nothing above it",
    "nccl_graph/azure-ncv4-graph.xml": "NCCL's graph file",
    "presets/sr675v3-rtxpro6000.tsv": "no capture of a machine",
}


def _index(folder: Path) -> dict[str, str]:
    rows = (line.split("\t") for line in (folder / "index.tsv").read_text().splitlines()[1:])
    return {row[0]: row[1] for row in rows}


def test_every_capture_is_read_by_its_reader_or_refused_with_a_reason() -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    index = _index(folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*") if path.is_file())
    counts: Counter[str] = Counter()
    for name in files:
        if name in REFUSED:
            with pytest.raises(InputError) as caught:
                read([folder / name])
            assert caught.value.where.startswith(str(folder / name))
            assert REFUSED[name] in caught.value.why
            assert caught.value.remedy
            counts["refused"] += 1
            continue
        facts = read([folder / name])
        assert facts.witnesses[0].kind == KINDS[index[name]], name
        assert Facts.read(to_json(facts)) == facts
        counts[facts.witnesses[0].kind] += 1
    print(dict(counts), f"{len(files)} files")
    assert set(files) == set(index)
    assert counts.total() == len(files)
    assert counts["refused"] == len(REFUSED)


def test_what_the_large_lspci_says_is_what_stands_in_its_lines() -> None:
    """The oracle is the text cut at empty lines, and plain searches in each piece."""
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    path = folder / "lspci/gpud-lspci-vvv.txt"
    pieces = {f"0000:{piece.split(' ', 1)[0]}": piece for piece in path.read_text().strip().split("\n\n")}
    secondary = {
        match[1]: address
        for address, piece in pieces.items()
        if (match := re.search(r"secondary=(\w\w)", piece)) and match[1] != "00"
    }
    facts = read([path])
    compared = 0
    for device in facts.pci:
        piece = pieces[device.address]
        bus = device.address[5:7]
        assert device.parent == secondary.get(bus, f"pci0000:{bus}")
        speeds = re.findall(r"LnkSta:\tSpeed (\d+)GT/s", piece)
        assert [device.link.speed] == [float(speed) for speed in speeds]
        most = re.findall(r"LnkCap:\tPort #\d+, Speed (\d+)GT/s, Width x(\d+)", piece)
        assert [(device.link.max_speed, device.link.max_width)] == [(float(a), int(b)) for a, b in most]
        assert device.numa == int(re.findall(r"NUMA node: (\d+)", piece)[0])
        assert [device.mrrs] == [int(size) for size in re.findall(r"MaxReadReq (\d+) bytes", piece)]
        control = re.findall(r"ACSCtl:\t(.*)", piece)
        assert device.acs is not None
        assert list(device.acs.control) == [
            word[:-1] for line in control for word in line.split() if word.endswith("+")
        ]
        assert device.driver == (re.findall(r"Kernel driver in use: (\S+)", piece) or [None])[0]
        compared += 1
    assert len(facts.gpus) == path.read_text().count("3D controller: NVIDIA")
    assert len(facts.nics) == path.read_text().count("Ethernet controller: ")
    print(f"{compared} functions compared")
    assert compared == len(facts.pci) > 50


def test_the_drawing_with_a_switch_for_each_pair_shows_the_pairs() -> None:
    facts = read([captures_folder("RAILWRIGHT_CAPTURES") / "lspci/h200-kvm-pxb-tree.txt"])
    parents = {device.address: device.parent for device in facts.pci}
    leaves = [address for address in parents if address not in parents.values()]
    switches: dict[str | None, list[str]] = {}
    for leaf in leaves:
        switches.setdefault(parents[parents[leaf] or ""], []).append(leaf[5:7])
    assert sorted(switches.values()) == [["cb", "cc"], ["cf", "d0"], ["d3", "d4"], ["d7", "d8"]]
