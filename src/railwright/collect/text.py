"""Free text without what names a machine, its people or its network."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .pseudonyms import Pseudonyms

# Words that tools and drivers print on every machine. As a host's or user's name they tell nothing, and without them
# nobody could read an lspci.
_COMMON_WORDS = """
    admin amd broadcom bus centos cloud-user com corporation cpu cuda debian default dell device eth0
    ethernet false gpu hpe host infiniband intel ip6-allnodes ip6-allrouters ip6-localhost ip6-loopback
    ip6-localnet ip6-mcastprefix kernel lan lenovo link linux local localdomain localdomain4 localdomain6
    localhost localhost4 localhost6 localnet mellanox memory net network node none nvidia nvme org pci
    redhat rhel rocky root server supermicro system systemd test true ubuntu unknown user
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_SHORTEST = 3

_PATTERN = r"""
  (?P<label> \b serial (?:[ _]?(?:number|no\.?))? \s* [:=] \s* ) (?P<serial> [^\s,;]+ )
| (?P<uuid> (?<![0-9a-f]) [0-9a-f]{8} (?:-[0-9a-f]{4}){3} - [0-9a-f]{12} (?![0-9a-f]) )
| (?P<pairs> (?<![0-9a-f]) [0-9a-f]{2} (?P<mark>[:-]) [0-9a-f]{2} (?: (?P=mark) [0-9a-f]{2}){4,} (?![0-9a-f]) )
| (?P<guid> (?<![0-9a-f:]) [0-9a-f]{4} (?: :[0-9a-f]{4}){3} (?![0-9a-f:]) )
| (?P<v6> (?<![a-z0-9:]) (?:[0-9a-f]{0,4}:){2,7} (?: (?:\d{1,3}\.){3}\d{1,3} | [0-9a-f]{0,4} ) (?![a-z0-9:]) )
| (?P<v4> (?<!\d) (?<!\d\.) (?:\d{1,3}\.){3}\d{1,3} (?! \d | \.\d ) )
| (?P<hex> (?:0x)? [0-9a-f]{12,} )
"""


class TextRedactor:
    """Redacts text by the forms of identifiers, and by the names that are known to belong to this machine."""

    def __init__(self, pseudonyms: Pseudonyms, names: Iterable[str]) -> None:
        self.pseudonyms = pseudonyms
        known = sorted(_worth_hiding(names), key=lambda name: (-len(name), name))
        words = "|".join(map(re.escape, known))
        # Names come first: one may begin with hexadecimal digits. (Verbose mode is safe with what re.escape gives.)
        pattern = (rf"(?P<name> (?<![a-z0-9]) (?:{words}) (?![a-z0-9]) ) |" if words else "") + _PATTERN
        self._found = re.compile(pattern, re.VERBOSE | re.IGNORECASE | re.ASCII)

    def text(self, text: str) -> str:
        """The text with a pseudonym for each identifier and each known name.

        Device names are text too: mlx5_0 and enp12s0np0 stay, while enxb83fd2000010 holds a MAC address and
        rocexb83fd20300000010 a GUID.
        """
        return self._found.sub(self._replaced, text)

    def _replaced(self, match: re.Match[str]) -> str:
        kind, found = match.lastgroup, match[0]
        if kind == "serial":
            return match["label"] + self.pseudonyms.serial(match["serial"])
        if kind == "name":
            return self.pseudonyms.name(found)
        if kind == "uuid":
            return self.pseudonyms.uuid(found)
        if kind == "guid":
            return self.pseudonyms.guid(found)
        if kind in {"v4", "v6"}:
            try:
                return self.pseudonyms.address(found)
            except ValueError:
                return found
        return self._pairs(found) if kind == "pairs" else self._run(found)

    def _pairs(self, text: str) -> str:
        pairs = len(text) // 3 + 1
        if pairs == 6:
            return self.pseudonyms.mac(text)
        if pairs == 8:
            return self.pseudonyms.guid(text)
        if pairs == 20:
            # IPoIB: flags and queue pair, the GID's prefix, then the port's GUID (RFC 4391, 9.1.1).
            return text[:36] + self.pseudonyms.guid(text[36:])
        return self.pseudonyms.uuid(text)

    def _run(self, text: str) -> str:
        digits = text[2:] if text[:2] in {"0x", "0X"} else text
        if len(digits) == 12:
            return self.pseudonyms.mac(text)
        return self.pseudonyms.guid(text) if len(digits) == 16 else self.pseudonyms.uuid(text)


def _worth_hiding(names: Iterable[str]) -> set[str]:
    """Whole names, and each label of one with dots but its last ("org")."""
    whole = {name.strip(". ").lower() for name in names}
    labels = {label for name in whole for label in name.split(".")[:-1]}
    return {
        name
        for name in whole | labels
        if len(name) >= _SHORTEST and not name.isdigit() and name not in _COMMON
    }
