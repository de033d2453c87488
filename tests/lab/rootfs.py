"""Root file systems: Debian as its installer leaves a server, with sshd and Python, and nothing of ours."""

from __future__ import annotations

from pathlib import Path

from . import cache, debian
from .debian import SUITES
from .errors import LabError


def root(suite: str) -> Path:
    """The root file system of a suite, built where it is absent (about 40 s). Raises LabError."""
    if suite not in SUITES.values():
        raise LabError("suite", f"{suite!r} is none of the lab's", f"expected {' or '.join(SUITES.values())}")
    return cache.kept("rootfs", name(suite), lambda folder: _build(suite, folder))


def name(suite: str) -> str:
    """Of the cache: another recipe is another root file system."""
    return f"{suite}-{cache.key(debian.recipe(__file__), debian.mirror().encode(), suite.encode())}"


def _build(suite: str, folder: Path) -> None:
    debian.bootstrap(suite, debian.PACKAGES, folder)
    strip(folder)
    (folder / "usr/bin/python3").rename(folder / "usr/bin/python3.real")


def strip(folder: Path) -> None:
    """Takes out what each node has of its own, and what a node's seed puts in its place (see `seed.py`)."""
    for own in (*(folder / "etc/ssh").glob("ssh_host_*"), folder / "etc/machine-id", folder / "etc/hostname"):
        own.unlink(missing_ok=True)
    (folder / "etc/apt/sources.list").unlink(missing_ok=True)
    (folder / "etc/systemd/system/default.target").unlink(missing_ok=True)
    # They say "nothing has changed since", or the first boot of every node would rebuild caches.
    for stamp in ("etc/.updated", "var/.updated"):
        (folder / stamp).touch()
