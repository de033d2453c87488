"""Values that the kernel holds: sysctls and files of sysfs. A reboot forgets them; the boot unit sets them again."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ..model import InputError
from .fields import Fields, absolute, expected, only_cell, under
from .item import Claim, Done, Item, Kept, Node, Reading, Value, World
from .outcome import Refused
from .switch_function import must_be_of_no_switch

_PLACES = ("/sys", "/proc/irq")
_SYSCTLS = "/proc/sys"
_SELECTED = re.compile(r"(?:^|\s)\[([^\]\s]+)\](?=\s|$)")


def chosen(text: str) -> str:
    """Of a file that shows all choices ("always [madvise] never") the chosen one; any other text as it is."""
    found = _SELECTED.findall(text)
    return found[0] if len(found) == 1 else text


def write_value(path: str, value: str) -> None:
    """Writes one value in one write, as the kernel wants it. Raises OSError."""
    data = (value + "\n").encode("utf-8", "surrogateescape")
    # O_TRUNC: sysfs does not mind, and a plain file that stands for it must not keep the end of the old value
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.EIO, "the kernel took a part of the value only", path)
    finally:
        os.close(fd)


def must_take_writes(path: str) -> None:
    """Raises Refused or OSError where no value can be written: a file without a write bit (for root neither: Linux
    fs/kernfs/file.c and fs/proc/proc_sysctl.c), a /sys or /proc that is mounted read-only, as in a container."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    if os.stat(path).st_mode & 0o222 == 0:
        raise Refused(f"{path} is read-only: the kernel takes no value there", "leave it out")


def read_value(path: str) -> Optional[str]:
    """The value without the white space around it, None where there is no such file. Raises OSError."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def inside(node: Node, path: str, places: tuple[str, ...]) -> str:
    """Where `path` leads on this node. Raises Refused when that is not in one of these folders of the kernel's: what
    stands for a node may hold a link that leads out of it."""
    real = os.path.realpath(node.at(path))
    if not under(real, tuple(os.path.realpath(node.at(place)) for place in places)):
        raise Refused(f"{path} leads to {real}", f"expected a path under {', '.join(places)}")
    if os.path.isdir(real):
        raise Refused(f"{path} is a folder", "name the file in it")
    return real


class _KernelValue(Item):
    """One value behind one path; the cell is the value as text."""

    value: str

    def path(self, node: Node) -> str:
        raise NotImplementedError

    def read(self, node: Node, kept: Kept, world: World) -> Reading:
        path = self.path(node)
        found = read_value(path)
        return Reading({} if found is None else {"": self.settled(found)}, detail=path)

    def wanted(self, reading: Reading) -> Mapping[str, Value]:
        return {"": self.value}

    def same(self, now: Value, value: Value) -> bool:
        # The kernel separates by tabs what people separate by spaces.
        return bool(now.split() == value.split())

    def check_cell(self, cell: str, value: Value, where: str) -> None:
        only_cell(cell, where)
        if not isinstance(value, str):
            raise expected(where, "text", value)

    def foresee(self, node: Node, reading: Reading, goal: Mapping[str, Value]) -> None:
        must_take_writes(reading.detail)

    def write(self, node: Node, reading: Reading, goal: Mapping[str, Value], world: World) -> Done:
        value = goal[""]
        try:
            write_value(reading.detail, value)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ERANGE, errno.ENODEV, errno.EOPNOTSUPP):
                raise Refused(
                    f"{self.id}: the kernel refuses {value!r}: {error.strerror}", "give a value that it takes"
                ) from error
            raise
        now = self.settled(read_value(reading.detail) or "")
        if not self.same(now, value):
            raise Refused(
                f"{self.id}: {value!r} was written and reads back as {now!r}",
                "write the value in the form in which the kernel shows it",
                changed=not self.same(now, reading.cells[""]),
            )
        return Done()

    def settled(self, text: str) -> str:
        """The value that is in force, of what the file shows."""
        return text


class SysctlItem(_KernelValue):
    """`{"kind": "sysctl", "name": "vm.zone_reclaim_mode", "value": "0"}`: the running value, under /proc/sys."""

    kind = "sysctl"
    turn = 1

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        self.key = fields.text("name")
        self.parts = _sysctl_parts(self.key, f"{fields.where}.name")
        self.value = one_line(fields)

    @property
    def id(self) -> str:
        return (
            f"sysctl:{'/'.join(self.parts)}"
            if any("." in part for part in self.parts)
            else f"sysctl:{'.'.join(self.parts)}"
        )

    def claims(self, node: Node) -> Iterable[Claim]:
        return [("sysctl", *self.parts)]

    def path(self, node: Node) -> str:
        return inside(node, f"{_SYSCTLS}/{'/'.join(self.parts)}", (_SYSCTLS,))

    def absent(self, cell: str) -> str:
        return f"the kernel has no sysctl {self.key}"


class SysfsItem(_KernelValue):
    """`{"kind": "sysfs", "path": "/sys/...", "value": "..."}`.

    Of a file that shows all choices ("always [madvise] never") the value is the chosen one.
    """

    kind = "sysfs"
    turn = 2

    def __init__(self, fields: Fields, entry: Mapping[str, Any], blobs: Mapping[str, bytes]) -> None:
        super().__init__(fields, entry, blobs)
        where = f"{fields.where}.path"
        self._path = absolute(fields.text("path"), where)
        if not under(self._path, _PLACES):
            raise InputError(
                where,
                f"{self._path} is no file of the kernel's",
                f"expected a path under {', '.join(_PLACES)}",
            )
        self.value = one_line(fields)

    @property
    def id(self) -> str:
        return f"sysfs:{self._path}"

    def claims(self, node: Node) -> Iterable[Claim]:
        # /sys is full of links: two names may be one value
        return [("sysfs", os.path.realpath(node.at(self._path)))]

    def path(self, node: Node) -> str:
        must_be_of_no_switch(node, self._path)
        return inside(node, self._path, _PLACES)

    def settled(self, text: str) -> str:
        return chosen(text)

    def absent(self, cell: str) -> str:
        return f"the kernel has no {self._path}"


def one_line(fields: Fields) -> str:
    """The `value` of an entry: one line, not empty. Raises InputError."""
    value = fields.text("value").strip()
    if not value or "\n" in value or "\0" in value:
        raise InputError(f"{fields.where}.value", f"{value!r} is no value", "expected one line of text")
    return value


def _sysctl_parts(name: str, where: str) -> tuple[str, ...]:
    """As sysctl.d(5): the first separator decides; where it is a slash, dots are a part of the names."""
    first = re.search(r"[./]", name)
    if first is not None and first[0] == ".":
        name = name.translate(str.maketrans("./", "/."))
    parts = tuple(name.split("/"))
    if first is None or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InputError(where, f"{name!r} is no sysctl", "expected a form like vm.zone_reclaim_mode")
    return parts
