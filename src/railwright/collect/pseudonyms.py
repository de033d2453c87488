"""Names that stand for others: the same for the same value under one key, and nothing to be learnt without it."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from .addresses import Address, AddressMap

KEY_BYTES = 32
NAMES = "names of hosts, domains and users"
MACS = "MAC addresses"
GUIDS = "GUIDs"
UUIDS = "UUIDs"
SERIALS = "serial numbers"
ADDRESSES = "IP addresses"
VALUES = "other values"
KINDS = (NAMES, MACS, GUIDS, UUIDS, SERIALS, ADDRESSES, VALUES)


class Pseudonyms:
    """Pseudonyms under one key, and how many different values of each kind got one."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._addresses = AddressMap(self._digest("addresses", ""))
        self._given: dict[tuple[str, str], str] = {}

    def counts(self) -> dict[str, int]:
        """Different values by kind, in the order of KINDS."""
        kinds = [kind for kind, _ in self._given]
        return {kind: kinds.count(kind) for kind in KINDS}

    def name(self, text: str) -> str:
        """A name, label by label: hosts of one domain stay hosts of one domain."""
        labels = text.lower().split(".")
        return ".".join(
            self._give(NAMES, label, lambda it: f"name-{self._hex(NAMES, it, 8)}") for label in labels
        )

    def serial(self, text: str) -> str:
        return self._give(SERIALS, text, lambda it: f"serial-{self._hex(SERIALS, it, 8)}")

    def value(self, text: str) -> str:
        return self._give(VALUES, text, lambda it: f"redacted-{self._hex(VALUES, it, 8)}")

    def mac(self, text: str) -> str:
        """A unicast address that nobody was assigned (the "local" bit of IEEE 802), in the form of `text`."""
        return self._digits(MACS, text, lambda digits: "02" + self._hex(MACS, digits, 10))

    def guid(self, text: str) -> str:
        return self._digits(GUIDS, text, lambda digits: self._hex(GUIDS, digits, 16))

    def uuid(self, text: str) -> str:
        """Of any length: a UUID, or a run of hexadecimal digits that nothing else explains."""
        return self._digits(UUIDS, text, lambda digits: self._hex(UUIDS, digits, len(digits)))

    def address(self, text: str) -> str:
        """An IPv4 or IPv6 address, IPv6 written out in full as a GID where `text` is. Raises ValueError."""
        address = ipaddress.ip_address(text)
        mapped = self._addresses.map(address)
        if mapped == address:
            return text
        self._given[ADDRESSES, str(address)] = ""
        return _in_full(mapped) if text.lower() == _in_full(address) else _short(mapped)

    def _digits(self, kind: str, text: str, make: Callable[[str], str]) -> str:
        start = 2 if text[:2] in {"0x", "0X"} else 0
        digits = "".join(filter(_is_digit, text[start:])).lower()
        # Nothing but zeros or ones is no identity: "none", or everybody.
        if set(digits) in ({"0"}, {"f"}):
            return text
        fresh = iter(self._give(kind, digits, make))
        made = "".join(next(fresh) if _is_digit(character) else character for character in text[start:])
        return text[:start] + (
            made.upper() if text[start:].upper() == text[start:] != text[start:].lower() else made
        )

    def _give(self, kind: str, text: str, make: Callable[[str], str]) -> str:
        if (kind, text) not in self._given:
            self._given[kind, text] = make(text)
        return self._given[kind, text]

    def _hex(self, kind: str, text: str, digits: int) -> str:
        return "".join(self._digest(kind, f"{block}:{text}").hex() for block in range(digits // 64 + 1))[
            :digits
        ]

    def _digest(self, kind: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{kind}:{text}".encode("utf-8", "surrogatepass"), "sha256")


def _in_full(address: Address) -> str:
    """As sysfs prints a GID. (What `exploded` gives for an IPv4-mapped address differs from one Python to the next.)"""
    return ":".join(address.packed[place : place + 2].hex() for place in range(0, len(address.packed), 2))


def _short(address: Address) -> str:
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if inner is None else f"::ffff:{inner}"


def _is_digit(character: str) -> bool:
    return character in "0123456789abcdefABCDEF"
