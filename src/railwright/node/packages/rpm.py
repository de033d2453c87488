"""rpm's record and dnf's answers (dnf 4, as RHEL 9 and Rocky 9 have it)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

from ..model import InputError
from .apt import Cause
from .change import Change

QUERY = ("rpm", "-qa", "--qf", r"%{NAME}\t%{EPOCHNUM}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n")
# dnf-plugins-core, plugins/versionlock.py: one pattern a line, "name-epoch:version-release.*"; ! excludes.
LOCK_LIST = "/etc/dnf/plugins/versionlock.list"
_LOCK = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9+._-]*)-(?:(?P<epoch>\d+):)?(?P<rest>[^-\s]+-[^-\s]+?)(?:\.\*)?"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*", re.ASCII)
_EVR = re.compile(r"(?:[0-9]+:)?[0-9A-Za-z][0-9A-Za-z.+~^_-]*-[0-9A-Za-z.+~^_]+", re.ASCII)
# dnf/cli/output.py of dnf 4.14, list_transaction: the headings of its table, by what they mean.
_COMES, _GOES, _OTHER = "comes", "goes", "other"
_HEADINGS = {
    "Installing": _COMES,
    "Installing dependencies": _COMES,
    "Installing weak dependencies": _COMES,
    "Installing group/module packages": _COMES,
    "Upgrading": _COMES,
    "Downgrading": _COMES,
    "Reinstalling": _COMES,
    "Removing": _GOES,
    "Removing dependent packages": _GOES,
    "Removing unused dependencies": _GOES,
    "Enabling module streams": _OTHER,
    "Switching module streams": _OTHER,
    "Disabling modules": _OTHER,
    "Resetting modules": _OTHER,
    "Skipping packages with conflicts": _OTHER,
    "Skipping packages with broken dependencies": _OTHER,
}
_HEADING = re.compile(r"([A-Z][A-Za-z/ ]+?)(?: .*)?:")


@dataclass(frozen=True)
class Installed:
    """One name. versions: all that stand there, for a kernel has several. held: the version lock has it at such a
    version. listed: it has it at any."""

    versions: tuple[str, ...]
    held: bool = False
    listed: bool = False

    @property
    def cell(self) -> Optional[str]:
        return " ".join(self.versions) or None


def read_query(
    text: str, locked: Optional[Mapping[str, str]] = None, where: str = "rpm -qa"
) -> dict[str, Installed]:
    """Packages by name, of what QUERY prints, and names that are locked only. locked: versions by name; one that is
    locked at another version than stands there is not held. Raises InputError."""
    locks = locked or {}
    versions: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) != 4 or _NAME.fullmatch(parts[0]) is None or not parts[1].isdigit():
            raise InputError(
                where, f"found {line[:120]!r}", "expected name, epoch, version-release, architecture"
            )
        name, epoch, rest, _ = parts
        version = rest if epoch == "0" else f"{epoch}:{rest}"
        if _EVR.fullmatch(version) is None:
            raise InputError(where, f"found {line[:120]!r}", "expected a version and a release")
        known = versions.get(name, ())
        versions[name] = (*known, version) if version not in known else known
    found = {
        name: Installed(those, locks.get(name) in those, listed=name in locks)
        for name, those in versions.items()
    }
    return {**found, **{name: Installed((), True, listed=True) for name in locks if name not in found}}


def read_locks(text: str) -> dict[str, str]:
    """Versions at which names are locked. Lines that exclude one, and what is no pattern, hold nothing."""
    found = {}
    for line in text.splitlines():
        match = _LOCK.fullmatch(line.strip())
        if match is not None:
            epoch = "" if match["epoch"] in (None, "0") else f"{match['epoch']}:"
            found[match["name"]] = epoch + match["rest"]
    return found


def read_transaction(
    text: str, installed: Mapping[str, Installed], where: str = "dnf --assumeno"
) -> tuple[Change, ...]:
    """What dnf's table says that it would do; () where it says that there is nothing. Raises InputError."""
    found: dict[str, Change] = {}
    for kind, cells in _rows(text, where):
        if kind == _OTHER:
            continue
        name, version = cells[0], cells[2]
        if _NAME.fullmatch(name) is None or _EVR.fullmatch(version) is None:
            raise InputError(
                where, f"found the row {' '.join(cells)[:120]!r}", "expected package, arch, version"
            )
        old = installed[name].cell if name in installed else None
        new = version if kind == _COMES else None
        if name not in found or new is not None:
            found[name] = Change(name, old, new, cells[3] if new is not None and len(cells) > 3 else None)
    return tuple(found.values())


def _rows(text: str, where: str) -> Iterator[tuple[str, list[str]]]:
    kind: Optional[str] = None
    begun: list[str] = []
    for line in text.splitlines():
        if line.startswith("Transaction Summary"):
            break
        if line and not line[0].isspace():
            heading = _HEADING.fullmatch(line.strip())
            kind = (
                _HEADINGS.get(heading[1])
                if heading is not None
                else (None if begun or kind is None else kind)
            )
            begun = []
            continue
        cells = [*begun, *line.split()]
        if kind is None or not cells:
            continue
        # A name that is too long for its column has a line of its own.
        if len(cells) < 3 and kind != _OTHER:
            begun = cells
            continue
        begun = []
        yield kind, cells
    if begun:
        raise InputError(where, f"the row of {begun[0]!r} is cut", "expected package, arch, version")


_KNOWN = (
    ("hash", r"incorrect checksum|checksum does.?n.t match",
     "what was fetched is not what the index tells ({0})", "refresh the index; behind a caching proxy use https"),
    ("disk-full", r"No space left on device|needs (\d+\w+) (?:more space )?on the (\S+) filesystem|Disk Requirements",
     "the disk is full ({0})", "free space: df -h / /var /boot; dnf clean packages"),
    ("lock", r"Waiting for process with pid (\d+)|[Ff]ailed to obtain the transaction lock",
     "another program holds the package lock ({0})", "wait until it has ended, then run again"),
    ("package", r"(?:No match for argument|Unable to find a match): (\S+)",
     "the repositories that dnf knows have no {1}",
     "correct name and version, or name the repository in policy.software.sources"),
    ("bad-signature", r"GPG check FAILED|repomd\.xml signature could not be verified|Bad GPG signature",
     "a signature does not fit ({0})", "check the key's fingerprint; do not turn the check off"),
    ("fetch", r"Failed to download metadata for repo '([^']+)'|Cannot download (\S+)",
     "a repository cannot be read ({0})", "see whether the node reaches it; else name a mirror or an offline folder"),
    ("script", r"Error in (?:PREIN|POSTIN|POSTTRANS) scriptlet in rpm package (\S+)",
     "the installation of {1} failed", "see /var/log/dnf.rpm.log and, for a kernel module, its make.log"),
    ("broken", r"Problem(?: \d+)?: (.+)", "packages do not go together ({1})",
     "name every package of the branch with its version, and those of the old branch with null"),
)  # fmt: skip


def cause_of(text: str) -> Optional[Cause]:
    """Why dnf failed, as far as its words tell."""
    for code, pattern, why, remedy in _KNOWN:
        match = re.search(pattern, text)
        if match is not None:
            caught = next((group for group in match.groups() if group), match[0])
            return Cause(code, why.replace("{0}", match[0][:200]).replace("{1}", caught[:200]), remedy)
    return None
