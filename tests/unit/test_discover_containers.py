"""Containers of a node as they are read: programs, configurations, CDI files, and texts that are damaged."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from railwright.node.discover.containers import (
    cdi_file,
    containerd_config,
    docker_config,
    gpu_files,
    read_containers,
)
from railwright.node.discover.tree import Tree
from railwright.node.model import DockerConfig, InputError, to_json
from railwright.plan import containers
from tests.unit.container_texts import FORM_2, FORM_3, OF_DOCKER
from tests.unit.damage import damaged
from tests.unit.small_machine import plant

DAEMON = "/etc/docker/daemon.json"


def test_a_node_with_docker_and_its_cdi_files_is_read(tmp_path: Path) -> None:
    path, text = containers.cdi("gpu-order", ["CUDA_DEVICE_ORDER=PCI_BUS_ID"])
    root = plant(
        tmp_path,
        {
            "usr/bin/dockerd": "",
            "usr/sbin/containerd": "",
            path[1:]: text,
            "run/cdi/nvidia.yaml": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n- name: all\n"
            "  mounts:\n  - hostPath: /usr/lib/libcuda.so.580.173.02\n",
            DAEMON[1:]: '{"exec-opts": [], "proxies": {"http-proxy": "http://u:secret@p"}}',
            "etc/containerd/config.toml": FORM_2,
            "etc/slurm/plugstack.conf": "include /etc/slurm/plugstack.conf.d/*.conf\n",
        },
    )  # fmt: skip
    found = read_containers(Tree(root), {1: "systemd", 7: "containerd-shim", 8: "containerd-shim"})
    assert found.programs == ("dockerd", "containerd")
    assert found.running == {"containerd-shim": 2}
    assert found.docker == DockerConfig({"exec-opts": []})
    assert found.containerd is not None
    assert (found.containerd.version, found.containerd.enable_cdi, found.containerd.systemd_cgroup) == (
        2,
        False,
        True,
    )
    ours, gpus = found.cdi
    assert (ours.kind, ours.devices) == ("railwright/node", ("gpu-order",))
    assert (gpus.kind, gpus.devices, gpus.drivers) == ("nvidia.com/gpu", ("0", "all"), ("580.173.02",))
    assert found.plugstack == ("/etc/slurm/plugstack.conf.d/*.conf",)
    assert "secret" not in json.dumps(to_json(found))


CDI_TEXT = (
    'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n  containerEdits:\n    env:\n    - A=b\n'
)


@pytest.mark.parametrize("text", [FORM_2, FORM_3, OF_DOCKER])
def test_damaged_containerd_configurations_are_read_or_name_their_line(text: str) -> None:
    for data in damaged(text):
        shown = data.decode("utf-8", "backslashreplace")
        with suppress(InputError):
            assert 1 <= containerd_config(shown, "config.toml").version <= 99
    with pytest.raises(InputError) as caught:
        containerd_config(f"{text}\nwhat is this\n", "config.toml")
    assert caught.value.where == f"config.toml, line {len(text.splitlines()) + 2}"


@pytest.mark.parametrize(
    "line", ["[" + " " * 100_000 + "x", "a = " + " #" * 50_000 + "'", "[" + " " * 900 + "x"]
)
def test_a_line_that_is_made_to_be_looked_at_for_ever_is_refused_at_once(line: str) -> None:
    with pytest.raises(InputError):
        containerd_config(f"version = 2\n{line}\n", "config.toml")


def test_texts_of_nothing_but_space_are_read_at_once() -> None:
    # With a pattern that runs over the ends of lines this takes hours.
    assert cdi_file("/etc/cdi/x.yaml", "\n" * 1_000_000 + " " * 1_000_000).kind is None


def test_device_files_without_a_link_below_dev_char_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(
        tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidia-caps-imex": "", "dev/char/195:1": ""}
    )
    numbers = {"dev/nvidia0": os.makedev(195, 0), "dev/nvidia1": os.makedev(195, 1)}

    def status(self: Tree, path: str) -> os.stat_result:
        # As lstat tells it of a character device, which only root could make.
        return os.stat_result((0o20666, 0, 0, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": numbers[path]})

    monkeypatch.setattr(Tree, "status", status)
    assert gpu_files(Tree(root)) == (2, ("/dev/nvidia0",))


def test_a_link_of_debians_and_names_that_no_command_takes_do_not_end_the_reader(tmp_path: Path) -> None:
    root = plant(
        tmp_path, {"run/cdi/nvidia.yaml": CDI_TEXT, "etc/cdi/a;reboot;.yaml": CDI_TEXT}, {"var/run": "/run"}
    )
    assert [one.path for one in read_containers(Tree(root), {}).cdi] == ["/run/cdi/nvidia.yaml"]


@pytest.mark.parametrize("levels", [100, 500, 900, 5000])
def test_a_daemon_json_as_deep_as_a_well_is_refused_with_words(levels: int) -> None:
    assert "deep" in docker_config(f'{{"runtimes": {"[" * levels}{"]" * levels}}}'.encode()).why


def test_damaged_daemon_jsons_are_read_or_say_why() -> None:
    text = json.dumps(
        {"exec-opts": ["native.cgroupdriver=systemd"], "runtimes": {"nvidia": {"path": "x"}}}, indent=2
    )
    for data in damaged(text):
        found = docker_config(data)
        assert bool(found.why) is not _is_object(data)


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data.decode()) if data.strip() else {}, dict)
    except ValueError:
        return False


def test_damaged_cdi_files_are_read_as_far_as_lines_tell() -> None:
    for text in (CDI_TEXT, containers.cdi("nccl", ["A=b"], ["/etc/nccl.conf"])[1]):
        for data in damaged(text):
            found = cdi_file("/etc/cdi/x", data.decode("utf-8", "backslashreplace"))
            assert found.kind in (None, "nvidia.com/gpu", "railwright/node") or "/" in found.kind
