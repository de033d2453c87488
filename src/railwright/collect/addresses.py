"""IP addresses to other ones, so that equal prefixes stay equal and different ones different.

Each bit is flipped or not by a keyed function of the bits before it (Xu, Fan, Ammar, Moon: "Prefix-Preserving IP
Address Anonymization", ICNP 2002). Two addresses that share their first n bits and no more then still share n bits and
no more, so subnets group as before and no two addresses become one. Bits on the way to a well-known prefix are never
flipped, so that nothing else is mapped into it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

# Kept to the last bit: they say what an address is for, not whose it is (RFC 6890; RFC 5771; RFC 4291, 2.7.1). The end
# of ff02::1:ff00:0/104 is that of a host's own address, so only the first 256 of ff02:: are kept.
_WHOLE4 = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
_WHOLE6 = ("::/128", "::1/128", "ff02::/120")
# Kept as far as the prefix: private stays private, link-local link-local. The end of fe80::/64 is a MAC address or a
# GUID.
_PREFIX4 = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
_PREFIX6 = ("2000::/3", "fc00::/8", "fd00::/8", "fe80::/64", "ff00::/8", "::ffff:0:0/96")


class AddressMap:
    """The mapping under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._flips: dict[str, bool] = {}
        self._whole = {4: _bits(_WHOLE4), 6: _bits(_WHOLE6)}
        self._fixed = {
            4: _ways((*self._whole[4], *_bits(_PREFIX4))),
            6: _ways((*self._whole[6], *_bits(_PREFIX6))),
        }

    def map(self, address: Address) -> Address:
        """The address that stands for this one, of the same family."""
        if isinstance(address, ipaddress.IPv4Address):
            return ipaddress.IPv4Address(int(self._mapped(4, f"{int(address):032b}"), 2))
        inner = address.ipv4_mapped
        if inner is not None:
            # A RoCE port's GID of an IPv4 address: the same address must become the same one in both forms.
            return ipaddress.IPv6Address(0xFFFF << 32 | int(self.map(inner)))
        return ipaddress.IPv6Address(int(self._mapped(6, f"{int(address):0128b}"), 2))

    def _mapped(self, family: int, bits: str) -> str:
        return "".join(str(int(bit) ^ self._flip(family, bits[:place])) for place, bit in enumerate(bits))

    def _flip(self, family: int, before: str) -> bool:
        if before in self._fixed[family] or before.startswith(self._whole[family]):
            return False
        name = f"{family}:{before}"
        if name not in self._flips:
            self._flips[name] = bool(hmac.digest(self._key, name.encode(), "sha256")[0] & 1)
        return self._flips[name]


def _bits(prefixes: Sequence[str]) -> tuple[str, ...]:
    networks = map(ipaddress.ip_network, prefixes)
    return tuple(
        f"{int(network.network_address):0{network.max_prefixlen}b}"[: network.prefixlen]
        for network in networks
    )


def _ways(prefixes: Sequence[str]) -> frozenset[str]:
    """Every beginning of these bits but the whole."""
    return frozenset(prefix[:length] for prefix in prefixes for length in range(len(prefix)))
