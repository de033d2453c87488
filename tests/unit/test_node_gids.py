"""`gid`: the index of each RoCE port as it is now, on the node, after a flap and in a container."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from railwright.node.__main__ import main
from tests.unit.small_machine import function, functions, plant

LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe00:0001"
# One connected /24 for each rail, as procfs shows them: 10.100.N.0.
ROUTE_HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def mapped(address: str) -> str:
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))


def usual(address: str, first: int = 0) -> list[tuple[int, str, str]]:
    """A table as mlx5 fills it: pairs of v1 and v2, the link-local address first."""
    return [
        (first, LINK_LOCAL, "IB/RoCE v1"),
        (first + 1, LINK_LOCAL, "RoCE v2"),
        (first + 2, mapped(address), "IB/RoCE v1"),
        (first + 3, mapped(address), "RoCE v2"),
    ]


def node(
    root: Path,
    tables: Sequence[Sequence[tuple[int, str, str]]],
    *,
    ndevs: Mapping[int, str] | None = None,
    container: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Rails mlx5_N with these GID tables. container: interfaces of the container with their addresses, and no other."""
    made: dict[str, str] = {}
    links: dict[str, str] = {}
    held = {f"rail{n}": f"10.100.{n}.5" for n in range(len(tables))} if container is None else container
    for rail, table in enumerate(tables):
        place = f"pci0000:{rail}5/0000:{rail}5:01.0/0000:{rail}6:00.0"
        more, beside = functions(
            function(place.rpartition("/")[0], "0x060400"), function(place, "0x020000", "0x15b3", "0x1021")
        )
        device = f"sys/devices/{place}/infiniband/mlx5_{rail}"
        port = f"{device}/ports/1"
        made |= more | {
            f"{port}/state": "4: ACTIVE", f"{port}/rate": "400 Gb/sec (4X NDR)", f"{port}/link_layer": "Ethernet",
        }  # fmt: skip
        for index in range(8):
            made[f"{port}/gids/{index}"] = ":".join(["0000"] * 8)
        for index, gid, kind in table:
            made[f"{port}/gids/{index}"] = gid
            made[f"{port}/gid_attrs/types/{index}"] = kind
            made[f"{port}/gid_attrs/ndevs/{index}"] = (ndevs or {}).get(index, f"rail{rail}")
        links |= beside | {
            f"sys/class/infiniband/mlx5_{rail}": f"../../devices/{place}/infiniband/mlx5_{rail}"
        }
        if container is None:
            net = f"sys/devices/{place}/net/rail{rail}"
            made |= {f"{net}/ifindex": f"{rail + 2}", f"{net}/iflink": f"{rail + 2}", f"{net}/dev_port": "0"}
            made |= {f"{net}/operstate": "up", f"{net}/mtu": "9000", f"{net}/type": "1"}
            links[f"sys/class/net/rail{rail}"] = f"../../devices/{place}/net/rail{rail}"
    rows, leaves = ROUTE_HEAD, "Main:\n"
    for name, address in held.items():
        first = address.rpartition(".")[0].split(".")
        word = "00" + "".join(f"{int(part):02X}" for part in reversed(first))
        rows += f"{name}\t{word}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        leaves += f"     |-- {address}\n        /32 host LOCAL\n"
    return plant(root, {**made, "proc/net/route": rows, "proc/net/fib_trie": leaves, **(files or {})}, links)


def run(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["gid", "--root", str(root), *words])
    said = capsys.readouterr()
    return status, said.out, said.err


def indexes(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    page = json.loads(run(root, capsys, "--json", *words)[1])
    return {port["device"]: port["gid_index"] for port in page["ports"]}


def test_each_port_has_its_own_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = node(tmp_path, [usual("10.100.0.5"), usual("10.100.1.5", first=2)])
    status, text, _ = run(root, capsys)
    assert status == 0
    assert text.splitlines() == ["mlx5_0:1  GID 3  10.100.0.5  rail0", "mlx5_1:1  GID 5  10.100.1.5  rail1"]
    assert indexes(root, capsys) == {"mlx5_0": 3, "mlx5_1": 5}
    assert indexes(root, capsys, "mlx5_1") == {"mlx5_1": 5}


def test_an_index_is_asked_anew_after_a_flap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = node(tmp_path, [usual("10.100.0.5")])
    assert indexes(root, capsys) == {"mlx5_0": 3}
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    # The address was registered again at the next free place (NVIDIA/nccl PR 2183).
    (port / "gids/6").write_text(mapped("10.100.0.5"), encoding="ascii")
    (port / "gid_attrs/types/6").write_text("RoCE v2", encoding="ascii")
    (port / "gid_attrs/ndevs/6").write_text("rail0", encoding="ascii")
    (port / "gids/3").write_text(":".join(["0000"] * 8), encoding="ascii")
    assert indexes(root, capsys) == {"mlx5_0": 6}


def test_entries_that_cannot_be_read_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field case: uccl#301, indices 0 and 1 give EINVAL, 2 and 3 can be read."""
    root = node(tmp_path, [usual("10.100.0.5")])
    for index in (0, 1):
        for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (root / f"sys/class/infiniband/mlx5_0/ports/1/{part}/{index}").unlink()
    assert indexes(root, capsys) == {"mlx5_0": 3}


def test_addresses_of_ipv6_only_are_no_index_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field case: uccl PR#803, bnxt_re with fe80:: and a unique local address only."""
    table = [(0, LINK_LOCAL, "RoCE v2"), (1, "fd93:0000:0000:0000:0000:0000:0000:0005", "RoCE v2")]
    root = node(tmp_path, [table])
    assert indexes(root, capsys) == {"mlx5_0": 1}
    assert run(root, capsys, "--env", "--range", "fd93::/64")[1].split() == [
        "NCCL_IB_ADDR_RANGE=fd93::/64",
        "NCCL_IB_ADDR_FAMILY=AF_INET6",
    ]


def test_in_a_container_its_own_address_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field case: nccl#1538. The port's netdev lives elsewhere; a child of it in the container has index 7."""
    table = [
        *usual("10.100.0.5"),
        (6, mapped("10.100.0.77"), "IB/RoCE v1"),
        (7, mapped("10.100.0.77"), "RoCE v2"),
    ]
    inside = node(
        tmp_path / "inside", [table], ndevs={6: "net1", 7: "net1"}, container={"net1": "10.100.0.77"}
    )
    status, text, _ = run(inside, capsys)
    assert (status, text) == (0, "mlx5_0:1  GID 7  10.100.0.77  netdev in another namespace\n")
    outside = node(tmp_path / "outside", [table], ndevs={6: "net1", 7: "net1"})
    assert indexes(outside, capsys) == {"mlx5_0": 3}


def test_a_port_without_a_usable_gid_ends_with_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, [usual("10.100.0.5"), usual("10.100.1.5")[:2]])
    status, text, _ = run(root, capsys)
    assert status == 1
    assert text.splitlines()[1] == (
        "mlx5_1:1  not usable: no RoCE v2 GID of mlx5_1 stands for an address of rail1"
    )
    status, text, said = run(root, capsys, "--env")
    assert (status, text) == (1, "")
    assert "mlx5_1" in said


def test_several_addresses_need_the_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = node(tmp_path, [[*usual("10.100.0.5"), (5, mapped("192.168.7.5"), "RoCE v2")]])
    status, text, _ = run(root, capsys)
    assert status == 1
    assert "several GIDs of mlx5_0 would do: 3 (10.100.0.5), 5 (192.168.7.5)" in text
    assert indexes(root, capsys, "--range", "10.100.0.0/16") == {"mlx5_0": 3}
    assert indexes(root, capsys, "--range", "192.168.7.0/24") == {"mlx5_0": 5}


@pytest.mark.parametrize(
    ("nccl", "words", "written"),
    [
        # The range before an index: an index moves.
        ({"addr_range": "10.100.0.0/16"}, [], ["NCCL_IB_ADDR_RANGE=10.100.0.0/16"]),
        ({"version": "2.30.7"}, ["--range", "10.100.0.0/16"], ["NCCL_IB_ADDR_RANGE=10.100.0.0/16"]),
        # NCCL 2.21 chooses by itself; before it, or where nobody knows, one index is told.
        ({"version": "2.30.7"}, [], []),
        ({"version": "2.20.5"}, [], ["NCCL_IB_GID_INDEX=3"]),
        ({"version": "2.20.5", "addr_range": "10.100.0.0/16"}, [], ["NCCL_IB_GID_INDEX=3"]),
        ({}, [], ["NCCL_IB_GID_INDEX=3"]),
    ],
)
def test_a_launcher_is_told_nccls_variables(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    nccl: dict[str, str],
    words: list[str],
    written: list[str],
) -> None:
    policy = json.dumps({"schema": "railwright.policy/1", "nccl": nccl})
    root = node(
        tmp_path, [usual("10.100.0.5"), usual("10.100.1.5")], files={"etc/railwright/policy.json": policy}
    )
    status, text, _ = run(root, capsys, "--env", *words)
    assert (status, text.split()) == (0, written)


def test_indexes_that_differ_are_refused_where_one_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(tmp_path, [usual("10.100.0.5"), usual("10.100.1.5", first=2)])
    status, text, said = run(root, capsys, "--env")
    assert (status, text) == (2, "")
    assert "mlx5_0:1 3, mlx5_1:1 5" in said


def test_only_the_rails_of_the_nodes_own_file_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = node(
        tmp_path,
        [usual("10.100.0.5"), usual("10.100.1.5")[:2]],
        files={"etc/nccl.conf": "# Written by Railwright\nNCCL_IB_HCA==mlx5_0:1\n"},
    )
    assert indexes(root, capsys) == {"mlx5_0": 3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mlx5_9"], "mlx5_9: is no RoCE device that can be seen from here (there is mlx5_0)"),
        (["--range", "10.100"], "--range: "),
        (["--range", "0.0.0.0/0"], "every address is in it"),
    ],
)
def test_bad_usage_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    status, _, err = run(node(tmp_path, [usual("10.100.0.5")]), capsys, *words)
    assert status == 2
    assert said in err


def test_a_node_without_roce_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(plant(tmp_path, {}), capsys)
    assert status == 2
    assert "no RoCE port can be seen from here" in err


def test_a_garbled_table_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = node(tmp_path, [[(3, "not a gid", "RoCE v2")]])
    status, _, err = run(root, capsys)
    assert status == 2
    assert "gids/3: found 'not a gid'" in err
