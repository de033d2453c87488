"""Container runtimes, their configuration, CDI files and device files, read from files."""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, Optional

from ..model import InputError
from ..model.container_facts import CDI_PATH, CdiFile, ContainerdConfig, Containers, DockerConfig, counted
from . import toml_lines
from .tree import Tree

PROGRAMS = (
    "dockerd",
    "podman",
    "containerd",
    "crio",
    "enroot",
    "nvidia-ctk",
    "nvidia-container-cli",
    "kubelet",
)
_FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
DOCKER = "etc/docker/daemon.json"
CONTAINERD = "etc/containerd/config.toml"
# What others keep in daemon.json is theirs, a proxy with its password say: only what is decided by is read.
DOCKER_KEYS = (
    "exec-opts",
    "default-runtime",
    "runtimes",
    "features",
    "live-restore",
    "cdi-spec-dirs",
    "default-ulimits",
)
_CDI_FOLDERS = ("etc/cdi", "var/run/cdi", "run/cdi")
_CDI_ENDS = (".json", ".yaml", ".yml")
_KIND = re.compile(
    r"""^[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([A-Za-z][\w.-]{0,80}/[\w.-]{1,80})["']?[ \t]*,?[ \t]*$""",
    re.MULTILINE | re.ASCII,
)
_DEVICE = re.compile(
    r"""^[ \t]*(?:-[ \t]*)?["']?name["']?[ \t]*:[ \t]*["']?([A-Za-z0-9_.:-]{1,80})["']?[ \t]*,?[ \t]*$""",
    re.MULTILINE,
)
_DRIVER = re.compile(r"\.so\.([0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)\b", re.ASCII)
_GPU_DEVICE = re.compile(r"nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset)", re.ASCII)
_SECTIONS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_INCLUDE = re.compile(r"^[ \t]*include[ \t]+(\S{1,300})", re.MULTILINE)
_PLUGSTACKS = ("etc/slurm/plugstack.conf", "etc/slurm-llnl/plugstack.conf")
# The CDI file of 16 GPUs in 7 parts each has some 200 KiB; configurations have a tenth of that.
_CDI_BYTES = 4 * 1024 * 1024
_TEXT_BYTES = 256 * 1024
_DEEPEST = 64
_MOST_FILES = 32
_MOST_DEVICES = 64
_MOST_DRIVERS = 8
_MOST_INCLUDES = 64
OURS = "# Written by Railwright"


def read_containers(tree: Tree, running: Mapping[int, str]) -> Containers:
    """running: names of processes by number."""
    devices, unlinked = gpu_files(tree)
    return Containers(
        programs=tuple(
            name for name in PROGRAMS if any(tree.exists(f"{folder}/{name}") for folder in _FOLDERS)
        ),
        running=counted(running.values()),
        docker=_docker(tree),
        containerd=_containerd(tree),
        cdi=_cdi(tree),
        devices=devices,
        unlinked=unlinked,
        plugstack=next(
            (
                tuple(_INCLUDE.findall(tree.text(path, _TEXT_BYTES) or "")[:_MOST_INCLUDES])
                for path in _PLUGSTACKS
                if tree.exists(path)
            ),
            None,
        ),
    )


def _docker(tree: Tree) -> Optional[DockerConfig]:
    if not tree.exists(DOCKER):
        return None
    try:
        data = tree.data(DOCKER, _TEXT_BYTES)
    except InputError as error:
        return DockerConfig(why=error.why)
    return DockerConfig(why="cannot be read") if data is None else docker_config(data)


def docker_config(data: bytes) -> DockerConfig:
    """What is decided by of a daemon.json; its `why` says where it is none."""
    try:
        text = data.decode()
        if text.startswith("\ufeff"):
            # dockerd itself reads over it, and whoever writes the file again would lose it.
            return DockerConfig(why="begins with a byte order mark")
        # Counted before it is parsed, for what parses it and what writes it run out of stack at depths of their own.
        if max(accumulate((mark in "[{") - (mark in "]}") for mark in text), default=0) > _DEEPEST:
            return DockerConfig(why=f"is nested more than {_DEEPEST} deep")
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return DockerConfig(why=f"is no JSON: {str(error)[:120]}")
    if not isinstance(value, dict):
        return DockerConfig(why="holds no JSON object")
    kept: dict[str, Any] = {key: value[key] for key in DOCKER_KEYS if key in value}
    try:
        json.dumps(kept, allow_nan=False)
    except ValueError:
        return DockerConfig(why="holds a number that is none")
    return DockerConfig(kept)


def _containerd(tree: Tree) -> Optional[ContainerdConfig]:
    if not tree.exists(CONTAINERD):
        return None
    try:
        text = tree.text(CONTAINERD, _TEXT_BYTES)
        if text is None:
            return ContainerdConfig(why="cannot be read")
        config = containerd_config(text, tree.where(CONTAINERD))
    except InputError as error:
        return ContainerdConfig(why=str(error))
    return replace(config, others=_others(tree, config))


def _others(tree: Tree, config: ContainerdConfig) -> tuple[str, ...]:
    found = []
    for pattern in config.imports[:_MOST_FILES]:
        folder, _, wanted = posixpath.join("/etc/containerd", pattern).lstrip("/").rpartition("/")
        for name in fnmatch.filter(_names(tree, folder), wanted)[:_MOST_FILES]:
            text = _text(tree, f"{folder}/{name}")
            if not text.startswith(OURS) and _has_cri(text):
                found.append(f"/{folder}/{name}")
    return tuple(dict.fromkeys(found))


def _has_cri(text: str) -> bool:
    try:
        return containerd_config(text, "").cri
    except InputError:
        return True


def containerd_config(text: str, where: str) -> ContainerdConfig:
    """What is decided by of a config.toml. Raises InputError with the line that is none."""
    values = toml_lines.read(text, where)
    version = values.get(("version",), 1)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 99:
        raise InputError(where, f"version = {version!r}", "expected 1, 2 or 3")
    section = ("plugins", _SECTIONS.get(version, "cri"))
    runc = (*section, "containerd", "runtimes", "runc", "options", "SystemdCgroup")
    return ContainerdConfig(
        ours=text.startswith(OURS),
        version=version,
        imports=_texts(values.get(("imports",))),
        disabled=_texts(values.get(("disabled_plugins",))),
        cri=any(name[: len(section)] == section for name in values),
        enable_cdi=_flag(values.get((*section, "enable_cdi"))),
        systemd_cgroup=_flag(values.get(runc)),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, tuple) else ()


def _flag(value: object) -> Optional[bool]:
    return value if isinstance(value, bool) else None


def _cdi(tree: Tree) -> tuple[CdiFile, ...]:
    found: dict[str, CdiFile] = {}
    for folder in _CDI_FOLDERS:
        names = [
            name
            for name in _names(tree, folder)
            if name.endswith(_CDI_ENDS) and CDI_PATH.fullmatch(f"/{folder}/{name}")
        ]
        for name in names[:_MOST_FILES]:
            place = tree.resolve(f"{folder}/{name}")
            if place is not None and place not in found:
                found[place] = cdi_file(f"/{folder}/{name}", _text(tree, f"{folder}/{name}"))
    return tuple(found.values())


def _names(tree: Tree, folder: str) -> tuple[str, ...]:
    """Debian's /var/run is a link to /run, which leads out of a recorded tree; that folder is looked into by itself."""
    try:
        return tree.names(folder)
    except InputError:
        return ()


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path, _CDI_BYTES) or ""
    except InputError:
        return ""


def cdi_file(path: str, text: str) -> CdiFile:
    """A CDI file as far as lines tell: JSON or YAML as nvidia-ctk and we write them."""
    kind = _KIND.search(text)
    names = tuple(dict.fromkeys(_DEVICE.findall(text)))
    drivers = tuple(sorted(set(_DRIVER.findall(text))))[:_MOST_DRIVERS]
    return CdiFile(path, None if kind is None else kind[1], names[:_MOST_DEVICES], drivers)


def gpu_files(tree: Tree) -> tuple[int, tuple[str, ...]]:
    """How many device files of GPUs there are, and those of them that runc and systemd do not find below /dev/char."""
    count, unlinked = 0, []
    for name in tree.names("dev"):
        status = tree.status(f"dev/{name}") if _GPU_DEVICE.fullmatch(name) else None
        if status is None or not stat.S_ISCHR(status.st_mode):
            continue
        count += 1
        if not tree.exists(f"dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"):
            unlinked.append(f"/dev/{name}")
    return count, tuple(unlinked)
