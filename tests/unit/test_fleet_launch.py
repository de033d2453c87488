"""Launch files, placement, advice and inventories: expected values by hand, by brute force and from the papers."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import yaml

from railwright.fleet import addressing, advisor, inventory, launch, placement, rack_check
from railwright.fleet.placement import RATES, Place, Split, place
from railwright.node.model import Facts, InputError, Policy
from railwright.plan import plan
from tests.unit.fleet_support import node


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node1", "node2", "node3", "node7"], "node[1-3,7]"),
        (["gpu01", "gpu02", "gpu10"], "gpu[01-02,10]"),
        (["gpu9", "gpu10"], "gpu[9-10]"),
        (["a1"], "a1"),
        (["head", "a1", "a2"], "a[1-2],head"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
    ],
)
def test_names_are_folded_as_slurm_writes_them(names: list[str], folded: str) -> None:
    """`scontrol show hostlist` gives these."""
    assert launch.hostlist(names) == folded


def hosts() -> list[launch.Host]:
    leaves = {1: ("leaf0", "leaf1"), 2: ("leaf0", "leaf1"), 3: ("leaf2", "leaf3")}
    return [
        launch.Host(f"node{n}", plan(Facts.read(node("four", n)), Policy()), leaves[n], "GX 4 (small)")
        for n in (3, 1, 2)
    ]


def test_nodes_of_one_unit_stand_together_and_ranks_count_on() -> None:
    files = launch.launch_files(hosts())
    assert files["hostfile"] == "node1 slots=4\nnode2 slots=4\nnode3 slots=4\n"
    ranks = files["rankfile"].splitlines()
    assert [line.split()[1].split("=")[1] for line in ranks] == ["node1"] * 4 + ["node2"] * 4 + ["node3"] * 4
    assert [int(line.split()[1].split("=")[0]) for line in ranks] == list(range(12))
    assert files["topology.conf"] == (
        "# unit1: leaf0, leaf1\nSwitchName=unit1 Nodes=node[1-2]\n"
        "# unit2: leaf2, leaf3\nSwitchName=unit2 Nodes=node3\n"
        "SwitchName=spine Switches=unit[1-2]\n"
    )
    gres = files["gres.conf"].splitlines()
    assert [line.split()[0] for line in gres[1:]] == ["NodeName=node[1-3]"] * 4
    assert gres[1].startswith("NodeName=node[1-3] Name=gpu File=/dev/nvidia0 Cores=")
    assert "--nnodes=3 --nproc-per-node=4" in files["torchrun.md"]
    assert (
        "kubectl label node node3 --overwrite railwright/unit=unit2 railwright/shape=GX-4-small"
        in files["kubernetes.md"]
    )


def test_the_name_of_a_leaf_adds_no_line_to_topology_conf() -> None:
    told = launch.topology_conf({"unit1": [replace(hosts()[0], leaves=("l1\nSwitchName=evil\x1b[31m",))]})
    assert told.startswith("# unit1: l1 SwitchName=evil\\u001b[31m\nSwitchName=unit1 ")


# -- placement --


def gpus(nodes: int, each: int, *, units: int = 1, reverse: tuple[int, ...] = ()) -> list[Place]:
    """GPUs in the order of a hostfile; on the nodes in `reverse` the rails run against the CUDA index."""
    return [
        Place(f"node{n}", f"node{n}", g, each - 1 - g if n in reverse else g, f"unit{n % units}")
        for n in range(nodes)
        for g in range(each)
    ]


def best_of_all(places: list[Place], split: Split) -> tuple[int, float]:
    """Every order of all GPUs: fewest broken tensor groups, then the shortest step, by another way of counting.

    Ranks are an array [pipeline][data][expert][tensor]; each axis waits for its slowest rank.
    """
    sizes = {"p": split.pipeline, "d": split.data, "e": split.expert, "t": split.tensor}
    amounts = {
        "p": split.pipeline_bytes,
        "d": split.data_bytes,
        "e": split.expert_bytes,
        "t": split.tensor_bytes,
    }
    cells = [dict(zip(sizes, cell, strict=True)) for cell in itertools.product(*map(range, sizes.values()))]

    def speed(one: Place, other: Place) -> float:
        if one.domain == other.domain:
            return RATES["nvlink"]
        if one.rail != other.rail:
            return RATES["cross-rail"]
        return RATES["rail"] if one.unit == other.unit else RATES["spine"]

    def step(gpu_of: dict[tuple[int, ...], Place]) -> float:
        total = 0.0
        for axis, size in sizes.items():
            slowest = 0.0
            for cell in cells:
                mine = gpu_of[tuple(cell.values())]
                line = [gpu_of[tuple({**cell, axis: at}.values())] for at in range(size)]
                own = cell[axis]
                if axis == "p":
                    to = line[max(own - 1, 0) : own] + line[own + 1 : own + 2]
                    mine_takes = sum(amounts[axis] / speed(mine, peer) for peer in to)
                elif axis == "e":
                    mine_takes = sum(
                        amounts[axis] / size / speed(mine, peer) for peer in line if peer != mine
                    )
                else:
                    mine_takes = 2 * (size - 1) / size * amounts[axis] / speed(mine, line[(own + 1) % size])
                slowest = max(slowest, mine_takes)
            total += slowest
        return total / 1e9

    best = (len(places), float("inf"))
    for order in itertools.permutations(places):
        gpu_of = {tuple(cell.values()): gpu for cell, gpu in zip(cells, order, strict=True)}
        groups: dict[tuple[int, ...], set[str]] = {}
        for cell, gpu in gpu_of.items():
            groups.setdefault(cell[:3], set()).add(gpu.domain)
        broken = sum(len(domains) > 1 for domains in groups.values())
        if broken <= best[0]:
            best = min(best, (broken, step(gpu_of)))
    return best


SMALL = [
    (gpus(2, 3), Split(tensor=3, data=2, tensor_bytes=9e9, data_bytes=1e9)),
    (gpus(2, 3, reverse=(1,)), Split(tensor=3, data=2, tensor_bytes=9e9, data_bytes=1e9)),
    (gpus(3, 2), Split(tensor=2, pipeline=3, tensor_bytes=9e9, pipeline_bytes=2e9)),
    (gpus(3, 2), Split(tensor=2, data=3, tensor_bytes=1e9, data_bytes=5e9)),
    (gpus(2, 3), Split(data=6, data_bytes=5e9)),
    (gpus(2, 3), Split(expert=3, data=2, expert_bytes=4e9, data_bytes=1e9)),
    (gpus(3, 2), Split(data=3, pipeline=2, data_bytes=1e9, pipeline_bytes=8e9)),
    (gpus(3, 2), Split(data=3, pipeline=2, data_bytes=8e9, pipeline_bytes=1e9)),
    (gpus(2, 2, units=2), Split(tensor=2, data=2, tensor_bytes=2e9, data_bytes=1e9)),
    (gpus(2, 3), Split(tensor=3, data=2, tensor_bytes=1e9, data_bytes=1e9)),
    (gpus(2, 3), Split(tensor=3, data=2, tensor_bytes=1e9, data_bytes=90e9)),
    (gpus(2, 3), Split(tensor=2, data=3, tensor_bytes=1e9, data_bytes=1e9)),
]


@pytest.mark.parametrize(("places", "split"), SMALL)
def test_no_order_of_the_gpus_is_better_than_the_one_that_is_given(places: list[Place], split: Split) -> None:
    found = place(places, split).after
    broken, seconds = best_of_all(places, split)
    assert found.spanning == broken
    assert found.seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("gradients", [1e9, 1e12])
def test_no_tensor_group_is_broken_for_the_gradients_sake(gradients: float) -> None:
    compared = place(gpus(2, 8), Split(tensor=8, data=2, tensor_bytes=1e9, data_bytes=gradients))
    assert compared.after is compared.before
    assert not any("span" in sentence for sentence in compared.sentences)


def test_a_rank_order_that_breaks_tensor_groups_is_mended_and_told_so() -> None:
    """A launcher that deals ranks to the nodes in turn breaks all eight groups."""
    dealt = [gpu for pair in zip(*(gpus(2, 8)[at : at + 8] for at in (0, 8)), strict=True) for gpu in pair]
    compared = place(dealt, Split(tensor=2, data=8, tensor_bytes=1e9, data_bytes=1e9))
    assert compared.before.spanning == 8
    assert compared.after.spanning == 0
    assert compared.sentences[0].startswith(
        "Ranks in another order keep 8 more tensor groups in one NVLink domain"
    )


def test_a_ring_is_as_slow_as_its_slowest_hop() -> None:
    """Six GPUs of two nodes, one ring: 2*5/6 of 6 GB each, over a 50 GB/s port where it leaves a node: 10 / 50."""
    compared = place(gpus(2, 3), Split(data=6, data_bytes=6e9))
    assert compared.after.seconds == pytest.approx(0.2)


def test_tensor_groups_stay_in_a_domain_and_rings_on_a_rail() -> None:
    """Four nodes in two units, listed in turn; on one of them the rails run against the CUDA index."""
    places = gpus(4, 8, units=2, reverse=(2,))
    compared = place(places, Split(tensor=8, data=4, tensor_bytes=40e9, data_bytes=10e9))
    for first in range(0, 32, 8):
        assert len({gpu.domain for gpu in compared.after.order[first : first + 8]}) == 1
    for tensor in range(8):
        assert len({compared.after.order[tensor + 8 * data].rail for data in range(4)}) == 1
    assert compared.after.crossing["cross-rail"] == 0
    assert compared.before.crossing["cross-rail"] > 0
    assert compared.before.crossing["nvlink"] == compared.after.crossing["nvlink"]
    assert "less time in communication" in compared.sentences[0]


def test_the_bytes_of_a_ring_are_those_of_a_hand_calculation() -> None:
    """Two nodes of two GPUs, tensor 2, data 2: each GPU sends 2*(2-1)/2 = 1 of its bytes to its one neighbour."""
    compared = place(gpus(2, 2), Split(tensor=2, data=2, tensor_bytes=3e9, data_bytes=1e9))
    assert compared.after.crossing == {"nvlink": 12e9, "rail": 4e9, "spine": 0.0, "cross-rail": 0.0}
    assert compared.after is compared.before
    assert "no change needed" in compared.sentences[0]


def test_sizes_that_do_not_fit_are_told_with_both_numbers() -> None:
    with pytest.raises(InputError, match="3 x 1 x 1 x 1 is 3 ranks, and there are 4 GPUs"):
        place(gpus(2, 2), Split(tensor=3))


# -- advice --

GPT3 = advisor.Model(parameters=175e9, layers=96, hidden=12288, sequence=2048, batch=1536)
A100S = advisor.Fleet(gpus=1024, domain=8, memory=80 * 2**30, peak=312e12)


def test_memory_and_traffic_are_those_of_a_hand_calculation() -> None:
    (one,) = [
        one for one in advisor.every_split(GPT3, A100S) if (one.tensor, one.pipeline, one.expert) == (8, 8, 1)
    ]
    assert one.data == 16
    own = 175e9 / 64
    assert one.memory == pytest.approx(own * 4 + own * 12 / 16 + 34 * 2048 * 12288 / 8 * 96)
    assert one.arithmetic == pytest.approx(6 * 175e9 * 1536 * 2048 / (1024 * 312e12 * 0.4))
    assert one.bubble == pytest.approx(one.arithmetic * 7 / 96)
    assert one.data_seconds == pytest.approx(2 * 15 / 16 * 2 * own / 50e9)
    assert one.tensor_seconds == pytest.approx(2 * 7 / 8 * 4 * 2 * 2048 * 12288 * 12 * 96 / 450e9)


def test_what_fits_into_the_memory_is_ordered_by_time_and_what_does_not_is_left_out() -> None:
    advice = advisor.advise(GPT3, A100S)
    assert advice
    assert all(one.memory <= 80 * 2**30 * 0.9 for one in advice)
    assert [one.step for one in advice] == sorted(one.step for one in advice)
    assert not any(one.tensor * one.pipeline < 4 for one in advice)
    assert all(one.tensor * one.pipeline * one.data == 1024 and 96 % one.pipeline == 0 for one in advice)


def test_a_model_that_fits_nowhere_gets_no_advice() -> None:
    assert advisor.advise(GPT3, advisor.Fleet(gpus=8, domain=8, memory=80 * 2**30)) == ()


def test_experts_divide_only_their_own_parameters() -> None:
    """8 experts of which 2 are chosen, 47e9 parameters, 13e9 active: 45.33e9 belong to experts."""
    model = advisor.Model(47e9, 32, 4096, 4096, 256, experts=8, chosen=2, active=13e9)
    whole = advisor.memory_bytes(model, 1, 1, 8, 1) - 34 * 4096 * 4096 * 32
    split = advisor.memory_bytes(model, 1, 1, 8, 8) - 34 * 4096 * 4096 * 32
    of_experts = 34e9 / 0.75
    assert split / whole == pytest.approx((47e9 - of_experts + of_experts / 8) / 47e9)


def test_every_assumption_of_the_advisor_has_its_source() -> None:
    assert all(
        "arXiv" in text or "judgement" in text or "bound" in text or "all-to-alls" in text
        for text in advisor.ASSUMPTIONS
    )


# -- inventories --

SHEET = """Name;Mgmt IP;Rack;U;Rail0;Rail 1
gpu01;10.0.0.11;R1;10;leaf0/1 10.100.0.2/24;leaf1/1
gpu02;10.0.0.12;R1;14;leaf0/2;leaf1/2
"""
HOSTS = """# racks of the north hall
127.0.0.1 localhost
10.0.0.11 gpu01 gpu01.example.com  # new
10.0.0.12 gpu02
"""
NETBOX = {
    "count": 3,
    "results": [
        {
            "name": "gpu01",
            "role": {"slug": "gpu-node"},
            "status": {"value": "active"},
            "rack": {"name": "R1"},
            "position": 10.0,
            "primary_ip4": {"address": "10.0.0.11/24"},
        },
        {"name": "leaf0", "role": {"slug": "leaf"}, "status": {"value": "active"}},
        {
            "device": {"name": "gpu01"},
            "name": "rail0",
            "connected_endpoints": [{"device": {"name": "leaf0"}, "name": "Ethernet1"}],
        },
    ],
}


def test_a_rack_sheet_becomes_an_inventory_and_a_cabling_table() -> None:
    machines = inventory.read_machines(SHEET, "sheet.csv")
    assert rack_check.problems(machines) == ()
    made = yaml.safe_load(addressing.inventory_yaml(addressing.with_addresses(machines, "10.100.0.0/16", 2)))
    assert made["gpu_nodes"]["hosts"]["gpu01"] == {
        "ansible_host": "10.0.0.11",
        "node_rack": "R1 U10",
        "node_rails": [
            {"rail": 0, "address": "10.100.0.2/24", "leaf": "leaf0", "port": "1"},
            {"rail": 1, "address": "10.100.128.2/17", "leaf": "leaf1", "port": "1"},
        ],
    }
    assert made["gpu_nodes"]["hosts"]["gpu02"]["node_rails"][1]["address"] == "10.100.128.3/17"
    assert addressing.cabling_csv(machines) == (
        "node,rail,leaf,port\ngpu01,0,leaf0,1\ngpu01,1,leaf1,1\ngpu02,0,leaf0,2\ngpu02,1,leaf1,2\n"
    )


def test_a_list_of_hosts_becomes_an_inventory() -> None:
    machines = inventory.read_machines(HOSTS, "hosts")
    assert [(machine.name, machine.address) for machine in machines] == [
        ("gpu01", "10.0.0.11"),
        ("gpu02", "10.0.0.12"),
    ]


def test_a_netbox_export_gives_devices_of_a_role_with_their_cables() -> None:
    (machine,) = inventory.read_machines(json.dumps(NETBOX), "netbox.json", ["gpu-node"])
    assert (machine.name, machine.address, machine.rack, machine.position) == (
        "gpu01",
        "10.0.0.11",
        "R1",
        "10",
    )
    assert machine.rails == (inventory.Rail(0, None, "leaf0", "Ethernet1"),)


@pytest.mark.parametrize(
    ("old", "new", "code", "sentence"),
    [
        ("gpu02;", "gpu01;", "inventory.name_twice", "gpu01 stands 2 times"),
        ("10.0.0.12", "10.0.0.11", "inventory.address_twice", "gpu01, gpu02 have the same address 10.0.0.11"),
        ("10.0.0.12", "10.0.0.999", "inventory.address", "'10.0.0.999' is no address"),
        ("leaf0/2", "leaf0/1", "inventory.port_twice", "gpu01, gpu02 are both on leaf0/1"),
        (
            "leaf1/2",
            "leaf1/2 10.100.0.3/24",
            "inventory.one_subnet",
            "rails 0, 1 share the subnet 10.100.0.0/24",
        ),
        (";leaf1/2", ";", "inventory.rails", "gpu02 has 1 rails where most nodes have 2"),
        ("R1;14", "R1;10", "inventory.place_twice", "gpu01, gpu02 stand in the same place"),
        ("gpu02;", "gpu 02;", "inventory.name", "'gpu 02' is no host name"),
        (
            "R1;14",
            "{{ lookup('pipe', 'id') }};14",
            "inventory.word",
            "gpu02: \"{{ lookup('pipe', 'id') }}\" holds",
        ),
        ("10.0.0.12", "0.0.0.0", "inventory.address", "0.0.0.0 is no node's address"),
    ],
)
def test_a_mistake_in_the_list_is_told_in_a_sentence(old: str, new: str, code: str, sentence: str) -> None:
    found = rack_check.problems(inventory.read_machines(SHEET.replace(old, new), "sheet.csv"))
    assert any(finding.code == code and finding.why.startswith(sentence) for finding in found), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "sheet:1: no column name or host"),
        ("10.0.0.1 a\nnonsense\n", "sheet:2: found 'nonsense'"),
        ('{"x": 1}', "sheet: no list of results"),
        ("{", "sheet: is not JSON"),
        ('[{"name": "a", "position": NaN}]', "sheet: is not JSON: NaN is no number"),
        ("name,rail0\na,x\n", "sheet:2: rail0: found 'x'"),
        ("name\n", "sheet: names no node"),
        ("name,ip,name\na,1.2.3.4,b\n", "sheet:1: two columns 'name'"),
        ("name,rail0,rail00\na,l/1,l/2\n", "sheet:1: two columns for rail 0"),
        ("name,ip\na,1.2.3.4,rest\n", "sheet:2: more cells than the table has columns"),
        ("name,rail0\na,leaf1/\n", "sheet:2: rail0: found 'leaf1/'"),
        ("name\n" + "a" * 200_000 + "\n", "sheet:1: is no CSV table"),
        (
            '{"count": 90, "next": "http://netbox/?offset=50", "results": []}',
            "sheet: is one page of 90 entries",
        ),
    ],
)
def test_a_list_that_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        inventory.read_machines(text, "sheet")
    assert str(error.value).startswith(message)


def test_a_network_that_is_too_small_is_refused() -> None:
    machines = inventory.read_machines(HOSTS, "hosts")
    with pytest.raises(InputError, match="does not hold 8 rails of 2 nodes"):
        addressing.with_addresses(machines, "10.100.0.0/28", 8)


def test_an_interface_that_stands_twice_in_an_export_is_an_error() -> None:
    end = {"device": {"name": "gpu01"}, "name": "rail0"}
    machines = inventory.read_machines(json.dumps([{"name": "gpu01"}, end, end]), "netbox.json")
    assert [finding.code for finding in rack_check.problems(machines)] == [
        "inventory.no_address",
        "inventory.rail_twice",
    ]


def test_empty_cells_beyond_the_columns_are_nothing() -> None:
    (machine,) = inventory.read_machines("name,ip\na,10.0.0.1,, \n", "sheet")
    assert (machine.name, machine.address) == ("a", "10.0.0.1")


def test_a_rail_number_of_thousands_of_digits_is_no_rail() -> None:
    (machine,) = inventory.read_machines(f"name,rail{'9' * 5000}\na,leaf1/1\n", "sheet")
    assert machine.rails == ()


@pytest.mark.parametrize(
    ("network", "rails", "message"),
    [
        ("10.100.0.0/16", 0, "rails: found 0"),
        ("10.100.0.0/16", -8, "rails: found -8"),
        ("::/8", 10**9, "rails: found 1000000000"),
        ("127.0.0.0/8", 8, "is no network of hosts"),
        ("224.0.0.0/8", 8, "is no network of hosts"),
        ("0.0.0.0/0", 8, "is no network of hosts"),
    ],
)
def test_a_number_of_rails_or_a_network_that_means_nothing_is_refused(
    network: str, rails: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        addressing.with_addresses(inventory.read_machines(HOSTS, "hosts"), network, rails)


@pytest.mark.parametrize(
    ("model", "fleet", "where"),
    [
        ({"parameters": float("nan")}, {}, "parameters"),
        ({"parameters": float("inf")}, {}, "parameters"),
        ({"layers": 10**11}, {}, "layers"),
        ({"experts": 10**12}, {}, "experts"),
        ({"batch": 10**400}, {}, "batch"),
        ({"active": 10e9}, {}, "active"),
        # 4 of 8 experts are half of the model at least, and no token meets more than there is.
        ({"experts": 8, "chosen": 4, "active": 1e9}, {}, "active"),
        ({"experts": 8, "chosen": 4, "active": 200e9}, {}, "active"),
        ({}, {"domain": 10**10}, "domain"),
        ({}, {"memory": float("nan")}, "memory"),
        ({}, {"peak": 0.0}, "peak"),
        ({}, {"share": 0.0}, "share"),
        ({}, {"share": 5.0}, "share"),
        ({}, {"share": float("nan")}, "share"),
    ],
)
def test_sizes_that_mean_nothing_get_no_advice(
    model: dict[str, float], fleet: dict[str, float], where: str
) -> None:
    with pytest.raises(InputError) as error:
        advisor.advise(replace(GPT3, **model), replace(A100S, **fleet))  # type: ignore[arg-type]
    assert error.value.where == where


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1.0])
def test_bytes_that_mean_nothing_get_no_placement(amount: float) -> None:
    with pytest.raises(InputError, match="data bytes: found"):
        placement.place([Place("n", "n", 0, 0)], Split(data_bytes=amount))


def test_placement_names_the_axes_as_the_launcher_does() -> None:
    assert placement.AXES == ("tensor", "expert", "data", "pipeline")


# -- the inventory's rails become the policy's --

RAILS = [
    {"rail": 0, "address": "10.100.0.2/24", "leaf": "leaf1", "port": "Ethernet4"},
    {"rail": 1, "leaf": "leaf2"},
    {"rail": 2, "address": "10.100.2.2/24", "gateway": "10.100.2.1"},
]


def test_the_inventorys_rail_addresses_become_the_policys() -> None:
    made = addressing.policy_with_rails({"workload": "train-large"}, RAILS, "node_rails")
    assert made == {
        "workload": "train-large",
        "rails": {
            "addresses": [
                {"rail": 0, "address": "10.100.0.2/24"},
                {"rail": 2, "address": "10.100.2.2/24", "gateway": "10.100.2.1"},
            ]
        },
    }
    assert [entry.rail for entry in Policy.read(made).rails.addresses] == [0, 2]


def test_the_policys_own_word_on_a_rail_stays() -> None:
    own = {"rails": {"prefix": "rail", "addresses": [{"rail": 0, "address": "10.9.0.2/24"}]}}
    made = addressing.policy_with_rails(own, RAILS, "node_rails")
    assert made["rails"]["prefix"] == "rail"
    assert [entry["address"] for entry in made["rails"]["addresses"]] == ["10.9.0.2/24", "10.100.2.2/24"]
    assert own["rails"]["addresses"] == [{"rail": 0, "address": "10.9.0.2/24"}]


def test_an_inventory_without_addresses_changes_no_policy() -> None:
    assert addressing.policy_with_rails({}, [{"rail": 0, "leaf": "leaf1"}], "node_rails") == {}
    assert addressing.policy_with_rails({}, [], "node_rails") == {}


@pytest.mark.parametrize("rails", [{}, "x", [1], [["rail", 0]]])
def test_rails_that_are_no_list_of_mappings_are_refused_by_name(rails: object) -> None:
    with pytest.raises(InputError) as error:
        addressing.policy_with_rails({}, rails, "node_rails")
    assert error.value.where == "node_rails"


def test_addresses_of_the_inventory_command_are_a_policy_that_can_be() -> None:
    machines = inventory.read_machines(HOSTS, "hosts")
    for machine in addressing.with_addresses(machines, "10.100.0.0/16", 8):
        told = yaml.safe_load(addressing.inventory_yaml([machine]))["gpu_nodes"]["hosts"][machine.name]
        made = addressing.policy_with_rails({}, told["node_rails"], "node_rails")
        assert len(Policy.read(made).rails.addresses) == 8
