"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from railwright.node.model import InputError


def write_all(files: dict[Path, bytes]) -> None:
    """Replace these files: every one is complete on disk before the first takes its name. Raises InputError."""
    waiting: dict[Path, str] = {}
    path = next(iter(files), Path())
    try:
        for path, content in files.items():
            waiting[path] = _beside(path, content)
        for path in files:
            os.replace(waiting[path], path)
            del waiting[path]
        for folder in {path.parent for path in files}:
            _settle(folder)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written: {error.strerror}", "name a folder that you may write"
        ) from error
    finally:
        for temporary in waiting.values():
            os.unlink(temporary)


def _beside(path: Path, content: bytes) -> str:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            # A report is for others to read; mkstemp keeps it to its owner.
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _settle(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
