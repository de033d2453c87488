"""A lock of wheels: every package at one exact version, each with the hashes of its files.

The form is pip's own (pip documentation, "Secure installs", hash-checking mode), as `pip-compile --generate-hashes` and
`uv pip compile --generate-hashes` write it; what would let pip decide anything by itself is refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Optional

from .codec import InputError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PIN = re.compile(
    rf"({_NAME})(\[{_NAME}(?:,{_NAME})*\])?==([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:;\s*([ -~]+?))?\s*", re.ASCII
)
_HASH = re.compile(r"\s+--hash=", re.ASCII)
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_MOST = 5000


@dataclass(frozen=True)
class Pin:
    """One package. name: normalised (PEP 503). extras: as written ("[gpu]"). marker: where it holds, None: everywhere.
    hashes: SHA-256 of the files that are taken."""

    name: str
    version: str
    hashes: tuple[str, ...]
    extras: str = ""
    marker: Optional[str] = None

    @property
    def words(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def text(self) -> str:
        """The pin as pip reads it, in one line."""
        marker = f" ; {self.marker}" if self.marker else ""
        return f"{self.name}{self.extras}=={self.version}{marker}" + "".join(
            f" --hash=sha256:{one}" for one in self.hashes
        )


@dataclass(frozen=True)
class Lock:
    pins: tuple[Pin, ...]

    @property
    def text(self) -> str:
        """The lock as pip reads it: the same pins give the same bytes, however they were written."""
        return "".join(f"{pin.text}\n" for pin in self.pins)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def pin(self, name: str) -> Optional[Pin]:
        """The first pin of this package."""
        return next((pin for pin in self.pins if pin.name == normalised(name)), None)


def normalised(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str, where: str) -> Lock:
    """The lock of this text. Raises InputError with the number of the line."""
    pins: dict[tuple[str, Optional[str]], Pin] = {}
    for number, line in _lines(text):
        place = f"{where}, line {number}"
        pin = _pin(line, place)
        other = next((key for key in pins if key[0] == pin.name and None in (key[1], pin.marker)), None)
        if other is not None or (pin.name, pin.marker) in pins:
            raise InputError(place, f"{pin.name} is pinned twice", "leave one of the two")
        pins[(pin.name, pin.marker)] = pin
    if not pins:
        raise InputError(where, "names nothing", "give the text that pip-compile --generate-hashes wrote")
    if len(pins) > _MOST:
        raise InputError(where, f"has {len(pins)} packages", f"at most {_MOST} are read")
    return Lock(tuple(sorted(pins.values(), key=lambda pin: (pin.name, pin.marker or ""))))


def _lines(text: str) -> list[tuple[int, str]]:
    """Logical lines with the number of their first one; a line that ends in a backslash goes on."""
    found: list[tuple[int, str]] = []
    begun: Optional[tuple[int, str]] = None
    for number, raw in enumerate(text.splitlines(), 1):
        # One blank for many: what reads a pin tries every split of them.
        line = re.sub(r"[ \t]+", " ", re.sub(r"(^|\s)#.*$", "", raw)).strip()
        goes_on = line.endswith("\\")
        part = line[:-1].strip() if goes_on else line
        first, before = begun or (number, "")
        joined = f"{before} {part}".strip()
        begun = (first, joined) if goes_on else None
        if not goes_on and joined:
            found.append((first, joined))
    if begun is not None and begun[1]:
        found.append(begun)
    return found


def _pin(line: str, where: str) -> Pin:
    if line.startswith("-"):
        option = re.split(r"[\s=]", line, maxsplit=1)[0]
        raise InputError(where, f"{option} is an option", "a lock has pins with hashes only")
    head, *hashes = _HASH.split(line)
    match = _PIN.fullmatch(head)
    if match is None:
        # An address may hold a secret: of what was found only the package's name is told.
        name = re.match(_NAME, head)
        raise InputError(
            where,
            f"{name[0][:80] if name else 'this'} is not pinned to one version",
            "expected a form like torch==2.13.0 --hash=sha256:...; no range, no address, no folder",
        )
    words = f"{match[1]}=={match[3]}"
    if match[4] and re.search(r"(?:^|\s)-|[$;]", match[4]):
        raise InputError(
            where, f"{words} has something else in its marker", "expected a marker and hashes only"
        )
    if not hashes:
        raise InputError(where, f"{words} has no hash", "write the lock with --generate-hashes")
    found = []
    for word in hashes:
        one = _SHA256.fullmatch(word.strip())
        if one is None:
            raise InputError(
                where, f"{words} has a hash that is no sha256", "expected sha256: and 64 hex digits"
            )
        found.append(one[1])
    return Pin(normalised(match[1]), match[3], tuple(sorted(set(found))), match[2] or "", match[4])
