"""Network ports: /sys/class/net, /sys/class/infiniband, /sys/class/infiniband_verbs.

Files and formats: Documentation/ABI/testing/sysfs-class-net and stable/sysfs-class-infiniband of the kernel;
drivers/infiniband/core/sysfs.c for the words of `rate`, `state` and `phys_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address

from .errors import MachineError
from .functions import Function
from .model import PHYSICAL_STATES, PORT_STATES, Address, Machine, Nic, Rdma
from .topology import Topology
from .tree import Tree

# Gb/s of one lane: drivers/infiniband/core/sysfs.c, rate_show.
_LANES = {25: "EDR", 50: "HDR", 100: "NDR", 200: "XDR"}
_WIDTHS = (4, 2, 1, 8, 12)
_ERROR_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_discards", "port_xmit_constraint_errors",
    "port_rcv_constraint_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait",
)  # fmt: skip
_HARDWARE_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err",
    "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored", "rx_icrc_encapsulated",
    "roce_adp_retrans", "roce_slow_restart",
)  # fmt: skip
_IF_UP, _IF_BROADCAST, _IF_RUNNING, _IF_MULTICAST = 0x1, 0x2, 0x40, 0x1000


def interface_numbers(machine: Machine) -> dict[str, int]:
    """netdev -> ifindex, `lo` first and then in PCI order."""
    named = sorted((nic for nic in machine.nics if nic.netdev), key=lambda nic: (nic.at, nic.netdev or ""))
    return {"lo": 1, **{nic.netdev or "": index + 2 for index, nic in enumerate(named)}}


def link_local(mac: str) -> IPv6Address:
    """The IPv6 link-local address that a MAC gives (RFC 4291, appendix A)."""
    octets = [int(octet, 16) for octet in mac.split(":")]
    octets[0] ^= 2
    return IPv6Address(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0, *octets[:3], 0xFF, 0xFE, *octets[3:]]))


def gids(nic: Nic) -> list[tuple[str, str | None]]:
    """(address, type) of each used entry of the port's GID table.

    RoCE: the link-local address and then each address of the netdev, once a version. A port without carrier keeps
    its link-local entries only. InfiniBand: one entry, the subnet prefix before the port's GUID.
    """
    if nic.layer == "InfiniBand":
        return [(_long(IPv6Address(0xFE80 << 112 | nic.node_guid)), "IB/RoCE v1")]
    addresses = [link_local(nic.mac)]
    if nic.state == "ACTIVE":
        addresses += [IPv6Address(0xFFFF << 32 | int(own.ip)) for own in nic.ipv4]
        addresses += [own.ip for own in nic.ipv6]
    return [(_long(address), version) for address in addresses for version in ("IB/RoCE v1", "RoCE v2")]


def _long(address: IPv6Address) -> str:
    return address.exploded


def rate(gbps: int) -> str:
    """`400 Gb/sec (4X NDR)`."""
    for width in _WIDTHS:
        lane, rest = divmod(gbps, width)
        if not rest and lane in _LANES:
            return f"{gbps} Gb/sec ({width}X {_LANES[lane]})"
    return f"{gbps} Gb/sec (4X)"


def add_nics(tree: Tree, machine: Machine, shape: Topology, found: Mapping[Address, Function]) -> None:
    """Every network port, and the loopback."""
    numbers = interface_numbers(machine)
    _add_loopback(tree)
    verbs = 0
    for nic in sorted(machine.nics, key=lambda nic: (nic.at, nic.label)):
        function = found[nic.at]
        if nic.netdev is not None:
            _add_netdev(tree, machine, shape, nic, function, numbers[nic.netdev])
        if nic.rdma is not None:
            _add_rdma(tree, machine, nic, nic.rdma, function)
            _add_verbs(tree, nic.rdma, function, verbs)
            verbs += 1
    for name in ("infiniband", "net"):
        tree.folder(f"sys/class/{name}")


def _add_loopback(tree: Tree) -> None:
    folder = "sys/devices/virtual/net/lo"
    tree.lines(
        folder,
        {
            "address": "00:00:00:00:00:00",
            "addr_len": 6,
            "carrier": 1,
            "flags": "0x9",
            "ifindex": 1,
            "iflink": 1,
            "mtu": 65536,
            "operstate": "unknown",
            "type": 772,
            "uevent": "INTERFACE=lo\nIFINDEX=1",
        },
    )
    tree.link(f"{folder}/subsystem", "sys/class/net")
    tree.link("sys/class/net/lo", folder)


def _add_netdev(
    tree: Tree, machine: Machine, shape: Topology, nic: Nic, function: Function, number: int
) -> None:
    parent = function.path
    if nic.via is not None:
        parent = f"{function.path}/{nic.via}"
        tree.link(f"{parent}/subsystem", f"sys/bus/{nic.via.rstrip('0123456789')}")
    name = str(nic.netdev)
    folder = f"{parent}/net/{name}"
    up = nic.state == "ACTIVE"
    infiniband = nic.layer == "InfiniBand"
    flags = _IF_BROADCAST | _IF_MULTICAST | _IF_UP | (_IF_RUNNING if up else 0)
    # sysfs shows the flags that user space set: IFF_RUNNING is not among them (net/core/net-sysfs.c).
    tree.lines(
        folder,
        {
            "address": _ipoib_address(nic) if infiniband else nic.mac,
            "addr_assign_type": 0,
            "addr_len": 20 if infiniband else 6,
            "broadcast": ":".join(["ff"] * 6) if not infiniband else _IPOIB_BROADCAST,
            "carrier": int(up),
            "carrier_changes": 2,
            "dev_id": "0x0",
            "dev_port": 0,
            "dormant": 0,
            "duplex": "full" if up else "unknown",
            "flags": f"0x{flags & ~_IF_RUNNING:x}",
            "ifalias": "",
            "ifindex": number,
            "iflink": number,
            "link_mode": 0,
            "mtu": nic.mtu,
            "name_assign_type": 4,
            "netdev_group": 0,
            "operstate": "up" if up else "down",
            "speed": nic.gbps * 1000 if up else -1,
            "tx_queue_len": 1000,
            "type": 32 if infiniband else 1,
            "uevent": f"INTERFACE={name}\nIFINDEX={number}",
        },
    )
    if nic.rdma is not None and not infiniband:
        tree.lines(
            folder, {"phys_port_name": f"p{nic.at.function}", "phys_switch_id": f"{nic.image_guid:016x}"}
        )
    tree.link(f"{folder}/device", parent)
    tree.link(f"{folder}/subsystem", "sys/class/net")
    tree.link(f"sys/class/net/{name}", folder)
    vectors = function.device.part.vectors
    channels = nic.channels or (vectors.count if vectors else 1) or 1
    nothing = shape.mask(())
    for queue in range(channels):
        tree.lines(f"{folder}/queues/rx-{queue}", {"rps_cpus": nothing})
        tree.lines(f"{folder}/queues/tx-{queue}", {"xps_cpus": nothing})
    for counter in (
        "rx_bytes",
        "tx_bytes",
        "rx_packets",
        "tx_packets",
        "rx_errors",
        "tx_errors",
        "rx_dropped",
    ):
        tree.lines(f"{folder}/statistics", {counter: 0})


_IPOIB_BROADCAST = "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"


def _ipoib_address(nic: Nic) -> str:
    octets = f"00001029fe80000000000000{nic.node_guid:016x}"
    return ":".join(octets[index : index + 2] for index in range(0, len(octets), 2))


def _add_rdma(tree: Tree, machine: Machine, nic: Nic, name: str, function: Function) -> None:
    kind = function.device.part.rdma
    if kind is None:
        raise MachineError(f"nics.{nic.label}", f"{nic.at} is no RDMA device", "drop its rdma name")
    folder = f"{function.path}/infiniband/{name}"
    tree.lines(
        folder,
        {
            "board_id": nic.board_id or kind.board_id,
            "fw_ver": nic.firmware or kind.firmware,
            "hca_type": kind.hca_type,
            "hw_rev": "0",
            "node_desc": f"{machine.hostname} {name}",
            "node_guid": _guid(nic.node_guid),
            "node_type": "1: CA",
            "sys_image_guid": _guid(nic.image_guid),
        },
    )
    tree.link(f"{folder}/device", function.path)
    tree.link(f"{folder}/subsystem", "sys/class/infiniband")
    tree.link(f"sys/class/infiniband/{name}", folder)
    _add_port(tree, f"{folder}/ports/1", nic, kind)


def _guid(value: int) -> str:
    text = f"{value:016x}"
    return ":".join(text[index : index + 4] for index in range(0, 16, 4))


def _add_port(tree: Tree, folder: str, nic: Nic, kind: Rdma) -> None:
    infiniband = nic.layer == "InfiniBand"
    up = nic.state == "ACTIVE"
    # A port that is down reports the slowest rate of its layer: 4X SDR, and 4X QDR over Ethernet.
    down = "10 Gb/sec (4X)" if infiniband else "40 Gb/sec (4X QDR)"
    tree.lines(
        folder,
        {
            "cap_mask": "0xa651e848" if infiniband else "0x04010000",
            "lid": f"0x{nic.lid if up or not infiniband else 0xFFFF:x}",
            "lid_mask_count": 0,
            "link_layer": nic.layer,
            "phys_state": f"{PHYSICAL_STATES[nic.physical]}: {nic.physical}",
            "rate": rate(nic.gbps) if up else down,
            "sm_lid": "0x1" if infiniband and up else "0x0",
            "sm_sl": 0,
            "state": f"{PORT_STATES[nic.state]}: {nic.state}",
        },
    )
    table = gids(nic)
    tree.lines(f"{folder}/gids", {str(index): _NO_GID for index in range(kind.gid_entries)})
    tree.lines(f"{folder}/gids", {str(index): gid for index, (gid, _) in enumerate(table)})
    # Of an empty entry the kernel refuses to read type and netdev (EINVAL): here these files are absent.
    for index, (_, version) in enumerate(table):
        tree.lines(f"{folder}/gid_attrs/types", {str(index): version})
        if not infiniband and nic.netdev is not None:
            tree.lines(f"{folder}/gid_attrs/ndevs", {str(index): nic.netdev})
    entries = 128 if infiniband else 1
    tree.lines(f"{folder}/pkeys", {str(index): "0x0000" for index in range(entries)})
    tree.lines(f"{folder}/pkeys", {"0": "0xffff"})
    tree.lines(f"{folder}/counters", dict.fromkeys(_ERROR_COUNTERS, 0))
    tree.lines(f"{folder}/hw_counters", {**dict.fromkeys(_HARDWARE_COUNTERS, 0), "lifespan": 12})


_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def _add_verbs(tree: Tree, name: str, function: Function, number: int) -> None:
    folder = f"{function.path}/infiniband_verbs/uverbs{number}"
    tree.lines(folder, {"ibdev": name, "abi_version": 1, "dev": f"231:{192 + number}"})
    tree.link(f"{folder}/device", function.path)
    tree.link(f"{folder}/subsystem", "sys/class/infiniband_verbs")
    tree.link(f"sys/class/infiniband_verbs/uverbs{number}", folder)
