"""Reading a bundle: whole ones are read, damaged and hostile ones refused by name, and nothing lands on disk."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railwright import captures
from railwright.captures.bundle import is_bundle
from railwright.collect.bundle import CONTENTS, FACTS, TOOLS, members, pack, write_new
from railwright.node.model import Facts, InputError, Tool, Witness, to_json

from .collect_support import tar

FACTS_JSON = json.dumps(to_json(Facts("railwright.facts/1", (Witness("sysfs", "/"),)))).encode()
LIST = (CONTENTS, b"list\n")
GOOD = (LIST, (FACTS, FACTS_JSON))


def read(folder: Path, data: bytes) -> Facts:
    path = folder / "bundle.tar.gz"
    path.write_bytes(data)
    before = _beside(folder)
    try:
        return captures.read([path])
    finally:
        assert _beside(folder) == before


def _beside(folder: Path) -> list[Path]:
    """What is in the folder and next to it: a member that escapes by `..` would land there."""
    return sorted([*folder.rglob("*"), *folder.parent.iterdir()])


def link(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_a_bundle_gives_its_facts_and_its_tools_back(tmp_path: Path) -> None:
    tools = (
        Tool("lspci", ("lspci", "-D"), 0, "0000:0c:00.0 x\n\ny"),
        Tool("mlnx_qos-a/b", ("mlnx_qos", "-i", "a/b"), None, ""),
    )
    facts = Facts("railwright.facts/1", (Witness("sysfs", "/"),), tools=tools)
    got = read(tmp_path, pack({CONTENTS: b"list\n", **members(facts)}))
    assert got.tools == tools
    assert got.witnesses == (Witness("sysfs", str(tmp_path / "bundle.tar.gz")),)


def test_a_bundle_that_tar_packed_again_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(tar(*GOOD))).schema == "railwright.facts/1"


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (tar(LIST), "holds no railwright-bundle/facts.json"),
        (tar(*GOOD, ("../../etc/cron.d/x", b"x")), "does not belong"),
        (tar(*GOOD, ("/etc/cron.d/x", b"x")), "does not belong"),
        (tar(*GOOD, (f"{TOOLS}../../x.txt", b"x")), "does not belong"),
        (tar(*GOOD, (f"{TOOLS}a\nb.txt", b"x")), "does not belong"),
        (tar(LIST, link(FACTS, tarfile.SYMTYPE)), "is no plain file"),
        (tar(LIST, link(FACTS, tarfile.LNKTYPE, CONTENTS)), "is no plain file"),
        (tar(LIST, link(FACTS, tarfile.FIFOTYPE)), "is no plain file"),
        (tar(LIST, link(FACTS, tarfile.CHRTYPE)), "is no plain file"),
        (tar(*GOOD, link(TOOLS, tarfile.DIRTYPE)), "is no plain file"),
        (tar(*GOOD, (FACTS, FACTS_JSON)), "stands twice"),
        (tar(*GOOD, *((f"{TOOLS}{n}.txt", b"{}\n") for n in range(300))), "holds more than 200 files"),
        (tar(LIST, (FACTS, b"{")), "is not JSON"),
        (tar(LIST, (FACTS, b'{"schema": "railwright.plan/1"}')), "not a machine's facts"),
        (tar(LIST, (FACTS, FACTS_JSON.replace(b'"complete"', b'"complet"'))), "unknown key"),
        (tar(LIST, (FACTS, b"\xff\xfe\xfd")), "is not"),
        (tar(*GOOD, (f"{TOOLS}01-lspci.txt", b"lspci\nx")), "is no line of JSON"),
        (tar(*GOOD, (f"{TOOLS}01-lspci.txt", b'{"name": 1, "argv": [], "code": 0}\n')), "expected str"),
        (tar(*GOOD, (f"{TOOLS}01-lspci.txt", b'{"name": "x"}\n')), "does not say"),
        (tar(*GOOD)[:2048], "is damaged"),
    ],
)
def test_what_no_bundle_holds_is_refused_and_named(packed: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, gzip.compress(packed))
    assert words in str(refused.value)
    assert "bundle.tar.gz" in refused.value.where


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(tar(*GOOD))[:-20], "is cut"),
        (gzip.compress(tar(*GOOD)) + b"more", "has more after its end"),
        (gzip.compress(tar(*GOOD)) + gzip.compress(b"x"), "has more after its end"),
        (gzip.compress(tar(*GOOD))[:-8] + bytes(8), "is damaged"),
    ],
)
def test_a_damaged_archive_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, data)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as stream:
        stream.write(tar(LIST)[:1024])
        for _ in range(400):
            stream.write(bytes(1024 * 1024))
    assert len(out.getvalue()) < 4 * 1024 * 1024
    tracemalloc.start()
    # Another test may have been tracing already.
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with pytest.raises(InputError, match="unpacks to more than 32 MiB"):
        read(tmp_path, out.getvalue())
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 256 * 1024 * 1024


def test_a_bundle_is_a_new_file_and_no_link_is_followed(tmp_path: Path) -> None:
    there, dangling = tmp_path / "there", tmp_path / "link"
    there.write_bytes(b"mine")
    dangling.symlink_to(tmp_path / "elsewhere")
    for path in (there, dangling):
        with pytest.raises(InputError, match="is there already"):
            write_new(path, b"new")
    assert there.read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_a_member_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo(FACTS)
    info.size = 10**9
    with pytest.raises(InputError, match=r"is damaged|is cut"):
        read(tmp_path, gzip.compress(tar(LIST)[:1024] + info.tobuf()))


@given(st.data())
def test_a_bundle_with_a_changed_byte_is_read_or_refused_and_never_breaks(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = tar(*GOOD, (f"{TOOLS}01-x.txt", b'{"name": "x", "argv": ["x"], "code": 0}\nsaid'))[:5120]
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    path = tmp_path_factory.getbasetemp() / "changed.tar.gz"
    path.write_bytes(gzip.compress(changed))
    with contextlib.suppress(InputError):
        assert isinstance(captures.read([path]), Facts)


def test_only_a_bundle_is_taken_for_one(tmp_path: Path) -> None:
    for name, data in (
        ("empty", b""),
        ("text", b"GPU0 X"),
        ("gz", gzip.compress(b"x")),
        ("cut", b"\x1f\x8b\x08"),
    ):
        (tmp_path / name).write_bytes(data)
        assert not is_bundle(tmp_path / name)
    (tmp_path / "tree.tar.gz").write_bytes(gzip.compress(tar(("sys/x", b"x"))))
    assert not is_bundle(tmp_path / "tree.tar.gz")
    assert not is_bundle(tmp_path / "absent")
    assert not is_bundle(tmp_path)
