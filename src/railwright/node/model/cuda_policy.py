"""Policy of CUDA toolkits and of NCCL's packages: what a site says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import SHA256, TOOLKIT, like, one_of

# Which of NVIDIA's meta packages is meant; all carry the toolkit's version.
PARTS = ("toolkit", "libraries", "minimal-build")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]{1,100}", re.ASCII)
_VERSION = re.compile(r"(?:[0-9]+:)?[0-9][0-9A-Za-z.+~-]{0,80}", re.ASCII)
_ARCHITECTURE = re.compile(r"[1-9][0-9]?\.[0-9]", re.ASCII)


@dataclass(frozen=True)
class CudaPolicy:
    """CUDA toolkits, side by side.

    toolkits: exact version of the package by toolkit, {"13.0": "13.0.2-1"}. part: "toolkit" (compiler and libraries),
    "libraries" (what programs need to run) or "minimal-build". default: which of them /usr/local/cuda leads to; None:
    the newest. packages: more packages with their exact versions ("cuda-compat-13-0", or a distribution's own
    "nvidia-cuda-toolkit", which lies in the system's folders and needs no alternative).
    """

    toolkits: dict[str, str] = field(default_factory=dict)
    part: str = "toolkit"
    default: Optional[str] = None
    packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltPolicy:
    """A build of this project's own. sha256: of its manifest, as `playbooks/build_nccl.yml` tells it; it names the
    folder with the packages on each node. architectures: compute capabilities that it has code for ("9.0")."""

    sha256: str
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class NcclLibraryPolicy:
    """NCCL's packages, held. packages: exact versions by name, {"libnccl2": "2.30.4-1+cuda13.0"}. built: None where an
    archive has them."""

    packages: dict[str, str] = field(default_factory=dict)
    built: Optional[BuiltPolicy] = None


def must_be_sound(cuda: Optional[CudaPolicy], nccl: Optional[NcclLibraryPolicy], where: str) -> None:
    """Raises InputError with the place of what cannot be a toolkit, package, version or digest."""
    if cuda is not None:
        _cuda(cuda, f"{where}.cuda")
    if nccl is not None:
        _nccl(nccl, f"{where}.nccl_library")


def _cuda(cuda: CudaPolicy, where: str) -> None:
    one_of(cuda.part, PARTS, f"{where}.part")
    for name, version in cuda.toolkits.items():
        like(name, TOOLKIT, f"{where}.toolkits", "toolkits like 13.0, in quotes")
        like(version, _VERSION, f"{where}.toolkits.{name}", "a version to the last digit, like 13.0.2-1")
        if not version.startswith(f"{name}."):
            raise InputError(
                f"{where}.toolkits.{name}", f"{version} is none of toolkit {name}", f"expected {name}.…"
            )
    if cuda.default is not None and cuda.default not in cuda.toolkits:
        known = ", ".join(cuda.toolkits) or "none is named"
        raise InputError(f"{where}.default", f"found {cuda.default!r}", f"expected one of {known}")
    _packages(cuda.packages, f"{where}.packages")
    if not (cuda.toolkits or cuda.packages):
        raise InputError(f"{where}.toolkits", "names nothing", 'name toolkits, as {"13.0": 13.0.2-1}')


def _nccl(nccl: NcclLibraryPolicy, where: str) -> None:
    if not nccl.packages:
        raise InputError(f"{where}.packages", "names nothing", "name libnccl2 (libnccl) with its version")
    _packages(nccl.packages, f"{where}.packages")
    if nccl.built is not None:
        like(nccl.built.sha256, SHA256, f"{where}.built.sha256", "64 hexadecimal digits")
        for each in nccl.built.architectures:
            like(each, _ARCHITECTURE, f"{where}.built.architectures", "compute capabilities like 9.0")
        if not nccl.built.architectures:
            raise InputError(f"{where}.built.architectures", "names none", "state those of the build")


def _packages(packages: dict[str, str], where: str) -> None:
    for name, version in packages.items():
        like(name, _PACKAGE, where, "names of packages, without * and ?")
        like(version, _VERSION, f"{where}.{name}", "a version to the last digit")
