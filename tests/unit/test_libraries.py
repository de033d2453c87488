"""Which library is really loaded: against ld.so itself on this machine, and on trees made by hand."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from railwright.cli import main
from railwright.node.discover.tree import Tree
from railwright.node.libraries import Audit, audit
from railwright.node.libraries.elf import read
from railwright.node.libraries.loader import Loader, read_cache

X86_64 = 62
PACKAGES = "opt/torch/lib/python3.12/site-packages"


def library(
    root: Path,
    path: str,
    *needed: str,
    soname: str = "",
    rpath: str = "",
    runpath: str = "",
    text: bytes = b"",
    machine: int = X86_64,
) -> None:
    """A shared object with nothing but its dynamic section, by the System V ABI's tables."""
    strings = b"\0"
    entries = []
    for tag, names in ((1, needed), (14, (soname,)), (15, (rpath,)), (29, (runpath,))):
        for name in filter(None, names):
            entries.append((tag, len(strings)))
            strings += name.encode() + b"\0"
    base = 0x10000
    table = 64 + 2 * 56
    entries += [(5, base + table), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    start = table + len(strings)
    size = start + len(dynamic)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, size, size, 0x1000)
    section = struct.pack("<IIQQQQQQ", 2, 4, start, base + start, base + start, len(dynamic), len(dynamic), 8)
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header + load + section + strings + dynamic + text)


def cache(root: Path, **paths: str) -> None:
    """/etc/ld.so.cache with these names, in the format of glibc 2.32 and later."""
    pairs = [(name.replace("__", "."), path) for name, path in paths.items()]
    texts, places = b"", []
    start = 48 + 24 * len(pairs)
    for pair in pairs:
        ends = []
        for text in pair:
            ends.append(start + len(texts))
            texts += text.encode() + b"\0"
        places.append(ends)
    data = b"glibc-ld.so.cache1.1" + struct.pack("<IIIIIII", len(pairs), len(texts), 2, 0, 0, 0, 0)
    data += b"".join(struct.pack("<iIIIQ", 0x303, *place, 0, 0) for place in places)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(data + texts)


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd (glibc)")
@pytest.mark.parametrize("program", ["git", "ssh", "curl", "gcc", "perl", "bash", "tar", sys.executable])
def test_the_loader_finds_what_ldd_finds(program: str) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"needs {program}")
    real = str(Path(path).resolve())
    listing = subprocess.run(["ldd", real], capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip(f"{program} is no dynamic program")
    expected = {
        name.strip(): str(Path(told.split(" (")[0]).resolve())
        for name, mark, told in (line.partition(" => ") for line in listing.stdout.splitlines())
        if mark and told.startswith("/")
    }
    assert expected
    found = {
        one.name: str(Path("/" + one.path).resolve())
        for one in Loader(Tree(Path("/"))).load(real.lstrip("/"))[1:]
        if one.path and not one.name.startswith("ld-linux")
    }
    assert found == expected


def test_an_rpath_reaches_down_and_a_runpath_does_not(tmp_path: Path) -> None:
    """ld.so(8): DT_RPATH of an object is used for its children's names as well, DT_RUNPATH for its own alone."""
    for tag, found in (("rpath", "opt/app/lib/libdeep.so.1"), ("runpath", None)):
        root = tmp_path / tag
        folder = "$ORIGIN/lib"
        library(
            root,
            "opt/app/main",
            "libmid.so.1",
            rpath=folder if tag == "rpath" else "",
            runpath=folder if tag == "runpath" else "",
        )
        library(root, "opt/app/lib/libmid.so.1", "libdeep.so.1")
        library(root, "opt/app/lib/libdeep.so.1")
        loaded = {one.name: one.path for one in Loader(Tree(root)).load("opt/app/main")}
        assert loaded["libmid.so.1"] == "opt/app/lib/libmid.so.1"
        assert loaded["libdeep.so.1"] == found


def test_a_library_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    library(tmp_path, "opt/app/main", "libone.so.1", runpath="/opt/arm:/opt/x86")
    library(tmp_path, "opt/arm/libone.so.1", machine=183)
    library(tmp_path, "opt/x86/libone.so.1")
    assert [one.path for one in Loader(Tree(tmp_path)).load("opt/app/main")] == [
        "opt/app/main",
        "opt/x86/libone.so.1",
    ]


def runtime(root: Path, wheel: str = "2.28.9", system: str = "2.28.3") -> Audit:
    """The first report of the field case: PyTorch with its own NCCL, another one in the system."""
    library(
        root, f"{PACKAGES}/torch/_C.cpython-312-x86_64-linux-gnu.so", "libtorch.so", runpath="$ORIGIN/lib"
    )
    library(
        root, f"{PACKAGES}/torch/lib/libtorch.so", "libtorch_cuda.so", soname="libtorch.so", rpath="$ORIGIN"
    )
    library(
        root,
        f"{PACKAGES}/torch/lib/libtorch_cuda.so",
        "libnccl.so.2",
        "libcudart.so.13",
        rpath="$ORIGIN/../../nvidia/nccl/lib:${ORIGIN}/../../nvidia/cu13/lib:$ORIGIN",
    )
    for path, version in (
        (f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2", wheel),
        (f"usr/lib/x86_64-linux-gnu/libnccl.so.{system}", system),
    ):
        library(root, path, soname="libnccl.so.2", text=f"\0NCCL version {version}+cuda13.0\0".encode())
    (root / "usr/lib/x86_64-linux-gnu/libnccl.so.2").symlink_to(f"libnccl.so.{system}")
    library(root, f"{PACKAGES}/nvidia/cu13/lib/libcudart.so.13", soname="libcudart.so.13")
    (root / PACKAGES / "nvidia_cuda_runtime-13.0.96.dist-info").mkdir()
    cache(root, libnccl__so__2="/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    return audit(Tree(root), expect=[("libnccl", system)])


def test_a_wheel_that_brings_its_own_nccl_is_told_with_both_versions(tmp_path: Path) -> None:
    found = runtime(tmp_path)
    assert {(copy.library, copy.version) for copy in found.copies} == {
        ("libnccl", "2.28.9"),
        ("libnccl", "2.28.3"),
        ("libcudart", "13.0.96"),
    }
    (torch,) = found.runtimes
    assert [(copy.library, copy.version) for copy, _ in torch.loads] == [
        ("libnccl", "2.28.9"),
        ("libcudart", "13.0.96"),
    ]
    assert [finding.code for finding in found.findings] == [
        "libraries.other_version",
        "libraries.two_answers",
    ]
    assert "libnccl 2.28.9" in found.findings[0].why
    assert "2.28.3 from /usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3" in found.findings[1].why


def test_one_version_everywhere_is_no_finding(tmp_path: Path) -> None:
    assert runtime(tmp_path, "2.30.7", "2.30.7").findings == ()


def test_a_version_is_met_by_any_that_begins_with_it_in_whole_parts(tmp_path: Path) -> None:
    runtime(tmp_path, "2.28.9", "2.28.9")
    assert audit(Tree(tmp_path), expect=[("libnccl", "2.28")]).findings == ()
    (other,) = audit(Tree(tmp_path), expect=[("libnccl", "2.2")]).findings
    assert other.code == "libraries.other_version"


def test_two_wheels_that_write_one_file_and_a_missing_library_are_told(tmp_path: Path) -> None:
    runtime(tmp_path, "2.28.3", "2.28.3")
    for name in ("nvidia_nccl_cu11-2.14.3", "nvidia_nccl_cu12-2.27.3"):
        (tmp_path / PACKAGES / f"{name}.dist-info").mkdir()
    (tmp_path / PACKAGES / "nvidia/cu13/lib/libcudart.so.13").unlink()
    found = audit(Tree(tmp_path))
    assert [finding.code for finding in found.findings] == ["libraries.two_wheels", "libraries.missing"]
    assert "nvidia_nccl_cu11 2.14.3 and nvidia_nccl_cu12 2.27.3" in found.findings[0].why
    assert "libcudart.so.13" in found.findings[1].why


def test_a_process_tells_what_it_holds_and_what_was_replaced_under_it(tmp_path: Path) -> None:
    runtime(tmp_path, "2.28.3", "2.28.3")
    for pid, path in (
        (41, f"/{PACKAGES}/nvidia/nccl/lib/libnccl.so.2"),
        (42, "/usr/lib/libnccl.so.2.20.5 (deleted)"),
        (43, "/usr/lib/libc.so.6"),
    ):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "comm").write_text("python3\n")
        (folder / "maps").write_text(f"7f00-7f01 r-xp 00000000 08:01 99    {path}\n" * 2)
    found = audit(Tree(tmp_path), expect=[("libnccl", "2.28.4")])
    assert [(process.pid, len(process.copies), process.deleted) for process in found.processes] == [
        (41, 1, ()),
        (42, 0, ("/usr/lib/libnccl.so.2.20.5",)),
    ]
    assert [finding.code for finding in found.findings] == [
        "libraries.other_version",
        "libraries.other_version_runs",
        "libraries.replaced",
    ]


def test_a_search_path_for_everybody_is_told(tmp_path: Path) -> None:
    (tmp_path / "etc/profile.d").mkdir(parents=True)
    (tmp_path / "etc/profile.d/cuda.sh").write_text("export LD_LIBRARY_PATH=/usr/local/cuda/lib64\n")
    (tmp_path / "etc/environment").write_text("# LD_LIBRARY_PATH=/nothing\nPATH=/usr/bin\n")
    (finding,) = audit(Tree(tmp_path)).findings
    assert (finding.code, finding.where) == ("libraries.global_path", "/etc/profile.d/cuda.sh")


def test_links_in_circles_and_out_of_the_tree_end(tmp_path: Path) -> None:
    folder = tmp_path / "opt/a"
    folder.mkdir(parents=True)
    (folder / "back").symlink_to("../a")
    (folder / "libnccl.so.2").symlink_to("/etc/passwd")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/local").symlink_to("/usr/lib")
    assert audit(Tree(tmp_path)).copies == ()


def test_damaged_objects_are_no_libraries(tmp_path: Path) -> None:
    """Every byte of the headers set to 255 and to 0, and every cut: no crash, and no more memory than the file."""
    library(tmp_path, "one.so", "liba.so.1", soname="one.so", rpath="/lib")
    whole = (tmp_path / "one.so").read_bytes()
    for place in range(len(whole)):
        for damaged in (
            whole[:place],
            whole[:place] + b"\xff" + whole[place + 1 :],
            whole[:place] + b"\0" + whole[place + 1 :],
        ):
            (tmp_path / "bad.so").write_bytes(damaged)
            with open(tmp_path / "bad.so", "rb") as file:
                read(file)
    for place in range(200):
        read_cache(b"glibc-ld.so.cache1.1" + bytes([255]) * place)


def test_the_verb_prints_exits_by_what_it_finds_and_refuses_nonsense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime(tmp_path)
    assert main(["audit", "libraries", "--root", str(tmp_path), "--expect", "libnccl=2.28.3"]) == 1
    out = capsys.readouterr().out
    assert "PyTorch at /opt/torch" in out
    assert "opened by name alone" in out
    assert main(["audit", "libraries", "--root", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "libraries.two_answers"
    for wrong in ("nccl=2", "libnccl", "libnccl=new", "libnccl=\u00b2", "libnccl=2..3"):
        assert main(["audit", "libraries", "--expect", wrong]) == 2
        assert "--expect" in capsys.readouterr().err
    assert main(["audit", "libraries", "--root", str(tmp_path / "none")]) == 2
    capsys.readouterr()
    for place in ("otp", "../../etc", "opt/torch/none", "opt\0"):
        assert main(["audit", "libraries", place, "--root", str(tmp_path)]) == 2
        assert "directory" in capsys.readouterr().err or place.startswith("..")
    assert main(["audit", "libraries", "/opt/", "--root", str(tmp_path)]) == 1
