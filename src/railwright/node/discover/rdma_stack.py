"""What there is of an RDMA stack on disk: its libraries, its service, and modules that were built before it."""

from __future__ import annotations

import re

from ..model.rdma_facts import RdmaStack
from . import module_age
from .tree import Tree

_LIBRARY = re.compile(r"libibverbs\.so\.1(?:\.[0-9.]+)?", re.ASCII)
_FOLDERS = (
    "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64", "opt/mellanox/lib", "opt/mellanox/lib64",
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
)  # fmt: skip
_SERVICES = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")


def read_rdma_stack(tree: Tree) -> RdmaStack:
    libraries = (
        tree.resolve(f"{folder}/{name}")
        for folder in _FOLDERS
        for name in tree.names(folder)
        if _LIBRARY.fullmatch(name)
    )
    ages = {release: module_age.behind(tree, release) for release in module_age.releases(tree)}
    told = [release for release, old in ages.items() if old is not None]
    return RdmaStack(
        libraries=tuple(sorted({f"/{path}" for path in libraries if path is not None})),
        openibd=any(tree.exists(f"{folder}/openibd.service") for folder in _SERVICES)
        or tree.exists("etc/init.d/openibd"),
        behind=tuple(release for release in told if ages[release]) if told else None,
    )
