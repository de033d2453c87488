"""Single values of a policy or an entry: one of a few words, of a form, in a range. None was not said, and passes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Optional

from .codec import InputError

# Debian policy 5.6.1 and 5.6.12, and rpm's names and versions; "libc6:arm64" names the architecture too.
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*(?::[a-z0-9-]+)?", re.ASCII)
VERSION = re.compile(r"(?:[0-9]+:)?[0-9A-Za-z][0-9A-Za-z.+~^_-]*", re.ASCII)
# A word for the kernel's command line: what no shell, GRUB and no quotes of theirs would take apart.
ARGUMENT = re.compile(r"[A-Za-z0-9_.-]+(?:=[A-Za-z0-9_.,:;/@%+=-]*)?", re.ASCII)
# A release of CUDA's toolkit, "13.0".
TOOLKIT = re.compile(r"[1-9][0-9]\.[0-9]", re.ASCII)
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def one_of(value: object, known: Collection[object], where: str) -> None:
    """Raises InputError for a value that is none of these."""
    if value is not None and value not in known:
        raise InputError(where, f"found {value!r}", f"expected one of {', '.join(map(str, known))}")


def like(value: Optional[str], pattern: re.Pattern[str], where: str, wanted: str) -> None:
    """Raises InputError for a text that is not of this form as a whole. wanted: the form in words."""
    if value is not None and not pattern.fullmatch(value):
        raise InputError(where, f"found {value[:80]!r}", f"expected {wanted}")


def within(value: Optional[int], least: int, most: int, where: str, wanted: str = "") -> None:
    """Raises InputError for a number out of a range. wanted: the range in words, where numbers do not say it all."""
    if value is not None and not least <= value <= most:
        raise InputError(where, f"found {value}", f"expected {wanted or f'{least} to {most}'}")


def version(value: Optional[str], where: str, wanted: str = "a version to the last digit") -> None:
    """Raises InputError for what is no version of a package."""
    like(value, VERSION, where, wanted)


def packages(versions: Mapping[str, Optional[str]], where: str) -> None:
    """Raises InputError for what are no packages with their exact versions."""
    for name, exact in versions.items():
        like(name, PACKAGE, where, "names of packages, without * and ?")
        version(exact, f"{where}.{name}")
