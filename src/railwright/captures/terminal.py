"""Text that was copied off a terminal, a web page or a log: the same lines without the dressing."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Colours and cursor moves (ECMA-48 CSI). A paste may have lost the escape character or show it as text.
_COLOUR = re.compile(r"(?:\x1b|\^\[|\\x1b|\\033|\\u001b|\\e)?\[[0-9;]*m")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x01-\x08\x0b-\x1f\x7f]"
)
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u202f\u3000"), " ") | dict.fromkeys(
    map(ord, "\u200b\ufeff"), None
)
# Bounded: without that a hostile line of two million marks would fill memory.
_QUOTE = re.compile(r"^(?:\s{0,8}>\s){1,16}")
_RULE = re.compile(r"^[\s|:+-]*$")


@dataclass(frozen=True)
class Line:
    """One line: its number in the capture, counted from 1, and its plain text."""

    number: int
    text: str


def plain_lines(text: str, tables: bool = True) -> list[Line]:
    """The lines without colours, quotes ("> ") and table pipes; a pipe between cells becomes a tab.

    tables: whether a line that begins with a pipe is a row of a table; `lspci -t` draws with them.

    Numbers count the lines as an editor shows them: CR LF and LF are one line break each, and so is CR where there is
    no LF at all.
    """
    lines = text.replace("\r\n", "\n").split("\n") if "\n" in text else text.split("\r")
    return [Line(number, _plain(line, tables)) for number, line in enumerate(lines, start=1)]


def _plain(line: str, tables: bool) -> str:
    line = _CONTROL.sub("", _COLOUR.sub("", line)).translate(_SPACES).rstrip()
    line = _QUOTE.sub("", line)
    if tables and line.lstrip().startswith("|"):
        return _cells(line.strip())
    return line


def _cells(line: str) -> str:
    if _RULE.match(line):
        return ""
    inner = line.removeprefix("|").removesuffix("|")
    return "\t".join(cell.strip() for cell in inner.split("|"))
