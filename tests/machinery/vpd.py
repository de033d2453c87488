"""Vital product data: the bytes behind `vpd` of a PCI function (PCI Local Bus Specification 3.0, appendix I)."""

from __future__ import annotations

from collections.abc import Mapping

_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78


def vpd(name: str, fields: Mapping[str, str]) -> bytes:
    """A name and the read-only fields, in their order, closed by the RV checksum."""
    text = name.encode("ascii")
    body = b"".join(
        keyword.encode("ascii") + bytes([len(value)]) + value.encode("ascii")
        for keyword, value in fields.items()
    )
    body += b"RV\x01"
    head = bytes([_NAME]) + len(text).to_bytes(2, "little") + text
    head += bytes([_READ_ONLY]) + (len(body) + 1).to_bytes(2, "little")
    # All bytes from the first one to the checksum itself add up to 0 modulo 256.
    return head + body + bytes([-sum(head + body) % 256, _END])
