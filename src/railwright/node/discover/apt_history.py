"""Who last changed the driver's packages: apt's own log of its transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Optional

from ..model.driver_packages import is_driver
from ..model.software import Moved

# apt-pkg/deb/dpkgpm.cc of apt 2.6: a stanza for each transaction; logrotate begins the file anew every month.
HISTORY = "var/log/apt/history.log"
HISTORY_BYTES = 16 * 1024 * 1024
_FIELD = re.compile(r"^(Start-Date|Commandline|Install|Upgrade|Downgrade|Remove|Purge): *(.*)$", re.MULTILINE)
# "NAME:ARCH (OLD, NEW)", "NAME:ARCH (VERSION)" and "NAME:ARCH (VERSION, automatic)".
_PACKAGE = re.compile(r"([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)? \(([^(),]+)(?:, ([^(),]+))?\)")
_MOST = 200


def last_move(text: str) -> Optional[Moved]:
    """The last transaction of the log that has a package of the driver in it; None where none has."""
    for stanza in reversed(re.split(r"\n\s*\n", text)):
        fields = dict(_FIELD.findall(stanza))
        what = next(_moves(fields), None)
        if what is not None:
            at = " ".join(fields.get("Start-Date", "").split())
            return Moved(at[:_MOST], fields.get("Commandline", "")[:_MOST], what[:_MOST])
    return None


def _moves(fields: dict[str, str]) -> Iterator[str]:
    for act in ("Upgrade", "Downgrade", "Install", "Remove", "Purge"):
        for name, old, new in _PACKAGE.findall(fields.get(act, "")):
            if not is_driver(name):
                continue
            if act in ("Upgrade", "Downgrade"):
                yield f"{name} {old} -> {new}"
            else:
                yield f"{name} {old} {'came' if act == 'Install' else 'went'}"
