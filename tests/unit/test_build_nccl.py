"""Builds into packages: once, from a cache that knows what it holds, and nothing half-published.

The source is a small library with NCCL's make interface (tests/collectives), the compiler a stand-in that has g++ do
the work; `make lab-nccl` runs the same with a real nvcc.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from railwright.fleet import builds
from railwright.node.builder import Built, build, store
from railwright.node.builder.archive import keep, whole
from railwright.node.builder.model import read_place, read_requests
from railwright.node.builder.recipes import must_be_plain
from railwright.node.builder.worker import Worker
from railwright.node.durable import digest_of
from railwright.node.model import InputError, to_json
from railwright.node.state.outcome import Refused
from tests.unit.stack_support import B200, H100, V100, machine

TESTS = Path(__file__).resolve().parents[1]
MISSING = [
    name for name in ("make", "g++", "dpkg-deb", "git", "dpkg-shlibdeps") if shutil.which(name) is None
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here")

# What nvcc answers and takes, as far as the small library's makefiles go.
NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Cuda compilation tools, release %s, V%s"; exit; }
for word; do
    shift
    case "$word" in
        -gencode*) ;;
        -Xcompiler|-Xlinker) ;;
        -fPIC|-shared|-D*|-I*|-L*|-l*|-o) set -- "$@" "$word" ;;
        -soname=*) set -- "$@" "-Wl,$word" ;;
        *.cu) set -- "$@" -x c++ "$word" -x none ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec g++ "$@"
"""
CUOBJDUMP = """#!/bin/sh
for code in %s; do echo "ELF file 1: x.sm_$code.cubin"; done
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@dataclass
class Site:
    """A build node: its toolkit, its sources, where it builds."""

    folder: Path

    def toolkit(self, version: str = "13.0.88", codes: str | None = None) -> None:
        release = version.rsplit(".", 1)[0]
        self.program("cuda/bin/nvcc", NVCC % (release, version))
        if codes is not None:
            self.program("cuda/bin/cuobjdump", CUOBJDUMP % codes)

    def program(self, path: str, text: str) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        place.chmod(0o755)

    def request(self, **more: Any) -> dict[str, Any]:
        return {
            "product": "nccl", "source": {"folder": str(self.folder / "source")}, "toolkit": "13.0",
            "cuda": str(self.folder / "cuda"), "gencode": "-gencode=arch=compute_90,code=sm_90",
            "architectures": ["9.0"], "revision": "1.sm90", **more,
        }  # fmt: skip

    def place(self, **more: Any) -> dict[str, Any]:
        return {
            "scratch": str(self.folder / "scratch"),
            "cache": str(self.folder / "cache"),
            "space": 10,
            **more,
        }

    def build(self, *requests: dict[str, Any], **place: Any) -> Built:
        asked = read_requests(list(requests or (self.request(),)), "requests")
        return build(asked, read_place(self.place(**place), "place"))

    def refused(self, *requests: dict[str, Any], **place: Any) -> str:
        with pytest.raises(Refused) as told:
            self.build(*requests, **place)
        return f"{told.value.why} ({told.value.remedy})"

    def entries(self) -> list[Path]:
        return sorted(path for path in (self.folder / "cache").glob("nccl-*") if path.is_dir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    # The builder is another user, who has to reach the scratch folder.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    made = Site(tmp_path)
    shutil.copytree(TESTS / "collectives", tmp_path / "source")
    shutil.copytree(TESTS / "collectives_tests", tmp_path / "tests")
    made.toolkit()
    return made


def manifest(built: Built) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((Path(built.archive.folder) / store.MANIFEST).read_text("utf-8"))
    return read


# ----- once ----------------------------------------------------------------------------------------------------------


def test_a_build_makes_packages_with_an_index_and_a_manifest_that_other_tools_agree_with(site: Site) -> None:
    built = site.build()
    folder = Path(built.archive.folder)
    version = "2.0.1-1.sm90+cuda13.0"
    assert (built.made, built.archive.packages) == (("nccl",), {"libnccl2": version, "libnccl-dev": version})
    told = manifest(built)
    for name, row in told["files"].items():
        digest = subprocess.run(["sha256sum", folder / name], capture_output=True, text=True, check=True)
        assert digest.stdout.split()[0] == row["sha256"] == built.archive.files[name]
    (product,) = told["products"]
    assert product["inputs"]["tools"]["nvcc"] == "13.0.88"
    assert product["inputs"]["gencode"] == "-gencode=arch=compute_90,code=sm_90"
    listed = subprocess.run(
        ["dpkg-deb", "-c", next(folder.glob("libnccl2_*"))], capture_output=True, text=True, check=True
    )
    assert "libnccl.so.2.0.1" in listed.stdout
    index = (folder / "Packages").read_text("utf-8")
    assert index.count("Package: ") == index.count("\nSHA256: ") == 2
    assert not list((site.folder / "scratch").glob("nccl-*[!g]"))


def test_a_second_run_builds_nothing_and_says_so(site: Site) -> None:
    first = site.build()
    (entry,) = site.entries()
    stamp = entry.stat().st_ino
    again = site.build()
    assert (again.made, again.archive) == ((), first.archive)
    assert site.entries()[0].stat().st_ino == stamp
    wanted = builds.for_capabilities("13.0", {"9.0": ["n1"]})
    policy = builds.note(site.folder / "out", again, wanted)
    assert "nccl: taken from the cache, nothing was built" in builds.page(again, policy, wanted.notes)


@pytest.mark.parametrize("what", ["gencode", "compiler", "source", "mode", "revision", "variable"])
def test_whatever_decides_about_the_bytes_is_another_build(site: Site, what: str) -> None:
    site.build()
    request = site.request()
    if what == "gencode":
        request |= {"gencode": "-gencode=arch=compute_80,code=sm_80", "architectures": ["8.0"]}
    elif what == "compiler":
        site.toolkit("13.0.99")
    elif what == "source":
        (site.folder / "source/src/nccl.h").write_text("int ncclGetVersion(int *);\n", "utf-8")
        request["make"] = {"BROKEN": "-fpermissive"}
    elif what == "mode":
        (site.folder / "source/src/nccl.h").chmod(0o755)
    elif what == "revision":
        request["revision"] = "2"
    else:
        request["make"] = {"BROKEN": "-DMORE"}
    from railwright.node.builder.run import inputs

    asked = [read_requests([each], "r")[0] for each in (site.request(), request)]
    keys = [store.text_digest(inputs(each, "dpkg", None)) for each in asked]
    (entry,) = site.entries()
    assert entry.name != f"nccl-{keys[1]}"


def test_tests_are_built_with_mpi_against_the_library_that_was_built(site: Site) -> None:
    site.program("mpi/include/mpi.h", '#define MPICH_VERSION "4.1"\n')
    tests = site.request(
        product="nccl-tests", source={"folder": str(site.folder / "tests")}, mpi=str(site.folder / "mpi")
    )
    built = site.build(site.request(), tests)
    assert built.archive.packages["nccl-tests"] == "0.1.0-1.sm90+cuda13.0"
    package = next(Path(built.archive.folder).glob("nccl-tests_*"))
    for each in Path(built.archive.folder).glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", each, site.folder / "root"], check=True)
    program = next((site.folder / "root").rglob("all_reduce_perf"))
    libraries = next((site.folder / "root").rglob("libnccl.so.2")).parent
    said = subprocess.run(
        [program], env={"LD_LIBRARY_PATH": str(libraries)}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "nccl-tests 0.1.0, library 20001, with MPI\n"
    fields = subprocess.run(
        ["dpkg-deb", "-f", package, "Depends"], capture_output=True, text=True, check=True
    )
    assert "libnccl2 (>= 2.0.1)" in fields.stdout
    assert "libc6" in fields.stdout
    assert manifest(built)["products"][1]["inputs"]["tools"]["mpi"] == "MPICH 4.1"
    assert site.build(site.request(), tests).made == ()


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("rpmbuild", "createrepo_c", "rpm2cpio", "cpio")),
    reason="no rpmbuild or createrepo_c here",
)
def test_a_node_with_rpm_gets_rpms_and_their_repodata(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from railwright.node.builder import tools

    monkeypatch.setattr(tools, "system", lambda root="/": tools.RPM)
    site.program("mpi/include/mpi.h", '#define MPICH_VERSION "4.1"\n')
    tests = site.request(
        product="nccl-tests", source={"folder": str(site.folder / "tests")}, mpi=str(site.folder / "mpi")
    )
    built = site.build(site.request(), tests)
    version = "2.0.1-1.sm90+cuda13.0"
    assert built.archive.packages == {
        "libnccl": version, "libnccl-devel": version, "nccl-tests": "0.1.0-1.sm90+cuda13.0",
    }  # fmt: skip
    assert (built.archive.system, "repodata/repomd.xml" in built.archive.files) == ("rpm", True)
    package = next(Path(built.archive.folder).glob("nccl-tests-*.rpm"))
    wants = subprocess.run(["rpm", "-qpR", package], capture_output=True, text=True, check=True)
    assert "libnccl >= 2.0.1" in wants.stdout
    assert site.build(site.request(), tests).made == ()


# ----- a cache that knows what it holds ------------------------------------------------------------------------------


def _cut(entry: Path) -> None:
    package = next(entry.glob("libnccl2_*"))
    os.truncate(package, package.stat().st_size // 2)


def _change(entry: Path) -> None:
    package = next(entry.glob("libnccl2_*"))
    data = bytearray(package.read_bytes())
    data[-1] ^= 1
    package.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (_cut, "is not what its manifest says"),
    "changed": (_change, "is not what its manifest says"),
    "missing": (lambda entry: next(entry.glob("libnccl-dev*")).unlink(), "is missing"),
    "more": (lambda entry: (entry / "extra.deb").write_text("x"), "extra.deb is no part of it"),
    "manifest": (lambda entry: (entry / store.MANIFEST).write_text('{"files": '), "its manifest cannot be used"),
    "no manifest": (lambda entry: (entry / store.MANIFEST).unlink(), "its manifest cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_torn_or_tampered_entry_is_noticed_and_built_again(site: Site, kind: str) -> None:
    site.build()
    (entry,) = site.entries()
    damage, says = DAMAGE[kind]
    damage(entry)
    again = site.build()
    assert again.made == ("nccl",)
    (note,) = again.notes
    assert says in note
    assert note.endswith("it was built again")
    assert store.read(site.entries()[0])[1] == ""


def test_a_run_that_is_killed_publishes_nothing_half_and_the_next_one_builds(site: Site) -> None:
    # A slow compiler, so that the kill comes in its midst.
    site.program("cuda/bin/nvcc", (NVCC % ("13.0", "13.0.88")).replace("exec g++", "sleep 1; exec g++"))
    words = json.dumps([[site.request()], site.place()])
    code = (
        "import json, sys\nfrom railwright.node.builder import build\n"
        "from railwright.node.builder.model import read_place, read_requests\n"
        "requests, place = json.loads(sys.argv[1])\n"
        "build(read_requests(requests, 'r'), read_place(place, 'p'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src")}
    child = subprocess.Popen([sys.executable, "-c", code, words], env=environment)
    for _ in range(200):
        if list((site.folder / "scratch").glob("nccl-*/build")):
            break
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert site.entries() == []
    # What it had started still ends, and holds the lock until then.
    (lock,) = (site.folder / "cache").glob("*.lock")
    subprocess.run(["flock", lock, "true"], check=True, timeout=10)
    built = site.build()
    assert built.made == ("nccl",)
    assert store.read(site.entries()[0])[1] == ""


# ----- refusals ------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_what_to_do(site: Site) -> None:
    gone = site.request(cuda="/nowhere")
    assert "/nowhere/bin/nvcc is not there" in site.refused(gone)
    assert "nccl_build_cuda" in site.refused(gone)
    assert "is of CUDA 13.0, and 12.9 was asked for" in site.refused(site.request(toolkit="12.9"))
    assert "/nowhere is not there" in site.refused(site.request(source={"folder": "/nowhere"}))
    assert "has no Makefile at its top" in site.refused(
        site.request(source={"folder": str(site.folder / "cuda")})
    )
    assert "MiB free, and a build takes up to 9999999 MiB" in site.refused(space=9999999)
    gone = site.request(source={"tarball": "/nowhere.tar", "sha256": "0" * 64})
    assert "/nowhere.tar cannot be had: No such file" in site.refused(gone)
    assert site.entries() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="whom root builds as is told to root only")
def test_root_builds_as_somebody_else_and_never_as_root(site: Site) -> None:
    assert "has no user nobody-of-ours" in site.refused(user="nobody-of-ours")
    assert "root is root, and a build needs no such rights" in site.refused(user="root")
    with (site.folder / "source/src/Makefile").open("a", encoding="utf-8") as makefile:
        makefile.write("\n$(shell id -un > $(BUILDDIR)/../who)\n$(error stopped here)\n")
    site.refused()
    (who,) = (site.folder / "scratch").glob("nccl-*/who")
    assert who.read_text("utf-8").strip() == "nobody"


def test_nothing_of_a_build_goes_on_behind_it_and_no_link_of_it_is_read_by_root(site: Site) -> None:
    lock = os.open(site.folder / "lock", os.O_CREAT | os.O_RDWR)
    worker = Worker(read_place(site.place(), "place"), site.folder / "scratch/one", lock)
    worker.begin(0)
    said = worker.must(["sh", "-c", "sleep 300 & echo $!"])
    os.close(lock)
    page = Path(f"/proc/{said.out.strip()}/stat")
    for _ in range(500):  # a process that was killed is there until somebody has reaped it
        if not page.exists() or page.read_text("utf-8").rpartition(")")[2].split()[0] in "ZX":
            break
        time.sleep(0.01)
    else:
        pytest.fail("what the build has left behind still runs")
    (worker.folder / "evil_perf").symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="evil_perf is no plain file"):
        must_be_plain([worker.folder / "evil_perf"])


def test_a_build_node_cannot_name_a_folder_of_the_controller(site: Site) -> None:
    answer = to_json(site.build())
    assert builds.admitted(answer).archive.sha256 == answer["archive"]["sha256"]
    answer["archive"]["sha256"] = "../../../home/me/site"
    with pytest.raises(InputError, match=r"archive\.sha256"):
        builds.admitted(answer)


def test_a_make_that_fails_is_told_by_its_words_and_the_place_of_its_log(site: Site) -> None:
    with (site.folder / "source/src/collectives.cu").open("a", encoding="utf-8") as file:
        file.write("this is no C++\n")
    why = site.refused()
    assert "make -j" in why
    assert "error: " in why
    (log,) = (site.folder / "scratch").glob("*.log")
    assert str(log) in why
    assert "this is no C++" in log.read_text("utf-8")
    assert site.entries() == []


def test_packages_without_code_for_a_gpu_are_not_published(site: Site) -> None:
    site.toolkit(codes="90")
    both = site.request(architectures=["9.0", "10.0"])
    assert "libnccl.so.2.0.1 has code for 9.0, and none for 10.0" in site.refused(both)
    assert site.entries() == []
    built = site.build()
    assert manifest(built)["products"][0]["code"] == {"libnccl.so.2.0.1": ["9.0"]}


def test_debuild_is_asked_for_before_hours_of_compiling(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with (site.folder / "source/pkg/debian/Makefile").open("a", encoding="utf-8") as makefile:
        makefile.write("# debuild -us -uc\n")
    real = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **more: None if name == "debuild" else real(name, **more)
    )
    why = site.refused()
    assert "has no debuild, which its packages need" in why
    assert "devscripts" in why


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[" * 100_000,
        json.dumps(
            {
                "archive": {
                    "folder": "/x",
                    "sha256": "../../etc",
                    "files": {},
                    "packages": {},
                    "architectures": [],
                    "system": "dpkg",
                }
            }
        ),
    ],
)
def test_a_note_of_a_build_that_was_damaged_says_what_to_run(tmp_path: Path, text: str) -> None:
    (tmp_path / builds.NOTE).write_text(text, "utf-8")
    with pytest.raises(InputError) as told:
        builds.noted(tmp_path)
    assert told.value.where.startswith(str(tmp_path / builds.NOTE))
    assert "playbooks/build_nccl.yml" in told.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "null", "\0", '{"schema": 1}', "[" * 100_000, "1" * 10_000,
        *(f'{{"schema": "{store.SCHEMA}", "files": {files}}}' for files in (
            "null", "[]", '"x"', '[["x"]]', '{"x": null}', '{"../x": {"sha256": "0"}}', '{"": {"sha256": "0"}}',
            '{"a\\u0000b": {"sha256": "0"}}', '{"\\ud800": {}}', '{"x": {"sha256": [1]}}', '{"/etc/passwd": {}}',
        )),
    ],
)  # fmt: skip
def test_a_manifest_of_nonsense_is_never_believed(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / store.MANIFEST).write_text(text, "utf-8")
    (folder / "x").write_text("x", "utf-8")
    manifest, why = store.read(folder)
    assert manifest is None
    assert why.startswith(str(folder))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"product": "cuda"}, "r[0].product"),
        ({"toolkit": "13"}, "r[0].toolkit"),
        ({"make": {"BUILDDIR": "/x"}}, "r[0].make"),
        ({"make": {"NVCC_GENCODE": "x"}}, "r[0].make"),
        ({"source": {}}, "r[0].source"),
        ({"source": {"folder": "/a", "git": "b"}}, "r[0].source"),
        ({"source": {"tarball": "/a"}}, "r[0].source.sha256"),
        ({"source": {"git": "/a", "commit": "main"}}, "r[0].source.commit"),
        ({"source": {"git": "--upload-pack=x", "commit": "0" * 40}}, "r[0].source.git"),
        ({"source": {"git": "https://token@x.example/nccl", "commit": "0" * 40}}, "r[0].source.git"),
        ({"source": {"tarball": "https://x.example/n.tar?sig=1", "sha256": "0" * 64}}, "r[0].source.tarball"),
        ({"architectures": []}, "r[0].architectures"),
        ({"revision": "1 2"}, "r[0].revision"),
        ({"product": "nccl-tests"}, "r[0].mpi"),
    ],
)
def test_a_request_that_cannot_be_is_told_with_its_place(
    site: Site, change: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as told:
        read_requests([site.request(**change)], "r")
    assert told.value.where == where


# ----- sources -------------------------------------------------------------------------------------------------------


def test_a_source_comes_from_a_tarball_an_address_or_git_and_only_as_it_was_named(site: Site) -> None:
    top = site.folder / "served"
    top.mkdir()
    subprocess.run(["tar", "-czf", top / "nccl.tar.gz", "-C", site.folder, "source"], check=True)
    sha256 = digest_of(top / "nccl.tar.gz")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(top))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        source = {"tarball": f"{address}/nccl.tar.gz", "sha256": sha256}
        first = site.build(site.request(source=source))
        gone = {"tarball": f"{address}/none.tar.gz", "sha256": "1" * 64}
        assert f"{address}/none.tar.gz cannot be had" in site.refused(site.request(source=gone))
        wrong = {"tarball": f"{address}/nccl.tar.gz", "sha256": "1" * 64}
        assert f"has the SHA-256 {sha256}, and {'1' * 64} was named" in site.refused(
            site.request(source=wrong)
        )
        server.shutdown()
    assert first.made == ("nccl",)
    # The same bytes from a file are the same source: nothing is built, and the server is gone.
    assert site.build(site.request(source={"tarball": str(top / "nccl.tar.gz"), "sha256": sha256})).made == ()
    git = [
        "git",
        "-C",
        str(site.folder / "source"),
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@example.invalid",
    ]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    source = {"git": f"file://{site.folder}/source", "commit": commit}
    assert site.build(site.request(source=source)).made == ("nccl",)
    unknown = {"git": f"file://{site.folder}/source", "commit": "2" * 40}
    assert "and has " + "2" * 40 in site.refused(site.request(source=unknown))


# ----- for a fleet ---------------------------------------------------------------------------------------------------


def test_code_is_made_for_the_gpus_of_every_node() -> None:
    wanted = builds.for_fleet("13.0", {"a": machine(H100, H100), "b": machine(B200), "c": machine()})
    assert wanted.made == ("9.0", "10.0")
    assert wanted.gencode.split() == [
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_100,code=sm_100",
    ]
    (request,) = builds.requests(
        {"toolkit": "13.0", "cuda": "/c", "source": {}, "tests_source": {}, "revision": "", "make": {}},
        wanted,
    )
    assert request["revision"] == "1.sm90.sm100"


def test_a_fleet_that_is_not_whole_or_has_an_unknown_or_too_old_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="not read: b"):
        builds.for_fleet("13.0", {"a": machine(H100), "b": None})
    with pytest.raises(InputError, match=r"a\.GPU0.*no.* in the table"):
        builds.for_fleet("13.0", {"a": machine("0x4000")})
    with pytest.raises(InputError, match=r"no code for compute capability 7\.0, which b has"):
        builds.for_fleet("13.0", {"a": machine(H100), "b": machine(V100)})
    with pytest.raises(InputError, match="has no GPU"):
        builds.for_fleet("13.0", {"a": machine()})


def test_packages_reach_controller_and_node_whole_or_not_at_all(site: Site, tmp_path: Path) -> None:
    built = site.build()
    out = tmp_path / "out"

    def fetched(remote: str, local: Path) -> None:
        shutil.copyfile(remote, local)

    def broken(remote: str, local: Path) -> None:
        shutil.copyfile(remote, local)
        if remote.endswith("Packages"):
            local.write_text("something else", "utf-8")

    with pytest.raises(InputError, match="Packages is not what its manifest says"):
        builds.receive(out, built.archive, broken)
    assert list(out.iterdir()) == []
    assert builds.receive(out, built.archive, fetched) is True
    assert builds.receive(out, built.archive, fetched) is False
    place = out / built.archive.sha256
    node = tmp_path / "node"
    (node / "var/lib/dpkg").mkdir(parents=True)
    (node / "var/lib/dpkg/status").write_text("", "utf-8")
    files = {name: str(place / name) for name in built.archive.files}
    assert whole(built.archive.sha256, "dpkg", str(node)) is False
    wrong = {**files, "Packages": str(place / store.MANIFEST)}
    with pytest.raises(InputError):
        keep(built.archive.sha256, wrong, str(node))
    assert whole(built.archive.sha256, "dpkg", str(node)) is False
    keep(built.archive.sha256, files, str(node))
    assert whole(built.archive.sha256, "dpkg", str(node)) is True
    lies = node / "var/lib/railwright/archives" / built.archive.sha256
    next(lies.glob("libnccl2*")).write_text("tampered", "utf-8")
    assert whole(built.archive.sha256, "dpkg", str(node)) is False
    with pytest.raises(InputError, match="no name of a file"):
        keep(built.archive.sha256, {"../../etc/passwd": "/etc/passwd"}, str(node))
    with pytest.raises(Refused, match="is for rpm, and this node has dpkg"):
        whole(built.archive.sha256, "rpm", str(node))
