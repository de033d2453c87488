"""Files that mean harm, 100 MB of each shape: refused with a sentence, in bounded time and memory.

Each is read by a process of its own that may use 20 seconds of processor and 256 MiB of address space, and must stay
below 200 MB of memory. So must one that reads every capture there is.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import to_json
from tests.machinery import build
from tests.unit import witness_samples as samples

MB = 1_000_000
MIB = 2**20
# VmHWM is the process's own; getrusage's ru_maxrss starts with the memory of the process that forked it.
CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from pathlib import Path
from railwright.captures import read
from railwright.node.model import InputError
said = []
for name in sys.argv[1:]:
    try:
        read([Path(name)])
        said.append("")
    except InputError as error:
        said.append(str(error))
memory = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([said, int(memory.split()[1])]))
"""


def read_apart(*paths: Path) -> tuple[list[str], float]:
    """What a process of its own says of these files ("" is read), and the most memory that it had, in MB."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-400:]}"
    said, kilobytes = json.loads(done.stdout)
    return said, kilobytes / 1000


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, data: bytes) -> bytes:
    return header(name, len(data)) + data + bytes(-len(data) % 512)


Make = Callable[[Path], object]


def many_headers(count: int) -> Iterable[bytes]:
    """Headers of empty files f0000000, f0000001, ...: only the number and the checksum differ."""
    first = bytearray(header("m/sys/devices/f0000000"))
    at, total = first.index(b"f0000000") + 1, int(bytes(first[148:154]), 8)
    for n in range(count):
        digits = b"%07d" % n
        first[at : at + 7] = digits
        first[148:154] = b"%06o" % (total + sum(digits) - 7 * ord("0"))
        yield bytes(first)


MACHINE = member("m/sys/devices/system/cpu/online", b"0-1\n") + member("m/proc/cpuinfo", b"processor : 0\n")
END = bytes(1024)
BUNDLE = member("railwright-bundle/CONTENTS.txt", b"list\n")


def repeated(*parts: tuple[bytes, int]) -> Make:
    """Each part as often as it says."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            for part, times in parts:
                block = part * max(1, min(times, MIB // len(part)))
                for _ in range(times * len(part) // len(block)):
                    file.write(block)

    return write


def packed(pack: Callable[[bytes], bytes], parts: Callable[[], Iterable[bytes]]) -> Make:
    return lambda path: path.write_bytes(pack(b"".join(parts())))


def joined(parts: Callable[[], Iterable[bytes]]) -> Make:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            for part in parts():
                file.write(part)

    return write


def hole(start: bytes) -> Make:
    """A file that says it has 100 MB, and has what it begins with."""

    def write(path: Path) -> None:
        path.write_bytes(start)
        os.truncate(path, 100 * MB)

    return write


def quick(data: bytes) -> bytes:
    return gzip.compress(data, 1)


def squeezed(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def bomb() -> Iterable[bytes]:
    return header("m/abc", 10**10), bytes(200 * MIB)


def table(name: str, lines: Callable[[], Iterable[bytes]]) -> Make:
    """An archive of a machine with this file of these lines."""
    return joined(lambda: (MACHINE, member(name, b"".join(lines())), END))


def entities() -> Iterable[bytes]:
    yield b'<!DOCTYPE system [<!ENTITY a0 "ha">'
    yield from (b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 20))
    yield b"]><system>&a19;</system>"


def long_header(name: str, kind: bytes) -> Make:
    return joined(lambda: (header(name, 90 * MIB, kind), b"a" * (90 * MIB), header("x")))


EMOJI = "\U0001f600".encode()
TWO = b"\tGPU0\tGPU1\n"
ONLINE = member("m/sys/devices/system/cpu/online", b"0\n")
LARGER = "larger than 16 MiB"
# Each: how the file is made, and the words that its refusal must hold.
SHAPES: dict[str, tuple[Make, str]] = {
    "one line of a letter": (repeated((b"a", 100 * MB)), LARGER),
    "one line just below the limit": (repeated((b"a", 16 * MB)), "no capture"),
    "empty lines": (repeated((b"a", 1), (b"\n", 16 * MB)), "no capture"),
    "empty lines of a log's size": (repeated((b"a", 1), (b"\n", 4 * MB)), "no capture"),
    "a character of four bytes": (repeated((b"a ", 8 * MB), (EMOJI, 1)), "no capture"),
    "nothing on the disk": (hole(b""), LARGER),
    "matrix rows": (repeated((TWO, 1), (b"GPU0\t X \tSYS\n", 7 * MB)), LARGER),
    "a matrix and blank lines": (repeated((TWO, 1), (b"\n", 99_900), (EMOJI, 1)), "without rows"),
    "a matrix and quotes": (repeated((TWO, 1), (b"> ", 2 * MB)), "without rows"),
    "a matrix and cut colours": (repeated((TWO, 1), (b"\x1b[", 2 * MB)), "without rows"),
    "deep XML": (repeated((b"<system>", 1), (b"<a>", 33 * MB)), LARGER),
    "deep XML of a log's size": (repeated((b"<system>", 1), (b"<a>", MB)), "deeper than 64"),
    "flat XML": (
        repeated((b'<system version="1"><cpu numaid="0">', 1), (b"<pci/>", 600_000)),
        "20000 elements",
    ),
    "one attribute": (repeated((b'<system a="', 1), (b"a", 4 * MB)), "is not XML"),
    "laughing entities": (joined(entities), "a DTD or entities"),
    "one large entity": (
        repeated(
            (b'<!DOCTYPE system [<!ENTITY a "', 1), (b"a", 3 * MB), (b'">]><system>', 1), (b"&a;", 200_000)
        ),
        "a DTD or entities",
    ),
    "lists in JSON": (repeated((b"[", 1), (b"{},", 5 * MB), (b"0]", 1)), "400000 values"),
    "deep JSON": (repeated((b'{"a":', 100_000)), "nested too deeply"),
    "a long number in JSON": (repeated((b'{"schema":', 1), (b"9", 4 * MB), (b"}", 1)), "number"),
    "lspci": (repeated((b"00:00.0 PCI bridge: x\n", 5 * MB)), LARGER),
    "a drawing": (repeated((b"-[0000:00]-+-00.0\n", 1), (b" |", 2 * MB), (b"x", 1)), "line of the drawing"),
    "a gzip bomb": (packed(quick, bomb), "unpacks to more than 128 MiB"),
    "a bzip2 bomb": (packed(bz2.compress, bomb), "unpacks to more than 128 MiB"),
    "an xz bomb": (packed(squeezed, bomb), "unpacks to more than 128 MiB"),
    "many tiny members": (
        joined(lambda: many_headers(125_000)),
        "holds more than 120000 files",
    ),
    "many members beside": (
        repeated((header("m/x"), 201_000)),
        "holds more than 200000 members",
    ),
    "a long name": (
        long_header("././@LongLink", tarfile.GNUTYPE_LONGNAME),
        "a name or header of 94371840 bytes",
    ),
    "a long pax header": (long_header("x", tarfile.XHDTYPE), "a name or header of 94371840 bytes"),
    "a member that is a hole": (hole(MACHINE + header("m/sys/big", 100 * MB)), "which are small"),
    "a sparse member": (
        joined(lambda: (MACHINE, header("m/sys/x", 10**9, tarfile.GNUTYPE_SPARSE), END)),
        "no whole tar",
    ),
    "many fields of cpuinfo": (
        joined(
            lambda: (
                ONLINE,
                member("m/proc/cpuinfo", b"".join(b"f%d:b\n" % n for n in range(1_000_000))),
                END,
            )
        ),
        "holds more than 500 fields",
    ),
    "many interrupts": (
        table("m/proc/interrupts", lambda: (b"CPU0\n", *(b"%d: 1 c 1 a\n" % n for n in range(800_000)))),
        "more than 102400 interrupts",
    ),
    "a bundle that is a bomb": (
        packed(quick, lambda: (BUNDLE, bytes(200 * MIB))),
        "unpacks to more than 32 MiB",
    ),
    "a bundle of deep JSON": (
        packed(quick, lambda: (BUNDLE, member("railwright-bundle/facts.json", b'{"a":' * 3_000_000), END)),
        "values",
    ),
}


@pytest.mark.parametrize(("make", "word"), SHAPES.values(), ids=list(SHAPES))
def test_a_file_that_means_harm_is_refused_in_bounded_time_and_memory(
    make: Make, word: str, tmp_path: Path
) -> None:
    path = tmp_path / "hostile"
    make(path)
    (said,), memory = read_apart(path)
    path.unlink()
    print(f"{memory:.0f} MB: {said[-100:]}")
    assert word in said
    assert said.startswith(str(path))
    assert memory < 200


def test_a_ring_and_a_long_chain_of_links_end(tmp_path: Path) -> None:
    path = tmp_path / "links.tar"
    ring = (header(f"m/sys/class/net/r{n}", 0, tarfile.SYMTYPE, f"r{(n + 1) % 300}") for n in range(300))
    chain = (header(f"m/sys/class/infiniband/l{n}", 0, tarfile.SYMTYPE, f"l{n + 1}") for n in range(20_000))
    joined(lambda: (MACHINE, *ring, *chain, END))(path)
    (said,), memory = read_apart(path)
    assert said == ""
    assert memory < 200


def test_a_tree_on_the_disk_is_bounded_too(tmp_path: Path) -> None:
    for name, text in (("sys/devices/system/cpu/online", "0\n"), ("proc/cpuinfo", "processor : 0\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    table = tmp_path / "proc/interrupts"
    wide = b"CPU0 " * 4000 + b"\n"
    line = b"1: " + b"1 " * 4000 + b"c  \xf0\x9f\x98\x80\n"
    table.write_bytes(wide + line * (40 * MIB // len(line)))
    (said,), memory = read_apart(tmp_path)
    assert said == ""
    print(f"{memory:.0f} MB for 40 MiB of interrupts")
    assert memory < 200
    os.truncate(table, 100 * MB)
    (said,), memory = read_apart(tmp_path)
    assert "proc/interrupts: is larger than" in said
    assert memory < 200


def test_reading_every_capture_takes_less_than_200_mb(tmp_path: Path) -> None:
    """All in one process, so that the largest counts; then lists four times as long as the largest public one."""
    folder = os.environ.get("RAILWRIGHT_CAPTURES")
    paths = sorted(Path(folder).glob("*/*")) if folder else []
    for n, text in enumerate(samples.ALL.values()):
        (tmp_path / f"sample{n}").write_text(text)
    tree = tmp_path / "machine"
    build(Path(__file__).parents[1] / "machines/2s_8xh100_10xcx7", tree)
    (tmp_path / "facts.json").write_text(json.dumps(to_json(discover(tree)), indent=1))
    with tarfile.open(tmp_path / "machine.tar", "w") as archive:
        archive.add(tree, "m")
    block = samples.LSPCI.partition("\n\n")[0] + "\n"
    functions = (f"{n >> 3:02x}:{n & 7:02x}.0" for n in range(2040))
    (tmp_path / "lspci").write_text(
        "\n".join(f"{name}{block[7:]}".replace("\tBus:", "\tOld:") for name in functions)
    )
    own = sorted(tmp_path.iterdir())
    said, memory = read_apart(*paths, *own)
    print(f"{len(said)} captures, {sum(not text for text in said)} read, {memory:.0f} MB at most")
    assert memory < 200
    assert [text for path, text in zip([*paths, *own], said, strict=True) if path in own and text] == []
