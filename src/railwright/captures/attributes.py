"""Typed access to the attributes of one XML element; an error names the file, the line and the attribute."""

from __future__ import annotations

import re

from railwright.node.model import InputError, normalise_address

from .source import Source
from .xml_tree import Element


class Attributes:
    """None where the file says nothing: an attribute that is missing or blank."""

    def __init__(self, source: Source, element: Element) -> None:
        self.element = element
        self.where = source.at(element.line)

    def text(self, name: str) -> str | None:
        return self.element.attributes.get(name, "").strip() or None

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise InputError(self.where, f"<{self.element.tag}> without {name}", "NCCL needs it too")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?\d{1,12}", value, re.ASCII) or not low <= int(value) <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return int(value)

    def flag(self, name: str) -> bool | None:
        value = self.text(name)
        if value not in {None, "0", "1"}:
            raise self.wrong(name, "0 or 1")
        return None if value is None else value == "1"

    def identifier(self, name: str) -> str | None:
        """A PCI identifier as sysfs prints it ("0x10de")."""
        value = self._matched(name, r"0[xX][0-9a-fA-F]{1,4}", "a form like 0x10de")
        return None if value is None else f"0x{int(value, 16):04x}"

    def class_code(self) -> str | None:
        """The class as sysfs prints it. "0x02" and "0x03" are what NCCL writes where sysfs has none."""
        value = self._matched("class", r"0[xX](?:[0-9a-fA-F]{2}){1,3}", "a form like 0x060400")
        return None if value is None else value.lower()

    def guid(self, name: str) -> str | None:
        value = self._matched(name, r"0[xX][0-9a-fA-F]{1,16}", "a form like 0x0c42a10000000000")
        return None if value is None or int(value, 16) == 0 else value.lower()

    def word(self, name: str) -> str | None:
        """A name that goes into configuration files one day: no blanks, no separators."""
        return self._matched(name, r"[A-Za-z0-9_.:@+-]{1,64}", "a name of letters, digits and _ . : @ + -")

    def _matched(self, name: str, pattern: str, expected: str) -> str | None:
        value = self.text(name)
        if value is not None and not re.fullmatch(pattern, value):
            raise self.wrong(name, expected)
        return value

    def address(self, name: str) -> str:
        return normalise_address(self.required(name), f"{self.where}: {name}")

    def wrong(self, name: str, expected: str) -> InputError:
        value = self.element.attributes.get(name, "")
        return InputError(f"{self.where}: {name}", f"found {value[:40]!r}", f"expected {expected}")
