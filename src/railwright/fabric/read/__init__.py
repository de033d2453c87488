"""Readers of switch configuration: from a file of any system to `SwitchState`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from railwright.captures.source import Source
from railwright.node.model import InputError

from ..state import SwitchState
from ..texts import load_text
from . import eos, nvue, nxos, sonic

# The leaf ports asked for; a file may hold thousands of others.
READERS: dict[str, Callable[[Source, Iterable[str]], SwitchState]] = {
    "sonic": sonic.read,
    "nvue": nvue.read,
    "eos": eos.read,
    "nxos": nxos.read,
}


def read_switch(path: Path, system: str, ports: Iterable[str]) -> SwitchState:
    """The state of these ports as a configuration file has it.

    system: the contract's word for the switch's `os`. Raises InputError with file and line, or when the system is one
    whose configuration is not read.
    """
    return read_source(load_text(path), system, ports)


def read_source(source: Source, system: str, ports: Iterable[str]) -> SwitchState:
    """As `read_switch`, of a text that is at hand."""
    reader = READERS.get(system)
    if reader is None:
        raise InputError(
            source.name,
            f"configuration of {system} is not read",
            f"one of {', '.join(READERS)}; verify with the reading commands of the rendered file",
        )
    return reader(source, ports)


def host_name(path: Path) -> str | None:
    """The host name that a configuration states, whatever its system; None when it states none that is found."""
    source = load_text(path)
    start = source.text.lstrip("\ufeff \t\r\n")[:1]
    if start in ("{", "["):
        return sonic.stated_name(source) or nvue.stated_name(source)
    for line in source.text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in ("hostname", "switchname"):
            return words[1]
        if len(words) == 2 and words[0] == "hostname:":
            return words[1].strip("'\"")
    return None
