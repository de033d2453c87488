"""Limits that are in force, against what the plan's drop-ins say: what a file says is not what a process has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Optional

from ..model import Facts, Finding, Plan
from ..model.limit_facts import Limits, ProcessLimits
from .answer import Answer, unseen

_DROP_IN = re.compile(r"/etc/systemd/system/([^/]+\.service)\.d/60-railwright-limits\.conf")
_LINE = re.compile(r"^Limit(MEMLOCK|NOFILE)=(infinity|[0-9]+)(K?)$", re.MULTILINE)
_NAMES = {"MEMLOCK": "locked memory", "NOFILE": "open files"}
_UNLIMITED = "unlimited"
_SSH = ("ssh.service", "sshd.service")
_RUNNING, _LOGIN = "limits.running", "limits.login"


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """One answer for each daemon that runs, and one for logins. Nothing where the plan sets no limits."""
    part = plan.slices.get("limits")
    if part is None:
        return
    known = facts.limits
    if known is None:
        why = "the facts do not tell what running processes have"
        yield unseen(_RUNNING, "limits", why, "read the node itself: railwright check PLAN")
        return
    wanted = {
        match[1]: _values(str(entry.get("content", "")))
        for entry in part.entries
        if (match := _DROP_IN.fullmatch(str(entry.get("path", "")))) is not None
    }
    reached = known.use_pam is True and known.pam.get("sshd") is True
    for one in known.processes:
        values = wanted.get(one.unit) or wanted.get(f"{one.unit.partition('@')[0]}@.service")
        if values is not None:
            yield from _of_process(one, values, reached)
    yield from _of_logins(known)


def _values(text: str) -> dict[str, Optional[int]]:
    """What a drop-in sets, in bytes and numbers; None is without limit."""
    return {
        name: None if word == "infinity" else int(word) * (1024 if suffix else 1)
        for name, word, suffix in _LINE.findall(text)
    }


def _of_process(one: ProcessLimits, values: Mapping[str, Optional[int]], reached: bool) -> Iterator[Answer]:
    """reached: whether logins have their limits from PAM, so that those of sshd itself reach nobody."""
    has = {"MEMLOCK": one.memlock[0], "NOFILE": one.nofile[0]}
    short = [
        f"{_NAMES[name]} {has[name]}, planned {_UNLIMITED if wanted is None else wanted}"
        for name, wanted in values.items()
        if has[name] != _UNLIMITED and (wanted is None or int(has[name]) < wanted)
    ]
    if not short:
        yield Answer(_RUNNING)
        return
    template = "@" in one.unit
    passing = template or (reached and one.unit in _SSH)
    # Whoever logs in anew has it, and a login that is open may have somebody's work below it.
    remedy = (
        "log out and in again" if template else f"systemctl restart {one.unit} when nobody's work is below it"
    )
    why = f"{one.process} runs with {'; '.join(short)}, and so does all that it starts"
    yield Answer(_RUNNING, Finding(_RUNNING, "info" if passing else "warning", one.unit, why, remedy))


def _of_logins(known: Limits) -> Iterator[Answer]:
    runs = known.pam.get("sshd")
    if known.use_pam is False or runs is False:
        what = "sshd opens no session of PAM" if known.use_pam is False else "its session runs no pam_limits"
        remedy = "UsePAM yes in sshd_config, and `session required pam_limits.so` in /etc/pam.d/sshd"
        yield Answer(
            _LOGIN, Finding(_LOGIN, "warning", "sshd", f"{what}: limits.d does not reach SSH", remedy)
        )
    elif known.use_pam is None or runs is None:
        yield unseen(
            _LOGIN, "sshd", "the files of sshd and PAM do not tell", "log in over SSH and see `ulimit -l`"
        )
    else:
        yield Answer(_LOGIN)
