"""Facts of a node's software: packages, kernels and what they have, the boot loader, power settings.

Plain data; `Facts.software` and `Facts.power` hold them, None where the witness does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class Package:
    """One package that matters here. version: all that stand there, with a blank between (of rpm's kernels several).

    status: dpkg's word ("installed", "half-configured", ...); of rpm always "installed".
    """

    name: str
    version: str
    status: str = "installed"
    held: bool = False


@dataclass(frozen=True)
class PackageLock:
    """A lock of the package system that is held now. holder: "apt-get (process 4711)"."""

    path: str
    holder: str


@dataclass(frozen=True)
class Kernel:
    """A kernel that may boot. headers: those that its modules are built with are there. initramfs: whether it has one.

    modules: files of modules that matter here, by module, as its modules.dep names them ("updates/dkms/nvidia.ko.xz").
    compiler: what it was built with, as its headers tell ("gcc-12"). driver: the version of the module nvidia that
    would be loaded with it, as modinfo tells on a live node.
    """

    release: str
    headers: bool = False
    initramfs: Optional[bool] = None
    modules: dict[str, str] = field(default_factory=dict)
    compiler: Optional[str] = None
    driver: Optional[str] = None


@dataclass(frozen=True)
class Dkms:
    """A module tree of DKMS for one kernel. state: "added" (for none, kernel is ""), "built" or "installed"."""

    module: str
    version: str
    kernel: str = ""
    architecture: str = ""
    state: str = "added"


@dataclass(frozen=True)
class Moved:
    """The last transaction that changed a package of the driver, as the package system's own log tells. at: its words
    for the time, which are the node's local one. by: the command line. what: "NAME OLD -> NEW" of one of them."""

    at: str
    by: str
    what: str


@dataclass(frozen=True)
class Software:
    """What is installed and what boots.

    system: "dpkg" or "rpm". architecture: the package system's word ("amd64", "x86_64"). packages: those whose names
    matter here and those that were asked for. interrupted: what dpkg left half-way. boot_loader: "grub", "bls"; None is
    none that we know. next_kernel: the release that boots next, where it can be told. boot_lines: the kernel's words of
    every entry that may boot, without those for recovery, each once. lockdown: "none", "integrity",
    "confidentiality". boot_free, var_free: bytes that root may still write there. moved: who last changed the driver.
    """

    system: Optional[str] = None
    architecture: Optional[str] = None
    packages: tuple[Package, ...] = ()
    locks: tuple[PackageLock, ...] = ()
    interrupted: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    dkms: tuple[Dkms, ...] = ()
    boot_loader: Optional[str] = None
    next_kernel: Optional[str] = None
    boot_lines: tuple[str, ...] = ()
    lockdown: Optional[str] = None
    boot_free: Optional[int] = None
    var_free: Optional[int] = None
    moved: Optional[Moved] = None

    def package(self, name: str) -> Optional[Package]:
        """The package of this name, where it stands there."""
        return next((package for package in self.packages if package.name == name), None)


@dataclass(frozen=True)
class IdleState:
    """A C-state as the kernel numbers it. latency: microseconds to leave it. disabled: on every CPU."""

    index: int
    name: str
    latency: int
    disabled: bool = False


@dataclass(frozen=True)
class Power:
    """How the processors save. governors: those that there are. energy_bias: whether EPB can be set. min_perf_pct: of
    intel_pstate. transparent_hugepage: the chosen word. tuned: its active profile, "" where it runs without one; None
    where it does not run here."""

    driver: Optional[str] = None
    governor: Optional[str] = None
    governors: tuple[str, ...] = ()
    energy_bias: Optional[bool] = None
    min_perf_pct: Optional[int] = None
    idle: tuple[IdleState, ...] = ()
    transparent_hugepage: Optional[str] = None
    tuned: Optional[str] = None
