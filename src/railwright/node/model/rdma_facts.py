"""Facts of the RDMA stack that no package record tells, and where its modules lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

# Where what is not the kernel's own lies (depmod.d(5), search; Canonical's builds of DOCA-OFED in Ubuntu 26.04:
# packages.ubuntu.com, files of linux-main-modules-doca-ofed-26.01-7.0.0-1004-azure-fde, 2026-11).
_BESIDE = ("updates/", "extra/", "weak-updates/", "kernel/doca-ofed-")


def is_beside(path: str) -> bool:
    """Whether a module, by its path below the kernel's folder, is none of the kernel's own."""
    return path.startswith(_BESIDE)


@dataclass(frozen=True)
class RdmaStack:
    """libraries: files of libibverbs.so.1, links followed, each once. openibd: whether the stack has the service that
    loads DOCA-OFED's modules. behind: kernels whose GPU modules were built against another ib_core than the RDMA
    stack's that lies beside the kernel's; None where no kernel has both. registered: whether ib_core has a client for
    GPU memory now, which a loaded nvidia_peermem alone does not show; None where /sys/kernel/mm is not shown.
    """

    libraries: tuple[str, ...] = ()
    openibd: bool = False
    behind: Optional[tuple[str, ...]] = None
    registered: Optional[bool] = None
