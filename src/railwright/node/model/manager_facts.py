"""What runs the node's network, and what it and udev have decided for each port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

NETWORKD, NETWORK_MANAGER = "systemd-networkd", "NetworkManager"


@dataclass(frozen=True)
class ManagedPort:
    """One port's netdev. None is unknown, or that there is none.

    path: udev's ID_PATH ("pci-0000:18:00.0"). link_file: the .link file that named it at the last boot (udev's
    ID_NET_LINK_FILE). file: the configuration by which it runs now, or would: a .network file, a keyfile, an ifcfg
    file, /etc/network/interfaces.
    """

    netdev: str
    device: str
    path: Optional[str] = None
    link_file: Optional[str] = None
    file: Optional[str] = None


@dataclass(frozen=True)
class Managers:
    """running: of NETWORKD and NETWORK_MANAGER those that run here; None where processes are not shown.

    netplan: its program and configuration are there. names: netdevs that are no port of a NIC and are called like
    numbered devices ("bond0"). crowded: PCI functions that carry several netdevs (switchdev mode, subfunctions, two
    ports on one function), which no PCI path tells apart. rdma_rules: somebody else's file in the place of rdma-core's
    rule that names RDMA devices; "" where there is none, None where it is not known.
    """

    running: Optional[tuple[str, ...]] = None
    netplan: Optional[bool] = None
    ports: tuple[ManagedPort, ...] = ()
    names: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()
    rdma_rules: Optional[str] = None
