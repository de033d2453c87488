"""The files that make the guest's root file system a guest of a layout."""

from __future__ import annotations

from collections.abc import Mapping

from .layout import FRONT_MAC, MANAGEMENT_MAC, Layout, rail_mac

# Small, and with the NICs' driver: as on a server, it is the initramfs that names them.
_INITRAMFS = {
    "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=3\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\nvirtio_net\nlab_pci\nigb\n",
}
# Timers and what only a machine on its first day wants: in emulation each takes seconds of a boot.
MASKED = (
    "apt-daily-upgrade.timer", "apt-daily.timer", "dev-mqueue.mount", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "fstrim.timer", "getty@tty1.service", "grub-common.service", "ldconfig.service",
    "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service",
    "proc-sys-fs-binfmt_misc.automount", "rdma-load-modules@.service", "serial-getty@ttyS0.service",
    "sys-fs-fuse-connections.mount", "systemd-binfmt.service", "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service", "systemd-networkd-persistent-storage.service",
    "systemd-networkd-wait-online.service", "systemd-timesyncd.service",
)  # fmt: skip
# Drivers of a PC that this machine has no use for.
_UNWANTED = (
    "ccp", "cfg80211", "floppy", "i2c_i801", "iTCO_wdt", "joydev", "kvm_amd", "lpc_ich", "pcspkr", "psmouse",
    "vga16fb",
)  # fmt: skip
# What a GPU server's GPUs, NICs and switches are linked by: PCIe 5.0, sixteen lanes.
LINK = "32x16"
# The TSC is one clock here and the timer is checked by nobody: a busy machine has stalled in those checks.
COMMAND_LINE = (
    "console=ttyS0 mitigations=off tsc=reliable no_timer_check loglevel=5 audit=0 apparmor=0 raid=noautodetect "
    "8250.nr_uarts=1 systemd.show_status=no systemd.service_watchdogs=no"
)
# On a busy machine emulation is slower than what systemd waits for by itself.
_PATIENCE = (
    "[Manager]\nDefaultTimeoutStartSec=900s\nDefaultDeviceTimeoutSec=900s\nDefaultTimeoutStopSec=60s\n"
)
_GRUB = f"""\
GRUB_TIMEOUT=0
GRUB_RECORDFAIL_TIMEOUT=0
GRUB_TERMINAL=serial
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="{COMMAND_LINE}"
GRUB_DISABLE_OS_PROBER=true
GRUB_DISABLE_RECOVERY=true
"""


def texts(
    shape: Layout, hostname: str, machine_id: str, disk_uuid: str, client_key: str
) -> Mapping[str, str]:
    """The files that make it this guest, by path below the root."""
    return {
        **_INITRAMFS,
        **_networks(shape),
        **_modules(shape),
        "etc/apt/sources.list": "",
        "etc/default/grub.d/lab.cfg": _GRUB,
        "etc/default/locale": "",
        "etc/fstab": f"UUID={disk_uuid} / ext4 defaults,noatime,errors=remount-ro 0 1\n",
        "etc/hostname": f"{hostname}\n",
        "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n",
        "etc/machine-id": f"{machine_id}\n",
        "etc/modprobe.d/lab-unwanted.conf": "".join(f"blacklist {module}\n" for module in _UNWANTED),
        "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nPasswordAuthentication no\n",
        "etc/systemd/system.conf.d/lab.conf": _PATIENCE,
        "root/.ssh/authorized_keys": client_key,
    }


def first_menu(kernel: str, disk_uuid: str) -> str:
    """GRUB's menu for the first boot. `update-grub` writes the real one there: it wants to see the disk it is on."""
    return (
        "insmod part_msdos\ninsmod ext2\n"
        f"search --no-floppy --fs-uuid --set=root {disk_uuid}\n"
        f"linux /boot/vmlinuz-{kernel} root=UUID={disk_uuid} ro {COMMAND_LINE}\n"
        f"initrd /boot/initrd.img-{kernel}\n"
        "boot\n"
    )


def _modules(shape: Layout) -> dict[str, str]:
    """Which functions the guest's modules make what: modules/README.md. igb must not take a rail's NIC before them."""
    lists = {
        "gpu": [f"{slot.pci}@{LINK}" for slot in shape.gpus],
        "nic": [f"{slot.pci}@{LINK}" for slot in shape.rails],
        "port": sorted(f"{slot.switch}@{LINK}" for slot in shape.rails),
    }
    identities = " ".join(f"{name}={','.join(places)}" for name, places in lists.items())
    rails = ",".join(f"{slot.pci}={slot.number}" for slot in shape.rails)
    # rdma-core's udev rules load mlx5_ib for a device whose driver is called mlx5_core, and so the real driver.
    options = (
        "blacklist nouveau\ninstall mlx5_core /bin/true\ninstall mlx5_ib /bin/true\n"
        "softdep igb pre: lab_pci\nsoftdep lab_nic pre: lab_pci rdma_rxe\n"
        f"options lab_pci {identities}\noptions lab_nic rail={rails}\n"
    )
    return {
        "etc/modprobe.d/lab.conf": options,
        "etc/modules-load.d/lab.conf": "lab_pci\nrdma_rxe\nlab_nic\nrdma_ucm\n",
    }


def _networks(shape: Layout) -> dict[str, str]:
    """The management NIC has the address that QEMU forwards to; each other NIC one in a network of its own."""
    page = "[Match]\nPermanentMACAddress={mac}\n[Network]\nAddress={address}\nIPv6AcceptRA=no\n"
    folder = "etc/systemd/network"
    pages = {f"{folder}/10-management.network": page.format(mac=MANAGEMENT_MAC, address="10.0.2.15/24")}
    pages[f"{folder}/10-management.network"] += "Gateway=10.0.2.2\n"
    pages[f"{folder}/10-front.network"] = page.format(mac=FRONT_MAC, address="10.8.0.1/24")
    for rail in shape.rails:
        address = f"10.9.{rail.number}.1/24"
        pages[f"{folder}/20-rail{rail.number}.network"] = page.format(
            mac=rail_mac(rail.number), address=address
        )
    return pages
