"""One machine of ours as each tool would show it: two sockets, on each a switch with one GPU and one NIC.

Socket 0: 0000:15:01.0 > 16:00.0 > 17:00.0 > GPU 18:00.0, and 17:01.0 > mlx5_0 on 19:00.0; socket 1 alike from 97:01.0.
"""

# ruff: noqa: E501 (lines as the tools print them)
from __future__ import annotations

UUIDS = ("GPU-11111111-2222-3333-4444-555555555500", "GPU-11111111-2222-3333-4444-555555555501")
SIDES = (
    (0, "15", "16", "17", "18", "19", "mlx5_0", "enp25s0np0", "0-3"),
    (1, "97", "98", "99", "9a", "9b", "mlx5_1", "enp155s0np0", "4-7"),
)

MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV18\tPXB\tSYS\t0-3\t0\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t4-7\t1\n"
    "NIC0\tPXB\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tPXB\tSYS\t X \n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)


def _nccl_side(side: tuple[int, str, str, str, str, str, str, str, str]) -> str:
    node, _, upper, _, gpu, nic, rdma, _, _ = side
    other = SIDES[1 - node]
    mask = "0000000f" if node == 0 else "000000f0"
    link = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    return (
        f'  <cpu numaid="{node}" affinity="{mask}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">\n'
        f'    <pci busid="0000:{upper}:00.0" class="0x060400" vendor="0x11f8" device="0x4128" {link}>\n'
        f'      <pci busid="0000:{gpu}:00.0" class="0x030200" vendor="0x10de" device="0x2330" {link}>\n'
        f'        <gpu dev="{node}" sm="90" rank="{node}" gdr="1">\n'
        f'          <nvlink target="0000:{other[4]}:00.0" count="18" tclass="0x030200"/>\n'
        f"        </gpu>\n      </pci>\n"
        f'      <pci busid="0000:{nic}:00.0" class="0x020700" vendor="0x15b3" device="0x1021" {link}>\n'
        f'        <nic>\n          <net name="{rdma}" dev="{node}" speed="400000" port="1" guid="0xa088c2030012340{node}"'
        f' gdr="1"/>\n        </nic>\n      </pci>\n    </pci>\n  </cpu>\n'
    )


NCCL = '<system version="1">\n' + "".join(map(_nccl_side, SIDES)) + "</system>\n"


def _express(port: str) -> str:
    return (
        f"\tCapabilities: [60] Express (v2) {port}, MSI 00\n"
        "\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0\n"
        "\t\tDevCtl:\tCorrErr+ NonFatalErr- FatalErr+ UnsupReq-\n"
        "\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop-\n"
        "\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        "\t\t\tClockPM- Surprise- LLActRep- BwNot- ASPMOptComp+\n"
        "\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)\n"
        "\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-\n"
        "\t\tLnkCap2: Supported Link Speeds: 2.5-64GT/s, Crosslink- Retimer+\n"
        "\t\tLnkSta2: Current De-emphasis Level: -6dB, Speed 2.5GT/s, Width x1\n"
    )


def _bridge(bus: str, slot: str, below: tuple[str, str], node: int, port: str) -> str:
    return (
        f"{bus}:{slot}.0 PCI bridge [0604]: PMC-Sierra Inc. Device [11f8:4128] (prog-if 00 [Normal decode])\n"
        f"\tNUMA node: {node}\n"
        f"\tBus: primary={bus}, secondary={below[0]}, subordinate={below[1]}, sec-latency=0\n"
        + _express(port)
        + "\tCapabilities: [220 v1] Access Control Services\n"
        "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
        "\tKernel driver in use: pcieport\n\n"
    )


def _lspci_side(side: tuple[int, str, str, str, str, str, str, str, str]) -> str:
    node, root, upper, lower, gpu, nic, _, _, _ = side
    return (
        _bridge(root, "01", (upper, nic), node, "Root Port (Slot+)")
        + _bridge(upper, "00", (lower, nic), node, "Upstream Port")
        + _bridge(lower, "00", (gpu, gpu), node, "Downstream Port (Slot+)")
        + _bridge(lower, "01", (nic, nic), node, "Downstream Port (Slot+)")
        + f"{gpu}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
        f"\tSubsystem: NVIDIA Corporation Device [10de:16c1]\n\tPhysical Slot: {3 + node}\n\tNUMA node: {node}\n"
        f"\tIOMMU group: {40 + node}\n"
        + _express("Endpoint")
        + "\tCapabilities: [100 v1] Secondary PCI Express\n\tKernel driver in use: nvidia\n\n"
        f"{nic}:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]\n"
        f"\tNUMA node: {node}\n"
        + _express("Endpoint")
        + "\tCapabilities: [48] Vital Product Data\n\t\tProduct Name: NVIDIA ConnectX-7 adapter card\n\t\tEnd\n"
        "\tKernel driver in use: mlx5_core\n\n"
    )


LSPCI = "".join(map(_lspci_side, SIDES))
LSPCI_NN = "".join(line + "\n" for line in LSPCI.splitlines() if line[:1].isalnum())
LSPCI_TREE = (
    "-+-[0000:97]---01.0-[98-9b]----00.0-[99-9b]--+-00.0-[9a]----00.0  NVIDIA Corporation GH100\n"
    " |                                           \\-01.0-[9b]----00.0  Mellanox Technologies MT2910 Family\n"
    " \\-[0000:15]---01.0-[16-19]----00.0-[17-19]--+-00.0-[18]----00.0  NVIDIA Corporation GH100\n"
    "                                             \\-01.0-[19]----00.0  Mellanox Technologies MT2910 Family\n"
)
LSPCI_MACHINE = "".join(
    f'0000:{side[4]}:00.0 "3D controller [0302]" "NVIDIA Corporation [10de]" "GH100 [2330]" -ra1 "NVIDIA [10de]" "Device [16c1]"\n'
    for side in SIDES
)


def _objects(side: tuple[int, str, str, str, str, str, str, str, str]) -> str:
    node, root, upper, lower, gpu, nic, rdma, netdev, _ = side
    mask = ("0x0000000f", "0x000000f0")[node]
    sets = f'cpuset="{mask}" complete_cpuset="{mask}" nodeset="0x{1 << node:08x}"'
    cores = "".join(
        f'      <object type="Core" os_index="{core}" cpuset="0x{3 << 4 * node + 2 * core:08x}" nodeset="0x{1 << node:08x}">\n'
        + "".join(
            f'        <object type="PU" os_index="{cpu}" cpuset="0x{1 << cpu:08x}"/>\n'
            for cpu in (4 * node + 2 * core, 4 * node + 2 * core + 1)
        )
        + "      </object>\n"
        for core in (0, 1)
    )
    kind = 'type="Bridge" bridge_type="1-1" depth="1"'
    ids = 'pci_type="0604 [11f8:4128] [0000:0000] 00 00" pci_link_speed="63.0"'
    return (
        f'    <object type="Package" os_index="{node}" {sets}>\n'
        '      <info name="CPUVendor" value="GenuineIntel"/>\n      <info name="CPUFamilyNumber" value="6"/>\n'
        '      <info name="CPUModelNumber" value="143"/>\n'
        f'      <object type="NUMANode" os_index="{node}" {sets} local_memory="1081023435161"/>\n'
        f'      <object type="L3Cache" {sets} depth="3">\n{cores}      </object>\n'
        f'      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[{root}-{nic}]">\n'
        f'      <object {kind} bridge_pci="0000:[{upper}-{nic}]" pci_busid="0000:{root}:01.0" {ids}>\n'
        f'      <object {kind} bridge_pci="0000:[{lower}-{nic}]" pci_busid="0000:{upper}:00.0" {ids}>\n'
        f'      <object {kind} bridge_pci="0000:[{gpu}-{gpu}]" pci_busid="0000:{lower}:00.0" {ids}>\n'
        f'        <object type="PCIDev" pci_busid="0000:{gpu}:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1 00">\n'
        '          <object type="OSDev" name="nvml0" osdev_type="12">\n'
        '            <info name="GPUModel" value="NVIDIA H100 80GB HBM3"/>\n'
        f'            <info name="NVIDIAUUID" value="{UUIDS[node]}"/>\n'
        "          </object>\n        </object>\n      </object>\n"
        f'      <object {kind} bridge_pci="0000:[{nic}-{nic}]" pci_busid="0000:{lower}:01.0" {ids}>\n'
        f'        <object type="PCIDev" pci_busid="0000:{nic}:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00 00">\n'
        f'          <object type="OSDev" name="{netdev}" osdev_type="16">\n'
        f'            <info name="Address" value="a0:88:c2:12:34:0{node}"/>\n          </object>\n'
        f'          <object type="OSDev" name="{rdma}" osdev_type="32">\n'
        f'            <info name="NodeGUID" value="a088:c203:0012:340{node}"/>\n'
        '            <info name="Port1State" value="4"/>\n          </object>\n        </object>\n      </object>\n'
        "      </object>\n      </object>\n      </object>\n    </object>\n"
    )


HWLOC = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="3.0">\n'
    '  <object type="Machine" os_index="0" cpuset="0x000000ff" complete_cpuset="0x000003ff" allowed_cpuset="0x000000ff"'
    ' nodeset="0x00000003">\n'
    + "".join(map(_objects, SIDES))
    + '  </object>\n  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">\n'
    '    <indexes length="4">0 1 </indexes>\n    <u64values length="12">10 21 21 10 </u64values>\n  </distances2>\n'
    '  <info name="HostName" value="node7"/>\n  <info name="Architecture" value="x86_64"/>\n</topology>\n'
)

QUERY = (
    "\n==============NVSMI LOG==============\n\nTimestamp                                 : Mon Jan  1 00:00:00 2024\n"
    "Driver Version                            : 570.86.15\n\nAttached GPUs                             : 2\n"
    + "".join(
        f"GPU 00000000:{side[4].upper()}:00.0\n"
        "    Product Name                          : NVIDIA H100 80GB HBM3\n"
        f"    GPU UUID                              : {uuid}\n"
        "    MIG Mode\n        Current                           : Disabled\n"
        "        Pending                           : Disabled\n"
        f"    PCI\n        Bus Id                            : 00000000:{side[4].upper()}:00.0\n"
        "        Device Id                         : 0x233010DE\n"
        "        Sub System Id                     : 0x16C110DE\n"
        "        GPU Link Info\n            PCIe Generation\n"
        "                Max                       : 4\n                Current                   : 1\n"
        "                Device Max                : 5\n                Host Max                  : 4\n"
        "            Link Width\n                Max                       : 16x\n"
        "                Current                   : 8x\n"
        "    Fabric\n        State                             : Completed\n"
        for side, uuid in zip(SIDES, UUIDS, strict=True)
    )
)
QUERY_XML = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    "  <driver_version>570.86.15</driver_version>\n  <attached_gpus>2</attached_gpus>\n"
    + "".join(
        f'  <gpu id="00000000:{side[4].upper()}:00.0">\n    <product_name>NVIDIA H100 80GB HBM3</product_name>\n'
        f"    <uuid>{uuid}</uuid>\n    <pci>\n      <pci_device_id>233010DE</pci_device_id>\n"
        f"      <pci_bus_id>00000000:{side[4].upper()}:00.0</pci_bus_id>\n"
        "      <pci_sub_system_id>16C110DE</pci_sub_system_id>\n      <pci_gpu_link_info>\n        <pcie_gen>\n"
        "          <max_link_gen>4</max_link_gen>\n          <current_link_gen>1</current_link_gen>\n"
        "          <max_device_link_gen>5</max_device_link_gen>\n        </pcie_gen>\n        <link_widths>\n"
        "          <max_link_width>16x</max_link_width>\n          <current_link_width>8x</current_link_width>\n"
        "        </link_widths>\n      </pci_gpu_link_info>\n    </pci>\n  </gpu>\n"
        for side, uuid in zip(SIDES, UUIDS, strict=True)
    )
    + "</nvidia_smi_log>\n"
)
NVLINK = "".join(
    f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for n, uuid in enumerate(UUIDS)
)
NVLINK_FAR = "".join(
    f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"
    + "".join(
        f"\t Link {link}: Remote Device 00000000:{SIDES[1 - n][4].upper()}:00.0: Link {link}\n"
        for link in range(18)
    )
    for n, uuid in enumerate(UUIDS)
)
P2P = (
    "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\n"
    "Legend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    "  GNS  = GPU not supported\n  TNS  = Topology not supported\n  NS   = Not supported\n  U    = Unknown\n"
)
IBDEV = "".join(f"{side[6]} port 1 ==> {side[7]} (Up)\n" for side in SIDES)
IBDEV_V = "".join(
    f"0000:{side[5]}:00.0 {side[6]} (MT4129 - MT2340J88735) NVIDIA ConnectX-7 fw 28.41.1000 port 1 (ACTIVE) ==> {side[7]} (Up)\n"
    for side in SIDES
)
IBSTAT = "".join(
    f"CA '{side[6]}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.41.1000\n\tHardware version: 0\n"
    f"\tNode GUID: 0xa088c2030012340{side[0]}\n\tSystem image GUID: 0xa088c2030012340{side[0]}\n\tPort 1:\n"
    "\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: 12\n\t\tLMC: 0\n\t\tSM lid: 1\n"
    f"\t\tCapability mask: 0xa751e848\n\t\tPort GUID: 0xa088c2030012340{side[0]}\n\t\tLink layer: InfiniBand\n"
    for side in SIDES
)
IBSTATUS = "\n".join(
    f"Infiniband device '{side[6]}' port 1 status:\n"
    f"\tdefault gid:\t fe80:0000:0000:0000:a088:c203:0012:340{side[0]}\n\tbase lid:\t 0x81\n\tsm lid:\t\t 0x1\n"
    "\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t InfiniBand\n"
    for side in SIDES
)
SHOW_GIDS = (
    "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
    + "".join(
        f"{side[6]}\t1\t0\tfe80:0000:0000:0000:a088:c203:0012:340{side[0]}\t\t\tv1\t{side[7]}\n"
        f"{side[6]}\t1\t3\t0000:0000:0000:0000:0000:ffff:0a00:000{side[0] + 1}\t10.0.0.{side[0] + 1}  \tv2\t{side[7]}\n"
        for side in SIDES
    )
    + "n_gids_found=4\n"
)
QOS = (
    "$ mlnx_qos -i enp25s0np0\nDCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n"
    + "".join(
        f"\tprio:{prio} dscp:"
        + "".join(f"{point:02d}," for point in reversed(range(8 * prio, 8 * prio + 8)))
        + "\n"
        for prio in range(8)
    )
    + "PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0   \n"
    "\tbuffer      0   0   0   1   0   0   0   0   \n"
    + "".join(f"tc: {n} ratelimit: unlimited, tsa: vendor\n\t priority:  {n}\n" for n in range(8))
)
MLXCONFIG = "".join(
    f"\nDevice #{n}:\n----------\n\nDevice type:        ConnectX7\nName:               MCX75310AAS-NEA_Ax\n"
    f"Description:        NVIDIA ConnectX-7 adapter card\nDevice:             0000:{side[5]}:00.0\n\n"
    "Configurations:                                          Default             Current         Next Boot\n"
    "        MEMIC_BAR_SIZE                              0                    0                    0\n"
    "*       SRIOV_EN                                    False(0)             True(1)              True(1)\n"
    for n, side in enumerate(SIDES, start=1)
)
INTERRUPTS = (
    "            " + "".join(f"CPU{cpu}       " for cpu in range(8)) + "\n"
    "  24:          7          0          0          0          0          0          0          0  PCI-MSI 1-edge  ahci\n"
    " 124:         90          1          0          0          0          0          0          0  PCI-MSIX 2-edge  mlx5_comp0@pci:0000:19:00.0\n"
    " 224:          0          0          0          0          0         12          0          0  PCI-MSIX 3-edge  mlx5_comp0@pci:0000:9b:00.0\n"
    " NMI:          1          1          1          1          1          1          1          1   Non-maskable interrupts\n"
)
LSCPU = (
    "Architecture:                    x86_64\nCPU(s):                          10\nOn-line CPU(s) list:             0-7\n"
    "Off-line CPU(s) list:            8,9\nVendor ID:                       GenuineIntel\n"
    "Model name:                      Intel(R) Xeon(R) Platinum 8480C\nCPU family:                      6\n"
    "Model:                           143\nNUMA node(s):                    2\nNUMA node0 CPU(s):               0-3\n"
    "NUMA node1 CPU(s):               4-7\n\n# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n"
    + "".join(f"{n},{n // 2},{n // 4},{n // 4},,{n // 2},{n // 2},{n // 2},{n // 4}\n" for n in range(8))
)
DMIDECODE = (
    "# dmidecode 3.3\nGetting SMBIOS data from sysfs.\nSMBIOS 3.3.0 present.\n\n"
    "Handle 0x0100, DMI type 1, 27 bytes\nSystem Information\n\tManufacturer: Dell Inc.\n\tProduct Name: PowerEdge XE9680\n"
    "\tSerial Number: ABC1234\n\tUUID: 4c4c4544-0000-0000-0000-000000000000\n\n"
    "Handle 0x0400, DMI type 4, 48 bytes\nProcessor Information\n\tManufacturer: Intel\n"
    "\tVersion: Intel(R) Xeon(R) Platinum 8480C\n\tStatus: Populated, Enabled\n\n"
    + "".join(
        f"Handle 0x090{n}, DMI type 9, 17 bytes\nSystem Slot Information\n\tDesignation: SXM{n + 1}\n\tCurrent Usage: {usage}\n"
        f"\tBus Address: 0000:{bus}:00.0\n\n"
        for n, (bus, usage) in enumerate((("18", "In Use"), ("9a", "In Use"), ("ff", "Available")))
    )
)
ALL = {
    "nvidia-smi": MATRIX,
    "nccl-xml": NCCL,
    "lspci": LSPCI,
    "lspci -nn": LSPCI_NN,
    "lspci -t": LSPCI_TREE,
    "lspci -mm": LSPCI_MACHINE,
    "hwloc": HWLOC,
    "nvidia-smi-q": QUERY,
    "nvidia-smi-q -x": QUERY_XML,
    "nvlink": NVLINK,
    "nvlink -R": NVLINK_FAR,
    "nvidia-smi -p2p": P2P,
    "ibdev2netdev": IBDEV,
    "ibdev2netdev -v": IBDEV_V,
    "ibstat": IBSTAT,
    "ibstatus": IBSTATUS,
    "show_gids": SHOW_GIDS,
    "mlnx_qos": QOS,
    "mlxconfig": MLXCONFIG,
    "interrupts": INTERRUPTS,
    "lscpu": LSCPU,
    "dmidecode": DMIDECODE,
}
