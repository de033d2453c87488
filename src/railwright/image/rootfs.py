"""The first stage: a root file system as its packages leave it, as one tar file."""

from __future__ import annotations

import os
from pathlib import Path

from . import tarball
from .inside import apart, run
from .recipe import Recipe, of_folder

# A node boots, is reached, finds its disk, runs Python, and can be mended. GRUB comes without the packages that would
# install it on whatever disk they find.
PACKAGES = (
    "ca-certificates", "dbus", "dosfstools", "e2fsprogs", "ethtool", "gpgv", "grub-efi-amd64-bin", "grub-pc-bin",
    "grub2-common", "initramfs-tools", "iproute2", "iputils-ping", "kmod", "libpam-systemd", "linux-image-amd64",
    "mount", "netbase", "numactl", "openssh-server", "pciutils", "procps", "python3", "rdma-core", "sudo", "systemd",
    "systemd-resolved", "systemd-sysv", "udev", "util-linux", "zstd",
)  # fmt: skip
_LEAN = ("man", "doc", "locale", "info")
TAR = "rootfs.tar"


def inputs(recipe: Recipe) -> object:
    """What decides this stage."""
    files = None if recipe.files is None else of_folder(Path(recipe.files))
    if recipe.debian is not None:
        debian = recipe.debian
        return (debian.suite, debian.mirror, debian.components, packages(recipe), files, recipe.epoch)
    return (of_folder(Path(recipe.tree or ""), content=False), files, recipe.epoch)


def packages(recipe: Recipe) -> tuple[str, ...]:
    """All that are asked for, each once."""
    return tuple(sorted({*PACKAGES, *recipe.packages}))


def make(recipe: Recipe, place: Path, lock: int) -> None:
    """Fills the stage. Raises InputError."""
    if recipe.debian is None:
        _copy(recipe, place, lock)
        return
    debian = recipe.debian
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in _LEAN]
    # A licence has to go with what it is of.
    excluded.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    laid = [] if recipe.files is None else [f"--essential-hook=sync-in {recipe.files} /"]
    run(
        apart(
            [
                "mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar",
                f"--components={','.join(debian.components)}", f"--include={','.join(packages(recipe))}",
                '--aptopt=Acquire::Languages "none"', *excluded, *laid, debian.suite, str(place / TAR), debian.mirror,
            ]
        ),
        lock=lock,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(recipe.epoch), "TMPDIR": str(place)},
        named="mmdebstrap",
    )  # fmt: skip


def _copy(recipe: Recipe, place: Path, lock: int) -> None:
    tree = Path(recipe.tree or "")
    if recipe.files is None:
        tarball.pack(tree, place / TAR, recipe.epoch, lock, _ELSEWHERE)
        return
    tarball.pack(tree, place / "base.tar", recipe.epoch, lock, _ELSEWHERE)
    copy = tarball.unpack(place / "base.tar", place / "tree", lock)
    run(["cp", "-a", f"{recipe.files}/.", str(copy)], lock=lock, named="the recipe's files")
    tarball.pack(copy, place / TAR, recipe.epoch, lock)
    run(["rm", "-rf", "--one-file-system", str(copy), str(place / "base.tar")], lock=lock)


# Of a tree that is mounted or runs: what is a kernel's or a run's.
_ELSEWHERE = ("proc/*", "sys/*", "dev/*", "run/*", "tmp/*", "lost+found")
