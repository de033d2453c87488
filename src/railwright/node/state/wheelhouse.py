"""A folder of wheels: which of them a lock takes, what is missing or another file than was locked, and their size."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from ..durable import digest_of
from ..model.wheel_lock import Lock, Pin, normalised
from ..words import some_of
from .outcome import Refused

# {distribution}-{version}(-{build})?-{python}-{abi}-{platform}.whl (binary distribution format, "File name
# convention").
_WHEEL = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")
_TOLD = 6


@dataclass(frozen=True)
class Room:
    """What wheels take when they are unpacked. bytes: with what Python compiles of their modules, as a guess."""

    bytes: int
    files: int


def wheels_of(place: str, pin: Pin) -> list[str]:
    """Names of the wheels of this package in this version that lie in the folder."""
    return [
        name
        for name in sorted(os.listdir(place))
        if (match := _WHEEL.fullmatch(name))
        and normalised(match[1]) == pin.name
        and _version(match[2]) == _version(pin.version)
    ]


def _version(text: str) -> str:
    """A wheel's file name has _ where the version has a local label's dot or dash."""
    return re.sub(r"[-_.]", ".", text.replace("%2B", "+")).lower()


def must_hold(place: str, shown: str, lock: Lock) -> dict[str, str]:
    """Names of the wheels by package, each a file that the lock has the digest of. Raises Refused.

    A pin with a marker may be for other systems: it is left to pip. shown: how the folder is called.
    """
    missing: list[str] = []
    other: list[str] = []
    found: dict[str, str] = {}
    try:
        for pin in lock.pins:
            names = wheels_of(place, pin)
            good = [name for name in names if digest_of(os.path.join(place, name)) in pin.hashes]
            if good:
                found[pin.name] = good[0]
            elif pin.marker is None and names:
                got = digest_of(os.path.join(place, names[0]))
                other.append(f"{pin.words}: {names[0]} has sha256 {got}, which the lock has not")
            elif pin.marker is None:
                missing.append(f"{pin.words}{_instead(place, pin)}")
    except OSError as error:
        raise Refused(
            f"the wheelhouse {shown} cannot be read: {error.strerror}", "name a folder of this node"
        ) from None
    if other:
        raise Refused(
            f"a wheel in {shown} is another file than was locked: {some_of(other, _TOLD)}",
            "put the file there that was locked, or lock anew and see what has changed",
        )
    if missing:
        raise Refused(
            f"{shown} has no wheel of {some_of(missing, _TOLD)}",
            "put it there: pip download --require-hashes -r LOCK",
        )
    return found


def _instead(place: str, pin: Pin) -> str:
    others = sorted(
        match[2]
        for name in os.listdir(place)
        if (match := _WHEEL.fullmatch(name)) and normalised(match[1]) == pin.name
    )
    return f" (of it: {', '.join(others[:3])})" if others else ""


def room_of(place: str, names: Sequence[str]) -> Room:
    """What these wheels take. Raises Refused for one that is no archive."""
    size = files = 0
    for name in names:
        try:
            with zipfile.ZipFile(os.path.join(place, name)) as wheel:
                for member in wheel.infolist():
                    # A compiled module is about as large as its source.
                    twice = 2 if member.filename.endswith(".py") else 1
                    size += twice * member.file_size
                    files += twice
        except (OSError, zipfile.BadZipFile) as error:
            raise Refused(f"{name} cannot be read as a wheel: {error}", "put a whole file there") from None
    return Room(size, files)
