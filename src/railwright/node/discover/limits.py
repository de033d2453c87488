"""Limits: of running daemons, of logins by PAM, and what Slurm does with them."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Optional

from ..model import InputError
from ..model.limit_facts import Limits, ProcessLimits, SlurmPropagation
from .tree import Tree

# Daemons whose children are somebody's work. Debian and Ubuntu call sshd's unit ssh.service.
SERVICES = (
    "containerd.service",
    "crio.service",
    "docker.service",
    "podman.service",
    "slurmd.service",
    "ssh.service",
    "sshd.service",
    "user@.service",
)
_PROCESSES = ("sshd", "slurmd", "dockerd", "containerd", "crio", "podman", "systemd")
_UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_PAM_FOLDERS = ("etc/pam.d", "usr/lib/pam.d")
_PAM_SERVICES = ("sshd", "login", "slurm")
_SLURM = ("etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf")
_UNIT = re.compile(r"/([A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,200}\.service)(?:/|$)")
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_LIMIT = re.compile(
    r"^(Max locked memory|Max open files)\s+(unlimited|[0-9]{1,20})\s+(unlimited|[0-9]{1,20})\s", re.MULTILINE
)
# user_namespaces(7): the first one's map; only there does the capability reach the limits themselves.
_FIRST_NAMESPACE = ["0", "0", "4294967295"]
_CAPABILITIES = re.compile(r"^CapBnd:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_SYS_RESOURCE = 24  # include/uapi/linux/capability.h
_PAM_LINE = re.compile(r"-?(account|auth|password|session)\s+(\[[^]]*\]|\S+)\s+(\S+)(.*)", re.IGNORECASE)
_PAM_INCLUDE = re.compile(r"@include\s+(\S+)", re.IGNORECASE)
# Files of PAM or sshd that are read for one answer; what names more, each other in a ring say, is not told.
_MOST_FILES = 64
# A file of sshd that cannot be read may hold the line.
_UNKNOWN = "?"
_TEXT_BYTES = 1024 * 1024
_MOST_PROCESSES = 16
_MOST_WORDS = 64


def read_limits(tree: Tree, running: Mapping[int, str]) -> Limits:
    """running: names of processes by number."""
    nr_open = tree.text("proc/sys/fs/nr_open") or ""
    return Limits(
        units=tuple(name for name in SERVICES if _has_unit(tree, name)),
        processes=_daemons(tree, running),
        first=_process(tree, 1, "init.scope", running.get(1, "")),
        may_raise=_may_raise(tree),
        nr_open=int(nr_open) if _NUMBER.fullmatch(nr_open) else None,
        pam={
            name: with_limits(tree, name)
            for name in _PAM_SERVICES
            if any(tree.exists(f"{folder}/{name}") for folder in _PAM_FOLDERS)
        },
        use_pam=_use_pam(tree),
        slurm=_slurm(tree),
    )


def _may_raise(tree: Tree) -> Optional[bool]:
    """Whether PID 1 may raise a hard limit; None where that cannot be told."""
    status = _CAPABILITIES.search(tree.text("proc/1/status") or "")
    has = None if status is None else bool(int(status[1], 16) >> _SYS_RESOURCE & 1)
    namespace = tree.text("proc/1/uid_map")
    return False if namespace and namespace.split() != _FIRST_NAMESPACE else has


def _has_unit(tree: Tree, name: str) -> bool:
    """A link is another name of a unit that counts by its own."""
    found = (tree.status(f"{folder}/{name}") for folder in _UNIT_FOLDERS)
    return any(one is not None and stat.S_ISREG(one.st_mode) for one in found)


# ----- running processes ---------------------------------------------------------------------------------------------


def _daemons(tree: Tree, running: Mapping[int, str]) -> tuple[ProcessLimits, ...]:
    """One for each unit and process name: a unit's first process is the daemon, its children have the same limits."""
    found: dict[tuple[str, str], ProcessLimits] = {}
    # Of each name so many: hundreds of logins must not hide a daemon that was started after them.
    numbers = [
        number
        for wanted in _PROCESSES
        for number in [number for number, name in running.items() if name == wanted and number != 1][
            :_MOST_PROCESSES
        ]
    ]
    for number in numbers:
        unit = _UNIT.search(tree.text(f"proc/{number}/cgroup") or "")
        if unit is None:
            continue
        one = _process(tree, number, unit[1], running[number])
        if one is not None:
            found.setdefault((one.unit, one.process), one)
    return tuple(found[key] for key in sorted(found))


def _process(tree: Tree, number: int, unit: str, name: str) -> Optional[ProcessLimits]:
    words = {
        match[1]: (match[2], match[3])
        for match in _LIMIT.finditer((tree.text(f"proc/{number}/limits") or "") + "\n")
    }
    memlock, nofile = words.get("Max locked memory"), words.get("Max open files")
    return None if memlock is None or nofile is None else ProcessLimits(unit, name, memlock, nofile)


# ----- logins --------------------------------------------------------------------------------------------------------


def with_limits(tree: Tree, service: str) -> Optional[bool]:
    """Whether a session of this service runs pam_limits with its usual files; None where that cannot be told."""
    unclear = False
    for found in _session(tree, service, set()):
        if found:
            return True
        unclear = True
    return None if unclear else False


def _session(tree: Tree, service: str, seen: set[str], way: tuple[str, ...] = ()) -> Iterator[Optional[bool]]:
    """True for each pam_limits, None for each line or file that cannot be read.

    seen: files, each is read once. way: those that lead here; PAM does not get out of a ring.
    """
    if service in seen:
        yield from [None] if service in way else []
        return
    seen.add(service)
    texts = (_page(tree, f"{folder}/{service}") for folder in _PAM_FOLDERS)
    text = None if "/" in service else next((text for text in texts if text is not None), None)
    if text is None or len(seen) > _MOST_FILES:
        yield None
        return
    for line in _joined(text):
        include = _PAM_INCLUDE.fullmatch(line)
        match = _PAM_LINE.fullmatch(line)
        if include is not None:
            yield from _session(tree, include[1], seen, (*way, service))
        elif match is None:
            yield None
        elif match[1].lower() != "session":
            continue
        elif match[2].lower() in ("include", "substack"):
            yield from _session(tree, match[3], seen, (*way, service))
        elif posixpath.basename(match[3]) == "pam_limits.so":
            # With a file of its own it reads that one and not limits.d (pam_limits(8)).
            yield True if "conf=" not in match[4] else None


def _joined(text: str) -> Iterator[str]:
    """Lines without comments, those that end with a backslash joined."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = line.partition("#")[0].strip()
        if bare:
            yield bare


def _page(tree: Tree, path: str) -> Optional[str]:
    """A text that somebody wrote the name of; None where it names none that can be read."""
    try:
        return None if "\0" in path else tree.text(path, _TEXT_BYTES)
    except InputError:
        return None


def _use_pam(tree: Tree) -> Optional[bool]:
    """sshd_config(5): the first value counts, and without any it is no."""
    if not tree.exists("etc/ssh/sshd_config"):
        return None
    word = next(_sshd_words(tree, "etc/ssh/sshd_config", set()), "no").lower()
    return {"yes": True, "no": False}.get(word)


def _sshd_words(tree: Tree, path: str, seen: set[str]) -> Iterator[str]:
    """What stands behind UsePAM, in order. seen: files; one that comes again says nothing that did not come before."""
    if path in seen:
        return
    seen.add(path)
    text = _page(tree, path)
    if text is None or len(seen) > _MOST_FILES:
        yield _UNKNOWN
        return
    for line in text.splitlines():
        words = line.partition("#")[0].replace("=", " ").replace('"', " ").split()
        key = words[0].lower() if words else ""
        if key == "match":
            return
        if key == "usepam" and len(words) > 1:
            yield words[1]
        elif key == "include":
            for pattern in words[1:]:
                whole = pattern if pattern.startswith("/") else f"/etc/ssh/{pattern}"
                folder, _, name = whole.lstrip("/").rpartition("/")
                for found in () if "\0" in whole else fnmatch.filter(tree.names(folder), name):
                    yield from _sshd_words(tree, f"{folder}/{found}", seen)


# ----- Slurm ---------------------------------------------------------------------------------------------------------


def _slurm(tree: Tree) -> Optional[SlurmPropagation]:
    path = next((path for path in _SLURM if tree.exists(path)), None)
    if path is None:
        return None
    found: dict[str, tuple[str, ...]] = {}
    for line in _joined(tree.text(path, _TEXT_BYTES) or ""):
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip().lower()] = tuple(word for word in value.strip().upper().split(",") if word)[
                :_MOST_WORDS
            ]
    return SlurmPropagation(
        f"/{path}", found.get("propagateresourcelimits"), found.get("propagateresourcelimitsexcept")
    )
