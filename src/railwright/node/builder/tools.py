"""The tools of a build node: which they are, of which version, and what is missing, before anything is begun."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from ..state.outcome import Refused
from .model import Request

DEB, RPM = "dpkg", "rpm"
_RELEASE = re.compile(r"release ([0-9]+\.[0-9]+), V([0-9.]+)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_SECONDS = 30
_INSTALL = {
    DEB: "apt-get install build-essential devscripts debhelper fakeroot",
    RPM: "dnf install gcc-c++ make rpm-build createrepo_c",
}


def system(root: str = "/") -> str:
    """The package system of this node, which its packages are made for. Raises Refused."""
    if os.path.exists(os.path.join(root, "var/lib/dpkg/status")):
        return DEB
    if any(os.path.isdir(os.path.join(root, place)) for place in ("var/lib/rpm", "usr/lib/sysimage/rpm")):
        return RPM
    raise Refused("this node has neither dpkg nor rpm", "build on a node of the fleet's own system")


def versions(request: Request, kind: str) -> dict[str, str]:
    """What decides about the bytes that come out: compilers, packers and the system. Raises Refused."""
    found = {
        "nvcc": nvcc(request),
        "c++": _version(("g++", "--version"), kind),
        "make": _version(("make", "--version"), kind),
        "system": _system(),
        "machine": platform.machine(),
    }
    packer = ("dpkg-deb", "--version") if kind == DEB else ("rpmbuild", "--version")
    found[packer[0]] = _version(packer, kind)
    if kind == RPM:
        found["createrepo_c"] = _version(("createrepo_c", "--version"), kind)
    if request.mpi is not None:
        found["mpi"] = _mpi(Path(request.mpi))
    return found


def must_pack(source: Path, kind: str) -> None:
    """Raises Refused where the source's own recipe for packages calls a program that is not here."""
    recipe = source / ("pkg/debian/Makefile" if kind == DEB else "pkg/redhat/Makefile")
    if not recipe.is_file():
        raise Refused(f"the source has no {recipe.relative_to(source)}", "name a source that makes packages")
    called = ("debuild", "dh", "fakeroot") if "debuild" in recipe.read_text("utf-8", "replace") else ()
    missing = [name for name in called if shutil.which(name) is None]
    if missing:
        raise Refused(f"the build node has no {', '.join(missing)}, which its packages need", _INSTALL[kind])


def nvcc(request: Request) -> str:
    """The version of nvcc, "13.0.88". Raises Refused where there is none, or another than was asked for."""
    path = f"{request.cuda}/bin/nvcc"
    if not os.access(path, os.X_OK):
        raise Refused(
            f"{path} is not there, so nothing for a GPU can be compiled",
            "install the toolkit on the build node (policy.cuda), or name its folder: nccl_build_cuda",
        )
    match = _RELEASE.search(_said((path, "--version")) or "")
    if match is None:
        raise Refused(f"{path} --version tells no version", "see that it runs: its libraries, its bin folder")
    if match[1] != request.toolkit:
        raise Refused(
            f"{path} is of CUDA {match[1]}, and {request.toolkit} was asked for: packages would bear a wrong name",
            f"name the folder of CUDA {request.toolkit} (nccl_build_cuda), or ask for {match[1]}",
        )
    return match[2]


def library_folder(cuda: str) -> str:
    """Where a toolkit's libraries lie: NVIDIA's packages have lib64, its wheels lib."""
    places = ("lib64", "lib", f"targets/{platform.machine()}-linux/lib")
    found = (f"{cuda}/{place}" for place in places if os.path.isdir(f"{cuda}/{place}"))
    return next(found, f"{cuda}/lib64")


def _mpi(place: Path) -> str:
    header = place / "include/mpi.h"
    if not header.is_file():
        raise Refused(f"{header} is not there", "install MPI's headers, or name their folder: nccl_build_mpi")
    text = header.read_text("utf-8", "replace")
    # Open MPI has its version in three lines, MPICH in one.
    numbers = re.findall(r"#define\s+OMPI_(?:MAJOR|MINOR|RELEASE)_VERSION\s+(\d+)", text)
    mpich = re.search(r'#define\s+MPICH_VERSION\s+"([^"]+)"', text)
    return f"Open MPI {'.'.join(numbers)}" if numbers else f"MPICH {mpich[1]}" if mpich else "unknown"


def _version(argv: Sequence[str], kind: str) -> str:
    if shutil.which(argv[0]) is None:
        raise Refused(f"the build node has no {argv[0]}", _INSTALL[kind])
    match = _NUMBER.search(_said(argv) or "")
    return "unknown" if match is None else match[0]


def _said(argv: Sequence[str]) -> Optional[str]:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


def _system() -> str:
    """Its C library decides where a package runs."""
    text = ""
    if os.path.exists("/etc/os-release"):
        text = Path("/etc/os-release").read_text("utf-8", "replace")
    words = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', text, re.MULTILINE))
    return (
        f"{words.get('ID', 'unknown')} {words.get('VERSION_ID', '')} {'-'.join(platform.libc_ver())}".strip()
    )
