"""Root file systems with more than a server's usual programs, for tests of what runs a node's network."""

from __future__ import annotations

from pathlib import Path

from . import cache, debian, rootfs

# NetworkManager and netplan beside the networkd that systemd brings; each test starts the one that it is about.
MANAGERS = "bookworm-managers"
_FLAVOURS = {MANAGERS: ("bookworm", ("netplan.io", "network-manager"))}
_ASLEEP = (
    "NetworkManager.service",
    "NetworkManager-dispatcher.service",
    "NetworkManager-wait-online.service",
)


def root(suite: str) -> Path:
    """The root file system of a suite or of one of these, built where it is absent. Raises LabError."""
    if suite not in _FLAVOURS:
        return rootfs.root(suite)
    base, packages = _FLAVOURS[suite]
    recipe = debian.recipe(__file__, rootfs.__file__)
    return cache.kept(
        "rootfs",
        f"{suite}-{cache.key(recipe, debian.mirror().encode(), suite.encode())}",
        lambda folder: _build(base, packages, folder),
    )


def _build(base: str, packages: tuple[str, ...], folder: Path) -> None:
    debian.bootstrap(base, (*debian.PACKAGES, *packages), folder)
    rootfs.strip(folder)
    (folder / "usr/bin/python3").rename(folder / "usr/bin/python3.real")
    for unit in _ASLEEP:
        place = folder / "etc/systemd/system" / unit
        place.unlink(missing_ok=True)
        place.symlink_to("/dev/null")
