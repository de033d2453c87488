"""One command makes a fresh Debian machine ready: what is missing is installed, what takes long is built and kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
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
    build(_kept())
    lab.allow_inotify()
    print("The lab is ready.")
    return 0


@dataclass(frozen=True)
class Kept:
    """What the cache keeps. there: where; make: makes it, for it can be pickled."""

    what: str
    there: Path
    make: Callable[[], Path]


def build(wanted: Sequence[Kept]) -> None:
    """Makes what is absent, two at a time, and says how long each took. Raises the first LabError of any."""
    absent = [one for one in wanted if not one.there.is_dir()]
    for one in wanted:
        if one not in absent:
            print(f"{one.what}: {one.there}, is there", flush=True)
    # Processes: each has runs of its own name, and an emulator of its own.
    with ProcessPoolExecutor(2) as pool:
        for one, seconds in zip(absent, pool.map(_made, absent), strict=True):
            print(f"{one.what}: {one.there}, built in {seconds:.0f} s", flush=True)


def _made(one: Kept) -> float:
    began = time.monotonic()
    one.make()
    return time.monotonic() - began


def _kept() -> list[Kept]:
    """A virtual machine first: all of them want the guest, and meanwhile the nodes' root file systems are made."""
    machines = [
        Kept(
            f"Virtual machine, {shape.name}",
            cache.place(f"state-{shape.name}", saved.name(shape)),
            partial(saved.saved, shape),
        )
        for shape in LAYOUTS.values()
    ]
    roots = [
        Kept(f"Debian {release}", cache.place("rootfs", rootfs.name(suite)), partial(rootfs.root, suite))
        for release, suite in debian.SUITES.items()
    ]
    return [*machines[:1], *roots, *machines[1:]]


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
