"""Facts of the RDMA stack that no package record tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class RdmaStack:
    """libraries: files of libibverbs.so.1, links followed, each once. openibd: whether the stack has the service that
    loads DOCA-OFED's modules. behind: kernels whose GPU modules are older than the RDMA stack's own that lie beside the
    kernel's, so that they were built against another ib_core; None where no kernel has both.
    """

    libraries: tuple[str, ...] = ()
    openibd: bool = False
    behind: Optional[tuple[str, ...]] = None
