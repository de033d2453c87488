"""What the dynamic linker reads of a library: the names that it needs, its own, and where it looks for them.

Layout: System V ABI, chapters 4 and 5 (ELF header, program headers, dynamic section). Nothing is run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Optional

_PT_LOAD, _PT_DYNAMIC = 1, 2
_NULL, _NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 0, 1, 5, 10, 14, 15, 29
# A forged header must not ask for more than any real library has.
_MOST_HEADERS = 128
_LARGEST = 1 << 40
_MOST_DYNAMIC = 1 << 16
_MOST_NAME = 4096


@dataclass(frozen=True)
class Elf:
    """kind: (bits, machine): an object loads only those of its own kind. rpath, runpath: as they stand."""

    kind: tuple[int, int]
    needed: tuple[str, ...] = ()
    soname: Optional[str] = None
    rpath: Optional[str] = None
    runpath: Optional[str] = None


def read(file: BinaryIO) -> Optional[Elf]:
    """The object's dynamic section; None where the file is no ELF object, is cut, or says what cannot be."""
    try:
        return _read(file)
    except (struct.error, ValueError, OverflowError):
        return None


def _read(file: BinaryIO) -> Optional[Elf]:
    head = file.read(64)
    if len(head) < 52 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    wide = head[4] == 2
    order = "<" if head[5] == 1 else ">"
    machine = struct.unpack_from(order + "H", head, 18)[0]
    if wide:
        start = struct.unpack_from(order + "Q", head, 32)[0]
        size, count = struct.unpack_from(order + "HH", head, 54)
    else:
        start = struct.unpack_from(order + "I", head, 28)[0]
        size, count = struct.unpack_from(order + "HH", head, 42)
    kind = (64 if wide else 32, machine)
    loads, dynamic = [], None
    for number in range(min(count, _MOST_HEADERS)):
        entry = _at(file, start + number * size, size)
        if wide:
            what, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", entry)
        else:
            what, offset, address, _, length = struct.unpack_from(order + "IIIII", entry)
        if what == _PT_LOAD:
            loads.append((address, offset, length))
        elif what == _PT_DYNAMIC:
            dynamic = (offset, min(length, _MOST_DYNAMIC))
    if dynamic is None:
        return Elf(kind)
    pair = order + ("qQ" if wide else "iI")
    values: dict[int, list[int]] = {}
    data = _at(file, *dynamic)
    for tag, value in struct.iter_unpack(
        pair, data[: len(data) // struct.calcsize(pair) * struct.calcsize(pair)]
    ):
        if tag == _NULL:
            break
        values.setdefault(tag, []).append(value)
    if _STRTAB not in values or _STRSZ not in values:
        return Elf(kind)
    table, length = _file_offset(loads, values[_STRTAB][0]), values[_STRSZ][0]

    def names(tag: int) -> list[str]:
        return [_name(file, table + value, min(_MOST_NAME, length - value)) for value in values.get(tag, ())]

    def name(tag: int) -> Optional[str]:
        return next(iter(names(tag)), None)

    return Elf(kind, tuple(names(_NEEDED)), name(_SONAME), name(_RPATH), name(_RUNPATH))


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    _seek(file, offset)
    data = file.read(size)
    if len(data) < size:
        raise ValueError("cut")
    return data


def _name(file: BinaryIO, offset: int, most: int) -> str:
    if most <= 0:
        raise ValueError("a name outside of its table")
    _seek(file, offset)
    return file.read(most).partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _seek(file: BinaryIO, offset: int) -> None:
    if not 0 <= offset < _LARGEST:
        raise ValueError("no place of a file")
    file.seek(offset)


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, length in loads:
        if start <= address < start + length:
            return address - start + offset
    raise ValueError("an address that no segment holds")
