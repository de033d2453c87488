"""A sealed tree as a disk that boots: GPT, GRUB for a BIOS and for UEFI, one file system that grows to its disk.

Nothing is mounted and no loop device is taken: partitions are written at their places in the file. Identifiers come
from the recipe's key, so the same inputs give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from railwright.node.model import InputError

from . import tarball
from .inside import Room, run
from .landing import landing, lay
from .recipe import Recipe
from .seal import must_not_hold

DISK = "disk.raw"
_SECTOR, _MIB = 512, 1 << 20
# Sectors: GRUB's core for a BIOS, then the EFI system partition, then the root, which can grow.
_BIOS, _BIOS_SECTORS = 2048, 2048
_ESP, _ESP_SECTORS = 4096, 128 * 2048
_ROOT = _ESP + _ESP_SECTORS
# The second header and its table at the disk's end.
_TAIL = 2048
# What sfdisk(8) calls BIOS boot, EFI System and Linux filesystem.
_TYPES = (
    "21686148-6449-6E6F-744E-656564454649",
    "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
    "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
)
# GRUB 2.12 include/grub/i386/pc/boot.h: the sector that boot.img loads, and where its code ends; diskboot.h: the list
# of the core's other sectors lies at the end of its first one.
_KERNEL_SECTOR, _BOOT_CODE = 0x5C, 440
# The same: a jump over the lines that mend the drive's number, for firmware that says 0x00 of a disk. As
# grub-bios-setup does for anything but a floppy, two bytes that do nothing take its place.
_DRIVE_CHECK, _NOTHING = 0x66, b"\x90\x90"
_CORE_LIST = 0x1F4
_BIOS_MODULES = ("biosdisk", "part_gpt", "ext2")
_EFI_MODULES = (
    "part_gpt",
    "ext2",
    "fat",
    "search",
    "search_fs_uuid",
    "normal",
    "configfile",
    "linux",
    "all_video",
)
# By the machine of this controller, which is the image's: GRUB's platform, and what firmware starts from a disk.
_EFI = {"x86_64": ("x86_64-efi", "BOOTX64.EFI"), "aarch64": ("arm64-efi", "BOOTAA64.EFI")}


@dataclass(frozen=True)
class Ids:
    """Identifiers of one image's disk."""

    disk: str
    parts: tuple[str, str, str]
    root: str
    hash_seed: str
    esp: str

    @classmethod
    def of(cls, key: str) -> Ids:
        """From the recipe's key."""
        made = [
            str(uuid.uuid5(uuid.NAMESPACE_OID, f"{key}:{part}"))
            for part in ("disk", "1", "2", "3", "root", "seed")
        ]
        return cls(made[0], (made[1], made[2], made[3]), made[4], made[5], key[:8].upper())


def make(recipe: Recipe, ids: Ids, sealed: Path, place: Path, lock: int) -> None:
    """Fills the stage from the sealed tar. Raises InputError."""
    tree = tarball.unpack(sealed, place / "tree", lock)
    (place / "work").mkdir()
    room = Room(tree, place / "work", recipe.epoch, ids.root, lock)
    maker = room.has("grub-mkimage")
    if maker is None or not room.kernels:
        raise InputError(
            "the disk image",
            "the root file system has no grub-mkimage, or no kernel",
            "add grub-pc-bin, grub-efi-amd64-bin, grub2-common and a kernel, or set disk_gib: null for a tarball only",
        )
    _mount_table(tree, ids)
    core = _bios_core(room, maker)
    efi = _efi_core(room, maker, ids)
    if core is None and efi is None:
        raise InputError(
            "the disk image",
            "the root file system has GRUB's modules for no firmware, so no machine would start from it",
            "add grub-pc-bin, grub-efi-amd64-bin or grub-efi-arm64-bin, or set disk_gib: null for a tarball only",
        )
    _same_time(tree, recipe.epoch)
    disk = place / DISK
    with disk.open("wb") as file:
        file.truncate((recipe.disk_gib or 0) << 30)
    _partition(disk, ids, lock)
    _file_system(room, disk, ids, lock)
    if efi is not None:
        _system_partition(disk, place / "work", efi, ids, recipe.epoch, lock)
    if core is not None:
        _boot_record(disk, landing(tree, "usr/lib/grub/i386-pc/boot.img"), core)
    must_not_hold(disk, recipe.forbid)
    for name in ("tree", "work"):
        shutil.rmtree(place / name)


def _mount_table(tree: Path, ids: Ids) -> None:
    """The disk's own file systems, before those of file servers that the sealed table has."""
    esp = f"{ids.esp[:4]}-{ids.esp[4:]}"
    landing(tree, "boot/efi/.").mkdir(parents=True, exist_ok=True)
    table = landing(tree, "etc/fstab")
    others = table.read_text("utf-8") if table.is_file() and not table.is_symlink() else ""
    lay(
        tree,
        "etc/fstab",
        f"UUID={ids.root} / ext4 defaults,errors=remount-ro,x-systemd.growfs 0 1\n"
        f"UUID={esp} /boot/efi vfat umask=0077,nofail,x-systemd.device-timeout=30s 0 2\n{others}",
    )


def _bios_core(room: Room, maker: str) -> bytes | None:
    """GRUB's core for a PC with a BIOS; its modules go to where it looks for them."""
    modules = landing(room.tree, "usr/lib/grub/i386-pc/.")
    if not (modules / "boot.img").is_file():
        return None
    shutil.copytree(modules, landing(room.tree, "boot/grub/i386-pc/."), symlinks=True, dirs_exist_ok=True)
    core = "/run/core.img"
    return room.run(
        "sh", "-c", f'"$@" && cat {core}', "sh", maker, "--format", "i386-pc", "--output", core, "--prefix",
        "(,gpt3)/boot/grub", *_BIOS_MODULES,
    )  # fmt: skip


def _efi_core(room: Room, maker: str, ids: Ids) -> bytes | None:
    """GRUB for UEFI, which finds its root by the file system's identifier."""
    platform, _ = _EFI.get(os.uname().machine, ("", ""))
    modules = landing(room.tree, f"usr/lib/grub/{platform}/.")
    if not platform or not modules.is_dir():
        return None
    shutil.copytree(modules, landing(room.tree, f"boot/grub/{platform}/."), symlinks=True, dirs_exist_ok=True)
    words = f"search.fs_uuid {ids.root} root\nset prefix=($root)/boot/grub\n"
    script = 'cat > /run/first.cfg && "$@" && cat /run/core.efi'
    return room.run(
        "sh", "-c", script, "sh", maker, "--format", platform, "--output", "/run/core.efi", "--prefix", "/boot/grub",
        "--config", "/run/first.cfg", *_EFI_MODULES, stdin=words.encode(),
    )  # fmt: skip


def _same_time(tree: Path, epoch: int) -> None:
    """What was laid here is as old as the rest."""
    for where, folders, names in os.walk(tree):
        for path in (Path(where), *(Path(where, name) for name in (*folders, *names))):
            if path.lstat().st_mtime > epoch:
                os.utime(path, (epoch, epoch), follow_symlinks=False)


def _partition(disk: Path, ids: Ids, lock: int) -> None:
    last = disk.stat().st_size // _SECTOR - _TAIL
    spans = ((_BIOS, _BIOS_SECTORS), (_ESP, _ESP_SECTORS), (_ROOT, last - _ROOT))
    rows = [
        f"start={start}, size={size}, type={kind}, uuid={identity}"
        for (start, size), kind, identity in zip(spans, _TYPES, ids.parts, strict=True)
    ]
    script = "\n".join([f"label: gpt\nlabel-id: {ids.disk}\nunit: sectors\n", *rows, ""])
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", str(disk)], stdin=script.encode(), lock=lock)


def _file_system(room: Room, disk: Path, ids: Ids, lock: int) -> None:
    """The root, by the image's own mke2fs: one that knows SOURCE_DATE_EPOCH (1.47.1) gives the same bytes."""
    if room.has("mke2fs") is None:
        raise InputError(
            "the disk image", "the root file system has no mke2fs", "add e2fsprogs to the recipe"
        )
    sectors = disk.stat().st_size // _SECTOR - _TAIL - _ROOT
    options = f"offset={_ROOT * _SECTOR},hash_seed={ids.hash_seed},root_owner=0:0,nodiscard"
    room.run(
        "mke2fs", "-q", "-F", "-t", "ext4", "-L", "railwright", "-U", ids.root, "-E", options, "-d", "/run/tree",
        f"/run/out/{DISK}", f"{sectors * _SECTOR // 1024}k",
        folders=((room.tree, "/run/tree", "ro"), (disk.parent, "/run/out", "rw")),
    )  # fmt: skip


def _system_partition(disk: Path, work: Path, efi: bytes, ids: Ids, epoch: int, lock: int) -> None:
    """A FAT file system with GRUB where firmware looks for it on a disk that it has never seen."""
    image = work / "esp"
    name = _EFI[os.uname().machine][1]
    folder = work / "EFI/BOOT"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(efi)
    for path in (folder / name, folder, folder.parent):
        os.utime(path, (epoch, epoch))
    with image.open("wb") as file:
        file.truncate(_ESP_SECTORS * _SECTOR)
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC", "MTOOLS_SKIP_CHECK": "1"}
    run(["mkfs.vfat", "-F", "32", "--invariant", "-n", "ESP", "-i", ids.esp, str(image)], env=env, lock=lock)
    run(["mcopy", "-s", "-m", "-i", str(image), str(work / "EFI"), "::"], env=env, lock=lock)
    with image.open("rb") as source, disk.open("r+b") as target:
        target.seek(_ESP * _SECTOR)
        while block := source.read(_MIB):
            if block.strip(b"\0"):
                target.write(block)
            else:
                target.seek(len(block), os.SEEK_CUR)


def _boot_record(disk: Path, boot: Path, core: bytes) -> None:
    """What grub-bios-setup writes: the code of the first sector, and the core into its partition."""
    if len(core) > _BIOS_SECTORS * _SECTOR:
        raise InputError("GRUB's core", f"has {len(core)} bytes; {_BIOS_SECTORS * _SECTOR} fit", "")
    code = bytearray(boot.read_bytes()[:_BOOT_CODE])
    struct.pack_into("<Q", code, _KERNEL_SECTOR, _BIOS)
    code[_DRIVE_CHECK : _DRIVE_CHECK + len(_NOTHING)] = _NOTHING
    first = bytearray(core)
    struct.pack_into("<Q", first, _CORE_LIST, _BIOS + 1)
    with disk.open("r+b") as file:
        file.write(code)
        file.seek(_BIOS * _SECTOR)
        file.write(first)
