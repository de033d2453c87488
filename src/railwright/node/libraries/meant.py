"""Which NCCL, CUDA runtime and libibverbs a plan means: what it installs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..model import Plan

_UPSTREAM = re.compile(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)*)", re.ASCII)
_TOOLKIT = re.compile(r"/usr/local/cuda-([0-9]+\.[0-9]+)", re.ASCII)
# The package that holds the library, of deb and of rpm.
_HOLDERS = {
    "libnccl2": "libnccl",
    "libnccl": "libnccl",
    "libibverbs1": "libibverbs",
    "libibverbs": "libibverbs",
}


def meant(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Library and version, as `audit` takes them; none for a library that the plan leaves to others."""
    return tuple(dict.fromkeys(_meant(plan)))


def _meant(plan: Plan) -> Iterator[tuple[str, str]]:
    for part in plan.slices.values():
        for entry in part.entries:
            if entry["kind"] == "packages":
                for name, version in dict(entry.get("versions", {})).items():
                    number = _UPSTREAM.match(version or "")
                    if name in _HOLDERS and number is not None:
                        yield _HOLDERS[name], _said(_HOLDERS[name], number[1])
            elif entry["kind"] == "alternative" and entry.get("name") == "cuda":
                toolkit = _TOOLKIT.fullmatch(entry["path"])
                if toolkit is not None:
                    yield "libcudart", toolkit[1]


def _said(library: str, version: str) -> str:
    """libibverbs bears rdma-core's first number only (its CMakeLists.txt)."""
    return version.split(".", maxsplit=1)[0] if library == "libibverbs" else version
