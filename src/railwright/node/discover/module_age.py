"""Whether a kernel's GPU modules were built against the RDMA stack's modules that they are linked with.

nvidia-peermem takes ib_core's symbols with their checksums: after DOCA-OFED was changed the old one is refused with
"disagrees about version of symbol" (Mellanox/nv_peer_memory#84), and DKMS builds only what itself has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from ..model.rdma_facts import is_beside
from .tree import Tree

# Says what a program of the node answers; None where it is not there or fails.
Ask = Callable[[Sequence[str]], Optional[str]]

# What the GPU modules are linked against, and they themselves, in the order in which one of each is looked for.
STACK = ("ib_core", "mlx5_core")
GPU = ("nvidia_peermem", "nvidia")
# Debian gives each of its drivers' modules a name of its own, and its modprobe.d leads from the plain one to it:
# nvidia-current-open-uvm.ko is nvidia-uvm, and DKMS knows nvidia-current-open (bookworm and trixie, 2026-11).
_DEBIANS = re.compile(
    r"^nvidia_(?:current|tesla(?:_\d+)?|legacy_\w+?)(?:_open)?(?=_(?:uvm|drm|modeset|peermem)$|$)"
)
_MODULE = re.compile(r"(?:^|/)([A-Za-z0-9_-]+)\.ko(?:\.\w+)?$")
_FOLDERS = ("lib/modules", "usr/lib/modules")
_DEP_BYTES = 16 * 1024 * 1024
# What nvidia-peermem wants of an ib_core with clients of peer memory, and where its build looks for their checksums
# (NVIDIA/open-gpu-kernel-modules 2026-11, nvidia-peermem.c and nvidia-peermem.Kbuild). Its last place, "default", does
# not tell of which kernel it is.
_SYMBOLS = ("ib_register_peer_memory_client", "ib_unregister_peer_memory_client")
_SOURCES = ("usr/src/ofa_kernel-dkms", "usr/src/ofa_kernel")
_PLACES = ("x86_64/{}", "aarch64/{}", "{}")
# Of Module.symvers, "CHECKSUM SYMBOL MODULE KIND NAMESPACE" with tabs between (Linux, kbuild/modules.rst), and of
# modprobe --dump-modversions, which has the first two.
_SUM = re.compile(r"^(0x[0-9a-f]{1,8})\t([A-Za-z0-9_]+)(?:\t|$)", re.MULTILINE)


def releases(tree: Tree) -> tuple[str, ...]:
    """Kernels that have modules."""
    return tuple(dict.fromkeys(name for folder in _FOLDERS for name in tree.names(folder)))


def plain_name(name: str) -> str:
    """A module's name as every archive but Debian's has it, with _ for -."""
    return _DEBIANS.sub("nvidia", name.replace("-", "_"))


def behind(tree: Tree, release: str, ask: Optional[Ask] = None) -> Optional[bool]:
    """None where this kernel has no GPU modules, or none of an RDMA stack beside its own.

    Checksums of symbols decide where both sides tell them, the times of both files otherwise. ask: None: times alone.
    """
    found = dict(_files(tree, release))
    stack = _written(tree, release, found, STACK, beside=True)
    gpu = _written(tree, release, found, GPU, beside=False)
    if stack is None or gpu is None:
        return None
    differs = None if ask is None else _differs(tree, release, found, ask)
    return gpu < stack if differs is None else differs


def _differs(tree: Tree, release: str, found: Mapping[str, str], ask: Ask) -> Optional[bool]:
    """Whether nvidia-peermem wants other checksums than the stack has, or was built without its interface."""
    path = found.get("nvidia_peermem")
    stack = _exported(tree, release)
    place = None if path is None else _place(tree, release, path)
    if not stack or place is None:
        return None
    wants = {name: number for number, name in _SUM.findall(ask(_dump(place)) or "")}
    # A kernel without checksums has none of any symbol.
    return any(wants.get(name) != number for name, number in stack.items()) if wants else None


def _dump(place: str) -> tuple[str, ...]:
    return ("modprobe", "--dump-modversions", f"/{place}")


def _exported(tree: Tree, release: str) -> dict[str, str]:
    """Checksums of the stack's symbols, of the folder that a build of the GPU modules would take."""
    top = next((top for top in _SOURCES if tree.is_folder(top)), None)
    for form in _PLACES if top is not None else ():
        place = f"{top}/{form.format(release)}"
        if tree.is_folder(place):
            told = tree.text(f"{place}/Module.symvers", _DEP_BYTES) or ""
            return {name: number for number, name in _SUM.findall(told) if name in _SYMBOLS}
    return {}


def _written(
    tree: Tree, release: str, found: Mapping[str, str], names: tuple[str, ...], beside: bool
) -> Optional[int]:
    """When the first of these modules was written, in nanoseconds."""
    for name in names:
        path = found.get(name)
        if path is not None and (not beside or is_beside(path)):
            place = _place(tree, release, path)
            status = None if place is None else tree.status(place)
            if status is not None:
                return status.st_mtime_ns
    return None


def _place(tree: Tree, release: str, path: str) -> Optional[str]:
    places = (f"{folder}/{release}/{path}" for folder in _FOLDERS)
    return next((place for place in places if tree.exists(place)), None)


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
    for path in sorted(paths, key=is_beside):
        match = _MODULE.search(path)
        if match is not None:
            yield plain_name(match[1]), path


def installed(tree: Tree, module: str, release: str) -> Optional[tuple[str, str, str]]:
    """Name, version and architecture of what DKMS has installed of a module for a kernel; None where it has none."""
    for known in tree.names("var/lib/dkms"):
        place = f"var/lib/dkms/{known}"
        for name in tree.names(place) if plain_name(known) == module else ():
            if name.startswith(f"kernel-{release}-"):
                target = (tree.link(f"{place}/{name}") or "").split("/")
                if len(target) == 3 and target[1] == release:
                    return known, target[0], target[2]
    return None


def tree_of(root: str) -> Tree:
    """The files of a node."""
    return Tree(Path(root or os.sep))
