"""Operating systems that install roles know, and what of their tools is called differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class System:
    """One release. id, version: as os-release has them (of EL the major number alone). manager: "apt" or "dnf".

    python: of its own /usr/bin/python3. headers: the package of a kernel's headers, {kernel} is `uname -r`. metas:
    packages that bring the next kernel, with {architecture} ("amd64") and {version}. rendered: no test of ours runs it;
    what is written for it is only looked at as text. known: where and when it was read.
    """

    id: str
    version: str
    name: str
    manager: str
    python: str
    headers: str
    metas: tuple[str, ...]
    rendered: bool
    known: str

    def meta_packages(self, architecture: str) -> tuple[str, ...]:
        """The packages that bring the next kernel. architecture: in the package system's word."""
        return tuple(name.format(architecture=architecture, version=self.version) for name in self.metas)

    def headers_of(self, kernel: str) -> str:
        """The package of this kernel's headers."""
        plain = kernel[: -len(_64K)] if kernel.endswith(_64K) else kernel
        named = self.headers.format(kernel=plain)
        return named if plain == kernel else named.replace("kernel-", "kernel-64k-", 1)


# What brings Ubuntu's next kernel by itself: plain, for newer hardware (HWE), and NVIDIA's, on arm64 with pages of
# 64 KiB too (packages.ubuntu.com, jammy and noble, 2026-11).
_UBUNTU = (
    "linux-generic", "linux-image-generic", "linux-headers-generic",
    "linux-generic-hwe-{version}", "linux-image-generic-hwe-{version}", "linux-headers-generic-hwe-{version}",
    "linux-nvidia", "linux-image-nvidia", "linux-headers-nvidia",
    "linux-nvidia-hwe-{version}", "linux-image-nvidia-hwe-{version}", "linux-headers-nvidia-hwe-{version}",
    "linux-nvidia-64k", "linux-image-nvidia-64k", "linux-headers-nvidia-64k",
)  # fmt: skip
_DEBIAN = ("linux-image-{architecture}", "linux-headers-{architecture}")
# EL's kernel with pages of 64 KiB, of aarch64 alone (RHEL 9, "The 64k page size kernel").
_64K = "+64k"
SYSTEMS: tuple[System, ...] = (
    System(
        "ubuntu", "22.04", "Ubuntu 22.04", "apt", "3.10", "linux-headers-{kernel}",
        _UBUNTU, True, "packages.ubuntu.com, jammy, 2026-11",
    ),
    System(
        "ubuntu", "24.04", "Ubuntu 24.04", "apt", "3.12", "linux-headers-{kernel}",
        _UBUNTU, True, "packages.ubuntu.com, noble, 2026-11",
    ),
    System(
        "debian", "12", "Debian 12", "apt", "3.11", "linux-headers-{kernel}",
        _DEBIAN, False, "packages.debian.org, bookworm, and a node of it, 2026-11",
    ),
    System(
        "debian", "13", "Debian 13", "apt", "3.13", "linux-headers-{kernel}",
        _DEBIAN, False, "packages.debian.org, trixie, and a node of it, 2026-11",
    ),
    System(
        "rhel", "9", "RHEL 9", "dnf", "3.9", "kernel-devel-{kernel}", ("kernel", "kernel-core", "kernel-devel"),
        True, "Red Hat's package manifest of RHEL 9, 2026-08",
    ),
    System(
        "rocky", "9", "Rocky Linux 9", "dnf", "3.9", "kernel-devel-{kernel}", ("kernel", "kernel-core", "kernel-devel"),
        True, "as RHEL 9",
    ),
)  # fmt: skip


def system_of(os_id: Optional[str], version: Optional[str]) -> Optional[System]:
    """The row of a release; None for one that there is none of."""
    if os_id is None or version is None:
        return None
    major = version.split(".")[0]
    return next(
        (row for row in SYSTEMS if row.id == os_id and row.version in (version, major)),
        None,
    )


def names() -> str:
    """All of them, for a sentence."""
    return ", ".join(row.name for row in SYSTEMS)
