"""The bundle that `railwright collect` writes: facts of a machine that nobody may reach."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
import zlib
from pathlib import Path

from railwright.collect.bundle import CONTENTS, FACTS, TOOLS
from railwright.collect.tools import BUDGET_BYTES
from railwright.node.model import Facts, InputError, Tool, from_json

from .facts_json import read_facts_json
from .source import MAX_BYTES, decode
from .sysfs_archive import BoundedHeader

_GZIP = b"\x1f\x8b"
_TAR_BLOCK = 512
# Facts at their largest, and what `collect` takes of all tools together.
_MAX_UNPACKED = MAX_BYTES + BUDGET_BYTES
_MAX_MEMBERS = 200
_PIECE = 4 * 1024 * 1024
_TOOL = re.compile(re.escape(TOOLS) + r"[A-Za-z0-9_.-]{1,80}\.txt", re.ASCII)
_REMEDY = "give the file as `railwright collect` wrote it"


def is_bundle(path: Path) -> bool:
    """Whether this file begins as a bundle does. False for what cannot be read: another reader says why."""
    try:
        # Opening a FIFO would wait for a writer.
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(2 * _TAR_BLOCK)
        start = zlib.decompressobj(wbits=31).decompress(head, _TAR_BLOCK) if head.startswith(_GZIP) else b""
    except (OSError, zlib.error):
        return False
    return start.startswith(CONTENTS.encode() + b"\0")


def read_bundle(path: Path) -> Facts:
    """The facts in a bundle, with the tools' outputs.

    Raises InputError that names the member: damage, something that no bundle holds, no facts.
    """
    with _unpack(path) as unpacked:
        files = _members(str(path), unpacked)
    if FACTS not in files:
        raise InputError(str(path), f"holds no {FACTS}", _REMEDY)
    facts = read_facts_json(decode(f"{path}: {FACTS}", files.pop(FACTS)))
    # One after the other leaves the table as it becomes text, so that both are never there of all.
    tools = tuple(_tool(f"{path}: {name}", files.pop(name)) for name in sorted(files) if name != CONTENTS)
    witnesses = tuple(dataclasses.replace(witness, source=str(path)) for witness in facts.witnesses)
    return dataclasses.replace(facts, witnesses=witnesses, tools=tools)


def _unpack(path: Path) -> io.BytesIO:
    try:
        with path.open("rb") as file:
            packed = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error
    if len(packed) > MAX_BYTES:
        raise InputError(str(path), f"larger than {MAX_BYTES // 2**20} MiB", _REMEDY)
    stream = zlib.decompressobj(wbits=31)
    unpacked = io.BytesIO()
    rest = packed
    try:
        # Piece by piece: asked for all at once, zlib holds several times what it gives.
        while rest and not stream.eof:
            unpacked.write(stream.decompress(rest, _PIECE))
            rest = stream.unconsumed_tail
            if unpacked.tell() > _MAX_UNPACKED:
                raise InputError(str(path), f"unpacks to more than {_MAX_UNPACKED // 2**20} MiB", _REMEDY)
    except zlib.error as error:
        raise InputError(str(path), f"is damaged: {error}", _REMEDY) from error
    if not stream.eof:
        raise InputError(str(path), "is cut", _REMEDY)
    if stream.unused_data:
        raise InputError(str(path), "has more after its end", _REMEDY)
    unpacked.seek(0)
    return unpacked


def _members(name: str, unpacked: io.BytesIO) -> dict[str, bytes]:
    """Nothing is ever unpacked to disk; still, a member that no bundle holds is refused and named."""
    found: dict[str, bytes] = {}
    try:
        # "r:" takes no compression inside the compression.
        with tarfile.open(fileobj=unpacked, mode="r:", tarinfo=BoundedHeader) as archive:
            for member in archive:
                where = f"{name}: {member.name[:80]!r}"
                if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.pax_headers:
                    raise InputError(where, "is no plain file", _REMEDY)
                if member.name not in {CONTENTS, FACTS} and not _TOOL.fullmatch(member.name):
                    raise InputError(where, "does not belong into a bundle", _REMEDY)
                if member.name in found:
                    raise InputError(where, "stands twice", _REMEDY)
                if len(found) == _MAX_MEMBERS:
                    raise InputError(name, f"holds more than {_MAX_MEMBERS} files", _REMEDY)
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
                if len(content) != member.size:
                    raise InputError(where, f"is cut: {len(content)} of {member.size} bytes", _REMEDY)
                found[member.name] = content
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(name, f"is damaged: {error}", _REMEDY) from error
    return found


def _tool(name: str, data: bytes) -> Tool:
    try:
        text = data.decode("utf-8")
        head, _, output = text.partition("\n")
        first = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:1", f"is no line of JSON: {error}", _REMEDY) from error
    if not isinstance(first, dict) or set(first) != {"name", "argv", "code"}:
        raise InputError(f"{name}:1", "does not say name, argv and code", _REMEDY)
    return from_json(Tool, {**first, "output": output}, name)
