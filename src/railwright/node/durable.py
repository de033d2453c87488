"""Files that must last and must be what they are said to be: written out to the disk, and known by their digest."""

from __future__ import annotations

import hashlib
import os
from typing import Union

_CHUNK = 1 << 20
Place = Union[str, "os.PathLike[str]"]


def sync(path: Place) -> None:
    """Writes a file, or a folder's list of names, out to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(path: Place) -> str:
    """SHA-256 of a file of any size, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
