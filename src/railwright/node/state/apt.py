"""apt and dpkg as the item `packages` uses them: asked without a lock, told in one transaction."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Optional

from ..packages import apt, dpkg, locks
from ..packages.change import Change
from ..words import without_users
from .command import Said
from .item import Node
from .outcome import Refused
from .program import last_words, tools_of

# A simulation takes no lock; without a cache file it writes nothing at all.
_ASK = ("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
# Configuration files that somebody changed stay as they are, new ones come: dpkg(1), --force-confdef, --force-confold.
_TELL = (
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "Dpkg::Use-Pty=0",
)
_STATUS_BYTES = 64 * 1024 * 1024
LOCKS = locks.DPKG


def installed(node: Node) -> dict[str, dpkg.Installed]:
    """dpkg's record. Raises Refused where there is none, InputError for one that is none of dpkg's."""
    try:
        with open(node.at(dpkg.STATUS), encoding="utf-8", errors="backslashreplace") as file:
            text = file.read(_STATUS_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(
            f"the node has no {dpkg.STATUS}", "its packages are not dpkg's: see policy.software"
        ) from None
    return dpkg.read_record(text, _updates(node))[0]


def _updates(node: Node) -> list[str]:
    """What dpkg has noted beside its record: files whose names are numbers, in their order."""
    folder = node.at(dpkg.UPDATES)
    try:
        names = sorted(name for name in os.listdir(folder) if name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []
    texts = []
    for name in names:
        with (
            suppress(FileNotFoundError),
            open(f"{folder}/{name}", encoding="utf-8", errors="backslashreplace") as file,
        ):
            texts.append(file.read(_STATUS_BYTES))
    return texts


def interrupted(node: Node, found: Mapping[str, dpkg.Installed]) -> tuple[str, ...]:
    """What an earlier dpkg did not bring to its end."""
    return dpkg.interrupted(found, _updates(node))


def simulate(node: Node, target: Mapping[str, Optional[str]], recommends: bool) -> tuple[Change, ...]:
    """What bringing these packages to these versions (None: gone) would do. Raises Refused where it cannot be."""
    argv = ["apt-get", "-s", *_ASK, *_words(node, target, recommends)]
    return apt.read_simulation(_must(node, argv, "apt-get cannot do it", False).out)


def upgrade(node: Node) -> tuple[Change, ...]:
    """What a full upgrade would do: the proof that a hold holds. Raises Refused."""
    argv = ["apt-get", "-s", *_ASK, "-y", "dist-upgrade"]
    return apt.read_simulation(_must(node, argv, "a simulated upgrade fails", True).out)


def recover(node: Node, left: Sequence[str], target: Collection[str]) -> None:
    """Brings to its end what an earlier dpkg did not. Raises Refused.

    target: packages that the transaction at hand moves or removes anyway; what is wrong with them is its matter.
    """
    said = tools_of(node)(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
    still = [word.split(" ")[0] for word in interrupted(node, installed(node))]
    if said.code != 0 and not set(still) <= set(target):
        what = ", ".join(left[:4])
        raise _refused(node, f"dpkg was interrupted at {what}, and cannot be brought to its end", said, True)


def carry_out(
    node: Node, target: Mapping[str, Optional[str]], recommends: bool, ours: Collection[str]
) -> None:
    """The transaction: everything is fetched first, so that a bad network or a full disk changes nothing.

    ours: packages that came by us. Their configuration goes with them; that of the node's own packages stays.
    """
    gone = [name for name, version in target.items() if version is None]
    purged = [name for name in gone if name in ours]
    whole = purged == gone
    words = [*(["--purge"] if gone and whole else []), *_words(node, target, recommends)]
    _must(node, ["apt-get", "-d", *_TELL, *words], "apt-get cannot fetch it", False)
    _must(node, ["apt-get", *_TELL, *words], "apt-get failed", True)
    if purged and not whole:  # apt-get has one --purge for all
        _must(node, ["dpkg", "--purge", *purged], "dpkg cannot purge what came by us", True)


def hold(node: Node, names: Sequence[str], on: bool) -> None:
    """Holds these packages, or takes the hold off. Raises Refused."""
    _must(node, ["apt-mark", "hold" if on else "unhold", *names], "apt-mark failed", True)


def refresh(node: Node, source: str) -> None:
    """Reads one source's index again, and no other's. Raises Refused."""
    only = ("-o", f"Dir::Etc::SourceList={source}", "-o", "Dir::Etc::SourceParts=-")
    whole = ("-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any")
    argv = ["apt-get", "-q", *only, *whole, "update"]
    _must(node, argv, f"the index of {source} cannot be refreshed", False)


def _words(node: Node, target: Mapping[str, Optional[str]], recommends: bool) -> list[str]:
    found = installed(node)
    # To apt a package of the right version is there, though dpkg was killed while it was unpacked.
    torn = any(name in found and found[name].torn for name in target)
    return [
        *(["--reinstall", "-o", "Dpkg::Options::=--force-remove-reinstreq"] if torn else []),
        "-y",
        "--allow-downgrades",
        "--allow-change-held-packages",
        f"--{'' if recommends else 'no-'}install-recommends",
        "install",
        *(f"{name}-" if version is None else f"{name}={version}" for name, version in target.items()),
    ]


def _must(node: Node, argv: Sequence[str], what: str, changed: bool) -> Said:
    said = tools_of(node)(argv)
    if said.code != 0:
        raise _refused(node, what, said, changed)
    return said


def _refused(node: Node, what: str, said: Said, changed: bool) -> Refused:
    held = {name: one.version or "" for name, one in installed(node).items() if one.held}
    text = without_users(f"{said.out}\n{said.err}")
    cause = None if said.code is None else apt.cause_of(text, held)
    if said.code is None:
        return Refused("the node has no apt", "see policy.software", changed)
    if cause is None:
        return Refused(f"{what}: {last_words(said)}", "run it by hand on the node", changed)
    return Refused(f"{what}: {cause.why}", cause.remedy, changed)
