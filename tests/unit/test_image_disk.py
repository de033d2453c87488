"""The disk's own parts: what GRUB's installer would have written, the mount table, and what is laid over a tree."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from railwright.image import disk, install, rootfs
from railwright.image.landing import lay
from railwright.image.recipe import Recipe
from railwright.node.model import InputError

IDS = disk.Ids.of("0123456789abcdef" * 4)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="files on a node belong to root, so writing them needs root"
)


def test_the_boot_record_points_at_the_core_and_mends_what_firmware_says_of_its_drive(tmp_path: Path) -> None:
    image, boot = tmp_path / "disk.raw", tmp_path / "boot.img"
    image.write_bytes(bytes(1 << 22))
    with image.open("r+b") as file:
        file.seek(440)
        file.write(b"TABLE")
    # As GRUB builds it: a jump of five bytes at 0x66, the sector 1 at 0x5c.
    code = bytearray(range(256)) * 2
    code[0x5C:0x64] = (1).to_bytes(8, "little")
    code[0x66:0x68] = b"\xeb\x05"
    boot.write_bytes(code)
    disk._boot_record(image, boot, bytes(0x1F4) + bytes(8) + b"core")
    data = image.read_bytes()
    # `parted` counts from 0: the BIOS boot partition begins at 1 MiB, which is sector 2048.
    assert data[0x5C:0x64] == (2048).to_bytes(8, "little")
    assert data[0x66:0x68] == b"\x90\x90"
    assert data[:0x5C] == code[:0x5C]
    assert data[0x68:440] == code[0x68:440]
    assert data[440:445] == b"TABLE"
    assert data[(1 << 20) + 0x1F4 : (1 << 20) + 0x1FC] == (2049).to_bytes(8, "little")


def test_the_disks_mount_table_keeps_file_servers_and_is_written_in_the_tree_alone(tmp_path: Path) -> None:
    tree, host = tmp_path / "tree", tmp_path / "host"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/fstab").write_text("filer:/home /home nfs defaults 0 0\n", "ascii")
    disk._mount_table(tree, IDS)
    rows = [line.split() for line in (tree / "etc/fstab").read_text("ascii").splitlines()]
    assert [row[:3] for row in rows] == [
        [f"UUID={IDS.root}", "/", "ext4"],
        ["UUID=0123-4567", "/boot/efi", "vfat"],
        ["filer:/home", "/home", "nfs"],
    ]
    host.write_text("the controller's own\n", "ascii")
    (tree / "etc/fstab").unlink()
    (tree / "etc/fstab").symlink_to(host)
    disk._mount_table(tree, IDS)
    assert host.read_text("ascii") == "the controller's own\n"
    assert not (tree / "etc/fstab").is_symlink()


def test_a_text_is_laid_in_the_tree_whatever_links_lie_on_its_way(tmp_path: Path) -> None:
    tree, host = tmp_path / "tree", tmp_path / "host"
    host.mkdir()
    tree.mkdir()
    (tree / "etc").symlink_to(host)
    install.lay_texts(tree)
    lay(tree, "etc" + "/.." * 40 + "/motd", "x\n")
    assert list(host.iterdir()) == []
    assert (tree / "motd").read_text("ascii") == "x\n"
    (tree / "sbin").write_text("", "ascii")
    with pytest.raises(InputError, match="cannot be written"):
        lay(tree, "sbin/policy-rc.d", "x\n")


@needs_root
@pytest.mark.parametrize("wrong", ["owner", "mode", "top"])
def test_files_that_would_hand_a_node_to_somebody_are_refused_by_name(tmp_path: Path, wrong: str) -> None:
    files = tmp_path / "files"
    (files / "etc/ssh").mkdir(parents=True)
    (files / "tmp").mkdir()
    (files / "tmp").chmod(0o1777)
    (files / "link").symlink_to("/nowhere")
    files.chmod(0o755)
    rootfs.must_be_roots(files)
    place = files if wrong == "top" else files / "etc/ssh"
    if wrong == "owner":
        os.chown(place, 1000, 1000)
    else:
        place.chmod(0o700 if wrong == "top" else 0o777)
    with pytest.raises(InputError, match=re.escape(str(place))):
        rootfs.must_be_roots(files)


def test_a_host_key_that_lost_its_bytes_with_the_power_is_made_again(tmp_path: Path) -> None:
    """ssh-keygen itself says whether the unit's program mends it; systemd's condition must let it run."""
    install.lay_texts(tmp_path)
    unit = (tmp_path / "etc/systemd/system" / install.KEYS_UNIT).read_text("ascii")
    assert "ConditionFileNotEmpty=|!/etc/ssh/ssh_host_ed25519_key\n" in unit
    assert "sshd-keygen.service" in re.search(r"^Before=(.*)$", unit, re.MULTILINE).group(1).split()  # type: ignore[union-attr]
    (tmp_path / "etc/ssh").mkdir()
    private = tmp_path / "etc/ssh/ssh_host_ed25519_key"
    private.touch(mode=0o600)
    private.with_suffix(".pub").touch()
    subprocess.run(["ssh-keygen", "-A", "-f", str(tmp_path)], capture_output=True, check=True)
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(private)], capture_output=True, text=True, check=True
    )
    assert private.with_suffix(".pub").read_text("ascii").split()[1] == public.stdout.split()[1]


@pytest.mark.parametrize(("machine", "name"), [("x86_64", "amd64"), ("aarch64", "arm64")])
def test_kernel_and_boot_loader_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: str, name: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "6.12", "#1", machine)))
    asked = rootfs.packages(Recipe("h100", 1790000000, packages=("chrony",)))
    # Debian's names of its architectures; GRUB for a BIOS there is for a PC alone.
    assert {f"linux-image-{name}", f"grub-efi-{name}-bin", "chrony", "openssh-server"} <= set(asked)
    assert ("grub-pc-bin" in asked) is (machine == "x86_64")
    assert [one for one in asked if one.startswith(("linux-image-", "grub-efi-"))] == [
        f"grub-efi-{name}-bin",
        f"linux-image-{name}",
    ]
