"""NCCL's road with a real nvcc: built once for the GPUs of two lab nodes, brought to them, installed, held, opened.

Not among the lab's tests, for nvcc comes from an index of wheels: `make lab-nccl` runs it. What is built is a small
library with NCCL's make interface (tests/collectives); NCCL itself takes too long, see docs/stack.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from railwright.node import durable
from railwright.node.builder import store
from tests.ansible.playing import PROGRAMS, PROJECT, Run, play
from tests.lab import chroots, cuda_toolkit, debian, packages, racks
from tests.lab.lab import Lab, Node
from tests.lab.setup import unready
from tests.lab.shell import call

TESTS = Path(__file__).resolve().parents[1]
VERSION = "2.0.1-1.sm90.sm100+cuda13.5"
ARCHIVES = "/var/lib/railwright/archives"
# A machine of H100s whose GPUs say that they are B200s.
B200 = "for d in /sys/bus/pci/devices/*; do grep -qs 0x2330 $d/device && echo 0x2901 > $d/device; done; true"
OPENS = (
    "import ctypes; n = ctypes.c_int(); l = ctypes.CDLL('libnccl.so.2'); l.ncclGetVersion(ctypes.byref(n)); "
    "print(n.value)"
)


@dataclass
class Road:
    """Two nodes without a way out, and this machine as the build node, in their network."""

    lab: Lab
    place: Path
    cuda: Path

    @property
    def out(self) -> Path:
        return self.place / "out/nccl"

    @property
    def cache(self) -> Path:
        return self.place / "cache"

    def variables(self) -> dict[str, Any]:
        return {
            "node_output": str(self.place / "out"), "nccl_build_output": str(self.out), "nccl_build_toolkit": "13.5",
            "nccl_build_cuda": str(self.cuda), "nccl_build_source": {"folder": str(TESTS / "collectives")},
            "nccl_build_tests_source": {"folder": str(TESTS / "collectives_tests")},
            "nccl_build_mpi": str(self.place / "mpi"), "nccl_build_scratch": str(self.place / "scratch"),
            "nccl_build_cache": str(self.cache), "nccl_build_space": 100,
        }  # fmt: skip

    @property
    def builder(self) -> str:
        return str(self.place / "builder.yml")

    def build(self, **more: Any) -> Run:
        return self.play("build_nccl.yml", {**self.variables(), **more}, "-i", self.builder)

    def install(self, policy: dict[str, Any], *arguments: str) -> Run:
        return self.play("install.yml", {"node_policy": policy}, *arguments)

    def play(self, playbook: str, variables: dict[str, Any], *arguments: str) -> Run:
        return play(
            playbook, self.lab.inventory, self.place / "out", *arguments, variables=variables,
            within=self.lab.controller, limit=600,
        )  # fmt: skip

    @property
    def noted(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.out / "built.json").read_text("utf-8"))
        return read


def said(run: Run) -> str:
    return "\n".join(str(result["msg"]) for result in run.results("ansible.builtin.debug"))


def good(run: Run) -> None:
    assert (run.code, run.failed) == (0, set()), run.output[-3000:]


def held(node: Node) -> list[str]:
    return [name for name in node.must("apt-mark showhold").split() if "nccl" in name]


@pytest.fixture(scope="module")
def road() -> Iterator[Road]:
    if why := unready():
        pytest.skip(why)
    # The builder is another user, who has to reach it; each pytest that starts takes that right from pytest's folder.
    with tempfile.TemporaryDirectory(prefix="railwright-nccl-") as name:
        place = Path(name)
        place.chmod(0o755)
        yield from _road(place)


def _road(place: Path) -> Iterator[Road]:
    (place / "mpi/include").mkdir(parents=True)
    (place / "mpi/include/mpi.h").write_text('#define MPICH_VERSION "4.1"\n', "utf-8")
    (place / "builder.yml").write_text(
        yaml.safe_dump({"nccl_build": {"hosts": {"builder": {
            "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
        }}}}),
        "utf-8",
    )  # fmt: skip
    with racks.raised("c") as lab:
        lab.nodes[1].must(B200)
        yield Road(lab, place, cuda_toolkit.toolkit())


def test_it_is_built_once_for_both_nodes_installed_held_and_opened(road: Road) -> None:
    began = time.monotonic()
    first = road.build()
    good(first)
    print(f"\nbuilt, fetched and laid on two nodes in {time.monotonic() - began:.0f} s:\n{said(first)}")
    policy = road.noted["node_policy"]
    assert policy["nccl_library"]["built"]["architectures"] == ["9.0", "10.0"]
    assert policy["nccl_library"]["packages"]["libnccl2"] == VERSION
    installed = road.install(policy)
    good(installed)
    for node in road.lab.nodes:
        assert node.must(f'python3 -c "{OPENS}"').strip() == "20001"
        assert held(node) == ["libnccl-dev", "libnccl2", "nccl-tests"]
        # What is on the node came by the digest that the controller knows, and by no other way.
        (folder,) = node.must(f"ls {ARCHIVES}").split()
        assert folder == policy["nccl_library"]["built"]["sha256"]
        assert node.must(f"sha256sum {ARCHIVES}/{folder}/manifest.json").split()[0] == folder
        # No way out: 192.0.2.1 (RFC 5737) is nobody's.
        assert node.ssh("ping -c1 -W1 192.0.2.1").returncode != 0
        moved = node.must("apt-get -s dist-upgrade")
        assert "nccl" not in moved


def test_the_library_on_a_node_has_code_for_both_architectures(road: Road, tmp_path: Path) -> None:
    package = next((road.out / road.noted["archive"]["sha256"]).glob("libnccl2_*"))
    call(["dpkg-deb", "-x", str(package), str(tmp_path)])
    library = next(tmp_path.rglob("libnccl.so.2.0.1"))
    told = call([str(road.cuda / "bin/cuobjdump"), "--list-elf", str(library)])
    print(f"\n{told}")
    assert sorted(set(re.findall(r"sm_\d+", told))) == ["sm_100", "sm_90"]
    digest = call(["sha256sum", str(library)]).split()[0]
    for node in road.lab.nodes:
        assert digest in node.must("sha256sum /usr/lib/*/libnccl.so.2.0.1")


def test_a_second_run_builds_nothing_and_changes_nothing(road: Road) -> None:
    began = time.monotonic()
    again = road.build()
    good(again)
    print(f"\nagain in {time.monotonic() - began:.0f} s:\n{said(again)}")
    assert "nccl: taken from the cache, nothing was built" in said(again)
    assert set(again.changed.values()) == {0}
    installed = road.install(road.noted["node_policy"])
    good(installed)
    assert set(installed.changed.values()) == {0}


def test_an_audit_of_the_nodes_says_which_library_is_loaded_and_fails_for_another(road: Road) -> None:
    policy = road.noted["node_policy"]
    run = road.play("audit_libraries.yml", {"node_policy": policy})
    good(run)
    print(f"\n{said(run)}")
    assert said(run).count("nccl-tests at /usr/lib/nccl-tests/all_reduce_perf loads libnccl 2.0.1") == 2
    # One that a runtime brings itself, found before the system's.
    node = road.lab.nodes[0]
    node.must(
        "mkdir -p /opt/own && cp /usr/lib/nccl-tests/all_reduce_perf /opt/own/ && "
        "sed 's/NCCL version 2.0.1/NCCL version 1.9.9/' /usr/lib/*/libnccl.so.2.0.1 > /usr/local/lib/libnccl.so.2 && "
        "ldconfig"
    )
    try:
        run = road.play("audit_libraries.yml", {"node_policy": policy})
        assert run.failed == {"n1"}
        assert "loads libnccl 1.9.9" in run.failures("n1")[-1]
        assert "2.0.1 is meant" in run.failures("n1")[-1]
    finally:
        node.must("rm -r /opt/own /usr/local/lib/libnccl.so.2; ldconfig")


def test_a_torn_archive_on_one_node_is_brought_anew_to_that_one(road: Road) -> None:
    node = road.lab.nodes[0]
    node.must(f"truncate -s 1000 {ARCHIVES}/*/libnccl2_*.deb")
    again = road.build()
    good(again)
    assert again.changed == {"n1": 1, "n2": 0, "builder": 0}


def test_a_source_that_is_not_there_is_named_and_no_node_is_touched(road: Road) -> None:
    gone = {"tarball": "/srv/sources/nccl-9.tar.gz", "sha256": "0" * 64}
    run = road.build(nccl_build_source=gone)
    assert "/srv/sources/nccl-9.tar.gz cannot be had: No such file or directory" in run.failures("builder")[0]
    mirror = {"tarball": "http://192.0.2.1/nccl-9.tar.gz", "sha256": "0" * 64}
    run = road.build(nccl_build_source=mirror)
    (told,) = run.failures("builder")
    print(f"\n{told}")
    assert "http://192.0.2.1/nccl-9.tar.gz cannot be had" in told
    assert "Network is unreachable" in told


def test_a_run_that_is_killed_at_ten_points_leaves_nothing_half_and_the_next_one_ends_well(
    road: Road,
) -> None:
    argv = road.lab.controller(
        str(PROGRAMS / "ansible-playbook"), "-i", str(road.lab.inventory), "-i", road.builder,
        "-e", json.dumps(road.variables()), str(PROJECT / "playbooks/build_nccl.yml"),
    )  # fmt: skip
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    points = []
    forget(road)
    began = time.monotonic()
    good_run = subprocess.run(argv, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert good_run.returncode == 0, good_run.stdout + good_run.stderr
    whole_run = time.monotonic() - began
    # Most of the road is the build; what is brought to nodes comes in its last tenth.
    for share in (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.93, 0.97):
        forget(road)
        child = subprocess.Popen(
            argv, env=environment, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = round(whole_run * share, 1)
        try:
            child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            for pid in descendants(child.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.wait()
        points.append((seconds, *whole_or_nothing(road)))
    print("\nkilled after s, whole in the cache, at the controller, on nodes:", points)
    assert len({point[1:] for point in points}) > 1, "the kills came at one point of the road only"
    for lock in road.cache.glob("*.lock"):
        call(["flock", "-w", "60", str(lock), "true"])
    good(road.build())
    good(road.install(road.noted["node_policy"]))
    for node in road.lab.nodes:
        assert node.must(f'python3 -c "{OPENS}"').strip() == "20001"


def descendants(pid: int) -> list[int]:
    """The process and all that it has started, which Ansible gives groups of their own."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def forget(road: Road) -> None:
    """As if nothing had ever been built or brought."""
    for folder in (road.cache, road.out, road.place / "scratch"):
        shutil.rmtree(folder, ignore_errors=True)
    for node in road.lab.nodes:
        node.must(f"rm -rf {ARCHIVES}")


def whole_or_nothing(road: Road) -> tuple[int, int, int]:
    """How many folders there are in each place; every one of them has to be whole."""
    counts = []
    for place in (road.cache, road.out):
        folders = [path for path in place.glob("*") if path.is_dir() and path.suffix != ".part"]
        folders = [path for path in folders if not path.name.startswith(".")]
        for folder in folders:
            assert store.read(folder)[1] == "", folder
        counts.append(len(folders))
    check = (
        f"cd {ARCHIVES} && for d in *; do case $d in *.part) ;; *) sha256sum $d/manifest.json;; esac; done"
    )
    found = 0
    for node in road.lab.nodes:
        for line in node.ssh(check).stdout.splitlines():
            digest, path = line.split()
            assert path.startswith(digest)
            found += 1
    return counts[0], counts[1], found


def test_debians_own_packages_are_the_other_path(road: Road, tmp_path: Path) -> None:
    """The real libnccl2 of Debian 13, from an archive inside the lab."""
    index = f"{debian.mirror()}/dists/trixie/contrib/binary-amd64/Packages.xz"
    call(["curl", "-fsS", "-o", str(tmp_path / "Packages.xz"), index])
    stanzas = call(["xz", "-dc", str(tmp_path / "Packages.xz")]).split("\n\n")
    (stanza,) = (text for text in stanzas if text.startswith("Package: libnccl2\n"))
    fields = dict(re.findall(r"^(Version|Filename|SHA256): (\S+)$", stanza, re.MULTILINE))
    folder = tmp_path / "flat"
    folder.mkdir()
    package = folder / Path(fields["Filename"]).name
    call(["curl", "-fsS", "-o", str(package), f"{debian.mirror()}/{fields['Filename']}"])
    assert durable.digest_of(package) == fields["SHA256"]
    (folder / "Packages").write_text(call(["apt-ftparchive", "packages", "."], cwd=folder), "utf-8")
    node = road.lab.nodes[1]
    node.must("mkdir -p /srv/nccl")
    for path in folder.iterdir():
        call(["sh", "-c", f"{' '.join(node.entry())} -- 'cat > /srv/nccl/{path.name}' < {path}"], timeout=300)
    before = road.noted["node_policy"]["nccl_library"]["packages"]
    policy = {
        "software": {
            "sources": [{"name": "nccl", "uris": "file:/srv/nccl", "suites": "./", "trusted": True}]
        },
        "nccl_library": {"packages": {"libnccl2": fields["Version"]}},
    }
    run = road.install(policy, "--limit", "n2")
    good(run)
    print(f"\nlibnccl2 {fields['Version']} in place of {before['libnccl2']}")
    assert node.must(f'python3 -c "{OPENS}"').strip() == "22203"
    assert held(node) == ["libnccl2"]
    again = road.install(policy, "--limit", "n2")
    good(again)
    assert again.changed["n2"] == 0


def test_two_toolkits_stand_side_by_side_with_the_real_apt(ready: None, tmp_path: Path) -> None:
    from railwright.node.model import Policy, to_json
    from railwright.node.state import apply, revert
    from railwright.plan import cuda
    from tests.unit.stack_support import H100, machine

    made = packages.make(tmp_path / "made", toolkits())
    asked = Policy.read({"cuda": {"toolkits": {"12.9": "12.9.1-1", "13.0": "13.0.2-1"}, "default": "12.9"}})
    planned, _ = cuda.slice_of(machine(H100), asked)
    assert planned is not None
    with chroots.entered(tmp_path / "root") as chroot:
        shutil.copytree(made.folder, chroot.root / "srv/archive")
        chroot.write("/etc/apt/sources.list.d/x.list", "deb [trusted=yes] file:/srv/archive lab main\n")
        chroot.must("apt-get -q update")
        before = chroot.versions()
        slices = {"cuda": to_json(planned.entries)}
        done = apply(slices, root=str(chroot.root), tools=chroot.tools)
        assert done.failures == ()
        assert chroot.versions("cuda-*") == {
            "cuda-toolkit-12-9": "12.9.1-1 held", "cuda-toolkit-13-0": "13.0.2-1 held",
        }  # fmt: skip
        assert "Value: /usr/local/cuda-12.9" in chroot.must("update-alternatives --query cuda")
        assert chroot.must("readlink -f /usr/local/cuda").strip() == "/usr/local/cuda-12.9"
        assert not apply(slices, root=str(chroot.root), tools=chroot.tools).changed
        # A meta package that would bring a driver has no candidate any more.
        assert "Candidate: (none)" in chroot.must("apt-cache policy cuda")
        assert chroot.must("apt-get -s dist-upgrade | grep -c ^Inst || true").strip() == "0"
        assert revert(["cuda"], root=str(chroot.root), tools=chroot.tools).failures == ()
        assert chroot.versions() == before
        assert chroot.must("ls /usr/local | grep -c cuda || true").strip() == "0"


def toolkits() -> list[packages.Package]:
    """Toolkits by their real names, which register themselves as NVIDIA's do, and a meta package with a driver."""
    found = []
    for number, version in (("12.9", "12.9.1-1"), ("13.0", "13.0.2-1"), ("13.0", "13.0.3-1")):
        place = f"/usr/local/cuda-{number}"
        words = f"update-alternatives --install /usr/local/cuda cuda {place} {number.replace('.', '')}"
        found.append(
            packages.Package(
                f"cuda-toolkit-{number.replace('.', '-')}", version, "CUDA", {},
                {f"usr/local/cuda-{number}/version.json": "{}", f"usr/local/cuda-{number}/lib64/x": ""},
                {
                    "postinst": f"#!/bin/sh\n[ \"$1\" = configure ] && {words}\nexit 0\n",
                    "prerm": f"#!/bin/sh\n[ \"$1\" = remove ] && update-alternatives --remove cuda {place}\nexit 0\n",
                },
            )
        )  # fmt: skip
    return [
        *found,
        packages.Package("cuda", "13.0.3-1", "CUDA and a driver", {"Depends": "cuda-toolkit-13-0"}),
    ]
