"""The files of a report."""

from __future__ import annotations

from pathlib import Path

from railwright import whole
from railwright.node.model import InputError


def write_all(files: dict[Path, bytes]) -> None:
    """Replace these files: every one is complete on disk before the first takes its name. Raises InputError."""
    try:
        # A report is for others to read.
        whole.replace(files, mode=0o644)
    except OSError as error:
        raise InputError(
            error.filename, f"cannot be written: {error.strerror}", "name a folder that you may write"
        ) from error
