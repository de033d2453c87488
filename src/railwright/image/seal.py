"""The third stage: what a machine has of its own goes, so that no two nodes of an image share it.

`traces` says what goes and why. `leftovers` asks a tree the same question without touching it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from railwright.node.model import InputError

from .landing import landing, lay, matches
from .own_lines import own_lines, without_own_lines
from .traces import GOES

_LOGS = "var/log"
# The bake's own archives: those of the policy stay, with their keys.
_SOURCES = ("etc/apt/sources.list", "etc/apt/sources.list.d/*")
_OURS = re.compile(r"railwright-")
# With its bytes behind it: programs that read keys hold the line alone.
_PRIVATE_KEY = re.compile(
    rb"(?:^|[\"'])-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----(?:\s|\\[nr])+(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/=]{40}",
    re.M,
)
# Documentation and tests of packages hold keys that are nobody's.
_SAMPLES = re.compile(r"usr/(?!local/)(?:.*/)?(?:doc|docs|examples?|tests?|testdata|samples?)/")
_STUB = "../run/systemd/resolve/stub-resolv.conf"
# Debian's iscsid does not start without the file, and makes a name where the file asks for one.
_INITIATOR, _MADE_AT_BOOT = "etc/iscsi/initiatorname.iscsi", "GenerateName=yes\n"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_BLOCK = 1 << 20


def leftovers(tree: Path) -> list[tuple[str, str]]:
    """What of one machine is in a tree: (path below it, why it must not be in an image), in order."""
    found = [(path, why) for path, why in _going(tree) if not _kept(tree, path)]
    if _machine_id(tree) is not None:
        found.append(("etc/machine-id", f"identities that daemons made for one machine: {_machine_id(tree)}"))
    found += [(path, "logs and caches") for path in _logs(tree)]
    found += [(path, f"lines of one machine: {rows[0]}") for path, rows in own_lines(tree).items()]
    return sorted(found)


def seal(tree: Path, sources: str = "") -> list[tuple[str, str]]:
    """Takes all of that out; what went, with the reason. sources: what its apt shall read. Raises InputError."""
    went = leftovers(tree)
    without_own_lines(tree)
    for path, why in went:
        if path != "etc/machine-id" and not why.startswith("lines of one machine"):
            _remove(tree / path)
    if landing(tree, "etc/.").is_dir():
        _empty_identity(tree)
    resolved = landing(tree, "usr/lib/systemd/systemd-resolved").exists()
    names = landing(tree, "etc/resolv.conf")
    if resolved and names.parent.is_dir() and not os.path.lexists(names):
        names.symlink_to(_STUB)
    if landing(tree, "usr/lib/open-iscsi/.").is_dir():
        lay(tree, _INITIATOR, _MADE_AT_BOOT, 0o600)
    if landing(tree, "etc/apt/.").is_dir():
        for pattern in _SOURCES:
            for path in matches(tree, pattern):
                if not _OURS.match(path.rsplit("/", 1)[1]):
                    _remove(tree / path)
                    went.append((path, "the archives of the bake"))
        if sources:
            lay(tree, "etc/apt/sources.list", sources.rstrip("\n") + "\n")
    return sorted(went)


def private_keys(tree: Path) -> list[str]:
    """Files with a private key in them that no package's documentation or tests account for."""
    return [
        path
        for path, file in _files(tree)
        if not _SAMPLES.match(path) and _PRIVATE_KEY.search(file.read_bytes())
    ]


def holders(tree: Path, texts: tuple[str, ...]) -> list[str]:
    """Files that hold one of these texts, and names that do."""
    wanted = [text.encode() for text in texts]
    if not wanted:
        return []
    named = [path for path in _names(tree) if any(text in path for text in texts)]
    return sorted({*named, *(path for path, file in _files(tree) if _holds(file, wanted))})


def identity(tree: Path) -> str | None:
    """The machine-id of a tree that was not sealed yet; None where it has none."""
    place = landing(tree, "etc/machine-id")
    if place.is_symlink() or not place.is_file():
        return None
    text = place.read_text("latin-1").strip()
    return text if _IDENTITY.fullmatch(text) else None


def must_not_hold(file: Path, texts: tuple[str, ...]) -> None:
    """Searches the whole of a file, a disk's free blocks among it. Raises InputError with the place of the first."""
    wanted = [text.encode() for text in texts]
    if wanted and _holds(file, wanted):
        raise InputError(
            file.name, "holds a text that the recipe forbids", "find out which package or file brings it"
        )


def _holds(file: Path, wanted: list[bytes]) -> bool:
    longest = max(map(len, wanted))
    with file.open("rb") as data:
        tail = b""
        for block in _blocks(data.fileno()):
            seen = tail + block
            if any(text in seen for text in wanted):
                return True
            tail = seen[-longest:]
    return False


def _blocks(handle: int) -> Iterator[bytes]:
    """The bytes of a file, holes left out: they are zeros."""
    size = os.fstat(handle).st_size
    place = 0
    while place < size:
        try:
            place = os.lseek(handle, place, os.SEEK_DATA)
        except OSError:  # nothing but a hole until its end
            return
        end = os.lseek(handle, place, os.SEEK_HOLE)
        while place < end:
            block = os.pread(handle, min(_BLOCK, end - place), place)
            yield block
            place += len(block)
        yield b"\0"


def _going(tree: Path) -> Iterator[tuple[str, str]]:
    for why, patterns in GOES.items():
        for pattern in patterns:
            for path in matches(tree, pattern):
                yield path, why


def _kept(tree: Path, path: str) -> bool:
    """What a sealed image has in the place of what went, and what is of no machine."""
    place = tree / path
    if path == "etc/resolv.conf":
        return place.is_symlink() and os.readlink(place).endswith("resolve/stub-resolv.conf")
    if path == "etc/security/opasswd":  # empty as libpam-modules brings it
        return place.lstat().st_size == 0
    if path == _INITIATOR:
        return not place.is_symlink() and place.is_file() and place.read_text("latin-1") == _MADE_AT_BOOT
    # The loopback has no address of anybody; what a policy names is the policy's.
    if path.endswith("/ifcfg-lo") or path.rsplit("/", 1)[1].startswith("railwright-"):
        return path.startswith(("etc/sysconfig/", "etc/NetworkManager/", "etc/apt/"))
    return path == "var/lib/dbus/machine-id" and place.is_symlink()


def _machine_id(tree: Path) -> str | None:
    """What is wrong with it; None for a sealed one: there, and empty (machine-id(5): the first boot fills it)."""
    place = landing(tree, "etc/machine-id")
    if not place.parent.is_dir():
        return None
    if place.is_symlink() or not place.is_file():
        return "absent, so that a read-only boot has no place for it"
    return None if place.stat().st_size == 0 else "not empty"


def _empty_identity(tree: Path) -> None:
    landing(tree, "etc/machine-id").unlink(missing_ok=True)
    lay(tree, "etc/machine-id", "", 0o444)
    dbus = landing(tree, "var/lib/dbus/machine-id")
    if dbus.parent.is_dir() and not os.path.lexists(dbus):
        dbus.symlink_to("/etc/machine-id")


def _logs(tree: Path) -> list[str]:
    """Files of logs; folders stay, with the owners that daemons want, but the journal's are named by the machine."""
    found = []
    for where, folders, names in os.walk(landing(tree, f"{_LOGS}/.")):
        found += [os.path.relpath(os.path.join(where, name), tree) for name in names if name != "README"]
        if os.path.basename(where) == "journal":
            found += [os.path.relpath(os.path.join(where, name), tree) for name in folders]
            folders.clear()
    return found


def _remove(place: Path) -> None:
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
    else:
        shutil.rmtree(place)


def _names(tree: Path) -> Iterator[str]:
    """Paths, and where links lead."""
    for where, folders, names in os.walk(tree):
        for name in (*folders, *names):
            place = Path(where, name)
            yield str(place.relative_to(tree))
            if place.is_symlink():
                yield f"{place.relative_to(tree)} -> {os.readlink(place)}"


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            file = Path(where, name)
            if stat.S_ISREG(file.lstat().st_mode):
                yield str(file.relative_to(tree)), file
