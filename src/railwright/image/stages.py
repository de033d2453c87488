"""Stages: each is made in a folder of its own, under a key of its inputs, and takes its name when it is whole.

A bake that was killed, or whose machine lost its power, finds the stages that were published and makes the rest: what
lies under a stage's name has been synced before it got that name, and what does not have one yet is made anew.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from railwright.node.durable import sync
from railwright.node.model import InputError

from .recipe import digest

Say = Callable[[str], None]
_KEY_LETTERS = 16


@dataclass(frozen=True)
class Bench:
    """Where an image is made. lock: a file that is open and locked until the programs of this bake have ended."""

    folder: Path
    lock: int
    say: Say

    def stage(self, name: str, inputs: object, make: Callable[[Path], None]) -> Stage:
        """The stage, made by `make` (which fills an empty folder) unless it is there. Raises what `make` raises."""
        key = digest(name, inputs)
        place = self.folder / f"{name}-{key[:_KEY_LETTERS]}"
        if place.is_dir():
            self.say(f"{name}: is there ({place.name})")
            return Stage(place, key, made=False)
        self.say(f"{name}: begins")
        scratch = self.folder / f".{name}.part"
        _wipe(scratch)
        scratch.mkdir()
        try:
            make(scratch)
            settle(scratch)
            os.rename(scratch, place)
        except BaseException:
            _wipe(scratch)
            raise
        sync(self.folder)
        self.say(f"{name}: done ({place.name})")
        return Stage(place, key, made=True)


@dataclass(frozen=True)
class Stage:
    """A stage that is whole. key: of all that it was made from; made: by this run."""

    place: Path
    key: str
    made: bool


@contextmanager
def bench(folder: Path, say: Say) -> Iterator[Bench]:
    """Takes a folder for a bake. Raises InputError where another bake, or a program that one has left, is at work."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                str(folder), "another bake is at work there", "wait for its end, or name another folder"
            ) from None
        for part in folder.glob(".*.part"):
            say(f"{part.name[1:-5]}: an earlier run did not come to its end there; it is made anew")
            _wipe(part)
        yield Bench(folder, lock, say)
    finally:
        os.close(lock)


def settle(folder: Path) -> None:
    """Waits until all that is in the folder is on the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
    sync(folder)


def _wipe(folder: Path) -> None:
    """Removes what a stage left. Nothing is mounted in it: mounts lie in namespaces that have gone."""
    if not folder.is_dir():
        return
    if os.path.ismount(folder) or any(line.split()[1].startswith(f"{folder}/") for line in _mounts()):
        raise InputError(str(folder), "something is mounted below it", "see /proc/mounts, and unmount it")
    shutil.rmtree(folder)


def _mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text("utf-8").splitlines()
