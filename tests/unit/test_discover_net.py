"""Network ports: RDMA devices, their netdevs, GIDs, addresses and default routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import Facts, Gid, InputError, Nic
from tests.unit.small_machine import function, functions, plant

PLACE = "pci0000:15/0000:15:01.0"
FOLDER = f"sys/devices/{PLACE}"
Files = dict[str, "str | bytes | None"]

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
"""


def route(
    interface: str,
    destination: str,
    mask: str,
    gateway: str = "00000000",
    flags: str = "0001",
    metric: int = 0,
) -> str:
    return f"{interface}\t{destination}\t{gateway}\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0   \n"


def netdev(name: str, place: str = PLACE, **attributes: str) -> tuple[Files, dict[str, str]]:
    folder = f"sys/devices/{place}/net/{name}"
    known = {"mtu": "9000", "operstate": "up", "type": "1", "address": "b8:3f:d2:00:00:10", **attributes}
    files: Files = {f"{folder}/{key}": text for key, text in known.items()}
    return files, {f"sys/class/net/{name}": f"../../devices/{place}/net/{name}"}


def rdma(
    name: str, place: str = PLACE, ports: tuple[int, ...] = (1,), **port: str
) -> tuple[Files, dict[str, str]]:
    folder = f"sys/devices/{place}/infiniband/{name}"
    known = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet", **port}
    files: Files = {f"{folder}/node_guid": "b83f:d203:0000:0010", f"{folder}/fw_ver": "28.39.1002\n"}
    for number in ports:
        files.update({f"{folder}/ports/{number}/{key}": text for key, text in known.items()})
    return files, {f"sys/class/infiniband/{name}": f"../../devices/{place}/infiniband/{name}"}


def machine(root: Path, *each: tuple[Files, dict[str, str]], **extra: str) -> Facts:
    files, links = function(PLACE, "0x020000")
    planted: Files = dict(files)
    for more, beside in each:
        planted.update(more)
        links.update(beside)
    return discover(
        plant(root, {**planted, **{key.replace("__", "/"): text for key, text in extra.items()}}, links)
    )


def only(facts: Facts) -> Nic:
    (nic,) = facts.nics
    return nic


def test_a_roce_port_is_one_nic_with_both_names(tmp_path: Path) -> None:
    nic = only(machine(tmp_path, rdma("mlx5_0"), netdev("eth0", speed="400000")))
    assert (nic.name, nic.rdma, nic.port, nic.netdev) == ("mlx5_0", "mlx5_0", 1, "eth0")
    assert (nic.state, nic.rate, nic.link_layer, nic.mtu) == ("active", 400000, "Ethernet", 9000)
    assert (nic.mac, nic.guid, nic.firmware) == ("b8:3f:d2:00:00:10", "b83f:d203:0000:0010", "28.39.1002")
    assert (nic.physical_function, nic.master, nic.cnp_dscp) == ("", None, None)


def test_the_dscp_of_congestion_notifications_is_read_where_the_driver_shows_it(tmp_path: Path) -> None:
    nic = only(machine(tmp_path, rdma("mlx5_0"), netdev("eth0", **{"ecn/roce_np/cnp_dscp": "48"})))
    assert nic.cnp_dscp == 48


@pytest.mark.parametrize(
    ("state", "rate", "expected"),
    [
        ("4: ACTIVE", "400 Gb/sec (4X NDR)", ("active", 400000)),
        ("1: DOWN", "10 Gb/sec (4X SDR)", ("down", None)),
        ("2: INIT", "200 Gb/sec (4X HDR)", ("init", 200000)),
        ("3: ARMED", "2.5 Gb/sec (1X SDR)", ("armed", 2500)),
        ("5: ACTIVE_DEFER", "56 Gb/sec (4X FDR)", ("active", 56000)),
        ("0: NOP", "0 Gb/sec (1X SDR)", (None, None)),
    ],
)
def test_state_and_rate_of_an_rdma_port(
    tmp_path: Path, state: str, rate: str, expected: tuple[object, object]
) -> None:
    nic = only(machine(tmp_path, rdma("mlx5_0", state=state, rate=rate)))
    assert (nic.state, nic.rate) == expected


def test_two_ports_of_one_function_find_their_netdevs_by_dev_port(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        rdma("mlx4_0", ports=(1, 2)),
        netdev("eth7", dev_port="0", dev_id="0x0"),
        netdev("eth3", dev_port="1", dev_id="0x0"),
    )
    assert [(nic.port, nic.netdev) for nic in facts.nics] == [(1, "eth7"), (2, "eth3")]


def test_old_ipoib_says_its_port_in_dev_id_only(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        rdma("mlx4_0", ports=(1, 2), link_layer="InfiniBand"),
        netdev("ib0", dev_port="0", dev_id="0x0", type="32", address=":".join(["80"] * 20)),
        netdev("ib1", dev_port="0", dev_id="0x1", type="32", address=":".join(["80"] * 20)),
    )
    assert [(nic.port, nic.netdev, nic.mac) for nic in facts.nics] == [(1, "ib0", None), (2, "ib1", None)]


def test_children_and_representors_are_no_ports(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        rdma("mlx5_0"),
        netdev("eth0", ifindex="3", iflink="3", phys_port_name="p0"),
        netdev("eth0_0", ifindex="8", iflink="8", phys_port_name="pf0vf0"),
        netdev("eth0_1", ifindex="9", iflink="9", phys_port_name="c1pf0sf7"),
        netdev("ib0.8001", ifindex="5", iflink="4"),
    )
    assert [(nic.name, nic.netdev) for nic in facts.nics] == [("mlx5_0", "eth0")]


def test_of_several_netdevs_the_gid_table_tells_which(tmp_path: Path) -> None:
    files, links = rdma("mlx5_0")
    port = f"{FOLDER}/infiniband/mlx5_0/ports/1"
    files |= {f"{port}/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe00:0010", f"{port}/gid_attrs/ndevs/0": "b"}
    facts = machine(tmp_path, (files, links), netdev("a"), netdev("b"))
    assert [(nic.name, nic.netdev) for nic in facts.nics] == [("a", "a"), ("mlx5_0", "b")]


def test_of_several_netdevs_none_is_guessed(tmp_path: Path) -> None:
    facts = machine(tmp_path, rdma("mlx5_0"), netdev("a"), netdev("b"))
    assert [(nic.name, nic.rdma, nic.netdev) for nic in facts.nics] == [
        ("a", None, "a"),
        ("b", None, "b"),
        ("mlx5_0", "mlx5_0", None),
    ]


def test_a_netdev_without_rdma_is_a_nic_when_it_is_on_a_pci_function(tmp_path: Path) -> None:
    nic = only(
        machine(tmp_path, netdev("eno1", place=f"{PLACE}/virtio2", speed="-1"), netdev("lo", place="virtual"))
    )
    assert (nic.name, nic.address, nic.rdma, nic.port, nic.rate) == ("eno1", "0000:15:01.0", None, None, None)
    assert (nic.link_layer, nic.management) == ("Ethernet", None)


def test_a_usb_interface_is_no_nic_although_its_controller_is_a_pci_function(tmp_path: Path) -> None:
    usb = "pci0000:00/0000:00:14.0"
    files, links = netdev("enxbe3af2b6059f", place=f"{usb}/usb1/1-1/1-1:1.0")
    more, beside = function(usb, "0x0c0330", "0x8086", "0xa36d")
    assert machine(tmp_path, ({**files, **more}, {**links, **beside})).nics == ()


def test_a_class_entry_that_was_copied_as_a_folder_is_followed_by_its_device_link(tmp_path: Path) -> None:
    files: Files = {"sys/class/net/eth0/mtu": "1500", "sys/class/net/eth0/type": "1"}
    links = {"sys/class/net/eth0/device": f"../../../devices/{PLACE}"}
    assert only(machine(tmp_path, (files, links))).address == "0000:15:01.0"


@pytest.mark.parametrize(
    ("attributes", "state", "rate"),
    [
        ({"operstate": "up", "speed": "100000"}, "active", 100000),
        ({"operstate": "down", "speed": "100000"}, "down", None),
        ({"operstate": "lowerlayerdown"}, "down", None),
        ({"operstate": "unknown", "carrier": "1", "speed": "0"}, "active", None),
        ({"operstate": "unknown", "carrier": "0"}, "down", None),
        ({"operstate": "unknown"}, None, None),
    ],
)
def test_state_and_rate_of_a_netdev(
    tmp_path: Path, attributes: dict[str, str], state: str | None, rate: int | None
) -> None:
    nic = only(machine(tmp_path, netdev("eth0", **attributes)))
    assert (nic.state, nic.rate) == (state, rate)


def test_a_netdev_without_operstate_has_no_known_state(tmp_path: Path) -> None:
    files, links = netdev("eth0")
    del files[f"{FOLDER}/net/eth0/operstate"]
    assert only(machine(tmp_path, (files, links))).state is None


def test_a_virtual_function_names_its_physical_one(tmp_path: Path) -> None:
    files, links = functions(
        function("pci0000:15/0000:15:01.0", "0x020000"),
        function("pci0000:15/0000:15:01.2", "0x020000", device="0x101e"),
    )
    links["sys/devices/pci0000:15/0000:15:01.2/physfn"] = "../0000:15:01.0"
    more, beside = rdma("mlx5_1", place="pci0000:15/0000:15:01.2")
    facts = discover(plant(tmp_path, {**files, **more}, {**links, **beside}))
    assert only(facts).physical_function == "0000:15:01.0"


def test_a_subfunction_counts_as_a_function_of_its_parent(tmp_path: Path) -> None:
    files, links = rdma("mlx5_2", place=f"{PLACE}/mlx5_core.sf.4")
    files[f"{FOLDER}/mlx5_core.sf.4/sfnum"] = "88"
    assert only(machine(tmp_path, (files, links))).physical_function == "0000:15:01.0"


def test_rdma_in_software_is_left_out_and_named(tmp_path: Path) -> None:
    facts = machine(tmp_path, rdma("rxe0", place="virtual"), rdma("mlx5_0"))
    assert [nic.name for nic in facts.nics] == ["mlx5_0"]
    assert any(note.startswith("rxe0 is an RDMA device on no PCI function") for note in facts.notes)


@pytest.mark.parametrize(
    ("vpd", "config", "vendor", "management"),
    [
        (b"\x82\x1c\0NVIDIA SW_MNG NVSwitch mgmt", None, "0x15b3", True),
        (b"\x82\x1c\0NVIDIA ConnectX-7 Ethernet  ", None, "0x15b3", False),
        (None, None, "0x15b3", None),
        (None, bytes(256), "0x15b3", False),  # no capability list, so no VPD
        (None, None, "0x14e4", False),  # no ConnectX at all
    ],
)
def test_nvswitch_management_functions_are_told_from_their_vpd(
    tmp_path: Path, vpd: bytes | None, config: bytes | None, vendor: str, management: bool | None
) -> None:
    files, links = function(PLACE, "0x020700", vendor)
    more, beside = rdma("mlx5_0", link_layer="InfiniBand")
    planted: Files = {**files, **more, f"{FOLDER}/vpd": vpd, f"{FOLDER}/config": config}
    assert only(discover(plant(tmp_path, planted, {**links, **beside}))).management is management


def test_empty_gids_are_skipped_and_the_kinds_are_roces(tmp_path: Path) -> None:
    files, links = rdma("mlx5_0")
    port = f"{FOLDER}/infiniband/mlx5_0/ports/1"
    zero, local, mapped = (
        "0000:" * 7 + "0000",
        "fe80:0000:0000:0000:ba3f:d2ff:fe00:0010",
        "0000:" * 5 + "ffff:0a64:0001",
    )
    for index, (gid, kind) in enumerate(
        [(local, "IB/RoCE v1"), (local, "RoCE v2"), (mapped, "RoCE v2"), (zero, None)]
    ):
        files[f"{port}/gids/{index}"] = gid + "\n"
        if kind is not None:
            files |= {f"{port}/gid_attrs/types/{index}": kind, f"{port}/gid_attrs/ndevs/{index}": "eth0"}
    # A folder in the place of an entry: what the reader gets is an error, as from an entry in between two states.
    files[f"{port}/gids/README"] = "no number"
    nic = only(machine(tmp_path, (files, links), netdev("eth0")))
    assert nic.gids == (
        Gid(0, local, "v1", "eth0"),
        Gid(1, local, "v2", "eth0"),
        Gid(2, mapped, "v2", "eth0"),
    )


def test_gids_of_infiniband_have_no_kind(tmp_path: Path) -> None:
    files, links = rdma("mlx5_0", link_layer="InfiniBand")
    port = f"{FOLDER}/infiniband/mlx5_0/ports/1"
    files |= {
        f"{port}/gids/0": "fe80:0000:0000:0000:b83f:d203:0000:0010",
        f"{port}/gid_attrs/types/0": "IB/RoCE v1",
    }
    assert only(machine(tmp_path, (files, links))).gids == (
        Gid(0, "fe80:0000:0000:0000:b83f:d203:0000:0010"),
    )


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("infiniband/mlx5_0/ports/1/state", "ACTIVE", "a port state"),
        ("infiniband/mlx5_0/ports/1/state", "9: ODD", "a port state"),
        ("infiniband/mlx5_0/ports/1/state", "\u0664: ACTIVE", "a port state"),
        ("infiniband/mlx5_0/ports/1/rate", "fast", "a rate like"),
        ("infiniband/mlx5_0/ports/1/rate", "4\u0660\u0660 Gb/sec (4X NDR)", "a rate like"),
        ("infiniband/mlx5_0/ports/1/link_layer", "Token Ring", "InfiniBand or Ethernet"),
        ("infiniband/mlx5_0/ports/1/gids/0", "fe80::1", "a GID of eight groups"),
        ("infiniband/mlx5_0/node_guid", "b83fd20300000010", "a GUID like"),
        ("net/eth0/mtu", "big", "a whole number"),
    ],
)
def test_nonsense_is_refused_with_file_and_form(tmp_path: Path, path: str, text: str, expected: str) -> None:
    files, links = rdma("mlx5_0")
    more, beside = netdev("eth0")
    with pytest.raises(InputError) as error:
        machine(tmp_path, ({**files, **more, f"{FOLDER}/{path}": text}, {**links, **beside}))
    assert error.value.where.endswith(path)
    assert expected in error.value.remedy


def test_an_unknown_operstate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a state like up or down"):
        machine(tmp_path, netdev("eth0", operstate="sideways"))


def test_guids_of_zeros_and_hidden_ones_are_unknown(tmp_path: Path) -> None:
    files, links = rdma("mlx5_0")
    files |= {f"{FOLDER}/infiniband/mlx5_0/node_guid": "0000:0000:0000:0000"}
    nic = only(machine(tmp_path, (files, links)))
    assert (nic.guid, nic.sys_image_guid, nic.board) == (None, None, None)


def test_a_port_that_tells_nothing_is_known_by_name_only(tmp_path: Path) -> None:
    files, links = rdma("mlx5_0", state="", link_layer="", rate="")
    folder = f"{FOLDER}/infiniband/mlx5_0/ports/1"
    for name in ("state", "link_layer", "rate"):
        del files[f"{folder}/{name}"]
    files[f"{folder}/cap_mask"] = "0x04010000"
    nic = only(machine(tmp_path, (files, links)))
    assert (nic.state, nic.link_layer, nic.rate) == (None, None, None)


# Routes and addresses. 0A64 0001 is 10.100.0.1; the tables print little-endian words.


def test_the_default_route_is_seen_through_vlan_bond_and_bridge(tmp_path: Path) -> None:
    table = ROUTES + route("br0", "00000000", "00000000", "010A0A0A", "0003", 100)
    table += route("wlan0", "00000000", "00000000", "010A0A0A", "0003", 600)
    lower = {
        "br0/lower_bond0.7": "bond0.7",
        "bond0.7/lower_bond0": "bond0",
        "bond0/lower_eth0": "eth0",
        "eth0/lower_br0": "br0",
    }
    files, links = netdev("eth0")
    for path in lower:
        files[f"sys/class/net/{path}/mtu" if not path.startswith("eth0") else f"{FOLDER}/net/{path}/mtu"] = (
            "1500"
        )
    facts = machine(tmp_path, (files, links), netdev("eth1"), proc__net__route=table)
    assert [(nic.netdev, nic.default_route) for nic in facts.nics] == [("eth0", True), ("eth1", False)]


def test_a_default_route_that_rejects_or_is_down_does_not_count(tmp_path: Path) -> None:
    table = ROUTES + route("eth1", "00000000", "00000000", flags="0201", metric=1)
    table += route("eth1", "00000000", "00000000", flags="0000", metric=2)
    table += route("eth0", "00000000", "00000000", "010A0A0A", "0003", 100)
    facts = machine(tmp_path, netdev("eth0"), netdev("eth1"), proc__net__route=table)
    assert [(nic.netdev, nic.default_route) for nic in facts.nics] == [("eth0", True), ("eth1", False)]


def test_without_a_routing_table_nothing_is_said_of_the_default_route(tmp_path: Path) -> None:
    assert only(machine(tmp_path, netdev("eth0"))).default_route is None


def test_a_rejecting_ipv6_default_and_one_of_a_higher_metric_do_not_count(tmp_path: Path) -> None:
    zero = "0" * 32
    rows = [
        (zero, "00", "00000400", "00000003", "eth0"),
        (zero, "00", "00000800", "00000003", "eth1"),
        (zero, "00", "00000100", "00200200", "lo"),
        (zero, "00", "00000200", "00000000", "eth1"),
        ("fe80" + "0" * 28, "40", "00000100", "00000001", "eth1"),
    ]
    text = "".join(
        f"{d} {n} {zero} 00 {'fe80' + '0' * 27 + '1'} {m} 00000001 00000000 {f} {i}\n"
        for d, n, m, f, i in rows
    )
    facts = machine(tmp_path, netdev("eth0"), netdev("eth1"), proc__net__ipv6_route=text)
    assert [(nic.netdev, nic.default_route) for nic in facts.nics] == [("eth0", True), ("eth1", False)]


def test_router_advertisements_on_rails_do_not_make_them_the_front_end(tmp_path: Path) -> None:
    zero = "0" * 32
    advertised = f"{zero} 00 {zero} 00 {'fe80' + '0' * 27 + '1'} 00000400 00000001 00000000 00000003 eth1\n"
    table = ROUTES + route("eth0", "00000000", "00000000", "010A0A0A", "0003", 100)
    front, rail = netdev("eth0"), netdev("eth1")
    facts = machine(tmp_path, front, rail, proc__net__route=table, proc__net__ipv6_route=advertised)
    assert [(nic.netdev, nic.default_route) for nic in facts.nics] == [("eth0", True), ("eth1", False)]


TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.100.0.0/24 2 0 2
        |-- 10.100.0.0
           /24 link UNICAST
        |-- 10.100.0.{}
           /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
        |-- 10.100.0.255
           /32 link BROADCAST
"""


def test_an_address_is_of_the_interface_with_the_connected_route(tmp_path: Path) -> None:
    table = ROUTES + route("eth0", "0000640A", "00FFFFFF") + route("eth1", "00000A0A", "0000FFFF")
    inet6 = "fd000000000000000000000000000002 04 40 00 80     eth0\n"
    inet6 += "fe80000000000000ba3fd2fffe000010 04 40 20 80     eth0\n"
    facts = machine(
        tmp_path,
        netdev("eth0"),
        netdev("eth1"),
        proc__net__route=table,
        proc__net__fib_trie=TRIE.format(1),
        proc__net__if_inet6=inet6,
    )
    assert [nic.addresses for nic in facts.nics] == [("10.100.0.1/24", "fd00::2/64"), ()]


def test_what_a_bond_holds_is_carried_by_its_members(tmp_path: Path) -> None:
    table = (
        ROUTES
        + route("bond0", "0000640A", "00FFFFFF")
        + route("bond0", "00000000", "00000000", "010A0A0A", "0003")
    )
    files, links = netdev("eth0")
    links[f"{FOLDER}/net/eth0/master"] = "../../../../virtual/net/bond0"
    facts = machine(tmp_path, (files, links), proc__net__route=table, proc__net__fib_trie=TRIE.format(1))
    nic = only(facts)
    assert (nic.master, nic.addresses, nic.default_route) == ("bond0", ("10.100.0.1/24",), True)


@pytest.mark.parametrize("told", [True, False])
def test_an_address_in_a_shared_subnet_is_of_the_port_whose_gid_table_has_it(
    tmp_path: Path, told: bool
) -> None:
    table = ROUTES + route("eth0", "0000640A", "00FFFFFF") + route("eth1", "0000640A", "00FFFFFF")
    other = "pci0000:15/0000:15:02.0"
    files, links = functions(function(other, "0x020000"))
    more, beside = rdma("mlx5_1", place=other)
    if told:
        port = f"sys/devices/{other}/infiniband/mlx5_1/ports/1"
        more |= {f"{port}/gids/3": "0000:" * 5 + "ffff:0a64:0007", f"{port}/gid_attrs/types/3": "RoCE v2"}
    facts = machine(
        tmp_path,
        (dict(files), links),
        (more, beside),
        rdma("mlx5_0"),
        netdev("eth0"),
        netdev("eth1", place=other),
        proc__net__route=table,
        proc__net__fib_trie=TRIE.format(7),
    )
    assert [nic.addresses for nic in facts.nics] == [(), ("10.100.0.7/24",) if told else ()]
    assert any("10.100.0.7/24 is on one of eth0, eth1" in note for note in facts.notes) is not told


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("route", ROUTES + "eth0\t0000640A\n", ":2"),
        ("route", ROUTES + route("eth0", "0000640A", "00FFFFFF") + route("eth0", "no", "00FFFFFF"), ":3"),
        ("ipv6_route", "fd00 40\n", ":1"),
        ("fib_trie", "Main:\n  |-- 10.100\n", ":2"),
        ("fib_trie", "Main:\n  |--\n", ":2"),
        ("if_inet6", "fd00 01 40 00 80 eth0\n", ":1"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        machine(tmp_path, **{f"proc__net__{name}": text})
    assert error.value.where == f"{tmp_path}/proc/net/{name}{line}"
