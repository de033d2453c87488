"""Files, safely: read without following a link, replaced whole or not at all, under the right mode from the start.

Every path is walked folder by folder with file descriptors, so what was looked at is what is written. A link on the
way is followed only where root (or the user of this process) made it; a link at the end is never followed.

The times of folders are not put back: udev and systemd see by them that a file of theirs has gone.
"""

from __future__ import annotations

import array
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Optional

from .outcome import Foreign, Refused, StateError

# What is replaced is kept in the record, which is read in one piece at every run.
LARGEST = 16 * 1024 * 1024
# linux/fs.h: FS_IOC_GETFLAGS, FS_IMMUTABLE_FL and FS_APPEND_FL.
_GET_FLAGS, _IMMUTABLE, _APPEND = 0x80086601, 0x10, 0x20
# They say who may read it: without them it would be another file.
_KEPT = ("security.selinux", "system.posix_acl_access")
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


def landing(root: str, path: str) -> str:
    """Where `path` leads when the links on its way are followed, inside the node; `path` itself where it cannot be
    followed, which its reader then says."""
    *way, name = path.split("/")[1:]
    try:
        fd, place, missing = _walk(root, path, way)
    except (OSError, Refused):
        return path
    os.close(fd)
    return "/" + "/".join([*place, *missing, name])


def must_be_writable(root: str, path: str, in_place: bool) -> None:
    """Raises the OSError that a write of this file would end with, as far as that can be told without writing: a file
    system that is read-only, a file or folder that is immutable or append-only.

    in_place: owner and mode only, so that the folder stays as it is.
    """
    with _parent(root, path) as (folder, name, missing):
        if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        exists = False
        if not missing:
            with suppress(OSError):  # whoever reads the file says it
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                exists = True
                try:
                    fixed = _flags(fd) & (_IMMUTABLE | _APPEND)
                    # A file that was mounted over another one may lie on a file system of its own.
                    read_only = os.fstatvfs(fd).f_flag & os.ST_RDONLY
                finally:
                    os.close(fd)
        if exists and (fixed or read_only):
            number = errno.EPERM if fixed else errno.EROFS
            raise OSError(number, os.strerror(number), path)
        if not in_place and _flags(folder) & (_IMMUTABLE | (_APPEND if not missing else 0)):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)


def _must_be_ours(path: str, uid: int, mode: str) -> None:
    """Raises StateError for what others could have written: whoever can write it decides what root does."""
    if uid != os.geteuid() or int(mode, 8) & 0o022:
        raise StateError(
            path,
            f"it belongs to user {uid} with mode {mode}, so others may have written it",
            "look at it, then give it back to root with mode 0600",
        )


def read_ours(root: str, path: str) -> Optional[Snapshot]:
    """A file of the writer's own; None where there is none. Raises StateError for one that is not its own."""
    try:
        found = read(root, path)
    except Refused as error:
        raise StateError(path, error.why, error.remedy) from None
    except OSError as error:
        raise StateError(path, f"{error.strerror}", "run as root (become: true)") from error
    if found is not None:
        _must_be_ours(path, found.uid, found.mode)
    return found


def _flags(fd: int) -> int:
    """The attributes that chattr(1) sets; 0 on a file system that has none."""
    found = array.array("i", [0, 0])  # the kernel writes an int where its number says a long: ioctl_iflags(2)
    try:
        fcntl.ioctl(fd, _GET_FLAGS, found)
    except OSError:
        return 0
    return found[0]


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


@contextmanager
def _parent(root: str, path: str) -> Iterator[tuple[int, str, Sequence[str]]]:
    """The folder above `path`, its last name, and the names on the way that do not exist (the folder is then the
    last one that does)."""
    names = path.split("/")[1:]
    fd, _, missing = _walk(root, path, names[:-1])
    try:
        yield fd, names[-1], missing
    finally:
        os.close(fd)


def _walk(root: str, path: str, names: Sequence[str]) -> tuple[int, Sequence[str], Sequence[str]]:
    """The last folder on the way that exists, its names without links, and the names that are missing below it."""
    todo = list(names)
    place: list[str] = []
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
                    place.pop()
                continue
            try:
                stack.append(os.open(name, _FOLDER, dir_fd=stack[-1]))
                place.append(name)
            except FileNotFoundError:
                if from_link:
                    raise Foreign(
                        f"a link on the way to {path} leads nowhere", "mend or remove the link"
                    ) from None
                return stack.pop(), place, [name, *todo]
            except NotADirectoryError:
                links += 1
                target = _trusted_link(path, name, stack[-1], links)
                if target.startswith("/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                    place.clear()
                todo[:0] = [part for part in target.split("/") if part not in ("", ".")]
        return stack.pop(), place, []
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
    """Copies ACL, SELinux label and the like. Raises OSError where the first two cannot be kept."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        known = _attributes(target)
        for attribute, value in _attributes(source).items():
            if known.get(attribute) != value:
                try:
                    os.setxattr(target, attribute, value)
                except OSError as error:
                    if attribute in _KEPT or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                        raise
    finally:
        os.close(source)


def _attributes(fd: int) -> dict[str, bytes]:
    found = {}
    with suppress(OSError):  # a file system without any
        for attribute in os.listxattr(fd):
            with suppress(OSError):
                found[attribute] = os.getxattr(fd, attribute)
    return found


def _unlink(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
