"""Each further witness of our sample machine says what stands in it, by hand, and what is wrong in it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from railwright.captures import read
from railwright.node.model import Acs, Core, Facts, InputError, Link, NumaNode, Policy, Root, to_json
from railwright.plan import plan
from tests.unit import witness_samples as samples
from tests.unit.captures_text import capture, captures_folder

PORTS = (("mlx5_0", "enp25s0np0"), ("mlx5_1", "enp155s0np0"))


@pytest.mark.parametrize("kind", list(samples.ALL))
def test_each_sample_is_known_by_its_content_and_passes_the_border(tmp_path: Path, kind: str) -> None:
    facts = capture(tmp_path, samples.ALL[kind])
    assert facts.witnesses[0].kind == kind.split(" ", maxsplit=1)[0]
    assert Facts.read(to_json(facts)) == facts


@pytest.mark.parametrize(
    "kind", ["ibstat", "lscpu", "show_gids", "dmidecode", "lspci -t", "mlnx_qos", "interrupts"]
)
def test_a_plan_from_a_witness_without_gpus_is_refused(tmp_path: Path, kind: str) -> None:
    result = plan(capture(tmp_path, samples.ALL[kind]), Policy())
    assert result.status == "refused"
    assert "gpus.none" in {finding.code for finding in result.refusals}


def test_lspci_gives_the_tree_the_links_and_acs_of_the_function_itself(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.LSPCI)
    assert facts.roots == (Root("pci0000:15", 0), Root("pci0000:97", 1))
    parents = {device.address: device.parent for device in facts.pci}
    assert parents["0000:18:00.0"] == "0000:17:00.0"
    assert parents["0000:19:00.0"] == "0000:17:01.0"
    assert parents["0000:17:01.0"] == "0000:16:00.0"
    assert parents["0000:15:01.0"] == "pci0000:15"
    gpu = next(device for device in facts.pci if device.address == "0000:9a:00.0")
    # LnkSta2 of the sample says 2.5GT/s x1, and the next function's registers follow: neither may be taken.
    assert gpu.link == Link(16.0, 8, 32.0, 16)
    assert (gpu.mrrs, gpu.mps, gpu.relaxed_ordering, gpu.driver) == (4096, 256, True, "nvidia")
    assert (gpu.iommu_group, gpu.slot, gpu.numa, gpu.port, gpu.acs) == (41, "4", 1, "endpoint", Acs((), ()))
    port = next(device for device in facts.pci if device.address == "0000:17:00.0")
    assert port.port == "downstream"
    assert port.acs == Acs(
        ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd"), ("SrcValid", "ReqRedir")
    )
    assert [gpu.address for gpu in facts.gpus] == ["0000:18:00.0", "0000:9a:00.0"]
    assert [(nic.name, nic.link_layer, nic.management) for nic in facts.nics] == [
        ("0000:19:00.0", "InfiniBand", False),
        ("0000:9b:00.0", "InfiniBand", False),
    ]


def test_lspci_mm_is_read_by_names_and_by_numbers(tmp_path: Path) -> None:
    named = capture(
        tmp_path, '18:00.0 "3D controller" "NVIDIA Corporation" "GH100" "NVIDIA Corporation" "Device 16c1"\n'
    )
    assert [(device.class_code, device.vendor, device.device) for device in named.pci] == [
        ("0x0302", "0x10de", None)
    ]
    # A newer table of names calls the class otherwise; the number stays.
    numbered = capture(
        tmp_path,
        '19:00.0 "InfiniBand HCA [0207]" "Mellanox [15b3]" "ConnectX-7 [1021]" "x [15b3]" "y [0041]"\n',
    )
    assert [(nic.address, nic.link_layer) for nic in numbered.nics] == [("0000:19:00.0", "InfiniBand")]
    assert numbered.pci[0].subsystem_device == "0x0041"


def test_lspci_without_rights_or_switches_says_what_is_not_known(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.LSPCI_NN)
    assert {device.parent for device in facts.pci} == {None}
    assert any("no bus numbers" in note for note in facts.notes)
    denied = samples.LSPCI.replace("\tCapabilities: [220 v1] Access Control Services\n", "").replace(
        "\t\tACS", "\t\tXXX"
    )
    assert {device.acs for device in capture(tmp_path, denied).pci if device.port != "endpoint"} == {None}
    unreadable = "\n".join(
        line for line in samples.LSPCI.splitlines() if not line.startswith(("\tCapabilities", "\t\t"))
    ).replace("\tKernel", "\tCapabilities: <access denied>\n\tKernel")
    facts = capture(tmp_path, unreadable)
    assert {(device.acs, device.link, device.mrrs) for device in facts.pci} == {(None, Link(), None)}


def test_an_nvswitch_management_function_is_known_by_its_vpd(tmp_path: Path) -> None:
    text = samples.LSPCI.replace("NVIDIA ConnectX-7 adapter card", "Nvidia 8GPU SW_MNG", 1)
    assert [nic.management for nic in capture(tmp_path, text).nics] == [True, False]
    text = samples.LSPCI.replace("\tCapabilities: [48] Vital Product Data\n", "\tCapabilities: [48] Other\n")
    assert [nic.management for nic in capture(tmp_path, text).nics] == [None, None]


def test_the_drawing_gives_the_same_tree_as_the_bus_numbers(tmp_path: Path) -> None:
    drawn = capture(tmp_path, samples.LSPCI_TREE)
    listed = capture(tmp_path, samples.LSPCI)
    assert {device.address: device.parent for device in drawn.pci} == {
        device.address: device.parent for device in listed.pci
    }
    assert drawn.gpus == ()
    bridges = {device.address for device in listed.pci if device.class_code == "0x060400"}
    assert {device.address: device.class_code for device in drawn.pci} == {
        device.address: "0x0604" if device.address in bridges else None for device in listed.pci
    }
    # With -nn the numbers stand behind the name; a bridge has none of its own there.
    numbered = samples.LSPCI_TREE.replace("GH100\n", "GH100 [10de:2330]\n")
    found = {device.address: (device.vendor, device.device) for device in capture(tmp_path, numbered).pci}
    assert found["0000:18:00.0"] == found["0000:9a:00.0"] == ("0x10de", "0x2330")
    assert found["0000:17:00.0"] == found["0000:19:00.0"] == (None, None)


def test_hwloc_gives_processors_nodes_tree_and_names(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.HWLOC)
    memory = 1081023435161
    assert facts.numa == (NumaNode(0, "0-3", (10, 21), memory), NumaNode(1, "4-7", (21, 10), memory))
    assert facts.cpus.cores == (
        Core((0, 1), 0, 0, 0),
        Core((2, 3), 0, 0, 0),
        Core((4, 5), 1, 1, 4),
        Core((6, 7), 1, 1, 4),
    )
    assert facts.cpus.online == "0-7"
    assert facts.cpus.offline is None
    assert "CPUs 8-9 are offline or not allowed: the file does not tell which" in facts.notes
    assert [gpu.uuid for gpu in facts.gpus] == list(samples.UUIDS)
    assert [(nic.name, nic.netdev, nic.state, nic.guid, nic.numa) for nic in facts.nics] == [
        (rdma, netdev, "active", f"a088:c203:0012:340{n}", n) for n, (rdma, netdev) in enumerate(PORTS)
    ]
    assert {device.link for device in facts.pci} == {Link()}
    assert facts.host.name == "node7"
    listed = capture(tmp_path, samples.LSPCI)
    assert {device.address: (device.parent, device.numa) for device in facts.pci} == {
        device.address: (device.parent, device.numa) for device in listed.pci
    }
    assert facts.roots == listed.roots


def test_hwloc_1_tells_offline_from_disallowed(tmp_path: Path) -> None:
    text = samples.HWLOC.replace('version="3.0"', "").replace(
        'allowed_cpuset="0x000000ff"', 'online_cpuset="0x000001ff" allowed_cpuset="0x0000000f"'
    )
    text = (
        text.replace("<PU", "<PU")
        .replace('osdev_type="16"', 'osdev_type="2"')
        .replace('osdev_type="32"', 'osdev_type="3"')
    )
    text = "".join(
        line.replace("cpuset=", "online_cpuset=") + "\n" if 'type="PU"' in line else line + "\n"
        for line in text.splitlines()
    )
    facts = capture(tmp_path, text)
    assert facts.cpus.offline == "9"
    assert facts.cpus.allowed == "0-3"
    assert [nic.rdma for nic in facts.nics] == ["mlx5_0", "mlx5_1"]


@pytest.mark.parametrize("text", [samples.QUERY, samples.QUERY_XML], ids=["text", "xml"])
def test_nvidia_smi_q_says_the_same_in_both_forms(tmp_path: Path, text: str) -> None:
    facts = capture(tmp_path, text)
    assert [(gpu.address, gpu.uuid, gpu.model) for gpu in facts.gpus] == [
        ("0000:18:00.0", samples.UUIDS[0], "NVIDIA H100 80GB HBM3"),
        ("0000:9a:00.0", samples.UUIDS[1], "NVIDIA H100 80GB HBM3"),
    ]
    assert facts.host.driver == "570.86.15"
    # Current is what an idle link has come down to; the device's own maximum is not the slot's.
    assert [device.link for device in facts.pci] == [Link(2.5, 8, 32.0, 16)] * 2
    assert {(device.vendor, device.device, device.subsystem_device) for device in facts.pci} == {
        ("0x10de", "0x2330", "0x16c1")
    }
    assert facts.notes == ()


def test_a_gpu_that_nvidia_smi_counts_and_does_not_show_is_missed(tmp_path: Path) -> None:
    cut = samples.QUERY[: samples.QUERY.index("GPU 00000000:9A")]
    facts = capture(tmp_path, cut)
    assert not facts.complete
    assert "nvidia-smi -q counts 2 GPUs, and 1 stand here" in facts.notes


def test_rdma_tools_agree_on_ports_states_and_rates(tmp_path: Path) -> None:
    short = capture(tmp_path, samples.IBDEV)
    long = capture(tmp_path, samples.IBDEV_V)
    stat, status = capture(tmp_path, samples.IBSTAT), capture(tmp_path, samples.IBSTATUS)
    for facts in (short, long):
        assert [(nic.rdma, nic.port, nic.netdev, nic.state) for nic in facts.nics] == [
            (rdma, 1, netdev, "active") for rdma, netdev in PORTS
        ]
    assert [nic.address for nic in long.nics] == ["0000:19:00.0", "0000:9b:00.0"]
    for facts in (stat, status):
        assert [(nic.rdma, nic.state, nic.rate, nic.link_layer) for nic in facts.nics] == [
            (rdma, "active", 400_000, "InfiniBand") for rdma, _ in PORTS
        ]
    assert [nic.guid for nic in stat.nics] == ["a088:c203:0012:3400", "a088:c203:0012:3401"]


def test_a_port_that_is_down_has_no_rate(tmp_path: Path) -> None:
    facts = capture(
        tmp_path,
        samples.IBSTAT.replace("State: Active", "State: Down", 1).replace("Rate: 400", "Rate: 10", 1),
    )
    assert [(nic.state, nic.rate) for nic in facts.nics] == [("down", None), ("active", 400_000)]


def test_gids_come_with_kind_and_netdev_and_a_cut_list_says_so(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.SHOW_GIDS)
    assert [[(gid.index, gid.kind, gid.netdev) for gid in nic.gids] for nic in facts.nics] == [
        [(0, "v1", netdev), (3, "v2", netdev)] for _, netdev in PORTS
    ]
    assert facts.complete
    assert facts.notes == ()
    cut = capture(tmp_path, samples.SHOW_GIDS.replace("n_gids_found=4", "n_gids_found=6"))
    assert not cut.complete
    assert "4 GIDs stand here where the last line counts 6" in cut.notes[0]
    with pytest.raises(InputError, match=r"capture:4: GID 0000:.* is not 10\.0\.0\.9"):
        capture(tmp_path, samples.SHOW_GIDS.replace("10.0.0.1 ", "10.0.0.9 "))


def test_mlnx_qos_is_told_in_a_note_with_the_interface_that_the_command_names(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.QOS)
    assert [nic.netdev for nic in facts.nics] == ["enp25s0np0"]
    assert facts.notes[0].startswith(
        "mlnx_qos of enp25s0np0: trust dscp; PFC on for priority 3; classes 0: vendor"
    )
    bare = capture(tmp_path, samples.QOS.partition("\n")[2])
    assert bare.nics == ()
    assert "an interface that it does not name" in bare.notes[0]


def test_mlnx_qos_without_trust_or_without_pfc_is_read_and_without_both_refused(tmp_path: Path) -> None:
    trust = "Priority trust state: dscp\n"
    pfc = samples.QOS[samples.QOS.index("PFC configuration") : samples.QOS.index("tc: 0")]
    assert (
        "trust not shown; PFC on for priority 3"
        in capture(tmp_path, "DCBX mode: OS controlled\n" + pfc).notes[0]
    )
    assert "trust dscp; PFC not shown" in capture(tmp_path, "DCBX mode: OS controlled\n" + trust).notes[0]
    with pytest.raises(InputError, match="shows neither trust nor PFC"):
        capture(tmp_path, "DCBX mode: OS controlled\n")


def test_what_stands_above_the_table_of_interrupts_is_left_out_and_lines_are_counted_with_it(
    tmp_path: Path,
) -> None:
    facts = capture(tmp_path, f"node7$ cat /proc/interrupts\n\n{samples.INTERRUPTS}")
    assert facts.irqs == capture(tmp_path, samples.INTERRUPTS).irqs
    with pytest.raises(InputError, match=r"capture:5: found"):
        capture(
            tmp_path, f"node7$ cat\n\n{samples.INTERRUPTS.replace('         90          1', '         90')}"
        )
    with pytest.raises(InputError, match="ascending order"):
        capture(tmp_path, samples.INTERRUPTS.replace("CPU7", "CPU8192"))


def test_interrupts_are_those_of_functions_that_name_their_address(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.INTERRUPTS)
    assert [(irq.number, irq.device, irq.action) for irq in facts.irqs] == [
        (124, "0000:19:00.0", "mlx5_comp0@pci:0000:19:00.0"),
        (224, "0000:9b:00.0", "mlx5_comp0@pci:0000:9b:00.0"),
    ]
    assert facts.notes == (
        "interrupts of 0000:19:00.0 have run on CPU 0-1",
        "interrupts of 0000:9b:00.0 have run on CPU 5",
    )
    assert facts.cpus.online == "0-7"


def test_lscpu_gives_cores_from_its_table_only(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.LSCPU)
    assert facts.cpus.cores == capture(tmp_path, samples.HWLOC).cpus.cores
    assert (facts.cpus.offline, facts.cpus.family, facts.cpus.model) == ("8-9", 6, 143)
    assert facts.numa == (NumaNode(0, "0-3"), NumaNode(1, "4-7"))
    without = capture(tmp_path, samples.LSCPU.partition("# CPU")[0])
    assert without.cpus.cores == ()
    assert "which CPUs share a core is not shown" in without.notes[0]


def test_dmidecode_gives_product_processor_and_used_slots_and_no_serial(tmp_path: Path) -> None:
    facts = capture(tmp_path, samples.DMIDECODE)
    assert facts.host.product == "Dell Inc. PowerEdge XE9680"
    assert (facts.cpus.vendor, facts.cpus.model_name) == ("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480C")
    socket = samples.DMIDECODE[
        samples.DMIDECODE.index("Handle 0x0400") : samples.DMIDECODE.index("Handle 0x0900")
    ]
    other = socket.replace("0x0400", "0x0401").replace("Intel\n", "AMD\n").replace("8480C", "8490H")
    mixed = capture(tmp_path, samples.DMIDECODE + other)
    assert (mixed.cpus.vendor, mixed.cpus.model_name) == (None, None)
    empty = capture(tmp_path, samples.DMIDECODE + other.replace("Populated, Enabled", "Unpopulated"))
    assert empty.cpus == facts.cpus
    assert [(device.address, device.slot) for device in facts.pci] == [
        ("0000:18:00.0", "SXM1"),
        ("0000:9a:00.0", "SXM2"),
    ]
    assert "ABC1234" not in str(to_json(facts))


# Each case: kind, what is put in the place of what, and what must be said with which line.
WRONG = {
    "a bus behind two bridges": (
        "lspci",
        "secondary=9b, subordinate=9b",
        "secondary=9a, subordinate=9a",
        "lies behind",
    ),
    "a bridge that leads up": ("lspci", "secondary=16", "secondary=05", "not below its own"),
    "a link that is none": ("lspci", "Speed 32GT/s", "Speed 33GT/s", "expected a PCIe speed"),
    "a width that is none": ("lspci", "Width x8", "Width x7", "expected a PCIe speed"),
    "an ACS bit lost": ("lspci", "ReqRedir+ CmpltRedir-", "CmpltRedir-", "expected seven bits"),
    "a function twice": ("lspci", "9b:00.0 Infiniband", "19:00.0 Infiniband", "stands on line"),
    "a torn drawing": ("lspci -t", "-+-[0000:97]-", "", "whole drawing"),
    "a function twice in the XML": ("hwloc", "0000:9b:00.0", "0000:19:00.0", "stands on line"),
    "a node without its CPUs": (
        "hwloc",
        'type="NUMANode" os_index="1" cpuset="0x000000f0"',
        'type="NUMANode" os_index="1"',
        "without cpuset",
    ),
    "a mask that is none": ("hwloc", 'cpuset="0x00000001"', 'cpuset="all"', "expected a mask"),
    "a future hwloc": ("hwloc", 'topology version="3.0"', 'topology version="4.0"', "version"),
    "a DTD that says something": ("hwloc", 'SYSTEM "hwloc2.dtd"', "[<!ENTITY a 'b'>]", "a DTD or entities"),
    "two GPUs with one UUID": ("nvidia-smi-q", samples.UUIDS[1], samples.UUIDS[0], "one UUID"),
    "a generation that is none": (
        "nvidia-smi-q",
        "Device Max                : 5",
        "Device Max                : 9",
        "1 to 6",
    ),
    "a heading and another bus": (
        "nvidia-smi-q",
        "Bus Id                            : 00000000:9A",
        "Bus Id                            : 00000000:9C",
        "heading",
    ),
    "two GPUs with one UUID in the list": ("nvlink", samples.UUIDS[1], samples.UUIDS[0], "one UUID"),
    "a link twice": ("nvlink", "Link 17", "Link 16", "stands twice"),
    "a GPU twice": ("nvlink", "GPU 1:", "GPU 0:", "stands twice"),
    "an arrow without its words": ("ibdev2netdev", "(Up)", "Up", "expected a line like"),
    "a state that is none": ("ibstat", "State: Active", "State: Happy", "expected a port state"),
    "a rate that is none": ("ibstatus", "400 Gb/sec", "fast", "expected a rate"),
    "a GID cut short": (
        "show_gids",
        "0000:0000:0000:0000:0000:ffff:0a00",
        "0000:0000:0000:0000:ffff:0a00",
        "as show_gids prints",
    ),
    "nine priorities": ("mlnx_qos", "enabled     0", "enabled     0  0", "eight numbers"),
    "a DSCP twice": ("mlnx_qos", "prio:1 dscp:15", "prio:1 dscp:00", "has priorities"),
    "a counter lost": ("interrupts", "         90          1", "         90", "expected 8 counters"),
    "a CPU off its node": (
        "lscpu",
        "NUMA node1 CPU(s):               4-7",
        "NUMA node1 CPU(s):               4-6",
        "other CPUs",
    ),
    "a table cut": ("lscpu", "7,3,1,1,,3,3,3,1\n", "", "the table lists 7 CPUs"),
    "two machines' DMI": (
        "dmidecode",
        "DMI type 4, 48 bytes",
        "DMI type 1, 27 bytes",
        "a second System Information",
    ),
}


@pytest.mark.parametrize(("kind", "old", "new", "why"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, kind: str, old: str, new: str, why: str
) -> None:
    assert old in samples.ALL[kind]
    with pytest.raises(InputError) as caught:
        capture(tmp_path, samples.ALL[kind].replace(old, new))
    assert str(caught.value).startswith(str(tmp_path / "capture"))
    assert why in str(caught.value)


def test_a_bridge_that_is_cut_away_leaves_the_place_below_it_unknown(tmp_path: Path) -> None:
    start = samples.LSPCI.index("17:01.0 PCI bridge")
    facts = capture(tmp_path, samples.LSPCI[:start] + samples.LSPCI[samples.LSPCI.index("18:00.0 3D") :])
    assert next(device.parent for device in facts.pci if device.address == "0000:19:00.0") is None
    assert not facts.complete
    assert any("the bridge above 0000:19:00.0" in note for note in facts.notes)


def test_the_public_samples_say_what_their_list_says_of_them() -> None:
    folder = captures_folder("RAILWRIGHT_CAPTURES")
    status = read([folder / "misc/ibstatus-one-down.txt"])
    assert [(nic.rdma, nic.state, nic.rate) for nic in status.nics] == [
        ("mlx5_0", "active", 200_000),
        ("mlx5_1", "down", None),
    ]
    dgx = read([folder / "misc/ibdev2netdev-dgx-a100.txt"])
    assert [nic.rdma for nic in dgx.nics if nic.state == "down"] == ["mlx5_4", "mlx5_5"]
    oci = read([folder / "misc/ibdev2netdev-oci-h100.txt"])
    assert [nic.rdma for nic in oci.nics] == [f"mlx5_{n}" for n in range(18)]
    assert [nic.rdma for nic in oci.nics if (nic.netdev or "").startswith("eth")] == ["mlx5_2", "mlx5_11"]
    mixed = read([folder / "misc/ibdev2netdev-v-mixed.txt"])
    assert [(nic.address, nic.state, nic.firmware) for nic in mixed.nics] == [
        ("0000:31:00.0", "down", "14.27.1016"),
        ("0000:31:00.1", "down", "14.27.1016"),
        ("0000:4b:00.0", "active", "16.27.1016"),
    ]
    gids = read([folder / "misc/show_gids-roce-4port.txt"])
    assert [(nic.rdma, [(gid.index, gid.kind) for gid in nic.gids]) for nic in gids.nics] == [
        ("mlx5_0", [(0, "v1"), (1, "v2"), (2, "v1"), (3, "v2")]),
        ("mlx5_1", [(0, "v1"), (1, "v2")]),
        ("mlx5_2", [(0, "v1"), (1, "v2"), (2, "v1"), (3, "v2")]),
    ]
    assert "may be cut" in gids.notes[0]
    dscp = read([folder / "misc/mlnx_qos-dscp-pfc5.txt"]).notes[0]
    assert "trust dscp; PFC on for priority 5" in dscp
    assert "3 of 8 classes shown" in dscp
    assert "trust pcp; PFC on for no priority" in read([folder / "misc/mlnx_qos-pcp-default.txt"]).notes[0]
    assert read([folder / "misc/proc-interrupts-bad.txt"]).notes == (
        "interrupts of 0000:65:00.0 have run on CPU 0-1",
    )
    nvlink = read([folder / "misc/gpud-a100-nvlink-s.txt"])
    assert [note.partition(":")[2] for note in nvlink.notes] == [" 12 NVLinks are up at 25 GB/s"] * 8
    query = read([folder / "misc/aicr-nvidia-smi-q.xml"])
    assert [gpu.address for gpu in query.gpus][:3] == ["0000:04:00.0", "0000:05:00.0", "0000:0b:00.0"]
    assert all("virtual machine" in note for note in query.notes)
