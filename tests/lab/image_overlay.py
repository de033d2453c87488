"""What is laid over the image for tests only: the guest's modules, the network of the emulator, and patience.

Nothing of it is the product's. Which functions become GPUs and NICs is said by the emulated machine itself (SMBIOS,
read by GRUB), so one image boots on every layout.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from . import cache, debian
from .namespaces import apart, mount, overlay
from .shell import call
from .vm import assemble, guest, seed
from .vm.layout import Layout, layout

_PROJECT = Path(__file__).resolve().parents[2]
_WORK = Path("/run/lab")
# GRUB takes the words that this machine's firmware has for them: `smbios`, type 1, the product's version.
_GRUB_WORDS = """\
#!/bin/sh
echo "insmod smbios"
echo "smbios --type 1 --get-string 6 --set=lab"
"""
_MODULES = """\
blacklist nouveau
install mlx5_core /bin/true
install mlx5_ib /bin/true
softdep igb pre: lab_pci
softdep lab_nic pre: lab_pci rdma_rxe
"""
# A unit that the policy gates, as slurmd would be.
_WORK_UNIT = """\
[Unit]
Description=What runs work on this node
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/true
[Install]
WantedBy=multi-user.target
"""
# By these the controller knows at which moments the power may go.
_SAID = """\
[Service]
ExecStartPre=-/bin/sh -c 'echo "lab: tuning begins" > /dev/ttyS0'
ExecStopPost=-/bin/sh -c 'echo "lab: tuning stopped" > /dev/ttyS0'
ExecStartPost=-/bin/sh -c 'echo "lab: tuning ended" > /dev/ttyS0'
"""
_LINK = seed.LINK


def folder() -> Path:
    """The overlay, made where it is absent (10 s)."""
    key = cache.key(
        debian.recipe(__file__, seed.__file__), guest.name().encode(), cache.contents([assemble.MODULES])
    )
    return cache.kept("image-overlay", key, _build)


def words(shape: Layout, without_gpu: bool = False) -> str:
    """What the firmware of a layout tells the guest's modules."""
    gpus = [_short(slot.pci) for slot in shape.gpus][1 if without_gpu else 0 :]
    lists = {
        "gpu": [f"{pci}@{_LINK}" for pci in gpus],
        "nic": [f"{_short(slot.pci)}@{_LINK}" for slot in shape.rails],
        "port": sorted(f"{_short(str(slot.switch))}@{_LINK}" for slot in shape.rails),
    }
    said = [f"lab_pci.{name}={','.join(places)}" for name, places in lists.items()]
    return " ".join([*said, "lab_nic.rail=" + ",".join(f"{_short(s.pci)}={s.number}" for s in shape.rails)])


def _short(pci: str) -> str:
    return pci.removeprefix("0000:")


def _build(place: Path) -> None:
    argv = [sys.executable, "-P", "-m", "tests.lab.image_overlay", str(guest.root()), str(place)]
    call(["env", f"PYTHONPATH={_PROJECT}", "PYTHONDONTWRITEBYTECODE=1", *apart(*argv)])


def main(argv: list[str]) -> int:
    """In a mount namespace of its own: builds the modules in the guest's root, and lays the files beside them."""
    root, place = Path(argv[0]), Path(argv[1])
    mount("tmpfs", Path("/run"), "mode=755")
    mount("tmpfs", _WORK, "size=2g,mode=755")
    tree = overlay(root, _WORK / "guest")
    release = guest.kernel(root)
    place.mkdir(parents=True)
    assemble.with_devices(tree)
    assemble._build_modules(tree, release)
    there = place / "usr/lib/modules" / release / "updates/lab"
    there.parent.mkdir(parents=True)
    shutil.copytree(tree / "lib/modules" / release / "updates/lab", there)
    rules = place / "etc/udev/rules.d"
    rules.mkdir(parents=True)
    for file in assemble.MODULES.glob("*.rules"):
        shutil.copy(file, rules)
    for path, text in _texts().items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, "utf-8")
    (place / "etc/grub.d/01_lab").chmod(0o755)
    for unit in seed.MASKED:
        _link(place / "etc/systemd/system" / unit, "/dev/null")
    wants = place / "etc/systemd/system/multi-user.target.wants"
    _link(wants / "systemd-networkd.service", "/lib/systemd/system/systemd-networkd.service")
    _link(wants / "slurmd.service", "../slurmd.service")
    return 0


def _texts() -> dict[str, str]:
    largest = layout("four-nodes")
    made = seed.texts(largest, "image", "", "", "")
    kept = (
        "etc/initramfs-tools/",
        "etc/systemd/network/",
        "etc/modprobe.d/lab-unwanted",
        "etc/systemd/system.conf.d",
    )
    texts = {path: text for path, text in made.items() if path.startswith(kept)}
    return {
        **texts,
        "etc/modprobe.d/lab.conf": _MODULES,
        "etc/modules-load.d/lab.conf": made["etc/modules-load.d/lab.conf"],
        "etc/default/grub.d/lab.cfg": made["etc/default/grub.d/lab.cfg"].replace(
            f'GRUB_CMDLINE_LINUX="{seed.COMMAND_LINE}"', f"GRUB_CMDLINE_LINUX='{seed.COMMAND_LINE} ${{lab}}'"
        ),
        "etc/grub.d/01_lab": _GRUB_WORDS,
        "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nPasswordAuthentication no\n",
        # For every service: an emulator on a busy machine is slower than a unit's own limit allows for.
        "etc/systemd/system/service.d/lab.conf": "[Service]\nTimeoutStartSec=1800\n",
        "etc/systemd/system/slurmd.service": _WORK_UNIT,
        # Of another name than the one for every service, which it would hide.
        "etc/systemd/system/railwright.service.d/said.conf": _SAID,
    }


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
