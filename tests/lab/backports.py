"""Programs that this machine's Debian has only in its backports: the emulator, on Debian 12."""

from __future__ import annotations

import re
from pathlib import Path

from . import debian
from .shell import call

SOURCE = Path("/etc/apt/sources.list.d/railwright-lab.sources")
# The suite whose own emulator is too old.
_TOO_OLD = "bookworm"
_PAGE = """\
Types: deb
URIs: {mirror}
Suites: {suite}
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def target(os_release: str) -> str | None:
    """The suite to take the emulator from, where it is not the machine's own. os_release: the text of that file."""
    codename = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', os_release, re.MULTILINE)
    return f"{_TOO_OLD}-backports" if codename and codename[1] == _TOO_OLD else None


def subscribe(suite: str) -> None:
    """Tells this machine's apt of a suite that it may not know yet. Raises LabError."""
    if f"n={suite}," in call(["apt-cache", "policy"]):
        return
    SOURCE.write_text(_PAGE.format(mirror=debian.mirror(), suite=suite), encoding="utf-8")
