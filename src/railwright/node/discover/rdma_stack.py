"""What there is of an RDMA stack on disk: its libraries, its service, and modules that were built before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from ..model.rdma_facts import RdmaStack
from . import module_age
from .tools import run_tool
from .tree import Tree

_LIBRARY = re.compile(r"libibverbs\.so\.1(?:\.[0-9.]+)?", re.ASCII)
_FOLDERS = (
    "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64", "opt/mellanox/lib", "opt/mellanox/lib64",
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
)  # fmt: skip
_SECONDS = 5.0
_SERVICES = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")


def read_rdma_stack(tree: Tree) -> RdmaStack:
    libraries = (
        tree.resolve(f"{folder}/{name}")
        for folder in _FOLDERS
        for name in tree.names(folder)
        if _LIBRARY.fullmatch(name)
    )
    ask = _ask if tree.live else None
    ages = {release: module_age.behind(tree, release, ask) for release in module_age.releases(tree)}
    told = [release for release, old in ages.items() if old is not None]
    return RdmaStack(
        libraries=tuple(sorted({f"/{path}" for path in libraries if path is not None})),
        openibd=any(tree.exists(f"{folder}/openibd.service") for folder in _SERVICES)
        or tree.exists("etc/init.d/openibd"),
        behind=tuple(release for release in told if ages[release]) if told else None,
        registered=_registered(tree),
    )


def _registered(tree: Tree) -> Optional[bool]:
    """nvidia-peermem registers nv_mem and nv_mem_nc (NVIDIA/open-gpu-kernel-modules 2026-11, nvidia-peermem.c)."""
    if not tree.is_folder("sys/kernel/mm"):
        return None
    return any(name.startswith("nv_mem") for name in tree.names("sys/kernel/mm/memory_peers"))


def _ask(argv: Sequence[str]) -> Optional[str]:
    told = run_tool(argv[0], argv, _SECONDS)
    return told.output if told.code == 0 else None
