"""Names of this machine, its domain and its users, looked up so that they can be recognised in what is collected."""

from __future__ import annotations

import os

from ..node.discover.tree import Tree

_BYTES = 4 * 1024 * 1024
# Accounts of people: below are those of the distribution, 65534 is nobody (systemd, Users, Groups, UIDs and GIDs).
_PEOPLE = range(1000, 65534)
_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")


def names_of(tree: Tree) -> set[str]:
    """Host names, domains and users by etc and proc below the root, on a live machine also by the environment."""
    found = set()
    for path in ("etc/hostname", "proc/sys/kernel/hostname", "proc/sys/kernel/domainname"):
        found.update((tree.text(path) or "").split())
    for line in _lines(tree, "etc/resolv.conf"):
        words = line.split()
        if words[:1] in (["search"], ["domain"]):
            found.update(words[1:])
    for line in _lines(tree, "etc/hosts"):
        found.update(line.split()[1:])
    for line in _lines(tree, "etc/passwd"):
        fields = line.split(":")
        if len(fields) == 7 and fields[2].isdigit() and int(fields[2]) in _PEOPLE:
            found.add(fields[0])
    if tree.live:
        found.update(os.environ.get(variable, "") for variable in _VARIABLES)
        found.add(os.uname().nodename)
    return found


def _lines(tree: Tree, path: str) -> list[str]:
    return [line.partition("#")[0] for line in (tree.text(path, _BYTES) or "").splitlines()]
