"""The source of a build: its identity, which the cache knows it by, and the source itself in the scratch folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import urllib.error
import urllib.request
from pathlib import Path

from ..durable import digest_of
from ..state.outcome import Refused
from .model import Source
from .worker import Worker

_SECONDS = 60
_CHUNK = 1 << 20
_LEFT_OUT = (".git", "build")


def identity(source: Source) -> str:
    """What tells this source from any other. Raises Refused for a folder that is not there."""
    if source.tarball is not None:
        return f"tarball {source.sha256}"
    if source.git is not None:
        return f"git {source.commit}"
    return f"folder {_tree(Path(str(source.folder)))}"


def fetch(source: Source, worker: Worker) -> Path:
    """The source, the builder's own, in worker.folder/source. Raises Refused, naming what is missing."""
    place = worker.folder / "source"
    if source.folder is not None:
        try:
            shutil.copytree(
                source.folder, place, symlinks=True, ignore=lambda top, names: _ignored(source, top, names)
            )
        except (OSError, shutil.Error) as error:
            raise Refused(f"{source.folder} cannot be read: {error}", "see who may read it") from error
        worker.give(place)
    elif source.tarball is not None:
        _unpack(source.tarball, str(source.sha256), place, worker)
    else:
        _clone(str(source.git), str(source.commit), place, worker)
    if not (place / "Makefile").is_file():
        raise Refused(
            f"{source.folder or source.tarball or source.git} has no Makefile at its top",
            "name a source of NCCL or nccl-tests as it is released",
        )
    return place


def _ignored(source: Source, top: str, names: list[str]) -> list[str]:
    return [name for name in names if name in _LEFT_OUT] if top == source.folder else []


def _tree(top: Path) -> str:
    """Digest of names, kinds, modes and contents of a tree."""
    if not top.is_dir():
        raise Refused(f"{top} is not there", "lay the source on the build node, or name its place")
    found = hashlib.sha256()
    for folder, names, files in os.walk(top):
        names[:] = sorted(name for name in names if folder != str(top) or name not in _LEFT_OUT)
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links]):
            path = Path(folder) / name
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                content = f"link {os.readlink(path)}"
            elif stat.S_ISREG(status.st_mode):
                content = f"{status.st_mode & 0o100:o} {digest_of(path)}"
            else:
                continue
            found.update(f"{path.relative_to(top)}\0{content}\n".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _unpack(tarball: str, sha256: str, place: Path, worker: Worker) -> None:
    kept = worker.folder / "source.tar"
    try:
        if "://" in tarball:
            with urllib.request.urlopen(tarball, timeout=_SECONDS) as answer, kept.open("wb") as file:  # noqa: S310
                shutil.copyfileobj(answer, file, _CHUNK)
        else:
            shutil.copyfile(tarball, kept)
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise Refused(
            f"{tarball} cannot be had: {why}",
            "name a mirror, or lay the file on the build node and name its path (nccl_build_source.tarball)",
        ) from error
    found = digest_of(kept)
    if found != sha256:
        raise Refused(
            f"{tarball} has the SHA-256 {found}, and {sha256} was named",
            "see which of the two is right before anything of it is run",
        )
    place.mkdir()
    worker.give(place)
    worker.give(kept)
    worker.must(
        ["tar", "-xf", str(kept), "-C", str(place), "--strip-components=1", "--no-same-owner"],
        remedy="expected a tarball with one folder at its top",
    )
    kept.unlink()


def _clone(address: str, commit: str, place: Path, worker: Worker) -> None:
    remedy = f"see that {address} can be reached from the build node and has {commit}; a mirror will do"
    worker.must(["git", "init", "-q", str(place)])
    # Many servers give one commit when they are asked for it; of the others all branches are taken.
    if not worker.run(["git", "fetch", "-q", "--depth=1", address, commit], where=place).ok:
        worker.must(
            ["git", "fetch", "-q", "--tags", address, "+refs/heads/*:refs/theirs/*"],
            where=place,
            remedy=remedy,
        )
    worker.must(["git", "checkout", "-q", "--detach", commit], where=place, remedy=remedy)
