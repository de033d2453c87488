"""Pseudonyms of IP addresses: equal prefixes stay equal, different ones different, well-known ones what they are."""

from __future__ import annotations

import ipaddress
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railwright.collect.addresses import AddressMap

KEY = b"k" * 32
keys = st.binary(min_size=32, max_size=32)
v4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
v6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


def near(addresses: st.SearchStrategy[ipaddress.IPv4Address]) -> st.SearchStrategy[tuple[int, int]]:
    """Two addresses that share a prefix of any length."""
    return st.tuples(addresses.map(int), st.integers(0, 32), st.integers(0, 2**32 - 1)).map(
        lambda it: (it[0], it[0] ^ (it[2] >> it[1]))
    )


def common(a: int, b: int, bits: int) -> int:
    return bits - (a ^ b).bit_length()


@given(keys, near(v4))
def test_two_ipv4_addresses_share_as_many_bits_as_before(key: bytes, pair: tuple[int, int]) -> None:
    mapping = AddressMap(key)
    a, b = (int(mapping.map(ipaddress.IPv4Address(number))) for number in pair)
    assert common(a, b, 32) == common(*pair, 32)


@given(keys, v6, st.integers(0, 128), st.integers(0, 2**128 - 1))
def test_two_ipv6_addresses_share_as_many_bits_as_before(
    key: bytes, first: ipaddress.IPv6Address, shared: int, noise: int
) -> None:
    mapping = AddressMap(key)
    second = ipaddress.IPv6Address(int(first) ^ (noise >> shared))
    a, b = int(mapping.map(first)), int(mapping.map(second))
    assert common(a, b, 128) == common(int(first), int(second), 128)


@given(keys)
def test_a_whole_subnet_is_mapped_one_to_one_onto_one_subnet(key: bytes) -> None:
    mapping = AddressMap(key)
    subnet = ipaddress.IPv4Network("10.100.7.0/25")
    mapped = {int(mapping.map(address)) for address in subnet}
    assert len(mapped) == 128
    assert len({number >> 7 for number in mapped}) == 1


WELL_KNOWN = """
    127.0.0.1 127.5.6.7 0.0.0.0 255.255.255.255 255.255.255.0 169.254.3.4 224.0.0.251 239.1.2.3
    :: ::1 ff02::1 ff02::fb ::ffff:127.0.0.1
"""


@pytest.mark.parametrize("text", WELL_KNOWN.split())
@given(key=keys)
def test_well_known_addresses_stay(text: str, key: bytes) -> None:
    address = ipaddress.ip_address(text)
    assert AddressMap(key).map(address) == address


@given(keys, v4)
def test_private_stays_private_global_global_and_nothing_becomes_well_known(
    key: bytes, address: ipaddress.IPv4Address
) -> None:
    private = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
    mapped = AddressMap(key).map(address)
    assert [address in network for network in private] == [mapped in network for network in private]
    for mark in ("is_loopback", "is_link_local", "is_multicast"):
        assert getattr(mapped, mark) == getattr(address, mark)


@given(keys, v4)
def test_the_gid_of_an_ipv4_address_is_that_of_its_pseudonym(
    key: bytes, address: ipaddress.IPv4Address
) -> None:
    mapping = AddressMap(key)
    mapped = mapping.map(ipaddress.IPv6Address(0xFFFF << 32 | int(address)))
    assert isinstance(mapped, ipaddress.IPv6Address)
    assert mapped.ipv4_mapped == mapping.map(address)


@given(keys, st.binary(min_size=6, max_size=6))
def test_a_link_local_address_stays_one_and_loses_the_mac_address(key: bytes, mac: bytes) -> None:
    interface = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    mapped = AddressMap(key).map(ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + interface)).packed
    assert mapped[:8] == b"\xfe\x80" + bytes(6)
    # Each of the 64 bits is flipped by a keyed function of its own: that all stay has a chance of 2^-64.
    assert mapped[8:] != interface


def test_another_key_gives_other_addresses() -> None:
    address = ipaddress.IPv4Address("10.100.7.9")
    assert len({AddressMap(bytes([n]) * 32).map(address) for n in range(20)}) > 15


def test_one_known_address_does_not_give_the_others_away() -> None:
    # With one mask for all, whoever knows the pseudonym of one address would know all of them.
    mapping = AddressMap(KEY)
    site = [ipaddress.IPv4Address(f"10.{n}.7.9") for n in range(64)]
    assert len({int(address) ^ int(mapping.map(address)) for address in site}) > 48


def test_every_pair_of_a_site_keeps_its_distance() -> None:
    mapping = AddressMap(KEY)
    site = [
        ipaddress.IPv4Address(f"10.{a}.{b}.{c}") for a, b, c in product((1, 2, 100), (0, 1, 7), (1, 2, 254))
    ]
    mapped = [mapping.map(address) for address in site]
    for (a, x), (b, y) in combinations(zip(site, mapped, strict=True), 2):
        assert common(int(x), int(y), 32) == common(int(a), int(b), 32)
