"""Local addresses, what ports are members of, and InfiniBand's own view of its ports: from sys and proc."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ..model import InputError, Nic
from ..model.network_facts import InfinibandPort, LocalAddress, Master, NetworkFacts
from .routes import Routes
from .tree import Tree

_NET = "sys/class/net"
_RDMA = "sys/class/infiniband"
_MANAGER = "opensm"
_KEY = re.compile(r"0x[0-9a-fA-F]{4}")
# drivers/infiniband/core/sysfs.c, phys_state_show
_PHYSICAL = re.compile(r"(\d{1,2}): ?(\S[ -~]{0,40})", re.ASCII)
# Which folder of a netdev tells its kind; a VRF says so in its uevent alone.
_KINDS = (("bonding", "bond"), ("bridge", "bridge"))


def read_network(tree: Tree, nics: Sequence[Nic], routes: Routes, running: Mapping[int, str]) -> NetworkFacts:
    """The network facts of these ports. Raises InputError for what no kernel writes."""
    masters = sorted({nic.master for nic in nics if nic.master is not None})
    return NetworkFacts(
        addresses=tuple(_addresses(routes)),
        masters=tuple(Master(name, _kind(tree, name)) for name in masters),
        infiniband=tuple(_port(tree, nic) for nic in nics if _speaks_infiniband(nic)),
        subnet_managers=_managers(running),
    )


def _addresses(routes: Routes) -> Iterator[LocalAddress]:
    for interface, held in sorted(routes.addresses.items()):
        yield from (LocalAddress(address, interface) for address in held)
    for address, length, _ in routes.shared:
        yield LocalAddress(f"{address}/{length}")


def _kind(tree: Tree, name: str) -> Optional[str]:
    for folder, kind in _KINDS:
        if tree.is_folder(f"{_NET}/{name}/{folder}"):
            return kind
    for line in (tree.text(f"{_NET}/{name}/uevent") or "").splitlines():
        if line.startswith("DEVTYPE="):
            return line.partition("=")[2] or None
    return None


def _speaks_infiniband(nic: Nic) -> bool:
    return nic.link_layer == "InfiniBand" and nic.rdma is not None and not nic.management


def _port(tree: Tree, nic: Nic) -> InfinibandPort:
    place = f"{_RDMA}/{nic.rdma}/ports/{nic.port or 1}"
    return InfinibandPort(
        nic=nic.name,
        lid=tree.integer(f"{place}/lid"),
        sm_lid=tree.integer(f"{place}/sm_lid"),
        pkeys=_keys(tree, f"{place}/pkeys"),
        physical=_physical(tree, f"{place}/phys_state"),
    )


def _keys(tree: Tree, place: str) -> Optional[tuple[str, ...]]:
    """The entries in use: an empty one is 0x0000."""
    if not tree.is_folder(place):
        return None
    found = []
    for name in sorted(tree.names(place), key=lambda text: (len(text), text)):
        text = tree.text(f"{place}/{name}")
        if text is None:
            continue
        if not _KEY.fullmatch(text):
            raise InputError(
                tree.where(f"{place}/{name}"), f"found {text[:40]!r}", "expected a partition key like 0xffff"
            )
        if int(text, 16):
            found.append(text.lower())
    return tuple(found)


def _physical(tree: Tree, path: str) -> Optional[str]:
    text = tree.text(path)
    if text is None:
        return None
    match = _PHYSICAL.fullmatch(text)
    if match is None:
        raise InputError(tree.where(path), f"found {text[:40]!r}", "expected a state like '5: LinkUp'")
    return match[2]


def _managers(running: Mapping[int, str]) -> Optional[tuple[int, ...]]:
    return tuple(number for number, name in running.items() if name == _MANAGER) if running else None
