"""A change of the network that nobody confirms is undone.

Before the change the node keeps the files as they are and starts a timer. When the time is over, the files are put
back and the back-end is told. Whoever calls the writer again before that has reached the node, and the change stands.
The time begins when the run has ended; until then longer timers stand for it, since other items may take their time.
The way back depends on no run, no connection and no program of ours: a shell script, a transient timer of systemd's for
this boot, and a unit for a boot that comes before its time is over.

A file in FOLDER says how things stand, and changes its name as they go on: "armed", "undoing" (the script is at work),
"undone". What was undone is not set again before the policy changes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional

from .. import durable
from . import files
from .command import Said
from .item import Node
from .outcome import Refused
from .place import FOLDER

CONFIRM = f"{FOLDER}/confirm"
_SCRIPT, _ARMED, _UNDOING, _UNDONE = "undo", "armed", "undoing", "undone"
_TIMER = "railwright-confirm"
# What a run may still take, in seconds. Before the back-end is told: images of the initramfs, links that train. After
# it: until the rails answer, then the start of the boot unit (TimeoutStartSec of 120 s).
ARMED, TOLD, ENDED = "armed", "told", "ended"
_SPARE = {ARMED: 3600, TOLD: 180, ENDED: 0}
_UNIT = "railwright-undo.service"
_UNIT_PATH = f"/etc/systemd/system/{_UNIT}"
# Every boot has this target; network-pre.target is there only where a firewall asks for it (systemd.special(7)).
_WANTED_BY = f"/etc/systemd/system/sysinit.target.wants/{_UNIT}"
# It runs before anything reads the network's configuration, and only where a change is still unconfirmed.
_UNIT_TEXT = f"""# Written by Railwright while a change of the network is unconfirmed; it goes with the confirmation.
[Unit]
Description=Railwright: undo a change of the network that nobody confirmed
DefaultDependencies=no
Wants=network-pre.target
After=local-fs.target
Before=network-pre.target systemd-networkd.service NetworkManager.service
ConditionPathExists=|{CONFIRM}/{_ARMED}
ConditionPathExists=|{CONFIRM}/{_UNDOING}

[Service]
Type=oneshot
ExecStart=/bin/sh {CONFIRM}/{_SCRIPT} boot
"""


@dataclass(frozen=True)
class Telling:
    """The commands that tell a back-end of files that were put back: while it runs, and at a boot before it does."""

    running: Sequence[Sequence[str]]
    at_boot: Sequence[Sequence[str]] = ()


def arm(
    node: Node, paths: Sequence[str], telling: Telling, seconds: int, change: Any, record: Any = None
) -> None:
    """Keeps these files as they are, and starts the timer. Raises Refused where there would be no way back.

    change: what is about to be set, to know it again. record: where it is about to be put back, what the record has of
    it, as JSON.
    """
    if node.systemctl is None or node.tools is None:
        raise Refused(
            "this root is no running node, so a change could not be undone", "set confirm_seconds to 0"
        )
    if os.path.lexists(node.at(f"{CONFIRM}/{_UNDOING}")):
        raise Refused(
            "an earlier change of the network is being undone just now",
            f"run again in a minute; if that does not help, run sh {CONFIRM}/{_SCRIPT} on the node",
        )
    _stop_timers(node)
    _clear(node)
    try:
        _prepare(node, paths, telling, seconds, {"change": change, "record": record})
    except (OSError, Refused):
        _stop_timers(node)
        _clear(node)
        raise


def _prepare(
    node: Node, paths: Sequence[str], telling: Telling, seconds: int, what: Mapping[str, Any]
) -> None:
    kept = {path: files.read(node.root, path) for path in paths}
    lines = [_keep(node, number, path, found) for number, (path, found) in enumerate(kept.items())]
    _write(node, f"{CONFIRM}/{_SCRIPT}", _script(node, lines, telling), "0700")
    _write(node, _UNIT_PATH, _UNIT_TEXT, "0644")
    _link(node)
    said = _start_timer(node, ARMED, seconds)
    if not said.ok:
        raise Refused(
            f"the timer that undoes the change cannot be started: {said.word}",
            "see systemctl status on the node; policy.rails.confirm_seconds 0 does without it",
        )
    # Last: until then nothing has changed, and what a killed run leaves undoes nothing.
    told = {
        **what,
        "seconds": seconds,
        "process": os.getpid(),
        "born": _born(os.getpid()),
        "restored": {path: found.sha256 for path, found in kept.items() if found is not None},
    }
    _write(node, f"{CONFIRM}/{_ARMED}", json.dumps(told), "0600")


def count(node: Node, stage: str) -> None:
    """The run has come so far (TOLD, ENDED). Where a timer does not start, the longer one before it stands."""
    told = _known(node, _ARMED) or {}
    seconds = told.get("seconds")
    if isinstance(seconds, int) and told.get("process") == os.getpid():
        _start_timer(node, stage, seconds)


def settle(node: Node) -> None:
    """Somebody has reached the node: what is armed stands from now on.

    But not while the run that armed is at work: then the node was reached before the change.
    """
    told = _known(node, _ARMED)
    if told is None or _is_at_work(told):
        return
    try:
        # The script takes its turn by the same rename, so one of the two has it.
        os.rename(node.at(f"{CONFIRM}/{_ARMED}"), node.at(f"{CONFIRM}/confirmed"))
    except (FileNotFoundError, NotADirectoryError):
        return
    _stop_timers(node)
    _clear(node)


def undone(node: Node) -> Optional[Mapping[str, Any]]:
    """What was undone: its "change", "record" (null for a setting), "seconds" and "restored" (SHA-256 by path); None
    where nothing was."""
    found = _known(node, _UNDONE)
    return _known(node, _UNDOING) if found is None else found


def _known(node: Node, name: str) -> Optional[Mapping[str, Any]]:
    try:
        with open(node.at(f"{CONFIRM}/{name}"), encoding="utf-8") as file:
            data = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def forget(node: Node) -> None:
    """Another network is in force, so what was undone is over. A change that is unconfirmed keeps its way back."""
    if os.path.lexists(node.at(f"{CONFIRM}/{_UNDONE}")):
        _clear(node)


def put_back(node: Node, path: str, sha256: str) -> bool:
    """Whether what lies there was put back, so that it is what an earlier run of ours had written."""
    restored = (undone(node) or {}).get("restored")
    return isinstance(restored, dict) and restored.get(path) == sha256


def _keep(node: Node, number: int, path: str, found: Optional[files.Snapshot]) -> str:
    """Keeps one file, and gives the line of the script that puts it back."""
    target = shlex.quote(node.at(path))
    if found is None:
        return f"rm -f {target}"
    copy = f"{CONFIRM}/{number}"
    content = files.Content(found.data, found.mode, found.uid, found.gid, found.mtime_ns)
    files.make_parents(node.root, copy)
    files.replace(node.root, copy, content, files.read(node.root, copy))
    beside = shlex.quote(node.at(path) + ".railwright-undo")
    kept = shlex.quote(node.at(copy))
    # On a full disk a rename may still go where a copy does not.
    return (
        f"mkdir -p {shlex.quote(os.path.dirname(node.at(path)))}; "
        f"{{ cp -p {kept} {beside} && mv -f {beside} {target}; }} || {{ rm -f {beside}; mv -f {kept} {target}; }}"
    )


def _script(node: Node, lines: Sequence[str], telling: Telling) -> str:
    wanted_by, unit = (shlex.quote(node.at(path)) for path in (_WANTED_BY, _UNIT_PATH))
    text = "\n".join(
        [
            "#!/bin/sh",
            "# Written by Railwright: the network as it was before a change after which nobody came back.",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            'cd "$(dirname -- "$0")" || exit 1',
            f"mv {_ARMED} {_UNDOING} 2>/dev/null",
            f"[ -e {_UNDOING} ] || exit 0",
            *lines,
            "sync",
            f"mv {_UNDOING} {_UNDONE}",
            f"rm -f {wanted_by} {unit}",
            f"rmdir -- {shlex.quote(os.path.dirname(node.at(_WANTED_BY)))} 2>/dev/null",
            "echo 'railwright: nobody came back after the last change of the network: it was undone'",
            'if [ "$1" = boot ]; then',
            *(_line(command) for command in telling.at_boot),
            "exit 0",
            "fi",
            *(_line(command) for command in telling.running),
            "exit 0",
        ]
    )
    return f"{text}\n"


def _line(command: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in command)


def _write(node: Node, path: str, text: str, mode: str) -> None:
    files.make_parents(node.root, path)
    content = files.Content(text.encode(), mode, os.geteuid(), os.getegid())
    files.replace(node.root, path, content, files.read(node.root, path))


def _link(node: Node) -> None:
    # Nothing reads it before the next boot, so systemd need not be told now.
    files.make_parents(node.root, _WANTED_BY)
    with suppress(FileExistsError):
        os.symlink(f"../{_UNIT}", node.at(_WANTED_BY))
    # Without it a loss of power after the change could leave a boot that undoes nothing.
    durable.sync(os.path.dirname(node.at(_WANTED_BY)))


def _start_timer(node: Node, stage: str, seconds: int) -> Said:
    if node.tools is None:
        return Said(None)
    return node.tools(
        [
            "systemd-run",
            "--quiet",
            f"--unit={_TIMER}-{stage}",
            f"--on-active={seconds + _SPARE[stage]}s",
            "--timer-property=AccuracySec=1s",
            "/bin/sh",
            node.at(f"{CONFIRM}/{_SCRIPT}"),
        ]
    )


def _stop_timers(node: Node) -> None:
    if node.systemctl is None:
        return
    with suppress(Refused):  # without systemctl there is no timer either
        for stage in _SPARE:
            node.systemctl(["stop", f"{_TIMER}-{stage}.timer"])
            node.systemctl(["reset-failed", f"{_TIMER}-{stage}.service"])


def _is_at_work(told: Mapping[str, Any]) -> bool:
    """Whether the run that armed is another process than this one, and has not ended."""
    process, born = told.get("process"), told.get("born")
    return isinstance(process, int) and process != os.getpid() and born is not None and _born(process) == born


def _born(process: int) -> Optional[str]:
    """When a process began, in ticks since the boot (field 22 of proc_pid_stat(5)); None where it has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A process that has ended and that nobody has asked after yet is at work no more.
    return fields[19].decode() if fields[0] not in (b"Z", b"X") else None


def _clear(node: Node) -> None:
    """Takes everything away, the unit first: it starts nothing without its folder."""
    for path in (_WANTED_BY, _UNIT_PATH):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(node.at(path))
    with suppress(OSError):
        os.rmdir(node.at(os.path.dirname(_WANTED_BY)))
    try:
        names = os.listdir(node.at(CONFIRM))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(node.at(f"{CONFIRM}/{name}"))
    with suppress(OSError):
        os.rmdir(node.at(CONFIRM))
        # After everything was put back nothing else is in it.
        os.rmdir(node.at(FOLDER))
