"""Whole files: the item owns every byte, the mode and the owner."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ..model import InputError
from . import accounts, confirm, files
from .fields import Fields, absolute, digest, only_cell, under
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .place import FOLDER, LOCK, REBOOT, RUNS, WRITE_LOCK

# Where a tuned node has its configuration, programs and units. /home, /root and the rest are other people's.
PLACES = (
    "/boot",
    "/etc",
    "/opt",
    "/run",
    "/srv",
    "/usr/lib",
    "/usr/libexec",
    "/usr/local",
    "/usr/share",
    "/var/cache",
    "/var/lib",
    "/var/spool",
)
_LAST_GOOD = "put the record's last good copy back"
# What a 64-bit time_t holds in seconds; no file system goes so far.
_FARTHEST_NS = (2**63 - 1) * 10**9
_LONGEST_NAME = 255 - len(files.temporary(""))


def file_path(fields: Fields) -> str:
    """The `path` of an entry that writes a file. Raises InputError."""
    where = f"{fields.where}.path"
    path = absolute(fields.text("path"), where)
    name = path.rsplit("/", 1)[1]
    if not under(path, PLACES):
        raise InputError(
            where, f"{path} is outside of what may be written", f"expected a path under {', '.join(PLACES)}"
        )
    if _is_own(path):
        raise InputError(where, f"{path} belongs to the writer itself", "choose another name")
    if len(name.encode()) > _LONGEST_NAME:
        raise InputError(where, f"the name has {len(name.encode())} bytes", f"at most {_LONGEST_NAME} fit")
    return path


def _is_own(path: str) -> bool:
    """Whether the writer keeps something of its own there."""
    name = path.rsplit("/", 1)[1]
    return (
        path in (LOCK, WRITE_LOCK, REBOOT, RUNS, FOLDER)
        or under(path, (FOLDER,))
        or (name.startswith(".") and name.endswith(".railwright"))
    )


def landing(node: Node, path: str, where: str) -> str:
    """The file that `path` means on this node: two paths may lead to one. Raises InputError for one of the writer's."""
    place = files.landing(node.root, path)
    if _is_own(place):
        raise InputError(
            where, f"{path} leads to {place}, which belongs to the writer itself", "choose another path"
        )
    return place


def snapshot_value(found: files.Snapshot) -> dict[str, Any]:
    """A file as the record keeps it, without its bytes."""
    return {
        "sha256": found.sha256,
        "size": len(found.data),
        "mode": found.mode,
        "uid": found.uid,
        "gid": found.gid,
        "mtime_ns": found.mtime_ns,
    }


def with_bytes(found: files.Snapshot) -> dict[str, Any]:
    """A file as the record keeps it, to be put back."""
    return {**snapshot_value(found), "bytes": base64.b64encode(found.data).decode()}


def content_of(value: Mapping[str, Any]) -> files.Content:
    """The file that `with_bytes` kept."""
    data = base64.b64decode(value["bytes"], validate=True)
    return files.Content(data, value["mode"], value["uid"], value["gid"], value["mtime_ns"])


def check_kept_file(value: Any, where: str, whole: bool) -> None:
    """Refuses what is no file of the record: with its bytes and its time when `whole`. Raises InputError."""
    fields = Fields(value, where)
    sha256 = fields.sha256("sha256")
    size = fields.number("size", 0, 2**63 - 1)
    mode = fields.text("mode")
    if re.fullmatch(r"[0-7]{4}", mode, re.ASCII) is None:
        raise InputError(f"{where}.mode", f"{mode!r} is no file mode", 'expected a form like "0644"')
    fields.number("uid", 0, accounts.HIGHEST_ID)
    fields.number("gid", 0, accounts.HIGHEST_ID)
    if whole:
        fields.number("mtime_ns", -_FARTHEST_NS, _FARTHEST_NS)
        data = _decoded(fields.text("bytes"), f"{where}.bytes")
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise InputError(
                f"{where}.bytes", "the bytes have another size or digest than the record says", _LAST_GOOD
            )
    fields.close()


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError(where, "this is not base64", _LAST_GOOD) from None


class FileItem(Item):
    """`{"kind": "file", "path", "content" | "sha256", "mode": "0644", "owner": "root", "group": "root"}`.

    The cell is None (no file) or `{"sha256", "size", "mode", "uid", "gid", "mtime_ns"}`.
    """

    kind = "file"
    turn = 0

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.path = file_path(fields)
        self.secret = fields.flag("secret") or False
        self.data, self.sha256 = _content(fields, blobs)
        self.mode = fields.mode("mode", "0644")
        self.owner = _account(fields, "owner", "user")
        self.group = _account(fields, "group", "group")

    @property
    def id(self) -> str:
        return f"file:{self.path}"

    @property
    def recorded(self) -> Mapping[str, Any]:
        return {
            **{key: value for key, value in self.entry.items() if key != "content"},
            "sha256": self.sha256,
        }

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("file", landing(node, self.path, f"{self.where}.path"))]

    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def withheld(self, world: World) -> str:
        why = "what has to come before its write could not be done"
        return f"{self.path} was left alone: {why}" if self.path in world.failed else ""

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        found = files.read(node.root, self.path)
        known = kept.cells.get("")
        if found is not None and known is not None and confirm.put_back(node, self.path, found.sha256):
            # An earlier content of ours, as the record had it then: without its time, which the record keeps of a
            # prior value alone.
            back = {key: value for key, value in snapshot_value(found).items() if key != "mtime_ns"}
            known.written += [] if back in known.written else [back]
        return Reading({"": None if found is None else snapshot_value(found)}, detail=(found, node.root))

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        found, root = reading.detail
        data = found.data if found is not None and found.sha256 == self.sha256 else self._sent()
        return {
            "": {
                "sha256": self.sha256,
                "size": len(data),
                "mode": self.mode,
                "uid": accounts.user_id(root, self.owner),
                "gid": accounts.group_id(root, self.group),
            }
        }

    def same(self, now: Value, value: Value) -> bool:
        if now is None or value is None:
            return now is value
        return all(now[key] == value[key] for key in ("sha256", "mode", "uid", "gid"))

    def ours(self, now: Value, written: Value) -> bool:
        return now is written if now is None or written is None else bool(now["sha256"] == written["sha256"])

    def as_before(self, now: Value, prior: Value) -> bool:
        return self.same(now, prior) and (now is None or now["mtime_ns"] == prior["mtime_ns"])

    def prior(self, reading: Reading, cell: str) -> Value:
        found: Optional[files.Snapshot] = reading.detail[0]
        return None if found is None else with_bytes(found)

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        only_cell(cell, where)
        if value is not None:
            check_kept_file(value, where, whole=False)

    def check_prior(self, cell: str, value: Value, where: str) -> None:
        only_cell(cell, where)
        if value is not None:
            check_kept_file(value, where, whole=True)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        found: Optional[files.Snapshot] = reading.detail[0]
        value = goal[""]
        if value is None:
            if found is not None:
                files.remove(node.root, self.path, found)
        elif found is not None and _is_in_place(found, value):
            files.set_owner_and_mode(node.root, self.path, value["mode"], value["uid"], value["gid"], found)
        else:
            files.make_parents(node.root, self.path)
            files.replace(node.root, self.path, self._content(value), found)
        return Done()

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        files.must_be_writable(node.root, self.path, _is_in_place(reading.detail[0], goal[""]))

    def touches(self, reading: Reading, goal: Mapping[str, Value]) -> tuple[str, ...]:
        now, value = reading.cells[""], goal[""]
        return () if now is not None and self.ours(now, value) else (self.path,)

    def action(self, reading: Reading, goal: Mapping[str, Value]) -> str:
        return "create" if reading.cells[""] is None else "write"

    def show(self, value: Value) -> Any:
        if value is None:
            return None
        return f"{value['mode']} {value['uid']}:{value['gid']}, {value['size']} bytes, sha256 {value['sha256'][:12]}"

    def header(self, cells: Mapping[str, Value]) -> str:
        value = cells[""]
        return (
            f"{self.path} (absent)"
            if value is None
            else f"{self.path} ({value['mode']} {value['uid']}:{value['gid']})"
        )

    def text(self, cells: Mapping[str, Value], reading: Reading) -> str:
        value = cells[""]
        if value is None:
            return ""
        data = self._bytes_of(value, reading)
        if self.secret:
            return f"(secret, {len(data)} bytes, sha256 {value['sha256']})\n"
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        return f"(binary, {len(data)} bytes, sha256 {value['sha256']})\n" if "\0" in text else text

    def _bytes_of(self, value: Mapping[str, Any], reading: Reading) -> bytes:
        found: Optional[files.Snapshot] = reading.detail[0]
        if found is not None and found.sha256 == value["sha256"]:
            return found.data
        return self._content(value).data

    def _content(self, value: Mapping[str, Any]) -> files.Content:
        if "bytes" in value:
            return content_of(value)
        return files.Content(self._sent(), value["mode"], value["uid"], value["gid"])

    def _sent(self) -> bytes:
        if self.data is None:
            raise Refused(
                f"{self.path} should have the content with SHA-256 {self.sha256}, which was not sent",
                "send the bytes in blobs",
            )
        return self.data


def _account(fields: Fields, key: str, what: str) -> str:
    name = fields.text(key, "root")
    where = f"{fields.where}.{key}"
    if name.isdecimal() and accounts.account_number(name) is None:
        raise InputError(
            where,
            f"{name!r} is no number of a {what}",
            f"expected 0 to {accounts.HIGHEST_ID}, in the digits 0 to 9",
        )
    if not name or any(character in name for character in ":\n\0"):
        raise InputError(where, f"{name!r} is no name of a {what}", "give a name or a number")
    return name


def _content(fields: Fields, blobs: Mapping[str, bytes]) -> tuple[Optional[bytes], str]:
    if fields.has("content") == fields.has("sha256"):
        raise InputError(fields.where, "expected either content or sha256", "give one of the two")
    if fields.has("content"):
        data = fields.text("content").encode()
        return data, hashlib.sha256(data).hexdigest()
    named = fields.sha256("sha256")
    return blobs.get(named), named


def read_blobs(data: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """Bytes by their SHA-256, from base64. Raises InputError for a digest that does not fit its bytes."""
    blobs = {}
    for key, text in data.items():
        place = f"{where}.{key}"
        digest(key, place)
        try:
            blobs[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InputError(place, "this is not base64", "encode the bytes again") from None
        if hashlib.sha256(blobs[key]).hexdigest() != key:
            raise InputError(place, "the bytes have another digest than their key", "send them again")
    return blobs


def _is_in_place(found: Optional[files.Snapshot], value: Optional[Mapping[str, Any]]) -> bool:
    """Whether owner and mode are all that differs."""
    if found is None or value is None or found.sha256 != value["sha256"]:
        return False
    return bool(value.get("mtime_ns", found.mtime_ns) == found.mtime_ns)
