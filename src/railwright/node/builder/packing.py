"""Packages: what is in them, for which GPUs, their index, and one of our own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Optional

from ..durable import digest_of
from ..state.outcome import Refused
from . import tools
from .worker import Worker

# "ELF file    1: libnccl.1.sm_90.cubin" (cuobjdump --list-elf).
_CODE = re.compile(r"\.sm_([0-9]{2,3})[af]?\.cubin")
_UPSTREAM = re.compile(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)+)")
_SECONDS = 600
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def identity(path: Path, kind: str) -> tuple[str, str]:
    """Name and version of a package. Raises Refused."""
    if kind == tools.DEB:
        told = _ask(["dpkg-deb", "-f", str(path), "Package", "Version"])
        found = dict(re.findall(r"^(Package|Version): (\S+)$", told, re.MULTILINE))
        name, version = found.get("Package"), found.get("Version")
    else:
        told = _ask(["rpm", "-qp", "--nosignature", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n", str(path)])
        name, _, version = told.strip().partition(" ")
    if not name or not version:
        raise Refused(f"{path.name} tells no name and version", "see what its build made")
    return name, version


def versions(files: Iterable[Path], kind: str) -> dict[str, str]:
    """Version by package."""
    return dict(identity(path, kind) for path in files)


def upstream(nccl: Mapping[str, Path], kind: str) -> tuple[str, str]:
    """NCCL's runtime package and its version without revision."""
    for name, full in versions(nccl.values(), kind).items():
        match = _UPSTREAM.match(full)
        if name in ("libnccl2", "libnccl") and match is not None:
            return name, match[1]
    raise Refused("the build has made no package libnccl2 or libnccl", "see what its source calls it")


def unpacked(files: Mapping[str, Path], worker: Worker, kind: str) -> Path:
    """The packages' files in one tree, the builder's own."""
    tree = worker.folder / "unpacked"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    worker.give(tree)
    for path in files.values():
        if kind == tools.DEB:
            worker.must(["dpkg-deb", "-x", str(path), str(tree)])
        else:
            worker.must(["sh", "-c", 'rpm2cpio "$1" | cpio -id --quiet', "sh", str(path)], where=tree)
    return tree


def code_of(tree: Path, cuda: str) -> Optional[dict[str, tuple[str, ...]]]:
    """Compute capabilities that each library and program has code for, by its name; None without cuobjdump."""
    program = f"{cuda}/bin/cuobjdump"
    if not os.access(program, os.X_OK):
        return None
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file() or not re.search(r"\.so\.\d|_perf$", path.name):
            continue
        numbers = set(_CODE.findall(_ask([program, "--list-elf", str(path)])))
        if numbers:
            found[path.name] = tuple(f"{each[:-1]}.{each[-1]}" for each in sorted(numbers, key=int))
    return found


def pack(
    name: str, version: str, stage: Path, library: tuple[str, str], worker: Worker, kind: str
) -> dict[str, Path]:
    """A package of the files in `stage`, which wants this library. Raises Refused."""
    about = "Tests of NCCL's collectives, with MPI"
    if kind == tools.RPM:
        return _pack_rpm(name, version, stage, library, worker, about)
    programs = [str(path) for path in sorted(stage.rglob("*")) if path.is_file()]
    control = worker.folder / "debian/control"
    control.parent.mkdir()
    control.write_text(f"Source: {name}\n\nPackage: {name}\nArchitecture: any\n", encoding="utf-8")
    worker.give(control.parent)
    # NCCL is of no installed package here; of the rest dpkg knows what brings it.
    nccl = f"-l{worker.folder / 'nccl-home/lib'}"
    said = worker.must(["dpkg-shlibdeps", "-O", "--ignore-missing-info", nccl, *programs])
    wants = re.search(r"^shlibs:Depends=(.+)$", said.out, re.MULTILINE)
    depends = ", ".join([*([wants[1]] if wants else []), f"{library[0]} (>= {library[1]})"])
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
        "Maintainer": "Railwright <railwright@example.invalid>",
        "Depends": depends,
        "Description": about,
    }
    (stage / "DEBIAN").mkdir()
    text = "".join(f"{key}: {value}\n" for key, value in fields.items())
    (stage / "DEBIAN/control").write_text(text, encoding="utf-8")
    worker.give(stage)
    made = worker.folder / f"{name}_{version}_{fields['Architecture']}.deb"
    worker.must(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(stage), str(made)])
    return {made.name: made}


def _pack_rpm(
    name: str, version: str, stage: Path, library: tuple[str, str], worker: Worker, about: str
) -> dict[str, Path]:
    number, _, release = version.partition("-")
    spec = worker.folder / f"{name}.spec"
    text = (
        f"Name: {name}\nVersion: {number}\nRelease: {release}\nSummary: {about}\nLicense: BSD-3-Clause\n"
        f"Requires: {library[0]} >= {library[1]}\n%define debug_package %{{nil}}\n%description\n{about}\n"
        f"%install\ncp -a {stage}/. %{{buildroot}}/\n%files\n/usr/lib/{name}\n"
    )
    with spec.open("x", encoding="utf-8") as file:  # never through a link that a source has laid there
        file.write(text)
    worker.give(spec)
    top = worker.folder / "rpmbuild"
    worker.must(["rpmbuild", "-bb", "--define", f"_topdir {top}", str(spec)])
    return {path.name: path for path in sorted(top.rglob("*.rpm"))}


def index(files: Mapping[str, Path], folder: Path, worker: Worker, kind: str) -> dict[str, Path]:
    """The index of a flat archive: apt's Packages, or rpm's repodata. folder: for it, absent. Raises Refused."""
    folder.mkdir()
    if kind == tools.DEB:
        place = folder / "Packages"
        place.write_text("\n".join(_stanza(path) for _, path in sorted(files.items())), encoding="utf-8")
        return {"Packages": place}
    for name, path in files.items():
        shutil.copyfile(path, folder / name)
    worker.give(folder)
    worker.must(["createrepo_c", "--quiet", "--no-database", str(folder)])
    return {f"repodata/{path.name}": path for path in sorted((folder / "repodata").iterdir())}


def _stanza(path: Path) -> str:
    """As apt-ftparchive(1) writes it; the file's place is the archive's own folder."""
    control = _ask(["dpkg-deb", "-f", str(path)]).strip("\n")
    return f"{control}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest_of(path)}\n"


def _ask(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{argv[0]} cannot be run: {error}", "install it on the build node") from error
    return done.stdout
