"""Which reader reads a capture, facts as JSON, and captures that mean harm or are of another kind."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from railwright import captures
from railwright.captures.source import MAX_BYTES, MAX_CHARACTERS
from railwright.node.model import (
    C2c,
    Claim,
    Conflict,
    Cpus,
    Facts,
    Gpu,
    InputError,
    Link,
    Nic,
    NumaNode,
    NvLink,
    PciDevice,
    Root,
    Witness,
    to_json,
)
from railwright.node.model import Path as Distance
from tests.unit.captures_text import capture

XML = '<?xml version="1.0"?><!-- ours --><system version="1"><cpu numaid="0"/></system>'
MATRIX = "\tGPU0\tNIC0\nGPU0\t X \tPIX\n"
FACTS = Facts(
    schema="railwright.facts/1",
    witnesses=(Witness("sysfs", "/"),),
    cpus=Cpus(arch="x86_64"),
    numa=(NumaNode(0, "0-3"),),
    roots=(Root("pci0000:15", 0),),
    pci=(
        PciDevice("0000:15:01.0", "pci0000:15", port="root"),
        PciDevice("0000:18:00.0", "0000:15:01.0", link=Link(max_speed=32.0, max_width=16)),
    ),
    gpus=(
        Gpu("GPU0", 0, "0000:18:00.0", cpus="0-3", nvlinks=(NvLink("0000:07:00.0", 18),), c2c=C2c(8, 43125)),
    ),
    nics=(Nic("mlx5_0", "0000:19:00.0", rdma="mlx5_0", netdev="enp25s0np0", rate=400000),),
    paths=(Distance("GPU0", "mlx5_0", "PIX"),),
    conflicts=(Conflict("GPU0-mlx5_0", (Claim("a", "PIX"), Claim("b", "SYS"))),),
    notes=("seen",),
)


def facts_json(**changes: Any) -> str:
    return json.dumps({**to_json(FACTS), **changes})


@pytest.mark.parametrize(
    ("text", "kind"),
    [(XML, "nccl-xml"), (MATRIX, "nvidia-smi"), (facts_json(), "sysfs")],
    ids=["xml", "matrix", "facts"],
)
def test_the_content_tells_the_format(tmp_path: Path, text: str, kind: str) -> None:
    assert capture(tmp_path, "\n\n" + text).witnesses[0].kind == kind


def test_facts_come_back_as_they_were(tmp_path: Path) -> None:
    assert capture(tmp_path, facts_json()) == FACTS


def test_a_paste_of_xml_may_have_a_prompt_and_a_fence_around_it(tmp_path: Path) -> None:
    facts = capture(tmp_path, f"```\n$ cat topo.xml\n{XML}\n```\n")
    assert facts.roots == (Root("numa0", 0),)
    with pytest.raises(InputError) as caught:
        capture(tmp_path, '$ cat topo.xml\n\n  <system>\n<cpu numaid="x"/></system>')
    assert caught.value.where == f"{tmp_path / 'capture'}:4: numaid"


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"\tGPU0\tNIC0\nGPU0\t X \tFAR\tPIX\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    with pytest.raises(InputError, match="stdin:2: row GPU0: 'FAR' is no distance"):
        captures.read([Path("-")])


def test_a_directory_is_a_machines_tree(tmp_path: Path) -> None:
    cpu = tmp_path / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text("0-1\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nvendor_id\t: GenuineIntel\n\n")
    assert captures.read([tmp_path]).witnesses == (Witness("sysfs", str(tmp_path)),)
    assert captures.read([tmp_path], "sysfs").cpus.online == "0-1"


def test_a_directory_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sys/devices/system/cpu: is not there"):
        captures.read([tmp_path])


def test_a_format_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_text(MATRIX)
    for format, why in (("nccl-xml", "is not XML"), ("facts", "is not JSON"), ("sysfs", "is no directory")):
        with pytest.raises(InputError, match=why):
            captures.read([path], format)
    with pytest.raises(InputError, match="is a directory"):
        captures.read([tmp_path], "facts")


# Each case: arguments and what must be said.
@pytest.mark.parametrize(
    ("paths", "format", "why"),
    [
        ([], "auto", "no file is given"),
        (["a"], "yaml", "unknown format 'yaml'"),
        (["a", "b"], "auto", "cannot be read: No such file or directory"),
        (["no/such/file"], "auto", "cannot be read: No such file or directory"),
    ],
)
def test_what_is_asked_for_in_vain_is_said(paths: list[str], format: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        captures.read([Path(path) for path in paths], format)
    assert why in str(caught.value)


def test_every_format_that_is_offered_is_known() -> None:
    assert set(captures.FORMATS) == {"auto", "facts", "sysfs", "nccl-xml", "nvidia-smi", "hwloc", "lspci"}


OTHER_KINDS = {
    "NCCL's graph": ('<graphs version="1"/>', "NCCL's graph file"),
    "some XML": ("<html><body/></html>", "no topology of NCCL"),
    "a letter": ("Dear team,\nthe node is slow.\n", "looks like no capture"),
    "nothing": ("", "is empty"),
    "blanks": (" \n\t\n", "is empty"),
    "gzip": (b"\x1f\x8b\x08\x00", "is no whole tar archive"),
    "bzip2": (b"BZh91AY", "is no whole tar archive"),
    "xz": (b"\xfd7zXZ\x00", "is no whole tar archive"),
    "lstopo's text": ("Machine (P#0 total=2004MiB)\n  Package L#0", "the text of lstopo"),
    "zip": (b"PK\x03\x04", "a zip archive"),
    "a screenshot": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "Latin-1": ("GPU0 GPU1\n\xfcber".encode("latin-1"), "is not utf-8 text: byte 10"),
    "half a UTF-16 character": (b"\xff\xfeG", "is not utf-16 text"),
    "a NUL": (b"GPU0\nGPU1\0", "holds a NUL byte"),
}


@pytest.mark.parametrize(("text", "why"), OTHER_KINDS.values(), ids=list(OTHER_KINDS))
def test_what_is_no_capture_is_named(tmp_path: Path, text: str | bytes, why: str) -> None:
    with pytest.raises(InputError) as caught:
        capture(tmp_path, text)
    assert caught.value.where.startswith(str(tmp_path / "capture"))
    assert why in caught.value.why
    assert caught.value.remedy


def test_a_nul_and_a_wrong_byte_are_told_with_their_line(tmp_path: Path) -> None:
    for text in (b"one\ntwo \0", b"one\ntwo \xff"):
        with pytest.raises(InputError) as caught:
            capture(tmp_path, text)
        assert caught.value.where == f"{tmp_path / 'capture'}:2"


def test_a_file_without_an_end_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES * 100)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        captures.read([path])
    with pytest.raises(InputError, match="larger than 16 MiB"):
        captures.read([Path("/dev/zero")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (XML.replace("ours", "x" * MAX_CHARACTERS), "larger than 4 MiB"),
        (MATRIX + "x" * MAX_CHARACTERS, "larger than 4 MiB"),
        (MATRIX + "\n" * 100_000, "more than 100000 lines"),
        (" ".join(f"GPU{n}" for n in range(300)) + "\nGPU0 X", "300 columns"),
        ("GPU0 GPU1\nGPU0 X " + "NV1" * 100_000, "distances for 2 columns"),
        ("GPU0 GPU1\nGPU0 X SYS\n" + "> " * 500_000, ""),
        ("GPU0 GPU1\nGPU0 X SYS\n" + "\x1b[" * 500_000, ""),
        ("GPU0 GPU1\nGPU0 X SYS\n" + "GPU " * 250_000, ""),
    ],
    ids=["xml", "matrix", "lines", "columns", "glue", "quotes", "escapes", "words"],
)
def test_what_is_made_to_tire_a_reader_out_is_bounded(tmp_path: Path, text: str, why: str) -> None:
    said = ""
    try:
        capture(tmp_path, text)
    except InputError as error:
        said = error.why
    assert why in said
    assert bool(why) == bool(said)


def test_a_long_chain_of_bridges_is_climbed_once(tmp_path: Path) -> None:
    length = 40_000
    names = [f"{n // 32:04x}:00:{n % 32:02x}.0" for n in range(length)]
    chain = [{"address": name, "parent": names[n - 1] if n else None} for n, name in enumerate(names)]
    assert len(capture(tmp_path, facts_json(pci=chain[::-1])).pci) == length


# Each case: the JSON and what must be said.
BAD_FACTS = {
    "no JSON": ('{"schema": ', "1:12: is not JSON"),
    "a list": ('[{"schema": "railwright.facts/1"}]', "is JSON, but no facts"),
    "another object": ('{"gpus": []}', "is JSON, but no facts"),
    "a plan": (
        '{"schema": "railwright.plan/1", "status": "planned"}',
        "is railwright.plan/1, not a machine's facts",
    ),
    "a future": (facts_json(schema="railwright.facts/2"), "expected 'railwright.facts/1'"),
    "an unknown key": (facts_json(colour="red"), ".colour: unknown key"),
    "a key twice": (
        '{"schema": "railwright.facts/1", "schema": "railwright.facts/1"}',
        "'schema' stands twice",
    ),
    "a bool for a number": (
        facts_json(gpus=[{"name": "GPU0", "index": True}]),
        "gpus[0].index: expected int, found bool",
    ),
    "no number": (facts_json().replace("32.0", "NaN"), "NaN is no JSON number"),
    "a number beyond all": (facts_json().replace("32.0", "1e999"), "1e999 is no JSON number"),
    "a number without an end": (facts_json().replace("400000", "4" * 10_000), "a number that no machine has"),
    "a well": ("[" * 100_000 + "{", ""),
    "a well of objects": ('{"a":' * 100_000, "nested too deeply"),
    "an address in capitals": (facts_json().replace("0000:19:00.0", "0000:19:00.A"), "nics[0].address"),
    "an address of nvidia-smi": (
        facts_json().replace('"0000:19:00.0"', '"00000000:19:00.0"'),
        "expected '0000:19:00.0'",
    ),
    "a CPU list that is none": (
        facts_json(numa=[{"id": 0, "cpus": "all"}]),
        "numa[0].cpus: 'all' is no CPU list",
    ),
    "a distance that is none": (
        facts_json(paths=[{"a": "GPU0", "b": "mlx5_0", "level": "NEAR"}]),
        "paths[0].level",
    ),
    "a name that would break a file": (
        facts_json().replace("enp25s0np0", "eth0\\nNCCL_DEBUG=INFO"),
        "nics[0].netdev",
    ),
    "two GPUs of one name": (
        facts_json(gpus=[{"name": "GPU0", "index": n} for n in (0, 1)]),
        "gpus[1].name: 'GPU0' stands twice",
    ),
    "two GPUs of one index": (
        facts_json(gpus=[{"name": f"GPU{n}", "index": 0} for n in (0, 1)]),
        "gpus[1].index",
    ),
    "a function twice": (facts_json(pci=[{"address": "0000:01:00.0", "parent": None}] * 2), "pci[1].address"),
    "a ring of bridges": (
        facts_json(pci=[{"address": f"0000:0{n}:00.0", "parent": f"0000:0{3 - n}:00.0"} for n in (1, 2)]),
        "is its own parent",
    ),
}


@pytest.mark.parametrize(("text", "why"), BAD_FACTS.values(), ids=list(BAD_FACTS))
def test_facts_that_are_none_are_refused_with_their_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        capture(tmp_path, text, "facts.json")
    assert str(caught.value).startswith(str(tmp_path / "facts.json"))
    assert why in str(caught.value)
