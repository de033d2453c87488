"""Builds a Python environment beside its place: venv, pip by hash, and one rename when all of it stands.

pip reads no configuration of the node and asks nothing; its own temporary files lie beside the environment, since /tmp
may be small, or mounted without the right to run what lies there. Nothing is built from source.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Optional

from .. import durable
from ..model.wheel_lock import Lock
from ..words import without_users
from . import environment_files, files, wheelhouse
from .command import Said
from .item import Node
from .outcome import Refused
from .program import last_words, tools_of

LOCK_NAME = "railwright.lock"
_FETCHED = ".fetched"
_SCRATCH = f"{_FETCHED}/scratch"
_QUIET = (
    "--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-color", "--progress-bar", "off",
    "--require-hashes", "--only-binary", ":all:",
)  # fmt: skip
# Python takes the link for its prefix (site, "pyvenv.cfg"), so what a job imports late would come from the version that
# is meant by then. The name of the .pth sorts last: what the others have added is led to the version, too.
_STAY = "_railwright_stay"
_STAY_TEXT = """\
\"\"\"Whoever is started through the link `current` stays with the version that it led to.\"\"\"

import os
import sys


def stay():
    link = sys.prefix
    if os.path.islink(link):
        version = os.path.join(os.path.dirname(link), os.readlink(link))

        def led(path):
            return version + path[len(link) :] if path == link or path.startswith(link + os.sep) else path

        sys.path[:] = [led(path) for path in sys.path]
        sys.executable = led(sys.executable or "")
        sys.exec_prefix = led(sys.exec_prefix)
        sys.prefix = version
    # Behind this site adds the folders of the prefix that it finds now, and comes here again.
    sys.path[:] = dict.fromkeys(sys.path)
"""
# Beside the wheels: RECORDs, scripts, the venv itself.
_SPARE_BYTES, _SPARE_FILES = 64 << 20, 2000
_QUERY = re.compile(r"\?[^\s'\"]+")
# pip's words (pip 21 to 26), the first that fits; {sources} is where it looked.
_CAUSES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"No space left on device"),
        "the disk is full",
        "free space under /opt: df /opt",
    ),
    (
        re.compile(r"DO NOT MATCH THE HASHES.*?\n\s*(?P<what>[^\n]+?) from [^\n]*\n\s*Expected sha256", re.S),
        "what {sources} has as {what} is another file than was locked",
        "see who changed it, or lock anew and look at the difference",
    ),
    (
        re.compile(r"all requirements must have their versions pinned.*?:\s*\n?\s*(?P<what>\S+)", re.S),
        "the lock is not whole: it lacks {what}",
        "lock again with all that is needed: pip-compile --generate-hashes",
    ),
    (
        re.compile(r"(?P<what>40[13] Client Error|401 Error|403 Error)"),
        "{sources} lets nobody in: {what}",
        "put name and password for it into the netrc file that the policy names",
    ),
    (
        re.compile(
            r"(?P<what>Name or service not known|Temporary failure in name resolution|Connection refused|"
            r"Network is unreachable|No route to host|timed out|CERTIFICATE_VERIFY_FAILED|Cannot connect to proxy)"
        ),
        "{sources} cannot be reached: {what}",
        "reach it from the node (curl), or take a mirror or a wheelhouse",
    ),
    (
        re.compile(r"(?:No matching distribution found for|satisfies the requirement) (?P<what>\S+)"),
        "{sources} has no wheel of {what} for this Python",
        "put it there, or lock for the Python of this node",
    ),
    (
        re.compile(r"(?P<what>requires a different Python[^\n]*|is not a supported wheel on this platform[^\n]*)"),
        "a wheel does not fit this node: {what}",
        "lock for the Python and the system of this node",
    ),
    (
        re.compile(r"conflict[^\n]*:\s*\n(?P<what>[^\n]+)"),
        "the lock contradicts itself: {what}",
        "lock again: pip-compile --generate-hashes",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where wheels come from: a folder of the node, or indexes; netrc: the node's file of names and passwords."""

    wheelhouse: Optional[str] = None
    indexes: tuple[str, ...] = ()
    netrc: Optional[str] = None

    @property
    def words(self) -> str:
        return f"the wheelhouse {self.wheelhouse}" if self.wheelhouse else " and ".join(self.indexes)


@dataclass(frozen=True)
class Build:
    """One environment to be built. place: where it will stand; beside: where it is made; python: whose venv it is."""

    node: Node
    python: str
    minor: str
    lock: Lock
    source: Source
    place: str
    beside: str


def make(build: Build) -> None:
    """Builds the environment and puts it into its place. Raises Refused and OSError; then its place is as it was."""
    with _umask(0o022):
        if whole(build.node, build.place, build.lock, build.minor):
            # A killed run had only to tidy up.
            for left in (build.beside, f"{build.beside}-old"):
                clear(build.node, left)
            return
        if not whole(build.node, build.beside, build.lock, build.minor):
            clear(build.node, build.beside)
            try:
                _fill(build)
            except BaseException:
                with suppress(OSError):
                    clear(build.node, build.beside)
                raise
        _swap(build)


def whole(node: Node, place: str, lock: Lock, minor: str) -> bool:
    """Whether the environment of this lock stands there, as it was built."""
    manifest = environment_files.read(node.at(place))
    if manifest is None or (manifest.lock, manifest.python) != (lock.digest, minor):
        return False
    return not environment_files.differences(node.at(place), manifest)


def clear(node: Node, place: str) -> None:
    """Removes a folder of ours. Its manifest goes first: what is left of it is no environment."""
    top = node.at(place)
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(os.path.join(top, environment_files.NAME))
    if os.path.islink(top) or os.path.isfile(top):
        os.unlink(top)
    elif os.path.isdir(top):
        shutil.rmtree(top)


def must_have_room(node: Node, place: str, room: wheelhouse.Room, what: str) -> None:
    """Raises Refused where the file system of `place` has not that much free."""
    folder = node.at(place)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    if found.f_flag & os.ST_NOEXEC:
        raise Refused(
            f"the file system of {place} is mounted noexec, and libraries cannot be loaded from it",
            "mount it without noexec, or give /opt a file system of its own",
        )
    free = found.f_bavail * found.f_frsize
    needed = room.bytes + _SPARE_BYTES
    if free < needed:
        raise Refused(
            f"{what} takes {needed >> 20} MiB, and {os.path.dirname(place)} has {free >> 20} MiB free",
            "free space there; older environments go with keep",
        )
    # Some file systems have no fixed number of inodes, and say 0.
    if found.f_files and found.f_favail < room.files + _SPARE_FILES:
        raise Refused(
            f"{what} has {room.files} files, and the file system of {place} has {found.f_favail} inodes free",
            "free inodes there: df -i",
        )


def _fill(build: Build) -> None:
    node, beside = build.node, build.beside
    files.make_parents(node.root, f"{beside}/{LOCK_NAME}")
    here = node.at(beside)
    with open(os.path.join(here, LOCK_NAME), "w", encoding="utf-8") as file:
        file.write(build.lock.text)
    os.makedirs(os.path.join(here, _SCRATCH))
    if build.source.wheelhouse is not None:
        held = wheelhouse.must_hold(node.at(build.source.wheelhouse), build.source.wheelhouse, build.lock)
        must_have_room(
            node, build.place, wheelhouse.room_of(node.at(build.source.wheelhouse), list(held.values())), "it"
        )
    own = own_pip(build)
    _venv(build, bare=own is not None)
    wheels = build.source.wheelhouse or _fetch(build)
    program = ["-m", "pip"] if own is None else [f"{_taken(build, own)}/pip"]
    _pip(
        build,
        program,
        ["install", *_QUIET, "--no-index", "--find-links", wheels, "--no-warn-script-location"],
    )
    shutil.rmtree(os.path.join(here, _FETCHED))
    _let_it_stay(os.path.join(here, "lib", f"python{build.minor}", "site-packages"))
    environment_files.move_texts(here, beside, build.place)
    _seal(build)


def own_pip(build: Build) -> Optional[str]:
    """The wheel of pip that the lock names and the wheelhouse has: it needs no ensurepip. Its digest was compared."""
    pin, folder = build.lock.pin("pip"), build.source.wheelhouse
    if pin is None or folder is None:
        return None
    here = build.node.at(folder)
    names = wheelhouse.wheels_of(here, pin)
    return next((name for name in names if durable.digest_of(os.path.join(here, name)) in pin.hashes), None)


def _taken(build: Build, own: str) -> str:
    """A copy of this wheel that nobody else writes, compared with the lock before anything of it is run."""
    assert build.source.wheelhouse is not None  # noqa: S101 -- own_pip found it there
    copy = f"{build.beside}/{_FETCHED}/{own}"
    shutil.copyfile(os.path.join(build.node.at(build.source.wheelhouse), own), build.node.at(copy))
    pin = build.lock.pin("pip")
    if pin is None or durable.digest_of(build.node.at(copy)) not in pin.hashes:
        raise Refused(f"{own} was changed while it was read", "see who writes into the wheelhouse")
    return copy


def _let_it_stay(site: str) -> None:
    for name, text in ((f"{_STAY}.py", _STAY_TEXT), (f"zzz{_STAY}.pth", f"import {_STAY}; {_STAY}.stay()\n")):
        with open(os.path.join(site, name), "w", encoding="utf-8") as file:
            file.write(text)


def _venv(build: Build, bare: bool) -> None:
    without = ["--without-pip"] if bare else []
    said = tools_of(build.node)([build.python, "-I", "-m", "venv", *without, build.beside])
    if not said.ok:
        lacks = "ensurepip" in f"{said.out}{said.err}"
        raise Refused(
            f"{build.python} -m venv: {last_words(said, 3)}",
            "install the package of venv (python3-venv), or lock pip too and put its wheel into the wheelhouse"
            if lacks
            else "run it by hand",
        )


def _fetch(build: Build) -> str:
    """Everything is fetched before anything is unpacked; the folder."""
    folder = f"{build.beside}/{_FETCHED}/wheels"
    first, *more = build.source.indexes
    # Verbose: else pip says of an index that lets nobody in that it has no such package.
    asked = ["--index-url", first, *(word for one in more for word in ("--extra-index-url", one))]
    # Without a word pip leaves an index of plain http out. What comes from it is compared with the lock all the same.
    for address in build.source.indexes:
        if address.startswith("http://"):
            asked += ["--trusted-host", address.split("/")[2]]
    _pip(build, ["-m", "pip"], ["download", "-vv", *_QUIET, "--retries", "2", *asked, "--dest", folder])
    here = build.node.at(folder)
    names = [name for name in sorted(os.listdir(here)) if name.endswith(".whl")]
    must_have_room(
        build.node, build.place, wheelhouse.room_of(here, names), f"what was fetched ({len(names)} wheels)"
    )
    return folder


def _pip(build: Build, program: Sequence[str], words: Sequence[str]) -> None:
    beside = build.beside
    known = [f"NETRC={build.source.netrc}"] if build.source.netrc else []
    argv = [
        "env", "PIP_CONFIG_FILE=/dev/null", f"TMPDIR={beside}/{_SCRATCH}", *known,
        f"{beside}/bin/python", "-I", *program, *words, "-r", f"{beside}/{LOCK_NAME}",
    ]  # fmt: skip
    said = tools_of(build.node)(argv)
    if not said.ok:
        raise refusal(said, build.source)


def refusal(said: Said, source: Source) -> Refused:
    """What pip said, as a cause and what to do, without what an address has before @ and behind a question mark."""
    text = f"{said.out}\n{said.err}"
    for pattern, why, remedy in _CAUSES:
        match = pattern.search(text)
        if match is not None:
            named = {key: (value or "").strip() for key, value in match.groupdict().items()}
            told = why.format(sources=source.words, **named)
            return Refused(f"{without_secrets(told)} (pip: {without_secrets(_last(said))})", remedy)
    return Refused(
        f"pip, with {source.words}: {without_secrets(last_words(said, 4))}", "run pip by hand with this lock"
    )


def _last(said: Said) -> str:
    lines = [line.strip() for line in f"{said.out}\n{said.err}".splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [f"exit status {said.code}"])[-1][:300]


def without_secrets(text: str) -> str:
    return _QUERY.sub("?***", without_users(text))


def _seal(build: Build) -> None:
    """Writes down what stands there, when the disk has all of it."""
    here = build.node.at(build.beside)
    manifest = environment_files.survey(here, build.lock.digest, build.minor)
    os.sync()
    # Its name comes last: with it the environment is whole.
    path = f"{build.beside}/{environment_files.NAME}"
    files.replace(
        build.node.root, path, files.Content(manifest.bytes(), "0644", os.geteuid(), os.getegid()), None
    )


def _swap(build: Build) -> None:
    here, beside = build.node.at(build.place), build.node.at(build.beside)
    old = f"{beside}-old"
    clear(build.node, f"{build.beside}-old")
    if os.path.lexists(here):
        os.rename(here, old)
    os.rename(beside, here)
    durable.sync(os.path.dirname(here))
    clear(build.node, f"{build.beside}-old")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    """Whatever umask the caller has, everybody may read an environment."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
