"""Deep-learning packages: what a profile has to hold, which CUDA a lock is built for, how each server is started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ...node.model.wheel_lock import Lock

# The package without which a profile is none.
TRAINING = ("torch",)
# A build's own word behind its version (PEP 440, local version): PyTorch's indexes, "2.9.1+cu130", "2.13.0+cpu".
_LOCAL = re.compile(r"\+cu(\d+)(\d)$", re.ASCII)
# PyPI's wheels of PyTorch have no such word and name NVIDIA's wheels, whose names end with the major version up to
# CUDA 12 and have none from 13 on (PyPI, nvidia-cuda-runtime, 2026-11).
_RUNTIMES = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?", re.ASCII)
_NCCL = re.compile(r"nvidia-nccl-cu\d+", re.ASCII)


@dataclass(frozen=True)
class Engine:
    """A server. package: whose wheel it is. program: below the environment. model, parallel: its words before these."""

    package: str
    program: tuple[str, ...]
    model: tuple[str, ...]
    parallel: str
    source: str


ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        "vllm",
        ("bin/vllm", "serve"),
        (),
        "--tensor-parallel-size",
        "vLLM documentation, `vllm serve`, read 2026-11",
    ),
    "sglang": Engine(
        "sglang",
        ("bin/python", "-m", "sglang.launch_server"),
        ("--model-path",),
        "--tp-size",
        "SGLang documentation, Server Arguments, read 2026-11",
    ),
}


def cuda_of(lock: Lock) -> Optional[str]:
    """The CUDA that torch is built for ("12.8", or as much as the lock tells); "cpu"; None where nothing tells."""
    torch = lock.pin("torch")
    if torch is not None and torch.version.endswith("+cpu"):
        return "cpu"
    match = None if torch is None else _LOCAL.search(torch.version)
    if match is not None:
        return f"{match[1]}.{match[2]}"
    runtimes = [pin.version for pin in lock.pins if _RUNTIMES.fullmatch(pin.name)]
    return ".".join(runtimes[0].split(".")[:2]) if runtimes else None


def nccl_of(lock: Lock) -> Optional[str]:
    """The version of the NCCL that comes with the wheels ("2.27.3"); None where no wheel brings one by name."""
    return next((pin.version for pin in lock.pins if _NCCL.fullmatch(pin.name)), None)
