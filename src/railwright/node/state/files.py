"""Files, safely: read without following a link, replaced whole or not at all, under the right mode from the start.

Every path is walked folder by folder with file descriptors, so what was looked at is what is written. A link on the
way is followed only where root (or the user of this process) made it; a link at the end is never followed.

The times of folders are not put back: udev and systemd see by them that a file of theirs has gone.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Optional

from .outcome import Foreign, Refused

# What is replaced is kept in the record, which is read in one piece at every run.
LARGEST = 16 * 1024 * 1024
HIGHEST_ID = 2**32 - 2  # chown(2) takes the number after it, (uid_t) -1, for "leave it as it is"
_MOST_LINKS = 40  # MAXSYMLINKS of the kernel, include/linux/namei.h
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Snapshot:
    """A regular file as it was read: bytes, mode ("0644"), owner and times. identity changes with every write."""

    data: bytes
    mode: str
    uid: int
    gid: int
    mtime_ns: int
    identity: tuple[int, int, int]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Content:
    """A file to be written. mtime_ns: None is now."""

    data: bytes
    mode: str
    uid: int
    gid: int
    mtime_ns: Optional[int] = None


def temporary(name: str) -> str:
    """The one name under which a new `name` is prepared: fixed, so that a crash leaves nothing to search for."""
    return f".{name}.railwright"


def read(root: str, path: str) -> Optional[Snapshot]:
    """The file at `path`, None when there is none. Raises Refused for a link, a folder or a device in its place."""
    with _parent(root, path) as (folder, name, missing):
        if missing:
            return None
        try:
            found = os.lstat(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        _must_be_regular(path, name, folder, found)
        # O_NONBLOCK: a FIFO put there since must not hold the run
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            _must_be_regular(path, name, folder, found)
            data = file.read()
        return Snapshot(data, _octal(found), found.st_uid, found.st_gid, found.st_mtime_ns, _identity(found))


def missing_parents(root: str, path: str) -> tuple[str, ...]:
    """The folders above `path` that do not exist, outermost first."""
    with _parent(root, path) as (_, _, missing):
        parts = path.split("/")
        count = len(parts) - 1 - len(missing)
        return tuple("/".join(parts[: count + n + 1]) for n in range(len(missing)))


def make_parents(root: str, path: str) -> None:
    """Makes the missing folders above `path`, mode 0755 whatever the umask."""
    for folder in missing_parents(root, path):
        with _parent(root, folder) as (parent, name, _):
            # In one step: a run that is killed must not leave a folder with half its mode.
            umask = os.umask(0)
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
            finally:
                os.umask(umask)
            os.fsync(parent)


def replace(root: str, path: str, content: Content, seen: Optional[Snapshot]) -> None:
    """Puts `content` at `path`: all of it, or what was there stays. The extended attributes of the old file are kept.

    seen: what `read` found. Raises Refused when it is not there any more, OSError when the node cannot (disk full).
    """
    with _parent(root, path) as (folder, name, _):
        temp = temporary(name)
        _unlink(folder, temp)
        fd = os.open(
            temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        try:
            try:
                # Owner, then attributes, then mode (an ACL's mask is the group's bits), and only then the content.
                os.fchown(fd, content.uid, content.gid)
                if seen is not None:
                    _copy_attributes(folder, name, fd)
                os.fchmod(fd, int(content.mode, 8))
                _write_all(fd, content.data)
                if content.mtime_ns is not None:
                    os.utime(fd, ns=(content.mtime_ns, content.mtime_ns))
                os.fsync(fd)
            finally:
                os.close(fd)
            _must_be_as_seen(path, name, folder, seen)
            os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _unlink(folder, temp)
            raise
        os.fsync(folder)


def set_owner_and_mode(root: str, path: str, mode: str, uid: int, gid: int, seen: Snapshot) -> None:
    """Sets owner and mode and leaves content, inode and mtime alone. Raises Refused when it is not as `seen`."""
    with _parent(root, path) as (folder, name, _):
        _must_be_as_seen(path, name, folder, seen)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            # The owner first: the kernel takes the set-user-ID bit away when it changes.
            os.fchown(fd, uid, gid)
            os.fchmod(fd, int(mode, 8))
            os.fsync(fd)
        finally:
            os.close(fd)


def remove(root: str, path: str, seen: Snapshot) -> None:
    """Removes the file. Raises Refused when it is not as `seen`."""
    with _parent(root, path) as (folder, name, _):
        _must_be_as_seen(path, name, folder, seen)
        os.unlink(name, dir_fd=folder)
        os.fsync(folder)


def sweep(root: str, path: str) -> None:
    """Removes what a run that was killed left beside `path`."""
    with _parent(root, path) as (folder, name, missing):
        if not missing:
            _unlink(folder, temporary(name))


def remove_if_empty(root: str, path: str) -> bool:
    """Removes the folder when nothing lies in it; whether it is gone now."""
    with _parent(root, path) as (folder, name, missing):
        if missing:
            return True
        try:
            os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            # EBUSY: something is mounted there. ENOTDIR: somebody put a file in its place.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                return False
            raise
        os.fsync(folder)
        return True


def account_number(text: str) -> Optional[int]:
    """The number of a user or group that is given as a number; None when it is a name or no number of any."""
    if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) is None or int(text) > HIGHEST_ID:
        return None
    return int(text)


def user_id(root: str, name: str) -> int:
    """The number of a user. Raises Refused when the node does not know it."""
    number = 0 if name == "root" else account_number(name)
    if number is not None:
        return number
    if root != "/":
        return _listed(root, "/etc/passwd", name, "user")
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown(name, "user") from None


def group_id(root: str, name: str) -> int:
    """The number of a group. Raises Refused when the node does not know it."""
    number = 0 if name == "root" else account_number(name)
    if number is not None:
        return number
    if root != "/":
        return _listed(root, "/etc/group", name, "group")
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise _unknown(name, "group") from None


def _listed(root: str, path: str, name: str, what: str) -> int:
    found = read(root, path)
    for line in (b"" if found is None else found.data).decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        number = account_number(fields[2]) if fields[0] == name and len(fields) > 2 else None
        if number is not None:
            return number
    raise _unknown(name, what)


def _unknown(name: str, what: str) -> Refused:
    return Refused(f"the node knows no {what} {name!r}", f"make the {what} first, or give its number")


@contextmanager
def _parent(root: str, path: str) -> Iterator[tuple[int, str, Sequence[str]]]:
    """The folder above `path`, its last name, and the names on the way that do not exist (the folder is then the
    last one that does)."""
    names = path.split("/")[1:]
    fd, missing = _walk(root, path, names[:-1])
    try:
        yield fd, names[-1], missing
    finally:
        os.close(fd)


def _walk(root: str, path: str, names: Sequence[str]) -> tuple[int, Sequence[str]]:
    todo = list(names)
    own = len(todo)  # so many at the end of `todo` are names of the path; a link's names stand before them
    links = 0
    stack = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        while todo:
            name = todo.pop(0)
            from_link = len(todo) >= own
            own = min(own, len(todo))
            if name == "..":  # only a link brings one; above the root is the root
                if len(stack) > 1:
                    os.close(stack.pop())
                continue
            try:
                stack.append(os.open(name, _FOLDER, dir_fd=stack[-1]))
            except FileNotFoundError:
                if from_link:
                    raise Foreign(
                        f"a link on the way to {path} leads nowhere", "mend or remove the link"
                    ) from None
                return stack.pop(), [name, *todo]
            except NotADirectoryError:
                links += 1
                target = _trusted_link(path, name, stack[-1], links)
                if target.startswith("/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                todo[:0] = [part for part in target.split("/") if part not in ("", ".")]
        return stack.pop(), []
    finally:
        for fd in stack:
            os.close(fd)


def _trusted_link(path: str, name: str, folder: int, links: int) -> str:
    found = os.lstat(name, dir_fd=folder)
    if not stat.S_ISLNK(found.st_mode):
        raise Foreign(f"{name!r} on the way to {path} is no folder", "move it away")
    target = os.readlink(name, dir_fd=folder)
    if found.st_uid not in (0, os.geteuid()):
        raise Foreign(
            f"{name!r} on the way to {path} is a link to {target} that user {found.st_uid} made",
            "a link on the way must be root's own",
        )
    if links > _MOST_LINKS:
        raise Foreign(f"{name!r} on the way to {path} is a link to itself", "put a folder in its place")
    return target


def _must_be_regular(path: str, name: str, folder: int, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=folder)
        raise Foreign(
            f"{path} is a symbolic link to {target}; links are never followed",
            "remove the link, or manage the file that it names",
        )
    if stat.S_ISDIR(found.st_mode):
        raise Foreign(f"{path} is a folder", "move it away; a file belongs there")
    if not stat.S_ISREG(found.st_mode):
        raise Foreign(f"{path} is no regular file", "move it away; a file belongs there")
    if found.st_size > LARGEST:
        raise Foreign(
            f"{path} has {found.st_size} bytes; at most {LARGEST} can be kept for putting back",
            "move it away; is it a log?",
        )


def _must_be_as_seen(path: str, name: str, folder: int, seen: Optional[Snapshot]) -> None:
    try:
        found = _identity(os.lstat(name, dir_fd=folder))
    except FileNotFoundError:
        found = None
    if found != (None if seen is None else seen.identity):
        raise Refused(f"{path} changed while this run was at work", "run again, and see who else writes it")


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_ctime_ns


def _octal(found: os.stat_result) -> str:
    return format(stat.S_IMODE(found.st_mode), "04o")


def _write_all(fd: int, data: bytes) -> None:
    # One write may take less than all of it, on a disk that is getting full above all.
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _copy_attributes(folder: int, name: str, target: int) -> None:
    """Copies ACL, SELinux label and the like, as far as this file system and this process may."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        with suppress(OSError):
            for attribute in os.listxattr(source):
                with suppress(OSError):
                    os.setxattr(target, attribute, os.getxattr(source, attribute))
    finally:
        os.close(source)


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
