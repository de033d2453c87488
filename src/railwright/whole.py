"""Files of the controller, written whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from railwright.node.durable import sync


def replace(files: Mapping[Path, bytes], mode: int | None = None) -> None:
    """Replaces these files: every one is complete on disk before the first takes its name.

    mode: None is as this process makes its files. Raises OSError with the file that could not be written.
    """
    waiting: dict[Path, str] = {}
    path = next(iter(files), Path())
    try:
        for path, content in files.items():
            waiting[path] = _beside(path, content, mode)
        for path in files:
            os.replace(waiting[path], path)
            del waiting[path]
        for path in {path.parent: path for path in files}.values():
            sync(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for temporary in waiting.values():
            os.unlink(temporary)


def _beside(path: Path, content: bytes, mode: int | None) -> str:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            # mkstemp keeps a file to its owner.
            os.fchmod(file.fileno(), _usual_mode() if mode is None else mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _usual_mode() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
