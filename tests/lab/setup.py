"""One command makes a fresh Debian machine ready: what is missing is installed, what takes long is built and kept."""

from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec

from . import cache, lab, rootfs
from .errors import LabError
from .shell import call

# Program to the package that brings it.
PROGRAMS = {
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "ethtool": "ethtool",
    "fusermount3": "fuse3",
    "gpg": "gpg",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
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


def setup() -> int:
    """Installs and builds. 0 ready. Raises LabError."""
    lab.must_be_root()
    wanted = sorted(set(missing().values()))
    if wanted:
        print(f"Install {', '.join(wanted)}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        call(["apt-get", "update", "-qq"], env=environment)
        call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], env=environment)
    if why := unready():
        raise LabError("this machine", why, "see tests/lab/README.md")
    for release, suite in rootfs.SUITES.items():
        began = time.monotonic()
        known = cache.place("rootfs", rootfs.name(suite)).is_dir()
        folder = rootfs.root(suite)
        done = "is there" if known else f"built in {time.monotonic() - began:.0f} s"
        print(f"Debian {release}: {folder}, {done}", flush=True)
    lab.allow_inotify()
    print("The lab is ready.")
    return 0
