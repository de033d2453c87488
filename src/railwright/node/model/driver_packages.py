"""Which packages are a driver's, by whoever's archive, and the version that they are of.

Sources: packages.ubuntu.com and packages.debian.org (2026-11), NVIDIA's driver installation guide r610 (2026-08).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Optional

# What all of one node must agree on, and what no upgrade may move by itself. The container toolkit and CUDA have
# versions of their own and are none of it.
DRIVER_PATTERNS: tuple[str, ...] = (
    "cuda-drivers*",
    "kmod-nvidia*",
    "libcuda1",
    "libcudadebugger1",
    "libnvidia-cfg*",
    "libnvidia-common*",
    "libnvidia-compute*",
    "libnvidia-decode*",
    "libnvidia-encode*",
    "libnvidia-extra*",
    "libnvidia-fbc*",
    "libnvidia-gl*",
    "libnvidia-ml*",
    "libnvidia-nscq*",
    "libnvidia-ptxjitcompiler*",
    "libnvsdm*",
    "nvidia-compute-utils*",
    "nvidia-dkms*",
    "nvidia-driver",
    "nvidia-driver-*",
    "nvidia-fabric-manager*",
    "nvidia-fabricmanager*",
    "nvidia-firmware*",
    "nvidia-headless*",
    "nvidia-imex*",
    "nvidia-kernel-*",
    "nvidia-kmod*",
    "nvidia-open*",
    "nvidia-persistenced*",
    "nvidia-smi",
    "nvidia-utils*",
    "xserver-xorg-video-nvidia*",
)
# They begin like the driver's packages and carry versions of their own.
APART: tuple[str, ...] = ("nvidia-driver-pinning-*", "nvidia-kernel-common")
# Parts of the fabric manager's side, whatever the branch.
FABRIC_PATTERNS: tuple[str, ...] = ("nvidia-fabricmanager*", "nvidia-fabric-manager*")
_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d{1,3}(?:\.\d{1,3})?)(?:[-+~].*)?", re.ASCII)


# Kernel drivers that take the GPU first: nouveau, and its successor (linux drivers/gpu/nova-core, from 6.15 on).
RIVALS = ("nouveau", "nova_core", "nova_drm")


def is_driver(name: str) -> bool:
    """Whether a package is a part of a driver."""
    return _like(name, DRIVER_PATTERNS) and not _like(name, APART)


def is_fabric_manager(name: str) -> bool:
    """Whether a package is a fabric manager, not its headers."""
    return _like(name, FABRIC_PATTERNS) and "-dev" not in name


def upstream(version: str) -> Optional[str]:
    """The driver's version in that of a package ("3:580.173.02-1.el9" is 580.173.02); None where there is none."""
    match = _VERSION.fullmatch(version)
    return None if match is None else match[1]


def _like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
