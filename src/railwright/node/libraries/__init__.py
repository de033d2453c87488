"""Which copies of NCCL, the CUDA runtime and libibverbs a machine holds, and which each runtime on it really loads."""

from .audit import LIBRARIES, PLACES, Audit, Copy, Process, Runtime, audit
from .meant import meant

__all__ = ["LIBRARIES", "PLACES", "Audit", "Copy", "Process", "Runtime", "audit", "meant"]
