"""What slices are made of: entries in the form that the writer of nodes takes, and the first line of our files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Entry = dict[str, Any]

HEADER = "# Written by Railwright; changes made here are lost.\n"
# apt's configuration takes no "#" there.
CONF_HEADER = "// Written by Railwright; changes made here are lost.\n"


def file(path: str, content: str, mode: str = "0644", *, reboot: bool = False) -> Entry:
    """A file that is wholly ours. reboot: whether it takes effect at the next boot."""
    entry: Entry = {"kind": "file", "path": path, "content": content, "mode": mode}
    return {**entry, "reboot": True} if reboot else entry


def unit(name: str, watched: Sequence[str]) -> Entry:
    """A unit that is enabled and runs, and is started again where one of the watched files is newer."""
    return {
        "kind": "systemd_unit",
        "name": name,
        "enabled": True,
        "state": "started",
        "restart_if_older_than": list(watched),
    }
