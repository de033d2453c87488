"""The matrix of `nvidia-smi topo`: as the tool prints it, as people paste it, and what cannot be read honestly."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from railwright.node.model import Facts, InputError, to_json
from tests.unit.captures_text import capture, shown


def matrix(text: str) -> str:
    """A table as the tool prints it: here | stands for a tab, so that a reader sees the cells."""
    return dedent(text).strip("\n").replace("|", "\t")


# One GPU and one NIC on each of two nodes, the NICs beside their GPUs.
PLAIN = matrix(
    """
    |GPU0|GPU1|NIC0|NIC1|CPU Affinity|NUMA Affinity|GPU NUMA ID
    GPU0| X |NV18|PIX|SYS|0-15,32-47|0||N/A
    GPU1|NV18| X |SYS|PXB|16-31,48-63|1||N/A
    NIC0|PIX|SYS| X |SYS
    NIC1|SYS|PXB|SYS| X

    Legend:

      X    = Self
      SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
      PIX  = Connection traversing at most a single PCIe bridge
      NV#  = Connection traversing a bonded set of # NVLinks

    NIC Legend:

      NIC0: mlx5_0
      NIC1: mlx5_3
    """
)
PLAIN_SHOWN = """\
node 0 0-15,32-47
node 1 16-31,48-63
GPU0 #0 numa=0 cpus=0-15,32-47 nvlinks=GPU1*18
GPU1 #1 numa=1 cpus=16-31,48-63 nvlinks=GPU0*18
NIC0 numa=0 rate=? rdma=mlx5_0
NIC1 numa=1 rate=? rdma=mlx5_3
GPU0-NIC0 PIX
GPU0-NIC1 SYS
GPU1-NIC0 SYS
GPU1-NIC1 PXB
NIC0-NIC1 SYS"""


def test_a_matrix_is_read_as_the_tool_prints_it(tmp_path: Path) -> None:
    facts = capture(tmp_path, PLAIN)
    assert shown(facts) == PLAIN_SHOWN
    assert facts.witnesses[0].kind == "nvidia-smi"
    assert Facts.read(to_json(facts)) == facts


def _spaces(text: str) -> str:
    lines = []
    for line in text.splitlines():
        cells = line.split("\t")
        lines.append("".join(cell.strip().ljust(16) for cell in cells).rstrip() if len(cells) > 1 else line)
    return "\n".join(lines)


def _markdown(text: str) -> str:
    rows = [line.split("\t") for line in text.splitlines()[:5]]
    table = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows]
    return "\n".join(
        ["Our node:", "", table[0], "|---|:-:|" + "---|" * 6, *table[1:], "", *text.splitlines()[-2:]]
    )


DRESSED = {
    "spaces for tabs": _spaces(PLAIN),
    "CR LF": PLAIN.replace("\n", "\r\n"),
    "CR alone": PLAIN.replace("\n", "\r"),
    "an underlined header": "\x1b[4m" + PLAIN.replace("GPU NUMA ID\n", "GPU NUMA ID\x1b[0m\n", 1),
    "escape codes that lost their escape": "[4m" + PLAIN.replace("GPU NUMA ID\n", "GPU NUMA ID[0m\n", 1),
    "escape codes shown as text": "^[[4m" + PLAIN.replace("GPU NUMA ID\n", "GPU NUMA ID\\x1b[0m\n", 1),
    "colours in cells": PLAIN.replace("PIX\t", "\x1b[1;32mPIX\x1b[0m\t"),
    "a prompt before and after": f"root@gpu-07:~# nvidia-smi topo -m\n{PLAIN}\nroot@gpu-07:~# ",
    "a log prefix on each line": "\n".join(f"[1,0]<stdout>:{line}" for line in PLAIN.splitlines()),
    "a time and host on each line": "\n".join(
        f"2026-01-05T10:00:00Z gpu-07 INFO {line}" for line in PLAIN.splitlines()
    ),
    "a quoted mail": "\n".join(f"> {line}" for line in PLAIN.splitlines()),
    "a fence": f"```\n{PLAIN}\n```\n",
    "a table of a page": _markdown(PLAIN),
    "blanks that do not break": PLAIN.replace(" X ", "\u00a0X\u00a0"),
    "UTF-16 of a Windows shell": PLAIN.encode("utf-16"),
    "a byte order mark": PLAIN.encode("utf-8-sig"),
    "other words between rows": PLAIN.replace("\nGPU1\t", "\nWARNING: GPU0 is busy\n\nGPU1\t"),
    "a tool's verdict below": f"{PLAIN}\nGPU0 OK\nGPU1 OK\n",
    "SOC, the old word for SYS": PLAIN.replace("SYS", "SOC"),
}


@pytest.mark.parametrize("text", DRESSED.values(), ids=list(DRESSED))
def test_dressing_changes_nothing(tmp_path: Path, text: str | bytes) -> None:
    assert shown(capture(tmp_path, text)) == PLAIN_SHOWN


# Each case: the paste and what it becomes.
QUIRKS = {
    "columns in any order, NICs by their device names": (
        """
        |mlx5_2|GPU1|mlx5_0|GPU0|CPU Affinity
        GPU0|SYS|SYS|PIX| X |0-3
        GPU1|PIX| X |SYS|SYS|4-7
        """,
        """
        GPU0 #0 numa=? cpus=0-3 nvlinks=?
        GPU1 #1 numa=? cpus=4-7 nvlinks=?
        mlx5_2 numa=? rate=? rdma=mlx5_2
        mlx5_0 numa=? rate=? rdma=mlx5_0
        GPU0-GPU1 SYS
        GPU0-mlx5_2 SYS
        GPU0-mlx5_0 PIX
        GPU1-mlx5_2 PIX
        GPU1-mlx5_0 SYS
        note rows of NICs are missing: which NICs are ports of one card is not known
        """,
    ),
    "device names of rdma-core": (
        """
        |GPU0|rocep49s0|bnxt_re1|CPU Affinity|NUMA Affinity
        GPU0| X |SYS|NODE|0-3|2
        rocep49s0|SYS| X |SYS
        """,
        """
        node 2 0-3
        GPU0 #0 numa=2 cpus=0-3 nvlinks=?
        rocep49s0 numa=? rate=? rdma=rocep49s0
        bnxt_re1 numa=2 rate=? rdma=bnxt_re1
        GPU0-rocep49s0 SYS
        GPU0-bnxt_re1 NODE
        rocep49s0-bnxt_re1 SYS
        """,
    ),
    "one GPU and nothing else": (
        """
        |GPU0|CPU Affinity|NUMA Affinity|GPU NUMA ID
        GPU0| X |0-7|0||N/A
        """,
        """
        node 0 0-7
        GPU0 #0 numa=0 cpus=0-7 nvlinks=?
        """,
    ),
    "a subset of a container, numbered as there": (
        """
        |GPU4|GPU6|NIC0
        GPU4| X |NV4|PHB
        GPU6|NV4| X |PHB
        """,
        """
        GPU4 #4 numa=? cpus=? nvlinks=GPU6*4
        GPU6 #6 numa=? cpus=? nvlinks=GPU4*4
        NIC0 numa=? rate=?
        GPU4-NIC0 PHB
        GPU6-NIC0 PHB
        """,
    ),
    "affinity that is blank": (
        """
        |GPU0|NIC0|CPU Affinity|NUMA Affinity|GPU NUMA ID
        GPU0| X |PIX||||N/A
        """,
        """
        GPU0 #0 numa=? cpus=? nvlinks=?
        NIC0 numa=? rate=?
        GPU0-NIC0 PIX
        """,
    ),
    "affinity that is not told": (
        """
        GPU0    GPU1    CPU Affinity    NUMA Affinity
        GPU0     X      NV2     0-23            N/A
        GPU1    NV2      X      0-23            -1
        """,
        """
        GPU0 #0 numa=? cpus=0-23 nvlinks=GPU1*2
        GPU1 #1 numa=? cpus=0-23 nvlinks=GPU0*2
        """,
    ),
    "a lone number may be a CPU or a node": (
        """
        GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID
        GPU0 X PHB 0 N/A
        GPU1 PHB X 0-1 0 N/A
        """,
        """
        node 0 0-1
        GPU0 #0 numa=? cpus=? nvlinks=?
        GPU1 #1 numa=0 cpus=0-1 nvlinks=?
        GPU0-GPU1 PHB
        """,
    ),
    "a VM that names several nodes": (
        """
        |GPU0|NIC0|CPU Affinity|NUMA Affinity|GPU NUMA ID
        GPU0| X |PHB|0-115|0-3||N/A
        """,
        """
        GPU0 #0 numa=? cpus=0-115 nvlinks=?
        NIC0 numa=? rate=?
        GPU0-NIC0 PHB
        note GPU0: NUMA Affinity 0-3 is several nodes, so which one is not known
        """,
    ),
    "a tab lost between two distances": (
        """
        |GPU0|GPU1|NIC0|NIC1|CPU Affinity|NUMA Affinity
        GPU0| X |NV18|PIXNODE|0-3|0
        GPU1|NV18 X |NODE|PIX|0-3|0
        NIC0|PIX|NODE| X |NODE
        """,
        """
        node 0 0-3
        GPU0 #0 numa=0 cpus=0-3 nvlinks=GPU1*18
        GPU1 #1 numa=0 cpus=0-3 nvlinks=GPU0*18
        NIC0 numa=0 rate=?
        NIC1 numa=0 rate=?
        GPU0-NIC0 PIX
        GPU0-NIC1 NODE
        GPU1-NIC0 NODE
        GPU1-NIC1 PIX
        NIC0-NIC1 NODE
        note line 2: PIXNODE read as PIX NODE (a tab was lost)
        """,
    ),
    "a tab lost before the CPUs": (
        """
        |GPU0|GPU1|CPU Affinity|NUMA Affinity
        GPU0| X |PHB0-3|1
        GPU1|PHB| X |0-3|1
        """,
        """
        node 1 0-3
        GPU0 #0 numa=1 cpus=0-3 nvlinks=?
        GPU1 #1 numa=1 cpus=0-3 nvlinks=?
        GPU0-GPU1 PHB
        note line 2: PHB0-3 under GPU1 read as PHB and CPUs 0-3 (a tab was lost)
        """,
    ),
    "a damaged cell that the other row knows": (
        """
        |GPU0|NIC0|CPU Affinity|NUMA Affinity
        GPU0| X |PH0-3|1
        NIC0|PHB| X
        """,
        """
        node 1 0-3
        GPU0 #0 numa=1 cpus=0-3 nvlinks=?
        NIC0 numa=1 rate=?
        GPU0-NIC0 PHB
        note line 2: PH0-3 under NIC0 read as a damaged cell; the distance is that of row NIC0, or not known
        """,
    ),
    "a damaged cell that nobody knows": (
        """
        |GPU0|NIC0|CPU Affinity|NUMA Affinity
        GPU0| X |PH0-3|1
        """,
        """
        node 1 0-3
        GPU0 #0 numa=1 cpus=0-3 nvlinks=? partial
        NIC0 numa=? rate=?
        note line 2: PH0-3 under NIC0 read as a damaged cell; the distance is that of row NIC0, or not known
        incomplete
        """,
    ),
    "NVLinks and CPUs that have grown together cannot be told apart": (
        """
        |GPU0|GPU1|CPU Affinity|NUMA Affinity
        GPU0| X |NV180-3|1
        GPU1|NV18| X |0-3|1
        """,
        """
        node 1 0-3
        GPU0 #0 numa=1 cpus=? nvlinks=GPU1*18
        GPU1 #1 numa=1 cpus=0-3 nvlinks=GPU0*18
        note line 2: NV180-3 under GPU1 read as a damaged cell; the distance is that of row GPU1, or not known
        """,
    ),
    "a row that is missing": (
        """
        |GPU0|GPU1|NIC0|CPU Affinity|NUMA Affinity
        GPU0| X |NV8|PIX|0-3|0
        """,
        """
        node 0 0-3
        GPU0 #0 numa=0 cpus=0-3 nvlinks=GPU1*8
        GPU1 #1 numa=? cpus=? nvlinks=GPU0*8 partial
        NIC0 numa=0 rate=?
        GPU0-NIC0 PIX
        note the matrix is cut: no row for GPU1
        incomplete
        """,
    ),
    "a paste that ends inside a word": (
        """
        |GPU0|GPU1|NIC0|NIC1|CPU Affinity|NUMA Affinity
        GPU0| X |SYS|PIX|SYS|0-3|0
        GPU1|SYS| X |SYS|PX
        """,
        """
        node 0 0-3
        GPU0 #0 numa=0 cpus=0-3 nvlinks=?
        GPU1 #1 numa=? cpus=? nvlinks=? partial
        NIC0 numa=0 rate=?
        NIC1 numa=? rate=?
        GPU0-GPU1 SYS
        GPU0-NIC0 PIX
        GPU0-NIC1 SYS
        GPU1-NIC0 SYS
        note line 3: row GPU1 is cut after 3 of 4 columns
        note rows of NICs are missing: which NICs are ports of one card is not known
        incomplete
        """,
    ),
    "a count of NVLinks that may be cut": (
        """
        |GPU0|GPU1|GPU2|NIC0
        GPU0| X |NV12|NV12|PIX
        GPU1|NV1
        """,
        """
        GPU0 #0 numa=? cpus=? nvlinks=GPU1*12,GPU2*12
        GPU1 #1 numa=? cpus=? nvlinks=? partial
        GPU2 #2 numa=? cpus=? nvlinks=? partial
        NIC0 numa=? rate=?
        GPU0-NIC0 PIX
        note line 3: row GPU1 is cut after 0 of 4 columns
        note the matrix is cut: no row for GPU2
        incomplete
        """,
    ),
    "a distance that is lost, nobody knows which": (
        """
        |GPU0|GPU1|NIC0|NIC1|CPU Affinity|NUMA Affinity
        GPU0| X |SYS|PIX|0-3|0
        GPU1|SYS| X |SYS|PIX|0-3|0
        """,
        """
        node 0 0-3
        GPU0 #0 numa=0 cpus=0-3 nvlinks=? partial
        GPU1 #1 numa=0 cpus=0-3 nvlinks=?
        NIC0 numa=? rate=?
        NIC1 numa=0 rate=?
        GPU0-GPU1 SYS
        GPU1-NIC0 SYS
        GPU1-NIC1 PIX
        note line 2: a distance is lost in row GPU0; what stands right of its X is left out
        note rows of NICs are missing: which NICs are ports of one card is not known
        incomplete
        """,
    ),
    "rows that contradict each other": (
        """
        |GPU0|NIC0
        GPU0| X |PIX
        NIC0|SYS| X
        """,
        """
        GPU0 #0 numa=? cpus=? nvlinks=?
        NIC0 numa=? rate=?
        GPU0-NIC0 PIX
        conflict GPU0-NIC0: row GPU0, line 2: PIX / row NIC0, line 3: SYS
        """,
    ),
    "a GPU without the links of its peers": (
        """
        |GPU0|GPU1|GPU2
        GPU0| X |NV18|NODE
        GPU1|NV18| X |NODE
        GPU2|NODE|NODE| X
        """,
        """
        GPU0 #0 numa=? cpus=? nvlinks=GPU1*18
        GPU1 #1 numa=? cpus=? nvlinks=GPU0*18
        GPU2 #2 numa=? cpus=? nvlinks=none
        GPU0-GPU2 NODE
        GPU1-GPU2 NODE
        """,
    ),
    "one node with two lists of CPUs": (
        """
        |GPU0|GPU1|CPU Affinity|NUMA Affinity
        GPU0| X |PHB|0-3|0
        GPU1|PHB| X |0-7|0
        """,
        """
        node 0 0-3
        GPU0 #0 numa=0 cpus=0-3 nvlinks=?
        GPU1 #1 numa=0 cpus=0-7 nvlinks=?
        GPU0-GPU1 PHB
        conflict CPUs of NUMA node 0: row GPU0: 0-3 / row GPU1: 0-7
        """,
    ),
    "a list of CPUs that may be cut by the tool": (
        """
        |GPU0|CPU Affinity|NUMA Affinity
        GPU0| X |0,2,4,6,8,10|0
        """,
        """
        node 0 0,2,4,6,8,10
        GPU0 #0 numa=0 cpus=0,2,4,6,8,10 nvlinks=?
        note GPU0: CPU Affinity 0,2,4,6,8,10 may be cut short, as nvidia-smi does with single CPUs; compare with lscpu
        """,
    ),
    "ten columns written as one": (
        """
        |GPU0|mlx5_0-1|CPU Affinity
        GPU0| X |PIX|SYS|0-3
        """,
        """
        GPU0 #0 numa=? cpus=0-3 nvlinks=?
        mlx5_0 numa=? rate=? rdma=mlx5_0
        mlx5_1 numa=? rate=? rdma=mlx5_1
        GPU0-mlx5_0 PIX
        GPU0-mlx5_1 SYS
        note line 1: the header says mlx5_0-1; read as one column for each
        note rows of NICs are missing: which NICs are ports of one card is not known
        """,
    ),
    "a tab lost in the header": (
        """
        |GPU0|GPU1NIC0CPU Affinity
        GPU0| X |PHB|PIX|0-3
        GPU1|PHB| X |PIX|0-3
        """,
        """
        GPU0 #0 numa=? cpus=0-3 nvlinks=?
        GPU1 #1 numa=? cpus=0-3 nvlinks=?
        NIC0 numa=? rate=?
        GPU0-GPU1 PHB
        GPU0-NIC0 PIX
        GPU1-NIC0 PIX
        note line 1: GPU1NIC0 in the header read as GPU1 NIC0 (a tab was lost)
        """,
    ),
    "one CPU and its node": (
        """
        |GPU0|NIC0|CPU Affinity|NUMA Affinity
        GPU0| X |PIX|5|0
        NIC0|PIX| X
        """,
        """
        node 0 5
        GPU0 #0 numa=0 cpus=5 nvlinks=?
        NIC0 numa=0 rate=?
        GPU0-NIC0 PIX
        """,
    ),
    "a P2P matrix after the one that counts": (
        """
        |GPU0|GPU1
        GPU0| X |PHB
        GPU1|PHB| X
        |GPU0|GPU1
        GPU0| X |GNS
        GPU1|GNS| X
        """,
        """
        GPU0 #0 numa=? cpus=? nvlinks=?
        GPU1 #1 numa=? cpus=? nvlinks=?
        GPU0-GPU1 PHB
        note P2P is not possible (GNS: the GPUs do not support it): GPU0 to GPU1, GPU1 to GPU0
        """,
    ),
}


@pytest.mark.parametrize(("text", "expected"), QUIRKS.values(), ids=list(QUIRKS))
def test_each_oddity_of_real_pastes_is_read_as_it_is_meant(tmp_path: Path, text: str, expected: str) -> None:
    facts = capture(tmp_path, matrix(text))
    assert shown(facts) == dedent(expected).strip()
    assert Facts.read(to_json(facts)) == facts


def test_nics_keep_the_order_of_the_header(tmp_path: Path) -> None:
    header = "\t".join(["", "GPU0", *(f"mlx5_{n}" for n in (0, 10, 2))])
    facts = capture(tmp_path, f"{header}\nGPU0\t X \tPIX\tSYS\tSYS\n")
    assert [nic.name for nic in facts.nics] == ["mlx5_0", "mlx5_10", "mlx5_2"]


def test_sixteen_gpus_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"GPU{n}" for n in range(16)]
    rows = [[name, *("X" if other == name else "NV6" for other in names)] for name in names]
    text = "\n".join(
        "\t".join(row)
        for row in [["", *sorted(names)], *([r[0], *_in_order(r, names)] for r in sorted(rows))]
    )
    facts = capture(tmp_path, text)
    assert [gpu.index for gpu in facts.gpus] == list(range(16))
    assert all(len(gpu.nvlinks or ()) == 15 for gpu in facts.gpus)


def _in_order(row: list[str], names: list[str]) -> list[str]:
    cells = dict(zip(names, row[1:], strict=True))
    return [cells[name] for name in sorted(names)]


# Each case: the paste, the line (0: none) and what must be said.
REFUSED = {
    "rows without their header": ("GPU0|X|SYS|0-3\nGPU1|SYS|X|0-3", 1, "without the header"),
    "P2P states one place off": ("|GPU0|GPU1\nGPU0|OK|X\nGPU1|X|OK", 2, "OK stands under GPU0"),
    "P2P states twice": (
        "|GPU0|GPU1\nGPU0|X|OK\nGPU1|OK|X\n|GPU0|GPU1\nGPU0|X|NS",
        5,
        "a second table of the same states",
    ),
    "P2P states without the header between": (
        "|GPU0|GPU1\nGPU0|X|OK\nGPU1|OK|X\nGPU0|X|NS",
        4,
        "a second row GPU0 of P2P",
    ),
    "more P2P states than columns": ("|GPU0|GPU1\nGPU0|X|OK|OK", 2, "3 states for 2 columns"),
    "a header alone": ("|GPU0|GPU1|CPU Affinity", 1, "without rows"),
    "two machines of two GPUs": ("|GPU0|GPU1\nGPU0|X|SYS\n|GPU0|GPU1\nGPU0|X|PIX", 3, "a second matrix"),
    "a row twice": ("|GPU0|GPU1\nGPU0|X|SYS\nGPU0|X|PIX", 3, "a second row GPU0"),
    "a column twice": ("|GPU0|GPU0\nGPU0|X|X", 1, "two columns are named GPU0"),
    "a word that is no distance": ("|GPU0|GPU1\nGPU0|X|FAR\nGPU1|PIX|X", 2, "'FAR' is no distance"),
    "words in small letters": ("|GPU0|GPU1|GPU2\nGPU0|X|pix|SYS\nGPU1|PIX|X|SYS", 2, "'pix' is no distance"),
    "more cells than columns": ("|GPU0|GPU1\nGPU0|X|SYS|PIX\nGPU1|SYS|X|PIX", 2, "3 distances for 2 columns"),
    "a column that the header lost": (
        "|GPU0|GPU1\nGPU0|X|SYS\nGPU1|SYS|X\nGPU2|SYS|SYS",
        4,
        "row GPU2 has no column",
    ),
    "cells one place off": ("|GPU0|GPU1|GPU2\nGPU0|SYS|X|SYS", 2, "SYS stands under GPU0"),
    "NVLinks to a NIC": ("|GPU0|NIC0\nGPU0|X|NV4", 2, "NV4 stands under NIC0"),
    "a row that a terminal wrapped": (
        "|GPU0|GPU1|GPU2\nGPU0 X SYS SYS\nGPU1 SYS X\nSYS SYS",
        4,
        "without a device's name",
    ),
    "a CPU list that is none": ("|GPU0|CPU Affinity\nGPU0|X|3--1", 2, "no CPU list"),
    "cells after the last label": (
        "|GPU0|GPU1|CPU Affinity\nGPU0|X|SYS|0-3|0|9",
        2,
        "3 cells after the distances",
    ),
    "a legend with two names for one": (
        "|GPU0|NIC0\nGPU0|X|PIX\nNIC0: mlx5_0\nNIC0: mlx5_1",
        4,
        "mlx5_0 above",
    ),
    "a legend that would break a file": (
        "|GPU0|NIC0\nGPU0|X|PIX\nNIC0: mlx5_0;reboot",
        3,
        "no device's name",
    ),
}


@pytest.mark.parametrize(("text", "line", "why"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_read_honestly_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, why: str
) -> None:
    with pytest.raises(InputError) as caught:
        capture(tmp_path, text.replace("|", "\t"), "topo.txt")
    path = str(tmp_path / "topo.txt")
    assert caught.value.where.startswith(f"{path}:{line}" if line else path)
    assert why in caught.value.why
    assert caught.value.remedy
