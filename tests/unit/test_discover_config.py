"""Config space: capability lists of well and badly behaved functions. Bytes are laid out here by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railwright.node.discover.config import Config, read_config
from railwright.node.model import Acs, Link


def space(size: int = 4096, **words: int) -> bytearray:
    """Config space with 16-bit words at hexadecimal offsets ("x06")."""
    data = bytearray(size)
    for name, value in {"x00": 0x10DE, "x02": 0x20B0, **words}.items():
        offset = int(name[1:], 16)
        data[offset : offset + 2] = value.to_bytes(2, "little")
    return data


# The A100 of open-mpi/hwloc#653: Express at 0x78 behind power management at 0x60; endpoint; RO+, MPS 256, MRRS 512;
# the link is x16 at 16 GT/s.
A100 = {
    "x06": 0x0010,
    "x34": 0x0060,
    "x60": 0x7801,
    "x78": 0x0010,
    "x7a": 0x0002,
    "x80": 0x2930,
    "x84": 0x0104,
    "x8a": 0x0104,
}


def test_the_registers_of_an_a100_are_read() -> None:
    config = read_config(bytes(space(**A100)))
    assert config == Config(
        port="endpoint",
        link=Link(16.0, 16, 16.0, 16),
        mrrs=512,
        mps=256,
        relaxed_ordering=True,
        acs=Acs((), ()),
        vpd=False,
        extended_tags=True,
        ten_bit_tags=False,
        ten_bit_capable=False,
    )


@pytest.mark.parametrize(
    ("kind", "port"),
    [
        (0x0, "endpoint"),
        (0x1, "endpoint"),
        (0x4, "root"),
        (0x5, "upstream"),
        (0x6, "downstream"),
        (0x7, None),
        (0x9, "endpoint"),
        (0xA, None),
    ],
)
def test_the_port_type_is_in_the_express_flags(kind: int, port: str | None) -> None:
    assert read_config(bytes(space(**{**A100, "x7a": kind << 4 | 2}))).port == port


def test_acs_is_found_behind_other_extended_capabilities() -> None:
    # AER (1) at 0x100, serial number (3) at 0x148, ACS (d) at 0x200; 001d is the control word of nccl#2079.
    data = space(
        **A100,
        x100=0x0001,
        x102=0x1482,
        x148=0x0003,
        x14a=0x2001,
        x200=0x000D,
        x202=0x0001,
        x204=0x005F,
        x206=0x001D,
    )
    assert read_config(bytes(data)).acs == Acs(
        ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans"),
        ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"),
    )


def test_a_function_without_the_right_to_read_says_nothing() -> None:
    assert read_config(None) == Config()
    assert read_config(bytes(space(64, x06=0x10, x34=0x60))) == Config()


def test_256_bytes_tell_all_but_acs() -> None:
    config = read_config(bytes(space(256, **A100)))
    assert (config.mrrs, config.acs) == (512, None)


def test_a_conventional_function_has_no_acs_and_no_link() -> None:
    assert read_config(bytes(space(256))) == Config(acs=Acs((), ()), vpd=False)


def test_vital_product_data_is_told_from_its_capability() -> None:
    assert read_config(bytes(space(256, x06=0x10, x34=0x48, x48=0x0003))).vpd is True


def test_a_function_that_fell_off_the_bus_says_nothing() -> None:
    assert read_config(b"\xff" * 4096) == Config()


@pytest.mark.parametrize(
    "words",
    [
        {"x60": 0x6001},  # points to itself
        {"x60": 0x6401, "x64": 0x6001},  # a ring
        {"x34": 0x0010},  # into the header
        {"x60": 0xFFFF},  # ones
        {"x60": 0xF801, "xf8": 0x0010},  # Express across the end
    ],
)
def test_a_damaged_list_is_unknown_and_not_empty(words: dict[str, int]) -> None:
    config = read_config(bytes(space(**{**A100, **words})))
    assert (config.vpd, config.mrrs, config.acs) == (None, None, None)


@pytest.mark.parametrize(
    "words",
    [
        {"x100": 0x0001, "x102": 0x1001},  # points to itself
        {"x100": 0xFFFF, "x102": 0xFFFF},
        {"x100": 0x0001, "x102": 0xFFC1, "xffc": 0x000D},  # ACS across the end
        {"x100": 0x0001, "x102": 0x0401},  # into the conventional part
    ],
)
def test_a_damaged_extended_list_leaves_acs_unknown(words: dict[str, int]) -> None:
    config = read_config(bytes(space(**A100, **words)))
    assert (config.acs, config.mrrs) == (None, 512)


def test_reserved_sizes_and_speeds_are_unknown() -> None:
    config = read_config(bytes(space(**{**A100, "x80": 0x7FE0, "x84": 0x03F7, "x8a": 0x0000})))
    assert (config.mrrs, config.mps, config.link) == (None, None, Link())


@given(st.binary(min_size=256, max_size=4096))
def test_no_bytes_hang_or_break_the_walk(data: bytes) -> None:
    config = read_config(data)
    assert config.mrrs is None or config.mrrs in {128, 256, 512, 1024, 2048, 4096}
    assert config.link.width is None or config.link.width in {1, 2, 4, 8, 12, 16, 32}
