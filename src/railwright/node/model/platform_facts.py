"""What an installation depends on and no plan of tuning does: compilers, firmware tables, vendors' images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class FailedBuild:
    """log: the path of the build's log. kernel: for which it was. error: the first line that tells of one."""

    log: str
    kernel: Optional[str]
    error: str


@dataclass(frozen=True)
class Platform:
    """The base below kernel and driver; None is unknown.

    compilers: C compilers that are installed, by the names that they are called by ("gcc", "gcc-12"), with their major
    versions; of an unversioned name that of what its link leads to, None where that does not tell. iommu_table: the
    firmware describes an IOMMU (ACPI DMAR, IVRS or IORT): VT-d or AMD-Vi is on in the BIOS. vfs: virtual functions that
    a device can make, by its PCI address; 0 where firmware or BIOS has SR-IOV off. images: files of vendors' images
    that are there. failed_builds: logs of DKMS builds that ended with an error.
    """

    compilers: dict[str, Optional[int]] = field(default_factory=dict)
    iommu_table: Optional[bool] = None
    vfs: dict[str, int] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    failed_builds: tuple[FailedBuild, ...] = ()


@dataclass(frozen=True)
class Reached:
    """One address that a run needs, asked from the node itself.

    ok: None where it is of a kind that nobody asks. why: what was answered. ms: how long that took.
    """

    url: str
    ok: Optional[bool]
    why: str
    ms: Optional[int] = None


@dataclass(frozen=True)
class Probe:
    """What only a live node can answer before an installation.

    python: the interpreter's version. clock: seconds since 1970. synchronized: whether the kernel's clock is held to a
    reference (adjtimex(2), STA_UNSYNC). proxy: what apt or dnf is told to go through.
    """

    python: str
    clock: float
    synchronized: Optional[bool]
    proxy: Optional[str]
    reached: tuple[Reached, ...] = ()


@dataclass(frozen=True)
class CudaTried:
    """A use of CUDA. ok: None where there is no library to try with. gpus: CUDA indices that worked."""

    ok: Optional[bool]
    gpus: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class DriverUse:
    """Who uses the loaded driver. refcount: of the module nvidia; dependents: modules that hold it; daemon_files:
    files of GPUs that the driver's own daemons have open; users: other processes that have one. None: not loaded.
    """

    refcount: Optional[int]
    dependents: Optional[int]
    daemon_files: int
    users: tuple[str, ...] = ()
    cuda: Optional[CudaTried] = None

    @property
    def busy(self) -> Optional[str]:
        """Why nothing may be replaced under it now; None where nobody uses it."""
        if self.users:
            return f"in use by {', '.join(self.users)}"
        if self.refcount is None:
            return None
        rest = self.refcount - (self.dependents or 0) - self.daemon_files
        if rest > 0:
            return (
                f"the module nvidia is held {self.refcount} times, {self.dependents or 0} by other modules and "
                f"{self.daemon_files} by its own daemons: {rest} by somebody who does not show"
            )
        return None
