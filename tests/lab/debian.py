"""Debian as its archive gives it: which archive that is, and root file systems made from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import LabError
from .shell import call

SUITES = {"12": "bookworm", "13": "trixie"}
# What a node of the lab has whatever it is for: it boots, is reached by SSH and runs Python.
PACKAGES = (
    "ca-certificates", "dbus", "ethtool", "gpgv", "iproute2", "iputils-ping", "kmod", "libpam-systemd", "mount",
    "netbase", "openssh-server", "pciutils", "procps", "python3", "python3-apt", "sudo", "systemd", "systemd-sysv",
    "udev", "util-linux",
)  # fmt: skip
# mmdebstrap mounts this machine's /dev/shm and more in the root that it makes. In a mount namespace of its own nothing
# of that is left where somebody may delete it, and it ends with the program that started it.
_APART = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--fork",
    "--kill-child", "--mount-proc",
)  # fmt: skip
_LEAN = ("man", "doc", "locale", "info")


def bootstrap(suite: str, packages: Sequence[str], folder: Path, *options: str) -> None:
    """Makes a root file system of these packages and what they need. options: mmdebstrap's own. Raises LabError."""
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in _LEAN]
    call(
        [
            *_APART, "mmdebstrap", "--variant=minbase", "--components=main", f"--include={','.join(packages)}",
            '--aptopt=Acquire::Languages "none"', *excluded, *options, suite, str(folder), mirror(),
        ]
    )  # fmt: skip


def recipe(*pages: str | Path) -> bytes:
    """What these Python pages do, for a key: how they are laid out is no part of it."""
    trees = (ast.dump(ast.parse(Path(page).read_text("utf-8"))) for page in (__file__, *pages))
    return "\0".join(trees).encode()


def mirror() -> str:
    """The archive that this machine's own apt uses for Debian. Raises LabError where it has none."""
    places = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    places += sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))
    for path in places:
        text = path.read_text("utf-8") if path.is_file() else ""
        for stanza in re.split(r"\n\s*\n", text):
            suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
            address = re.search(r"^URIs:\s*(\S+)", stanza, re.MULTILINE)
            if suites and address and set(suites[1].split()) & {*SUITES.values(), "stable", "testing", "sid"}:
                return address[1]
        line = re.search(r"^deb(?:\s+\[[^]]*\])?\s+(\S*debian\S*)\s+\S+\s+main", text, re.MULTILINE)
        if line:
            return line[1]
    raise LabError(
        "/etc/apt",
        "names no archive of Debian",
        "run the lab on a Debian machine, whose apt sources name their mirror",
    )
