"""Root file systems: Debian as its installer leaves a server, with sshd and Python, and nothing of ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from . import cache
from .errors import LabError
from .shell import call

SUITES = {"12": "bookworm", "13": "trixie"}
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


def root(suite: str) -> Path:
    """The root file system of a suite, built where it is absent (about 40 s). Raises LabError."""
    if suite not in SUITES.values():
        raise LabError("suite", f"{suite!r} is none of the lab's", f"expected {' or '.join(SUITES.values())}")
    return cache.kept("rootfs", name(suite), lambda folder: _build(suite, folder))


def name(suite: str) -> str:
    """Of the cache: another recipe is another root file system."""
    # How this page is laid out is no part of the recipe; what it does is.
    recipe = ast.dump(ast.parse(Path(__file__).read_text("utf-8")))
    return f"{suite}-{cache.key(recipe.encode(), _mirror().encode(), suite.encode())}"


def _build(suite: str, folder: Path) -> None:
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in _LEAN]
    call(
        [
            *_APART, "mmdebstrap", "--variant=minbase", "--components=main", f"--include={','.join(PACKAGES)}",
            '--aptopt=Acquire::Languages "none"', *excluded, suite, str(folder), _mirror(),
        ]
    )  # fmt: skip
    _strip(folder)


def _strip(folder: Path) -> None:
    """Takes out what each node has of its own, and what a node's seed puts in its place (see `seed.py`)."""
    for own in (*(folder / "etc/ssh").glob("ssh_host_*"), folder / "etc/machine-id", folder / "etc/hostname"):
        own.unlink(missing_ok=True)
    (folder / "etc/apt/sources.list").unlink(missing_ok=True)
    (folder / "etc/systemd/system/default.target").unlink(missing_ok=True)
    (folder / "usr/bin/python3").rename(folder / "usr/bin/python3.real")
    # They say "nothing has changed since", or the first boot of every node would rebuild caches.
    for stamp in ("etc/.updated", "var/.updated"):
        (folder / stamp).touch()


def _mirror() -> str:
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
