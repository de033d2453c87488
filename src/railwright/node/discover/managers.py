"""What runs the node's network: by processes, by what networkd, NetworkManager and udev keep in /run, and by files."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ..model import Nic
from ..model.manager_facts import NETWORK_MANAGER, NETWORKD, ManagedPort, Managers
from .host import OUR_HEADER
from .pci import address_above
from .tree import Tree, each_line

_NET = "sys/class/net"
# The kernel keeps 15 characters of a process's name (TASK_COMM_LEN, include/linux/sched.h).
_PROCESSES = {NETWORKD[:15]: NETWORKD, NETWORK_MANAGER: NETWORK_MANAGER}
# A container's end of a veth is called by chance, which is no reason to plan its node apart from equal ones.
_NUMBERED = re.compile(r"(?!veth)[a-z][a-z0-9]{0,11}[0-9]{1,2}(?:p[2-4])?", re.ASCII)
# Where netplan 0.106 and 1.x keep the program that writes what networkd and NetworkManager read.
_GENERATORS = ("usr/libexec/netplan/generate", "usr/lib/netplan/generate", "lib/netplan/generate")
_KEYFILES = ("etc/NetworkManager/system-connections", "run/NetworkManager/system-connections")
_INTERFACES, _INTERFACES_D = "etc/network/interfaces", "etc/network/interfaces.d"
_IFCFG = "etc/sysconfig/network-scripts"
_IFACE = re.compile(r"\s*iface\s+(\S+)\s", re.ASCII)
_ID = re.compile(r"\s*uuid\s*=\s*([0-9A-Fa-f-]{36})\s*", re.ASCII)
_ID_OF_IFCFG = re.compile(r"\s*UUID=[\"']?([0-9A-Fa-f-]{36})[\"']?\s*", re.ASCII)
_RDMA_RULES = "etc/udev/rules.d/60-rdma-persistent-naming.rules"
_SMALL = 64 * 1024


def read_managers(tree: Tree, nics: Sequence[Nic], running: Mapping[int, str]) -> Managers:
    """The managers of this node, and what they do with the ports of these NICs."""
    ports = {nic.netdev: nic.address for nic in nics if nic.netdev is not None and nic.address is not None}
    profiles = _profiles(tree)
    interfaces = _interfaces(tree)
    return Managers(
        running=_running(tree, running),
        netplan=_netplan(tree),
        ports=tuple(
            _port(tree, netdev, device, profiles, interfaces) for netdev, device in sorted(ports.items())
        ),
        names=tuple(
            name for name in tree.names(_NET) if name not in ports and _NUMBERED.fullmatch(name) is not None
        ),
        crowded=_crowded(tree),
        rdma_rules=_rdma_rules(tree),
    )


def _running(tree: Tree, running: Mapping[int, str]) -> Optional[tuple[str, ...]]:
    if not running:
        return None
    # A container's own manager is none of this node's: it has another network namespace.
    own = tree.link("proc/1/ns/net")
    found = set()
    for number, comm in running.items():
        name = _PROCESSES.get(comm)
        if name is not None and own in (None, tree.link(f"proc/{number}/ns/net") or own):
            found.add(name)
    return tuple(sorted(found))


def _netplan(tree: Tree) -> Optional[bool]:
    if not tree.is_folder("etc"):
        return None
    configured = any(name.endswith(".yaml") for name in tree.names("etc/netplan"))
    return configured and any(tree.exists(path) for path in _GENERATORS)


def _rdma_rules(tree: Tree) -> Optional[str]:
    if not tree.is_folder("etc"):
        return None
    status = tree.status(_RDMA_RULES)
    if status is None:
        return ""
    # A link to /dev/null masks the rule, and somebody meant that.
    text = (tree.text(_RDMA_RULES, _SMALL) or "") if _is_plain(status) else ""
    return "" if text.startswith(OUR_HEADER) else f"/{_RDMA_RULES}"


def _port(
    tree: Tree, netdev: str, device: str, profiles: dict[str, str], interfaces: dict[str, str]
) -> ManagedPort:
    number = tree.integer(f"{_NET}/{netdev}/ifindex")
    udev = _pairs(tree.text(f"run/udev/data/n{number}", _SMALL), "E:")
    networkd = _pairs(tree.text(f"run/systemd/netif/links/{number}", _SMALL))
    manager = _pairs(tree.text(f"run/NetworkManager/devices/{number}", _SMALL))
    return ManagedPort(
        netdev,
        device,
        path=udev.get("ID_PATH"),
        link_file=udev.get("ID_NET_LINK_FILE"),
        file=networkd.get("NETWORK_FILE")
        or profiles.get(manager.get("connection-uuid", ""))
        or interfaces.get(netdev),
    )


def _pairs(text: Optional[str], before: str = "") -> dict[str, str]:
    pairs = {}
    for line in each_line(text or ""):
        key, mark, value = line.partition("=")
        if mark and key.startswith(before) and value:
            pairs[key[len(before) :]] = value
    return pairs


def _profiles(tree: Tree) -> dict[str, str]:
    """NetworkManager's profiles by their identity. Nothing else of them is kept: they hold secrets."""
    found: dict[str, str] = {}
    for folder, form in (*((folder, _ID) for folder in _KEYFILES), (_IFCFG, _ID_OF_IFCFG)):
        for path in _files(tree, folder):
            for line in each_line(tree.text(path, _SMALL) or ""):
                match = form.fullmatch(line)
                if match is not None:
                    found.setdefault(match[1].lower(), f"/{path}")
    return found


def _interfaces(tree: Tree) -> dict[str, str]:
    """Interfaces that ifupdown's files and RHEL's ifcfg files configure by name."""
    return dict(_stanzas(tree))


def _stanzas(tree: Tree) -> Iterator[tuple[str, str]]:
    main = tree.status(_INTERFACES)
    for path in (*([_INTERFACES] if _is_plain(main) else []), *_files(tree, _INTERFACES_D)):
        for line in each_line(tree.text(path, _SMALL) or ""):
            match = _IFACE.match(f"{line} ")
            if match is not None:
                yield match[1], f"/{path}"
    for name in tree.names(_IFCFG):
        if name.startswith("ifcfg-"):
            yield name[len("ifcfg-") :], f"/{_IFCFG}/{name}"


def _files(tree: Tree, folder: str) -> Iterator[str]:
    """Plain files of a folder that people write into: what else lies there is no configuration."""
    for name in tree.names(folder):
        if _is_plain(tree.status(f"{folder}/{name}")):
            yield f"{folder}/{name}"


def _is_plain(status: Optional[os.stat_result]) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL


def _crowded(tree: Tree) -> tuple[str, ...]:
    count: Counter[str] = Counter()
    for name in tree.names(_NET):
        place = tree.resolve(f"{_NET}/{name}")
        address = None if place is None else address_above(place)
        index, link = tree.integer(f"{_NET}/{name}/ifindex"), tree.integer(f"{_NET}/{name}/iflink")
        if address is not None and (index is None or link is None or index == link):
            count[address] += 1
    return tuple(sorted(address for address, netdevs in count.items() if netdevs > 1))
