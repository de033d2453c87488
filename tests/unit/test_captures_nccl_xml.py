"""NCCL's topology XML: what each element and each oddity of real files becomes, and what is refused with its line."""

# ruff: noqa: E501 (lines of a topology file are long, and a reader wants them as they are)
from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from railwright.node.model import Facts, InputError, to_json
from tests.unit.captures_text import capture, shown

TWO_SOCKETS = """\
<!--
  A licence may stand here.
-->
<system version="1">
  <cpu host_hash="0x12" numaid="0" affinity="0000000f,00000000,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:15:00.0" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x1003" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:08:00.0" count="9" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" latency="0.000000" guid="0x0C42A10000000100" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu host_hash="0x12" numaid="1" affinity="ffffffff,00000000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:98:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16 GT/s" link_width="8">
      <gpu dev="1" sm="90" rank="1" gdr="0"/>
    </pci>
  </cpu>
</system>
"""

TWO_SOCKETS_SHOWN = """\
cpu x86_64 GenuineIntel 6/143
node 0 16-31,64-67
node 1 32-63
root numa0 0
root numa1 1
pci 0000:15:00.0 under numa0 0x060400 0x1000:0xc030 32x16
pci 0000:18:00.0 under 0000:15:00.0 0x030200 0x10de:0x2330 32x16
pci 0000:19:00.0 under 0000:15:00.0 0x020700 0x15b3:0x1021 32x16
pci 0000:98:00.0 under numa1 0x030200 0x10de:0x2330 16x8
GPU0 #0 0000:18:00.0 numa=0 cpus=16-31,64-67 nvlinks=0000:07:00.0*9,0000:08:00.0*9 sm=90 gdr=True
GPU1 #1 0000:98:00.0 numa=1 cpus=32-63 nvlinks=none sm=90 gdr=False
mlx5_0 0000:19:00.0 numa=0 rate=400000 rdma=mlx5_0 port=1 guid=0x0c42a10000000100 gdr=True"""


def test_a_dump_of_two_sockets_is_read_whole(tmp_path: Path) -> None:
    facts = capture(tmp_path, TWO_SOCKETS)
    assert shown(facts) == TWO_SOCKETS_SHOWN
    assert facts.witnesses[0].kind == "nccl-xml"
    assert facts.pci[0].subsystem_device == "0x1003"
    assert Facts.read(to_json(facts)) == facts


# Each case: what stands inside <cpu numaid="0">, what it becomes (without its root), and why it matters.
QUIRKS = {
    "upper case and eight digits of domain": (
        '<pci busid="00000001:AF:00.0" class="0x030200" vendor="0x10DE" device="0x20B2"><gpu dev="0" sm="80"/></pci>',
        """
        pci 0001:af:00.0 under numa0 0x030200 0x10de:0x20b2 ?
        GPU0 #0 0001:af:00.0 numa=0 cpus=? nvlinks=none sm=80
        """,
    ),
    "a link that is not known": (
        '<pci busid="0000:01:00.0" class="0x060400" link_speed="" link_width="0">'
        '<pci busid="0000:02:00.0" class="0x060400" link_speed="Unknown speed" link_width=""/>'
        '<pci busid="0000:03:00.0" class="0x060400" link_speed="2.5 GT/s PCIe" link_width="255"/></pci>',
        """
        pci 0000:01:00.0 under numa0 0x060400 ? ?
        pci 0000:02:00.0 under 0000:01:00.0 0x060400 ? ?
        pci 0000:03:00.0 under 0000:01:00.0 0x060400 ? 2.5x?
        """,
    ),
    "a bridge that a person made up": (
        '<pci busid="ffff:ff:01.0" class="0x060400" vendor="0x0000" device="0x0000" link_speed="32.0 GT/s PCIe" link_width="16"/>',
        "pci ffff:ff:01.0 under numa0 0x060400 ? 32x16",
    ),
    "the same made-up bridge twice": (
        '<pci busid="ffff:ff:01.0" class="0x060400"><pci busid="0000:01:00.0" class="0x020000"/></pci>'
        '<pci busid="ffff:ff:01.0" class="0x060400"><pci busid="0000:02:00.0" class="0x010802"/></pci>',
        """
        pci ffff:ff:01.0 under numa0 0x060400 ? ?
        pci 0000:01:00.0 under ffff:ff:01.0 0x020000 ? ?
        pci ffff:fe:00.0 under numa0 0x060400 ? ?
        pci 0000:02:00.0 under ffff:fe:00.0 0x010802 ? ?
        0000:01:00.0 0000:01:00.0 numa=0 rate=?
        note bridge ffff:ff:01.0 stands on lines 1 and 1: the second is called ffff:fe:00.0 here
        note skeleton: NIC speeds are not in the file; NICs told by PCI class and called by their address
        """,
    ),
    "two ports of one function with a device each": (
        '<pci busid="0000:02:00.0" class="0x020700"><nic>'
        '<net name="mlx5_1" dev="1" speed="100000" port="2" guid="0x1" gdr="0"/>'
        '<net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" gdr="0"/></nic></pci>',
        """
        pci 0000:02:00.0 under numa0 0x020700 ? ?
        mlx5_0 0000:02:00.0 numa=0 rate=100000 rdma=mlx5_0 port=1 guid=0x1 gdr=False
        mlx5_1 0000:02:00.0 numa=0 rate=100000 rdma=mlx5_1 port=2 guid=0x1 gdr=False
        """,
    ),
    "two ports of one RDMA device": (
        '<pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx4_0" speed="56000" port="1"/>'
        '<net name="mlx4_0" speed="56000" port="2"/></nic></pci>',
        """
        pci 0000:02:00.0 under numa0 0x020700 ? ?
        mlx4_0:1 0000:02:00.0 numa=0 rate=56000 rdma=mlx4_0 port=1
        mlx4_0:2 0000:02:00.0 numa=0 rate=56000 rdma=mlx4_0 port=2
        """,
    ),
    "a socket interface, and one without a function": (
        '<pci busid="0000:02:00.0" class="0x020000"><nic><net name="eno1" speed="10000" port="0" guid="0x3"/></nic></pci>'
        '<nic><net name="bond0" speed="-1" port="0"/></nic>',
        """
        pci 0000:02:00.0 under numa0 0x020000 ? ?
        eno1 0000:02:00.0 numa=0 rate=10000 netdev=eno1
        bond0 numa=0 rate=? netdev=bond0
        """,
    ),
    "an RDMA device whose port is not told": (
        '<pci busid="0000:01:00.0" class="0x020000"><nic><net name="rocep1s0f0" speed="0" gin="1" net="1"/></nic></pci>',
        """
        pci 0000:01:00.0 under numa0 0x020000 ? ?
        rocep1s0f0 0000:01:00.0 numa=0 rate=? rdma=rocep1s0f0
        """,
    ),
    "C2C instead of a fast PCIe link": (
        '<pci busid="000f:01:00.0" class="0x030200"><gpu dev="0" sm="121" gdr="0"><c2c bw="43125" count="8"/></gpu></pci>',
        """
        pci 000f:01:00.0 under numa0 0x030200 ? ?
        GPU0 #0 000f:01:00.0 numa=0 cpus=? nvlinks=none sm=121 gdr=False c2c=8x43125
        """,
    ),
    "an NVSwitch that the VM does not see": (
        '<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90">'
        '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/></gpu></pci>',
        """
        pci 0000:01:00.0 under numa0 0x030200 ? ?
        GPU0 #0 0000:01:00.0 numa=0 cpus=? nvlinks=fffffff:ffff:ff*18 sm=90
        """,
    ),
    "an AMD GPU, whose sm counts compute units": (
        '<pci busid="0000:43:00.0" class="0x038000"><gpu dev="0" sm="120" gcn="908" arch="38911" gdr="1">'
        '<xgmi target="0000:23:00.0" count="1" tclass="0x038000"/></gpu></pci>',
        """
        pci 0000:43:00.0 under numa0 0x038000 ? ?
        GPU0 #0 0000:43:00.0 numa=0 cpus=? nvlinks=0000:23:00.0*1 model=gfx908 gdr=True
        """,
    ),
    "GPUs in another order than PCI": (
        '<pci busid="0000:43:00.0" class="0x030200"><gpu dev="0" sm="80"/></pci>'
        '<pci busid="0000:03:00.0" class="0x030200"><gpu dev="1" sm="80"/></pci>',
        """
        pci 0000:43:00.0 under numa0 0x030200 ? ?
        pci 0000:03:00.0 under numa0 0x030200 ? ?
        GPU0 #0 0000:03:00.0 numa=0 cpus=? nvlinks=none sm=80
        GPU1 #1 0000:43:00.0 numa=0 cpus=? nvlinks=none sm=80
        note the file numbers GPUs in another order than PCI (its dev 1 is GPU0, 0 is GPU1)
        """,
    ),
    "a skeleton: GPUs and NICs by class, nothing else": (
        '<pci busid="0000:01:00.0" class="0x060400"/>'
        '<pci busid="0000:02:00.0" class="0x030200"/><pci busid="0000:03:00.0" class="0x030000" vendor="0x1a03"/>'
        '<pci busid="0000:04:00.0" class="0x038000" vendor="0x1002"/><pci busid="0000:05:00.0" class="0x120000" vendor="0x1da3"/>'
        '<pci busid="0000:06:00.0" class="0x020700"/><pci busid="0000:07:00.0" class="0x010802"/>',
        """
        pci 0000:01:00.0 under numa0 0x060400 ? ?
        pci 0000:02:00.0 under numa0 0x030200 ? ?
        pci 0000:03:00.0 under numa0 0x030000 0x1a03:? ?
        pci 0000:04:00.0 under numa0 0x038000 0x1002:? ?
        pci 0000:05:00.0 under numa0 0x120000 0x1da3:? ?
        pci 0000:06:00.0 under numa0 0x020700 ? ?
        pci 0000:07:00.0 under numa0 0x010802 ? ?
        GPU0 #0 0000:02:00.0 numa=0 cpus=? nvlinks=?
        GPU1 #1 0000:04:00.0 numa=0 cpus=? nvlinks=?
        0000:06:00.0 0000:06:00.0 numa=0 rate=?
        note skeleton: GPUs told by PCI class; their NVLinks and kind are not in the file
        note skeleton: NIC speeds are not in the file; NICs told by PCI class and called by their address
        """,
    ),
    "functions without a class": (
        '<pci busid="0000:00:16.0"/>',
        """
        pci 0000:00:16.0 under numa0 ? ? ?
        note the file names neither GPUs nor NICs: its PCI functions have no class
        """,
    ),
    "the class that NCCL writes where sysfs has none": (
        '<pci busid="0000:01:00.0" class="0x03"><gpu dev="0" sm="90"/></pci>',
        """
        pci 0000:01:00.0 under numa0 0x03 ? ?
        GPU0 #0 0000:01:00.0 numa=0 cpus=? nvlinks=none sm=90
        """,
    ),
    "NICs that NCCL has merged": (
        '<pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx5_0+mlx5_1" speed="800000" port="1"/></nic></pci>',
        """
        pci 0000:02:00.0 under numa0 0x020700 ? ?
        mlx5_0+mlx5_1 0000:02:00.0 numa=0 rate=800000 port=1
        note mlx5_0+mlx5_1: NCCL merged several NICs into one here; a dump with NCCL_NET_MERGE_LEVEL=LOC shows each
        """,
    ),
    "a speed that no NIC has": (
        '<pci busid="0000:02:00.0" class="0x020000"><nic><net name="cxi0" speed="200000000" port="1"/></nic></pci>',
        """
        pci 0000:02:00.0 under numa0 0x020000 ? ?
        cxi0 0000:02:00.0 numa=0 rate=200000000 rdma=cxi0 port=1
        note line 1: speed 200000000 Mb/s of cxi0 is not credible; taken as stated
        """,
    ),
    "links between switches, and an element of the future": (
        '<pci busid="0000:01:00.0" class="0x060400"><pcilink target="0000:02:00.0"/><cxl/></pci>',
        """
        pci 0000:01:00.0 under numa0 0x060400 ? ?
        note ignored 1 unknown element <cxl>, as NCCL does
        """,
    ),
}


@pytest.mark.parametrize(("inside", "expected"), QUIRKS.values(), ids=list(QUIRKS))
def test_each_oddity_of_real_files_is_read_as_it_is_meant(tmp_path: Path, inside: str, expected: str) -> None:
    facts = capture(tmp_path, f'<system version="2"><cpu numaid="0">{inside}</cpu></system>')
    lines = dedent(expected).strip()
    no_affinity = "note NUMA node 0: the file does not name its CPUs (no affinity)"
    said = [line for line in shown(facts).splitlines() if line not in ("root numa0 0", no_affinity)]
    assert "\n".join(said) == lines
    assert Facts.read(to_json(facts)) == facts


def test_families_are_those_of_proc_cpuinfo(tmp_path: Path) -> None:
    # NCCL adds 16 times the extended family: Rome (15 + 8) is 143, Milan (15 + 10) is 175. People write 23.
    for written, family in (("143", 23), ("175", 25), ("23", 23), ("6", 6)):
        text = f'<system version="1"><cpu numaid="0" vendor="AuthenticAMD" familyid="{written}" modelid="49"/></system>'
        assert capture(tmp_path, text).cpus.family == family


def test_a_processor_has_the_name_that_uname_gives_it(tmp_path: Path) -> None:
    assert capture(tmp_path, '<system><cpu numaid="0" arch="arm64"/></system>').cpus.arch == "aarch64"


def test_a_node_that_is_not_known_stays_so(tmp_path: Path) -> None:
    text = (
        '<system><cpu numaid="-1" affinity="ff"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'
    )
    facts = capture(tmp_path, text)
    assert facts.numa == ()
    assert facts.roots[0].numa is None
    assert facts.gpus[0].numa is None


def test_cpus_that_two_nodes_claim_are_not_known(tmp_path: Path) -> None:
    cpus = "".join(
        f'<cpu numaid="{node}" affinity="{mask}"><pci busid="0000:0{node}:00.0" class="0x030200"/></cpu>'
        for node, mask in ((0, "ff"), (1, "ff"), (2, "ff00"))
    )
    facts = capture(tmp_path, f"<system>{cpus}</system>")
    assert [(node.id, node.cpus) for node in facts.numa] == [(2, "8-15")]
    assert [gpu.cpus for gpu in facts.gpus] == [None, None, "8-15"]
    assert "NUMA nodes 0, 1 claim the same CPUs; which are theirs is not known" in facts.notes


def test_a_nic_that_nccl_hangs_on_the_first_cpu_has_no_known_node(tmp_path: Path) -> None:
    net = '<nic><net name="{}" speed="10000" port="0"/></nic>'
    text = f'<system><cpu numaid="0">{net.format("bond0")}</cpu><cpu numaid="1">{net.format("bond1")}</cpu></system>'
    assert [(nic.name, nic.numa) for nic in capture(tmp_path, text).nics] == [("bond0", None), ("bond1", 1)]


# Each case: the text, the place, and what must be said.
REFUSED = {
    "cut in the middle": ('<system version="1">\n<cpu numaid="0">\n', ":3", "is not XML"),
    "another root": ("<!-- -->\n<machine/>", "", "no topology of NCCL"),
    "a version that nobody knows": (
        '<system version="7"><cpu numaid="0"/></system>',
        ":1: version",
        "found '7'",
    ),
    "no cpu": ('<system version="1"/>', ":1", "holds no <cpu>"),
    "a cpu without a node": ("<system>\n<cpu/></system>", ":2", "without numaid"),
    "a node that is no number": ('<system>\n\n<cpu numaid="zero"/></system>', ":3: numaid", "found 'zero'"),
    "the same node twice": (
        '<system><cpu numaid="0"/>\n<cpu numaid="0"/></system>',
        ":2: numaid",
        "above too",
    ),
    "several machines": (
        '<system><cpu numaid="0" host_hash="0x1"/><cpu numaid="0" host_hash="0x2"/></system>',
        ":1",
        "holds 2 machines",
    ),
    "a mask that is no mask": (
        '<system><cpu numaid="0" affinity="0-3"/></system>',
        ":1: affinity",
        "found '0-3'",
    ),
    "an address that is none": (
        '<system><cpu numaid="0"><pci busid="GPU0"/></cpu></system>',
        ":1: busid",
        "no PCI address",
    ),
    "a function in two places": (
        '<system><cpu numaid="0"><pci busid="0000:01:00.0"/>\n<pci busid="0000:01:00.0"/></cpu></system>',
        ":2: busid",
        "stands on line 1 too",
    ),
    "a class that is none": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0" class="vga"/></cpu></system>',
        ":1: class",
        "found 'vga'",
    ),
    "a speed that PCIe has not": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0" link_speed="12 GT/s"/></cpu></system>',
        ":1: link_speed",
        "found '12 GT/s'",
    ),
    "a width that PCIe has not": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0" link_width="3"/></cpu></system>',
        ":1: link_width",
        "found '3'",
    ),
    "a net without a name": (
        '<system><cpu numaid="0"><nic><net speed="1"/></nic></cpu></system>',
        ":1",
        "<net> without name",
    ),
    "a name that would break a configuration file": (
        '<system><cpu numaid="0"><nic><net name="mlx5_0 NCCL_DEBUG=INFO"/></nic></cpu></system>',
        ":1: name",
        "found 'mlx5_0 NCCL_DEBUG=INFO'",
    ),
    "the same net twice": (
        '<system><cpu numaid="0"><nic><net name="eth0"/>\n<net name="eth0"/></nic></cpu></system>',
        ":2: name",
        "stands on line 1 too",
    ),
    "two GPUs in one place": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0"><gpu/>\n<gpu/></pci></cpu></system>',
        ":2",
        "a second <gpu>",
    ),
    "an NVLink to nowhere": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0"><gpu><nvlink count="1" target="here"/></gpu></pci></cpu></system>',
        ":1: target",
        "no PCI address",
    ),
    "no NVLinks in a link": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0"><gpu><nvlink count="0" target="0:2:0.0"/></gpu></pci></cpu></system>',
        ":1: count",
        "found '0'",
    ),
    "neither yes nor no": (
        '<system><cpu numaid="0"><pci busid="0:1:0.0"><gpu gdr="maybe"/></pci></cpu></system>',
        ":1: gdr",
        "found 'maybe'",
    ),
    "words between elements": ('<system>\n<cpu numaid="0">here</cpu></system>', ":2", "text 'here'"),
    "entities": (
        '<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n<system version="&b;"/>',
        ":1",
        "holds a DTD",
    ),
    "a file from elsewhere": ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', ":1", "holds a DTD"),
    "a DTD without entities": ("\n<!DOCTYPE system>\n<system/>", ":2", "holds a DTD"),
    "a well without a floor": ("<system>" + "<cpu>" * 100_000, ":1", "deeper than 64"),
    "a flood": ("<system>" + "<cpu/>" * 30_000, ":1", "more than 20000 elements"),
}


@pytest.mark.parametrize(("text", "place", "why"), REFUSED.values(), ids=list(REFUSED))
def test_nonsense_is_refused_with_its_line(tmp_path: Path, text: str, place: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        capture(tmp_path, text, "topo.xml")
    assert caught.value.where == f"{tmp_path / 'topo.xml'}{place}"
    assert why in caught.value.why
