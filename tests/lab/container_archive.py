"""Docker and podman as Debian's archive has them, with all that they need, as an offline folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import cache, chroots, debian, packages, rootfs
from .shell import call

# What a node without a desktop needs to run a container, and nothing that is only recommended.
WANTED = ("docker.io", "podman", "runc", "crun", "iptables")
# Debian 13 has Docker's command line in a package of its own.
ALSO = {"trixie": ("docker-cli",)}
FOLDER = "/srv/debs"
SOURCE = {"name": "offline", "uris": f"file:{FOLDER}", "suites": "./", "trusted": True}
TOOLKIT = packages.TOOLKIT
# No bridge and no firewall: a lab node's kernel has neither, and a container here needs no network.
DAEMON = {"/bridge": "none", "/iptables": False, "/ip6tables": False, "/storage-driver": "vfs"}
# Programs of the node itself with the libraries that they need: an image without a registry.
IMAGE = """set -e; rm -rf /tmp/image; mkdir -p /tmp/image/bin
for program in /bin/dash /usr/bin/env /usr/bin/cat /usr/bin/sleep; do
    cp -L $program /tmp/image/bin/
    ldd $program | grep -o '/[^ )]*' | while read library; do cp --parents -L $library /tmp/image/; done
done
mv /tmp/image/bin/dash /tmp/image/bin/sh; tar -C /tmp/image -cf /tmp/image.tar .
"""


def fetched(suite: str) -> Path:
    """A folder of .deb files with their `Packages`, fetched where it is absent (about a minute). Raises LabError."""
    names = (*WANTED, *ALSO.get(suite, ()))
    key = cache.key(rootfs.name(suite).encode(), *(name.encode() for name in names))
    return cache.kept("containers", f"{suite}-{key}", lambda folder: _fetch(suite, folder))


def _fetch(suite: str, folder: Path) -> None:
    """From the archive that this machine's apt names; what the suite's root file system has already stays out."""
    folder.mkdir()
    with chroots.entered(folder / "root", suite) as chroot:
        for place in ("etc/apt/apt.conf.d", "etc/apt/apt.conf", "etc/resolv.conf"):
            here, there = Path("/") / place, chroot.root / place
            if here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            elif here.exists():
                there.unlink(missing_ok=True)
                shutil.copy(here, there)
        chroot.write(
            "/etc/apt/sources.list.d/debian.sources",
            f"Types: deb\nURIs: {debian.mirror()}\nSuites: {suite} {suite}-updates\nComponents: main\n",
        )
        python = next(path.name for path in sorted((chroot.root / "usr/bin").glob("python3.[0-9]*")))
        chroot.must(f"ln -sf {python} /usr/bin/python3; apt-get -q update")
        chroot.must(
            "apt-get -q -y --no-install-recommends -d -o APT::Keep-Downloaded-Packages=true "
            f"-o Dir::Cache::archives=/srv install {' '.join((*WANTED, *ALSO.get(suite, ())))}"
        )
        for deb in (chroot.root / "srv").glob("*.deb"):
            shutil.copy(deb, folder / deb.name)
    cache.remove(folder / "root")
    for left in folder.iterdir():
        if left.suffix != ".deb":
            cache.remove(left)
    (folder / "Packages").write_text(call(["apt-ftparchive", "packages", "."], cwd=folder), encoding="utf-8")


def offline(suite: str, folder: Path) -> Path:
    """The suite's folder of packages with the toolkit's stand-ins in it."""
    shutil.copytree(fetched(suite), folder)
    architecture = call(["dpkg", "--print-architecture"]).strip()
    for one in packages.standins():
        if one.version == TOOLKIT:
            packages.build(one, architecture, folder.parent / "scratch", folder)
    (folder / "Packages").write_text(call(["apt-ftparchive", "packages", "."], cwd=folder), encoding="utf-8")
    return folder


def versions_in(folder: Path) -> dict[str, str]:
    """What the folder offers: package to version."""
    text = (folder / "Packages").read_text("utf-8")
    return dict(re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)$", text, re.MULTILINE))
