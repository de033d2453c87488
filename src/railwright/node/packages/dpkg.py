"""dpkg's record of what is installed: /var/lib/dpkg/status (deb822(5), dpkg-query(1))."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ..model import InputError

STATUS = "/var/lib/dpkg/status"
UPDATES = "/var/lib/dpkg/updates"
# lib/dpkg/pkg-show.c of dpkg 1.21: the third word of Status.
WHOLE = "installed"
ABSENT = ("not-installed", "config-files")
HALF_WAY = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
_WANTED = ("unknown", "install", "hold", "deinstall", "purge")
FLAW = "reinstreq"
_FLAGS = ("ok", FLAW)
_FIELD = re.compile(r"^(Package|Status|Version|Architecture):[ \t]*(.*)$", re.MULTILINE)
NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?", re.ASCII)
# deb-version(7): an epoch, a version, a revision.
VERSION = re.compile(r"(?:[0-9]+:)?[0-9A-Za-z][0-9A-Za-z.+~-]*", re.ASCII)


@dataclass(frozen=True)
class Installed:
    """One package. version None: nothing of it is unpacked. status: "installed", or how far it came. flawed: dpkg wants
    it installed anew before it does anything else with it."""

    version: Optional[str]
    status: str = WHOLE
    held: bool = False
    architecture: Optional[str] = None
    flawed: bool = False

    @property
    def torn(self) -> bool:
        """Whether dpkg was killed while it was unpacked; for a moment after that it is "unpacked" and flawed."""
        return self.flawed or self.status == "half-installed"

    @property
    def listed(self) -> bool:
        """Whether it is among the held ones, be it at another version."""
        return self.held

    @property
    def cell(self) -> Optional[str]:
        """In one text: the version, and what is wrong where it is not whole; None where it is not there."""
        if self.version is None or self.status in ABSENT:
            return None
        if self.status == WHOLE:
            return f"{self.version} {FLAW}" if self.flawed else self.version
        return f"{self.version} {self.status}"


def read_status(text: str, native: Optional[str] = None, where: str = STATUS) -> dict[str, Installed]:
    """Packages by name; one of another architecture than `native` as "name:arch". Raises InputError."""
    found = {}
    for number, stanza in enumerate(_stanzas(text), start=1):
        fields = {match[1]: match[2].strip() for match in _FIELD.finditer(stanza)}
        name, one = _package(fields, f"{where}, package {number}")
        if native and one.architecture not in (native, "all", None):
            name = f"{name}:{one.architecture}"
        found[name] = one
    return found


def with_updates(
    found: Mapping[str, Installed], updates: Iterable[str], native: Optional[str]
) -> dict[str, Installed]:
    """The record with what dpkg has noted since and not yet put into it, in order: a dpkg that was killed leaves that.

    Raises InputError.
    """
    now = dict(found)
    for text in updates:
        now.update(read_status(text, native, UPDATES))
    return now


def read_record(
    text: str, noted: Sequence[str], where: str = STATUS
) -> tuple[dict[str, Installed], Optional[str]]:
    """All of dpkg's record, and dpkg's own architecture. noted: what lies beside it, in order. Raises InputError."""
    native = native_architecture(text)
    return with_updates(read_status(text, native, where), noted, native), native


def interrupted(found: Mapping[str, Installed], noted: Sequence[str]) -> tuple[str, ...]:
    """What an earlier dpkg did not bring to its end."""
    return (*half_way(found), *(["dpkg's own record"] if noted else []))


def half_way(packages: Mapping[str, Installed]) -> tuple[str, ...]:
    """What dpkg did not bring to its end, as "name status"; packages that only wait for a trigger are whole."""
    return tuple(
        f"{name} {one.status}"
        for name, one in packages.items()
        if one.status in HALF_WAY and not one.status.startswith("triggers-")
    )


def native_architecture(text: str) -> Optional[str]:
    """dpkg's own architecture, by its own package in its record."""
    for stanza in _stanzas(text):
        if stanza.startswith("Package: dpkg\n"):
            fields = {match[1]: match[2].strip() for match in _FIELD.finditer(stanza)}
            return fields.get("Architecture")
    return None


def _package(fields: Mapping[str, str], where: str) -> tuple[str, Installed]:
    name = fields.get("Package", "")
    if NAME.fullmatch(name) is None:
        raise InputError(where, f"found the name {name[:80]!r}", "expected dpkg's record; see dpkg --audit")
    words = fields.get("Status", "").split()
    known = (_WANTED, _FLAGS, (WHOLE, *ABSENT, *HALF_WAY))
    if len(words) != 3 or any(word not in those for word, those in zip(words, known)):
        raise InputError(
            f"{where} ({name}).Status",
            f"found {' '.join(words)[:80]!r}",
            "expected a form like 'hold ok installed'",
        )
    version = fields.get("Version") or None
    if version is not None and VERSION.fullmatch(version) is None:
        raise InputError(f"{where} ({name}).Version", f"found {version[:80]!r}", "expected a version")
    if version is None and words[2] not in ABSENT:
        raise InputError(f"{where} ({name}).Version", "missing", f"expected one, for it is {words[2]}")
    architecture, flawed = fields.get("Architecture"), words[1] == FLAW
    return name, Installed(version, words[2], words[0] == "hold", architecture, flawed)


def _stanzas(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n\n", start)
        end = len(text) if end < 0 else end
        stanza = text[start:end].lstrip("\n")
        if stanza.strip():
            yield stanza
        start = end + 2
