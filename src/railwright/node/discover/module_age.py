"""Whether a kernel's GPU modules were built before the RDMA stack's modules that they are linked against.

nvidia-peermem takes ib_core's symbols with their checksums: after DOCA-OFED was changed the old one is refused with
"disagrees about version of symbol" (Mellanox/nv_peer_memory#84), and DKMS builds only what itself has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from .tree import Tree

# What the GPU modules are linked against, and they themselves, in the order in which one of each is looked for.
STACK = ("ib_core", "mlx5_core")
GPU = ("nvidia_peermem", "nvidia")
# Where what is not the kernel's own lies (depmod.d(5), search).
_OUTSIDE = ("updates/", "extra/", "weak-updates/")
_MODULE = re.compile(r"(?:^|/)([A-Za-z0-9_-]+)\.ko(?:\.\w+)?$")
_FOLDERS = ("lib/modules", "usr/lib/modules")
_DEP_BYTES = 16 * 1024 * 1024


def releases(tree: Tree) -> tuple[str, ...]:
    """Kernels that have modules."""
    return tuple(dict.fromkeys(name for folder in _FOLDERS for name in tree.names(folder)))


def behind(tree: Tree, release: str) -> Optional[bool]:
    """None where this kernel has no GPU modules, or none of an RDMA stack beside its own."""
    stack = _newest(tree, release, STACK, outside=True)
    gpu = _newest(tree, release, GPU, outside=False)
    return None if stack is None or gpu is None else gpu < stack


def _newest(tree: Tree, release: str, names: tuple[str, ...], outside: bool) -> Optional[int]:
    """When the first of these modules was written, in nanoseconds."""
    found = dict(_files(tree, release))
    for name in names:
        path = found.get(name)
        if path is not None and (not outside or path.startswith(_OUTSIDE)):
            for folder in _FOLDERS:
                status = tree.status(f"{folder}/{release}/{path}")
                if status is not None:
                    return status.st_mtime_ns
    return None


def _files(tree: Tree, release: str) -> Iterator[tuple[str, str]]:
    """Modules with their files below the kernel's folder, what lies beside the kernel's own last, so that it counts."""
    text = next(
        (
            text
            for folder in _FOLDERS
            if (text := tree.text(f"{folder}/{release}/modules.dep", _DEP_BYTES)) is not None
        ),
        "",
    )
    paths = [line.partition(":")[0] for line in text.splitlines()]
    for path in sorted(paths, key=lambda path: path.startswith(_OUTSIDE)):
        match = _MODULE.search(path)
        if match is not None:
            yield match[1].replace("-", "_"), path


def installed(tree: Tree, module: str, release: str) -> Optional[tuple[str, str]]:
    """Version and architecture of a module's tree that DKMS has installed for a kernel; None where it has none."""
    place = f"var/lib/dkms/{module}"
    for name in tree.names(place):
        if name.startswith(f"kernel-{release}-"):
            target = (tree.link(f"{place}/{name}") or "").split("/")
            if len(target) == 3 and target[1] == release:
                return target[0], target[2]
    return None


def tree_of(root: str) -> Tree:
    """The files of a node."""
    return Tree(Path(root or os.sep))
