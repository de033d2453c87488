"""A node's seed: the files that go over its suite's root file system, and make it this node and a node of the lab."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from .run import Run
from .shell import call
from .spec import Spec

FILES = Path(__file__).with_name("files")
# These would write to devices that are files here, mount what is the real machine's, wait for what never comes, or run
# on a clock.
MASKED = (
    "apt-daily-upgrade.timer", "apt-daily.timer", "console-getty.service", "dev-hugepages.mount",
    "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty.target",
    "ldconfig.service", "proc-sys-fs-binfmt_misc.automount", "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service", "systemd-timesyncd.service", "systemd-udev-trigger.service",
    "systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-udevd.service",
)  # fmt: skip
_TEXTS = {
    "etc/apt/sources.list": "",
    "etc/default/locale": "",
    "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nPasswordAuthentication no\n",
    "etc/systemd/system.conf.d/lab.conf": "[Manager]\nDefaultTimeoutStopSec=10s\n",
}
_COPIES = {
    "usr/bin/python3": ("python3", 0o755),
    "usr/local/lib/lab/lab-hardware": ("lab-hardware", 0o755),
    "etc/systemd/system/lab-hardware.service": ("lab-hardware.service", 0o644),
}
_UNITS = Path("etc/systemd/system")


def sow(run: Run, spec: Spec) -> None:
    """Writes the seed and the page of a node that has neither yet."""
    top = spec.folder / "seed"
    for path, text in {**_TEXTS, **_names(spec)}.items():
        _write(top / path, text)
    for path, (name, mode) in _COPIES.items():
        _write(top / path, (FILES / name).read_text("utf-8"))
        (top / path).chmod(mode)
    for place in ("lab/hardware", "lab/irq", "lab/sysctls"):
        (top / place).mkdir(parents=True)
    for unit in MASKED:
        _link(top / _UNITS / unit, "/dev/null")
    _link(top / _UNITS / "default.target", "/lib/systemd/system/multi-user.target")
    _link(top / _UNITS / "sysinit.target.wants/lab-hardware.service", "../lab-hardware.service")
    _keys(run, spec, top)
    spec.write()


def _names(spec: Spec) -> dict[str, str]:
    return {
        "etc/hostname": f"{spec.name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n",
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
    }


def _keys(run: Run, spec: Spec, top: Path) -> None:
    """The key that the node is known by, and the one that enters it. sshd wants both out of others' reach."""
    own = top / "etc/ssh/ssh_host_ed25519_key"
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spec.name, "-f", str(own)])
    (top / "root/.ssh").mkdir(parents=True, mode=0o700)
    (top / "root").chmod(0o700)
    shutil.copyfile(f"{run.key}.pub", top / "root/.ssh/authorized_keys")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
