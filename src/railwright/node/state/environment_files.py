"""The files of a built environment: written down when it is built, and compared with what stands there.

Digests come from the RECORD of each wheel (Python packaging user guide, "Recording installed projects") where it has
one. A later look reads names, sizes, modes and times; only a file whose times moved is read again.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..durable import digest_of

NAME = "railwright.json"
SCHEMA = "railwright.environment/1"
_LARGEST = 1 << 28


@dataclass(frozen=True)
class Manifest:
    """files: path below the environment to [size, mtime_ns, ctime_ns, mode, sha256], or to the target of a link."""

    lock: str
    python: str
    files: Mapping[str, Any] = field(default_factory=dict)

    def bytes(self) -> bytes:
        page = {"schema": SCHEMA, "lock": self.lock, "python": self.python, "files": dict(self.files)}
        return (json.dumps(page, indent=0, sort_keys=True) + "\n").encode()


def read(place: str) -> Optional[Manifest]:
    """The manifest of the environment at `place`; None where there is none of ours, and so no whole environment."""
    try:
        with open(os.path.join(place, NAME), "rb") as file:
            page = json.loads(file.read(_LARGEST))
    except (OSError, ValueError):
        return None
    if not isinstance(page, dict) or page.get("schema") != SCHEMA or not isinstance(page.get("files"), dict):
        return None
    lock, python = page.get("lock"), page.get("python")
    if not isinstance(lock, str) or not isinstance(python, str):
        return None
    return Manifest(lock, python, page["files"])


def survey(place: str, lock: str, python: str) -> Manifest:
    """What stands at `place`. Raises OSError."""
    told = _recorded(place)
    files: dict[str, Any] = {}
    for path, found in _walk(place):
        if stat.S_ISLNK(found.st_mode):
            files[path] = os.readlink(os.path.join(place, path))
        else:
            digest = told.get(path) or digest_of(os.path.join(place, path))
            files[path] = [*_stamp(found), digest]
    return Manifest(lock, python, files)


def differences(place: str, manifest: Manifest) -> list[str]:
    """What was changed, removed or added since; one sentence a file, in order of the names."""
    found: dict[str, str] = {}
    left = dict(manifest.files)
    for path, now in _walk(place):
        was = left.pop(path, None)
        if was is None:
            if not _compiled_later(path):
                found[path] = "was added"
        elif why := _changed(os.path.join(place, path), now, was):
            found[path] = why
    found.update(dict.fromkeys(left, "is gone"))
    return [f"{path} {why}" for path, why in sorted(found.items())]


def _changed(place: str, now: os.stat_result, was: Any) -> str:
    if isinstance(was, str):
        if not stat.S_ISLNK(now.st_mode):
            return "is no link any more"
        return "" if os.readlink(place) == was else "leads elsewhere"
    if stat.S_ISLNK(now.st_mode):
        return "is a link now"
    stamp = _stamp(now)
    if stamp[0] != was[0]:
        return "has another content"
    if stamp[3] != was[3] or now.st_uid != os.geteuid():
        return "has another owner or mode"
    if stamp != list(was[:4]) and digest_of(place) != was[4]:
        return "has another content"
    return ""


def _stamp(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, stat.S_IMODE(found.st_mode)]


def _compiled_later(path: str) -> bool:
    """What Python keeps of a module that it has compiled."""
    return path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__"


def _walk(place: str, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """All files and links with their paths, but for the manifest."""
    with os.scandir(os.path.join(place, below)) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(place, path)
            elif path != NAME:
                yield path, entry.stat(follow_symlinks=False)


def records(place: str) -> Iterator[tuple[str, str]]:
    """Each RECORD below `place`: the folder that its paths start from, and its own path, both below `place`."""
    for path, _ in _walk(place):
        if os.path.basename(path) == "RECORD" and os.path.dirname(path).endswith(".dist-info"):
            yield os.path.dirname(os.path.dirname(path)), path


def _recorded(place: str) -> dict[str, str]:
    """SHA-256 in hex by path, of what the wheels' records have."""
    told: dict[str, str] = {}
    for base, record in records(place):
        with open(os.path.join(place, record), encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                hexadecimal = _hex(row)
                if hexadecimal:
                    told[os.path.normpath(os.path.join(base, row[0]))] = hexadecimal
    return told


def _hex(row: Sequence[str]) -> str:
    if len(row) < 2 or not row[1].startswith("sha256="):
        return ""
    text = row[1][len("sha256=") :]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    except ValueError:
        return ""


def move_texts(place: str, old: str, new: str) -> None:
    """Lets programs and the page of an environment that was built as `old` say `new`; it is renamed afterwards.

    venv and pip write the folder's path into bin/* and pyvenv.cfg, and nowhere else. Their lines in RECORD follow.
    """
    before, after = old.encode(), new.encode()
    changed = set()
    folder = os.path.join(place, "bin")
    names = ["pyvenv.cfg", *(f"bin/{name}" for name in sorted(os.listdir(folder)))]
    for name in names:
        path = os.path.join(place, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            data = file.read()
        if before in data:
            # In place: mode and owner stay. The folder is nobody's yet.
            with open(path, "wb") as file:
                file.write(data.replace(before, after))
            changed.add(name)
    for base, record in list(records(place)):
        _follow(place, base, os.path.join(place, record), changed)


def _follow(place: str, base: str, record: str, changed: set[str]) -> None:
    with open(record, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    moved = False
    for row in rows:
        path = os.path.normpath(os.path.join(base, row[0])) if row else ""
        if path in changed and len(row) == 3:
            digest = bytes.fromhex(digest_of(os.path.join(place, path)))
            size = os.stat(os.path.join(place, path)).st_size
            row[1] = f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
            row[2] = str(size)
            moved = True
    if moved:
        with open(record, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
