"""What it costs on this node to run one command over SSH, before that command begins."""

from __future__ import annotations

import os
import re
from typing import Optional

from .tree import Tree

# The name in brackets may hold spaces and brackets; the fields behind it are numbers (proc(5), /proc/PID/stat).
_STAT = re.compile(r"\d+ \((.*)\) \S (.*)", re.DOTALL | re.ASCII)
# Fields behind the state, counted from 0: the parent; CPU in user and kernel mode, own and of children waited for.
_PARENT, _OWN_AND_CHILDREN = 0, slice(10, 14)
# sshd, its session's process ("sshd-session" since OpenSSH 9.8), a shell, sudo and a shell again: ten is plenty.
_MOST = 10


def read_login_ms(tree: Tree) -> Optional[int]:
    """Milliseconds of CPU that the shells between sshd and this process took, their start-up files' commands included.

    None where no sshd is above this process, and for a recorded machine.
    """
    if not tree.live:
        return None
    ticks, pid = 0, os.getppid()
    for _ in range(_MOST):
        match = _STAT.fullmatch(tree.text(f"proc/{pid}/stat") or "")
        if match is None:
            return None
        if match[1].startswith("sshd"):
            return ticks * 1000 // os.sysconf("SC_CLK_TCK")
        fields = match[2].split()
        ticks += sum(int(field) for field in fields[_OWN_AND_CHILDREN])
        pid = int(fields[_PARENT])
    return None
