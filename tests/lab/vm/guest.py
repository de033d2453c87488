"""The guest's root file system: Debian 13 with its own kernel, its boot loader, and tools to ask."""

from __future__ import annotations

from pathlib import Path

from .. import cache, debian
from ..rootfs import strip

SUITE = debian.SUITES["13"]
# The compiler and the headers build the guest's modules, and a driver's later.
PACKAGES = (
    *debian.PACKAGES, "e2fsprogs", "gcc", "grub-pc", "hwloc-nox", "ibverbs-providers", "ibverbs-utils",
    "initramfs-tools", "linux-headers-amd64", "linux-image-amd64", "make", "numactl", "perftest", "rdma-core", "zstd",
)  # fmt: skip


def root() -> Path:
    """The guest's root file system as its packages leave it, made where it is absent. Raises LabError."""
    return cache.kept("guest", name(), _build)


def name() -> str:
    """Of the cache: another recipe is another root file system."""
    return cache.key(debian.recipe(__file__), debian.mirror().encode())


def kernel(root: Path) -> str:
    """The release of its one kernel, as `uname -r` says it."""
    return next((root / "lib/modules").iterdir()).name


def _build(folder: Path) -> None:
    # The kernel's package makes an initramfs while it is installed: a small one, then.
    small = 'printf "MODULES=list\\nCOMPRESS=zstd\\n" > "$1/etc/initramfs-tools/conf.d/lab"'
    hook = f'--essential-hook=mkdir -p "$1/etc/initramfs-tools/conf.d" && {small}'
    debian.bootstrap(SUITE, PACKAGES, folder, hook)
    strip(folder)
