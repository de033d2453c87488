"""The boot program: `railwright.node` and `railwright.plan` in one file that a node's own Python runs.

The same sources give the same bytes on every controller, so that its digest can stand in a plan: members are stored,
not compressed (zlib's output differs between builds), in sorted order, with one fixed time and mode.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# What travels: the packages that need nothing but the standard library.
_PARTS = ("__init__.py", "node", "plan")
# The interpreter that the boot unit starts; the line only matters to a person who runs the file by hand.
_SHEBANG = b"#!/usr/bin/python3\n"
# An older Python could not even parse the packages, so this file is in the syntax of all of them.
_MAIN = b"""import sys

if sys.version_info < (3, 9):
    sys.exit("railwright needs Python 3.9 or later; this is %s" % sys.version.split()[0])

from railwright.node import bytecode

bytecode.use()

from railwright.node.__main__ import main

sys.exit(main())
"""
# The earliest time that a zip archive can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


@functools.cache
def build() -> bytes:
    """The program's bytes."""
    archive = io.BytesIO()
    archive.write(_SHEBANG)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as members:
        for name, data in sorted([("__main__.py", _MAIN), *_sources()]):
            member = zipfile.ZipInfo(name, _TIME)
            member.create_system = 3
            member.external_attr = 0o100644 << 16
            members.writestr(member, data)
    return archive.getvalue()


def digest() -> str:
    """SHA-256 of the program, in hexadecimal."""
    return hashlib.sha256(build()).hexdigest()


def blob() -> str:
    """The program as base64: what the one writer takes for a file that is named by its digest."""
    return base64.b64encode(build()).decode("ascii")


def _sources() -> list[tuple[str, bytes]]:
    paths: list[Path] = []
    for part in _PARTS:
        path = PACKAGE / part
        paths += [path] if path.is_file() else path.rglob("*.py")
    return [(f"railwright/{path.relative_to(PACKAGE).as_posix()}", path.read_bytes()) for path in paths]
