"""Facts of containers: runtimes, their configuration, CDI files, and what runs now."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from .codec import InputError

# Paths of device and CDI files go into commands.
CDI_PATH = re.compile(r"/(?:etc|var/run|run)/cdi/[A-Za-z0-9_.@=+-]{1,120}", re.ASCII)
_GPU_FILE = re.compile(r"/dev/nvidia[a-z0-9-]{1,20}", re.ASCII)
# As /proc/PID/comm has them, at most 15 characters: containerd's shims (one for each container or pod), and conmon of
# podman and CRI-O, in C and in Rust.
SUPERVISORS = ("containerd-shim", "conmon", "conmonrs")


@dataclass(frozen=True)
class CdiFile:
    """A CDI file. kind, devices: None and () where it cannot be read as one. drivers: versions of NVIDIA's libraries
    that it names ("580.173.02")."""

    path: str
    kind: Optional[str] = None
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()


@dataclass(frozen=True)
class DockerConfig:
    """Docker's daemon.json. values: of the keys that matter here (a proxy's password is none of them). why: what keeps
    it from being read, "" where nothing does."""

    values: dict[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class ContainerdConfig:
    """containerd's config.toml. ours: it is a whole file that Railwright wrote. why: what keeps it from being read.

    version: of its form; 1 where it states none. imports: patterns. disabled: plugins. cri: whether it has a section
    of the CRI plugin. enable_cdi, systemd_cgroup: as it states them. others: files that it imports besides ours and
    that have such a section too, or cannot be read.
    """

    ours: bool = False
    why: str = ""
    version: int = 1
    imports: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    cri: bool = False
    enable_cdi: Optional[bool] = None
    systemd_cgroup: Optional[bool] = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Containers:
    """Containers on a node.

    programs: of the runtimes and tools that matter, those that are installed. running: how many containers or pods
    run, by the program that stands over each ("containerd-shim", "conmon"). docker, containerd: None where there is no
    such file. unlinked: device files of GPUs to which nothing below /dev/char leads. devices: how many of them there
    are. plugstack: files that Slurm's plugstack.conf includes; None where there is none.
    """

    programs: tuple[str, ...] = ()
    running: dict[str, int] = field(default_factory=dict)
    docker: Optional[DockerConfig] = None
    containerd: Optional[ContainerdConfig] = None
    cdi: tuple[CdiFile, ...] = ()
    devices: int = 0
    unlinked: tuple[str, ...] = ()
    plugstack: Optional[tuple[str, ...]] = None


def counted(names: Iterable[str]) -> dict[str, int]:
    """Supervisors by name. names: of all running processes."""
    found = [name for name in names if name in SUPERVISORS]
    return {name: found.count(name) for name in SUPERVISORS if name in found}


def spoken(running: dict[str, int]) -> str:
    """ "3 containers run (containerd-shim)"; "" where none does."""
    if not running:
        return ""
    count = sum(running.values())
    return f"{count} {'container runs' if count == 1 else 'containers run'} ({', '.join(running)})"


def must_be_sound(containers: Containers, where: str) -> None:
    """Raises InputError for what no node has."""
    for n, one in enumerate(containers.cdi):
        if not CDI_PATH.fullmatch(one.path):
            raise InputError(
                f"{where}.cdi[{n}].path",
                f"found {one.path[:80]!r}",
                "expected a file of /etc/cdi or /run/cdi",
            )
    for n, path in enumerate(containers.unlinked):
        if not _GPU_FILE.fullmatch(path):
            raise InputError(
                f"{where}.unlinked[{n}]", f"found {path[:40]!r}", "expected a form like /dev/nvidia0"
            )
    for name, count in containers.running.items():
        if name not in SUPERVISORS or count < 1:
            raise InputError(
                f"{where}.running", f"found {count} of {name[:40]!r}", f"expected some of {SUPERVISORS}"
            )
