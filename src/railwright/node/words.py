"""Phrases that several parts say alike."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A password may hold "@" and, where it stands behind a colon, "/", as urllib takes a proxy's; the last "@" ends it.
# A digest behind an image's name ("docker://registry.example/name@sha256:...") is none.
_USER = re.compile(r"://(?:(?=[^\s/]*:)\S*|[^\s/]*)@")
_USER_OF_ONE = re.compile(r"([a-z][a-z0-9+.-]*://|//)?.*@", re.IGNORECASE)


def some_of(names: Iterable[str], most: int) -> str:
    """The first names and how many more there are: "a, b, c and 4 more"."""
    told = list(names)
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def without_users(text: str) -> str:
    """A text without the user and password of any address in it, whatever its scheme; rather too much is hidden."""
    return _USER.sub("://***@", text)


def address_without_user(address: str) -> str:
    """One address, maybe without a scheme ("me:secret@proxy.example:3128"), without its user and password."""
    return _USER_OF_ONE.sub(r"\1***@", address, count=1)
