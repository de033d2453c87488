"""One command makes a fresh Debian machine ready: what is missing is installed, what takes long is built and kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from . import backports, cache, debian, lab, rootfs
from .errors import LabError
from .shell import call
from .vm import emulator, saved
from .vm.layout import LAYOUTS

# Program to the package that brings it.
PROGRAMS = {
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "ethtool": "ethtool",
    "fusermount3": "fuse3",
    "gpg": "gpg",
    "ip": "iproute2",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}


def missing() -> dict[str, str]:
    """Programs that this machine has not got, each with its package."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return {
        program: package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None
    }


def unready() -> str:
    """Why no lab node can be brought up here now: one sentence, or "" where one can."""
    if os.geteuid() != 0:
        return "the lab needs root"
    if missing():
        return f"the lab lacks {', '.join(sorted(set(missing().values())))}: run `make lab-setup`"
    if find_spec("mfusepy") is None:
        return "the lab lacks the Python package mfusepy: run `make setup`"
    if not os.path.exists("/dev/fuse"):
        return "the lab needs /dev/fuse, which this machine does not have"
    return ""


def vm_unready() -> str:
    """Why no virtual machine can be brought up here now: one sentence, or "" where one can."""
    if why := unready():
        return why
    try:
        emulator.version()
    except LabError as error:
        return str(error)
    return ""


def setup() -> int:
    """Installs and builds. 0 ready. Raises LabError."""
    lab.must_be_root()
    wanted = sorted(set(missing().values()))
    if wanted:
        _install(*wanted)
    if why := unready():
        raise LabError("this machine", why, "see tests/lab/README.md")
    if vm_unready():
        _install_emulator()
    for release, suite in debian.SUITES.items():
        there = cache.place("rootfs", rootfs.name(suite))
        _built(f"Debian {release}", there, partial(rootfs.root, suite))
    for shape in LAYOUTS.values():
        there = cache.place(f"state-{shape.name}", saved.name(shape))
        _built(f"Virtual machine, {shape.name}", there, partial(saved.saved, shape))
    lab.allow_inotify()
    print("The lab is ready.")
    return 0


def _built(what: str, there: Path, build: Callable[[], Path]) -> None:
    began = time.monotonic()
    known = there.is_dir()
    build()
    done = "is there" if known else f"built in {time.monotonic() - began:.0f} s"
    print(f"{what}: {there}, {done}", flush=True)


def _install_emulator() -> None:
    suite = backports.target(Path("/etc/os-release").read_text("utf-8"))
    if suite is None:
        _install("qemu-system-x86")
    else:
        backports.subscribe(suite)
        _install(f"--target-release={suite}", "qemu-system-x86")
    emulator.version()


def _install(*words: str) -> None:
    print(f"Install {' '.join(words)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    call(["apt-get", "update", "-qq"], env=environment)
    call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *words], env=environment)
