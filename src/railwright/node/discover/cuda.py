"""CUDA toolkits of a node, by what lies in their folders: nothing of them is run."""

from __future__ import annotations

import json
import re
from typing import Optional

from ..model.cuda_facts import Cuda, Toolkit
from .tree import Tree

_PLACE, _LINK = "usr/local", "usr/local/cuda"
_FOLDER = re.compile(r"cuda-[0-9]+\.[0-9]+", re.ASCII)
_VERSION = re.compile(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", re.ASCII)
# Toolkits up to 11.0 have version.txt, those from 11.1 on version.json; wheels and distributions the header alone.
_TEXT = re.compile(r"CUDA Version ([0-9.]+)")
_HEADER = re.compile(r"^#define\s+CUDA_VERSION\s+([0-9]{4,6})\s*$", re.MULTILINE)
_HEADER_BYTES = 4 * 1024 * 1024
# The first word of a group's record (update-alternatives(1), "/var/lib/dpkg/alternatives"); of RHEL the second place.
_RECORDS = ("var/lib/dpkg/alternatives/cuda", "var/lib/alternatives/cuda")


def read_cuda(tree: Tree) -> Cuda:
    """Raises InputError for a file that is too large to be a toolkit's."""
    names = [name for name in tree.names(_PLACE) if _FOLDER.fullmatch(name)]
    found = [_toolkit(tree, f"{_PLACE}/{name}") for name in names if tree.is_folder(f"{_PLACE}/{name}")]
    default = tree.resolve(_LINK) if tree.link(_LINK) is not None else None
    if default is None and tree.is_folder(_LINK):
        default = _LINK
        found.append(_toolkit(tree, _LINK))
    record = next((text for text in map(tree.text, _RECORDS) if text), "")
    word = record.split("\n", 1)[0].strip()
    return Cuda(
        tuple(found),
        None if default is None else f"/{default}",
        word if word in ("auto", "manual") else None,
        _stale_cache(tree) if tree.live else None,
    )


def _stale_cache(tree: Tree) -> Optional[bool]:
    made = tree.status("etc/ld.so.cache")
    if made is None:
        return None
    files = (tree.status(f"etc/ld.so.conf.d/{name}") for name in tree.names("etc/ld.so.conf.d"))
    return any(file is not None and file.st_mtime_ns > made.st_mtime_ns for file in files)


def _toolkit(tree: Tree, path: str) -> Toolkit:
    return Toolkit(f"/{path}", _version(tree, path), tree.exists(f"{path}/bin/nvcc"))


def _version(tree: Tree, path: str) -> Optional[str]:
    try:
        told = json.loads(tree.text(f"{path}/version.json") or "null")
        version = told["cuda"]["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if isinstance(version, str) and _VERSION.fullmatch(version):
        return version
    text = _TEXT.search(tree.text(f"{path}/version.txt") or "")
    if text is not None and _VERSION.match(text[1]):
        return text[1]
    header = _HEADER.search(tree.text(f"{path}/include/cuda.h", _HEADER_BYTES) or "")
    # CUDA_VERSION is 1000 * major + 10 * minor (cuda.h).
    return None if header is None else f"{int(header[1]) // 1000}.{int(header[1]) % 1000 // 10}"
