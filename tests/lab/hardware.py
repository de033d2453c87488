"""The recorded machine of a node: its tree from the cache, and over it what this node alone has."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.machinery import MachineError, build

from . import cache
from .errors import LabError

TESTS = Path(__file__).resolve().parents[1]
MACHINES = TESTS / "machines"
# The parts of /proc/sys of which a node has its own copy: the kernel's values, the recorded ones over them. The rest of
# /proc/sys/net is real, and the network namespace's own.
COPIED = ("kernel", "vm", "fs", "net/core", "net/ipv4/neigh")


def machine(name: str, patch: Mapping[str, Any] | None = None) -> Path:
    """The folder whose `tree` is the machine's sys, proc and etc, laid out where it is absent (about 3 s).

    name: below tests/machines; patch: goes over its description (RFC 7386). Raises LabError.
    """
    words = json.dumps(patch or {}, sort_keys=True).encode()
    sources = cache.contents(
        [MACHINES / "common.yml", MACHINES / "parts.yml", MACHINES / name, TESTS / "machinery"]
    )
    made = cache.key(sources, words, Path(__file__).read_bytes())
    return cache.kept("machine", f"{name}-{made}", lambda folder: _lay_out(name, patch, folder))


def _lay_out(name: str, patch: Mapping[str, Any] | None, folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
        build(MACHINES / name, folder / "tree", patch or {})
    except (MachineError, OSError) as error:
        raise LabError(name, str(error), "name a machine below tests/machines") from error


def own_sysctls(tree: Path, place: Path, hostname: str) -> None:
    """Writes to `place` what a node shows of COPIED: the machine's own values, then those of the kernel that runs here.

    place: on a file system whose folders list "." and ".." first, as procfs does: sysctl(8) counts on it, and overlayfs
    does not.
    """
    for part in COPIED:
        for source in (tree / "proc/sys" / part, Path("/proc/sys", part)):
            copy_sysctls(source, place / part)
    random = place / "kernel/random"
    random.mkdir(exist_ok=True)
    boot_id = uuid.uuid4()
    (random / "boot_id").write_text(f"{boot_id}\n", encoding="ascii")
    (place / "kernel/hostname").write_text(f"{hostname}\n", encoding="ascii")


def copy_sysctls(source: Path, dest: Path) -> None:
    """Copies each value that can be read and that `dest` has not got."""
    for folder, _, names in os.walk(source):
        into = dest / os.path.relpath(folder, source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            target = into / name
            if not target.exists():
                with suppress(OSError):
                    target.write_bytes((Path(folder) / name).read_bytes())
                    shutil.copymode(Path(folder) / name, target)
