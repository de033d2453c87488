"""A capture's text, bounded: what it is called in errors, and its lines."""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from railwright.node.model import InputError

# Facts of a large machine with all their GIDs, interrupts and tools' outputs stay far below; more is no capture of one
# machine. One character outside ASCII makes Python hold four bytes for each.
MAX_BYTES = 16 * 1024 * 1024
# A topology file or a matrix is below 100 KB; a log around it may be longer.
MAX_CHARACTERS = 4 * 1024 * 1024

# Windows shells write UTF-16 with a byte order mark when output is redirected.
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

_PACKED = (
    (b"\x1f\x8b", "packed with gzip"),
    (b"BZh", "packed with bzip2"),
    (b"\xfd7zXZ", "packed with xz"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"PK\x03\x04", "a zip archive"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
)


@dataclass(frozen=True)
class Source:
    """One capture: its name for errors ("topo.xml", "stdin") and its whole text."""

    name: str
    text: str

    def at(self, line: int) -> str:
        """The place of a line, counted from 1, as errors print it."""
        return f"{self.name}:{line}"

    def refuse_bulk(self) -> None:
        """Raises InputError for a text that is too long to be a topology file or a paste of a matrix."""
        if len(self.text) > MAX_CHARACTERS:
            raise InputError(
                self.name,
                f"larger than {MAX_CHARACTERS // 2**20} MiB",
                "cut away what stands around the capture",
            )


def load(path: Path) -> Source:
    """The text of a file, or of stdin for "-".

    Raises InputError when it cannot be read, is larger than 16 MiB, is empty, or is no text.
    """
    if str(path) == "-":
        return decode("stdin", sys.stdin.buffer.read(MAX_BYTES + 1))
    try:
        with path.open("rb") as file:
            return decode(str(path), _bounded(file))
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error


def decode(name: str, data: bytes) -> Source:
    """The text of these bytes. Raises InputError as `load`."""
    if len(data) > MAX_BYTES:
        raise InputError(
            name,
            f"larger than {MAX_BYTES // 2**20} MiB",
            "give the capture of one machine, without anything around it",
        )
    for magic, what in _PACKED:
        if data.startswith(magic):
            raise InputError(
                name,
                f"is {what}",
                "unpack it and give the capture itself, or the directory with sys and proc",
            )
    encoding = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}:{line}",
            f"is not {encoding} text: byte {error.start}",
            "give a capture as text, saved as UTF-8",
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{name}:{line}", "holds a NUL byte, so it is no text", "give a capture as text")
    if not text or text.isspace():
        raise InputError(name, "is empty", "give a capture of a machine")
    return Source(name, text)


def _bounded(file: BinaryIO) -> bytes:
    return file.read(MAX_BYTES + 1)
