"""Docker and podman from Debian's archive, by the writer and the real apt: pinned, merged, really run, killed midway.

Not among the lab's tests, for its length: `make lab-containers` runs it. What is installed lies in an offline folder.
The toolkit's packages are stand-ins, for Debian has none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from railwright.node.discover.containers import containerd_config, read_containers
from railwright.node.discover.tree import Tree
from railwright.node.model import Containers, Policy, to_json
from railwright.node.model.container_facts import counted
from railwright.node.state import apply, revert
from railwright.plan import container_runtime, containerd, containers, limits
from railwright.plan import packages as package_plans
from tests.lab import chroots
from tests.lab.chroots import Chroot
from tests.lab.container_archive import DAEMON, FOLDER, IMAGE, SOURCE, TOOLKIT, offline, versions_in
from tests.lab.setup import unready
from tests.unit.stack_support import H100, machine, software

REPOSITORY = Path(__file__).resolve().parents[2]
PODMAN = "podman --storage-driver vfs --cgroup-manager cgroupfs --events-backend file --runtime runc"
# Where nobody may raise a limit a container asks for fewer than there are; crun stops before it looks (see below).
FEW = "--network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
POINTS = 10
# A runtime's part that is quick to install.
QUICK = (
    "runc",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if why := unready():
        pytest.skip(why)
    place = Path(tmp_path_factory.mktemp("containers"))
    return {suite: offline(suite, place / suite / "debs") for suite in ("trixie", "bookworm")}


# ----- containers, in a root file system with namespaces of its own --------------------------------------------------

# What a container needs of the machine, and nothing of it that stays.
SPACES = """mount -t proc proc "$0/proc"; mount -t sysfs sys "$0/sys"; mount --rbind /sys/fs/cgroup "$0/sys/fs/cgroup"
for place in run dev/shm var/lib/containers var/lib/docker; do
    mkdir -p "$0/$place"; mount -t tmpfs tmpfs "$0/$place"
done
exec chroot "$0" /bin/sh -c "$1"
"""
ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"


@dataclass
class System:
    """A root file system in which our slices were written by the writer itself, with the real apt."""

    chroot: Chroot
    slices: dict[str, Any]
    offered: dict[str, str]

    def run(self, words: str, seconds: float = 240) -> str:
        """What words of a shell print, in namespaces of their own with the machine's cgroups."""
        argv = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
        done = subprocess.run(
            [*argv, "sh", "-c", SPACES, str(self.chroot.root), words],
            capture_output=True, text=True, check=False, env=environment, timeout=seconds,
        )  # fmt: skip
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["trixie", "bookworm"])
def system(
    request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    suite = str(request.param)
    folder = folders[suite]
    offered = versions_in(folder)
    with chroots.entered(Path(tmp_path_factory.mktemp(suite)) / "root", suite) as chroot:
        shutil.copytree(folder, chroot.root / FOLDER[1:])
        python = next(path.name for path in sorted((chroot.root / "usr/bin").glob("python3.[0-9]*")))
        chroot.must(f"ln -sf {python} /usr/bin/python3")
        runtime = "docker" if suite == "trixie" else "podman"
        names = [
            name for name in offered if "nvidia" not in name and (runtime == "docker" or name != "docker.io")
        ]
        slices = slices_for(offered, runtime, names)
        assert write(chroot, slices) == ""
        for path, text in (
            containers.cdi("gpu-order", [ORDER]),
            containers.cdi("nccl", [ORDER], ["/etc/nccl.conf"]),
        ):
            chroot.write(path, text)
        chroot.write("/etc/nccl.conf", "NCCL_DEBUG=WARN\n")
        chroot.write("/tmp/image.sh", IMAGE)
        chroot.must("sh /tmp/image.sh")
        yield System(chroot, slices, offered)


def test_everything_stands_at_its_version_held_and_a_second_run_changes_nothing(system: System) -> None:
    (row,) = (row for row in system.slices["container_runtime"] if row["kind"] == "packages")
    standing = system.chroot.versions()
    assert {name: standing.get(name) for name in row["versions"]} == {
        name: f"{version} held" for name, version in row["versions"].items()
    }
    for name, part in system.slices.items():
        again = apply({name: part}, root=str(system.chroot.root), tools=system.chroot.tools)
        assert (again.changed, again.failures) == (False, ())
    print(f"{len(row['versions'])} packages held; {system.run('podman --version').strip()}")


def test_podman_really_runs_a_container_and_reads_our_cdi_files(system: System) -> None:
    said = system.run(
        f"""{PODMAN} import /tmp/image.tar tiny >/dev/null 2>&1
{PODMAN} run --rm {FEW} --device railwright/node=gpu-order tiny /bin/env
{PODMAN} run --rm {FEW} --device railwright/node=nccl tiny /bin/cat /etc/nccl.conf
{PODMAN} run --rm {FEW} --device railwright/node=nothing tiny /bin/env
echo; echo crun:; {PODMAN.replace("runc", "crun")} run --rm {FEW} --device railwright/node=gpu-order tiny /bin/env
{PODMAN} run -d {FEW} tiny /bin/sleep 60 >/dev/null; echo over it: $(cat /proc/[0-9]*/comm | sort -u)
echo own ulimits:; {PODMAN} run --rm --network none tiny /bin/sh -c 'ulimit -l; ulimit -n'"""
    )
    print("\n".join(line for line in said.splitlines() if "cgroups-v1" not in line))
    # The reader is podman's own: a name that no file has is refused by it.
    assert "unresolvable CDI devices railwright/node=nothing" in said
    if "Operation not permitted" in said and ORDER not in said:
        pytest.skip("podman found the device, and this machine lets runc set no limits")
    assert ORDER in said
    assert "NCCL_DEBUG=WARN" in said
    (over,) = (line for line in said.splitlines() if line.startswith("over it:"))
    assert counted(over.split()) == {"conmon": 1}


def test_docker_really_runs_a_container_with_our_cdi_device(system: System) -> None:
    if "docker.io" not in system.chroot.versions():
        pytest.skip("Debian 12's Docker knows no CDI, so none is installed here")
    said = system.run(
        """(dockerd >/tmp/dockerd.log 2>&1 &)
for second in $(seq 30); do docker version >/dev/null 2>&1 && break; sleep 1; done
docker import /tmp/image.tar tiny; docker run --rm --network none --device railwright/node=gpu-order tiny /bin/env
docker run --rm --network none --device railwright/node=nccl tiny /bin/cat /etc/nccl.conf
docker run --rm --network none --device railwright/node=nothing tiny /bin/env
docker run -d --network none tiny /bin/sleep 60 >/dev/null; echo over it: $(cat /proc/[0-9]*/comm | sort -u)
docker info 2>/dev/null | grep -i -E 'server version|cgroup|runtimes'; tail -3 /tmp/dockerd.log"""
    )
    print(said)
    assert ORDER in said
    assert "NCCL_DEBUG=WARN" in said
    assert "unresolvable CDI devices" in said
    (over,) = (line for line in said.splitlines() if line.startswith("over it:"))
    assert counted(over.split()) == {"containerd-shim": 1}


# ----- daemon.json as dockerd reads it -------------------------------------------------------------------------------

SHAPES = {
    "absent": None,
    "empty object": "{}",
    "nested runtimes": '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}',
    "another default runtime": '{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}',
    "options of a list": '{"exec-opts": ["native.cgroupdriver=systemd"], "log-opts": {"max-size": "10m"}}',
    "one line, no end": '{"live-restore":true,"features":{"buildkit":true}}',
}


def test_what_was_merged_is_what_dockerd_takes(system: System, tmp_path: Path) -> None:
    if "docker.io" not in system.chroot.versions():
        pytest.skip("Debian 12's Docker knows no CDI and no --validate")
    policy = Policy.read({"container_runtime": {"runtime": "docker", "cgroup_driver": "systemd"}})
    pages = {}
    for number, (name, content) in enumerate(SHAPES.items()):
        root = tmp_path / str(number)
        path = root / "etc/docker/daemon.json"
        path.parent.mkdir(parents=True)
        (root / "run").mkdir()
        if content is not None:
            path.write_text(content, encoding="utf-8")
        facts = replace(machine(H100, software=software()), containers=read_containers(Tree(root), {}))
        made, said = container_runtime.slice_of(facts, policy)
        assert made is not None, said
        assert apply({"container_runtime": to_json(made.entries)}, root=str(root)).failures == ()
        merged = path.read_text("utf-8")
        before = json.loads(content or "{}")
        assert {key: json.loads(merged)[key] for key in before if key not in ("exec-opts", "features")} == {
            key: value for key, value in before.items() if key not in ("exec-opts", "features")
        }
        pages.update({name: merged, f"{name}, with a comment": "// ours\n" + merged})
        pages[f"{name}, with a byte order mark"] = "\ufeff" + merged
    for number, text in enumerate(pages.values()):
        system.chroot.write(f"/tmp/pages/{number}", text)
    numbers = " ".join(map(str, range(len(pages))))
    said_of_all = system.run(
        f"for n in {numbers}; do dockerd --validate --config-file /tmp/pages/$n 2>&1 | tail -1; done"
    ).splitlines()
    told = dict(zip(pages, said_of_all, strict=True))
    print(json.dumps(told, indent=1))
    # Docker reads over a byte order mark; our writer does not, for it could not put the file back as it was.
    assert {name for name, line in told.items() if line == "configuration OK"} == {
        name for name in pages if "comment" not in name
    }


# ----- broken off ----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(folders: dict[str, Path], tmp_path: Path) -> Iterator[Chroot]:
    with chroots.entered(tmp_path / "root", "trixie") as chroot:
        shutil.copytree(folders["trixie"], chroot.root / FOLDER[1:])
        yield chroot


def slices_for(offered: dict[str, str], runtime: str, names: Sequence[str]) -> dict[str, Any]:
    """The slices of these packages, the toolkit, daemon.json, CDI and limits."""
    asked = {
        "runtime": runtime,
        "toolkit": TOOLKIT,
        "labels": {},
        "packages": {name: offered[name] for name in names},
    }
    if runtime == "docker":
        asked["daemon"] = DAEMON
    policy = Policy.read(
        {
            "software": {"sources": [SOURCE], "wait": 5},
            "container_runtime": asked,
            "limits": {"memlock": "8192", "nofile": 1024},
        }
    )
    facts = machine(H100, software=software(kernels=(), next_kernel=None))
    made = {
        "package_sources": package_plans.sources_slice(facts, policy)[0],
        "container_runtime": container_runtime.slice_of(facts, policy)[0],
        "limits": limits.slice_of(facts, policy)[0],
    }
    return {name: to_json(part.entries) for name, part in made.items() if part is not None}


def write(chroot: Chroot, slices: dict[str, Any]) -> str:
    told = []
    for names in (("package_sources",), ("container_runtime",), ("limits",)):
        part = {name: slices[name] for name in names}
        done = apply(part, root=str(chroot.root), tools=chroot.tools)
        told += [failure.why for failure in done.failures]
    return " | ".join(told)


def killed_after(chroot: Chroot, slices: dict[str, Any], seconds: float) -> int:
    """A run in processes of its own, all of which are killed after so long."""
    page = chroot.root.parent / "slices.json"
    page.write_text(json.dumps(slices), encoding="utf-8")
    script = (
        "import json, sys\nfrom pathlib import Path\nfrom tests.lab.chroots import Chroot\n"
        "from tests.lab.long_containers import write\n"
        "write(Chroot(Path(sys.argv[1])), json.loads(Path(sys.argv[2]).read_text()))\n"
    )
    argv = [sys.executable, "-c", script, str(chroot.root), str(page)]
    run = subprocess.Popen(argv, cwd=REPOSITORY, start_new_session=True)
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        return run.wait()


@pytest.fixture(scope="module")
def good_run(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that a run takes here which nobody kills, with the start of its Python."""
    with chroots.entered(Path(tmp_path_factory.mktemp("timed")) / "root", "trixie") as chroot:
        shutil.copytree(folders["trixie"], chroot.root / FOLDER[1:])
        begun = time.monotonic()
        assert killed_after(chroot, slices_for(versions_in(folders["trixie"]), "docker", QUICK), 600) == 0
        return time.monotonic() - begun


@pytest.mark.parametrize("point", range(POINTS))
def test_a_run_that_is_killed_anywhere_comes_to_the_same_end(
    folders: dict[str, Path], root: Chroot, good_run: float, point: int
) -> None:
    slices = slices_for(versions_in(folders["trixie"]), "docker", QUICK)
    before = root.versions()
    moment = good_run * (0.15 + 0.65 * point / POINTS)
    ended = killed_after(root, slices, moment)
    assert ended in (0, -signal.SIGKILL)
    assert write(root, slices) == ""
    assert root.versions("nvidia-container-toolkit")["nvidia-container-toolkit"] == f"{TOOLKIT} held"
    assert json.loads(root.read("/etc/docker/daemon.json"))["features"] == {"cdi": True}
    for name in slices:
        again = apply({name: slices[name]}, root=str(root.root), tools=root.tools)
        assert (again.changed, again.failures) == (False, ())
    assert revert(["limits", "container_runtime"], root=str(root.root), tools=root.tools).failures == ()
    assert root.versions() == before
    assert not (root.root / "etc/docker/daemon.json").exists()
    print(f"point {point}: killed at {moment:.1f} s of {good_run:.1f} ({ended})")


def test_containerd_itself_reads_the_drop_in_and_shows_why_it_never_stands_beside_anothers_section(
    folders: dict[str, Path], root: Chroot
) -> None:
    (package,) = folders["trixie"].glob("containerd_*.deb")
    subprocess.run(["dpkg", "-x", package, root.root], check=True)
    debians = root.read(containerd.CONFIG)
    policy = Policy.read({"container_runtime": {"runtime": "containerd", "cgroup_driver": "systemd"}})
    # As on a node without a configuration of its own.
    facts = replace(machine(H100), containers=Containers())
    made, _ = container_runtime.slice_of(facts, policy)
    assert made is not None
    for entry in made.entries:
        root.write(entry["path"], entry["content"])

    def dumped() -> dict[str, str]:
        """What `containerd config dump` says of these keys."""
        lines = (line.strip().partition(" = ") for line in root.must("containerd config dump").splitlines())
        return {key: value for key, _, value in lines if key in ("enable_cdi", "SystemdCgroup", "bin_dir")}

    said = root.must("containerd --version").strip()
    alone = dumped()
    assert (alone["enable_cdi"], alone["SystemdCgroup"]) == ("true", "true")
    # Somebody's own section in config.toml is gone beside the drop-in, as the planner says where it refuses.
    theirs = debians.replace("/usr/lib/cni", "/srv/cni").replace("\n", f"\n{containerd.IMPORT}\n", 1)
    root.write(containerd.CONFIG, theirs)
    beside = dumped()
    (root.root / containerd.DROPIN[1:]).unlink()
    assert (dumped()["bin_dir"], beside["bin_dir"] == '"/srv/cni"') == ('"/srv/cni"', False)
    config = containerd_config(theirs, "config.toml")
    refused, findings = container_runtime.slice_of(
        replace(facts, containers=Containers(containerd=config)), policy
    )
    assert refused is None
    assert "container_runtime.containerd_section" in {one.code for one in findings}
    print(f"{said}: alone {alone}, beside a section of somebody's {beside}")


def test_a_package_file_that_is_missing_is_named_and_nothing_is_half_done(
    folders: dict[str, Path], root: Chroot
) -> None:
    slices = slices_for(versions_in(folders["trixie"]), "docker", QUICK)
    before = root.versions()
    (lost,) = (root.root / FOLDER[1:]).glob("runc_*.deb")
    kept = lost.rename(root.root / "srv" / lost.name)
    said = write(root, slices)
    print(said)
    assert lost.name in unquote(said)
    assert root.versions() == before
    kept.rename(lost)
    assert write(root, slices) == ""
