"""What takes long to make lies in a cache outside the checkout, under a name that its inputs decide."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

HOME = Path(os.environ.get("RAILWRIGHT_LAB_CACHE", "/var/cache/railwright"))


def key(*inputs: bytes) -> str:
    """Changes when any input does."""
    digest = hashlib.sha256()
    for one in inputs:
        digest.update(len(one).to_bytes(8, "big") + one)
    return digest.hexdigest()[:16]


def contents(paths: Iterable[Path]) -> bytes:
    """The names and the bytes of these files and of those below these folders."""
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return b"".join(
        f"{file.name}\0{file.stat().st_size}\0".encode() + file.read_bytes()
        for file in found
        if file.is_file() and file.suffix != ".pyc"
    )


def place(kind: str, name: str) -> Path:
    return HOME / f"{kind}-{name}"


def kept(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name, made by `make` where it is absent: all or none of it. One makes it, others wait."""
    there = place(kind, name)
    if there.is_dir():
        return there
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / f"{kind}-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there.is_dir():
            scratch = HOME / f"{kind}-{name}.partial"
            remove(scratch)
            try:
                make(scratch)
                scratch.rename(there)
            except BaseException:
                remove(scratch)
                raise
    return there


def remove(folder: Path) -> None:
    """Takes a folder away if it is there, and never what is mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=True)
