"""Headroom: the three formulas against numbers that others published or that were worked out by hand."""

from __future__ import annotations

import pytest

from railwright.fabric.headroom import (
    Profile,
    bound,
    host_nic,
    occupancy,
    switch,
    xoff_point,
)
from railwright.fabric.links import headroom_findings, links, pool_sum
from railwright.fabric.platforms import PLATFORMS
from railwright.fabric.quanta import QUANTA, response_bytes
from railwright.plan.buffers import host_reserve
from tests.unit.fabric_samples import contract, contract_data

# kB for MTU 9216 on both sides, v = 1.98e8 m/s, worked out from the formula with a calculator.
BOUNDS = {
    100: {3: 44.1, 30: 47.5, 100: 56.3, 300: 81.6},
    200: {3: 48.2, 30: 55.1, 100: 72.7, 300: 123.2},
    400: {3: 77.9, 30: 91.6, 100: 126.9, 300: 227.9},
    800: {3: 79.4, 30: 106.7, 100: 177.4, 300: 379.4},
}
# Xoff reserve and least buffer of an mlx5 port with MTU 9000 (port_buffer.c in integers).
HOST = {
    100: {3: (55_180, 64_524), 7: (56_080, 65_424), 30: (60_980, 70_324), 100: (76_180, 85_524)},
    200: {3: (85_880, 95_224), 7: (87_680, 97_024), 30: (97_480, 106_824), 100: (127_880, 137_224)},
    400: {3: (147_280, 156_624), 7: (150_880, 160_224), 30: (170_480, 179_824), 100: (231_280, 240_624)},
    800: {3: (270_080, 279_424), 7: (277_280, 286_624), 30: (316_480, 325_824), 100: (438_080, 447_424)},
}
# NVIDIA's SN5600 table (sonic-buildimage, ACS-SN5600/pg_profile_lookup.ini): xoff and size by cable length.
SN5600 = {
    100: {5: (113_664, 133_120), 40: (126_976, 146_432), 300: (225_280, 244_736)},
    200: {5: (131_072, 150_528), 40: (157_696, 177_152), 300: (355_328, 374_784)},
    400: {5: (231_424, 250_880), 40: (283_648, 303_104), 300: (677_888, 697_344)},
    800: {5: (257_024, 304_128), 40: (362_496, 410_624), 300: (1_150_976, 1_198_080)},
}


@pytest.mark.parametrize(("speed", "cable"), [(speed, cable) for speed in BOUNDS for cable in BOUNDS[speed]])
def test_the_protocols_bound_is_that_of_the_table(speed: int, cable: int) -> None:
    assert round(bound(speed, cable, 9216, 9216).bytes / 1000, 1) == BOUNDS[speed][cable]


def test_the_responses_are_those_of_the_standard() -> None:
    # Bit times: 394 x 512 at 100G and 905 x 512 at 400G, as Cisco prints D-Resp; 40 960 at 25G.
    assert QUANTA[100] * 512 == 201_728
    assert QUANTA[400] * 512 == 463_360
    assert QUANTA[25] * 512 == 40_960
    assert [response_bytes(speed) for speed in (100, 200, 400, 800)] == [25_216, 28_992, 57_920, 57_920]


@pytest.mark.parametrize(("speed", "cable"), [(speed, cable) for speed in HOST for cable in HOST[speed]])
def test_the_hosts_buffer_is_that_of_the_driver_to_the_byte(speed: int, cable: int) -> None:
    reserve, buffer = HOST[speed][cable]
    assert host_reserve(speed, cable, 9000) == reserve
    assert host_nic(speed, cable, 9000).bytes == buffer


@pytest.mark.parametrize("speed", HOST)
def test_a_smaller_mtu_lowers_the_hosts_reserve_by_its_share(speed: int) -> None:
    assert host_reserve(speed, 7, 9000) - host_reserve(speed, 7, 4200) == 13_056


def test_the_host_reserves_for_40g_at_least() -> None:
    assert host_reserve(10, 7, 9000) == host_reserve(40, 7, 9000) == 316 * 40 + 24_480


@pytest.mark.parametrize("speed", SN5600)
def test_the_switch_formula_has_the_slope_of_nvidias_own_table(speed: int) -> None:
    asic = PLATFORMS["sn5600"].asic
    assert asic is not None
    table = (SN5600[speed][300][0] - SN5600[speed][5][0]) / 295
    far, near = (switch(speed, cable * 1000, asic, 9216) for cable in (300, 5))
    # Over a thousandfold of the lengths the rounding to KiB does not count.
    formula = (far.xoff - near.xoff) / 295_000
    assert abs(formula / table - 1) < 0.005


def test_small_frames_fill_cells_three_times_over_on_a_chip_with_192_byte_cells() -> None:
    assert occupancy(192) == 3
    assert occupancy(96) == pytest.approx(192 / 97)
    assert occupancy(192, 0) == 1


def test_a_switch_profile_is_what_was_worked_out_by_hand() -> None:
    # 400G, 5 m, 192 byte cells, MTU 9100: cable 2*5*4e11/8/1.98e8 = 2525.25; MAC and PHY 819.2; response 57920.
    # 1024 + 3 * (9100 + 2525.25 + 819.2 + 57920) = 212 117.4, up to 208 KiB = 212 992. Xon 19 KiB.
    asic = PLATFORMS["sn5600"].asic
    assert asic is not None
    assert switch(400, 5, asic, 9100) == Profile(212_992, 19_456, 232_448)
    # Eight lanes: the pipeline twice less 1 KiB, and an MTU more: 212 992 + 37 888 + 9100 = 259 980, up to 254 KiB.
    assert switch(400, 5, asic, 9100, lanes=8) == Profile(212_992, 37_888, 260_096)
    assert switch(400, 5, asic, 9100, shared_pool=True) == Profile(212_992, 19_456, 19_456)


@pytest.mark.parametrize(("speed", "cable"), [(speed, cable) for speed in SN5600 for cable in SN5600[speed]])
def test_the_platforms_table_is_nvidias(speed: int, cable: int) -> None:
    row = PLATFORMS["sn5600"].row(speed, cable)
    assert row is not None
    assert (row.xoff, row.size) == SN5600[speed][cable]
    assert row.xon == (38_912 if speed == 800 else 19_456)


def test_a_cable_takes_the_nearest_length_that_is_not_shorter() -> None:
    platform = PLATFORMS["sn5600"]
    assert [
        row.cable_m if (row := platform.row(400, cable)) is not None else None
        for cable in (1, 5, 6, 40, 41, 301)
    ] == [5, 5, 40, 40, 300, None]


def test_broadcoms_table_has_one_value_up_to_150_m() -> None:
    rows = [PLATFORMS["7060x6-64pe"].row(400, cable) for cable in (5, 150)]
    assert [(row.size, row.xon, row.xoff) for row in rows if row is not None] == [(18_796, 0, 612_140)] * 2


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_table_says_where_it_was_read_and_grows_with_the_cable(name: str) -> None:
    platform = PLATFORMS[name]
    assert platform.source.startswith("sonic-buildimage ")
    for speed in {row.speed_gbps for row in platform.rows}:
        rows = sorted((row for row in platform.rows if row.speed_gbps == speed), key=lambda row: row.cable_m)
        assert [row.xoff for row in rows] == sorted(row.xoff for row in rows)


def test_every_number_says_its_formula_its_source_and_how_sure_it_is() -> None:
    (link, _) = links(contract("sonic"))
    for number in (link.bound, link.table, link.formula, link.host_buffer):
        assert number is not None
        assert number.formula
        assert number.source
        assert number.confidence in {"A", "B", "C", "N"}


def test_a_group_pauses_at_its_share_of_what_is_free() -> None:
    # alpha 1: one group may hold half of the pool; with two at the threshold each holds a third.
    assert xoff_point(12_000_000, 0, 1) == 6_000_000
    assert xoff_point(12_000_000, 0, 2) == 4_000_000
    # alpha 1/8: 12 / (8 + 2) of a pool of 12 MB.
    assert xoff_point(12_000_000, -3, 2) == 1_200_000


def test_a_pool_that_is_too_small_is_told_with_the_sum_and_what_one_class_needs() -> None:
    classes = {
        "roce": {"dscp": [26], "prio": 3, "lossless": True},
        "storage": {"dscp": [34], "prio": 4, "lossless": True},
        "cnp": {"dscp": [48], "prio": 6, "strict": True},
    }
    data = contract_data("sonic", classes=classes)
    # 231 424 for 3 m, 283 648 for 30 m, both twice.
    assert (
        pool_sum(contract("sonic", classes=classes), links(contract("sonic", classes=classes))) == 1_030_144
    )
    for pool, told in ((1_030_144, 0), (1_030_143, 1)):
        data["switches"]["sonic"]["headroom_pool_bytes"] = pool
        of = contract("sonic", classes=classes, switches=data["switches"])
        found = [one for one in headroom_findings(of, links(of)) if one.code == "fabric.headroom_pool"]
        assert len(found) == told
        assert all("1030144 bytes" in one.why and "515072 bytes" in one.remedy for one in found)


def test_a_pool_that_is_not_stated_is_not_good() -> None:
    of = contract("sonic")
    (found,) = (one for one in headroom_findings(of, links(of)) if one.code == "fabric.headroom_pool")
    assert found.severity == "info"
    assert found.why.startswith("not verified")


def test_a_cable_beyond_the_table_is_a_finding_that_says_how_much_it_takes() -> None:
    data = contract_data("sonic", cable_m=500)
    of = contract("sonic", **data)
    found = [one for one in headroom_findings(of, links(of)) if one.code == "fabric.headroom_table"]
    assert [one.where for one in found] == ["sonic Ethernet0"]
    assert "ends at 300 m for 400G, the cable has 500 m" in found[0].why
    # 1024 + 3 * (9216 + 252 525.25 + 819.2 + 57 920) = 962 465.4, up to 940 KiB.
    assert "962560 bytes" in found[0].remedy


def test_a_table_below_the_protocols_bound_is_flagged() -> None:
    data = contract_data("sonic")
    data["switches"]["sonic"]["platform"] = "sn4700"
    of = contract("sonic", switches=data["switches"])
    found = [one for one in headroom_findings(of, links(of)) if one.code == "fabric.headroom"]
    # 38 912 against 77 932 at 3 m, 77 824 against 91 568 at 30 m.
    assert [one.severity for one in found] == ["warning", "warning"]
    assert "keeps 38912 bytes" in found[0].why
    assert "77932" in found[0].why
