"""Network ports: RDMA devices and their netdevs, from sys/class/infiniband and sys/class/net."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import Optional

from ..model import Gid, InputError, Nic, PciDevice, format_cpulist, normalise_address
from ..model.pci import MELLANOX
from .pci import PciTree, address_above, is_nic
from .questions import bluefield
from .routes import Routes
from .tree import Tree

_NET = "sys/class/net"
_RDMA = "sys/class/infiniband"
# Vital product data is at most 32 KiB (PCI Local Bus Specification 3.0, appendix I: a 15-bit address).
_VPD_BYTES = 32 * 1024
# The name of an NVSwitch management function in its VPD (NVIDIA, HGX B200/B300 NVLink management).
_SWITCH_MANAGEMENT = b"SW_MNG"
_STATE = re.compile(r"(\d{1,3}): ?\S+", re.ASCII)
_STATES = {0: None, 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active"}
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec\b", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}")
_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
# In switchdev mode the ports of VFs and subfunctions appear beside the uplink (devlink's port names).
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+", re.ASCII)
_LINK_LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "Ethernet", "Unspecified": None, "Unknown": None}
_GID_KINDS = {"IB/RoCE v1": "v1", "RoCE v2": "v2"}
# RFC 2863 states as sysfs prints them; "unknown" is what drivers without the notion say, so carrier decides there.
_OPERSTATES = {
    "up": "active",
    "down": "down",
    "lowerlayerdown": "down",
    "notpresent": "down",
    "dormant": "down",
    "testing": "down",
    "unknown": None,
}


@dataclass(frozen=True)
class _Netdev:
    name: str
    place: str
    port: int


def read_nics(tree: Tree, pci: PciTree, routes: Routes) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    """Ports in PCI order and port order, then what a person should know of what was left out. Raises InputError."""
    notes: list[str] = []
    netdevs, represented = _netdevs(tree)
    bases = {device.address: _base(tree, pci, device) for device in pci.devices}
    nics: list[Nic] = []
    for name in tree.names(_RDMA):
        place = _device_folder(tree, f"{_RDMA}/{name}")
        address = None if place is None else address_above(place)
        if place is None or address not in bases:
            notes.append(
                f"{name} is an RDMA device on no PCI function that is there (RDMA in software?): left out"
            )
            continue
        ports = _numbers(tree, f"{_RDMA}/{name}/ports")
        if place in represented and len(ports) > 1:
            # In switchdev mode the uplink is port 1, and each representor a further port of the same device.
            notes.append(
                f"{name}: ports {format_cpulist(ports[1:])} represent virtual functions and subfunctions: left out"
            )
            ports = ports[:1]
        for port in ports:
            nic = _rdma_port(tree, name, port, _on(tree, place, bases[address]))
            if len(ports) > 1:
                nic = replace(nic, name=f"{name}:{port}")
            netdev = _netdev_of(tree, nic, place, netdevs)
            if netdev is not None:
                netdevs.remove(netdev)
                nic = _with_netdev(tree, nic, netdev.name)
            nics.append(nic)
    for netdev in netdevs:
        address = address_above(netdev.place)
        # A USB interface hangs on a PCI function too, but that is its controller: no NIC.
        if address is not None and address in bases:
            base = replace(_on(tree, netdev.place, bases[address]), name=netdev.name)
            nics.append(_with_netdev(tree, base, netdev.name))
    notes += _silent(pci, nics)
    order = {device.address: number for number, device in enumerate(pci.devices)}
    nics.sort(key=lambda nic: (order[nic.address or ""], nic.port or 0, nic.rdma or "", nic.netdev or ""))
    nics = [_with_routes(tree, nic, routes) for nic in nics]
    return _with_shared_addresses(nics, routes, notes), tuple(notes)


def _base(tree: Tree, pci: PciTree, device: PciDevice) -> Nic:
    """What all ports on one PCI function have in common."""
    return Nic(
        name="",
        address=device.address,
        numa=device.numa,
        physical_function=pci.functions[device.address],
        management=_management(tree, pci, device),
        functions=_functions(tree, device),
        bluefield=bluefield(device),
    )


def _functions(tree: Tree, device: PciDevice) -> tuple[str, ...]:
    """The functions that serve one port together: two sockets' ways to one NIC (drivers/.../mlx5/core/lib/sd.c).

    Only debugfs tells, and only root: sysfs shows the port on its first function, and nothing on the second.
    """
    if device.vendor != MELLANOX:
        return ()
    place = f"sys/kernel/debug/mlx5/{device.address}/multi-pf"
    names = [name for name in tree.names(place) if name.startswith("secondary_")]
    found = []
    for name in ("primary", *names) if names else ():
        text = tree.text(f"{place}/{name}") or ""
        found.append(normalise_address(text.partition(" ")[0], tree.where(f"{place}/{name}")))
    return tuple(found) if found[:1] == [device.address] else ()


def _silent(pci: PciTree, nics: list[Nic]) -> list[str]:
    """Functions that a network driver holds and that carry nothing."""
    carrying = {nic.address for nic in nics} | {address for nic in nics for address in nic.functions}
    silent = [
        device.address
        for device in pci.devices
        if device.driver == "mlx5_core" and device.address not in carrying and is_nic(device)
    ]
    if not silent:
        return []
    return [
        f"{', '.join(silent)}: driven by mlx5_core, and neither an interface nor an RDMA device is there; the second"
        " function of a multi-PF netdev looks so (root sees the pair in /sys/kernel/debug/mlx5/*/multi-pf)"
    ]


def _on(tree: Tree, place: str, base: Nic) -> Nic:
    # A subfunction is a device of its own on its PF's PCI function; mlx5 numbers it in `sfnum`.
    return replace(base, physical_function=base.address) if tree.exists(f"{place}/sfnum") else base


def _management(tree: Tree, pci: PciTree, device: PciDevice) -> Optional[bool]:
    # NVSwitch management functions are ConnectX functions; no other vendor's device can be one.
    if device.vendor != MELLANOX:
        return False
    data = tree.data(f"{pci.places[device.address]}/vpd", _VPD_BYTES)
    if data is not None:
        return _SWITCH_MANAGEMENT in data
    return False if pci.configs[device.address].vpd is False else None


def _device_folder(tree: Tree, path: str) -> Optional[str]:
    """The folder of the device that a class entry belongs to: two above it, else where its `device` link leads."""
    real = tree.resolve(path)
    if real is None:
        return None
    if address_above(real) is not None:
        return posixpath.dirname(posixpath.dirname(real))
    return tree.resolve(f"{path}/device") or posixpath.dirname(posixpath.dirname(real))


def _numbers(tree: Tree, path: str) -> list[int]:
    return sorted(int(name) for name in tree.names(path) if _NUMBER.fullmatch(name))


def _netdevs(tree: Tree) -> tuple[list[_Netdev], frozenset[str]]:
    """Netdevs that are ports: no representor, no child of another netdev (a P_Key interface, say).

    Then the folders of the devices that have representors.
    """
    found = []
    represented = set()
    for name in tree.names(_NET):
        place = _device_folder(tree, f"{_NET}/{name}")
        if place is None or address_above(place) is None:
            continue
        index, link = tree.integer(f"{_NET}/{name}/ifindex"), tree.integer(f"{_NET}/{name}/iflink")
        if _REPRESENTOR.fullmatch(tree.text(f"{_NET}/{name}/phys_port_name") or ""):
            represented.add(place)
            continue
        if index is not None and link is not None and index != link:
            continue
        # dev_port counts from 0; older IPoIB says the same in dev_id only (Documentation/ABI/testing/sysfs-class-net).
        counts = (tree.integer(f"{_NET}/{name}/dev_port"), tree.integer(f"{_NET}/{name}/dev_id"))
        found.append(_Netdev(name, place, 1 + max(count or 0 for count in counts)))
    return found, frozenset(represented)


def _netdev_of(tree: Tree, nic: Nic, place: str, netdevs: list[_Netdev]) -> Optional[_Netdev]:
    """The netdev on the same device and port. The port's GID table decides between several."""
    near = [netdev for netdev in netdevs if netdev.place == place and netdev.port == nic.port]
    if len(near) > 1:
        named = {gid.netdev for gid in nic.gids}
        near = [netdev for netdev in near if netdev.name in named] or near
    return near[0] if len(near) == 1 else None


def _rdma_port(tree: Tree, name: str, port: int, base: Nic) -> Nic:
    device = f"{_RDMA}/{name}"
    place = f"{device}/ports/{port}"
    layer = _link_layer(tree, f"{place}/link_layer")
    state = _port_state(tree, f"{place}/state")
    return replace(
        base,
        name=name,
        rdma=name,
        port=port,
        link_layer=layer,
        state=state,
        rate=None if state == "down" else _rate(tree, f"{place}/rate"),
        guid=_guid(tree, f"{device}/node_guid"),
        sys_image_guid=_guid(tree, f"{device}/sys_image_guid"),
        firmware=tree.text(f"{device}/fw_ver") or None,
        board=tree.text(f"{device}/board_id") or None,
        gids=_gids(tree, place, layer),
    )


def _with_netdev(tree: Tree, nic: Nic, netdev: str) -> Nic:
    place = f"{_NET}/{netdev}"
    state = nic.state if nic.rdma is not None else _operstate(tree, place)
    rate = nic.rate
    if nic.rdma is None and state != "down":
        # ethtool's SPEED_UNKNOWN is -1; a virtio device says so too.
        speed = tree.integer(f"{place}/speed")
        rate = None if speed is None or speed <= 0 else speed
    mac = tree.text(f"{place}/address")
    return replace(
        nic,
        netdev=netdev,
        link_layer=nic.link_layer or _hardware(tree, f"{place}/type"),
        state=state,
        rate=rate,
        mtu=tree.integer(f"{place}/mtu"),
        # IPoIB has a 20-byte hardware address, which is no MAC.
        mac=mac if mac is not None and _MAC.fullmatch(mac) else None,
        master=tree.link_name(f"{place}/master"),
        # DOCA-OFED's driver alone has it.
        cnp_dscp=tree.integer(f"{place}/ecn/roce_np/cnp_dscp"),
    )


def _hardware(tree: Tree, path: str) -> Optional[str]:
    # include/uapi/linux/if_arp.h: ARPHRD_ETHER, ARPHRD_INFINIBAND
    return {1: "Ethernet", 32: "InfiniBand"}.get(tree.integer(path) or 0)


def _operstate(tree: Tree, place: str) -> Optional[str]:
    text = tree.text(f"{place}/operstate")
    if text is None:
        return None
    if text not in _OPERSTATES:
        raise InputError(
            tree.where(f"{place}/operstate"), f"found {text!r}", "expected a state like up or down"
        )
    if text == "unknown":
        # Reading the carrier of an interface that is not up gives EINVAL: then nothing is known.
        carrier = tree.integer(f"{place}/carrier")
        return None if carrier is None else "active" if carrier else "down"
    return _OPERSTATES[text]


def _port_state(tree: Tree, path: str) -> Optional[str]:
    text = tree.text(path)
    if text is None:
        return None
    match = _STATE.match(text)
    if match is None or int(match[1]) not in _STATES:
        raise InputError(tree.where(path), f"found {text!r}", "expected a port state like '4: ACTIVE'")
    return _STATES[int(match[1])]


def _link_layer(tree: Tree, path: str) -> Optional[str]:
    text = tree.text(path)
    if text is None:
        return None
    if text not in _LINK_LAYERS:
        raise InputError(tree.where(path), f"found {text!r}", "expected InfiniBand or Ethernet")
    return _LINK_LAYERS[text]


def _rate(tree: Tree, path: str) -> Optional[int]:
    text = tree.text(path)
    if text is None:
        return None
    match = _RATE.match(text)
    if match is None:
        raise InputError(tree.where(path), f"found {text!r}", "expected a rate like '400 Gb/sec (4X NDR)'")
    return round(float(match[1]) * 1000) or None


def _guid(tree: Tree, path: str) -> Optional[str]:
    text = tree.text(path)
    if text is None:
        return None
    if not _GUID.fullmatch(text):
        raise InputError(tree.where(path), f"found {text!r}", "expected a GUID like a088:c203:0012:3456")
    return text if text.strip("0:") else None


def _gids(tree: Tree, place: str, layer: Optional[str]) -> tuple[Gid, ...]:
    """The entries in use. The kernel refuses to show an empty one's type (EINVAL), and some entries altogether.

    The kinds are RoCE's: an InfiniBand port's entries have none.
    """
    found = []
    for index in _numbers(tree, f"{place}/gids"):
        gid = tree.text(f"{place}/gids/{index}")
        if gid is None or not gid.strip("0:"):
            continue
        if not _GID.fullmatch(gid):
            raise InputError(
                tree.where(f"{place}/gids/{index}"), f"found {gid!r}", "expected a GID of eight groups"
            )
        kind = tree.text(f"{place}/gid_attrs/types/{index}") if layer == "Ethernet" else None
        found.append(
            Gid(index, gid, _GID_KINDS.get(kind or ""), tree.text(f"{place}/gid_attrs/ndevs/{index}") or None)
        )
    return tuple(found)


def _with_routes(tree: Tree, nic: Nic, routes: Routes) -> Nic:
    # What a bond or bridge holds reaches the network through its members.
    carried = {nic.netdev, nic.master} - {None}
    held = tuple(text for name in (nic.netdev, nic.master) for text in routes.addresses.get(name or "", ()))
    default = None if routes.defaults is None else bool(carried & _below(tree, routes.defaults))
    return replace(nic, addresses=held, default_route=default)


def _below(tree: Tree, interfaces: frozenset[str]) -> set[str]:
    """These interfaces and all that carry them: members of a bond, ports of a bridge, the device under a VLAN."""
    reached: set[str] = set()
    waiting = list(interfaces)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(
                entry[len("lower_") :] for entry in tree.names(f"{_NET}/{name}") if entry.startswith("lower_")
            )
    return reached


def _with_shared_addresses(nics: list[Nic], routes: Routes, notes: list[str]) -> tuple[Nic, ...]:
    """Addresses of one subnet that several interfaces have: a port's GID table tells which of them is its own."""
    for address, length, interfaces in routes.shared:
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(
            *map(int, address.split("."))
        )
        holders = [number for number, nic in enumerate(nics) if any(gid.gid == mapped for gid in nic.gids)]
        if len(holders) == 1:
            nic = nics[holders[0]]
            nics[holders[0]] = replace(nic, addresses=(*nic.addresses, f"{address}/{length}"))
        else:
            notes.append(
                f"{address}/{length} is on one of {', '.join(interfaces)}; proc/net does not tell which"
            )
    return tuple(nics)
