"""Which copies of NCCL, the CUDA runtime and libibverbs a machine holds, and which each runtime on it really loads."""

from .audit import LIBRARIES, PLACES, Audit, Copy, Process, Runtime, audit

__all__ = ["LIBRARIES", "PLACES", "Audit", "Copy", "Process", "Runtime", "audit"]
