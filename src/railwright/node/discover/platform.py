"""Compilers, firmware tables and vendors' images: what an installation depends on."""

from __future__ import annotations

import re
from typing import Optional

from ..model import FailedBuild, Nic, Platform
from .tree import Tree

# Files that only a vendor's image has; what each means stands in `plan.stack.images`.
IMAGE_FILES = (
    "etc/dgx-release",
    "opt/azurehpc/component_versions.txt",
    "etc/oci-hpc-images-release",
    "cm/local/apps",
)
_COMPILER = re.compile(r"(?:gcc|clang)(?:-(\d{1,3}))?", re.ASCII)
_BEHIND = re.compile(r"(?:.*-)?(?:gcc|clang)-(\d{1,3})", re.ASCII)
_DKMS = "var/lib/dkms"
_LOG_BYTES = 16 * 1024 * 1024
_LOG_KERNEL = re.compile(r"^DKMS .{0,20}make\.log for \S+ for kernel (\S+)", re.MULTILINE)
# Of the compiler and of make itself; what follows from the first one is noise.
_LOG_ERROR = re.compile(
    r"^(?:\S+:\d+(?::\d+)?: (?:fatal )?error: .{1,200}|make(?:\[\d+\])?: \*\*\* .{1,200})$", re.MULTILINE
)


def read_platform(tree: Tree, nics: tuple[Nic, ...]) -> Platform:
    """Raises InputError for a number that no kernel writes."""
    return Platform(
        compilers=_compilers(tree),
        iommu_table=_iommu_table(tree),
        vfs=_vfs(tree, nics),
        images=tuple(path for path in IMAGE_FILES if tree.exists(path)),
        failed_builds=_failed_builds(tree),
    )


def _compilers(tree: Tree) -> dict[str, Optional[int]]:
    found: dict[str, Optional[int]] = {}
    for name in tree.names("usr/bin"):
        match = _COMPILER.fullmatch(name)
        if match is not None:
            found[name] = int(match[1]) if match[1] else _behind(tree, f"usr/bin/{name}")
    return found


def _behind(tree: Tree, path: str) -> Optional[int]:
    """The version of an unversioned compiler: the name that its link leads to has it (gcc -> gcc-12)."""
    match = _BEHIND.fullmatch(tree.link_name(path) or "")
    return None if match is None else int(match[1])


def _iommu_table(tree: Tree) -> Optional[bool]:
    tables = tree.names("sys/firmware/acpi/tables")
    return bool({"DMAR", "IVRS", "IORT"} & set(tables)) if tables else None


def _vfs(tree: Tree, nics: tuple[Nic, ...]) -> dict[str, int]:
    found = {}
    for address in sorted(
        {nic.address for nic in nics if nic.address is not None and not nic.physical_function}
    ):
        count = tree.integer(f"sys/bus/pci/devices/{address}/sriov_totalvfs")
        if count is not None:
            found[address] = count
    return found


def _failed_builds(tree: Tree) -> tuple[FailedBuild, ...]:
    """DKMS keeps the log of a build below the module's version: in `build` of one that failed."""
    found = []
    for module in tree.names(_DKMS):
        for release in tree.names(f"{_DKMS}/{module}"):
            path = f"{_DKMS}/{module}/{release}/build/make.log"
            if tree.exists(f"{_DKMS}/{module}/{release}/build") and tree.exists(path):
                found += _failure(path, tree.text(path, _LOG_BYTES) or "")
    return tuple(found)


def _failure(path: str, text: str) -> list[FailedBuild]:
    error = _LOG_ERROR.search(text)
    if error is None:
        return []
    kernel = _LOG_KERNEL.search(text)
    return [FailedBuild(f"/{path}", None if kernel is None else kernel[1], error[0].strip())]
