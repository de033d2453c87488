"""What is odd about real machines, one thing a test: each is a fact, or a question that says how to settle it."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from railwright.captures import read
from railwright.node.discover import discover
from railwright.node.model import (
    C2c,
    Fabric,
    Facts,
    InputError,
    NumaNode,
    NvLink,
    P2p,
    parse_cpulist,
    to_json,
)
from tests.unit import witness_samples as samples
from tests.unit.captures_text import capture, captures_folder
from tests.unit.small_machine import function, functions, plant
from tests.unit.test_captures_merge import together

UUID = "GPU-11111111-2222-3333-4444-555555555500"
PF = "pci0000:15/0000:15:01.0/0000:16:00.0"


def planted(root: Path, *each: tuple[dict[str, str], dict[str, str]], **extra: str) -> Facts:
    """Facts of a small machine with these functions, over a tar archive of it: the road of a customer's file."""
    files, links = functions(*each)
    tree = plant(
        root / "m", {**files, **{key.replace("__", "/"): text for key, text in extra.items()}}, links
    )
    with tarfile.open(root / "m.tar", "w") as archive:
        archive.add(tree, "m")
    live, packed = discover(tree), read([root / "m.tar"])
    assert (packed.nics, packed.pci, packed.cpus, packed.numa) == (live.nics, live.pci, live.cpus, live.numa)
    assert Facts.read(to_json(packed)) == packed
    return packed


def port(
    place: str, rdma: str | None, netdev: str | None, **more: str
) -> tuple[dict[str, str], dict[str, str]]:
    """An RDMA device and a netdev on one function, either of which may be missing."""
    files: dict[str, str] = {
        f"sys/devices/{place}/{key.replace('__', '/')}": text for key, text in more.items()
    }
    links = {}
    if rdma:
        folder = f"sys/devices/{place}/infiniband/{rdma}/ports/1"
        files |= {f"{folder}/state": "4: ACTIVE", f"{folder}/link_layer": "Ethernet"}
        files[f"{folder}/rate"] = "400 Gb/sec (4X NDR)"
        links[f"sys/class/infiniband/{rdma}"] = f"../../devices/{place}/infiniband/{rdma}"
    if netdev:
        files |= {
            f"sys/devices/{place}/net/{netdev}/{key}": text
            for key, text in {"type": "1", "mtu": "9000"}.items()
        }
        links[f"sys/class/net/{netdev}"] = f"../../devices/{place}/net/{netdev}"
    return files, links


# -- GPUs and their links --


def test_nvswitches_are_in_the_tree(tmp_path: Path) -> None:
    text = samples.LSPCI + (
        "9b:00.1 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)\n"
        "\tNUMA node: 1\n\n"
        "00:1f.0 Bridge [0680]: Intel Corporation Device [8086:1b81]\n"
    )
    switches = [device for device in capture(tmp_path, text).pci if device.class_code == "0x0680"]
    assert [(device.address, device.vendor, device.numa) for device in switches] == [
        ("0000:9b:00.1", "0x10de", 1)
    ]


def test_the_public_vm_with_six_nvswitches_shows_them() -> None:
    path = captures_folder("RAILWRIGHT_CAPTURES") / "lspci/gpud-a100-nn.txt"
    switches = [device.address for device in read([path]).pci if device.class_code == "0x0680"]
    assert switches == [
        f"{line[:12]}" for line in path.read_text().splitlines() if "Bridge [0680]: NVIDIA" in line
    ]
    assert len(switches) == 6


def test_nvlink_r_and_p_tell_counts_and_peers(tmp_path: Path) -> None:
    far = capture(tmp_path, samples.NVLINK_FAR)
    assert [gpu.nvlinks for gpu in far.gpus] == [(NvLink("0000:9a:00.0", 18),), (NvLink("0000:18:00.0", 18),)]
    switched = (
        f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {UUID})\n"
        "\t Link 0: 00000008:00:00.0\n\t Link 1: 00000005:00:00.0\n\t Link 2: 00000008:00:00.0\n"
    )
    (gpu,) = capture(tmp_path, switched).gpus
    assert gpu.nvlinks == (NvLink("0005:00:00.0", 1), NvLink("0008:00:00.0", 2))
    (gpu,) = capture(tmp_path, switched + "...\n").gpus
    assert gpu.nvlinks is None
    with pytest.raises(InputError, match="link 0 of GPU0 stands twice"):
        capture(tmp_path, switched.replace("Link 2", "Link 0"))


def test_peers_fill_a_witness_that_counts_none(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.LSPCI, samples.QUERY, samples.NVLINK_FAR)
    assert [gpu.nvlinks for gpu in facts.gpus] == [
        (NvLink("0000:9a:00.0", 18),),
        (NvLink("0000:18:00.0", 18),),
    ]
    assert facts.sources["gpus[GPU0].nvlinks"].startswith("nvlink ")


def test_c2c_links_are_counted_with_their_speed(tmp_path: Path) -> None:
    text = f"GPU 0: NVIDIA GH200 480GB (UUID: {UUID})\n" + "".join(
        f"\t C2C Link {link}: 44.712 GB/s\n" for link in range(10)
    )
    (gpu,) = capture(tmp_path, text).gpus
    assert gpu.c2c == C2c(10, 44712)
    (gpu,) = capture(tmp_path, text.replace("Link 9: 44.712", "Link 9: 22.3")).gpus
    assert gpu.c2c is None
    with pytest.raises(InputError, match="C2C Link"):
        capture(tmp_path, text.replace("44.712 GB/s", "fast", 1))


def test_c2c_of_a_public_gb10_is_what_its_dump_says() -> None:
    path = captures_folder("RAILWRIGHT_CAPTURES") / "nccl_xml/gb10-dgx-spark.xml"
    (gpu,) = read([path]).gpus
    assert '<c2c bw="43125" count="8"/>' in path.read_text()
    assert gpu.c2c == C2c(8, 43125)


def test_fabric_state_and_clique_are_those_that_nvidia_smi_says(tmp_path: Path) -> None:
    cluster = "3b1e4d7c-0f7a-41f2-9c27-0d1c1f5ab001"
    text = samples.QUERY.replace(
        "        State                             : Completed\n",
        "        State                             : Completed\n        Status                            : Success\n"
        "        CliqueId                          : 4000000004\n"
        f"        ClusterUUID                       : {cluster}\n",
    )
    assert [gpu.fabric for gpu in capture(tmp_path, text).gpus] == [
        Fabric("Completed", "Success", cluster, 4000000004)
    ] * 2
    waiting = capture(tmp_path, samples.QUERY.replace(": Completed", ": In Progress"))
    assert [gpu.fabric for gpu in waiting.gpus] == [Fabric("In Progress")] * 2


def test_mig_is_told_by_q_and_by_the_list(tmp_path: Path) -> None:
    assert [gpu.mig for gpu in capture(tmp_path, samples.QUERY).gpus] == [False, False]
    on = capture(tmp_path, samples.QUERY.replace(": Disabled", ": Enabled", 1))
    assert [gpu.mig for gpu in on.gpus] == [True, False]
    assert "0000:18:00.0: MIG is on" in on.notes
    assert [gpu.mig for gpu in capture(tmp_path, samples.QUERY_XML).gpus] == [None, None]
    listed = (
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {samples.UUIDS[0]})\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-fb42055e-9e53-5764-9278-438605a3014c)\n"
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {samples.UUIDS[1]})\n"
    )
    # Without an instance the list says nothing of a GPU's mode.
    assert [gpu.mig for gpu in capture(tmp_path, listed).gpus] == [True, None]


def test_p2p_states_come_with_the_capability_that_was_asked_for(tmp_path: Path) -> None:
    text = samples.P2P.replace("X\tOK", "X\tCNS") + samples.P2P.replace("-p2p r", "-p2p w")
    facts = capture(tmp_path, text)
    assert facts.p2p == (
        P2p("GPU0", "GPU1", "CNS", "read"),
        P2p("GPU1", "GPU0", "OK", "read"),
        P2p("GPU0", "GPU1", "OK", "write"),
        P2p("GPU1", "GPU0", "OK", "write"),
    )
    assert facts.notes == ("P2P read is not possible (CNS: the chipset does not support it): GPU0 to GPU1",)
    assert {pair.capability for pair in capture(tmp_path, samples.P2P.partition("\n")[2]).p2p} == {None}
    cut = capture(tmp_path, samples.P2P.replace(" GPU1\tOK\tX\t\n", " GPU1\tOK\n"))
    assert not cut.complete
    assert "the table of P2P states is cut: rows of GPU1 are not whole" in cut.notes


def test_p2p_states_join_the_matrix_and_contradictions_are_kept(tmp_path: Path) -> None:
    facts = together(tmp_path, samples.MATRIX, samples.P2P)
    assert [(pair.a, pair.status) for pair in facts.p2p] == [("GPU0", "OK"), ("GPU1", "OK")]
    assert facts.paths
    other = samples.MATRIX + samples.P2P.replace("X\tOK", "X\tTNS")
    facts = together(tmp_path, other, samples.P2P)
    assert [conflict.where for conflict in facts.conflicts] == ["p2p[GPU0-GPU1]"]
    assert {claim.value for claim in facts.conflicts[0].claims} == {"OK", "TNS"}


# -- network functions --


def test_a_multi_pf_netdev_names_both_functions(tmp_path: Path) -> None:
    second = "pci0000:97/0000:97:01.0/0000:98:00.0"
    debug = "sys/kernel/debug/mlx5/0000:16:00.0/multi-pf"
    machine: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        function(PF, "0x020000", numa_node="0"),
        function(second, "0x020000", numa_node="1"),
        (
            {},
            {
                f"sys/devices/{place}/driver": "../../../../bus/pci/drivers/mlx5_core"
                for place in (PF, second)
            },
        ),
        port(PF, "mlx5_0", "eth0"),
    )
    group = {
        f"{debug}/group_id": "0x00000101",
        f"{debug}/primary": "0000:16:00.0 vhca 0x0\n",
        f"{debug}/secondary_0": "0000:98:00.0 vhca 0x2\n",
    }
    facts = planted(tmp_path, *machine, (group, {}))
    assert [(nic.name, nic.address, nic.functions) for nic in facts.nics] == [
        ("mlx5_0", "0000:16:00.0", ("0000:16:00.0", "0000:98:00.0"))
    ]
    assert facts.notes == ()
    hidden = planted(tmp_path / "hidden", *machine)
    assert hidden.nics[0].functions == ()
    assert hidden.notes[0].startswith("0000:98:00.0: driven by mlx5_core, and neither")
    group[f"{debug}/secondary_0"] = "nonsense\n"
    with pytest.raises(InputError, match="secondary_0"):
        planted(tmp_path / "wrong", *machine, (group, {}))


def test_a_data_direct_function_is_in_the_tree_and_no_port(tmp_path: Path) -> None:
    text = samples.LSPCI + (
        "9b:00.1 DMA controller [0801]: Mellanox Technologies ConnectX-8 Data Direct [15b3:2100]\n\tNUMA node: 1\n\n"
    )
    facts = capture(tmp_path, text)
    assert [device.address for device in facts.pci if device.class_code == "0x0801"] == ["0000:9b:00.1"]
    assert [nic.address for nic in facts.nics] == ["0000:19:00.0", "0000:9b:00.0"]
    tree = planted(tmp_path, function(PF, "0x020000"), function(f"{PF[:-1]}1", "0x080100", device="0x2100"))
    assert [device.address for device in tree.pci if device.class_code == "0x080100"] == ["0000:16:00.1"]


def test_representors_are_no_ports_neither_as_netdevs_nor_as_ports_of_the_rdma_device(tmp_path: Path) -> None:
    folder = f"sys/devices/{PF}/infiniband/mlx5_0/ports"
    more = {
        f"{folder}/{n}/{key}": text
        for n in (2, 3)
        for key, text in (("state", "4: ACTIVE"), ("link_layer", "Ethernet"))
    }
    facts = planted(
        tmp_path,
        function(PF, "0x020000"),
        port(PF, "mlx5_0", "eth0", net__eth0__phys_port_name="p0"),
        port(PF, None, "eth0_0", net__eth0_0__phys_port_name="pf0vf0"),
        port(PF, None, "eth0_1", net__eth0_1__phys_port_name="pf0vf1"),
        (more, {}),
    )
    assert [(nic.name, nic.port, nic.netdev) for nic in facts.nics] == [("mlx5_0", 1, "eth0")]
    assert facts.notes == ("mlx5_0: ports 2-3 represent virtual functions and subfunctions: left out",)


def test_two_real_ports_of_one_device_have_two_names(tmp_path: Path) -> None:
    folder = f"sys/devices/{PF}/infiniband/mlx4_0/ports/2"
    facts = planted(
        tmp_path,
        function(PF, "0x020000"),
        port(PF, "mlx4_0", "eth0", net__eth0__dev_port="0"),
        port(PF, None, "eth1", net__eth1__dev_port="1"),
        ({f"{folder}/state": "1: DOWN", f"{folder}/link_layer": "Ethernet"}, {}),
    )
    assert [(nic.name, nic.rdma, nic.port, nic.netdev) for nic in facts.nics] == [
        ("mlx4_0:1", "mlx4_0", 1, "eth0"),
        ("mlx4_0:2", "mlx4_0", 2, "eth1"),
    ]


SRIOV = (
    "\tCapabilities: [180 v1] Single Root I/O Virtualization (SR-IOV)\n"
    "\t\tIOVCap:\tMigration-, Interrupt Message Number: 000\n"
    "\t\tInitial VFs: 16, Total VFs: 16, Number of VFs: {vfs}, Function Dependency Link: {own}\n"
    "\t\tVF offset: {offset}, stride: {stride}, Device ID: 101e\n"
)


def card(slot: str, name: str, more: str = "") -> str:
    return f"{slot} Ethernet controller [0200]: Mellanox Technologies {name} [15b3:1021]\n\tNUMA node: 0\n{more}\n"


def test_lspci_tells_of_which_function_a_virtual_one_is(tmp_path: Path) -> None:
    """Routing numbers by hand: 19:00.0 is 0x1900, so offset 2 is 19:00.2; 19:00.1 with 15 and stride 2 is 19:02.0."""
    virtual = "ConnectX Family mlx5Gen Virtual Function"
    text = samples.LSPCI[: samples.LSPCI.index("19:00.0 Inf")] + "".join(
        (
            card("19:00.0", "MT2910", SRIOV.format(vfs=1, own="00", offset=2, stride=1)),
            card("19:00.1", "MT2910", SRIOV.format(vfs=2, own="01", offset=15, stride=2)),
            card("19:00.2", virtual),
            card("19:02.0", virtual),
            card("19:02.2", virtual),
            card("19:03.0", virtual),
        )
    )
    facts = capture(tmp_path, text)
    assert [(nic.name, nic.physical_function) for nic in facts.nics] == [
        ("0000:19:00.0", ""),
        ("0000:19:00.1", ""),
        ("0000:19:00.2", "0000:19:00.0"),
        ("0000:19:02.0", "0000:19:00.1"),
        ("0000:19:02.2", "0000:19:00.1"),
        ("0000:19:03.0", None),
    ]
    assert [note for note in facts.notes if "virtual by name" in note] == [
        "0000:19:03.0: virtual by name; of which function is not shown (lspci -nnvvv of root tells it, and a guest"
        " never does)"
    ]
    off = capture(tmp_path, text.replace("Number of VFs: 1", "Number of VFs: 0"))
    assert [nic.physical_function for nic in off.nics][2] is None


def test_members_of_a_bond_name_it_and_the_bonds_rdma_device_keeps_its_name(tmp_path: Path) -> None:
    facts = planted(
        tmp_path,
        function(PF, "0x020000"),
        function(f"{PF[:-1]}1", "0x020000"),
        port(PF, "mlx5_bond_0", "eth0"),
        port(f"{PF[:-1]}1", None, "eth1"),
        (
            {"sys/devices/virtual/net/bond0/type": "1"},
            {
                f"sys/devices/{PF}/net/eth0/master": "../../../../../virtual/net/bond0",
                f"sys/devices/{PF[:-1]}1/net/eth1/master": "../../../../../virtual/net/bond0",
            },
        ),
    )
    assert [(nic.name, nic.netdev, nic.master) for nic in facts.nics] == [
        ("mlx5_bond_0", "eth0", "bond0"),
        ("eth1", "eth1", "bond0"),
    ]
    (nic,) = capture(tmp_path, "mlx5_bond_0 port 1 ==> bond0 (Up)\n").nics
    assert (nic.rdma, nic.netdev, nic.state) == ("mlx5_bond_0", "bond0", "active")
    matrix = samples.MATRIX.replace("NIC0: mlx5_0", "NIC0: mlx5_bond_0")
    assert capture(tmp_path, matrix).nics[0].rdma == "mlx5_bond_0"


BLUEFIELD = samples.LSPCI.replace("[ConnectX-7] [15b3:1021]", "BlueField-3 integrated [15b3:a2dc]", 1)
ASKED = "NIC or DPU mode; give `mlxconfig -d 0000:19:00.0 -e query INTERNAL_CPU_OFFLOAD_ENGINE`"


def test_a_bluefield_is_known_and_its_mode_is_a_question(tmp_path: Path) -> None:
    facts = capture(tmp_path, BLUEFIELD)
    assert [nic.bluefield for nic in facts.nics] == [None, ""]
    assert [note for note in facts.notes if note.endswith(ASKED)] == [
        f"0000:19:00.0: BlueField-3, of which the host does not show whether it is in {ASKED}"
    ]
    tree = planted(tmp_path, function(PF, "0x020000", device="0xa2d6"), port(PF, "mlx5_0", "eth0"))
    assert [nic.bluefield for nic in tree.nics] == [None]
    assert tree.notes[0].startswith("mlx5_0: BlueField-2, of which")


@pytest.mark.parametrize(("value", "mode"), [("ENABLED(0)", "dpu"), ("DISABLED(1)", "nic")])
def test_mlxconfig_answers_the_question(tmp_path: Path, value: str, mode: str) -> None:
    text = samples.MLXCONFIG.replace("ConnectX7", "BlueField3", 1).replace(
        "        MEMIC",
        f"        INTERNAL_CPU_OFFLOAD_ENGINE                 DISABLED(1)          {value}  ENABLED(0)\n        MEMIC",
        1,
    )
    assert [nic.bluefield for nic in capture(tmp_path, text).nics] == [mode, ""]
    facts = together(tmp_path, BLUEFIELD, text)
    assert [nic.bluefield for nic in facts.nics] == [mode, ""]
    assert not any(ASKED in note for note in facts.notes)
    alone = text.replace("Default             Current         Next Boot", "Next Boot").replace(
        f"DISABLED(1)          {value}  ENABLED(0)", value
    )
    later = capture(tmp_path, alone)
    assert later.nics[0].bluefield is None
    assert f"shows the mode after the next boot ({mode})" in later.notes[0]
    assert any(ASKED in note for note in together(tmp_path, BLUEFIELD, alone).notes)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("Device:             0000:19:00.0", "Device:             /dev/mst/mt41692_pciconf0", "not its PCI address"),
        ("Device:             0000:19:00.0", "", "without its type and address"),
        ("0000:9b:00.0", "0000:19:00.0", "stands twice"),
        ("   MEMIC", "  INTERNAL_CPU_OFFLOAD_ENGINE   ENABLED(0)  PERHAPS(2)  ENABLED(0)\n   MEMIC", "each column"),
        ("   MEMIC", "  INTERNAL_CPU_OFFLOAD_ENGINE   ENABLED(0)\n   MEMIC", "each column"),
    ],
)  # fmt: skip
def test_mlxconfig_that_says_something_else_is_refused(tmp_path: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        capture(tmp_path, samples.MLXCONFIG.replace(old, new, 1))


B200 = samples.LSPCI.replace("GH100 [H100 SXM5 80GB] [10de:2330]", "GB100 [B200] [10de:2901]")
NO_VPD = ("\tCapabilities: [48] Vital Product Data\n", "\tCapabilities: <access denied>\n")
WHICH = "0000:19:00.0, 0000:9b:00.0: whether these are NVSwitch management functions is not known"


def test_nvswitch_management_functions_are_told_or_asked_for_where_there_can_be_any(tmp_path: Path) -> None:
    """From B200 on NVSwitches are managed through ConnectX functions; on a Hopper machine there is nothing to ask."""
    told = capture(tmp_path, B200.replace("NVIDIA ConnectX-7 adapter card", "Nvidia 8GPU SW_MNG", 1))
    assert [nic.management for nic in told.nics] == [True, False]
    assert not any("management functions" in note for note in told.notes)
    unread = capture(tmp_path, B200.replace(*NO_VPD))
    assert [nic.management for nic in unread.nics] == [None, None]
    assert [note.partition(",  since")[0] for note in unread.notes if note.startswith(WHICH)]
    hopper = capture(tmp_path, samples.LSPCI.replace(*NO_VPD))
    assert [nic.management for nic in hopper.nics] == [None, None]
    assert not any("management functions" in note for note in hopper.notes)


def test_other_witnesses_of_a_b200_ask_too_and_root_answers(tmp_path: Path) -> None:
    xml = samples.NCCL.replace('vendor="0x10de" device="0x2330"', 'vendor="0x10de" device="0x2901"')
    asked = [note for note in capture(tmp_path, xml).notes if "management functions is not known" in note]
    assert [note.partition(":")[0] for note in asked] == ["mlx5_0, mlx5_1"]
    hwloc = samples.HWLOC.replace("0302 [10de:2330]", "0302 [10de:2901]")
    assert any("management functions is not known" in note for note in capture(tmp_path, hwloc).notes)
    merged = together(tmp_path, xml, B200, samples.IBDEV_V)
    assert [nic.management for nic in merged.nics] == [False, False]
    assert not any("management functions" in note for note in merged.notes)


def test_an_unreadable_vpd_in_a_tree_is_a_question(tmp_path: Path) -> None:
    gpu = function("pci0000:15/0000:15:02.0/0000:18:00.0", "0x030200", "0x10de", "0x2901")
    files, links = port(PF, "mlx5_0", None)
    files[f"sys/devices/{PF}/infiniband/mlx5_0/ports/1/link_layer"] = "InfiniBand"
    facts = planted(tmp_path, gpu, function(PF, "0x020700"), (files, links))
    assert facts.nics[0].management is None
    assert facts.notes[0].startswith("mlx5_0: whether these are NVSwitch management functions is not known")
    files[f"sys/devices/{PF}/vpd"] = "\x82\x1c\x00NVIDIA SW_MNG NVSwitch mgmt"
    facts = planted(tmp_path / "root", gpu, function(PF, "0x020700"), (files, links))
    assert (facts.nics[0].management, facts.notes) == (True, ())


# -- processors and memory --


def test_nodes_without_cpus_are_nodes(tmp_path: Path) -> None:
    facts = planted(
        tmp_path,
        sys__devices__system__node__node0__distance="10 80",
        sys__devices__system__node__node1__cpulist="",
        sys__devices__system__node__node1__distance="80 10",
    )
    assert facts.numa == (NumaNode(0, "0-1", (10, 80)), NumaNode(1, "", (80, 10)))
    lscpu = samples.LSCPU.replace(
        "NUMA node(s):                    2", "NUMA node(s):                    3"
    ).replace("\n\n# CPU", "\nNUMA node2 CPU(s):               \n\n# CPU")
    assert capture(tmp_path, lscpu).numa[2] == NumaNode(2, "")


def test_the_public_machine_with_hbm_has_nodes_without_cpus() -> None:
    facts = read([captures_folder("RAILWRIGHT_CAPTURES") / "hwloc_xml/llnl-knl-snc4-flat-hwloc1.xml"])
    assert [node.id for node in facts.numa if not node.cpus] == [4, 5, 6, 7]
    assert len([node for node in facts.numa if node.cpus]) == 4


def test_offline_and_isolated_cpus_are_told_apart(tmp_path: Path) -> None:
    facts = planted(
        tmp_path, sys__devices__system__cpu__offline="2-3\n", sys__devices__system__cpu__isolated="1\n"
    )
    assert (facts.cpus.online, facts.cpus.offline, facts.cpus.isolated) == ("0-1", "2-3", "1")


def test_the_public_machine_with_offline_cpus_tells_which() -> None:
    path = captures_folder("RAILWRIGHT_CAPTURES") / "hwloc_sysfs/16em64t-4s2c2t-offlines.tar.bz2"
    with tarfile.open(path) as archive:
        switches = [name for name in archive.getnames() if re.search(r"/cpu/cpu\d+/online$", name)]
        off = [name for name in switches if archive.extractfile(name).read().strip() == b"0"]  # type: ignore[union-attr]
    stopped = {int(re.findall(r"cpu(\d+)/online", name)[0]) for name in off}
    facts = read([path])
    assert stopped
    assert stopped.isdisjoint(parse_cpulist(facts.cpus.online or "", "online"))
    assert {cpu for core in facts.cpus.cores for cpu in core.cpus} == set(range(16)) - stopped


def test_hybrid_cores_of_arm_have_kinds_by_part_and_intels_by_unit(tmp_path: Path) -> None:
    cpus = {
        f"sys/devices/system/cpu/cpu{n}/{name}": text
        for n, (power, own) in enumerate((("718", "0"), ("1024", "1"), ("997", "2")))
        for name, text in (("cpu_capacity", power), ("topology/core_cpus_list", own))
    }
    info = "".join(
        f"processor\t: {n}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}\n\n"
        for n, part in enumerate(("0xd87", "0xd85", "0xd85"))
    )
    online = {"sys/devices/system/cpu/online": "0-2", "sys/devices/system/node/node0/cpulist": "0-2"}
    facts = planted(tmp_path / "arm", ({**cpus, **online, "proc/cpuinfo": info}, {}))
    # Two clocks of one part are one kind.
    assert [core.kind for core in facts.cpus.cores] == [0, 1, 1]
    alone = planted(
        tmp_path / "one", ({**cpus, **online, "proc/cpuinfo": info.replace("0xd87", "0xd85")}, {})
    )
    assert [core.kind for core in alone.cpus.cores] == [None] * 3
    own = {f"sys/devices/system/cpu/cpu{n}/topology/core_cpus_list": str(n) for n in (0, 1)}
    units = {"sys/devices/cpu_atom/cpus": "0", "sys/devices/cpu_core/cpus": "1"}
    intel = planted(tmp_path / "intel", ({**own, **units}, {}))
    assert [core.kind for core in intel.cpus.cores] == [0, 1]
    # A core of which nothing is said leaves all unknown.
    part = planted(tmp_path / "part", ({**own, "sys/devices/cpu_core/cpus": "1"}, {}))
    assert [core.kind for core in part.cpus.cores] == [None, None]


def test_kinds_of_cores_agree_between_the_tree_and_hwlocs_xml_of_a_gb10() -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES") / "hwloc_sysfs"
    tree, xml = (read([folder / f"nvidia-dgx-gb10.{end}"]) for end in ("tar.bz2", "xml"))
    kinds = {core.cpus: core.kind for core in tree.cpus.cores}
    assert {core.cpus: core.kind for core in xml.cpus.cores} == kinds
    assert sorted(kind for kind in kinds.values() if kind is not None) == [0] * 10 + [1] * 10


def test_hwloc_tells_intels_kinds_by_name_and_not_by_clock(tmp_path: Path) -> None:
    def with_kinds(*kinds: str) -> Facts:
        return capture(
            tmp_path,
            samples.HWLOC.replace('  <info name="HostName"', f'{"".join(kinds)}  <info name="HostName"'),
        )

    def kind(mask: str, name: str, value: str) -> str:
        return f'  <cpukind cpuset="{mask}">\n    <info name="{name}" value="{value}"/>\n  </cpukind>\n'

    core, atom = kind("0x0000000f", "CoreType", "IntelCore"), kind("0x000000f0", "CoreType", "IntelAtom")
    assert [entry.kind for entry in with_kinds(core, atom).cpus.cores] == [1, 1, 0, 0]
    clocks = [
        kind(mask, "FrequencyMaxMHz", mhz) for mask, mhz in (("0x0000000f", "3900"), ("0x000000f0", "3500"))
    ]
    assert [entry.kind for entry in with_kinds(*clocks).cpus.cores] == [None] * 4
