"""Facts of CUDA on a node: which toolkits stand there, and which of them is the one that everybody finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Toolkit:
    """One toolkit. path: its folder. version: "13.0.2", or "13.0" where only its header tells. compiler: whether it has
    nvcc; a node that only runs programs needs none."""

    path: str
    version: Optional[str]
    compiler: bool = False


@dataclass(frozen=True)
class Cuda:
    """toolkits: by path. default: the folder that /usr/local/cuda leads to; None where there is no such link.

    alternative: how that link is chosen, "auto" or "manual"; None where no alternative holds it. stale_cache: whether
    the linker's cache is older than a file in ld.so.conf.d; None where times tell nothing, as in a copy of a tree.
    """

    toolkits: tuple[Toolkit, ...] = ()
    default: Optional[str] = None
    alternative: Optional[str] = None
    stale_cache: Optional[bool] = None
