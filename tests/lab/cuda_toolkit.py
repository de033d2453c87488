"""A real CUDA compiler without an installation: NVIDIA's wheels, laid out as a toolkit's folder."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from . import cache
from .errors import LabError
from .shell import call

# What nvcc, its assembler and a static runtime are made of. One release, so that they go together.
RELEASE = "13.5"
WHEELS = (
    "nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-crt==13.5.37", "nvidia-nvvm==13.5.37", "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-cccl==13.3.5.0.6", "nvidia-cuda-cuobjdump==13.5.37",
)  # fmt: skip
_FOLDER = "nvidia/cu13"


def toolkit() -> Path:
    """The toolkit's folder, kept in the lab's cache. Raises LabError without an index of wheels."""
    return cache.kept("cuda", cache.key(" ".join(WHEELS).encode()), _make) / _FOLDER


def _make(place: Path) -> None:
    wheels = place / "wheels"
    wheels.mkdir(parents=True)
    call(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), *WHEELS], timeout=600
    )
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    cache.remove(wheels)
    if not (place / _FOLDER / "bin/nvcc").exists():
        raise LabError("NVIDIA's wheels", "hold no nvcc", f"see {WHEELS}")
    for folder in ("bin", "nvvm/bin"):
        for program in (place / _FOLDER / folder).iterdir():
            program.chmod(0o755)
