"""The bundle: CONTENTS.txt, facts.json and a file for each tool, in one tar.gz that says nothing of who made it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from ..node.model import Facts, InputError, to_json

FOLDER = "railwright-bundle/"
# The first member: what a bundle is known by.
CONTENTS = f"{FOLDER}CONTENTS.txt"
FACTS = f"{FOLDER}facts.json"
TOOLS = f"{FOLDER}tools/"


def members(facts: Facts) -> dict[str, bytes]:
    """Files of a bundle by name, without CONTENTS.txt.

    A tool's file begins with one line of JSON, its name, argv and exit code; then comes its output word for word.
    """
    files = {FACTS: _json({**to_json(facts), "tools": []}, indent=1)}
    for number, tool in enumerate(facts.tools, start=1):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", tool.name)[:60]
        head = _json({"name": tool.name, "argv": list(tool.argv), "code": tool.code})
        files[f"{TOOLS}{number:02}-{plain}.txt"] = head + tool.output.encode("utf-8", "backslashreplace")
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz of these files in this order, without times, owners and a name of its own."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def write_new(path: Path, data: bytes) -> None:
    """A new file that its owner alone may read, whole or not at all. Raises InputError where there is one already."""
    try:
        # O_EXCL: nothing is overwritten, and no link is followed to somewhere else.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InputError(str(path), "is there already", "nothing is overwritten: name a new file") from None
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from None
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        os.unlink(path)
        raise InputError(str(path), f"cannot be written: {error.strerror}", "is the disk full?") from None


def _json(data: object, indent: int | None = None) -> bytes:
    return (json.dumps(data, indent=indent) + "\n").encode()
