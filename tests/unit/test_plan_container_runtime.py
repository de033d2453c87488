"""Containers: what is pinned, what is merged into others' files, who writes the CDI file, what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from railwright.node.discover.containers import read_containers
from railwright.node.discover.tree import Tree
from railwright.node.model import (
    CdiFile,
    Containers,
    DockerConfig,
    Facts,
    InputError,
    Policy,
    to_json,
)
from railwright.node.model.software import Kernel, Package
from railwright.node.state import apply, revert
from railwright.node.state.kinds import read_slices
from railwright.plan import container_asked, container_findings, container_runtime, containers
from railwright.plan.stack import containers as known
from railwright.plan.stack import pairs
from tests.unit.container_support import DAEMON, TOOLKIT, asked, codes, entry, facts, paths, planned, refusal
from tests.unit.stack_support import H100, machine, software
from tests.unit.state_support import make_node

# ----- packages ------------------------------------------------------------------------------------------------------


def test_a_policy_without_the_group_writes_and_says_nothing() -> None:
    assert container_runtime.slice_of(facts(), Policy()) == (None, [])


def test_the_toolkit_is_four_packages_of_one_version_pinned_and_held_beside_the_runtime() -> None:
    made = planned(
        facts(), asked(toolkit=TOOLKIT, packages={"docker.io": "26.1.5+dfsg1-9+b9", "docker-ce": None})
    )
    row = entry(made, "packages")
    assert row["versions"] == {
        "nvidia-container-toolkit": TOOLKIT,
        "nvidia-container-toolkit-base": TOOLKIT,
        "libnvidia-container-tools": TOOLKIT,
        "libnvidia-container1": TOOLKIT,
        "docker.io": "26.1.5+dfsg1-9+b9",
        "docker-ce": None,
    }
    assert row["hold"] is True
    held = entry(made, "file", "/etc/apt/apt.conf.d/90-railwright-container-runtime-held")["content"]
    assert '"docker\\.io$";' in held
    assert len(read_slices({"part": to_json(made.entries)}, None)["part"]) == len(made.entries)


def test_a_toolkit_that_is_known_to_be_bad_is_refused() -> None:
    found = refusal(facts(), asked(toolkit="1.17.7-1"))
    assert found.code == "container_runtime.toolkit"


def test_two_archives_dockers_are_not_mixed() -> None:
    node = replace(
        facts(), software=software(packages=(Package("docker-ce", "5:28.3.3-1~debian.12~bookworm"),))
    )
    found = refusal(node, asked(packages={"docker.io": "26.1.5+dfsg1-9+b9"}))
    assert found.code == "container_runtime.packages"
    assert "docker-ce" in found.remedy
    planned(node, asked(packages={"docker.io": "26.1.5+dfsg1-9+b9", "docker-ce": None}))


@pytest.mark.parametrize(
    ("runtime", "package", "version", "good"),
    [
        ("docker", "docker.io", "20.10.24+dfsg1-1+deb12u1", False),
        ("docker", "docker-ce", "5:28.3.3-1~debian.12~bookworm", True),
        ("docker", "docker.io", "26.1.5+dfsg1-9+b9", True),
        ("podman", "podman", "4.0.4-1", False),
        ("podman", "podman", "4.3.1+ds1-8+deb12u1", True),
        ("containerd", "containerd", "1.6.20~ds1-1+deb12u1", False),
        ("containerd", "containerd", "1.7.24~ds1-6", True),
    ],
)
def test_a_runtime_whose_containers_cannot_ask_for_a_cdi_device_is_refused(
    runtime: str, package: str, version: str, good: bool
) -> None:
    policy = asked(runtime=runtime, packages={package: version})
    if good:
        planned(facts(), policy)
    else:
        assert refusal(facts(), policy).code == "container_runtime.no_cdi"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"runtime": "rkt"}, "runtime"),
        ({"packages": {"docker*": "1"}}, "packages"),
        ({"toolkit": "latest!"}, "toolkit"),
        ({"daemon": {"exec-opts": []}}, "daemon"),
        ({"runtime": "podman", "daemon": {"/debug": True}}, "daemon"),
        ({"daemon": {"/features/cdi": False}}, "daemon"),
        ({"daemon": {"/features": {"buildkit": True}}}, "daemon"),
        ({"cgroup_driver": "systemd", "daemon": {"/exec-opts": []}}, "daemon"),
        # Docker's unit says -H fd://, and dockerd ends where both say it.
        ({"daemon": {"/hosts": ["tcp://0.0.0.0:2375"]}}, "daemon"),
        ({"daemon": {"/features/cdi/x": 1}}, "daemon"),
        ({"daemon": {"/log-opts/max-size": "1m", "/log-opts": {}}}, "daemon"),
        # What YAML knows and JSON does not: a day, bytes, a set, no number, half a character, keys that are numbers.
        ({"daemon": {"/x": date(2026, 11, 1)}}, "daemon./x"),
        ({"daemon": {"/x": b"x"}}, "daemon./x"),
        ({"daemon": {"/x": {"a", "b"}}}, "daemon./x"),
        ({"daemon": {"/x": float("nan")}}, "daemon./x"),
        ({"daemon": {"/x": "\ud800"}}, "daemon./x"),
        ({"daemon": {"/x": [{1: "a"}]}}, "daemon./x"),
        ({"runtime": "podman", "cgroup_driver": "systemd"}, "cgroup_driver"),
        ({"pyxis": "/usr/../spank_pyxis.so"}, "pyxis"),
        ({"pyxis": "spank_pyxis.so"}, "pyxis"),
        ({"labels": {"a/b": "c"}}, "labels"),
        ({"enroot_settings": {"PATH": "/x"}}, "enroot_settings"),
    ],
)
def test_a_policy_that_no_runtime_takes_is_refused_with_its_place(given: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(**given)
    assert caught.value.where == f"policy.container_runtime.{place}"


@pytest.mark.parametrize("given", [{}, {"restart": True}, {"cdi": "none"}])
def test_a_group_that_names_nothing_is_refused_and_told_what_to_write(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"packages, toolkit.*or leave the group out") as caught:
        Policy.read({"container_runtime": given})
    assert caught.value.where == "policy.container_runtime"
    assert Policy.read({"container_runtime": {"labels": {}}}).container_runtime is not None


def test_a_runtime_for_which_nothing_is_written_says_so() -> None:
    policy = Policy.read({"container_runtime": {"runtime": "podman"}})
    made, (found,) = container_runtime.slice_of(facts(), policy)
    assert (made, found.code, found.severity) == (None, "container_runtime.nothing", "info")
    assert "podman takes CDI devices by itself" in found.why


# ----- daemon.json: merged, never replaced ---------------------------------------------------------------------------

# Six that are found on nodes, and what stands there afterwards; None: it is refused and stays as it is.
SHAPES: Mapping[str, tuple[bytes | None, dict[str, Any] | None]] = {
    "absent": (None, {"features": {"cdi": True}, "exec-opts": ["native.cgroupdriver=cgroupfs"]}),
    "empty": (b"", {"features": {"cdi": True}, "exec-opts": ["native.cgroupdriver=cgroupfs"]}),
    "comments": (b'{\n  // ours\n  "debug": true\n}\n', None),
    "nested runtimes": (
        b'{\n    "default-runtime": "nvidia",\n    "runtimes": {\n        "nvidia": {\n            "args": [],\n'
        b'            "path": "nvidia-container-runtime"\n        }\n    }\n}\n',
        {
            "default-runtime": "nvidia",
            "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
            "features": {"cdi": True},
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
        },
    ),
    "other options in the list": (
        b'{"exec-opts": ["native.umask=normal", "native.cgroupdriver=systemd"], "features": {"buildkit": true}, '
        b'"log-opts": {"max-size": "1e6"}}',
        {
            "exec-opts": ["native.umask=normal", "native.cgroupdriver=cgroupfs"],
            "features": {"buildkit": True, "cdi": True},
            "log-opts": {"max-size": "1e6"},
        },
    ),
    "byte order mark": (b'\xef\xbb\xbf{"debug": true}\n', None),
}  # fmt: skip


def node_of(tmp_path: Path, content: bytes | None) -> tuple[Path, Facts]:
    root = make_node(tmp_path)
    if content is not None:
        (root / "etc/docker").mkdir(parents=True)
        (root / DAEMON[1:]).write_bytes(content)
    return root, replace(machine(H100), containers=read_containers(Tree(root), {}))


@pytest.mark.parametrize("name", SHAPES)
def test_a_daemon_json_that_others_wrote_is_merged_and_comes_back(tmp_path: Path, name: str) -> None:
    content, wanted = SHAPES[name]
    root, node = node_of(tmp_path, content)
    policy = asked(cgroup_driver="cgroupfs")
    if wanted is None:
        found = refusal(node, policy)
        assert (found.code, found.where) == ("container_runtime.daemon_json", DAEMON)
        assert "JSON knows no comments and no byte order mark" in found.remedy
        # The writer refuses it too, whoever planned, and names the line.
        keys = {"kind": "json_keys", "path": DAEMON, "keys": {"/features/cdi": True}}
        (failure,) = apply({"container_runtime": [keys]}, root=str(root)).failures
        assert f"{DAEMON}, line" in failure.why
        assert (root / DAEMON[1:]).read_bytes() == content
        return
    slices = {"container_runtime": [entry(planned(node, policy), "json_keys")]}
    assert apply(slices, root=str(root)).failures == ()
    assert json.loads((root / DAEMON[1:]).read_text("utf-8")) == wanted
    again = replace(node, containers=read_containers(Tree(root), {}))
    assert {"container_runtime": [entry(planned(again, policy), "json_keys")]} == slices
    assert not apply(slices, root=str(root)).changed
    assert revert(["container_runtime"], root=str(root)).failures == ()
    assert ((root / DAEMON[1:]).read_bytes() if content is not None else None) == content
    assert (root / DAEMON[1:]).exists() is (content is not None)


def test_a_daemon_json_that_is_a_folder_is_refused_with_words(tmp_path: Path) -> None:
    root = make_node(tmp_path)
    (root / DAEMON[1:]).mkdir(parents=True)
    node = replace(machine(H100), containers=read_containers(Tree(root), {}))
    assert "no regular file" in refusal(node, asked()).why


def test_keys_of_the_policy_go_in_beside_ours() -> None:
    row = entry(planned(facts(), asked(daemon={"/live-restore": True})), "json_keys")
    assert row["keys"] == {"/features/cdi": True, "/live-restore": True}


def test_a_proxy_with_its_password_is_never_shown(tmp_path: Path) -> None:
    policy = asked(daemon={"/proxies/http-proxy": "http://user:hush@proxy:3128"})
    row = entry(planned(facts(), policy), "json_keys")
    done = apply({"container_runtime": [row]}, root=str(make_node(tmp_path)), check=True)
    assert (done.changed, done.failures) == (True, ())
    assert "hush" not in str(done)
    assert "secret" not in entry(planned(facts(), asked(daemon={"/debug": True})), "json_keys")
    mirrors = {"/registry-mirrors": ["https://me:hunter2@mirror.example"]}
    assert entry(planned(facts(), asked(daemon=mirrors)), "json_keys")["secret"] is True


def test_what_others_chose_in_daemon_json_is_told() -> None:
    values = {
        "default-runtime": "nvidia",
        "cdi-spec-dirs": ["/etc/cdi"],
        "exec-opts": ["native.cgroupdriver=systemd"],
    }
    said = codes(facts(docker=DockerConfig(values)), asked(cgroup_driver="cgroupfs"))
    assert {"container_runtime.default_runtime", "container_runtime.cdi_folders"} <= set(said)
    assert "container_runtime.cgroup_driver" in said
    assert "container_runtime.cgroup_driver" not in codes(facts(docker=DockerConfig(values)), asked())


# ----- CDI, and a reload of systemd ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "who"),
    [
        ({}, "none"),
        ({"toolkit": "1.17.8-1"}, "generate"),
        ({"toolkit": "1.18.0-1"}, "refresh"),
        ({"toolkit": "1.20.1-1"}, "refresh"),
        ({"toolkit": "1.20.1-1", "cdi": "none"}, "none"),
    ],
)
def test_who_writes_the_gpus_cdi_file_follows_the_toolkits_version(more: dict[str, Any], who: str) -> None:
    policy = asked(**more)
    assert policy.container_runtime is not None
    assert container_asked.refresher(policy.container_runtime) == who
    written = paths(planned(facts(), policy))
    assert (container_runtime.CDI_UNIT in written) is (who == "generate")
    assert (container_runtime.CDI_WANTED in written) is (who != "none")


@pytest.mark.parametrize(
    ("toolkit", "module", "runs"),
    [
        # NVIDIA's DKMS on Debian 12, its prebuilt modules on Ubuntu 24.04, Debian's two drivers.
        ("1.18.0-1", "nvidia.ko", True),
        ("1.18.0-1", "nvidia.ko.zst", True),
        ("1.18.0-1", "nvidia-current.ko", False),
        ("1.18.1-1", "nvidia.ko", True),
        ("1.18.1-1", "nvidia.ko.zst", False),
        ("1.18.1-1", "nvidia.ko.xz", False),
        ("1.18.1-1", "nvidia-current.ko", True),
        ("1.18.2-1", "nvidia.ko.xz", True),
        ("1.19.1-1", "nvidia-current.ko.xz", True),
        ("1:1.19.0-1", "nvidia.ko", True),
        ("1:1.18.1-1", "nvidia.ko.xz", False),
        ("1.20.0-1", "nvidia-current-open.ko", False),
        ("1.20.0-1", "nvidia-current-open.ko.xz", False),
    ],
)
def test_a_gpu_module_that_the_toolkits_own_unit_does_not_find_is_told(
    toolkit: str, module: str, runs: bool
) -> None:
    kernel = Kernel("6.8.0-90-generic", modules={"nvidia": f"updates/dkms/{module}"})
    node = replace(facts(), software=software(kernels=(kernel,)))
    told = [
        one for one in container_runtime.slice_of(node, asked(toolkit=toolkit))[1] if "refresh" in one.code
    ]
    assert [one.code for one in told] == ([] if runs else ["container_runtime.cdi_refresh"])
    # What its unit asks, by grep itself: the ExecCondition of each tag, as systemd hands it over.
    words = {
        (1, 18, 0): "/nvidia.ko",
        (1, 18, 1): r"/(nvidia|nvidia-current)\.ko[:]",
        (1, 18, 2): r"/(nvidia|nvidia-current)\.ko",
    }
    plain = toolkit.removeprefix("1:")
    form = next(text for first, text in reversed(words.items()) if pairs.version(plain) >= first)
    line = f"updates/dkms/{module}: kernel/drivers/gpu/drm/drm.ko\n"
    found = subprocess.run(["grep", "-qE", form], input=line, text=True, check=False)
    assert (found.returncode == 0) is runs
    generate = asked(toolkit=toolkit, cdi="generate")
    assert "container_runtime.cdi_refresh" not in codes(node, generate)


def test_refresh_is_refused_of_a_toolkit_that_has_none() -> None:
    kernel = Kernel("6.8.0-90-generic", modules={"nvidia": "updates/dkms/nvidia.ko"})
    node = replace(facts(), software=software(kernels=(kernel,)))
    for toolkit in ("1.17.8-1", "1:1.17.8-1"):
        policy = asked(toolkit=toolkit, cdi="refresh")
        found = refusal(node, policy)
        assert (found.code, "1.18" in found.why) == ("container_runtime.cdi", True)
        # Its module's name is not to blame.
        assert policy.container_runtime is not None
        told = container_findings.findings(node, policy.container_runtime)
        assert "container_runtime.cdi_refresh" not in [one.code for one in told]


def test_the_links_that_a_reload_needs_are_made_whenever_the_driver_is_loaded() -> None:
    rule = entry(planned(facts(), asked(toolkit=TOOLKIT)), "file", container_runtime.DEV_CHAR)["content"]
    (line,) = [row for row in rule.splitlines() if not row.startswith("#")]
    assert line.startswith('ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia"')
    assert "create-dev-char-symlinks --create-all" in line


def test_missing_links_are_told_and_units_wait_while_a_container_runs() -> None:
    node = facts(devices=1, unlinked=("/dev/nvidia0",))
    assert "container_runtime.dev_char" in codes(node, asked(toolkit=TOOLKIT))
    busy = facts(devices=1, unlinked=("/dev/nvidia0",), running={"conmon": 1})
    assert refusal(busy, asked(toolkit=TOOLKIT)).code == "container_runtime.daemon_reload"
    # The scripts of the toolkit's packages have units read again, too.
    assert refusal(busy, asked(toolkit=TOOLKIT, cdi="none")).code == "container_runtime.daemon_reload"
    # Without it and without a file below /etc/systemd nothing is reloaded.
    planned(busy, asked())


def test_a_cdi_file_of_another_driver_and_two_of_one_kind_are_told() -> None:
    node = replace(facts(), host=replace(machine(H100).host, driver="580.173.02"))
    old = CdiFile("/var/run/cdi/nvidia.yaml", "nvidia.com/gpu", ("0", "all"), ("580.126.20",))
    stale = replace(node, containers=Containers(cdi=(old,)))
    assert "container_runtime.cdi_stale" in codes(stale, asked(toolkit=TOOLKIT))
    two = replace(
        node, containers=Containers(cdi=(replace(old, drivers=()), replace(old, path="/etc/cdi/nvidia.yaml")))
    )
    assert "container_runtime.cdi_twice" in codes(two, asked(toolkit=TOOLKIT))
    plugin = CdiFile("/var/run/cdi/k8s.json", known.OTHERS_KINDS[0])
    others = replace(node, containers=Containers(cdi=(plugin,)))
    assert "container_runtime.cdi_others" in codes(others, asked(toolkit=TOOLKIT))


# ----- restarts ------------------------------------------------------------------------------------------------------


def test_a_restart_is_announced_and_only_done_where_it_was_asked_for() -> None:
    made = planned(facts(), asked())
    assert not [row for row in made.entries if row["kind"] == "container_daemon"]
    assert "container_runtime.restart" in codes(facts(), asked())
    row = entry(planned(facts(), asked(restart=True)), "container_daemon")
    assert row == {"kind": "container_daemon", "name": "docker.service", "restart_if_older_than": [DAEMON]}
    assert codes(facts(), asked(restart=True)) == []
    assert "container_runtime.restart" in codes(facts(running={"conmon": 1}), asked(restart=True))


def test_packages_whose_scripts_restart_a_daemon_wait_while_a_container_runs() -> None:
    packages = {"docker-ce": "5:28.3.3-1~debian.12~bookworm"}
    old = software(packages=(Package("docker-ce", "5:27.5.1-1~debian.12~bookworm"),))
    busy = replace(facts(running={"containerd-shim": 2}), software=old)
    found = refusal(busy, asked(packages=packages))
    assert (found.code, found.where) == ("container_runtime.busy", "docker-ce 5:27.5.1-1~debian.12~bookworm")
    planned(replace(facts(), software=old), asked(packages=packages))
    same = software(packages=(Package("docker-ce", packages["docker-ce"]),))
    planned(replace(busy, software=same), asked(packages=packages))


# ----- Slurm, Kubernetes ---------------------------------------------------------------------------------------------


def test_pyxis_is_named_to_slurm_and_what_keeps_it_from_being_loaded_is_told() -> None:
    policy = asked(runtime=None, pyxis="/usr/lib/slurm/spank_pyxis.so", toolkit=TOOLKIT)
    made = planned(facts(), policy)
    assert entry(made, "file", container_asked.PLUGSTACK)["content"].endswith(
        # spank(8): a required plugin that does not load ends every job, an optional one only those that name it.
        "optional /usr/lib/slurm/spank_pyxis.so\n"
    )
    assert "container_runtime.plugstack" in codes(facts(), policy)
    includes = facts(plugstack=("/etc/slurm/plugstack.conf.d/*.conf",))
    assert "container_runtime.plugstack" not in codes(includes, policy)
    assert "container_runtime.plugstack" not in codes(facts(plugstack=("plugstack.conf.d/*",)), policy)


def test_enroots_hook_needs_a_program_of_the_toolkit_and_open_device_files() -> None:
    policy = asked(runtime=None, enroot_settings={"ENROOT_RESTRICT_DEV": "yes"})
    said = codes(facts(), policy)
    assert {"container_runtime.enroot_tools", "container_runtime.enroot_devices"} <= set(said)
    assert "container_runtime.enroot_tools" not in codes(facts(programs=("nvidia-container-cli",)), policy)
    row = entry(planned(facts(), policy), "file")
    assert row["path"] == "/etc/enroot/enroot.conf.d/60-railwright-settings.conf"
    assert row["content"].endswith("ENROOT_RESTRICT_DEV yes\n")


def test_labels_of_a_kubernetes_node_are_lines_of_name_and_value() -> None:
    made = planned(facts(), asked(runtime=None, labels={"site-pool": "a"}), rails=8)
    lines = entry(made, "file", containers.LABELS)["content"].splitlines()
    found = dict(line.split("=") for line in lines if not line.startswith("#"))
    assert found == {
        "railwright-gpus": "1",
        "railwright-rails": "8",
        "railwright-gpu-order": "PCI_BUS_ID",
        "site-pool": "a",
    }
