"""apt's answers: what a simulated transaction would do, and why a real one failed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from ..model import InputError
from .change import Change

# apt-private/private-output.cc and algorithms.cc of apt 2.6: "Inst NAME [OLD] (NEW ORIGIN [ARCH])", "Remv NAME [OLD]".
_INST = re.compile(r"Inst (\S+)(?: \[([^\]\s]+)\])? \((\S+)(?: ([^\[]*?))? ?\[[^\]]+\]\).*")
_REMV = re.compile(r"(?:Remv|Purg) (\S+)(?: \[([^\]\s]+)\])?.*")
_ACTS = re.compile(r"(?:Inst|Remv|Purg|Conf)\b")


def read_simulation(text: str, where: str = "apt-get -s") -> tuple[Change, ...]:
    """What `apt-get -s` says that it would do, in its order. Raises InputError for a line of it that is none."""
    found: dict[str, Change] = {}
    for line in text.splitlines():
        if not _ACTS.match(line):
            continue
        inst, remv = _INST.fullmatch(line), _REMV.fullmatch(line)
        if inst is not None:
            found[inst[1]] = Change(inst[1], inst[2], inst[3], (inst[4] or "").strip() or None)
        elif remv is not None:
            found.setdefault(remv[1], Change(remv[1], remv[2], None))
        elif not line.startswith("Conf "):
            raise InputError(
                where, f"found {line[:120]!r}", "expected a form like 'Inst NAME [OLD] (NEW ORIGIN)'"
            )
    return tuple(found.values())


@dataclass(frozen=True)
class Cause:
    """Why apt failed, in a sentence, and what to do. code: a word for the kind of cause."""

    code: str
    why: str
    remedy: str


@dataclass(frozen=True)
class _Known:
    code: str
    pattern: re.Pattern[str]
    why: str
    remedy: str


def _known(code: str, pattern: str, why: str, remedy: str) -> _Known:
    return _Known(code, re.compile(pattern, re.MULTILINE), why, remedy)


# The first that fits is told; {1} is what the pattern caught.
_KNOWN = (
    _known(
        "disk-full",
        r"(?:No space left on device|You don't have enough free space in (\S+)|not enough disk space)",
        "the disk is full ({1})",
        "free space: df -h / /var /boot; apt-get clean",
    ),
    _known(
        "lock",
        r"Could not (?:get|open) lock (\S+?)\.?(?: .*)?$",
        "another program holds the package lock ({1})",
        "wait until it has ended, then run again",
    ),
    _known(
        "interrupted",
        r"dpkg was interrupted",
        "an earlier dpkg was interrupted",
        "run dpkg --configure -a on the node and see what it says",
    ),
    _known(
        "torn-unknown",
        r"E: The package (\S+) needs to be reinstalled, but I can't find an archive for it",
        "the package {1} was torn while it was unpacked, and no archive that apt knows has it",
        "name its archive in policy.software.sources; or take it away: dpkg --remove --force-remove-reinstreq",
    ),
    _known(
        "torn",
        r"error processing package (\S+) [^\n]*\n +package is in a very bad inconsistent state",
        "the package {1} was torn while it was unpacked",
        "install it again: apt-get install --reinstall",
    ),
    _known(
        "version",
        r"E: Version '([^']+' for '[^']+)' was not found",
        "the archives that apt knows have no version '{1}'",
        "see apt-cache policy; correct the version, or the archive's address in policy.software.sources",
    ),
    _known(
        "package",
        r"E: (?:Unable to locate package |Package '?)(\S+?)'?(?: has no installation candidate)?$",
        "the archives that apt knows have no package {1}",
        "correct the name (they differ from archive to archive), or name the archive in policy.software.sources",
    ),
    _known(
        "expired-key",
        r"EXPKEYSIG (\S+)",
        "the archive's signing key {1} has expired",
        "get the vendor's new key, check its fingerprint and put it into policy.software.sources",
    ),
    _known(
        "no-key",
        r"NO_PUBKEY (\S+)",
        "the archive is signed by a key that is not given ({1})",
        "give that key in policy.software.sources, after its fingerprint was checked",
    ),
    _known(
        "bad-signature",
        r"(BADSIG|Clearsigned file isn't valid|invalid signature|signature verification failed|Splitting up \S+ into)",
        "the archive's index does not fit its signature ({1})",
        "something on the way changes it (a proxy over http, say): use https or a mirror; do not turn the check off",
    ),
    _known(
        "unsigned",
        r"The repository '([^']+)' is (?:not signed|no longer signed)",
        "the archive {1} is not signed",
        "use a signed one; an offline folder may be trusted in policy.software.sources",
    ),
    _known(
        "redirect",
        r"Redirection from (https? to '[^']+') is forbidden",
        "the archive sends on from {1}, which apt forbids",
        "name the address that it sends on to in policy.software.sources, if it is the vendor's",
    ),
    _known(
        "no-release",
        r"The repository '([^']+)' (?:does not have|no longer has) a Release file",
        "there is no archive at {1}",
        "correct address, suite and components in policy.software.sources",
    ),
    _known(
        "hash",
        r"(Hash Sum mismatch|File has unexpected size)",
        "what was fetched is not what the index tells ({1})",
        "refresh the index; behind a caching proxy use https",
    ),
    _known(
        "fetch",
        r"(?:E|W|Err).*?(Failed to fetch \S+|Could not resolve '[^']+'|Could not connect to \S+|404 +Not Found)",
        "a file cannot be fetched ({1})",
        "see whether the node reaches it; else name a mirror or an offline folder in policy.software.sources",
    ),
    _known(
        "script",
        r"Errors were encountered while processing:\n ?(\S+)",
        "the installation of {1} failed",
        "see /var/log/apt/term.log and, for a kernel module, its make.log below /var/lib/dkms",
    ),
)
_UNMET = re.compile(r"^ (\S+) : (?:Pre)?(?:Depends|Conflicts|Breaks): (.+)$", re.MULTILINE)
_BROKEN = re.compile(r"held broken packages|unmet dependencies|Unable to correct problems|pkgProblemResolver")
_UBUNTU = re.compile(r"-0ubuntu", re.ASCII)


def cause_of(text: str, held: Mapping[str, str]) -> Optional[Cause]:
    """Why apt failed, as far as its words tell. held: versions of packages that are held on the node."""
    if _BROKEN.search(text) is not None:
        return _broken(text, held)
    for known in _KNOWN:
        match = known.pattern.search(text)
        if match is not None:
            caught = (match[1] if known.pattern.groups else None) or match[0]
            return Cause(known.code, known.why.replace("{1}", caught.strip()[:200]), known.remedy)
    return None


def _broken(text: str, held: Mapping[str, str]) -> Cause:
    """Which of the three causes of "held broken packages" it is: two archives, a hold, or an old branch."""
    unmet = [(match[1], match[2].strip()) for match in _UNMET.finditer(text)]
    told = "; ".join(f"{name} wants {what}" for name, what in unmet[:4]) or "apt does not say of which"
    words = {word.strip("(),:;") for _, what in unmet for word in what.split()} | {name for name, _ in unmet}
    stuck = sorted(name for name in held if name.split(":")[0] in words)
    versions = [word for word in words if re.match(r"\d+(?:[.:]\d+)+", word)]
    vendors = {bool(_UBUNTU.search(version)) for version in versions if "-" in version}
    if stuck:
        return Cause(
            "hold",
            f"packages do not go together, and {', '.join(stuck[:4])} is held beside the set ({told})",
            "name it in the set with the version that goes with it, or take the hold off (apt-mark unhold)",
        )
    if len(vendors) > 1:
        return Cause(
            "mixed-origin",
            f"the versions come from two archives ({told})",
            "let one archive supply all of them: a pin in policy.software.sources",
        )
    return Cause(
        "branch",
        f"packages do not go together ({told})",
        "name every package of the branch with its version, and those of the old branch with null",
    )
