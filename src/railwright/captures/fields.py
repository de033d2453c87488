"""What several text witnesses have in common: their lines, and values in the form that facts have them."""

from __future__ import annotations

import re
from typing import Any

from railwright.node.model import Facts, InputError, Link, Witness
from railwright.node.model.facts import SCHEMA

from .source import Source
from .terminal import Line, plain_lines

# `lspci -vvv` of a large server has 20,000 lines; a tenfold is no output of one machine.
MAX_LINES = 200_000
# 8 NICs with 256 virtual functions each; it bounds the work on a hostile paste.
MAX_DEVICES = 4096

_NAME = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}", re.ASCII)
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})", re.ASCII)
_GROUPS = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}", re.ASCII)
_RATE = re.compile(r"(\d{1,5}(?:\.\d)?)(?: Gb/sec.{0,40})?", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# A GT/s figure of each PCIe generation (PCI Express Base Specification 6.0).
GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
SPEEDS = frozenset(GENERATIONS.values())
WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
# rdma-core's words for a port's state, and the kernel's.
_STATES = {
    "down": "down",
    "initializing": "init",
    "init": "init",
    "armed": "armed",
    "active": "active",
    "active_defer": "active",
    "no state change (nop)": None,
}
_LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "Ethernet", "Unspecified": None, "Unknown": None}


def lines_of(source: Source, tables: bool = True) -> list[Line]:
    """The plain lines of an output. Raises InputError where there are too many for one machine."""
    source.refuse_bulk()
    if source.text.count("\n") > MAX_LINES or source.text.count("\r") > MAX_LINES:
        raise InputError(
            source.name, f"holds more than {MAX_LINES} lines", "cut away what stands around the capture"
        )
    return plain_lines(source.text, tables)


def facts_of(kind: str, source: Source, **known: Any) -> Facts:
    """Facts with this one witness."""
    return Facts(schema=SCHEMA, witnesses=(Witness(kind, source.name),), **known)


def name(text: str, where: str) -> str:
    """A device's name, which goes into configuration files one day. Raises InputError."""
    if not _NAME.fullmatch(text):
        raise InputError(where, f"found {text[:40]!r}", "expected a name of letters, digits and _ . : @ + -")
    return text


def guid(text: str, where: str) -> str | None:
    """A GUID as sysfs prints it ("a088:c203:0012:3456"); None where all digits are 0. Raises InputError."""
    if _GROUPS.fullmatch(text):
        digits = text.replace(":", "")
    else:
        match = _GUID.fullmatch(text)
        if match is None:
            raise InputError(where, f"found {text[:40]!r}", "expected a GUID like 0xa088c20300123456")
        digits = match[1].zfill(16)
    digits = digits.lower()
    return ":".join(digits[n : n + 4] for n in range(0, 16, 4)) if digits.strip("0") else None


def rate(text: str, where: str) -> int | None:
    """Mb/s of "400 Gb/sec (4X NDR)" or "400"; None where it is 0. Raises InputError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise InputError(where, f"found {text[:40]!r}", "expected a rate like 400 Gb/sec (4X NDR)")
    return round(float(match[1]) * 1000) or None


def port_state(text: str, where: str) -> str | None:
    """The state as facts have it. Raises InputError."""
    word = text.strip().lower()
    if word not in _STATES:
        raise InputError(where, f"found {text[:40]!r}", "expected a port state like Active or Down")
    return _STATES[word]


def link_layer(text: str, where: str) -> str | None:
    """InfiniBand, Ethernet or None. Raises InputError."""
    if text.strip() not in _LAYERS:
        raise InputError(where, f"found {text[:40]!r}", "expected InfiniBand or Ethernet")
    return _LAYERS[text.strip()]


def uuid(text: str) -> str | None:
    """A GPU's UUID; None for what a file says in its place ("N/A", "0", question marks)."""
    return text if _UUID.fullmatch(text) else None


def whole(text: str, low: int, high: int, where: str) -> int:
    """A decimal number in these bounds. Raises InputError."""
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII) or not low <= int(text) <= high:
        raise InputError(where, f"found {text[:40]!r}", f"expected a whole number from {low} to {high}")
    return int(text)


def refuse_crowd(count: int, what: str, where: str) -> None:
    """Raises InputError for more devices than any machine has."""
    if count > MAX_DEVICES:
        raise InputError(where, f"more than {MAX_DEVICES} {what}", "give the output of one machine")


def some_link(speed: float | None, width: int | None, most: float | None, widest: int | None) -> Link:
    """A link, in the order now, then at most."""
    return Link(speed=speed, width=width, max_speed=most, max_width=widest)
