"""The first stage: a root file system as its packages leave it, as one tar file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from railwright.node.model import InputError

from . import tarball
from .inside import apart, run
from .recipe import Recipe, of_folder

# A node boots, is reached, finds its disk, runs Python, and can be mended. GRUB comes without the packages that would
# install it on whatever disk they find.
PACKAGES = (
    "ca-certificates", "dbus", "dosfstools", "e2fsprogs", "ethtool", "gpgv", "grub2-common",
    "initramfs-tools", "iproute2", "iputils-ping", "kmod", "libpam-systemd", "mount", "netbase", "numactl",
    "openssh-server", "pciutils", "procps", "python3", "rdma-core", "sudo", "systemd",
    "systemd-resolved", "systemd-sysv", "udev", "util-linux", "zstd",
)  # fmt: skip
# By the machine of this controller, which is the image's.
_OF_MACHINE = {
    "x86_64": ("grub-efi-amd64-bin", "grub-pc-bin", "linux-image-amd64"),
    "aarch64": ("grub-efi-arm64-bin", "linux-image-arm64"),
}
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
    return tuple(sorted({*PACKAGES, *_OF_MACHINE.get(os.uname().machine, ()), *recipe.packages}))


def make(recipe: Recipe, place: Path, lock: int) -> None:
    """Fills the stage. Raises InputError."""
    if recipe.files is not None:
        must_be_roots(Path(recipe.files))
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


def must_be_roots(files: Path) -> None:
    """Raises InputError for files that would hand a part of every node to somebody: owners and modes go along, those of
    the folders above them too, and sshd lets nobody in by a key below a folder that others may write."""
    for path in (files, *sorted(files.rglob("*"))):
        if path.is_symlink():
            continue
        status = path.stat()
        if status.st_uid != 0 or status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise InputError(
                str(path),
                f"belongs to user {status.st_uid}, or everybody may write it (mode {stat.S_IMODE(status.st_mode):04o})",
                f"chown -R root:root {files}; chmod -R o-w {files}",
            )
    if files.stat().st_mode & 0o555 != 0o555:
        raise InputError(
            str(files),
            "becomes the image's root folder, and not everybody could enter it",
            f"chmod 0755 {files}",
        )


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
