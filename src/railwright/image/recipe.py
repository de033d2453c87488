"""What an image is made from: one page of values, and the digests of the files that it names."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railwright.node.model import InputError, Policy, from_json, to_json
from railwright.node.model.values import ARGUMENT
from railwright.node.words import without_users
from railwright.plan.policy_bytes import canonical

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}", re.ASCII)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(?:=[A-Za-z0-9.+:~-]+)?", re.ASCII)
_WORDS = re.compile(rf"{ARGUMENT.pattern}(?: {ARGUMENT.pattern})*")
# A zip archive, FAT and tar all hold this one and what follows.
_EARLIEST = 315532800
# gzip counts seconds in 32 bits (RFC 1952, MTIME); FAT ends in 2107.
_LATEST = 2**32 - 1
_SUITE = re.compile(r"[a-z0-9][a-z0-9./_-]{0,60}", re.ASCII)
_COMPONENT = re.compile(r"[a-z0-9][a-z0-9/-]{0,60}", re.ASCII)
# No word of mmdebstrap's, and not "-", its standard input.
_MIRROR = re.compile(r"[A-Za-z0-9/.][ -~]*", re.ASCII)
# mmdebstrap takes its hooks apart as a shell does.
_FILES = re.compile(r"[A-Za-z0-9_./@+,:=-]+")
# An address with a name and a password before its host.
SBOMS = ("spdx", "cyclonedx")


@dataclass(frozen=True)
class Debian:
    """A root file system from Debian's archive. mirror: as in sources.list(5), an address or a folder."""

    suite: str = "trixie"
    mirror: str = ""
    components: tuple[str, ...] = ("main",)


@dataclass(frozen=True)
class Recipe:
    """The page.

    debian, or tree: a mounted or unpacked root file system of Ubuntu, Rocky or Debian, which stays as it is. packages:
    besides those that every image has. files: a folder that is laid over the new root file system before its packages
    are configured. epoch: the time of everything in the image, seconds since 1970. command_line: the kernel's words on
    every chassis. disk_gib: of the disk image; None makes none. sources: what the image's apt shall read, text of a
    sources.list; what the bake read is left out. forbid: texts that must be nowhere in the image. sbom: which.
    """

    name: str
    epoch: int
    debian: Debian | None = None
    tree: str | None = None
    packages: tuple[str, ...] = ()
    files: str | None = None
    command_line: str = "console=tty0 console=ttyS0,115200"
    disk_gib: int | None = 8
    sources: str = ""
    forbid: tuple[str, ...] = ()
    sbom: tuple[str, ...] = ("spdx",)
    policy: Any = field(default=None)

    @classmethod
    def read(cls, data: Any, where: str) -> Recipe:
        """Raises InputError with the place."""
        recipe = from_json(cls, data, where)
        if not _NAME.fullmatch(recipe.name):
            raise InputError(f"{where}.name", f"found {recipe.name!r}", "lower-case letters, digits, . and -")
        if (recipe.debian is None) == (recipe.tree is None):
            raise InputError(where, "names both debian and tree, or neither", "say one of them")
        if recipe.debian is not None:
            _archive(recipe.debian, f"{where}.debian")
        if not _EARLIEST <= recipe.epoch <= _LATEST:
            raise InputError(
                f"{where}.epoch",
                f"found {recipe.epoch}",
                f"expected {_EARLIEST} (1980) to {_LATEST} (2106), in seconds since 1970",
            )
        for number, package in enumerate(recipe.packages):
            if not _PACKAGE.fullmatch(package):
                raise InputError(
                    f"{where}.packages[{number}]",
                    f"{package[:80]!r} is no name of a package",
                    "expected one like chrony, or chrony=4.6-1",
                )
        if not _WORDS.fullmatch(recipe.command_line or "quiet"):
            raise InputError(
                f"{where}.command_line", f"found {recipe.command_line!r}", "words without quotes"
            )
        if recipe.disk_gib is not None and not 2 <= recipe.disk_gib <= 512:
            raise InputError(f"{where}.disk_gib", f"found {recipe.disk_gib}", "expected 2 to 512")
        for word in recipe.sbom:
            if word not in SBOMS:
                raise InputError(f"{where}.sbom", f"found {word!r}", f"of {', '.join(SBOMS)}")
        for text in recipe.forbid:
            if len(text) < 8:
                raise InputError(
                    f"{where}.forbid",
                    "a text of fewer than 8 characters is found by chance",
                    "give a longer one",
                )
        for place, path in (("tree", recipe.tree), ("files", recipe.files)):
            if path is not None and not Path(path).is_dir():
                raise InputError(f"{where}.{place}", f"{path} is no folder", "name one that is there")
        if recipe.debian is not None and recipe.files is not None and not _FILES.fullmatch(recipe.files):
            raise InputError(
                f"{where}.files",
                f"{recipe.files[:80]!r} has blanks or quotes in it, which mmdebstrap would take apart",
                "move the folder to a plain path",
            )
        if "\0" in recipe.sources:
            raise InputError(f"{where}.sources", "has a NUL in it", "expected the text of a sources.list")
        return recipe

    def told(self) -> dict[str, Any]:
        """The page without what is nobody's business: how many texts are forbidden, no paths, no policy, no passwords.

        Not the texts' digests: a short one can be guessed from them.
        """
        page: dict[str, Any] = to_json(self)
        page["forbid"] = len(self.forbid)
        page["sources"] = without_users(self.sources)
        if self.debian is not None:
            page["debian"]["mirror"] = without_users(self.debian.mirror)
        page.update(
            {place: None if page[place] is None else Path(page[place]).name for place in ("tree", "files")}
        )
        del page["policy"]
        return page


def _archive(debian: Debian, where: str) -> None:
    """Raises InputError, which never tells the mirror: it may have a password in it."""
    if not debian.mirror:
        raise InputError(
            f"{where}.mirror", "missing", "name the archive: what is baked depends on what it holds"
        )
    if not _MIRROR.fullmatch(debian.mirror):
        raise InputError(
            f"{where}.mirror", "is no address and no folder", "expected one line, as in sources.list"
        )
    if not _SUITE.fullmatch(debian.suite):
        raise InputError(f"{where}.suite", f"found {debian.suite[:80]!r}", "expected a name like trixie")
    if not debian.components:
        raise InputError(f"{where}.components", "names nothing", "expected some like main")
    for component in debian.components:
        if not _COMPONENT.fullmatch(component):
            raise InputError(f"{where}.components", f"found {component[:80]!r}", "expected names like main")


def digest(*parts: object) -> str:
    """SHA-256 of JSON values, texts and bytes, told apart."""
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def of_policy(policy: Policy) -> str:
    """A policy's digest for a stage's key."""
    return digest(canonical(policy))


def of_folder(folder: Path, content: bool = True) -> str:
    """A folder's digest: names, modes, owners, links and bytes; without content sizes and times instead of bytes."""
    rows: list[object] = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        row: list[object] = [str(path.relative_to(folder)), status.st_mode, status.st_uid, status.st_gid]
        if path.is_symlink():
            row.append(str(path.readlink()))
        elif path.is_file():
            row.append(
                hashlib.sha256(path.read_bytes()).hexdigest()
                if content
                else (status.st_size, status.st_mtime_ns)
            )
        rows.append(row)
    return digest(rows)
