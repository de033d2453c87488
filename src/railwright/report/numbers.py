"""Numbers as people read them."""

from __future__ import annotations

UNKNOWN = "unknown"


def rate(gbytes: float | None) -> str:
    """GB/s with at most two decimals: "48", "12.5", "0.19"; unknown stays unknown."""
    if gbytes is None:
        return UNKNOWN
    return f"{gbytes:.2f}".rstrip("0").rstrip(".")


def count(number: int, singular: str, plural: str | None = None) -> str:
    """ "1 node", "2 nodes"."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def network_rate(mbits: int | None, *, short: bool = False) -> str:
    """A NIC's rate as printed on it: "400 Gb/s", short "400G"."""
    if mbits is None:
        return "rate unknown"
    if mbits >= 1000:
        return f"{mbits / 1000:.1f}".removesuffix(".0") + ("G" if short else " Gb/s")
    return f"{mbits}{'M' if short else ' Mb/s'}"
