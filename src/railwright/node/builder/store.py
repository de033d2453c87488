"""Folders of files with a manifest: whole, or not there; and what was torn or tampered with is noticed.

A folder is made beside its place and takes its name at the end, after everything in it is on the disk. It is believed
only while every file has the digest that its manifest says, and no other file is there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ..durable import digest_of, sync
from ..model import InputError

MANIFEST = "manifest.json"
SCHEMA = "railwright.build/1"
_MANIFEST_BYTES = 16 << 20
_PART = ".part"


def text_digest(value: Any) -> str:
    """SHA-256 of a value's JSON with its keys in order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def publish(folder: Path, files: Mapping[str, Path], said: Mapping[str, Any]) -> str:
    """The folder with these files and a manifest that holds `said`; the manifest's digest. Raises OSError.

    A killed run leaves a folder whose name ends in ".part", which the next one takes away.
    """
    part = folder.with_name(folder.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o755)
    listed = {}
    for name, path in sorted(files.items()):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, part / name)
        (part / name).chmod(0o644)
        listed[name] = {"sha256": digest_of(part / name), "bytes": (part / name).stat().st_size}
    text = json.dumps({"schema": SCHEMA, **said, "files": listed}, indent=2, sort_keys=True) + "\n"
    (part / MANIFEST).write_text(text, encoding="utf-8")
    (part / MANIFEST).chmod(0o644)
    _put_in_place(part, folder)
    return hashlib.sha256(text.encode()).hexdigest()


def adopt(folder: Path, files: Mapping[str, Path], sha256: str) -> None:
    """The folder with files that came from elsewhere, a manifest of this digest among them.

    Raises InputError for what is not as that manifest says, and OSError; then the folder is as it was.
    """
    part = folder.with_name(folder.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o755)
    for name, path in sorted(files.items()):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, part / name)
        (part / name).chmod(0o644)
    try:
        manifest, why = read(part)
        if manifest is None or manifest_digest(part) != sha256:
            raise InputError(
                str(folder),
                why or "its manifest is another one",
                "fetch it again; see who changes it on the way",
            )
        _put_in_place(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read(folder: Path) -> tuple[Optional[dict[str, Any]], str]:
    """The manifest of a folder that is whole, and ""; else None, and why it is not believed ("": there is none)."""
    if not folder.exists():
        return None, ""
    try:
        manifest = _manifest(folder)
        listed = manifest["files"]
        there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
        beside = sorted(there - set(listed) - {MANIFEST})
        if beside:
            return None, f"{folder}: {beside[0]} is no part of it"
        for name, row in listed.items():
            path = folder / name
            if name not in there or not stat.S_ISREG(path.lstat().st_mode):
                return None, f"{folder}: {name} is missing"
            if digest_of(path) != row["sha256"]:
                return None, f"{folder}: {name} is not what its manifest says"
    except (OSError, InputError, KeyError, TypeError, AttributeError) as error:
        return None, f"{folder}: its manifest cannot be used ({type(error).__name__})"
    return manifest, ""


def manifest_digest(folder: Path) -> str:
    """Raises OSError."""
    return digest_of(folder / MANIFEST)


def files_of(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Digest by name of all files of a folder that is whole, the manifest's among them. Raises OSError."""
    named = {name: row["sha256"] for name, row in manifest["files"].items()}
    return {**named, MANIFEST: manifest_digest(folder)}


def _put_in_place(part: Path, folder: Path) -> None:
    for path in (*part.rglob("*"), part):
        sync(path)
    aside = folder.with_name(folder.name + ".torn")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    part.rename(folder)
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, Any]:
    with (folder / MANIFEST).open("rb") as file:
        data = file.read(_MANIFEST_BYTES + 1)
    try:
        manifest = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(str(folder / MANIFEST), "is no JSON", "expected a manifest") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(str(folder / MANIFEST), "is no manifest of ours", f"expected {SCHEMA}")
    return manifest
