"""python -m tests.lab.vm.assemble LAYOUT ROOT PLACE: the disk of a layout's guest, and the keys to it.

Run in a mount namespace of its own: what is mounted here ends with it. ROOT is the guest's root file system and stays
as it is; PLACE is the folder to fill.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import uuid
from pathlib import Path

from ..namespaces import mount, overlay
from ..shell import call
from . import guest, seed
from .layout import Layout, layout

DISK, KEY, HOST_KEY, KERNEL = "disk.raw", "key", "host_key.pub", "kernel"
HOSTNAME = "vm"
MODULES = Path(__file__).with_name("modules")
_WORK = Path("/run/lab")
_DISK_BYTES = 6 << 30
_SECTOR = 512
# The first partition begins at 1 MiB; GRUB's core lies in the gap before it.
_FIRST_SECTOR = 2048
_LINUX = 0x83
# GRUB's boot.img ends where the disk's signature and its partition table begin.
_BOOT_CODE_BYTES = 440
_GRUB_MODULES = ("biosdisk", "part_msdos", "ext2")
_TOOLS_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_UNITS = Path("etc/systemd/system")


def main(argv: list[str]) -> int:
    shape, root, place = layout(argv[0]), Path(argv[1]), Path(argv[2])
    mount("tmpfs", Path("/run"), "mode=755")
    mount("tmpfs", _WORK, "size=4g,mode=755")
    tree = overlay(root, _WORK / "guest")
    disk_uuid = str(uuid.uuid4())
    place.mkdir(parents=True)
    release = guest.kernel(root)
    (place / KERNEL).write_text(f"{release}\n", "ascii")
    _sow(tree, shape, place, disk_uuid)
    with_devices(tree)
    _build_modules(tree, release)
    _inside(tree, "update-initramfs", "-u", "-k", release)
    _install_grub(tree, release, disk_uuid)
    for where in ("proc", "dev"):
        call(["umount", str(tree / where)])
    write_disk(tree, place / DISK, disk_uuid)
    return 0


def with_devices(tree: Path) -> None:
    """What the programs of a root file system want to see of a running system."""
    mount("proc", tree / "proc")
    call(["mount", "--bind", "/dev", str(tree / "dev")])


def _sow(tree: Path, shape: Layout, place: Path, disk_uuid: str) -> None:
    for name, comment in ((KEY, "lab"), ("host_key", HOSTNAME)):
        call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(place / name)])
    shutil.move(place / "host_key", tree / "etc/ssh/ssh_host_ed25519_key")
    shutil.copyfile(place / HOST_KEY, tree / "etc/ssh/ssh_host_ed25519_key.pub")
    client_key = (place / f"{KEY}.pub").read_text("ascii")
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    for path, text in seed.texts(shape, HOSTNAME, uuid.uuid4().hex, disk_uuid, client_key).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, "utf-8")
    for unit in seed.MASKED:
        _link(tree / _UNITS / unit, "/dev/null")
    _link(tree / _UNITS / "default.target", "/lib/systemd/system/multi-user.target")
    wants = _UNITS / "multi-user.target.wants"
    _link(tree / wants / "systemd-networkd.service", "/lib/systemd/system/systemd-networkd.service")


def _build_modules(tree: Path, release: str) -> None:
    """Builds the guest's modules with the guest's compiler against its kernel's headers."""
    sources = tree / "usr/src/lab-modules"
    shutil.copytree(MODULES, sources)
    _inside(tree, "make", "-s", "-C", f"/lib/modules/{release}/build", "M=/usr/src/lab-modules", "modules")
    there = tree / "lib/modules" / release / "updates/lab"
    there.mkdir(parents=True)
    for module in sources.glob("*.ko"):
        shutil.move(module, there)
    for rules in sources.glob("*.rules"):
        shutil.move(rules, tree / "etc/udev/rules.d")
    shutil.rmtree(sources)
    _inside(tree, "depmod", release)


def _install_grub(tree: Path, release: str, disk_uuid: str) -> None:
    """What grub-install puts below /boot/grub for a PC with a BIOS; `write_disk` puts the rest before the partition."""
    there = tree / "boot/grub"
    shutil.copytree(tree / "usr/lib/grub/i386-pc", there / "i386-pc", dirs_exist_ok=True)
    (there / "fonts").mkdir(exist_ok=True)
    shutil.copyfile(tree / "usr/share/grub/unicode.pf2", there / "fonts/unicode.pf2")
    _inside(tree, "grub-editenv", "/boot/grub/grubenv", "create")
    prefix = ["--prefix", "(,msdos1)/boot/grub"]
    core = "/boot/grub/i386-pc/core.img"
    _inside(tree, "grub-mkimage", "--format", "i386-pc", "--output", core, *prefix, *_GRUB_MODULES)
    (there / "grub.cfg").write_text(seed.first_menu(release, disk_uuid), "utf-8")


def write_disk(tree: Path, disk: Path, disk_uuid: str) -> None:
    """A disk with one partition that holds the tree, and GRUB before it. It takes no loop device and no mount."""
    grub = tree / "boot/grub/i386-pc"
    boot, core = (grub / "boot.img").read_bytes(), (grub / "core.img").read_bytes()
    sectors = _DISK_BYTES // _SECTOR - _FIRST_SECTOR
    with disk.open("wb") as out:
        out.truncate(_DISK_BYTES)
        out.write(boot_record(boot, os.urandom(4), sectors))
        # boot.img loads the sector after its own, and grub-mkimage has told the core how long it is.
        out.write(core)
    call(
        [
            "mke2fs", "-q", "-t", "ext4", "-U", disk_uuid, "-E",
            f"offset={_FIRST_SECTOR * _SECTOR},lazy_itable_init=1,nodiscard", "-d", str(tree), str(disk),
            f"{sectors * _SECTOR // 1024}k",
        ]
    )  # fmt: skip


def boot_record(boot: bytes, signature: bytes, sectors: int) -> bytes:
    """A master boot record: boot code, signature, one active partition for Linux of so many sectors."""
    no_chs = b"\xfe\xff\xff"
    entry = struct.pack("<B3sB3sII", 0x80, no_chs, _LINUX, no_chs, _FIRST_SECTOR, sectors)
    return boot[:_BOOT_CODE_BYTES] + signature + bytes(2) + entry.ljust(64, b"\0") + b"\x55\xaa"


def _inside(tree: Path, *argv: str) -> str:
    environment = {"PATH": _TOOLS_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"}
    return call(["chroot", str(tree), *argv], env={**os.environ, **environment})


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
