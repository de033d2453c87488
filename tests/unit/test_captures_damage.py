"""Damaged captures: a reader may know less than stood there, may refuse, and must never know something else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.captures.detect import detect
from railwright.captures.facts_json import read_facts_json
from railwright.captures.nccl_xml import read_nccl_xml
from railwright.captures.nvidia_smi import read_nvidia_smi
from railwright.captures.reading import _READERS
from railwright.captures.source import decode
from railwright.node.model import Facts, InputError, to_json
from tests.unit import witness_samples
from tests.unit.test_captures_nccl_xml import TWO_SOCKETS
from tests.unit.test_captures_nvidia_smi import PLAIN, matrix
from tests.unit.test_captures_reading import facts_json

READERS = {"facts": read_facts_json, "nccl-xml": read_nccl_xml, "nvidia-smi": read_nvidia_smi}

# Every distance differs from its neighbours, so that a cell one place off is seen.
FOUR = matrix(
    """
    |GPU0|GPU1|NIC0|NIC1|NIC2|CPU Affinity|NUMA Affinity|GPU NUMA ID
    GPU0| X |NV12|PIX|NODE|SYS|0-3|0||N/A
    GPU1|NV12| X |NODE|PXB|SYS|0-3|0||N/A
    NIC0|PIX|NODE| X |PHB|SYS
    NIC1|NODE|PXB|PHB| X |SYS
    NIC2|SYS|SYS|SYS|SYS| X
    """
)


def read_bytes(data: bytes) -> Facts:
    source = decode("capture", data)
    return READERS[detect(source)](source)


def knows(facts: Facts) -> dict[str, str]:
    """All that is told of devices by name: distances, links, CPUs and nodes, as one mapping."""
    known = {f"{path.a}-{path.b}": path.level for path in facts.paths}
    for gpu in facts.gpus:
        known.update({f"{gpu.name} link {link.target}": str(link.count) for link in gpu.nvlinks or ()})
        known.update({} if gpu.numa is None else {f"{gpu.name} node": str(gpu.numa)})
    known.update({f"{nic.name} node": str(nic.numa) for nic in facts.nics if nic.numa is not None})
    return known


def damaged_cells() -> Iterator[str]:
    """FOUR with one cell gone (its tab with it), one cell blank, or one tab lost."""
    lines = FOUR.split("\n")
    for n, line in enumerate(lines[1:], start=1):
        cells = line.split("\t")
        for c in range(1, len(cells)):
            for changed in (
                [*cells[:c], *cells[c + 1 :]],
                [*cells[:c], "", *cells[c + 1 :]],
                [*cells[: c - 1], cells[c - 1] + cells[c], *cells[c + 1 :]],
            ):
                yield "\n".join([*lines[:n], "\t".join(changed), *lines[n + 1 :]])


@pytest.mark.parametrize("tabs", ["\t", "   "], ids=["tabs", "spaces"])
def test_a_lost_cell_or_tab_never_makes_a_distance_wrong(tabs: str) -> None:
    truth = knows(read_bytes(FOUR.encode()))
    outcomes = {"read": 0, "refused": 0}
    for text in damaged_cells():
        try:
            facts = read_bytes(text.replace("\t", tabs).encode())
        except InputError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert not facts.conflicts
        assert knows(facts).items() <= truth.items(), text
    assert all(outcomes.values())


def test_a_paste_that_ends_anywhere_never_makes_a_distance_wrong() -> None:
    truth = knows(read_bytes(FOUR.encode()))
    header = FOUR.index("\n")
    read = 0
    for end in range(header + 1, len(FOUR)):
        try:
            facts = read_bytes(FOUR[:end].encode())
        except InputError:
            continue
        read += 1
        assert knows(facts).items() <= truth.items(), FOUR[:end]
        whole = [gpu.name for gpu in facts.gpus if not gpu.partial]
        assert facts.complete == (whole == ["GPU0", "GPU1"])
        assert len(whole) <= FOUR[:end].count("SYS")
    assert read > len(FOUR) // 2


def test_an_xml_file_that_ends_anywhere_is_refused() -> None:
    end = TWO_SOCKETS.rindex("</system>") + len("</system>")
    for cut in range(1, end):
        with pytest.raises(InputError):
            read_nccl_xml(decode("capture", TWO_SOCKETS[:cut].encode()))


TOKENS = [
    *(
        b"\t",
        b" ",
        b"\n",
        b"\r",
        b"PIX",
        b"NV8",
        b"X",
        b"GPU0",
        b"NIC0",
        b"N/A",
        b"0-3",
        b"|",
        b"\x1b[4m",
        b"PH0-1",
    ),
    *(
        b'"',
        b"<",
        b">",
        b"/>",
        b'<pci busid="0000:01:00.0">',
        b"</pci>",
        b"<gpu/>",
        b"<!--",
        b"]]>",
        b"&#27;",
        b"0x",
    ),
    *(b"-1", b"999999999999", b"\x00", b"\xff", b"{", b"}", b"[", b",", b"null", b"true", b"1e999", b""),
]
MUTATIONS = 2_000


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The text after one to four accidents: bytes lost, doubled, flipped or put in, lines swapped or lost."""
    text = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        kind, start = chance.randrange(6), chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((1, 1, 3, 10, 80, 400)))
        if kind == 0:
            del text[start:end]
        elif kind == 1:
            text[start:end] = chance.choice(TOKENS)
        elif kind == 2:
            text[start:start] = chance.choice(TOKENS)
        elif kind == 3:
            place = chance.randrange(len(text) + 1)
            text[place:place] = text[start:end]
        elif kind == 4 and start < len(text):
            text[start] ^= 1 << chance.randrange(8)
        else:
            lines = bytes(text).split(b"\n")
            a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[a], lines[b] = lines[b], lines[a]
            text = bytearray(b"\n".join(lines[:-1] if chance.random() < 0.3 else lines))
    return bytes(text)


def survive(samples: list[bytes], seed: int) -> tuple[int, int]:
    """How many mutated samples were read and how many refused; anything but InputError goes through."""
    chance = random.Random(seed)  # noqa: S311 (the same accidents on every run)
    read = refused = unsaid = 0
    for _ in range(MUTATIONS):
        data = mutated(chance.choice(samples), chance)
        try:
            facts = read_bytes(data)
        except InputError as error:
            refused += 1
            unsaid += not (error.where and error.why)
            continue
        read += 1
        # What was read passes the border that facts of strangers must pass, and comes out the same.
        again = read_facts_json(decode("again", json.dumps(to_json(facts)).encode()))
        assert again == facts
    assert not unsaid
    return read, refused


def test_accidents_to_our_own_samples_are_read_or_refused() -> None:
    samples = [TWO_SOCKETS.encode(), PLAIN.encode(), FOUR.encode(), facts_json().encode()]
    read, refused = survive(samples, seed=20260105)
    assert read > 0
    assert refused > 0


def test_accidents_to_real_captures_are_read_or_refused() -> None:
    folder = os.environ.get("RAILWRIGHT_CAPTURES")
    if not folder:
        pytest.skip("RAILWRIGHT_CAPTURES is not set")
    files = sorted(path for kind in ("nccl_xml", "smi_topo") for path in (Path(folder) / kind).iterdir())
    read, refused = survive([path.read_bytes() for path in files], seed=20260106)
    assert read > 0
    assert refused > 0


# int() takes the digits of every script, and so does a \\d without re.ASCII; a middle dot is nobody's digit.
OTHER_DIGITS = {ord(str(digit)): chr(0x0660 + digit) for digit in range(10)}
DOTS = dict.fromkeys(
    (ord(character) for character in "0123456789" + "".join(OTHER_DIGITS.values())), "\u00b7"
)


def outcome(text: str) -> Any:
    """The facts as JSON text with every digit as a dot; None where the text is refused."""
    try:
        source = decode("capture", text.encode())
        return json.dumps(to_json(_READERS[detect(source)](source)), ensure_ascii=False).translate(DOTS)
    except InputError:
        return None


@pytest.mark.parametrize("kind", list(witness_samples.ALL))
def test_digits_of_another_script_are_no_digits(kind: str) -> None:
    """Line by line: a line with such digits says what it says with dots in their place, and no more."""
    lines = witness_samples.ALL[kind].split("\n")
    told = 0
    for n, line in enumerate(lines):
        foreign, dotted = (
            "\n".join([*lines[:n], line.translate(table), *lines[n + 1 :]])
            for table in (OTHER_DIGITS, {ord(digit): "\u00b7" for digit in "0123456789"})
        )
        assert outcome(foreign) == outcome(dotted), line
        told += foreign != dotted
    assert told
