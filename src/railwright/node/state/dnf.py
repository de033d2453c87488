"""dnf and rpm as the item `packages` uses them. dnf 4: RHEL 9 and Rocky 9."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Optional

from ..packages import locks, rpm
from ..packages.change import Change
from ..words import without_users
from .command import Said
from .item import Node
from .outcome import Refused
from .program import last_words, tools_of

LOCKS = (*locks.RPM, *locks.DNF)
# The version lock holds others off, not us.
_OURS = ("--disableplugin=versionlock",)
_ASK = ("--assumeno", "--cacheonly")


def installed(node: Node) -> dict[str, rpm.Installed]:
    """rpm's record. Raises Refused where there is none, InputError for what is no answer of rpm's."""
    said = tools_of(node)(list(rpm.QUERY))
    if said.code is None:
        raise Refused("the node has no rpm", "its packages are not rpm's: see policy.software")
    if said.code != 0:
        raise Refused(f"rpm -qa: {last_words(said)}", "run rpm --rebuilddb on the node and see what it says")
    return rpm.read_query(said.out, _locked(node))


def interrupted(node: Node, found: Mapping[str, rpm.Installed]) -> tuple[str, ...]:
    """rpm leaves no package half-way: what it was killed at, it has twice. dnf names such leftovers as duplicates."""
    return ()


def recover(node: Node, left: Sequence[str], target: Collection[str]) -> None:
    """Nothing to bring to its end."""


def simulate(node: Node, target: Mapping[str, Optional[str]], recommends: bool) -> tuple[Change, ...]:
    """What bringing these packages to these versions (None: gone) would do. Raises Refused where it cannot be."""
    before = installed(node)
    found: dict[str, Change] = {}
    for words in _transactions(target, recommends):
        said = _must(node, [*_OURS, *_ASK, *words], "dnf cannot do it", False)
        for change in rpm.read_transaction(said.out, before):
            found.setdefault(change.name, change)
    return tuple(found.values())


def upgrade(node: Node) -> tuple[Change, ...]:
    """What a full upgrade would do: the proof that a hold holds. Raises Refused."""
    said = _must(node, [*_ASK, "upgrade"], "a simulated upgrade fails", True)
    return rpm.read_transaction(said.out, installed(node))


def carry_out(
    node: Node, target: Mapping[str, Optional[str]], recommends: bool, ours: Collection[str]
) -> None:
    """The transaction; a second one takes away what the first did not replace.

    ours: packages that came by us, which makes no difference here: rpm keeps what was changed as .rpmsave.
    """
    transactions = _transactions(target, recommends)
    for words in transactions[:1]:
        _must(node, [*_OURS, "-y", "--downloadonly", *words], "dnf cannot fetch it", False)
    for words in transactions:
        _must(node, [*_OURS, "-y", *words], "dnf failed", True)


def hold(node: Node, names: Sequence[str], on: bool) -> None:
    """Locks these packages at the versions that stand there, or lets them go. Raises Refused."""
    listed = _locked(node)
    old = [name for name in names if name in listed]
    said = Said(0)
    if old:
        said = tools_of(node)(["dnf", "-y", "versionlock", "delete", *old])
    if on and said.code == 0:
        said = tools_of(node)(["dnf", "-y", "versionlock", "add", *names])
    if said.code != 0:
        text = f"{said.out}{said.err}"
        if "No such command" in text:
            raise Refused(
                "dnf has no versionlock",
                "install python3-dnf-plugin-versionlock, then run again",
                changed=True,
            )
        raise _refused("dnf versionlock failed", said, True)


def refresh(node: Node, source: str) -> None:
    """Reads the index of the repository in this file again. Raises Refused."""
    name = source.rsplit("/", 1)[1].removesuffix(".repo")
    words = ["-y", "--disablerepo=*", f"--enablerepo={name}", "--refresh", "makecache"]
    _must(node, words, f"the index of {source} cannot be refreshed", False)


def _transactions(target: Mapping[str, Optional[str]], recommends: bool) -> list[list[str]]:
    comes = [
        # "1:2-3" is a version with its epoch; a kernel keeps its other versions.
        f"{name}-{one}"
        for name, version in target.items()
        if version is not None
        for one in version.split()
    ]
    goes = [name for name, version in target.items() if version is None]
    weak = f"--setopt=install_weak_deps={recommends}"
    found = []
    if comes:
        found.append([weak, *(["--allowerasing"] if goes else []), "install", *comes])
    if goes:
        found.append(["--noautoremove", "remove", *goes])
    return found


def _locked(node: Node) -> dict[str, str]:
    try:
        with open(node.at(rpm.LOCK_LIST), encoding="utf-8", errors="backslashreplace") as file:
            return rpm.read_locks(file.read(1024 * 1024))
    except OSError:
        return {}


def _must(node: Node, words: Sequence[str], what: str, changed: bool) -> Said:
    asks = set(_ASK) <= set(words)
    logs: AbstractContextManager[list[str]] = _logs_aside(node) if asks else nullcontext([])
    with logs as aside:
        said = tools_of(node)(["dnf", *aside, *words])
    # Exit status 1 is dnf's "Operation aborted." too, which --assumeno says for us.
    asked = asks and "Operation aborted" in f"{said.out}\n{said.err}"
    if said.code != 0 and not asked:
        raise _refused(what, said, changed)
    return said


@contextmanager
def _logs_aside(node: Node) -> Iterator[list[str]]:
    """The words that lead a question's log elsewhere than /var/log: a check writes nothing (dnf.conf(5), logdir)."""
    try:
        folder = tempfile.mkdtemp(prefix="railwright-dnf-", dir=node.at("/run"))
    except OSError:  # not root: dnf keeps such a user's log apart by itself
        yield []
        return
    try:
        yield [f"--setopt=logdir={folder}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refused(what: str, said: Said, changed: bool) -> Refused:
    if said.code is None:
        return Refused("the node has no dnf", "see policy.software", changed)
    cause = rpm.cause_of(without_users(f"{said.out}\n{said.err}"))
    if cause is None:
        return Refused(f"{what}: {last_words(said)}", "run it by hand on the node", changed)
    return Refused(f"{what}: {cause.why}", cause.remedy, changed)
