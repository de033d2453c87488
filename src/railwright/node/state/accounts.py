"""Users and groups of a node by name or number."""

from __future__ import annotations

import grp
import pwd
import re
from typing import Optional

from . import files
from .outcome import Refused

HIGHEST_ID = 2**32 - 2  # chown(2) takes the number after it, (uid_t) -1, for "leave it as it is"


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
    found = files.read(root, path)
    for line in (b"" if found is None else found.data).decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        number = account_number(fields[2]) if fields[0] == name and len(fields) > 2 else None
        if number is not None:
            return number
    raise _unknown(name, what)


def _unknown(name: str, what: str) -> Refused:
    return Refused(f"the node knows no {what} {name!r}", f"make the {what} first, or give its number")
