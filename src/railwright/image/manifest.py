"""What is in the image: packages, every file's digest, the stages' words, and a bill of materials by `debsbom`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railwright.node.model import InputError
from railwright.node.packages import dpkg

from .inside import Room, run
from .landing import landing
from .recipe import Recipe

SCHEMA = "railwright.image/1"
FILES = "files.sha256"
# In an image: what `show` tells of it.
CARD = "etc/railwright/image.json"
# What two bakes of the same inputs may differ in, and why.
DIFFERS = (
    "the archive: it may hold other versions when the next bake asks it; name a snapshot of it in the recipe",
    "modules that DKMS builds: each bake signs them by a key that it makes and throws away",
    "what a package's own scripts write without regard for SOURCE_DATE_EPOCH, in packages that the recipe adds",
)
_TYPES = {"spdx": "spdx", "cyclonedx": "cdx"}


def card(recipe: Recipe, key: str) -> str:
    """The file by which a node knows of which image it is."""
    page = {"schema": SCHEMA, "name": recipe.name, "key": key, "epoch": recipe.epoch}
    return json.dumps(page, sort_keys=True, separators=(",", ":")) + "\n"


def packages(tree: Path) -> list[dict[str, Any]]:
    """The packages of a tree's record, by name. Of rpm's record see `rpm_packages`."""
    status = landing(tree, "var/lib/dpkg/status")
    if status.is_symlink() or not status.is_file():
        return []
    text = status.read_text("utf-8", "backslashreplace")
    native = dpkg.native_architecture(text)
    known = dpkg.read_status(text, native, str(status))
    return [
        {"name": name, "version": one.version, "held": one.held}
        for name, one in sorted(known.items())
        if one.cell is not None
    ]


def rpm_packages(room: Room) -> list[dict[str, Any]]:
    """As `packages`, where rpm keeps the record."""
    if room.has("rpm") is None:
        return []
    out = room.run("rpm", "-qa", "--qf", "%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\\n").decode()
    rows = sorted(line.split("\t") for line in out.splitlines() if "\t" in line)
    return [{"name": name, "version": version, "held": None} for name, version in rows]


def digests(tree: Path) -> Iterator[tuple[str, str]]:
    """Each regular file's SHA-256 and path, each link's target, in order."""
    for where, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if Path(where, one).is_symlink())]):
            file = Path(where, name)
            path = str(file.relative_to(tree))
            if file.is_symlink():
                yield f"-> {os.readlink(file)}", path
            elif file.is_file():
                with file.open("rb") as data:
                    yield _digest(data), path


def write_files(tree: Path, place: Path) -> int:
    """Writes the list of digests; how many lines it has."""
    rows = [f"{digest}  {path}\n" for digest, path in digests(tree)]
    place.write_text("".join(rows), "utf-8", "surrogateescape")
    return len(rows)


def checksum(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as data:
        return {"bytes": path.stat().st_size, "sha256": _digest(data)}


def sbom(recipe: Recipe, tree: Path, place: Path, key: str, program: str | None) -> list[str]:
    """Writes the bills that the recipe asks for; their names. Raises InputError where `debsbom` is not there."""
    if not recipe.sbom:
        return []
    if not (tree / "var/lib/dpkg/status").is_file():
        raise InputError(
            "the bill of materials",
            "debsbom reads dpkg's record, and this root file system has rpm's",
            "set `sbom: []` in the recipe: the manifest lists its packages all the same",
        )
    name = program or "debsbom"
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise InputError(
            "debsbom",
            "is not installed here, and the recipe asks for a bill of materials",
            "install it by constraints-image.txt into an environment of its own (docs/image.md) and name it by "
            "--debsbom, or set `sbom: []` in the recipe",
        )
    moment = datetime.fromtimestamp(recipe.epoch, UTC).isoformat()
    identity = uuid.uuid5(uuid.NAMESPACE_OID, key)
    kinds = [word for kind in recipe.sbom for word in ("-t", _TYPES[kind])]
    run(
        [
            found, "generate", "-r", str(tree), "-o", str(place / "sbom"), *kinds, "--distro-name", recipe.name,
            "--timestamp", moment, "--cdx-serialnumber", str(identity), "--spdx-namespace",
            f"https://spdx.org/spdxdocs/{recipe.name}-{identity}",
        ],
        # It lists what it keeps in sets.
        env={**os.environ, "PYTHONHASHSEED": "0"},
        named="debsbom",
    )  # fmt: skip
    return sorted(path.name for path in place.glob("sbom.*"))


def _digest(data: Any) -> str:
    total = hashlib.sha256()
    while block := data.read(1 << 20):
        total.update(block)
    return total.hexdigest()
