"""Archives of built packages on a node: each in a folder that the digest of its manifest names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..model import InputError
from ..model.values import SHA256, like
from ..state.outcome import Refused
from . import store, tools

# `plan.packages` names the same folder in the sources that it writes.
ARCHIVES = "/var/lib/railwright/archives"
NAME = re.compile(r"(?:repodata/)?[A-Za-z0-9][A-Za-z0-9.+~_-]{0,200}", re.ASCII)


def whole(sha256: str, system: str, root: str = "/") -> bool:
    """Whether this archive lies on the node as it was made. Raises InputError, and Refused for a node of another kind.

    system: "dpkg" or "rpm", of the archive.
    """
    like(sha256, SHA256, "sha256", "64 hexadecimal digits")
    mine = tools.system(root)
    if mine != system:
        raise Refused(
            f"the archive is for {system}, and this node has {mine}", "build on a node of its own system, too"
        )
    folder = _folder(sha256, root)
    manifest, _ = store.read(folder)
    return manifest is not None and store.manifest_digest(folder) == sha256


def keep(sha256: str, files: Mapping[str, str], root: str = "/") -> str:
    """The folder with these files. files: where they lie now, by name. Raises InputError and OSError."""
    for name in files:
        if not NAME.fullmatch(name):
            raise InputError(f"files.{name}", "is no name of a file of an archive", "expected its own names")
    folder = _folder(sha256, root)
    need = sum(os.path.getsize(path) for path in files.values())
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    room = os.statvfs(folder.parent)
    if room.f_bavail * room.f_frsize < need:
        raise Refused(f"{folder.parent} has no {need >> 20} MiB free", "free space there")
    store.adopt(folder, {name: Path(path) for name, path in files.items()}, sha256)
    return str(folder)


def _folder(sha256: str, root: str) -> Path:
    return Path(root) / ARCHIVES.lstrip("/") / sha256
